"""Pumps: each moves one end of one edge between its ring and the network (design 7, E 5.3).

A pump touches its ring only while it is called, by the driver's thread; what is sent is copied, so when `halt` returns
nothing can reach the ring. Eventfds are read only when epoll has said that there is something: the workload has them
too and may have made them block. A pump follows the records that pass, without looking at payloads: a bad header ends
the edge here, before the other workload sees it. `RingFault`, `RecordFault` and `StreamViolation` leave every method
that moves something; the driver tells them.
"""

from __future__ import annotations

import secrets
import select
import time
from typing import TYPE_CHECKING

from actors.edges.frames import Credit, Data, Fin, Open, pack, pack_data
from actors.edges.records import RecordFault, RecordTracker
from actors.edges.stream import ReceiveWindow, SendWindow, StreamViolation
from messages.edge import EdgeId, RingDirection, RingId, RunId
from messages.edge_end import EdgeFaultCode, Progress
from messages.edge_ports import StartReceive, StartSend
from runtime.edges.memory import RingMemory
from runtime.edges.ring import RingConsumer, RingFault, RingProducer

if TYPE_CHECKING:
    from runtime.edges.driver.links import Link

CHUNK_BYTES = 256 * 1024
"""What moves at once: large enough that Python's share is small, small enough for a cache and for the others' turn."""

RATE_S = 0.5
"""Rates over less time than this would say nothing."""

FAULTS = (RingFault, RecordFault, StreamViolation)


class Pump:
    """What every end has. `watched`: the eventfd whose wake-up gives it work, `listening`: whether it may just now."""

    direction: RingDirection

    def __init__(self, order: StartSend | StartReceive, ring: RingConsumer | RingProducer) -> None:
        self.edge: EdgeId = order.edge_id
        self.run: RunId = order.run_id
        self.ring_id: RingId = order.ring.ring_id
        self.tracker = RecordTracker(order.object_spec.max_extent_bytes)  # of any alignment: an ObjectSpec names none
        self.ready = self.ended = self.queued = self.listening = False
        self.fault: tuple[EdgeFaultCode, str] | None = None
        self.stalled = False
        self.stalls = 0
        self._ends = ring
        self._told = Progress()
        self._rate = 0.0
        self._rated, self._rated_at = 0, time.monotonic()

    @property
    def watched(self) -> int:
        raise NotImplementedError

    def stall(self, stalled: bool) -> None:
        """There is something to move and no room for it, or not any more."""
        if stalled and not self.stalled:
            self.stalls += 1
        self.stalled = stalled

    def progress(self, now: float) -> Progress | None:
        """Totals, if there is news since the last call."""
        moved, in_flight, duplicates, resumed = self._totals()
        since_s = now - self._rated_at
        if since_s >= RATE_S:
            self._rate = (moved - self._rated) / since_s
            self._rated, self._rated_at = moved, now
        fresh = Progress(
            objects=self.tracker.objects,
            bytes=moved,
            bytes_per_s=self._rate,
            in_flight_bytes=in_flight,
            ring_bytes=self._ends.capacity,
            stalls=self.stalls,
            stalled=self.stalled,
            last_object_id=self.tracker.last_object_id,
            last_sequence=self.tracker.last_sequence,
            duplicates_dropped=duplicates,
            resumed=resumed,
        )
        if fresh == self._told:
            return None
        self._told = fresh
        return fresh

    def halt(self) -> None:
        """Touch the ring no more."""
        self._ends.release()

    def _totals(self) -> tuple[int, int, int, int]:
        """Bytes moved, bytes in flight, duplicates dropped, times resumed."""
        raise NotImplementedError


class SendPump(Pump):
    """From the ring of a workload to the far ring, by `link`. Space goes back when the far ring has the bytes."""

    direction = RingDirection.EGRESS

    def __init__(self, order: StartSend, memory: RingMemory, link: Link) -> None:
        self.ring = consumer_of(memory)
        super().__init__(order, self.ring)
        self.link = link
        self.window = SendWindow(order.edge_id, order.run_id, incarnation(), memory.capacity)
        self.opened_at = 0.0
        self._tracked = 0

    @property
    def watched(self) -> int:
        return self.ring.data_fd

    def turn(self) -> bool:
        """Send at most one chunk; true when more can go at once."""
        window, ring = self.window, self.ring
        ring.check()
        length = min(window.sendable(), CHUNK_BYTES)
        if length <= 0:
            self.stall(window.stalled)
            return self._finish()
        spans = ring.spans(window.sent - window.acknowledged, min(length, self._trackable(length)))
        length = sum(map(len, spans))
        if window.sent == self._tracked:
            for span in spans:
                self.tracker.follow(span)
            self._tracked += length
        if not self.link.send_data(pack_data(self.edge, self.run, window.sent), spans):
            return False
        window.went(length)
        return True

    def _trackable(self, length: int) -> int:
        """What goes again, or did not leave when it was followed, is not followed again."""
        return self._tracked - self.window.sent if self.window.sent < self._tracked else length

    def _finish(self) -> bool:
        fin = self.window.fin()
        if fin is not None:
            self.tracker.end()
            if self.link.send(pack(fin)):
                self.window.fin_went()
        return False

    def open(self, now: float) -> bytes:
        """The frame that begins or resumes the stream."""
        self.opened_at = now
        return pack(self.window.open())

    def credit(self, credit: Credit) -> None:
        """Give acknowledged space back to the workload."""
        more = self.window.credit(credit)
        if more:
            self.ring.check()
            self.ring.consume(more)

    def take_in(self) -> None:
        """How much has the workload committed meanwhile?"""
        self.ring.readable()
        self.window.commit(self.ring.committed)

    def close(self, clean: bool) -> None:
        """All that the workload will ever commit is committed."""
        if readable(self.watched):
            self.take_in()
        self.window.close(clean)

    def _totals(self) -> tuple[int, int, int, int]:
        window = self.window
        return self.ring.committed, self.ring.committed - window.acknowledged, 0, window.resumed


class ReceivePump(Pump):
    """From the network into the ring of a workload; `producer` alone may send."""

    direction = RingDirection.INGRESS

    def __init__(self, order: StartReceive, memory: RingMemory) -> None:
        self.ring = producer_of(memory)
        super().__init__(order, self.ring)
        self.producer = order.producer
        self.window = ReceiveWindow(order.edge_id, order.run_id, incarnation(), memory.capacity, order.producer)
        self.refusal_told = False

    @property
    def watched(self) -> int:
        return self.ring.space_fd

    def open(self, frame: Open, process: str) -> None:
        self.window.open(frame, process)
        self.refusal_told = False

    def data(self, frame: Data, process: str) -> None:
        """Take what is new into the ring."""
        window, ring = self.window, self.ring
        window.check(process, frame.run)
        payload = frame.payload
        skip, take = window.data(frame.offset, len(payload))
        if not take:
            return
        ring.check()
        if skip:
            payload = payload[skip:]
        self.tracker.follow(payload)
        ring.write(0, payload)
        ring.commit(take)
        window.commit(take)

    def look(self) -> None:
        """How much has the workload consumed meanwhile?"""
        self.ring.free()
        self.window.consume(self.ring.consumed)
        self.stall(self.window.committed == self.window.consumed + self.window.capacity)

    @property
    def wants_room(self) -> bool:
        """The producer will soon need to be told of more room: until then nobody need look for it."""
        window = self.window
        return window.far is not None and window.told_limit - window.committed < window.capacity // 2

    def fin(self, frame: Fin, process: str) -> bool:
        """True when the stream is complete now."""
        self.window.check(process, frame.run)
        complete = self.window.fin(frame.total)
        if complete:
            self.tracker.end()
        return complete

    def _totals(self) -> tuple[int, int, int, int]:
        window = self.window
        return self.ring.committed, self.ring.committed - self.ring.consumed, window.duplicates, window.resumed


def readable(fd: int) -> bool:
    """Whether a read would not wait now."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))


def incarnation() -> int:
    """A number that no other pump has had."""
    return secrets.randbits(63) + 1


def consumer_of(memory: RingMemory) -> RingConsumer:
    return RingConsumer(
        memory.header, memory.data, memory.capacity, memory.generation, data_fd=memory.data_fd, space_fd=memory.space_fd
    )


def producer_of(memory: RingMemory) -> RingProducer:
    return RingProducer(
        memory.header, memory.data, memory.capacity, memory.generation, data_fd=memory.data_fd, space_fd=memory.space_fd
    )
