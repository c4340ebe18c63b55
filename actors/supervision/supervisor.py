"""The actor around `Supervision`: starts, watches, beats and stops children (design 6).

One class for both kinds of child. An actor is spawned and is ready when it has started; a process is started through
the `processes` port and is ready when its own supervisor says so. Readiness is raced with death in both cases.

A thread cannot be killed, so an actor that hangs, or that does not stop in time, takes its process with it: this
actor then crashes, the process ends, and the root starts it again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from actors.actor import Actor, AskFailed, Context, Procedure
from actors.supervision.lint import Tree
from actors.supervision.policy import (
    Backoff,
    ChildSpec,
    Decision,
    Escalate,
    Finished,
    Intensity,
    Kill,
    Park,
    Refused,
    Schedule,
    Start,
    Stop,
    Supervision,
)
from messages.base import Address, NodeName
from messages.ports import ProcessExited, SignalProcess, StartProcess
from messages.supervision import (
    BeatDue,
    ChildDone,
    ChildState,
    ChildView,
    ProcessBeat,
    ProcessReady,
    ShowChildren,
    Shutdown,
    Spent,
    StartChild,
    StopChild,
    Strategy,
    SupervisorView,
    Tick,
    Verdict,
)
from messages.system import AwaitReady, Down, ExitKind, GetStatistics, PeerDown, PeerUp

SIGTERM, SIGKILL = 15, 9

HUNG_BEATS, LATE_BEATS = 3, 2
"""Beats that a process may miss before it counts as hung, and as overloaded."""

LONG_MAILBOX = 500
"""Half of what a mailbox holds: from here on its actor is overloaded."""


@dataclass(frozen=True)
class ActorChild:
    """`hung_after_s` None: never judged by its beats, as for a port, which may wait for a disk."""

    spec: ChildSpec
    address: Address
    factory: Callable[[], Actor[Any]]
    hung_after_s: float | None = None


@dataclass(frozen=True)
class ProcessChild:
    """A process of the cluster; `hung_after_s` of silence from its supervisor and it is killed."""

    spec: ChildSpec
    role: str
    hung_after_s: float


class SupervisorFailed(Exception):
    """The budget is spent, a child would not go, or its processes are out of sight: the process ends."""


SupervisorMessage = (
    ShowChildren
    | StopChild
    | StartChild
    | Shutdown
    | Tick
    | BeatDue
    | Down
    | ProcessExited
    | ProcessReady
    | ProcessBeat
    | PeerUp
    | PeerDown
)


class Supervisor(Actor[SupervisorMessage]):
    """`processes` is the port for process children, made by `port` where it is none of the actors supervised.

    `root` is told readiness and beats of life `incarnation`.
    """

    mailbox = SupervisorMessage

    def __init__(
        self,
        name: str,
        children: Sequence[ActorChild | ProcessChild],
        *,
        incarnation: int = 0,
        root: Address | None = None,
        processes: Address | None = None,
        port: Callable[[], Actor[Any]] | None = None,
        beat_s: float = 1.0,
        strategy: Strategy = Strategy.ONE_FOR_ONE,
        intensity: Intensity | None = None,
        backoff: Backoff | None = None,
        spent: Spent = Spent.ESCALATE,
    ) -> None:
        self._name = name
        self._children = {child.spec.name: child for child in children}
        self._incarnation = incarnation
        self._root = root
        self._processes = processes
        self._port = port
        self._beat_s = beat_s
        self._strategy = strategy
        self._intensity = intensity or Intensity()
        self._backoff = backoff or Backoff()
        self._spent = spent
        self._supervision: Supervision
        self._timer = 0
        self._lives: dict[str, int] = {}
        self._heard: dict[str, float] = {}
        self._judged_at = 0.0
        self._hung: set[str] = set()
        self._mailboxes: dict[str, int] = {}
        self._slowest_s: dict[str, float] = {}
        self._links: dict[str, int] = {}
        self._unlinked: set[str] = set()
        self._told_ready = False

    def plan(self, below: Mapping[str, Tree], spec: ChildSpec | None = None) -> Tree:
        """What would be started, for the lint. `below`: supervisors by the name of the child that each is."""
        return Tree(
            name=self._name,
            children=tuple(below.get(name, child.spec) for name, child in self._children.items()),
            actors=frozenset(name for name, child in self._children.items() if isinstance(child, ActorChild)),
            spec=spec,
            strategy=self._strategy,
            intensity=self._intensity,
            backoff=self._backoff,
            spent=self._spent,
        )

    def started(self, ctx: Context) -> None:
        self._supervision = Supervision(
            [child.spec for child in self._children.values()],
            random=ctx.random.random,
            strategy=self._strategy,
            intensity=self._intensity,
            backoff=self._backoff,
            spent=self._spent,
        )
        if self._root is not None:
            ctx.watch_peer(_process_of(self._root))
        for name, child in self._children.items():
            if isinstance(child, ProcessChild):
                ctx.watch_peer(NodeName(name))
        if self._port is not None and self._processes is not None:
            ctx.spawn(self._processes, self._port)
        self._carry_out(self._supervision.start_all(ctx.now()), ctx)
        self._judged_at = ctx.now()
        ctx.after(self._beat_s, BeatDue())

    def receive(self, message: SupervisorMessage, ctx: Context) -> Procedure | None:
        now, rules = ctx.now(), self._supervision
        match message:
            case ShowChildren():
                ctx.reply(self._view(now))
            case StopChild(name=name):
                self._operate(lambda: rules.stop_child(name, now), name, ctx)
            case StartChild(name=name):
                self._operate(lambda: rules.start_child(name, now), name, ctx)
            case Shutdown(reason=reason):
                self._carry_out(rules.shutdown(now, reason), ctx)
            case Tick():
                self._carry_out(rules.tick(now), ctx)
            case BeatDue():
                ctx.after(self._beat_s, BeatDue())
                self._judge(ctx)
                return self._beat(ctx)
            case Down(address=address, kind=kind, reason=reason):
                if address == self._processes and kind is ExitKind.CRASHED:
                    # Whoever ran is out of its successor's sight and reach; they leave when this process is gone
                    raise SupervisorFailed(f"the port that starts processes and sees them end crashed: {reason}")
                for child in self._children.values():
                    if isinstance(child, ActorChild) and child.address == address:
                        self._over(child.spec.name, reason, ctx, normal=kind is not ExitKind.CRASHED)
            case ProcessExited(name=name, incarnation=life, code=code, stderr_tail=tail):
                if self._lives.get(name) == life:
                    said = f": {tail.strip()[-500:]}" if code != 0 and tail.strip() else ""
                    self._over(name, f"{_exit_text(code)}{said}", ctx, normal=code == 0)
            case ProcessReady(name=name, incarnation=life):
                if _process_of(ctx.sender or "") == name and self._lives.get(name) == life:
                    self._heard[name] = now
                    self._carry_out(rules.started(name, life, now), ctx)
            case ProcessBeat(name=name, incarnation=life, slowest_ms=slowest_ms, mailbox=mailbox):
                if _process_of(ctx.sender or "") == name and self._lives.get(name) == life:
                    self._heard[name] = now
                    self._slowest_s[name], self._mailboxes[name] = slowest_ms / 1000, mailbox
            case PeerUp(process=process, incarnation=life):
                self._links[process] = life
                self._unlinked.discard(process)
                if self._root is not None and process == _process_of(self._root):
                    self._told_ready = False
                    self._tell_ready(ctx)
            case PeerDown(process=process, incarnation=life):
                if self._links.get(process) == life:  # not an older life's, told late
                    del self._links[process]
                    self._unlinked.add(process)
        return None

    def state(self) -> object:
        return {"lives": self._lives, "told_ready": self._told_ready}

    # decisions

    def _carry_out(self, decisions: list[Decision], ctx: Context) -> None:
        for decision in decisions:
            match decision:
                case Start(name=name, incarnation=life):
                    self._lives[name] = life
                    self._start(self._children[name], life, ctx)
                case Stop(name=name):
                    child = self._children[name]
                    if isinstance(child, ActorChild):
                        ctx.stop(child.address)
                    else:
                        self._signal(name, SIGTERM, ctx)
                case Kill(name=name):
                    if isinstance(self._children[name], ActorChild):
                        raise SupervisorFailed(f"actor {name!r} does not end: its process must")
                    self._signal(name, SIGKILL, ctx)
                case Schedule(at_s=at_s):
                    ctx.cancel(self._timer)
                    self._timer = ctx.after(at_s - ctx.now(), Tick())
                case Park(name=name, reason=reason):
                    ctx.log("error", "child parked", child=name, reason=reason)
                case Escalate(reason=reason):
                    raise SupervisorFailed(reason)
                case Finished(reason=reason):
                    ctx.log("info", "all children are gone", reason=reason)
                    ctx.stop(ctx.address)
        self._tell_ready(ctx)

    def _start(self, child: ActorChild | ProcessChild, life: int, ctx: Context) -> None:
        name = child.spec.name
        self._unlinked.discard(name)
        if isinstance(child, ActorChild):
            ctx.spawn(child.address, child.factory)
            ctx.run(self._await_actor(child, life, ctx))
        else:
            ctx.run(self._start_process(child, life, ctx))
        ctx.log("debug", "child starting", child=name, life=life)

    async def _await_actor(self, child: ActorChild, life: int, ctx: Context) -> None:
        try:
            await ctx.ask(child.address, AwaitReady(), timeout_s=child.spec.start_timeout_s + 1)
        except AskFailed:
            return  # its `Down` or the deadline of its start says the rest
        self._carry_out(self._supervision.started(child.spec.name, life, ctx.now()), ctx)

    async def _start_process(self, child: ProcessChild, life: int, ctx: Context) -> None:
        assert self._processes is not None
        start = StartProcess(name=child.spec.name, role=child.role, incarnation=life)
        try:
            await ctx.ask(self._processes, start, timeout_s=child.spec.start_timeout_s)
        except AskFailed as failed:
            if not failed.nothing_happened:  # it may run all the same, and would be in the way of the next life
                self._signal(child.spec.name, SIGKILL, ctx)
            self._over(child.spec.name, f"cannot start: {failed.reason}", ctx, normal=False)

    def _signal(self, name: str, signal: int, ctx: Context) -> None:
        assert self._processes is not None
        ctx.tell(self._processes, SignalProcess(name=name, signal=signal, group=signal == SIGKILL))

    def _over(self, name: str, reason: str, ctx: Context, *, normal: bool) -> None:
        life = self._lives.get(name, 0)
        for known in (self._heard, self._mailboxes, self._slowest_s):
            known.pop(name, None)
        self._hung.discard(name)
        if not normal:
            ctx.log("warning", "child ended", child=name, life=life, reason=reason)
        self._carry_out(self._supervision.exited(name, life, ctx.now(), reason, normal=normal), ctx)

    def _operate(self, verb: Callable[[], list[Decision]], name: str, ctx: Context) -> None:
        try:
            decisions = verb()
        except Refused as refused:
            ctx.reply(ChildDone(refused=refused.code, detail=str(refused)))
            return
        self._carry_out(decisions, ctx)
        rows = self._view(ctx.now()).children
        ctx.reply(ChildDone(child=next((row for row in rows if row.name == name), None)))

    # sight

    def _view(self, now_s: float) -> SupervisorView:
        view = self._supervision.view(now_s)
        rows = tuple(msgspec.structs.replace(row, verdict=self._verdict(row, now_s)) for row in view.children)
        return msgspec.structs.replace(view, children=rows)

    def _verdict(self, row: ChildView, now_s: float) -> Verdict | None:
        name = row.name
        if row.state in (ChildState.WAITING, ChildState.PARKED):
            return Verdict.DEAD if row.incarnation else None
        if row.state is not ChildState.RUNNING:
            return None
        if name in self._unlinked:
            return Verdict.PARTITIONED
        silent_s = now_s - self._heard.get(name, now_s)
        if name in self._hung or silent_s > HUNG_BEATS * self._beat_s:
            return Verdict.HUNG
        late = silent_s > LATE_BEATS * self._beat_s or self._slowest_s.get(name, 0) > self._beat_s
        return Verdict.OVERLOADED if late or self._mailboxes.get(name, 0) >= LONG_MAILBOX else None

    # beats

    def _tell_ready(self, ctx: Context) -> None:
        """Tell the root once everything runs, and again when the link to it comes back."""
        if self._root is None or self._told_ready or _process_of(self._root) not in self._links:
            return
        rows = self._supervision.view(ctx.now()).children
        expected = {name for name, child in self._children.items() if not child.spec.on_demand}
        if all(row.state is ChildState.RUNNING for row in rows if row.name in expected):
            ready = ProcessReady(name=self._name, incarnation=self._incarnation)
            self._told_ready = ctx.tell(self._root, ready)

    async def _beat(self, ctx: Context) -> None:
        """Ask every running actor through its mailbox loop how it is; tell the root; end a process that hangs."""
        rows = {row.name: row for row in self._supervision.view(ctx.now()).children}
        asked = [
            child
            for name, child in self._children.items()
            if isinstance(child, ActorChild)
            and child.hung_after_s is not None
            and rows[name].state is ChildState.RUNNING
        ]
        lives = dict(self._lives)
        began = ctx.now()
        asks = [ctx.ask(child.address, GetStatistics(), timeout_s=child.hung_after_s or 0) for child in asked]
        results = await ctx.all_of(asks)
        for child, result in zip(asked, results, strict=True):
            name = child.spec.name
            if not isinstance(result, AskFailed) and lives[name] == self._lives[name]:
                self._mailboxes[name] = result.mailbox
            if isinstance(result, AskFailed) and not result.nothing_happened and lives[name] == self._lives[name]:
                running = {row.name: row.state for row in self._supervision.view(ctx.now()).children}
                if result.failure == "timeout" and running[name] is ChildState.RUNNING:
                    raise SupervisorFailed(f"actor {name!r} hangs: no beat for {child.hung_after_s:g} s")
        if self._root is not None and _process_of(self._root) in self._links:
            answered = [result for result in results if not isinstance(result, AskFailed)]
            beat = ProcessBeat(
                name=self._name,
                incarnation=self._incarnation,
                slowest_ms=round((ctx.now() - began) * 1000),
                mailbox=max((result.mailbox for result in answered), default=0),
            )
            ctx.tell(self._root, beat)

    def _judge(self, ctx: Context) -> None:
        """Kill processes that run and say nothing.

        While this process stood still itself (stopped by a signal, or with its machine) nobody could be heard: that
        time is nobody's silence. Beats that came meanwhile wait behind the timer that brought us here.
        """
        now_s = ctx.now()
        late_s = now_s - self._judged_at - self._beat_s
        self._judged_at = now_s
        if late_s > self._beat_s:
            self._heard = {name: min(now_s, heard_s + late_s) for name, heard_s in self._heard.items()}
        rows = {row.name: row.state for row in self._supervision.view(now_s).children}
        for name, child in self._children.items():
            if isinstance(child, ProcessChild) and rows[name] is ChildState.RUNNING:
                silent_s = ctx.now() - self._heard.setdefault(name, ctx.now())
                if silent_s > child.hung_after_s:
                    self._heard[name] = ctx.now()
                    self._hung.add(name)
                    ctx.log("error", "child hangs, killed", child=name, silent_s=round(silent_s, 1))
                    self._signal(name, SIGKILL, ctx)


def _process_of(address: str) -> Any:
    return address.partition("/")[0]


def _exit_text(code: int) -> str:
    return f"killed by signal {-code}" if code < 0 else f"exit code {code}"
