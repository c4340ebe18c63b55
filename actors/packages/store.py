"""Packages in a process's content store, through its blobs port (G 4.6, G 4.8).

The controller imports a package directory of its host here; a node's fetch and the package server read and write
through the same few procedures. Nothing is stored before the signatures were accepted.
"""

from __future__ import annotations

from dataclasses import dataclass

from actors.actor import AskFailed, Context
from actors.packages.fault import PackageFault, io_error, manifest_invalid
from actors.packages.keys import TrustAnchors
from actors.packages.manifest import MANIFEST_PATH, Manifest, Signer, parse_manifest, verify_signatures
from actors.packages.workload import verified_workload
from messages.base import Address
from messages.packages import (
    COG_TOML_LIMIT_BYTES,
    MANIFEST_LIMIT_BYTES,
    FileRef,
    PackageErrorCode,
    VerifiedWorkload,
)
from messages.ports import ImportPackageFile, PortRefusal, ReadBlob, ReadPackageFile, SealBlob, StatBlob, WriteBlob
from messages.system import AskFailure

_CODES = {
    PortRefusal.NOT_FOUND: PackageErrorCode.FILE_MISSING,
    PortRefusal.MISMATCH: PackageErrorCode.FILE_TAMPERED,
    PortRefusal.DAMAGED: PackageErrorCode.FILE_TAMPERED,
}


@dataclass(frozen=True, slots=True)
class BlobClient:
    """The blobs port as a procedure uses it. Methods raise `AskFailed`; each wait ends by `deadline` (`ctx.now`)."""

    ctx: Context
    blobs: Address
    deadline: float

    def remaining(self) -> float:
        """Seconds left; a deadline that is over still gives an ask its moment to fail with `timeout`."""
        return max(self.deadline - self.ctx.now(), 0.001)

    async def size(self, sha256: str) -> int | None:
        return (await self.ctx.ask(self.blobs, StatBlob(sha256=sha256), self.remaining())).size

    async def holds(self, file: FileRef) -> bool:
        return await self.size(file.sha256) == file.size

    async def read(self, sha256: str, limit_bytes: int) -> bytes:
        """A whole small blob; one byte more than `limit_bytes` at most is asked for."""
        request = ReadBlob(sha256=sha256, offset=0, length=limit_bytes + 1)
        return (await self.ctx.ask(self.blobs, request, self.remaining())).data

    async def put(self, sha256: str, data: bytes) -> None:
        """Store `data` under its digest, unless it is held."""
        if await self.size(sha256) == len(data):
            return
        async with self.ctx.exclusive(("blob", sha256), timeout_s=self.remaining()):
            await self.write(sha256, 0, data)
            await self.seal(sha256, len(data))

    async def write(self, sha256: str, offset: int, data: bytes) -> None:
        await self.ctx.ask(self.blobs, WriteBlob(sha256=sha256, offset=offset, data=data), self.remaining())

    async def seal(self, sha256: str, size: int) -> None:
        await self.ctx.ask(self.blobs, SealBlob(sha256=sha256, size=size), self.remaining())


async def import_package(
    ctx: Context, *, blobs: Address, directory: str, anchors: TrustAnchors, timeout_s: float = 60.0
) -> VerifiedWorkload:
    """Verify the package in `directory` (on this host) and copy it into the content store.

    Manifest, signatures, then every listed file; the manifest itself is stored last, so a held manifest means a
    complete package. Raises `PackageFault`.
    """
    client = BlobClient(ctx, blobs, ctx.now() + timeout_s)
    path = MANIFEST_PATH
    try:
        data = await _read_manifest(client, directory)
        manifest = parse_manifest(data)
        signers = verify_signatures(manifest, anchors)
        for file in manifest.body.files():
            path = file.path
            request = ImportPackageFile(directory=directory, path=path, sha256=file.sha256, size=file.size)
            await ctx.ask(blobs, request, client.remaining())
        path = MANIFEST_PATH
        await client.put(manifest.manifest_hash, data)
        return await load_workload(client, manifest, signers)
    except AskFailed as failure:
        raise package_fault(failure, path) from None


async def stored_package(
    client: BlobClient, manifest_hash: str, anchors: TrustAnchors
) -> tuple[Manifest, tuple[Signer, ...]] | None:
    """Manifest and signers of a held manifest; None when it is not held. Raises `PackageFault` and `AskFailed`."""
    size = await client.size(manifest_hash)
    if size is None:
        return None
    if size > MANIFEST_LIMIT_BYTES:
        raise manifest_invalid(f"larger than {MANIFEST_LIMIT_BYTES} bytes")
    manifest = parse_manifest(await client.read(manifest_hash, MANIFEST_LIMIT_BYTES))
    if manifest.manifest_hash != manifest_hash:
        raise manifest_invalid(f"stored under {manifest_hash} but hashes to {manifest.manifest_hash}")
    return manifest, verify_signatures(manifest, anchors)


async def load_workload(client: BlobClient, manifest: Manifest, signers: tuple[Signer, ...]) -> VerifiedWorkload:
    """The workload of a package whose files are held. Raises `PackageFault` and `AskFailed`."""
    cog_toml = await client.read(manifest.body.cog_toml.sha256, COG_TOML_LIMIT_BYTES)
    return verified_workload(manifest, signers, cog_toml)


def package_fault(failure: AskFailed, path: str) -> PackageFault:
    """A refusal of the blobs port in the terms of G 4.6."""
    if failure.failure is AskFailure.REFUSED and failure.code in PortRefusal.__members__.values():
        code = _CODES.get(PortRefusal(failure.code))
        if code is not None:
            return PackageFault(code, failure.reason)
    return io_error(path, f"{failure.failure.value}: {failure.reason}")


async def _read_manifest(client: BlobClient, directory: str) -> bytes:
    request = ReadPackageFile(directory=directory, path=MANIFEST_PATH, limit=MANIFEST_LIMIT_BYTES)
    return (await client.ctx.ask(client.blobs, request, client.remaining())).data
