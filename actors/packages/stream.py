"""Checks a file while it streams in: never a byte more than was signed, and the digest at the end (G 4.6, G 4.9)."""

from __future__ import annotations

from hashlib import sha256

from actors.packages.fault import file_tampered
from messages.packages import FileRef


class FileVerifier:
    """Feed the bytes of one file in order, then `finish`. Both raise `PackageFault` (`file-tampered`)."""

    __slots__ = ("_digest", "_file", "received")

    def __init__(self, file: FileRef) -> None:
        self._file = file
        self._digest = sha256()
        self.received = 0

    @property
    def missing(self) -> int:
        """Bytes still to come."""
        return self._file.size - self.received

    def feed(self, data: bytes) -> None:
        """Take the next bytes; the first byte beyond the signed size is refused, unread bytes cost nothing."""
        if len(data) > self.missing:
            raise file_tampered(self._file.path, f"{self._file.size} bytes", f"more than {self._file.size} bytes")
        self._digest.update(data)
        self.received += len(data)

    def finish(self) -> None:
        """The file has ended: size and digest are as signed, or it is refused."""
        digest = self._digest.hexdigest()
        if self.missing:
            raise file_tampered(self._file.path, f"{self._file.size} bytes", f"{self.received} bytes")
        if digest != self._file.sha256:
            raise file_tampered(self._file.path, self._file.sha256, digest)
