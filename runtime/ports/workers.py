"""The live `workers` port: hands rings to the workloads of this node and hears of them (design 7, E 6).

Each run of a workload gets one channel, through its shim; it carries the rings' descriptors there and the workload's
answers back. The port never waits: shims and workloads that do not answer are deadlines, a workload that does not read
has a bounded backlog, and one that talks too much or nonsense loses its channel.

A ring is free when its workload says that it has let go of it, asked or not, or with `WorkerGone`, the proof that no
process of the run is left. A closed channel proves nothing.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from actors.actor import Actor, Context
from messages.base import Address
from messages.edge import RingId
from messages.edge_end import EdgeFaultCode, FindRun, RunFound
from messages.edge_ports import (
    EndStream,
    InstallRing,
    KillWorker,
    UninstallRing,
    WorkerFaulted,
    WorkerInstalled,
    WorkerQuiesced,
    WorkersMessage,
)
from messages.ports import PortRefusal
from runtime.edges.channel import Channel, ChannelEnded
from runtime.edges.held_rings import HeldRing, HeldRings, Holding, Told
from runtime.edges.introduction import ShimTalk
from runtime.edges.later import Due, Later, Woken
from runtime.edges.memory import NodeMemory
from runtime.edges.packets import MalformedReply, end_packet, install_packet, parse_reply, uninstall_packet
from runtime.edges.run_end import RunEnd
from runtime.processes.exits import ExitWatch
from runtime.shim.attach import AttachedRun, attach
from runtime.shim.client import ShimFailed

RINGS_AT_MOST = 64
"""Of one workload. Each takes three of its 256 descriptors: two eventfds, and the copy that a Python mapping keeps."""

SURPLUS_AT_MOST = 256
"""Packets of one channel that answer nothing; more is a flood."""

EOF_GRACE_S = 0.5
"""A workload that dies closes its channel a moment before its end is seen."""

TAKE_S = 8.0
"""A workload may need so long to take its channel; less than the deadline of an install, which knows no reason."""

FLUSH_AGAIN_S = 0.1

LiveWorkersMessage = WorkersMessage | Woken | Due


class _NotInstalled(Exception):
    """A ring was not handed over; the workload does not hold it."""

    def __init__(self, code: EdgeFaultCode, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


@dataclass(eq=False, slots=True)
class _Run:
    """One run of a workload. Without a channel none was made, or it is lost; `lost` says how."""

    attached: AttachedRun
    rings: HeldRings
    end: RunEnd
    channel: Channel | None = None
    channel_key: int = 0
    lost: str = ""

    @property
    def name(self) -> str:
        return self.attached.instance_id


class Workers(Actor[LiveWorkersMessage]):
    """`memory` has the rings, `instances` is the launcher's folder, `exits` this process's one watch.

    Reports are told to whoever ordered the ring. `take_s`: how long a workload may need to take its channel.
    """

    mailbox: ClassVar = LiveWorkersMessage

    def __init__(self, memory: NodeMemory, instances: Path, exits: ExitWatch, *, take_s: float = TAKE_S) -> None:
        self._memory = memory
        self._instances = instances
        self._exits = exits
        self._runs: dict[str, _Run] = {}
        self._take_s = take_s
        self._counted = {"surplus": 0, "malformed": 0}

    def started(self, ctx: Context) -> None:
        """Raises `RuntimeError` in a process whose rings a former life of this port may have handed out: nobody knows
        any more who holds them, so all of them have to go, and the process with them."""
        if any(arena["rings"] for arena in self._memory.rows()):
            raise RuntimeError("rings were handed out before this port started: start the edges process anew")
        self._later = Later(ctx)
        self._shims = ShimTalk(self._later, self._take_s)

    def stopped(self, ctx: Context) -> None:  # noqa: ARG002
        self._later.close()
        self._shims.close()
        for run in self._runs.values():
            if run.channel is not None:
                run.channel.close()
            run.attached.close()

    def state(self) -> object:
        return {
            "counted": dict(self._counted),
            "runs": {
                name: {
                    "shim_pid": run.attached.shim_pid,
                    "epoch": run.attached.epoch,
                    "channel": "open" if run.channel is not None else run.lost or "none",
                    "rings": run.rings.rows(),
                }
                for name, run in self._runs.items()
            },
        }

    def receive(self, message: LiveWorkersMessage, ctx: Context) -> None:
        match message:
            case InstallRing():
                self._install(message, ctx)
            case UninstallRing():
                self._uninstall(message, ctx)
            case EndStream():
                self._end(message, ctx)
            case KillWorker():
                self._kill(message, ctx)
            case FindRun():
                self._find(message, ctx)
            case Woken() | Due():
                self._later.act(message, ctx)

    # orders

    def _install(self, order: InstallRing, ctx: Context) -> None:
        name, ring_id, owner = order.instance_id, order.ring.ring_id, _owner(ctx)
        try:
            run = self._run_for(order, ctx)
            held = run.rings.get(ring_id)
            if held is not None:
                if held.holding is Holding.INSTALLED:
                    ctx.tell(owner, WorkerInstalled(instance_id=name, ring_id=ring_id))
                else:
                    ctx.log("info", "a ring is ordered twice", instance=name, ring=ring_id, holding=held.holding.value)
                return
            channel = self._channel_for(order, run, ctx)
        except _NotInstalled as failed:
            ctx.log("warning", "a ring was not installed", instance=name, ring=ring_id, reason=failed.text)
            fault = WorkerFaulted(instance_id=name, ring_id=ring_id, code=failed.code, text=failed.text, holds=False)
            ctx.tell(owner, fault)
            return
        run.rings.add(ring_id, owner)
        channel.put(ring_id, install_packet(order), install=True)
        self._flush(run, ctx)

    def _run_for(self, order: InstallRing, ctx: Context) -> _Run:
        """The living run of that epoch. Raises `_NotInstalled`."""
        name = order.instance_id
        run = self._runs.get(name)
        if run is not None and not run.attached.shim_lives():
            run.end.look(ctx)  # its end may be news that waits in our own mailbox
            if name in self._runs:
                raise _NotInstalled(EdgeFaultCode.WORKER_NOT_RUNNING, f"{name} has ended, its last processes have not")
            run = None
        if run is None:
            run = self._attach(name)
        if run is None:
            raise _NotInstalled(EdgeFaultCode.WORKER_NOT_RUNNING, f"{name} does not run here: start it")
        if run.attached.epoch != str(order.epoch):
            text = f"{name} runs in epoch {run.attached.epoch}, the ring is for epoch {order.epoch}"
            raise _NotInstalled(EdgeFaultCode.WORKER_NOT_RUNNING, text)
        return run

    def _attach(self, name: str) -> _Run | None:
        """Find the living run and watch it. Raises `_NotInstalled` when it cannot be told which one lives."""
        try:
            attached = self._living(name)
            if attached is None:
                return None
            rings = HeldRings(name)
            end = RunEnd(
                attached, lambda: self._arena(rings), lambda ctx: self._gone(name, ctx), self._later, self._shims
            )
            end.watch(self._exits)
        except (ShimFailed, OSError) as failed:
            raise _NotInstalled(EdgeFaultCode.WORKER_REFUSED, f"{name} cannot be reached: {failed}") from None
        run = self._runs[name] = _Run(attached, rings, end)
        return run

    def _living(self, name: str) -> AttachedRun | None:
        """The living run of that instance, not yet watched. Raises `ShimFailed` when it cannot be told which one is."""
        if not name or name.startswith(".") or "/" in name or "\0" in name:
            return None
        attached = attach(self._instances / name)
        if attached is not None and attached.instance_id != name:
            attached.close()
            raise ShimFailed(f"its directory has the run of {attached.instance_id}")
        return attached

    def _find(self, question: FindRun, ctx: Context) -> None:
        name = question.instance_id
        run = self._runs.get(name)
        if run is None:
            try:
                attached = self._living(name)
            except ShimFailed as failed:
                ctx.refuse(PortRefusal.INVALID_STATE, str(failed))
                return
            if attached is None:
                ctx.reply(RunFound(runs=False))
                return
            attached.close()
        elif run.attached.shim_lives():
            attached = run.attached
        else:
            ctx.reply(RunFound(runs=False, detail="it has ended, its last processes have not"))
            return
        runs = attached.epoch == str(question.epoch)
        ctx.reply(RunFound(runs=runs, run=attached.run, detail="" if runs else f"it runs in epoch {attached.epoch}"))

    def _channel_for(self, order: InstallRing, run: _Run, ctx: Context) -> Channel:
        """Raises `_NotInstalled` for a ring that must not, or cannot, be handed to this run."""
        try:
            ring = self._memory.ring(order.ring.ring_id)
        except KeyError:
            ring = None
        if ring is None or (ring.arena, ring.generation, ring.layout) != (
            order.instance_id,
            order.ring.generation,
            order.ring.layout,
        ):
            text = f"ring {order.ring.ring_id} is not laid out like that in the arena of {order.instance_id}"
            raise _NotInstalled(EdgeFaultCode.ARENA_FAILED, text)
        if len(run.rings) >= RINGS_AT_MOST:
            text = f"{order.instance_id} has {RINGS_AT_MOST} rings, as many as a workload may have"
            raise _NotInstalled(EdgeFaultCode.WORKER_REFUSED, text)
        if run.channel is not None and run.channel.deaf:
            raise _NotInstalled(EdgeFaultCode.WORKER_REFUSED, f"{run.name} closes its channel")
        if run.channel is not None:
            return run.channel
        if len(run.rings):
            text = f"the channel to {run.name} is lost ({run.lost}) and it may hold rings of it: restart it"
            raise _NotInstalled(EdgeFaultCode.WORKER_REFUSED, text)
        return self._open_channel(run, ctx)

    def _uninstall(self, order: UninstallRing, ctx: Context) -> None:
        found = self._holding(order, ctx)
        if found is None:
            return
        run, held = found
        held.owner = _owner(ctx)
        if held.holding is Holding.UNINSTALLING:
            return  # the answer is on its way
        held.holding = Holding.UNINSTALLING
        if run.channel is None:
            ctx.log("warning", "a ring stays until its workload is gone", ring=order.ring_id, reason=run.lost)
        elif run.channel.recall(order.ring_id):
            _tell([run.rings.let_go(order.ring_id)], ctx)
        else:
            run.channel.put(order.ring_id, uninstall_packet(order.ring_id, order.reason))
            self._flush(run, ctx)

    def _end(self, order: EndStream, ctx: Context) -> None:
        run = self._runs.get(order.instance_id)
        held = None if run is None else run.rings.get(order.ring_id)
        if run is None or held is None or run.channel is None or held.ending or held.holding is Holding.UNINSTALLING:
            return  # there is nobody to tell, or it was told
        held.ending = True
        run.channel.put(order.ring_id, end_packet(order.ring_id))
        self._flush(run, ctx)

    def _kill(self, order: KillWorker, ctx: Context) -> None:
        """An order that comes late finds another run, which does not hold the ring."""
        found = self._holding(order, ctx)
        if found is not None:
            run, held = found
            held.owner = _owner(ctx)
            ctx.log("warning", "a workload is killed", instance=run.name, ring=order.ring_id, reason=order.reason)
            run.end.kill(ctx)

    def _holding(self, order: UninstallRing | KillWorker, ctx: Context) -> tuple[_Run, HeldRing] | None:
        """Which run has the ring. None: no process that lives does, and that is told."""
        run = self._runs.get(order.instance_id)
        held = None if run is None else run.rings.get(order.ring_id)
        if run is None or held is None:
            # Never handed out by this process, or let go already
            ctx.tell(_owner(ctx), WorkerQuiesced(instance_id=order.instance_id, ring_id=order.ring_id))
            return None
        return run, held

    # the channel

    def _open_channel(self, run: _Run, ctx: Context) -> Channel:
        """Have the workload take a new channel; the rings' orders wait for that."""
        try:
            channel = run.channel = Channel(self._rights)
        except OSError as error:
            raise _NotInstalled(EdgeFaultCode.WORKER_REFUSED, f"no channel can be made: {error.strerror}") from None
        run.lost, run.rings.surplus = "", 0
        run.channel_key = self._later.on(lambda ctx: self._heard(run, channel, ctx))

        def introduced(failed: str, ctx: Context) -> None:
            if run.channel is not channel:
                return  # lost meanwhile
            if failed:
                self._lose_channel(run, failed, ctx)
            else:
                channel.open()
                self._flush(run, ctx)

        self._shims.introduce(run.attached, channel, ctx, introduced)
        return channel

    def _rights(self, ring_id: RingId) -> tuple[int, int, int]:
        ring = self._memory.ring(ring_id)
        return ring.arena_fd, ring.data_fd, ring.space_fd

    def _flush(self, run: _Run, ctx: Context) -> None:
        """Send what can be sent, and be woken for what comes next."""
        channel = run.channel
        if channel is None:
            return
        for ring_id in channel.flush():
            channel.recall(ring_id)
            text = f"ring {ring_id} was erased before {run.name} got it"
            _tell([run.rings.not_installed(ring_id, EdgeFaultCode.ARENA_FAILED, text)], ctx)
        if channel.scarce:
            self._later.after(FLUSH_AGAIN_S, lambda ctx: self._flush(run, ctx), ctx)
        self._later.when_ready(channel.fileno(), run.channel_key, writing=channel.stuck)

    def _heard(self, run: _Run, channel: Channel, ctx: Context) -> None:
        try:
            for packet in channel.receive():
                reply = parse_reply(packet)
                surplus = run.rings.surplus
                if RingId(reply.ring) in channel.unseen():
                    run.rings.surplus += 1  # it guesses: the ring's install has not left, and will
                    told = None
                else:
                    channel.heard(reply)
                    told = run.rings.take(reply)
                if told is not None:
                    _tell([told], ctx)
                elif run.rings.surplus > surplus:
                    self._surplus(run, packet, ctx)
        except ChannelEnded as ended:
            self._closed(run, str(ended), ctx)
        except MalformedReply as malformed:
            self._counted["malformed"] += 1
            text = f"{run.name} broke the protocol of its channel: {malformed}"
            self._lose_channel(run, text, ctx)
            self._fault_all(run, EdgeFaultCode.WORKER_REFUSED, text, ctx)
        else:
            self._flush(run, ctx)

    def _surplus(self, run: _Run, packet: bytes, ctx: Context) -> None:
        """Raises `MalformedReply` when it is too much."""
        self._counted["surplus"] += 1
        if run.rings.surplus > SURPLUS_AT_MOST:
            raise MalformedReply(f"more than {SURPLUS_AT_MOST} packets that answer nothing")
        if run.rings.surplus.bit_count() == 1:  # the 1st, 2nd, 4th, 8th ...: a flood fills no log
            said = packet[:200].decode(errors="replace")
            ctx.log("warning", "a workload answers what was not asked", instance=run.name, said=said)

    def _closed(self, run: _Run, text: str, ctx: Context) -> None:
        """Usually the workload has died; its rings are free only when all of it is gone."""
        self._lose_channel(run, text, ctx)
        if len(run.rings):
            crashed = EdgeFaultCode.WORKER_CRASHED
            self._later.after(EOF_GRACE_S, lambda ctx: self._fault_all(run, crashed, text, ctx), ctx)

    def _fault_all(self, run: _Run, code: EdgeFaultCode, text: str, ctx: Context) -> None:
        if self._runs.get(run.name) is run:  # else it is gone, and that was told
            ctx.log("warning", "the channel to a workload is lost", instance=run.name, reason=text)
            _tell(run.rings.fault_all(code, text), ctx)

    def _lose_channel(self, run: _Run, text: str, ctx: Context) -> None:
        """Rings that the workload never saw are free at once."""
        channel, run.channel, run.lost = run.channel, None, text
        if channel is None:
            return
        self._later.drop(channel.fileno(), run.channel_key)
        channel.close()
        for ring_id in channel.unseen():
            _tell([run.rings.not_installed(ring_id, EdgeFaultCode.WORKER_REFUSED, text)], ctx)

    # the end of a run

    def _gone(self, name: str, ctx: Context) -> None:
        run = self._runs[name]
        self._lose_channel(run, f"{name} is gone", ctx)
        del self._runs[name]
        run.attached.close()
        _tell(run.rings.gone(), ctx)

    def _arena(self, rings: HeldRings) -> int | None:
        for ring_id in rings.ids():
            with suppress(KeyError):
                return self._memory.ring(ring_id).arena_fd
        return None


def _owner(ctx: Context) -> Address:
    assert ctx.sender is not None, "orders have a sender"
    return ctx.sender


def _tell(reports: list[Told], ctx: Context) -> None:
    for owner, report in reports:
        ctx.tell(owner, report)


__all__ = ["RINGS_AT_MOST", "SURPLUS_AT_MOST", "LiveWorkersMessage", "Workers"]
