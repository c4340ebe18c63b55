"""The ends of edges in this process: orders start and halt them, frames and wake-ups move them, faults end one alone.

What may be sent and what is taken is decided by the windows of `actors.edges.stream`; here is who hears of it. An end
that has faulted moves nothing more and is told once; its ring is let go of when it is halted, not before.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from actors.edges.frames import Credit, Data, Fin, Frame, Open, Refused, pack
from actors.edges.stream import OpenRefused
from messages.base import NodeName
from messages.edge import EdgeId, RingDirection
from messages.edge_end import EdgeFaultCode
from messages.edge_ports import (
    CloseStream,
    CutLink,
    DriverMessage,
    DriverReport,
    HaltPump,
    Moved,
    PumpFaulted,
    PumpHalted,
    PumpReady,
    PumpsMoved,
    StartReceive,
    StartSend,
    StreamEnded,
)
from runtime.edges.links import Guest, Link, Links
from runtime.edges.local import FarRingFault, LocalSink, LocalSource
from runtime.edges.memory import NodeMemory, RingMemory
from runtime.edges.pumps import FAULTS, Pump, ReceivePump, SendPump
from runtime.edges.ring import RingFault

SILENCE_S = 5.0
"""A peer that says nothing for so long is gone, and the streams with it end."""

REOPEN_S = 1.0
PARKED_S = 10.0
MAX_PARKED = 256
"""Streams of one peer that wait for their end here: it says again every `REOPEN_S` that they wait."""

MAX_HALTED = 4096
IDLE_LINK_S = 30.0

Source = SendPump | LocalSource
Sink = ReceivePump | LocalSink


class Loop(Protocol):
    """What the ends need of the driver's loop."""

    now: float

    def watch(self, fd: int, handler: Callable[[], None]) -> None: ...

    def unwatch(self, fd: int) -> None: ...

    def wake(self, source: Source) -> None:
        """Have its turn come."""

    def forget(self, pump: Pump) -> None:
        """It has no turn any more and owes nothing."""

    def owe(self, pump: ReceivePump) -> None:
        """Have its credit told soon."""

    def report(self, report: DriverReport) -> None: ...

    def count(self, what: str, detail: str) -> None: ...


class Ends:
    """Every pump of this process, by edge and direction; the owner of the links."""

    def __init__(self, process: NodeName, memory: NodeMemory, loop: Loop) -> None:
        self.links: Links
        self._process = process
        self._memory = memory
        self._loop = loop
        self._egress: dict[EdgeId, Source] = {}
        self._ingress: dict[EdgeId, Sink] = {}
        self._parked: dict[str, dict[EdgeId, tuple[Open, float]]] = {}
        self._halted: OrderedDict[EdgeId, None] = OrderedDict()

    # orders

    def order(self, order: DriverMessage) -> None:
        """Raises nothing for what an order asks: what cannot be is told as a fault of that end."""
        match order:
            case StartSend() | StartReceive():
                self._start(order)
            case HaltPump():
                self._halt(order)
            case CloseStream():
                self._close(order)
            case CutLink():
                self.links.cut(order.peer)

    def _start(self, order: StartSend | StartReceive) -> None:
        egress = isinstance(order, StartSend)
        direction = RingDirection.EGRESS if egress else RingDirection.INGRESS
        if order.edge_id in (self._egress if egress else self._ingress):
            self._loop.count("order_ignored", f"edge {order.edge_id} has a pump for {direction.value} already")
            return
        try:
            ring = self._memory.ring(order.ring.ring_id)
        except KeyError:
            self._refuse_start(order, direction, EdgeFaultCode.ARENA_FAILED, f"there is no ring {order.ring.ring_id}")
            return
        try:
            pump = self._made(order, ring)
        except RingFault as fault:
            self._refuse_start(order, direction, EdgeFaultCode(fault.code), fault.text)
            return
        except LookupError as unknown:
            self._refuse_start(order, direction, EdgeFaultCode.LINK_LOST, str(unknown))
            return
        self._enter(pump)

    def _made(self, order: StartSend | StartReceive, ring: RingMemory) -> Source | Sink:
        """Raises `RingFault`, or `LookupError` when nobody knows where the consumer listens."""
        if isinstance(order, StartReceive):
            return LocalSink(order, ring) if order.producer == self._process else ReceivePump(order, ring)
        if order.consumer == self._process:
            return LocalSource(order, ring)
        link = self.links.to(order.consumer)
        if link is None:
            raise LookupError(f"the directory does not say where {order.consumer} listens")
        return SendPump(order, ring, link)

    def _enter(self, pump: Source | Sink) -> None:
        loop = self._loop
        match pump:
            case SendPump():
                self._egress[pump.edge] = pump
                loop.watch(pump.watched, partial(self._committed, pump))
                pump.link.pumps[pump.edge] = pump
                if pump.link.up:
                    self._open(pump)
            case LocalSource():
                self._egress[pump.edge] = pump
                loop.watch(pump.watched, partial(self._committed, pump))
                self._join(pump.edge)
            case ReceivePump():
                self._ingress[pump.edge] = pump
                loop.watch(pump.watched, partial(self._consumed, pump))
                self._unpark(pump)
            case LocalSink():
                self._ingress[pump.edge] = pump
                loop.watch(pump.watched, partial(self._freed, pump))
                self._join(pump.edge)

    def _refuse_start(
        self, order: StartSend | StartReceive, direction: RingDirection, code: EdgeFaultCode, text: str
    ) -> None:
        self._loop.report(PumpFaulted(edge_id=order.edge_id, direction=direction, code=code, text=text))

    def _halt(self, order: HaltPump) -> None:
        table: dict[EdgeId, Any] = self._egress if order.direction is RingDirection.EGRESS else self._ingress
        pump: Source | Sink | None = table.get(order.edge_id)
        if pump is not None and pump.ring_id == order.ring_id:
            del table[order.edge_id]
            self._let_go(pump)
            if order.direction is RingDirection.INGRESS:
                self._halted[order.edge_id] = None
                while len(self._halted) > MAX_HALTED:
                    self._halted.popitem(last=False)
        self._loop.report(PumpHalted(edge_id=order.edge_id, direction=order.direction, ring_id=order.ring_id))

    def _let_go(self, pump: Source | Sink) -> None:
        if pump.fault is None:
            self._detach(pump)
            self._tell_progress(pump)
        pump.halt()

    def _detach(self, pump: Source | Sink) -> None:
        """Nothing wakes it any more."""
        self._loop.unwatch(pump.watched)
        self._loop.forget(pump)
        match pump:
            case SendPump():
                pump.link.pumps.pop(pump.edge, None)
                pump.link.waiting.pop(pump.edge, None)
                pump.link.idle_since = self._loop.now
            case LocalSource() if pump.sink is not None:
                pump.sink.source, pump.sink = None, None
            case LocalSink() if pump.source is not None:
                pump.source.sink, pump.source = None, None

    def _close(self, order: CloseStream) -> None:
        source = self._egress.get(order.edge_id)
        if source is None or source.fault is not None:
            self._loop.count("order_ignored", f"the stream of edge {order.edge_id} is to be closed and is not open")
            return
        try:
            source.close(order.clean)
        except FAULTS as fault:
            self._fault(source, fault.code, fault.text)
            return
        self._loop.wake(source)

    def close(self) -> None:
        """Let go of every ring."""
        for pump in [*self._egress.values(), *self._ingress.values()]:
            self._let_go(pump)
        self._egress.clear()
        self._ingress.clear()

    # wake-ups

    def turn(self, source: Source) -> bool:
        """One chunk of it; true when more can move at once."""
        try:
            if isinstance(source, LocalSource):
                more = source.turn()
                if source.complete and not source.ended:
                    self._ended_here(source)
                return more
            link = source.link
            if link.full:
                link.waiting[source.edge] = source
                return False
            more = source.turn()
        except FAULTS as fault:
            self._fault(source, fault.code, fault.text, far=isinstance(fault, FarRingFault))
            return False
        self.links.touch(link)
        if link.full:
            link.waiting[source.edge] = source
            return False
        if source.window.ended:
            self._ended(source)
        return more

    def _committed(self, source: Source) -> None:
        """The workload has put more into its ring."""
        try:
            source.take_in()
        except FAULTS as fault:
            self._fault(source, fault.code, fault.text)
            return
        self._loop.wake(source)

    def _consumed(self, pump: ReceivePump) -> None:
        """The workload has let go of some of what it received."""
        try:
            pump.look()
        except FAULTS as fault:
            self._fault(pump, fault.code, fault.text)
            return
        self._credit_if_due(pump)

    def _freed(self, sink: LocalSink) -> None:
        try:
            sink.look()
        except FAULTS as fault:
            source = sink.source
            self._fault(sink if source is None else source, fault.code, fault.text, far=source is not None)
            return
        if sink.source is not None:
            self._loop.wake(sink.source)

    # local edges

    def _join(self, edge: EdgeId) -> None:
        """Both ends are here and fit each other: bytes may move."""
        source, sink = self._egress.get(edge), self._ingress.get(edge)
        if not isinstance(source, LocalSource) or sink is None or source.fault is not None or sink.fault is not None:
            return
        if not isinstance(sink, LocalSink):
            text = f"{self._process} is not the producer, {sink.producer} is"
            self._fault(source, EdgeFaultCode.NOT_THE_PRODUCER, text)
        elif source.run != sink.run:
            older: Source | Sink = source if source.run < sink.run else sink
            text = f"epoch {older.run} of the edge is over, {max(source.run, sink.run)} has begun"
            self._fault(older, EdgeFaultCode.STALE_EPOCH, text)
        else:
            source.sink, sink.source = sink, source
            sink.tracker = source.tracker
            self._ready(source)
            self._ready(sink)
            self._loop.wake(source)

    def _ended_here(self, source: LocalSource) -> None:
        sink = source.sink
        self._ended(source)
        if sink is not None and source.clean:
            self._ended(sink)

    # towards consumers

    def link_up(self, link: Link) -> None:
        for pump in link.pumps.values():
            self._open(pump)

    def link_down(self, link: Link) -> None:
        link.waiting.clear()
        for pump in link.pumps.values():
            pump.window.lost()

    def room_again(self, link: Link) -> None:
        waiting = list(link.waiting.values())
        link.waiting.clear()
        for pump in waiting:
            self._loop.wake(pump)

    def _open(self, pump: SendPump) -> None:
        link = pump.link
        if pump.window.ended:
            return
        link.control.append(pump.open(self._loop.now))
        link.flush()
        self.links.touch(link)

    def from_consumer(self, link: Link, frame: Frame) -> None:
        match frame:
            case Credit(edge):
                pump = link.pumps.get(EdgeId(edge))
                if pump is None:
                    self._loop.count("late_credit", f"{link.peer}: no stream of edge {edge} leaves here")
                    return
                self._credit(pump, frame)
            case Refused(edge, run, code, text):
                pump = link.pumps.get(EdgeId(edge))
                if pump is None or pump.run != run:
                    self._loop.count("late_refusal", f"{link.peer}: edge {edge}: {code}: {text}")
                    return
                self._fault(pump, code, f"at {link.peer}: {text}")
            case _:
                self._loop.count("malformed_frame", f"{link.peer}: a consumer says {type(frame).__name__.upper()}")

    def _credit(self, pump: SendPump, credit: Credit) -> None:
        try:
            pump.credit(credit)
        except FAULTS as fault:
            self._fault(pump, fault.code, fault.text)
            return
        if not pump.ready and pump.window.established:
            self._ready(pump)
        if pump.window.ended:
            self._ended(pump)
        self._loop.wake(pump)

    # towards producers

    def from_producer(self, guest: Guest, frame: Frame) -> None:
        match frame:
            case Open() | Data() | Fin():
                sink = self._ingress.get(EdgeId(frame.edge))
                if isinstance(sink, ReceivePump):
                    self._stream(guest, sink, frame)
                elif sink is not None:
                    self._refuse(guest, frame, "not_the_producer", f"the producer of edge {frame.edge} is here")
                elif frame.edge in self._halted:
                    self._loop.count("after_halt", f"{guest.peer}: edge {frame.edge} was halted here")
                elif isinstance(frame, Open):
                    self._park(guest, frame)
                else:
                    self._refuse(guest, frame, "malformed_frame", f"no stream of edge {frame.edge} is open here")
            case _:
                self.rubbish(guest, f"a producer says {type(frame).__name__.upper()}")

    def rubbish(self, guest: Guest, text: str) -> None:
        self._refuse(guest, Fin(0, 0, 0), "malformed_frame", text)

    def _stream(self, guest: Guest, pump: ReceivePump, frame: Open | Data | Fin) -> None:
        try:
            if pump.fault is not None:
                pump.window.check(guest.peer, frame.run)
                self._repeat_refusal(guest, pump, frame)
                return
            match frame:
                case Data():
                    pump.data(frame, guest.peer)
                case Open():
                    pump.open(frame, guest.peer)
                case Fin():
                    if pump.fin(frame, guest.peer):
                        self._ended(pump)
        except OpenRefused as refused:
            self._refuse(guest, frame, refused.code, refused.text)
            return
        except FAULTS as fault:
            self._fault(pump, fault.code, fault.text)
            self._repeat_refusal(guest, pump, frame)
            return
        if not pump.ready:
            self._ready(pump)
        self._credit_if_due(pump)

    def _credit_if_due(self, pump: ReceivePump) -> None:
        if pump.window.due:
            if not self.tell_credit(pump):
                self._loop.owe(pump)
        elif pump.window.owing:
            self._loop.owe(pump)

    def tell_credit(self, pump: ReceivePump) -> bool:
        """Tell the producer how far it may go; false when it cannot be told now."""
        guest = self.links.guests.get(pump.producer)
        if guest is None or pump.fault is not None or pump.window.far is None:
            return True  # whoever opens the stream again is told then
        credit = pump.window.credit()
        if not self.links.answer(guest, pack(credit)):
            return guest.route is None
        pump.window.told(credit)
        return True

    def _repeat_refusal(self, guest: Guest, pump: ReceivePump, frame: Open | Data | Fin) -> None:
        """Once, and again whenever the producer opens the stream again."""
        assert pump.fault is not None
        if isinstance(frame, Open) or not pump.refusal_told:
            pump.refusal_told = True
            self._refuse(guest, frame, *pump.fault)

    def _refuse(self, guest: Guest, frame: Open | Data | Fin, code: str, text: str) -> None:
        self._loop.count(code, f"{guest.peer}: edge {frame.edge}: {text}")
        if not self.links.answer(guest, pack(Refused(frame.edge, frame.run, code, text))):
            self._loop.count("refusal_unsaid", f"{guest.peer} does not read: edge {frame.edge}: {text}")

    def _park(self, guest: Guest, frame: Open) -> None:
        parked = self._parked.setdefault(guest.peer, {})
        if len(parked) >= MAX_PARKED and frame.edge not in parked:
            self._loop.count("not_parked", f"{guest.peer}: {MAX_PARKED} streams wait for their end here already")
            return
        parked[EdgeId(frame.edge)] = (frame, self._loop.now)

    def _unpark(self, pump: ReceivePump) -> None:
        for peer, parked in self._parked.items():
            waiting = parked.pop(pump.edge, None)
            guest = self.links.guests.get(peer)
            if waiting is not None and guest is not None:
                self._stream(guest, pump, waiting[0])

    def count(self, what: str, detail: str) -> None:
        self._loop.count(what, detail)

    # what is told

    def _ready(self, pump: Source | Sink) -> None:
        pump.ready = True
        self._loop.report(PumpReady(edge_id=pump.edge, direction=pump.direction))

    def _ended(self, pump: Source | Sink) -> None:
        if not pump.ended:
            pump.ended = True
            self._tell_progress(pump)
            self._loop.report(StreamEnded(edge_id=pump.edge, direction=pump.direction))

    def _fault(self, pump: Source | Sink, code: str, text: str, *, far: bool = False) -> None:
        """End this edge here. `far`: it is the consumer's ring on this node that is at fault."""
        partner = pump.sink if isinstance(pump, LocalSource) else None
        if pump.fault is not None:
            return
        known = EdgeFaultCode(code) if code in _CODES else EdgeFaultCode.MALFORMED_FRAME
        self._tell_progress(pump)
        self._detach(pump)
        pump.fault = (known, text)
        whose = f"at the consumer: {text}" if far else text
        self._loop.report(PumpFaulted(edge_id=pump.edge, direction=pump.direction, code=known, text=whose))
        if partner is not None and (far or code not in _OWN_RING):
            self._fault(partner, code, text)

    def _tell_progress(self, pump: Source | Sink) -> None:
        progress = pump.progress(self._loop.now)
        if progress is not None:
            moved = Moved(edge_id=pump.edge, direction=pump.direction, progress=progress)
            self._loop.report(PumpsMoved(pumps=[moved]))

    def progress(self) -> PumpsMoved | None:
        """Totals of whatever moved since they were told last."""
        moved = []
        for sink in list(self._ingress.values()):
            if sink.fault is None:
                self._consumed(sink) if isinstance(sink, ReceivePump) else self._freed(sink)
        for pump in [*self._egress.values(), *self._ingress.values()]:
            progress = None if pump.fault is not None else pump.progress(self._loop.now)
            if progress is not None:
                moved.append(Moved(edge_id=pump.edge, direction=pump.direction, progress=progress))
        return PumpsMoved(pumps=moved) if moved else None

    # time

    def tick(self, late_s: float) -> None:
        """Whoever has been silent too long is gone. `late_s`: this process stood still for so long itself."""
        now = self._loop.now
        for link in list(self.links.links.values()):
            link.heard_at += late_s
            for pump in list(link.pumps.values()):
                window = pump.window
                if window.established and not window.ended and now - link.heard_at > SILENCE_S:
                    self._fault(pump, EdgeFaultCode.LINK_LOST, f"{link.peer} says nothing for {SILENCE_S:g} s")
                elif window.awaiting and link.up and now - pump.opened_at >= REOPEN_S:
                    self._open(pump)
            if not link.pumps and now - link.idle_since > IDLE_LINK_S:
                self.links.hang_up(link)
        for guest in self.links.guests.values():
            guest.heard_at += late_s
        for sink in list(self._ingress.values()):
            if isinstance(sink, ReceivePump) and sink.fault is None and sink.ready and not sink.ended:
                silent = now - self.links.guests[sink.producer].heard_at
                if silent > SILENCE_S:
                    text = f"{sink.producer} says nothing for {SILENCE_S:g} s"
                    if not sink.tracker.at_boundary:
                        text += ", and the stream ends within a record"
                    self._fault(sink, EdgeFaultCode.LINK_LOST, text)
        for parked in self._parked.values():
            for edge in [edge for edge, (_, at) in parked.items() if now - at > PARKED_S]:
                del parked[edge]
                self._loop.count("parked_too_long", f"edge {edge}: its producer does not wait any more")


_CODES = frozenset(code.value for code in EdgeFaultCode)
_OWN_RING = frozenset({EdgeFaultCode.RING_HEADER_CHANGED.value, EdgeFaultCode.CURSOR_BEYOND_CAPACITY.value})
