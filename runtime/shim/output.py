"""Bounded files for a stream without end: the newest bytes are kept, all are counted.

A stream is at most two segment files, `stdout.<offset of its first byte>`, each of at most the limit; when the newer
is full the older goes. So at least the last `limit` bytes are there and at most twice as many, every byte has its
offset since the start, and a reader that follows needs no more than the offset where it stopped.
"""

from __future__ import annotations

import os

_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


class Segments:
    """The writer of one stream. A disk that refuses loses the bytes, counted in `total`, and not the workload."""

    def __init__(self, directory: str, stream: str, limit: int) -> None:
        self._base = f"{directory}/{stream}."
        self._limit = limit
        self._kept: list[int] = []
        self._fd = -1
        self._filled = 0
        self.total = 0
        self.truncated = False

    def write(self, data: bytes) -> None:
        """Append; bytes that the disk refused leave a gap in the offsets."""
        view = memoryview(data)
        while view:
            try:
                if self._fd < 0 or self._filled == self._limit:
                    self._next()
                done = os.write(self._fd, view[: self._limit - self._filled])
            except OSError:
                self.total += len(view)
                self.truncated = True
                self.close()
                return
            self.total += done
            self._filled += done
            view = view[done:]

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _next(self) -> None:
        self.close()
        while len(self._kept) > 1:
            os.unlink(f"{self._base}{self._kept[0]}")
            self._kept.pop(0)
            self.truncated = True
        self._fd = os.open(f"{self._base}{self.total}", _WRITE, 0o600)
        self._kept.append(self.total)
        self._filled = 0


def read_stream(directory: str, stream: str, offset: int, limit: int) -> tuple[bytes, int]:
    """At most `limit` bytes from `offset` on (-1: the last `limit`), and the offset after them.

    When bytes were dropped the first kept ones are returned: the answer starts at `next - len(bytes)`. The writer
    may be at work.
    """
    for _ in range(100):  # a segment may go while it is read
        starts = sorted(
            int(name[len(stream) + 1 :])
            for name in os.listdir(directory)
            if name.startswith(stream + ".") and name[len(stream) + 1 :].isdigit()
        )
        try:
            return _read(directory, stream, starts, offset, limit)
        except FileNotFoundError:
            continue
    return b"", max(offset, 0)


def _read(directory: str, stream: str, starts: list[int], offset: int, limit: int) -> tuple[bytes, int]:
    segments = []
    for start in starts:
        with open(f"{directory}/{stream}.{start}", "rb") as file:
            segments.append((start, file.read()))
    if not segments:
        return b"", max(offset, 0)
    end = segments[-1][0] + len(segments[-1][1])
    at = max(0, end - limit) if offset < 0 else min(offset, end)
    found = b""
    for start, data in segments:
        if start + len(data) <= at:
            continue
        if start > at:
            if found:
                break  # a gap: what follows is the next answer
            at = start
        part = data[at - start : at - start + limit - len(found)]
        found += part
        at += len(part)
        if len(found) == limit:
            break
    return found, at


__all__ = ["Segments", "read_stream"]
