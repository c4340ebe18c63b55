"""The byte ring: one producer, one consumer, two processes that do not trust each other (E 4.5, design 7).

    header, 128 bytes, little-endian
    0    4   magic       ASCII `SWRG`
    4    2   version     1
    6    2   reserved    0
    8    8   capacity    bytes of data
    16   8   generation  of the ring: the epoch of its edge
    24   8   commit      total bytes committed, for display
    32   8   consume     total bytes consumed, for display
    40  88   zero
    then, where the lease says, `capacity` bytes of data; byte n of the stream lies at n mod capacity

Each side keeps its own cursors and believes nothing in the header but what it checks: how much was committed comes
through the eventfd `data`, how much was freed through `space`. Bytes first, then the length is added to the eventfd:
the kernel orders both sides, and the sum cannot be lost. Space is given back only when its bytes are no longer needed.

Standard library only: workloads use this module too.
"""

from __future__ import annotations

import errno
import os
import sys
from contextlib import suppress
from struct import Struct

HEADER_BYTES = 128
MAGIC = b"SWRG"
VERSION = 1

RING_HEADER_CHANGED = "ring_header_changed"
CURSOR_BEYOND_CAPACITY = "cursor_beyond_capacity"

_FIXED = Struct("<4sHHQQ")
_COMMIT, _CONSUME = 3, 4  # as 8-byte words of the header
_U64 = 2**64


class RingFault(Exception):
    """The other side broke the protocol. `code`: `ring_header_changed` or `cursor_beyond_capacity`."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code
        self.text = text


class NoRoom(Exception):
    """More was asked for than the ring has: nothing happened."""


def format_ring(header: memoryview, capacity: int, generation: int) -> None:
    """Write the header of a fresh ring into its 128 bytes. Raises `ValueError` for what no ring can have."""
    if sys.byteorder != "little":
        raise ValueError("rings are laid out for little-endian machines; this one is not")
    if not 0 < capacity < _U64 or not 0 < generation < _U64:
        raise ValueError(f"capacity {capacity} and generation {generation} must be from 1 to 2^64-1")
    header[:HEADER_BYTES] = bytes(HEADER_BYTES)
    header[: _FIXED.size] = _FIXED.pack(MAGIC, VERSION, 0, capacity, generation)


def check_header(header: memoryview, capacity: int, generation: int) -> None:
    """Compare what never changes with what it must be. Raises `RingFault`, naming the first difference."""
    magic, version, reserved, has_capacity, has_generation = _FIXED.unpack_from(header)
    for name, found, expected in (
        ("magic", magic, MAGIC),
        ("version", version, VERSION),
        ("reserved", reserved, 0),
        ("capacity", has_capacity, capacity),
        ("generation", has_generation, generation),
    ):
        if found != expected:
            raise RingFault(RING_HEADER_CHANGED, f"{name} in the ring's header is {found!r}, it must be {expected!r}")


class _Ring:
    """What both sides have: their own cursors and views. `committed` and `consumed` are totals in bytes."""

    __slots__ = (
        "_cursors",
        "_data",
        "_fixed",
        "_header",
        "_sum",
        "capacity",
        "committed",
        "consumed",
        "data_fd",
        "generation",
        "space_fd",
    )

    def __init__(
        self, header: memoryview, data: memoryview, capacity: int, generation: int, *, data_fd: int, space_fd: int
    ) -> None:
        """`header` of 128 bytes at an address that is a multiple of 8, `data` of `capacity` bytes; the eventfds do not
        block. Raises `RingFault` when the header is not that of this ring."""
        check_header(header, capacity, generation)
        assert len(data) == capacity, "the data is as large as the capacity"
        self.capacity = capacity
        self.generation = generation
        self.data_fd = data_fd
        self.space_fd = space_fd
        self.committed = 0
        self.consumed = 0
        self._header = header[:HEADER_BYTES]
        self._fixed = _FIXED.pack(MAGIC, VERSION, 0, capacity, generation)
        self._cursors = self._header.cast("Q")
        self._data = data[:]
        self._sum = memoryview(bytearray(8)).cast("Q")

    def check(self) -> None:
        """Raises `RingFault` if somebody wrote over what never changes."""
        if self._header[: len(self._fixed)] != self._fixed:
            check_header(self._header, self.capacity, self.generation)

    def release(self) -> None:
        """Let go of the memory; what was handed out as spans is the holder's to release. The ring is of no use then."""
        self._cursors.release()
        self._header.release()
        self._data.release()

    def _take(self, fd: int) -> int:
        """What was added to an eventfd since the last look, 0 for nothing. Does not wait, though the other side may
        have made the eventfd block and emptied it a moment ago.

        It stays in `_sum` until the caller has counted it and cleared that in one go, without a call: a signal
        handler that raises in between makes nobody forget it.
        """
        total = self._sum
        if not total[0]:
            try:
                os.preadv(fd, [total], -1, os.RWF_NOWAIT)
            except BlockingIOError:
                return 0
            except OSError as error:
                if error.errno != errno.EOPNOTSUPP:
                    raise
                self._take_before_5_8(fd)
        return total[0]

    def _take_before_5_8(self, fd: int) -> None:
        """Older kernels do not read an eventfd without waiting unless it says so itself."""
        with suppress(BlockingIOError):
            os.readv(fd, [self._sum])

    def _add(self, fd: int, length: int, whose: str) -> None:
        """Raises `RingFault` when the eventfd is full."""
        try:
            os.eventfd_write(fd, length)
        except (BlockingIOError, InterruptedError):  # interrupted: they made it block besides
            raise RingFault(CURSOR_BEYOND_CAPACITY, f"the {whose} bytes") from None

    def _spans(self, total: int, length: int) -> list[memoryview]:
        """`length` bytes of the stream from byte `total` on: one view, or two where the ring wraps."""
        at = total % self.capacity
        end = at + length
        if end <= self.capacity:
            return [self._data[at:end]]
        return [self._data[at:], self._data[: end - self.capacity]]


class RingProducer(_Ring):
    """The side that writes."""

    __slots__ = ()

    @property
    def known_free(self) -> int:
        """Bytes that may be written, as of the last look at the eventfd."""
        return self.capacity - (self.committed - self.consumed)

    def free(self) -> int:
        """Bytes that may be written now. Raises `RingFault` when more was freed than was committed."""
        freed = self._take(self.space_fd)
        if freed > self.committed - self.consumed:
            raise RingFault(
                CURSOR_BEYOND_CAPACITY,
                f"the consumer gave back {freed} bytes and had {self.committed - self.consumed}",
            )
        self.consumed += freed
        self._sum[0] = 0
        return self.known_free

    def spans(self, offset: int, length: int) -> list[memoryview]:
        """Room for `length` bytes, `offset` bytes beyond what is committed. Raises `NoRoom`."""
        if offset + length > self.known_free:
            raise NoRoom(f"{offset + length} bytes are wanted, {self.known_free} of {self.capacity} are free")
        return self._spans(self.committed + offset, length)

    def write(self, offset: int, buffer: bytes | bytearray | memoryview) -> int:
        """Copy `buffer` (bytes) to `offset` bytes beyond what is committed; returns its length. Raises `NoRoom`."""
        length = len(buffer)
        if offset + length > self.known_free:
            raise NoRoom(f"{offset + length} bytes are wanted, {self.known_free} of {self.capacity} are free")
        at = (self.committed + offset) % self.capacity
        end = at + length
        if end <= self.capacity:
            self._data[at:end] = buffer
        else:
            first = self.capacity - at
            view = memoryview(buffer)
            self._data[at:] = view[:first]
            self._data[: length - first] = view[first:]
        return length

    def commit(self, length: int) -> None:
        """Publish `length` bytes that were written. Raises `NoRoom`, or `RingFault` when the eventfd is full."""
        if length > self.known_free:
            raise NoRoom(f"{length} bytes are committed, {self.known_free} of {self.capacity} are free")
        if length <= 0:
            return
        self.committed += length
        self._cursors[_COMMIT] = self.committed
        self._add(self.data_fd, length, "consumer has filled the eventfd of committed")


class RingConsumer(_Ring):
    """The side that reads."""

    __slots__ = ()

    @property
    def known_readable(self) -> int:
        """Bytes that may be read, as of the last look at the eventfd."""
        return self.committed - self.consumed

    def readable(self) -> int:
        """Bytes that may be read now. Raises `RingFault` when more was committed than the ring holds."""
        committed = self._take(self.data_fd)
        if committed > self.capacity - (self.committed - self.consumed):
            raise RingFault(
                CURSOR_BEYOND_CAPACITY,
                f"the producer committed {committed} bytes into {self.capacity - self.known_readable} that were free",
            )
        self.committed += committed
        self._sum[0] = 0
        return self.committed - self.consumed

    def spans(self, offset: int, length: int) -> list[memoryview]:
        """`length` committed bytes, `offset` bytes beyond what is consumed. Raises `NoRoom`."""
        if offset + length > self.known_readable:
            raise NoRoom(f"{offset + length} bytes are wanted, {self.known_readable} are committed")
        return self._spans(self.consumed + offset, length)

    def consume(self, length: int) -> None:
        """Give back the oldest `length` bytes: nobody looks at them any more. Raises `NoRoom`, or `RingFault`."""
        if length > self.known_readable:
            raise NoRoom(f"{length} bytes are given back, {self.known_readable} are committed")
        if length <= 0:
            return
        self.consumed += length
        self._cursors[_CONSUME] = self.consumed
        self._add(self.space_fd, length, "producer has filled the eventfd of freed")
