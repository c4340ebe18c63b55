"""The simulated launcher: workloads that exist only as rows, and end when somebody says so.

`SimulatedHost` outlives the actor, as shims outlive their agent: a new launcher finds what the old one started and
tells about it from `AdoptInstances` on. What a program does is its `Behaviour`, found by the program's SHA-256. A
test ends a run with `EndInstance` and writes to its output with `WriteOutput`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from actors.actor import Actor, Context
from messages.base import Address, Message, Request
from messages.ports import (
    AdoptInstances,
    InstanceEnded,
    InstanceRow,
    InstanceRows,
    InstanceStarted,
    LauncherMessage,
    OutputChunk,
    PortRefusal,
    ReadOutput,
    RemoveInstance,
    RunEvidence,
    StageInstance,
    StartInstance,
    StopInstance,
)
from messages.system import Done

SIGKILL, SIGTERM = 9, 15


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What a program does: `output` at once, then exit with `exit_code` after `exit_after_s` (None: never by itself).

    With `once` and no `exit_after_s` it exits at once. `stop_s`: how long it takes to obey SIGTERM. `admission`:
    why it is not even staged; `start`: why it cannot be started.
    """

    output: bytes = b""
    exit_after_s: float | None = None
    exit_code: int = 0
    stop_s: float = 0.0
    admission: str | None = None
    start: str | None = None


@dataclass
class SimulatedRun:
    """One run. Times are the world's monotonic seconds; `deadline_s` is its lease."""

    started: InstanceStarted
    order: StartInstance
    began_s: float
    exit_at_s: float | None
    deadline_s: float | None = None


@dataclass
class SimulatedInstance:
    staged: StageInstance
    run: SimulatedRun | None = None
    last: RunEvidence | None = None
    stdout: bytearray = field(default_factory=bytearray)
    starts: list[StartInstance] = field(default_factory=list)


@dataclass
class SimulatedHost:
    """Folders and processes of one machine. `refuse`: a code for every stage and start, for example a full disk."""

    instances: dict[str, SimulatedInstance] = field(default_factory=dict)
    behaviours: Mapping[str, Behaviour] = field(default_factory=dict)
    refuse: PortRefusal | None = None
    booted_at_s: float = 0.0
    next_pid: int = 1000

    def running(self) -> dict[str, int]:
        """Pid of each running instance."""
        return {name: held.run.started.pid for name, held in self.instances.items() if held.run is not None}

    def boot(self, now_s: float) -> None:
        """A power cut: every process is gone, no record of its end exists; folders stay."""
        self.booted_at_s = now_s
        for held in self.instances.values():
            held.run = None


class EndInstance(Request[Done], frozen=True):
    """Let a run end now, by itself."""

    instance_id: str
    exit_code: int | None = None
    signal: int | None = None


class WriteOutput(Request[Done], frozen=True):
    instance_id: str
    data: bytes


class RunDue(Message, frozen=True):
    """The launcher's own timer: run `pid` may have come to its end."""

    instance_id: str
    pid: int


SimulatedLauncherMessage = LauncherMessage | EndInstance | WriteOutput | RunDue


class Fault(Exception):
    def __init__(self, code: PortRefusal, reason: str) -> None:
        super().__init__(f"{code.value}: {reason}")
        self.code = code
        self.reason = reason


class SimulatedLauncher(Actor[SimulatedLauncherMessage]):
    mailbox: ClassVar = SimulatedLauncherMessage

    def __init__(self, host: SimulatedHost | None = None) -> None:
        self._host = SimulatedHost() if host is None else host
        self._owner: Address | None = None
        self._stopping: dict[str, tuple[Context, int]] = {}

    def receive(self, message: SimulatedLauncherMessage, ctx: Context) -> None:
        try:
            self._handle(message, ctx)
        except Fault as fault:
            ctx.refuse(fault.code, fault.reason)

    def state(self) -> object:
        return {"running": self._host.running(), "staged": sorted(self._host.instances)}

    def _handle(self, message: SimulatedLauncherMessage, ctx: Context) -> None:
        match message:
            case StageInstance():
                self._stage(message)
                ctx.reply(Done())
            case StartInstance():
                self._owner = ctx.sender
                started = self._start(message, ctx)
                ctx.reply(started)
                self._due(message.instance_id, started.pid, ctx)
            case StopInstance():
                self._stop(message, ctx)
            case RemoveInstance():
                if self._held(message.instance_id).run is not None:
                    raise Fault(PortRefusal.INVALID_STATE, f"{message.instance_id} runs: stop it first")
                del self._host.instances[message.instance_id]
                ctx.reply(Done())
            case AdoptInstances():
                self._adopt(ctx)
            case ReadOutput():
                ctx.reply(self._output(message))
            case EndInstance():
                if self._held(message.instance_id).run is None:
                    raise Fault(PortRefusal.INVALID_STATE, f"{message.instance_id} does not run")
                self._end(message.instance_id, ctx, exit_code=message.exit_code, signal=message.signal)
                ctx.reply(Done())
            case WriteOutput():
                self._held(message.instance_id).stdout += message.data
                ctx.reply(Done())
            case RunDue():
                self._due(message.instance_id, message.pid, ctx)

    def _held(self, instance_id: str) -> SimulatedInstance:
        held = self._host.instances.get(instance_id)
        if held is None:
            raise Fault(PortRefusal.NOT_FOUND, f"no instance {instance_id} is staged")
        return held

    def _behaviour(self, staged: StageInstance) -> Behaviour:
        return self._host.behaviours.get(staged.sha256, Behaviour())

    def _stage(self, order: StageInstance) -> None:
        if order.instance_id in self._host.instances:
            raise Fault(PortRefusal.EXISTS, f"{order.instance_id} is staged already")
        if self._host.refuse is not None:
            raise Fault(self._host.refuse, f"{order.instance_id} cannot be staged")
        reason = self._behaviour(order).admission
        if reason is not None:
            raise Fault(PortRefusal.ADMISSION, reason)
        if (order.arch == "noarch") != (order.interpreter is not None):
            raise Fault(PortRefusal.ADMISSION, f"{order.arch}: an interpreter runs noarch payloads, and only those")
        self._host.instances[order.instance_id] = SimulatedInstance(staged=order)

    def _start(self, order: StartInstance, ctx: Context) -> InstanceStarted:
        held = self._held(order.instance_id)
        if held.run is not None:
            raise Fault(PortRefusal.INVALID_STATE, f"{order.instance_id} runs already")
        behaviour = self._behaviour(held.staged)
        reason = behaviour.start
        if self._host.refuse is not None or reason is not None:
            raise Fault(self._host.refuse or PortRefusal.IO_ERROR, reason or f"{order.instance_id} cannot be started")
        host = self._host
        started = InstanceStarted(shim_pid=host.next_pid, pid=host.next_pid + 1, start_ticks=int(ctx.now() * 100))
        host.next_pid += 2
        delay_s = behaviour.exit_after_s if not order.once else behaviour.exit_after_s or 0.0
        deadline_ms = order.deadline_boottime_ms
        held.starts.append(order)
        held.last = None
        held.stdout = bytearray(behaviour.output)
        held.run = SimulatedRun(
            started=started,
            order=order,
            began_s=ctx.now(),
            exit_at_s=None if delay_s is None else ctx.now() + delay_s,
            deadline_s=None if deadline_ms is None else host.booted_at_s + deadline_ms / 1000,
        )
        return started

    def _stop(self, order: StopInstance, ctx: Context) -> None:
        held = self._held(order.instance_id)
        if held.run is None:
            raise Fault(PortRefusal.INVALID_STATE, f"{order.instance_id} does not run")
        takes_s = self._behaviour(held.staged).stop_s
        held.run.exit_at_s = ctx.now() + min(takes_s, order.grace_ms / 1000)
        self._stopping[order.instance_id] = (ctx, SIGKILL if takes_s * 1000 > order.grace_ms else SIGTERM)
        self._due(order.instance_id, held.run.started.pid, ctx)

    def _due(self, instance_id: str, pid: int, ctx: Context) -> None:
        """End the run if its time has come, else look again when it comes."""
        held = self._host.instances.get(instance_id)
        run = None if held is None else held.run
        if held is None or run is None or run.started.pid != pid:
            return
        if run.deadline_s is not None and run.deadline_s <= ctx.now():
            self._end(instance_id, ctx, signal=SIGKILL)
        elif run.exit_at_s is not None and run.exit_at_s <= ctx.now():
            _, signal = self._stopping.get(instance_id, (None, None))
            code = self._behaviour(held.staged).exit_code if signal is None else None
            self._end(instance_id, ctx, exit_code=code, signal=signal)
        else:
            times = [at for at in (run.deadline_s, run.exit_at_s) if at is not None]
            if times:
                ctx.after(min(times) - ctx.now(), RunDue(instance_id=instance_id, pid=pid))

    def _end(self, instance_id: str, ctx: Context, *, exit_code: int | None = None, signal: int | None = None) -> None:
        held = self._held(instance_id)
        assert held.run is not None
        evidence = RunEvidence(
            instance_id=instance_id,
            exit_code=exit_code,
            signal=signal,
            elapsed_ms=int((ctx.now() - held.run.began_s) * 1000),
            stdout_bytes=len(held.stdout),
            stderr_bytes=0,
            truncated=False,
            killed=signal == SIGKILL,
        )
        held.run, held.last = None, evidence
        if self._owner is not None:
            ctx.tell(self._owner, InstanceEnded(evidence=evidence))
        stopping = self._stopping.pop(instance_id, None)
        if stopping is not None:
            stopping[0].reply(evidence)

    def _adopt(self, ctx: Context) -> None:
        self._owner = None  # what ended unseen is in the rows, not told as well
        for instance_id, held in self._host.instances.items():
            if held.run is not None:
                self._due(instance_id, held.run.started.pid, ctx)
        self._owner = ctx.sender
        rows = [
            InstanceRow(instance_id=name, running=None if held.run is None else held.run.started, last=held.last)
            for name, held in self._host.instances.items()
        ]
        ctx.reply(InstanceRows(rows=rows))

    def _output(self, message: ReadOutput) -> OutputChunk:
        held = self._held(message.instance_id)
        data = bytes(held.stdout)
        start = max(0, len(data) - message.limit) if message.stdout_offset < 0 else message.stdout_offset
        chunk = data[start : start + message.limit]
        return OutputChunk(
            stdout=chunk,
            stderr=b"",
            stdout_next=start + len(chunk),
            stderr_next=0,
            exit_code=None if held.last is None or held.run is not None else held.last.exit_code,
            running=held.run is not None,
            truncated=False,
        )
