"""The live `workers` port: hands rings to the workloads of this node and hears of them (design 7, E 6).

Each run of a workload gets one channel, through its shim; it carries the rings' descriptors there and the workload's
answers back. The port never waits: shims and workloads that do not answer are deadlines, a workload that does not read
has a bounded backlog, and one that talks too much or nonsense loses its channel.

A ring is free when its workload says that it has let go of it, asked or not, or with `WorkerGone`, the proof that no
process of the run is left. A closed channel proves nothing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from actors.actor import Actor, Context
from messages.base import Address
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
from runtime.edges.memory import NodeMemory
from runtime.edges.workers.held_rings import HeldRing, Holding
from runtime.edges.workers.introduction import ShimTalk
from runtime.edges.workers.later import Due, Later, Woken
from runtime.edges.workers.run_channel import NotInstalled, RunChannel
from runtime.edges.workers.run_end import RunEnd
from runtime.processes.exits import ExitWatch
from runtime.shim.attach import AttachedRun, attach
from runtime.shim.client import ShimFailed

TAKE_S = 8.0
"""A workload may need so long to take its channel; less than the deadline of an install, which knows no reason."""

LiveWorkersMessage = WorkersMessage | Woken | Due


@dataclass(eq=False, slots=True)
class _Run:
    """One run of a workload."""

    attached: AttachedRun
    channel: RunChannel
    end: RunEnd


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
        self._counted = Counter(surplus=0, malformed=0)

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
            run.channel.close()
            run.attached.close()

    def state(self) -> object:
        return {
            "counted": dict(self._counted),
            "runs": {
                name: {
                    "shim_pid": run.attached.shim_pid,
                    "epoch": run.attached.epoch,
                    "channel": "open" if run.channel.is_open else run.channel.lost or "none",
                    "rings": run.channel.rings.rows(),
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
                if message.instance_id in self._runs:
                    self._runs[message.instance_id].channel.end_stream(message.ring_id, ctx)
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
            held = run.channel.rings.get(ring_id)
            if held is None:
                self._check_layout(order)
                run.channel.install(order, owner, ctx)
            elif held.holding is Holding.INSTALLED:
                ctx.tell(owner, WorkerInstalled(instance_id=name, ring_id=ring_id))
            else:
                ctx.log("info", "a ring is ordered twice", instance=name, ring=ring_id, holding=held.holding.value)
        except NotInstalled as failed:
            ctx.log("warning", "a ring was not installed", instance=name, ring=ring_id, reason=failed.text)
            fault = WorkerFaulted(instance_id=name, ring_id=ring_id, code=failed.code, text=failed.text, holds=False)
            ctx.tell(owner, fault)

    def _run_for(self, order: InstallRing, ctx: Context) -> _Run:
        """The living run of that epoch. Raises `NotInstalled`."""
        name = order.instance_id
        run = self._runs.get(name)
        if run is not None and not run.attached.shim_lives():
            run.end.look(ctx)  # its end may be news that waits in our own mailbox
            if name in self._runs:
                raise NotInstalled(EdgeFaultCode.WORKER_NOT_RUNNING, f"{name} has ended, its last processes have not")
            run = None
        if run is None:
            run = self._attach(name)
        if run is None:
            raise NotInstalled(EdgeFaultCode.WORKER_NOT_RUNNING, f"{name} does not run here: start it")
        if run.attached.epoch != str(order.epoch):
            text = f"{name} runs in epoch {run.attached.epoch}, the ring is for epoch {order.epoch}"
            raise NotInstalled(EdgeFaultCode.WORKER_NOT_RUNNING, text)
        return run

    def _attach(self, name: str) -> _Run | None:
        """Find the living run and watch it. Raises `NotInstalled` when it cannot be told which one lives."""
        try:
            attached = self._living(name)
            if attached is None:
                return None
            channel = RunChannel(attached, self._memory, self._later, self._shims, self._counted)
            end = RunEnd(attached, channel.arena, lambda ctx: self._gone(name, ctx), self._later, self._shims)
            try:
                end.watch(self._exits)
            except OSError:
                attached.close()
                raise
        except (ShimFailed, OSError) as failed:
            raise NotInstalled(EdgeFaultCode.WORKER_REFUSED, f"{name} cannot be reached: {failed}") from None
        run = self._runs[name] = _Run(attached, channel, end)
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

    def _check_layout(self, order: InstallRing) -> None:
        """Raises `NotInstalled` for a ring that does not lie where the order says."""
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
            raise NotInstalled(EdgeFaultCode.ARENA_FAILED, text)

    def _uninstall(self, order: UninstallRing, ctx: Context) -> None:
        found = self._holding(order, ctx)
        if found is not None:
            run, held = found
            held.owner = _owner(ctx)
            run.channel.uninstall(order, held, ctx)

    def _kill(self, order: KillWorker, ctx: Context) -> None:
        """An order that comes late finds another run, which does not hold the ring."""
        found = self._holding(order, ctx)
        if found is not None:
            run, held = found
            held.owner = _owner(ctx)
            ctx.log(
                "warning", "a workload is killed", instance=order.instance_id, ring=order.ring_id, reason=order.reason
            )
            run.end.kill(ctx)

    def _holding(self, order: UninstallRing | KillWorker, ctx: Context) -> tuple[_Run, HeldRing] | None:
        """Which run has the ring. None: no process that lives does, and that is told."""
        run = self._runs.get(order.instance_id)
        held = None if run is None else run.channel.rings.get(order.ring_id)
        if run is None or held is None:
            # Never handed out by this process, or let go already
            ctx.tell(_owner(ctx), WorkerQuiesced(instance_id=order.instance_id, ring_id=order.ring_id))
            return None
        return run, held

    def _gone(self, name: str, ctx: Context) -> None:
        run = self._runs.pop(name)
        run.channel.gone(ctx)
        run.attached.close()


def _owner(ctx: Context) -> Address:
    assert ctx.sender is not None, "orders have a sender"
    return ctx.sender


__all__ = ["LiveWorkersMessage", "Workers"]
