"""`controller/packages`: hands out what was offered, and nothing else (design 8, G 4.9).

An actor of its own, so that a node may fetch while the plane waits for that node. An offer names a manifest in this
process's content store; the server verifies it against its own anchors before it serves a byte of it. Offers are kept
in memory: after a restart the plane offers again before it dispatches.
"""

from __future__ import annotations

from dataclasses import dataclass

from actors.actor import Actor, AskFailed, Context, Procedure
from actors.packages.fault import PackageFault, file_missing
from actors.packages.keys import TrustAnchors
from actors.packages.manifest import Manifest
from actors.packages.store import BlobClient, package_fault, stored_package
from messages.base import Address
from messages.packages import (
    BLOCK_BYTES,
    MANIFEST_LIMIT_BYTES,
    Block,
    GetBlock,
    GetManifest,
    ManifestBytes,
    Offer,
    Offered,
    PackageRefusal,
    PackagesMailbox,
    Withdraw,
    Withdrawn,
)
from messages.ports import ReadBlob

OFFER_TIMEOUT_S = 60.0
READ_TIMEOUT_S = 5.0


@dataclass(slots=True)
class _Served:
    blocks: int = 0
    bytes: int = 0
    refused: int = 0


class PackageServer(Actor[PackagesMailbox]):
    """Serves offered packages out of the content store behind `blobs`."""

    mailbox = PackagesMailbox

    def __init__(self, blobs: Address, anchors: TrustAnchors) -> None:
        self._blobs = blobs
        self._anchors = anchors
        self._offers: dict[str, Manifest] = {}
        self._sizes: dict[str, int] = {}
        self._offering: dict[str, set[object]] = {}  # what is being verified; a withdrawal takes it back
        self._served = _Served()

    def receive(self, message: PackagesMailbox, ctx: Context) -> Procedure | None:
        match message:
            case GetManifest():
                return self._manifest(message, ctx)
            case GetBlock():
                return self._block(message, ctx)
            case Offer():
                return self._offer(message, ctx)
            case Withdraw():
                known = self._offers.pop(message.manifest_hash, None) is not None
                self._offering.pop(message.manifest_hash, None)
                self._index()
                ctx.reply(Withdrawn(known=known))
        return None

    def state(self) -> object:
        return {
            "offers": {name: manifest.package_id for name, manifest in self._offers.items()},
            "files": len(self._sizes),
            "blocks_served": self._served.blocks,
            "bytes_served": self._served.bytes,
            "refused": self._served.refused,
        }

    async def _offer(self, offer: Offer, ctx: Context) -> None:
        ticket = object()
        self._offering.setdefault(offer.manifest_hash, set()).add(ticket)
        try:
            manifest = await self._verified(offer.manifest_hash, ctx)
        except PackageFault as fault:
            self._refuse(ctx, fault.code, fault.text)
            return
        finally:
            stands = self._take_ticket(offer.manifest_hash, ticket)
        if not stands:
            self._refuse(ctx, PackageRefusal.NOT_OFFERED, f"manifest {offer.manifest_hash} was withdrawn meanwhile")
            return
        self._offers[offer.manifest_hash] = manifest
        self._index()
        ctx.reply(Offered(package_id=manifest.package_id, files=manifest.body.files()))

    async def _verified(self, manifest_hash: str, ctx: Context) -> Manifest:
        """The manifest of a package that is held whole and signed by a pinned signer. Raises `PackageFault`."""
        client = BlobClient(ctx, self._blobs, ctx.now() + OFFER_TIMEOUT_S)
        try:
            stored = await stored_package(client, manifest_hash, self._anchors)
            if stored is None:
                raise file_missing(f"manifest {manifest_hash[:64]}")
            manifest, _ = stored
            for file in manifest.body.files():
                if not await client.holds(file):
                    raise file_missing(file.path)
        except AskFailed as failure:
            raise package_fault(failure, manifest_hash[:64]) from None
        return manifest

    def _take_ticket(self, manifest_hash: str, ticket: object) -> bool:
        """Whether nobody withdrew the package since the ticket was drawn."""
        tickets = self._offering.get(manifest_hash, set())
        stands = ticket in tickets
        tickets.discard(ticket)
        if not tickets:
            self._offering.pop(manifest_hash, None)
        return stands

    async def _manifest(self, request: GetManifest, ctx: Context) -> None:
        if request.manifest_hash not in self._offers:
            self._refuse(ctx, PackageRefusal.NOT_OFFERED, f"manifest {request.manifest_hash[:64]} is not offered here")
            return
        client = BlobClient(ctx, self._blobs, ctx.now() + READ_TIMEOUT_S)
        try:
            data = await client.read(request.manifest_hash, MANIFEST_LIMIT_BYTES)
        except AskFailed as failure:
            self._refuse(ctx, PackageRefusal.STORE, str(failure))
            return
        ctx.reply(ManifestBytes(data=data))

    async def _block(self, request: GetBlock, ctx: Context) -> None:
        size = self._sizes.get(request.sha256)
        if size is None:
            self._refuse(ctx, PackageRefusal.NOT_OFFERED, f"file {request.sha256[:64]} is not offered here")
            return
        if request.offset % BLOCK_BYTES or request.offset > max(size - 1, 0):
            self._refuse(ctx, PackageRefusal.BAD_OFFSET, f"offset {request.offset} is no block of {size} bytes")
            return
        read = ReadBlob(sha256=request.sha256, offset=request.offset, length=BLOCK_BYTES)
        try:
            blob = await ctx.ask(self._blobs, read, READ_TIMEOUT_S)
        except AskFailed as failure:
            self._refuse(ctx, PackageRefusal.STORE, str(failure))
            return
        self._served.blocks += 1
        self._served.bytes += len(blob.data)
        ctx.reply(Block(data=blob.data, last=request.offset + len(blob.data) >= size))

    def _refuse(self, ctx: Context, code: str, reason: str) -> None:
        self._served.refused += 1
        ctx.refuse(code, reason)

    def _index(self) -> None:
        """Files by digest: one that two packages list stays until both are withdrawn."""
        self._sizes = {file.sha256: file.size for manifest in self._offers.values() for file in manifest.body.files()}
