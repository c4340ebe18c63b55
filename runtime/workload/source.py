"""The reading side of one installed ring: records out of committed bytes, checked one by one (E 4.4 to 4.6).

A record is handed out as it lies in the ring; only one that wraps at the ring's end is joined into a copy. Its bytes
are given back once it is released, in order, a quarter of the ring at a time or when there is nothing else to do.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from threading import Lock
from weakref import ref

from actors.edges.records import (
    EOF_BEFORE_FULL_PAYLOAD,
    FLAGS,
    HEADER_BYTES,
    PREFIX,
    WORDS,
    RecordFault,
    out_of_sequence,
    parse_header,
)
from runtime.edges.ring import RingConsumer, RingFault
from runtime.workload.channel import Channel, Packet
from runtime.workload.link import Link

_words = WORDS.unpack_from


class Record:
    """One object. `payload` is a read-only view of `extent` bytes, valid until the port's next call or `release`.

    `object_id` as its producer named it; `sequence` counts from 0 in each life of an edge; `edge` is the number of
    that life; `flags`: `BEGIN_SEQUENCE`, `END_OF_SEQUENCE`.
    """

    __slots__ = ("_source", "flags", "object_id", "payload", "sequence")

    def __init__(self, payload: memoryview, object_id: int, sequence: int, flags: int, source: Source) -> None:
        self.payload = payload
        self.object_id = object_id
        self.sequence = sequence
        self.flags = flags
        self._source = source

    @property
    def edge(self) -> int:
        return self._source.edge

    def release(self) -> None:
        """Give the bytes back now, not at the next call. Slices of `payload` end with it."""
        source = self._source
        with source.lock:
            if source.handed_out is self.payload:
                source.drop()
                source.give_back()
            elif source.retired:
                self.payload.release()
                source.let_go()


class Source(Link):
    """`committed`, `parsed`, `dropped` are totals in bytes: what is there, what was handed out, what may go back.

    Numbers that belong together are set without a call in between, so that a signal that ends the program by an
    exception, and with it the stream, does not part them.
    """

    __slots__ = (
        "_at",
        "_expected",
        "_held",
        "_last",
        "_ring",
        "_size",
        "committed",
        "dropped",
        "end_told",
        "handed_out",
        "lock",
        "parsed",
    )

    lock: Lock
    """The port's, given when it is installed."""

    def __init__(self, packet: Packet, channel: Channel) -> None:
        super().__init__(packet, channel)
        self.data = self.data.toreadonly()
        self._ring = RingConsumer(
            self.header,
            self.data,
            self.capacity,
            packet.numbers["generation"],
            data_fd=self.data_fd,
            space_fd=self.space_fd,
        )
        self.committed = self.parsed = self.dropped = 0
        self.end_told = False
        self.handed_out: memoryview | None = None
        self._at = 0
        self._expected = 0
        self._size = 0
        self._last: ref[memoryview] | None = None
        self._held: deque[tuple[memoryview | None, int]] = deque()
        """Records that were handed out and cannot be given back, since a view of one is still used."""

    def refill(self) -> None:
        """Look how much is committed."""
        if not self.usable:
            return
        try:
            self._ring.check()
            self._ring.readable()
        except RingFault as fault:
            self.fault(fault)
            return
        self.committed = self._ring.committed

    def take(self) -> Record | None:
        """Drop the record before, and hand out the next one if all of it is there."""
        if self.handed_out is not None:
            self.drop()
        ready = self.committed - self.parsed
        if ready < HEADER_BYTES:
            return None
        at = self._at
        start = at + HEADER_BYTES
        capacity = self.capacity
        if start <= capacity:
            prefix, object_id, sequence, extent, flags = _words(self.data, at)
        else:
            prefix, object_id, sequence, extent, flags = WORDS.unpack(self._joined(at, HEADER_BYTES))
            start -= capacity
        alignment = self.alignment
        if (
            prefix != PREFIX
            or flags > FLAGS
            or extent > self.max_extent
            or sequence != self._expected
            or (alignment and extent % alignment)
        ):
            self.fault(self._what_is_wrong(at))
            return None
        size = HEADER_BYTES + extent
        if ready < size:
            return None
        end = start + extent
        payload = self.data[start:end] if end <= capacity else memoryview(self._joined(start, extent))
        record = Record(payload, object_id, sequence, flags, self)
        self._at = end if end < capacity else end - capacity
        self.parsed += size
        self._expected = sequence + 1
        self._size = size
        self.handed_out = payload
        return record

    def drop(self) -> None:
        """The record handed out is no longer valid."""
        view = self.handed_out
        if view is None:
            if self.retired:
                self._drop_retired()
            return
        try:
            view.release()
        except BufferError:
            self._held.append((view, self._size))
            self.handed_out = None
            return
        if self._held:
            self._held.append((None, self._size))
            self.handed_out = None
            self._reap()
        else:
            self.dropped += self._size
            self.handed_out = None
        if self.dropped - self._ring.consumed >= self.quantum:
            self.give_back()

    def give_back(self) -> None:
        """Let the producer have the bytes of what was dropped."""
        if self._held:
            self._reap()
        freed = self.dropped - self._ring.consumed
        if freed and self.usable:
            try:
                self._ring.consume(freed)
            except RingFault as fault:
                self.fault(fault)

    def stuck(self) -> bool:
        """True when the producer cannot commit one byte more, since records of the whole ring are still held."""
        return bool(self._held) and self.committed - self._ring.consumed == self.capacity

    def cut_short(self) -> RecordFault | None:
        """The fault of a stream that ended within a record; None at its clean end."""
        if self.committed > self.parsed:
            return RecordFault(EOF_BEFORE_FULL_PAYLOAD, "the stream ended within a record")
        return None

    def fault(self, error: RingFault | RecordFault) -> None:
        super().fault(error)
        self.committed = self.parsed

    def retire(self) -> None:
        """What was handed out stays valid for whoever still has it, and nothing else keeps it."""
        super().retire()
        self.committed = self.parsed
        self._held.clear()
        if self.handed_out is not None:
            self._last = ref(self.handed_out)
            self.handed_out = None

    def _drop_retired(self) -> None:
        view = self._last() if self._last is not None else None
        if view is not None:
            with suppress(BufferError):
                view.release()

    def _reap(self) -> None:
        held = self._held
        while held:
            view, size = held[0]
            if view is not None:
                try:
                    view.release()
                except BufferError:
                    return
            held.popleft()
            self.dropped += size

    def _joined(self, at: int, length: int) -> bytes:
        return b"".join((self.data[at:], self.data[: length - (self.capacity - at)]))

    def _what_is_wrong(self, at: int) -> RecordFault:
        """Which fault it is. The header is copied: the exception's traceback would keep a view."""
        raw = bytes(self.data[at : at + HEADER_BYTES])
        if len(raw) < HEADER_BYTES:
            raw = self._joined(at, HEADER_BYTES)
        try:
            return out_of_sequence(parse_header(raw, self.max_extent, self.alignment), self._expected)
        except RecordFault as fault:
            return fault

    def _release(self) -> None:
        self._ring.release()
        super()._release()


__all__ = ["Record", "Source"]
