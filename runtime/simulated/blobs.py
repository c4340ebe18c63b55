"""The simulated content store, with the package directories of its host (`messages.ports`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256
from typing import ClassVar

from actors.actor import Actor, Context
from actors.packages.text import is_hex, is_safe_path
from messages.base import Message
from messages.ports import (
    BlobData,
    BlobInfo,
    BlobsMessage,
    ImportPackageFile,
    PackageFile,
    PortRefusal,
    ReadBlob,
    ReadPackageFile,
    SealBlob,
    StatBlob,
    WriteBlob,
)
from messages.system import Done


@dataclass
class SimulatedShelf:
    """What outlives the actor: `sealed` blobs by SHA-256, `directories` of packages by path, then by file.

    `full`: nothing more is written.
    """

    sealed: dict[str, bytes] = field(default_factory=dict)
    directories: dict[str, dict[str, bytes]] = field(default_factory=dict)
    full: bool = False

    def put(self, data: bytes) -> str:
        """Hold `data` and tell its digest."""
        digest = sha256(data).hexdigest()
        self.sealed[digest] = data
        return digest


class Fault(Exception):
    def __init__(self, code: PortRefusal, reason: str) -> None:
        super().__init__(f"{code.value}: {reason}")
        self.code = code
        self.reason = reason


class SimulatedBlobs(Actor[BlobsMessage]):
    """What is staged and not sealed is lost with the actor, as in the live store."""

    mailbox: ClassVar = BlobsMessage

    def __init__(self, shelf: SimulatedShelf | None = None) -> None:
        self._shelf = SimulatedShelf() if shelf is None else shelf
        self._staged: dict[str, bytearray] = {}

    def receive(self, message: BlobsMessage, ctx: Context) -> None:
        try:
            ctx.reply(self._answer(message))
        except Fault as fault:
            ctx.refuse(fault.code, fault.reason)

    def _answer(self, message: BlobsMessage) -> Message:
        shelf = self._shelf
        if not isinstance(message, ReadPackageFile) and not is_hex(message.sha256, 64):
            raise Fault(PortRefusal.INVALID, f"{message.sha256[:64]!r} is not a SHA-256 of 64 lower hex digits")
        if shelf.full and isinstance(message, WriteBlob | SealBlob | ImportPackageFile):
            raise Fault(PortRefusal.DISK_FULL, "no room on the simulated shelf")
        match message:
            case StatBlob():
                data = shelf.sealed.get(message.sha256)
                return BlobInfo(size=None if data is None else len(data))
            case ReadBlob():
                if message.offset < 0 or message.length < 0:
                    raise Fault(PortRefusal.INVALID, "offset and length must not be negative")
                if message.sha256 not in shelf.sealed:
                    raise Fault(PortRefusal.NOT_FOUND, f"{message.sha256}: nothing is there")
                data = shelf.sealed[message.sha256]
                return BlobData(data=data[message.offset : message.offset + message.length], size=len(data))
            case WriteBlob():
                staged = bytearray() if message.offset == 0 else self._staged.get(message.sha256, bytearray())
                if len(staged) != message.offset:
                    raise Fault(PortRefusal.INVALID, f"{len(staged)} bytes are staged, not {message.offset}")
                staged += message.data
                self._staged[message.sha256] = staged
                return Done()
            case SealBlob():
                staged_bytes = self._staged.pop(message.sha256, None)
                if staged_bytes is None:
                    raise Fault(PortRefusal.NOT_FOUND, f"{message.sha256}: nothing is staged")
                return self._seal(bytes(staged_bytes), message.sha256, message.size)
            case ReadPackageFile():
                data = self._file(message.directory, message.path)
                if len(data) > message.limit:
                    raise Fault(PortRefusal.IO_ERROR, f"{message.path}: larger than {message.limit} bytes")
                return PackageFile(data=data)
            case ImportPackageFile():
                return self._seal(self._file(message.directory, message.path), message.sha256, message.size)

    def _file(self, directory: str, path: str) -> bytes:
        data = self._shelf.directories.get(directory, {}).get(path)
        if data is None or not is_safe_path(path):
            raise Fault(PortRefusal.NOT_FOUND, f"{directory}: no file {path}")
        return data

    def _seal(self, data: bytes, digest: str, size: int) -> Done:
        if len(data) != size or sha256(data).hexdigest() != digest:
            raise Fault(PortRefusal.MISMATCH, f"{digest}: the content has another hash or another size")
        self._shelf.sealed[digest] = data
        return Done()
