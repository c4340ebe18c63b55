"""The live store: small documents of one process, replaced whole and durably (design 3, `messages.ports`).

    <directory>/<name>.doc      the document, mode 0600
    <directory>/lock            who holds the directory: cluster, process, pid

A document on disk is

    magic 8 | version 2 | length of cluster id 2 | length of data 8 | SHA-256 32 | cluster id | data

with integers big-endian and the digest over everything else plus the document's name. A file that is not exactly
that is refused by name and left as it is: nothing is ever read as empty and nothing unread is written over.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import ClassVar

from actors.actor import Actor, Context
from messages.ports import Document, LoadDocument, PortRefusal, SaveDocument, StoreMessage
from messages.system import Done
from runtime.packages.files import create_new, sync_directory

MAGIC = b"SENNITD\n"
VERSION = 1
LIMIT_BYTES = 8 * 1024 * 1024
"""Most bytes of one document."""

_FIXED = struct.Struct(">8sHHQ32s")
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}", re.ASCII)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

_HELD: dict[Path, int] = {}
"""Locks of this process. A store that crashed leaves its lock to its next incarnation here, and to nobody else."""


class StoreFault(Exception):
    """The store did not do what was asked; no document changed."""

    def __init__(self, code: PortRefusal, reason: str) -> None:
        super().__init__(f"{code.value}: {reason}")
        self.code = code
        self.reason = reason


class FileStore(Actor[StoreMessage]):
    """Documents in `directory` (made with mode 0700), bound to `cluster_id`; `process` is named in the lock.

    Every question is refused `invalid_state` while another process holds the directory.
    """

    mailbox: ClassVar = StoreMessage

    def __init__(self, directory: Path, cluster_id: str, process: str) -> None:
        self._documents = Documents(directory, cluster_id, process)

    def receive(self, message: StoreMessage, ctx: Context) -> None:
        try:
            match message:
                case LoadDocument():
                    ctx.reply(Document(data=self._documents.load(message.name)))
                case SaveDocument():
                    self._documents.save(message.name, message.data)
                    ctx.reply(Done())
        except StoreFault as fault:
            ctx.log("error", "the store refused", document=message.name, code=fault.code.value, reason=fault.reason)
            ctx.refuse(fault.code, fault.reason)

    def stopped(self, ctx: Context) -> None:  # noqa: ARG002
        self._documents.close()

    def state(self) -> object:
        return {"directory": str(self._documents.directory), "names": self._documents.names()}


class Documents:
    """What `FileStore` does, without an actor. Methods raise `StoreFault`."""

    def __init__(self, directory: Path, cluster_id: str, process: str) -> None:
        self.directory = directory.absolute()
        self._cluster_id = cluster_id
        self._process = process
        self._holds = False
        self._sound: set[str] = set()

    def names(self) -> list[str]:
        return sorted(path.stem for path in self.directory.glob("*.doc"))

    def load(self, name: str) -> bytes | None:
        """The document, or None when there is no file of it."""
        path = self._path(name)
        self._hold()
        with _io(path):
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            except FileNotFoundError:
                self._sound.add(name)
                return None
            with os.fdopen(descriptor, "rb") as file:
                content = file.read(LIMIT_BYTES + _FIXED.size + 2**16 + 1)
        data = unwrap(content, name, self._cluster_id, str(path))
        self._sound.add(name)
        return data

    def save(self, name: str, data: bytes) -> None:
        """Durable when it returns. A file that could not be read is never written over."""
        path = self._path(name)
        if len(data) > LIMIT_BYTES:
            raise StoreFault(PortRefusal.INVALID, f"{name}: {len(data)} bytes exceed the limit of {LIMIT_BYTES}")
        if name not in self._sound:
            self.load(name)
        self._hold()
        fresh = self.directory / f".{name}.{secrets.token_hex(8)}.tmp"
        with _io(path):
            create_new(fresh, wrap(data, name, self._cluster_id), 0o600)
            try:
                fresh.replace(path)
            except BaseException:
                fresh.unlink(missing_ok=True)
                raise
        # A failure from here on leaves old or new, nobody knows which: it ends the actor instead of refusing.
        sync_directory(self.directory)

    def close(self) -> None:
        """Give the directory up, for any other process."""
        self._holds = False
        descriptor = _HELD.pop(self.directory, None)
        if descriptor is not None:
            os.close(descriptor)

    def _path(self, name: str) -> Path:
        if _NAME.fullmatch(name) is None:
            raise StoreFault(PortRefusal.INVALID, f"{name[:64]!r} is no document name: [a-z0-9][a-z0-9_-]*, at most 64")
        return self.directory / f"{name}.doc"

    def _hold(self) -> None:
        """Take the directory's lock, once; clear what writes of a former process left behind."""
        if self._holds:
            return
        if self.directory in _HELD:
            self._holds = True
            return
        with _io(self.directory):
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.pread(descriptor, 512, 0).decode(errors="replace").strip() or "an unnamed process"
                os.close(descriptor)
                raise StoreFault(
                    PortRefusal.INVALID_STATE,
                    f"{self.directory} is held by {holder}: stop that process, or give this one its own directory",
                ) from None
            except BaseException:
                os.close(descriptor)
                raise
            _HELD[self.directory] = descriptor
            self._holds = True
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{self._process} of cluster {self._cluster_id} (pid {os.getpid()})\n".encode(), 0)
            for leftover in self.directory.glob(".*.tmp"):
                leftover.unlink()


def wrap(data: bytes, name: str, cluster_id: str) -> bytes:
    """The bytes of a document's file."""
    cluster = cluster_id.encode()
    digest = _digest(VERSION, cluster, name, data)
    return _FIXED.pack(MAGIC, VERSION, len(cluster), len(data), digest) + cluster + data


def unwrap(content: bytes, name: str, cluster_id: str, where: str) -> bytes:
    """The data inside a document's file. Raises `StoreFault` (`damaged`) saying what is wrong and what to do."""

    def damaged(what: str, remedy: str = "restore it from a copy, or move it away to begin anew") -> StoreFault:
        return StoreFault(PortRefusal.DAMAGED, f"{where}: {what}; it was left as it is: {remedy}")

    if not content:
        raise damaged("the file is empty")
    if content[:8] != MAGIC[: len(content)]:
        raise damaged("it does not begin like a document of sennit")
    if len(content) < _FIXED.size:
        raise damaged(f"cut off after {len(content)} bytes")
    _, version, cluster_bytes, data_bytes, digest = _FIXED.unpack_from(content)
    if version != VERSION:
        raise damaged(f"format {version}, this release reads {VERSION}", "run the release that wrote it")
    expected = _FIXED.size + cluster_bytes + data_bytes
    if len(content) != expected:
        raise damaged(f"{len(content)} bytes, its header says {expected}")
    cluster = content[_FIXED.size : _FIXED.size + cluster_bytes]
    data = content[_FIXED.size + cluster_bytes :]
    if _digest(version, cluster, name, data) != digest:
        raise damaged("its SHA-256 does not agree with its content")
    if cluster != cluster_id.encode():
        other = cluster.decode(errors="replace")
        raise damaged(f"it belongs to cluster {other}, not to {cluster_id}", "give each cluster its own directory")
    return data


def _digest(version: int, cluster: bytes, name: str, data: bytes) -> bytes:
    digest = sha256(b"sennit.document.v1\0")
    for part in (version.to_bytes(2, "big"), cluster, name.encode(), data):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.digest()


@contextmanager
def _io(path: Path) -> Iterator[None]:
    """Say I/O errors in the port's terms."""
    try:
        yield
    except OSError as error:
        code = PortRefusal.DISK_FULL if error.errno in _FULL else PortRefusal.IO_ERROR
        raise StoreFault(code, f"{path}: {error.strerror or error}") from None
