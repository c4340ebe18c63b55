"""The ends of edges in this process: orders start and halt them, wake-ups move them, faults end one alone.

An end that has faulted moves nothing more and is told once; its ring is let go of when it is halted, not before.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

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
from runtime.edges.driver.local import FarRingFault, LocalSink, LocalSource
from runtime.edges.driver.pumps import FAULTS, Pump, ReceivePump, SendPump, readable
from runtime.edges.driver.streams import MOMENT_S, Streams
from runtime.edges.memory import NodeMemory, RingMemory
from runtime.edges.ring import RingFault

MAX_HALTED = 4096
"""Halted ends that are remembered: what is still on its way to them is no offence."""

Source = SendPump | LocalSource
Sink = ReceivePump | LocalSink

_CODES = frozenset(code.value for code in EdgeFaultCode)
_OWN_RING = frozenset({EdgeFaultCode.RING_HEADER_CHANGED.value, EdgeFaultCode.CURSOR_BEYOND_CAPACITY.value})


class Loop(Protocol):
    """What the ends need of the driver's loop."""

    now: float

    def watch(self, fd: int, handler: Callable[[], None], *, listening: bool = True) -> None: ...

    def unwatch(self, fd: int) -> None: ...

    def listen(self, fd: int, listening: bool) -> None:
        """Whether its wake-ups are heard now; those that are not heard are not lost."""

    def wake(self, source: Source) -> None:
        """Have its turn come."""

    def later(self, sink: Sink, delay_s: float) -> None:
        """Have `Ends.soon` called for it by then."""

    def forget(self, pump: Pump) -> None:
        """It has no turn any more and owes nothing."""

    def report(self, report: DriverReport) -> None: ...

    def count(self, what: str, detail: str) -> None: ...


class Ends:
    """Every pump of this process, by edge and direction. `streams` has those whose other end is elsewhere."""

    def __init__(self, process: NodeName, memory: NodeMemory, loop: Loop) -> None:
        self.streams = Streams(self)
        self._process = process
        self._memory = memory
        self._loop = loop
        self._sources: dict[EdgeId, Source] = {}
        self._sinks: dict[EdgeId, Sink] = {}
        self._halted: OrderedDict[EdgeId, None] = OrderedDict()
        self.wake, self.later, self.count = loop.wake, loop.later, loop.count

    @property
    def sinks(self) -> Mapping[EdgeId, Sink]:
        return self._sinks

    def was_halted(self, edge: int) -> bool:
        return edge in self._halted

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
                self.streams.links.cut(order.peer)

    def _start(self, order: StartSend | StartReceive) -> None:
        egress = isinstance(order, StartSend)
        direction = RingDirection.EGRESS if egress else RingDirection.INGRESS
        if order.edge_id in (self._sources if egress else self._sinks):
            self.count("order_ignored", f"edge {order.edge_id} has a pump for {direction.value} already")
            return
        try:
            ring = self._memory.ring(order.ring.ring_id)
        except KeyError:
            code, text = EdgeFaultCode.ARENA_FAILED, f"there is no ring {order.ring.ring_id}"
        else:
            try:
                self._enter(self._made(order, ring))
                return
            except RingFault as fault:
                code, text = EdgeFaultCode(fault.code), fault.text
            except LookupError as unknown:
                code, text = EdgeFaultCode.LINK_LOST, str(unknown.args[0])
        self._loop.report(PumpFaulted(edge_id=order.edge_id, direction=direction, code=code, text=text))

    def _made(self, order: StartSend | StartReceive, ring: RingMemory) -> Source | Sink:
        """Raises `RingFault`, or `LookupError` when nobody knows where the consumer listens."""
        if isinstance(order, StartReceive):
            return LocalSink(order, ring) if order.producer == self._process else ReceivePump(order, ring)
        if order.consumer == self._process:
            return LocalSource(order, ring)
        return SendPump(order, ring, self.streams.links.to(order.consumer))

    def _enter(self, pump: Source | Sink) -> None:
        watch = self._loop.watch
        match pump:
            case SendPump():
                self._sources[pump.edge] = pump
                watch(pump.watched, partial(self._committed, pump))
                pump.link.pumps[pump.edge] = pump
                self.streams.open(pump)
            case LocalSource():
                self._sources[pump.edge] = pump
                watch(pump.watched, partial(self._committed, pump))
                self._join(pump.edge)
            case ReceivePump():
                self._sinks[pump.edge] = pump
                self._halted.pop(pump.edge, None)
                watch(pump.watched, partial(self._freed, pump), listening=False)
                self.streams.unpark(pump)
            case LocalSink():
                self._sinks[pump.edge] = pump
                watch(pump.watched, partial(self._freed, pump), listening=False)
                self._join(pump.edge)

    def _halt(self, order: HaltPump) -> None:
        table: dict[EdgeId, Any] = self._sources if order.direction is RingDirection.EGRESS else self._sinks
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
        source = self._sources.get(order.edge_id)
        if source is None or source.fault is not None:
            self.count("order_ignored", f"the stream of edge {order.edge_id} is to be closed and is not open")
            return
        try:
            source.close(order.clean)
        except FAULTS as fault:
            self.faulted(source, fault.code, fault.text)
            return
        self.wake(source)

    def close(self) -> None:
        """Let go of every ring, and tell nobody."""
        for pump in [*self._sources.values(), *self._sinks.values()]:
            if pump.fault is None:
                self._detach(pump)
            pump.halt()
        self._sources.clear()
        self._sinks.clear()

    # wake-ups

    def turn(self, source: Source) -> bool:
        """One chunk of it; true when more can move at once."""
        try:
            if isinstance(source, SendPump):
                return self.streams.turn(source)
            more = source.turn()
            if source.sink is not None:
                self.attend(source.sink)
            if source.complete:
                self._ended_here(source)
            return more
        except FAULTS as fault:
            self.faulted(source, fault.code, fault.text, far=isinstance(fault, FarRingFault))
            return False

    def attend(self, sink: Sink) -> None:
        """Listen to what its workload frees while somebody waits for it, and else let it pass unheard."""
        if sink.listening is not sink.wants_room:
            sink.listening = not sink.listening
            self._loop.listen(sink.watched, sink.listening)

    def _committed(self, source: Source) -> None:
        """The workload has put more into its ring."""
        try:
            source.take_in()
        except FAULTS as fault:
            self.faulted(source, fault.code, fault.text)
            return
        self.wake(source)

    def _freed(self, sink: Sink) -> None:
        """The workload has let go of some of what it received. Of small steps several are waited for: it has more."""
        if not self._look(sink):
            return
        if isinstance(sink, ReceivePump):
            if sink.window.due:
                self.streams.credit_if_due(sink)
                self.attend(sink)
                return
        elif sink.ring.known_free >= sink.ring.capacity // 4:
            self.soon(sink)
            return
        sink.listening = False
        self._loop.listen(sink.watched, False)
        self.later(sink, MOMENT_S)

    def soon(self, sink: Sink) -> None:
        """What was put off is due: tell of the room there is, or use it."""
        if isinstance(sink, ReceivePump):
            window = sink.window
            if (window.due or window.owing or window.withheld) and not self.streams.tell_credit(sink):
                self.later(sink, MOMENT_S)
            self.attend(sink)
        elif sink.source is not None:
            self.wake(sink.source)

    def _look(self, sink: Sink) -> bool:
        """How much has it let go of? False when that ended the edge."""
        try:
            sink.look()
        except FAULTS as fault:
            source = sink.source if isinstance(sink, LocalSink) else None
            self.faulted(sink if source is None else source, fault.code, fault.text, far=source is not None)
            if isinstance(sink, ReceivePump):
                self.streams.tell_fault(sink)
            return False
        return True

    # edges within this process

    def _join(self, edge: EdgeId) -> None:
        """Both ends are here and fit each other: bytes may move."""
        source, sink = self._sources.get(edge), self._sinks.get(edge)
        if not isinstance(source, LocalSource) or sink is None or source.fault is not None or sink.fault is not None:
            return
        if not isinstance(sink, LocalSink):
            text = f"{self._process} is not the producer, {sink.producer} is"
            self.faulted(source, EdgeFaultCode.NOT_THE_PRODUCER, text)
        elif source.run != sink.run:
            older: Source | Sink = source if source.run < sink.run else sink
            text = f"epoch {older.run} of the edge is over, {max(source.run, sink.run)} has begun"
            self.faulted(older, EdgeFaultCode.STALE_EPOCH, text)
        else:
            source.sink, sink.source = sink, source
            sink.tracker = source.tracker
            self.ready(source)
            self.ready(sink)
            self.wake(source)

    def _ended_here(self, source: LocalSource) -> None:
        self.ended(source)
        if source.sink is not None and source.clean:
            self.ended(source.sink)

    # what is told

    def ready(self, pump: Source | Sink) -> None:
        pump.ready = True
        self._loop.report(PumpReady(edge_id=pump.edge, direction=pump.direction))

    def ended(self, pump: Source | Sink) -> None:
        if not pump.ended:
            pump.ended = True
            self._tell_progress(pump)
            self._loop.report(StreamEnded(edge_id=pump.edge, direction=pump.direction))

    def faulted(self, pump: Source | Sink, code: str, text: str, *, far: bool = False) -> None:
        """End this edge here. `far`: it is the ring of its consumer, on this node too, that is at fault."""
        if pump.fault is not None:
            return
        partner = pump.sink if isinstance(pump, LocalSource) else None
        known = EdgeFaultCode(code) if code in _CODES else EdgeFaultCode.MALFORMED_FRAME
        self._tell_progress(pump)
        self._detach(pump)
        pump.fault = (known, text)
        whose = f"at the consumer: {text}" if far else text
        self._loop.report(PumpFaulted(edge_id=pump.edge, direction=pump.direction, code=known, text=whose))
        if partner is not None and (far or code not in _OWN_RING):
            self.faulted(partner, code, text)

    def _tell_progress(self, pump: Source | Sink) -> None:
        progress = pump.progress(self._loop.now)
        if progress is not None:
            moved = Moved(edge_id=pump.edge, direction=pump.direction, progress=progress)
            self._loop.report(PumpsMoved(pumps=[moved]))

    def progress(self) -> PumpsMoved | None:
        """Totals of whatever moved since they were told last."""
        moved = []
        for sink in list(self._sinks.values()):
            if sink.fault is None and not sink.listening and readable(sink.watched):
                self._look(sink)
        for pump in [*self._sources.values(), *self._sinks.values()]:
            progress = None if pump.fault is not None else pump.progress(self._loop.now)
            if progress is not None:
                moved.append(Moved(edge_id=pump.edge, direction=pump.direction, progress=progress))
        return PumpsMoved(pumps=moved) if moved else None
