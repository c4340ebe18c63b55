"""How a node gets a package: by content hash, verified while it streams (G 4.9, design 5 and 9).

Manifest, its hash, signatures against the node's own anchors, revocations; then every file in blocks of 64 KiB, a
window of them outstanding, each checked for its exact length before its bytes are kept. Sizes come from the signed
manifest, so neither an endless nor a trickling answer costs more than the deadline.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from actors.actor import Ask, AskFailed, Context
from actors.packages.fault import PackageFault, file_tampered, io_error
from actors.packages.keys import TrustAnchors
from actors.packages.manifest import Manifest, Signer, manifest_hash_of, parse_manifest, verify_signatures
from actors.packages.store import BlobClient, load_workload, package_fault, stored_package
from actors.packages.stream import FileVerifier
from actors.packages.text import is_hex
from messages.base import Address
from messages.control import RefusalCode
from messages.packages import (
    BLOCK_BYTES,
    MANIFEST_LIMIT_BYTES,
    Block,
    FileRef,
    GetBlock,
    GetManifest,
    ManifestBytes,
    PackageErrorCode,
    VerifiedWorkload,
)
from messages.system import AskFailure, KernelRefusal

WINDOW_BYTES = 4 * BLOCK_BYTES
BLOCK_TIMEOUT_S = 10.0
ATTEMPTS = 4
FIRST_PAUSE_S = 0.1

_UNVERIFIED = frozenset(PackageErrorCode) - {PackageErrorCode.IO_ERROR, PackageErrorCode.FILE_MISSING}


class FetchFault(Exception):
    """The package is not here. `code` is `fetch` or `verify` (P 3.1); `reason` is for people."""

    def __init__(self, code: RefusalCode, reason: str) -> None:
        super().__init__(f"{code.value}: {reason}")
        self.code = code
        self.reason = reason


async def fetch_package(
    ctx: Context,
    *,
    server: Address,
    blobs: Address,
    manifest_hash: str,
    anchors: TrustAnchors,
    revoked: Collection[str] = (),
    timeout_s: float = 120.0,
) -> VerifiedWorkload:
    """Bring the package into this process's content store, whole, and tell what it is.

    What the store holds already is not fetched again but judged again: `anchors` and `revoked` (package ids, signer
    keys, artifact or manifest hashes) may have changed. Raises `FetchFault`.
    """
    if not is_hex(manifest_hash, 64):
        raise FetchFault(RefusalCode.FETCH, f"{manifest_hash[:64]!r} is not a manifest hash of 64 lower hex digits")
    client = BlobClient(ctx, blobs, ctx.now() + timeout_s)
    fetch = _Fetch(ctx, server, client)
    try:
        data: bytes | None = None
        stored = await stored_package(client, manifest_hash, anchors)
        if stored is None:
            data = await fetch.manifest(manifest_hash)
            manifest = parse_manifest(data)
            signers = verify_signatures(manifest, anchors)
        else:
            manifest, signers = stored
        _refuse_revoked(manifest, signers, revoked)
        for file in manifest.body.files():
            if not await client.holds(file):
                async with ctx.exclusive(("blob", file.sha256), timeout_s=client.remaining()):
                    await fetch.file(file)
        if data is not None:
            await client.put(manifest_hash, data)  # last: a manifest is held when its files were
        return await load_workload(client, manifest, signers)
    except PackageFault as fault:
        raise FetchFault(RefusalCode.VERIFY if fault.code in _UNVERIFIED else RefusalCode.FETCH, str(fault)) from None
    except AskFailed as failure:
        unread = package_fault(failure, manifest_hash)
        code = RefusalCode.VERIFY if unread.code is PackageErrorCode.FILE_TAMPERED else RefusalCode.FETCH
        raise FetchFault(code, f"{failure.to}: {unread.text}") from None


@dataclass(frozen=True, slots=True)
class _Fetch:
    ctx: Context
    server: Address
    client: BlobClient

    async def manifest(self, manifest_hash: str) -> bytes:
        request = GetManifest(manifest_hash=manifest_hash)
        answer: ManifestBytes = await self.ctx.ask(self.server, request, self._patience())
        if len(answer.data) > MANIFEST_LIMIT_BYTES:
            raise file_tampered("manifest", f"at most {MANIFEST_LIMIT_BYTES} bytes", f"{len(answer.data)} bytes")
        if manifest_hash_of(answer.data) != manifest_hash:
            raise file_tampered("manifest", manifest_hash, manifest_hash_of(answer.data))
        return answer.data

    async def file(self, file: FileRef) -> None:
        """Stream one file into the store, unless it came meanwhile."""
        if await self.client.holds(file):
            return
        verifier = FileVerifier(file)
        if file.size == 0:
            await self.client.write(file.sha256, 0, b"")
        for start in range(0, file.size, WINDOW_BYTES):
            offsets = range(start, min(start + WINDOW_BYTES, file.size), BLOCK_BYTES)
            data = b"".join(await self._window(file, offsets))
            verifier.feed(data)
            if not verifier.missing:
                verifier.finish()
            await self.client.write(file.sha256, start, data)
        await self.client.seal(file.sha256, file.size)

    async def _window(self, file: FileRef, offsets: range) -> list[bytes]:
        """The blocks at `offsets`; what was lost or refused for want of room is asked for again, a few times."""
        got: dict[int, bytes] = {}
        for attempt in range(ATTEMPTS):
            missing = [offset for offset in offsets if offset not in got]
            answers = await self.ctx.all_of([self._ask(file, offset) for offset in missing])
            failure: AskFailed | None = None
            for offset, answer in zip(missing, answers, strict=True):
                if isinstance(answer, AskFailed):
                    failure = answer
                else:
                    got[offset] = _checked(file, offset, answer)
            if failure is None:
                return [got[offset] for offset in offsets]
            pause_s = FIRST_PAUSE_S * 2**attempt
            if attempt + 1 == ATTEMPTS or not _may_pass(failure) or self.client.remaining() <= pause_s:
                raise io_error(file.path, str(failure))
            await self.ctx.sleep(pause_s)
        raise AssertionError("the last attempt returns or raises")

    def _ask(self, file: FileRef, offset: int) -> Ask[Block]:
        return self.ctx.ask(self.server, GetBlock(sha256=file.sha256, offset=offset), self._patience())

    def _patience(self) -> float:
        return min(BLOCK_TIMEOUT_S, self.client.remaining())


def _checked(file: FileRef, offset: int, block: Block) -> bytes:
    expected = min(BLOCK_BYTES, file.size - offset)
    ends = offset + expected == file.size
    if len(block.data) != expected or block.last != ends:
        raise file_tampered(
            file.path,
            f"{expected} bytes at {offset}" + (", the last" if ends else ""),
            f"{len(block.data)} bytes" + (", the last" if block.last else ""),
        )
    return block.data


def _may_pass(failure: AskFailed) -> bool:
    """Reading a block changes nothing, so whatever may be over soon is tried again."""
    if failure.failure is AskFailure.REFUSED:
        return failure.code == KernelRefusal.OVERLOADED
    return failure.failure is not AskFailure.WOULD_DEADLOCK


def _refuse_revoked(manifest: Manifest, signers: tuple[Signer, ...], revoked: Collection[str]) -> None:
    refs = [
        manifest.package_id,
        manifest.manifest_hash,
        *(signer.public_key for signer in signers),
        *(file.sha256 for file in manifest.body.files()),
    ]
    for ref in refs:
        if ref in revoked:
            raise FetchFault(RefusalCode.FETCH, f"package {manifest.package_id} is revoked by {ref}")
