"""The content store of one process: files named by their SHA-256 (design 9, `messages.ports`).

    <root>/<sha256>                   a sealed blob, 0444
    <root>/.<sha256>.part             staged, not yet sealed; gone when the store is opened again
    <root>/quarantine/<sha256>.<n>    what no longer matched its name

A blob appears under its name only after its bytes were read back, hashed and synced. It is hashed again before its
first use by a process and whenever the file changed since; a damaged one is moved aside, so it can be fetched anew.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import NoReturn

from actors.packages.fault import PackageFault
from actors.packages.stream import FileVerifier
from actors.packages.text import is_hex
from messages.base import Message
from messages.packages import FILE_LIMIT_BYTES, FileRef, PackageErrorCode
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
from runtime.packages.files import chunks, open_inside, read_inside, sync_directory, write_all

_REFUSALS = {
    PackageErrorCode.FILE_MISSING: PortRefusal.NOT_FOUND,
    PackageErrorCode.FILE_TAMPERED: PortRefusal.MISMATCH,
}
_Mark = tuple[int, int, int, int]


class BlobFault(Exception):
    """The store did not do what was asked; nothing changed under any blob's name."""

    def __init__(self, code: PortRefusal, reason: str) -> None:
        super().__init__(f"{code.value}: {reason}")
        self.code = code
        self.reason = reason


class ContentStore:
    """One process owns a store. Methods raise `BlobFault`; sizes and offsets are bytes."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._checked: dict[str, _Mark] = {}
        with _faults("open the content store"):
            root.mkdir(parents=True, exist_ok=True, mode=0o700)
            for leftover in root.glob(".*.part"):
                leftover.unlink()

    def handle(self, message: BlobsMessage) -> Message:
        """The answer of the blobs port. Raises `BlobFault` where the port refuses."""
        match message:
            case StatBlob():
                return BlobInfo(size=self.size(message.sha256))
            case ReadBlob():
                data, size = self.read(message.sha256, message.offset, message.length)
                return BlobData(data=data, size=size)
            case WriteBlob():
                self.stage(message.sha256, message.offset, message.data)
                return Done()
            case SealBlob():
                self.seal(message.sha256, message.size)
                return Done()
            case ReadPackageFile():
                with _faults(message.path):
                    return PackageFile(data=read_inside(Path(message.directory), message.path, message.limit))
            case ImportPackageFile():
                file = FileRef(path=message.path, size=message.size, sha256=message.sha256)
                self.import_file(Path(message.directory), file)
                return Done()

    def size(self, digest: str) -> int | None:
        """Size of a sound blob; None when it is not held or was found damaged just now."""
        try:
            with self._open(digest) as (_, size):
                return size
        except BlobFault as fault:
            if fault.code in (PortRefusal.NOT_FOUND, PortRefusal.DAMAGED):
                return None
            raise

    def read(self, digest: str, offset: int, length: int) -> tuple[bytes, int]:
        """At most `length` bytes from `offset`, and the size of the whole."""
        if offset < 0 or length < 0:
            raise BlobFault(PortRefusal.INVALID, f"offset {offset} and length {length} must not be negative")
        with self._open(digest) as (descriptor, size), _faults(digest):
            wanted = max(0, min(length, size - offset))
            data = os.pread(descriptor, wanted, offset) if wanted else b""
        if len(data) != wanted:
            raise BlobFault(PortRefusal.IO_ERROR, f"{digest}: {len(data)} of {wanted} bytes could be read")
        return data, size

    def stage(self, digest: str, offset: int, data: bytes) -> None:
        """Append to what is staged for `digest`; `offset` is what was staged so far, 0 starts anew."""
        part = self._part(digest)
        if offset + len(data) > FILE_LIMIT_BYTES:
            raise BlobFault(PortRefusal.INVALID, f"{digest} is larger than {FILE_LIMIT_BYTES} bytes")
        start = os.O_CREAT | os.O_TRUNC if offset == 0 else 0
        with _faults(digest):
            descriptor = os.open(part, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC | start, 0o600)
            try:
                staged = os.fstat(descriptor).st_size
                if staged != offset:
                    raise BlobFault(PortRefusal.INVALID, f"{digest}: {staged} bytes are staged, not {offset}")
                try:
                    write_all(descriptor, data)
                except OSError:
                    os.ftruncate(descriptor, offset)  # a refused write did not happen
                    raise
            finally:
                os.close(descriptor)

    def seal(self, digest: str, size: int) -> None:
        """Make what is staged the blob, durably, if hash and size agree; else drop it (`mismatch`)."""
        self._seal(self._part(digest), FileRef(path=digest, size=size, sha256=digest))

    def put(self, data: bytes) -> str:
        """Store `data` and tell its digest."""
        digest = sha256(data).hexdigest()
        if self.size(digest) is None:
            self.stage(digest, 0, data)
            self.seal(digest, len(data))
        return digest

    def import_file(self, directory: Path, file: FileRef) -> None:
        """Copy one file of a package directory; `mismatch` unless it is what the manifest says."""
        self._part(file.sha256)  # refuses a digest that is none before anything is read
        part = self._root / f".{file.sha256}.{secrets.token_hex(8)}.part"
        with _faults(file.path), open_inside(directory, file.path) as source:
            verifier = FileVerifier(file)
            descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                for data in chunks(source, file.path, file.size + 1):
                    verifier.feed(data)
                    write_all(descriptor, data)
                verifier.finish()
            except BaseException:
                part.unlink(missing_ok=True)
                raise
            finally:
                os.close(descriptor)
        self._seal(part, file)

    def materialise(self, digest: str, target: Path, mode: int) -> None:
        """Write a new file with the content of a blob, hashed on the way: the bytes verified are the bytes run."""
        with self._open(digest) as (source, size), _faults(digest):
            verifier = FileVerifier(FileRef(path=digest, size=size, sha256=digest))
            descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                for data in chunks(source, digest, size + 1):
                    verifier.feed(data)
                    write_all(descriptor, data)
                verifier.finish()
                os.fchmod(descriptor, mode)
                os.fsync(descriptor)
            except BaseException as error:
                target.unlink(missing_ok=True)
                if isinstance(error, PackageFault):
                    self._quarantine(digest)
                raise
            finally:
                os.close(descriptor)
            sync_directory(target.parent)

    @contextmanager
    def _open(self, digest: str) -> Iterator[tuple[int, int]]:
        """Descriptor and size of a sound blob."""
        self._part(digest)
        try:
            descriptor = os.open(self._root / digest, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            raise BlobFault(PortRefusal.NOT_FOUND, f"{digest} is not held") from None
        except OSError as error:
            _refuse(error, digest)
        try:
            status = os.fstat(descriptor)
            mark = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
            if self._checked.get(digest) != mark:
                self._check(digest, descriptor)
                self._checked[digest] = mark
            yield descriptor, status.st_size
        finally:
            os.close(descriptor)

    def _check(self, digest: str, descriptor: int) -> None:
        found = sha256()
        with _faults(digest):
            for data in chunks(descriptor, digest, FILE_LIMIT_BYTES + 1):
                found.update(data)
            os.lseek(descriptor, 0, os.SEEK_SET)
        if found.hexdigest() != digest:
            kept = self._quarantine(digest)
            raise BlobFault(PortRefusal.DAMAGED, f"{digest} was damaged and moved to {kept}; it can be fetched anew")

    def _seal(self, part: Path, file: FileRef) -> None:
        try:
            with _faults(file.path):
                descriptor = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
                try:
                    verifier = FileVerifier(file)
                    for data in chunks(descriptor, file.path, file.size + 1):  # read back, not remembered
                        verifier.feed(data)
                    verifier.finish()
                    os.fchmod(descriptor, 0o444)
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
                part.replace(self._root / file.sha256)
                sync_directory(self._root)
        except BaseException:
            part.unlink(missing_ok=True)
            raise

    def _quarantine(self, digest: str) -> Path:
        self._checked.pop(digest, None)
        folder = self._root / "quarantine"
        with _faults(digest):
            folder.mkdir(exist_ok=True, mode=0o700)
            kept = folder / f"{digest}.{secrets.token_hex(4)}"
            (self._root / digest).replace(kept)
            sync_directory(folder)
            sync_directory(self._root)
        return kept

    def _part(self, digest: str) -> Path:
        if not is_hex(digest, 64):
            raise BlobFault(PortRefusal.INVALID, f"{digest[:64]!r} is not a SHA-256 of 64 lower hex digits")
        return self._root / f".{digest}.part"


@contextmanager
def _faults(what: str) -> Iterator[None]:
    """Say I/O errors and package faults in the port's terms."""
    try:
        yield
    except PackageFault as fault:
        raise BlobFault(_REFUSALS.get(fault.code, PortRefusal.IO_ERROR), fault.text) from None
    except FileNotFoundError:
        raise BlobFault(PortRefusal.NOT_FOUND, f"{what}: nothing is there") from None
    except FileExistsError:
        raise BlobFault(PortRefusal.EXISTS, f"{what}: the target exists") from None
    except OSError as error:
        _refuse(error, what)


def _refuse(error: OSError, what: str) -> NoReturn:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    code = PortRefusal.DISK_FULL if full else PortRefusal.IO_ERROR
    raise BlobFault(code, f"{what}: {error.strerror or error}") from None
