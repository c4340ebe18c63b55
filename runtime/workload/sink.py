"""The writing side of one installed ring: records into free bytes, published together (E 4.4, 4.7)."""

from __future__ import annotations

from actors.edges.records import HEADER_BYTES, PREFIX, WORDS, RecordFault, pack_header
from runtime.edges.ring import RingFault, RingProducer
from runtime.workload.channel import Channel, Packet
from runtime.workload.link import Link

_pack_words = WORDS.pack_into


class Sink(Link):
    """`written` and `limit` are totals in bytes: what was written, and what may be, as far as is known.

    Numbers that belong together are set without a call in between, so that a signal that ends the program by an
    exception, and with it the stream, does not part them.
    """

    __slots__ = ("_at", "_ring", "_sequence", "limit", "publish_at", "written")

    def __init__(self, packet: Packet, channel: Channel) -> None:
        super().__init__(packet, channel)
        self._ring = RingProducer(
            self.header,
            self.data,
            self.capacity,
            packet.numbers["generation"],
            data_fd=self.data_fd,
            space_fd=self.space_fd,
        )
        self.written = 0
        self.limit = self.capacity
        self.publish_at = self.quantum
        """Of `written`: from there on a batch is worth publishing."""
        self._at = 0
        self._sequence = 0

    def make_room(self, size: int) -> bool:
        """Publish what is pending, look how much is free; True when `size` bytes are."""
        if not self.commit():
            return False
        try:
            self._ring.check()
            self._ring.free()
        except RingFault as fault:
            self.fault(fault)
            return False
        self.limit = self._ring.consumed + self.capacity
        return self.limit - self.written >= size

    def put(self, payload: bytes | bytearray | memoryview, extent: int, object_id: int, flags: int) -> None:
        """Write one record for which there is room. `payload` has `extent` bytes."""
        at = self._at
        start = at + HEADER_BYTES
        end = start + extent
        capacity = self.capacity
        if end <= capacity:
            data = self.data
            _pack_words(data, at, PREFIX, object_id, self._sequence, extent, flags)
            data[start:end] = payload
        else:
            pending = self.written - self._ring.committed
            self._ring.write(pending, pack_header(object_id, self._sequence, extent, flags))
            self._ring.write(pending + HEADER_BYTES, payload)
        self._at = end if end < capacity else end - capacity
        self._sequence += 1
        self.written += end - at

    def span(self, extent: int) -> memoryview | None:
        """Where the payload of the next record goes, if it lies in one piece; invisible until `finish`."""
        start = (self._at + HEADER_BYTES) % self.capacity
        end = start + extent
        return self.data[start:end] if end <= self.capacity else None

    def finish(self, extent: int, object_id: int, flags: int) -> None:
        """Write the header of a record whose payload was put into its `span`."""
        size = HEADER_BYTES + extent
        self._ring.write(self.written - self._ring.committed, pack_header(object_id, self._sequence, extent, flags))
        self._at = (self._at + size) % self.capacity
        self._sequence += 1
        self.written += size

    def fault(self, error: RingFault | RecordFault) -> None:
        super().fault(error)
        self.limit = -1

    def commit(self) -> bool:
        """Publish what was written. False: the ring is of no use any more, and what was written is lost with it."""
        ring = self._ring
        pending = self.written - ring.committed
        if pending and self.usable:
            try:
                ring.commit(pending)
            except RingFault as fault:
                self.fault(fault)
            self.publish_at = ring.committed + self.quantum
        return self.usable

    def _release(self) -> None:
        self._ring.release()
        super()._release()


__all__ = ["Sink"]
