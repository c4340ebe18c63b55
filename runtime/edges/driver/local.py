"""Edges whose two workloads are on this node: from ring to ring, through no socket (design 7).

Nothing is acknowledged here: a byte that has left the one ring is in the other. The rules for records, faults and ends
are those of `pumps`.
"""

from __future__ import annotations

from messages.edge import RingDirection
from messages.edge_ports import StartReceive, StartSend
from runtime.edges.driver.pumps import Pump, consumer_of, producer_of, readable
from runtime.edges.memory import RingMemory
from runtime.edges.ring import RingFault

COPY_BYTES = 1024 * 1024
"""What is copied at once: a tenth of a millisecond, beside which two wake-ups count for little."""


class FarRingFault(RingFault):
    """The ring of the consumer is at fault, not the producer's."""


class LocalSource(Pump):
    """The end of the producer, which does the moving. `sink` is there once both ends are."""

    direction = RingDirection.EGRESS

    def __init__(self, order: StartSend, memory: RingMemory) -> None:
        self.ring = consumer_of(memory)
        super().__init__(order, self.ring)
        self.sink: LocalSink | None = None
        self.closing = self.clean = False

    @property
    def watched(self) -> int:
        return self.ring.data_fd

    def turn(self) -> bool:
        """Move at most one chunk; true when more can move at once."""
        sink, ring = self.sink, self.ring
        if sink is None:
            return False
        available = ring.known_readable
        ring.check()
        length = min(available, COPY_BYTES)
        try:
            room = sink.room(length)
            self.stall(room < length)
            length = min(length, room)
            if not length:
                return False
            at = 0
            for span in ring.spans(0, length):
                at += sink.ring.write(at, span)
            for span in sink.ring.spans(0, length):  # what arrived: the producer can change what it sent meanwhile
                self.tracker.follow(span)
            sink.ring.commit(length)
        except RingFault as fault:
            raise FarRingFault(fault.code, fault.text) from None
        ring.consume(length)
        return available > length

    def take_in(self) -> None:
        """How much has the workload committed meanwhile?"""
        self.ring.readable()

    def close(self, clean: bool) -> None:
        """All that the workload will ever commit is committed."""
        if readable(self.watched):
            self.take_in()
        self.closing, self.clean = True, clean

    @property
    def complete(self) -> bool:
        """All of it is in the far ring. Raises `RecordFault` when a clean end is within a record."""
        complete = self.closing and self.sink is not None and not self.ring.known_readable
        if complete and self.clean:
            self.tracker.end()
        return complete

    def _totals(self) -> tuple[int, int, int, int]:
        return self.ring.committed, self.ring.known_readable, 0, 0


class LocalSink(Pump):
    """The end of the consumer; it shares the tracker of its source."""

    direction = RingDirection.INGRESS

    def __init__(self, order: StartReceive, memory: RingMemory) -> None:
        self.ring = producer_of(memory)
        super().__init__(order, self.ring)
        self.source: LocalSource | None = None

    @property
    def watched(self) -> int:
        return self.ring.space_fd

    @property
    def wants_room(self) -> bool:
        """Something waits for room: until then nobody need look for it."""
        return self.stalled

    def room(self, wanted: int) -> int:
        """Bytes that fit now."""
        self.ring.check()
        room = self.ring.known_free
        self.stall(room < wanted)
        return room

    def look(self) -> None:
        """How much has the workload consumed meanwhile?"""
        self.ring.free()

    def _totals(self) -> tuple[int, int, int, int]:
        return self.ring.committed, self.ring.committed - self.ring.consumed, 0, 0
