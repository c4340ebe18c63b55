"""The simulated ports of an edges process: memory and workers here, the driver beside; no memory, stream or workload.

They answer as the live ones do. Rings are ranges that are checked and never written; a workload takes its rings, reads
what there is, and lets go when asked. What is wrong with a port is set in `SimulatedArenas` and `SimulatedWorkloads`,
which outlive the actors; what happens to a workload is said to the port: `CrashWorkload`, `ClosePort`, `FaultRing`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import ClassVar

from actors.actor import Actor, Context
from messages.base import Address, Message, NodeName, Request
from messages.control import Epoch
from messages.edge import RingId
from messages.edge_end import EdgeFaultCode, FindRun, RunFound
from messages.edge_ports import (
    DropArena,
    EndStream,
    EraseRing,
    FormatRing,
    InstallRing,
    KillWorker,
    MemoryMessage,
    RingRef,
    UninstallRing,
    WorkerClosed,
    WorkerFaulted,
    WorkerGone,
    WorkerInstalled,
    WorkerQuiesced,
    WorkersMessage,
)
from messages.ports import PortRefusal
from messages.system import Done
from runtime.simulated.edge_driver import FaultPump, MoveObjects, SimulatedDriver, SimulatedDriving
from runtime.simulated.launcher import SimulatedHost

LOOK_S = 0.25
"""How often workers look whether the workloads of a simulated host still run."""


# memory


@dataclass
class SimulatedArenas:
    """What is laid out. `refuse`: a code for every ring; `erase_refuse`: somebody keeps a view; `silent`: no answer."""

    rings: dict[RingId, RingRef] = field(default_factory=dict)
    arenas: dict[str, int] = field(default_factory=dict)
    erased: list[RingId] = field(default_factory=list)
    refuse: PortRefusal | None = None
    erase_refuse: bool = False
    silent: bool = False


class SimulatedMemory(Actor[MemoryMessage]):
    mailbox: ClassVar = MemoryMessage

    def __init__(self, arenas: SimulatedArenas | None = None) -> None:
        self._arenas = SimulatedArenas() if arenas is None else arenas

    def started(self, ctx: Context) -> None:  # noqa: ARG002
        self._arenas.rings.clear()  # memory dies with its process
        self._arenas.arenas.clear()

    def receive(self, message: MemoryMessage, ctx: Context) -> None:
        arenas = self._arenas
        if arenas.silent:
            return
        match message:
            case FormatRing(ring=ring):
                self._format(ring, message.size_bytes, ctx)
            case EraseRing() if arenas.erase_refuse:
                ctx.refuse(PortRefusal.INVALID_STATE, f"ring {message.ring_id} is looked at")
            case EraseRing(ring_id=ring_id):
                if arenas.rings.pop(ring_id, None) is not None:
                    arenas.erased.append(ring_id)
                ctx.reply(Done())
            case DropArena(arena=arena):
                if any(ring.arena == arena for ring in arenas.rings.values()):
                    ctx.refuse(PortRefusal.INVALID_STATE, f"arena {arena} holds rings: erase them first")
                    return
                arenas.arenas.pop(arena, None)
                ctx.reply(Done())

    def state(self) -> object:
        return {"rings": sorted(self._arenas.rings), "arenas": sorted(self._arenas.arenas)}

    def _format(self, ring: RingRef, size_bytes: int, ctx: Context) -> None:
        arenas, layout = self._arenas, ring.layout
        if arenas.refuse is not None:
            ctx.refuse(arenas.refuse, f"no memory for ring {ring.ring_id}")
            return
        for other in arenas.rings.values():
            there = other.layout
            overlaps = layout.start_offset < there.end_offset and there.start_offset < layout.end_offset
            if other.ring_id == ring.ring_id or (other.arena == ring.arena and overlaps):
                ctx.refuse(PortRefusal.EXISTS, f"ring {ring.ring_id} lies on ring {other.ring_id}")
                return
        if arenas.arenas.setdefault(ring.arena, size_bytes) != size_bytes or layout.end_offset > size_bytes:
            ctx.refuse(PortRefusal.MISMATCH, f"ring {ring.ring_id} does not fit arena {ring.arena}")
            return
        arenas.rings[ring.ring_id] = ring
        ctx.reply(Done())


# workers


class CrashWorkload(Request[Done], frozen=True, kw_only=True):
    """Let every process of the workload's run end now."""

    instance_id: str


class ClosePort(Request[Done], frozen=True, kw_only=True):
    """Let the workload close the port: it sends nothing more, or has read all."""

    instance_id: str
    port: str


class FaultRing(Request[Done], frozen=True, kw_only=True):
    """Let the workload find fault with the ring of a port."""

    instance_id: str
    port: str
    code: EdgeFaultCode
    text: str = "the test said so"
    holds: bool = True


class LookDue(Message, frozen=True, kw_only=True):
    """The workers' own timer."""


@dataclass
class SimulatedWorkloads:
    """The workloads of one node, each of which holds the rings that it was handed.

    With `host`, those that its launcher runs; without, whatever is asked for runs. `refuse`: a code for every ring;
    `silent`: rings are taken and nothing is said; `clinging`: instances that do not let go of a ring until they are
    killed; `stuck`: not even then.
    """

    host: SimulatedHost | None = None
    held: dict[RingId, InstallRing] = field(default_factory=dict)
    refuse: EdgeFaultCode | None = None
    silent: bool = False
    clinging: set[str] = field(default_factory=set)
    stuck: bool = False
    killed: list[str] = field(default_factory=list)
    over: set[tuple[str, Epoch]] = field(default_factory=set)
    crashes: Counter[str] = field(default_factory=Counter)

    def runs(self, instance_id: str, epoch: Epoch) -> bool:
        """Whether that run of the workload has a process."""
        if self.host is None:
            return (instance_id, epoch) not in self.over
        held = self.host.instances.get(instance_id)
        return held is not None and held.run is not None and held.run.order.epoch == str(epoch)

    def run(self, instance_id: str) -> str:
        """Which run of the workload it is."""
        pid = self.crashes[instance_id] if self.host is None else self.host.running().get(instance_id)
        return f"{instance_id}/{pid}"


SimulatedWorkersMessage = WorkersMessage | CrashWorkload | ClosePort | FaultRing | LookDue


class SimulatedWorkers(Actor[SimulatedWorkersMessage]):
    """The workers port of `process`; reports go to its edges actor."""

    mailbox: ClassVar = SimulatedWorkersMessage

    def __init__(self, process: NodeName, workloads: SimulatedWorkloads | None = None) -> None:
        self._owner = Address(f"{process}/edges")
        self._workloads = SimulatedWorkloads() if workloads is None else workloads
        self._pids: dict[RingId, int] = {}

    def started(self, ctx: Context) -> None:
        self._workloads.held.clear()  # a workload whose edges process is gone drops its rings
        self._look(ctx)

    def receive(self, message: SimulatedWorkersMessage, ctx: Context) -> None:
        match message:
            case InstallRing():
                self._install(message, ctx)
            case UninstallRing():
                self._uninstall(message, ctx)
            case EndStream():
                if message.ring_id in self._workloads.held:
                    ctx.tell(self._owner, WorkerClosed(instance_id=message.instance_id, ring_id=message.ring_id))
            case KillWorker():
                self._kill(message, ctx)
            case FindRun():
                runs = self._workloads.runs(message.instance_id, message.epoch)
                ctx.reply(RunFound(runs=runs, run=self._workloads.run(message.instance_id)))
            case CrashWorkload():
                self._crash(message.instance_id, ctx)
                ctx.reply(Done())
            case ClosePort() | FaultRing():
                self._at_port(message, ctx)
            case LookDue():
                self._look(ctx)

    def state(self) -> object:
        held = self._workloads.held.items()
        return {"rings": [{"ring_id": ring_id, "instance_id": order.instance_id} for ring_id, order in held]}

    def _install(self, order: InstallRing, ctx: Context) -> None:
        workloads, ring_id = self._workloads, order.ring.ring_id
        if not workloads.runs(order.instance_id, order.epoch):
            code = EdgeFaultCode.WORKER_NOT_RUNNING
        elif workloads.refuse is not None:
            code = workloads.refuse
        else:
            workloads.held[ring_id] = order
            if workloads.host is not None:
                self._pids[ring_id] = workloads.host.running()[order.instance_id]
            if not workloads.silent:
                ctx.tell(self._owner, WorkerInstalled(instance_id=order.instance_id, ring_id=ring_id))
            return
        text = f"{order.instance_id} does not take ring {ring_id}"
        faulted = WorkerFaulted(instance_id=order.instance_id, ring_id=ring_id, code=code, text=text, holds=False)
        ctx.tell(self._owner, faulted)

    def _uninstall(self, order: UninstallRing, ctx: Context) -> None:
        if order.instance_id in self._workloads.clinging:
            return
        self._workloads.held.pop(order.ring_id, None)
        ctx.tell(self._owner, WorkerQuiesced(instance_id=order.instance_id, ring_id=order.ring_id))

    def _kill(self, order: KillWorker, ctx: Context) -> None:
        if order.ring_id not in self._workloads.held:
            ctx.tell(self._owner, WorkerQuiesced(instance_id=order.instance_id, ring_id=order.ring_id))
            return
        self._workloads.killed.append(order.instance_id)
        if not self._workloads.stuck:
            self._crash(order.instance_id, ctx)

    def _crash(self, instance_id: str, ctx: Context) -> None:
        rings = [ring_id for ring_id, order in self._workloads.held.items() if order.instance_id == instance_id]
        self._workloads.crashes[instance_id] += 1
        self._workloads.over |= {(instance_id, self._workloads.held[ring_id].epoch) for ring_id in rings}
        self._gone(instance_id, rings, ctx)

    def _gone(self, instance_id: str, rings: list[RingId], ctx: Context) -> None:
        for ring_id in rings:
            del self._workloads.held[ring_id]
        self._workloads.clinging.discard(instance_id)
        ctx.tell(self._owner, WorkerGone(instance_id=instance_id, ring_ids=rings))

    def _at_port(self, message: ClosePort | FaultRing, ctx: Context) -> None:
        named = (message.instance_id, message.port)
        rings = [ring for ring, order in self._workloads.held.items() if (order.instance_id, order.port) == named]
        for ring_id in rings:
            if isinstance(message, ClosePort):
                ctx.tell(self._owner, WorkerClosed(instance_id=message.instance_id, ring_id=ring_id))
                continue
            if not message.holds:
                del self._workloads.held[ring_id]
            faulted = WorkerFaulted(
                instance_id=message.instance_id,
                ring_id=ring_id,
                code=message.code,
                text=message.text,
                holds=message.holds,
            )
            ctx.tell(self._owner, faulted)
        if rings:
            ctx.reply(Done())
        else:
            ctx.refuse(PortRefusal.NOT_FOUND, f"{message.instance_id} holds no ring of port {message.port}")

    def _look(self, ctx: Context) -> None:
        """A ring belongs to the process that it was handed to, and to no later one of the same instance."""
        host = self._workloads.host
        if host is None:
            return
        gone: dict[str, list[RingId]] = {}
        for ring_id, order in self._workloads.held.items():
            if host.running().get(order.instance_id) != self._pids.get(ring_id):
                gone.setdefault(order.instance_id, []).append(ring_id)
        for instance_id, rings in gone.items():
            self._gone(instance_id, rings, ctx)
        ctx.after(LOOK_S, LookDue())


__all__ = [
    "ClosePort", "CrashWorkload", "FaultPump", "FaultRing", "MoveObjects", "SimulatedArenas", "SimulatedDriver",
    "SimulatedDriving", "SimulatedMemory", "SimulatedWorkers", "SimulatedWorkloads",
]  # fmt: skip
