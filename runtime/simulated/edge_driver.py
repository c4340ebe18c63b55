"""The simulated driver of an edges process: pumps that establish, end and fault streams, and move nothing but numbers.

A stream is established when both of its pumps are there, wherever they are: simulated drivers speak to each other as
processes do, so a cut link holds a stream up and a restart of either process faults it. What is wrong with a driver is
set in `SimulatedDriving`, which outlives it; what happens to a pump is said to the driver: `FaultPump`, `MoveObjects`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import msgspec

from actors.actor import Actor, Context
from actors.edges.id_spans import IdSpans
from messages.base import Address, Message, NodeName, Request
from messages.edge import EdgeId, RingDirection, RunId
from messages.edge_end import EdgeFaultCode, Progress
from messages.edge_ports import (
    CloseStream,
    CutLink,
    DriverMessage,
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
from messages.ports import PortRefusal
from messages.system import Done, PeerDown, PeerUp

EGRESS, INGRESS = RingDirection.EGRESS, RingDirection.INGRESS

AGAIN_S = 0.25
"""How often a pump without a stream tries again."""


class StreamOffered(Message, frozen=True, kw_only=True):
    """Driver to driver: the pump of `run_id` wants to send."""

    edge_id: EdgeId
    run_id: RunId


class StreamTaken(Message, frozen=True, kw_only=True):
    """Driver to driver: the far ring takes the stream."""

    edge_id: EdgeId
    run_id: RunId


class StreamRefused(Message, frozen=True, kw_only=True):
    edge_id: EdgeId
    run_id: RunId
    code: EdgeFaultCode


class StreamFinish(Message, frozen=True, kw_only=True):
    """Driver to driver: all is sent; `clean`: and complete."""

    edge_id: EdgeId
    run_id: RunId
    clean: bool


class StreamFinishTaken(Message, frozen=True, kw_only=True):
    edge_id: EdgeId
    run_id: RunId


class StreamMoved(Message, frozen=True, kw_only=True):
    edge_id: EdgeId
    run_id: RunId
    progress: Progress


class PumpsDue(Message, frozen=True, kw_only=True):
    """The driver's own timer."""


class FaultPump(Request[Done], frozen=True, kw_only=True):
    """Let a pump fault by itself."""

    edge_id: EdgeId
    direction: RingDirection
    code: EdgeFaultCode
    text: str = "the test said so"


class MoveObjects(Request[Done], frozen=True, kw_only=True):
    """Let `count` objects of `extent` bytes cross an established edge, from its egress pump."""

    edge_id: EdgeId
    count: int
    extent: int = 64


StreamMessage = StreamOffered | StreamTaken | StreamRefused | StreamFinish | StreamFinishTaken | StreamMoved
SimulatedDriverMessage = DriverMessage | StreamMessage | PumpsDue | FaultPump | MoveObjects | PeerUp | PeerDown


@dataclass
class SimulatedPump:
    order: StartSend | StartReceive
    ready: bool = False
    faulted: bool = False
    closing: CloseStream | None = None
    ended: bool = False
    progress: Progress = field(default_factory=Progress)

    @property
    def far(self) -> NodeName:
        return self.order.consumer if isinstance(self.order, StartSend) else self.order.producer


@dataclass
class SimulatedDriving:
    """`silent`: the driver takes orders and does nothing; `keep`: it never says that a pump has halted."""

    silent: bool = False
    keep: bool = False
    cuts: list[NodeName] = field(default_factory=list)


class SimulatedDriver(Actor[SimulatedDriverMessage]):
    """The pumps of `process`; reports go to its edges actor."""

    mailbox: ClassVar = SimulatedDriverMessage

    def __init__(self, process: NodeName, driving: SimulatedDriving | None = None) -> None:
        self._process = process
        self._owner = Address(f"{process}/edges")
        self._driving = SimulatedDriving() if driving is None else driving
        self._pumps: dict[tuple[EdgeId, RingDirection], SimulatedPump] = {}
        self._halted = IdSpans()
        self._parked: dict[EdgeId, tuple[NodeName, RunId]] = {}
        self._peers: dict[NodeName, int] = {}
        self._due = False

    def receive(self, message: SimulatedDriverMessage, ctx: Context) -> None:
        if self._driving.silent and isinstance(message, StartSend | StartReceive | HaltPump | CloseStream):
            return
        match message:
            case StartSend() | StartReceive():
                self._start(message, ctx)
            case HaltPump():
                self._halt(message, ctx)
            case CloseStream():
                self._close(message, ctx)
            case CutLink():
                self._driving.cuts.append(message.peer)
            case StreamOffered() | StreamTaken() | StreamRefused() | StreamFinish() | StreamFinishTaken():
                self._streamed(message, ctx)
            case StreamMoved(edge_id=edge_id, run_id=run_id, progress=progress):
                pump = self._pump(edge_id, INGRESS, run_id)
                if pump is not None:
                    self._progress(pump, progress, ctx)
            case PumpsDue():
                self._due = False
                self._try_again(ctx)
            case FaultPump():
                self._fault(self._pumps[message.edge_id, message.direction], message.code, message.text, ctx)
                ctx.reply(Done())
            case MoveObjects():
                self._move(message, ctx)
            case PeerUp():
                self._peer_up(message, ctx)
            case PeerDown():
                pass

    def state(self) -> object:
        return {
            "pumps": [
                {"edge_id": edge_id, "direction": direction.value, "ready": pump.ready, "ended": pump.ended}
                for (edge_id, direction), pump in sorted(self._pumps.items())
            ],
            "cuts": list(self._driving.cuts),
        }

    def _start(self, order: StartSend | StartReceive, ctx: Context) -> None:
        direction = EGRESS if isinstance(order, StartSend) else INGRESS
        if order.ring.ring_id in self._halted or (order.edge_id, direction) in self._pumps:
            return
        pump = self._pumps[order.edge_id, direction] = SimulatedPump(order)
        ctx.watch_peer(pump.far)
        self._offer(pump, ctx)
        parked = self._parked.pop(order.edge_id, None) if direction is INGRESS else None
        if parked is not None:
            self._take_or_refuse(pump, *parked, ctx)
        self._again(ctx)

    def _halt(self, order: HaltPump, ctx: Context) -> None:
        if self._driving.keep:
            return
        self._halted.add(order.ring_id)
        pump = self._pumps.get((order.edge_id, order.direction))
        if pump is not None and pump.order.ring.ring_id == order.ring_id:
            del self._pumps[order.edge_id, order.direction]
        halted = PumpHalted(edge_id=order.edge_id, direction=order.direction, ring_id=order.ring_id)
        ctx.tell(self._owner, halted)

    def _close(self, order: CloseStream, ctx: Context) -> None:
        pump = self._pumps.get((order.edge_id, EGRESS))
        if pump is not None and not pump.faulted:
            pump.closing = order
            self._finish(pump, ctx)

    def _streamed(
        self, message: StreamOffered | StreamTaken | StreamRefused | StreamFinish | StreamFinishTaken, ctx: Context
    ) -> None:
        """What another driver, or this one, says of a stream; repeated and late words change nothing."""
        sender = NodeName((ctx.sender or "").partition("/")[0])
        edge_id, run_id = message.edge_id, message.run_id
        egress, ingress = self._pump(edge_id, EGRESS, run_id), self._pump(edge_id, INGRESS)
        match message:
            case StreamOffered():
                if ingress is None:
                    self._parked[edge_id] = (sender, run_id)
                else:
                    self._take_or_refuse(ingress, sender, run_id, ctx)
            case StreamTaken() if egress is not None and egress.far == sender and not egress.ready:
                self._ready(egress, ctx)
                self._finish(egress, ctx)
            case StreamRefused() if egress is not None and egress.far == sender:
                self._fault(egress, message.code, f"{sender} refuses the stream", ctx)
            case StreamFinish() if ingress is not None and ingress.far == sender:
                self._tell_far(ingress, StreamFinishTaken(edge_id=edge_id, run_id=run_id), ctx)
                if message.clean:
                    self._end(ingress, ctx)
            case StreamFinishTaken() if egress is not None and egress.far == sender and egress.closing is not None:
                self._end(egress, ctx)
            case _:
                pass

    def _take_or_refuse(self, pump: SimulatedPump, sender: NodeName, run_id: RunId, ctx: Context) -> None:
        order = pump.order
        if sender != pump.far:
            code = EdgeFaultCode.NOT_THE_PRODUCER
        elif run_id != order.run_id:
            code = EdgeFaultCode.STALE_EPOCH
        else:
            self._ready(pump, ctx)
            self._tell_far(pump, StreamTaken(edge_id=order.edge_id, run_id=run_id), ctx)
            return
        refused = StreamRefused(edge_id=order.edge_id, run_id=run_id, code=code)
        ctx.tell(Address(f"{sender}/driver"), refused)

    def _peer_up(self, up: PeerUp, ctx: Context) -> None:
        """Streams outlive a cut link, but not a restart of either process."""
        before = self._peers.get(up.process, up.incarnation)
        self._peers[up.process] = up.incarnation
        for pump in list(self._pumps.values()):
            if pump.far == up.process and pump.ready and not pump.ended and before != up.incarnation:
                self._fault(pump, EdgeFaultCode.PEER_RESTARTED, f"{up.process} has restarted", ctx)
        self._try_again(ctx)

    def _try_again(self, ctx: Context) -> None:
        for pump in list(self._pumps.values()):
            self._offer(pump, ctx)
            self._finish(pump, ctx)
        self._again(ctx)

    def _again(self, ctx: Context) -> None:
        waiting = any(
            not pump.faulted and (not pump.ready or (pump.closing is not None and not pump.ended))
            for pump in self._pumps.values()
            if isinstance(pump.order, StartSend)
        )
        if waiting and not self._due:
            self._due = True
            ctx.after(AGAIN_S, PumpsDue())

    def _offer(self, pump: SimulatedPump, ctx: Context) -> None:
        order = pump.order
        if isinstance(order, StartSend) and not (pump.ready or pump.faulted):
            self._tell_far(pump, StreamOffered(edge_id=order.edge_id, run_id=order.run_id), ctx)

    def _finish(self, pump: SimulatedPump, ctx: Context) -> None:
        if pump.closing is not None and pump.ready and not (pump.ended or pump.faulted):
            order, clean = pump.order, pump.closing.clean
            self._tell_far(pump, StreamFinish(edge_id=order.edge_id, run_id=order.run_id, clean=clean), ctx)
            self._again(ctx)

    def _move(self, message: MoveObjects, ctx: Context) -> None:
        pump = self._pumps.get((message.edge_id, EGRESS))
        if pump is None or not pump.ready or pump.faulted:
            ctx.refuse(PortRefusal.INVALID_STATE, f"edge {message.edge_id} is not established")
            return
        objects = pump.progress.objects + message.count
        progress = msgspec.structs.replace(
            pump.progress,
            objects=objects,
            bytes=pump.progress.bytes + message.count * (message.extent + 40),
            ring_bytes=pump.order.ring.layout.data_bytes,
            last_object_id=objects - 1,
            last_sequence=objects - 1,
        )
        self._progress(pump, progress, ctx)
        order = pump.order
        self._tell_far(pump, StreamMoved(edge_id=order.edge_id, run_id=order.run_id, progress=progress), ctx)
        ctx.reply(Done())

    # what is told

    def _ready(self, pump: SimulatedPump, ctx: Context) -> None:
        if not (pump.ready or pump.faulted):
            pump.ready = True
            ctx.tell(self._owner, PumpReady(edge_id=pump.order.edge_id, direction=_direction(pump)))

    def _fault(self, pump: SimulatedPump, code: EdgeFaultCode, text: str, ctx: Context) -> None:
        if not pump.faulted:
            pump.faulted = True
            faulted = PumpFaulted(edge_id=pump.order.edge_id, direction=_direction(pump), code=code, text=text)
            ctx.tell(self._owner, faulted)

    def _end(self, pump: SimulatedPump, ctx: Context) -> None:
        if not (pump.ended or pump.faulted):
            pump.ended = True
            ctx.tell(self._owner, StreamEnded(edge_id=pump.order.edge_id, direction=_direction(pump)))

    def _progress(self, pump: SimulatedPump, progress: Progress, ctx: Context) -> None:
        pump.progress = progress
        moved = Moved(edge_id=pump.order.edge_id, direction=_direction(pump), progress=progress)
        ctx.tell(self._owner, PumpsMoved(pumps=[moved]))

    def _tell_far(self, pump: SimulatedPump, message: StreamMessage, ctx: Context) -> None:
        ctx.tell(Address(f"{pump.far}/driver"), message)

    def _pump(self, edge_id: EdgeId, direction: RingDirection, run_id: RunId | None = None) -> SimulatedPump | None:
        pump = self._pumps.get((edge_id, direction))
        return pump if pump is not None and run_id in (None, pump.order.run_id) else None


def _direction(pump: SimulatedPump) -> RingDirection:
    return EGRESS if isinstance(pump.order, StartSend) else INGRESS
