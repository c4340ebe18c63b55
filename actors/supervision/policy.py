"""When children start, stop and come back: OTP's supervisor as one pure class (design 6).

The same class supervises actors and OS processes. It has no clock and no randomness: the caller passes `now_s`
(monotonic seconds) and a source of numbers in [0, 1), tells what happened, and carries out the decisions returned, in
their order. A `Schedule` asks for a `tick` at that time; an early, late or repeated tick does no harm.

What differs from OTP:

* a failed child waits: exponential back-off with jitter, forgotten after a quiet time. A failed start is a failure;
* `one_for_one` says that children do not need each other, so no child's start waits for another's. With the other
  two strategies each child is started when all before it are ready;
* what an operator stopped stays stopped, through restarts of its group too;
* with `Spent.PARK` the budget belongs to each child, and a child that spent it is tried at the back-off ceiling. A
  child may differ in that from its siblings: a process is parked beside actors whose failures escalate.

The window of the budget is closed: a failure counts until it is *more than* `period_s` old. With 3 per 10 s, failures
at 0, 5, 8 and 10.0 spend it, and at 0, 5, 8 and 10.001 they do not. `intensity.restarts` failures are forgiven.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from msgspec import Struct

from messages.supervision import (
    AutoShutdown,
    ChildState,
    ChildView,
    Restart,
    Spent,
    Strategy,
    SupervisionRefusal,
    SupervisorView,
)

FIRST_BACKOFF_MAX_S = 0.1
KILL_PATIENCE_S = 5.0
"""How long a killed child may take to be gone before that itself is a failure."""

_ALIVE = (ChildState.STARTING, ChildState.RUNNING, ChildState.STOPPING)
_PLANNED = (ChildState.WAITING, ChildState.PARKED)


class Backoff(Struct, frozen=True, kw_only=True):
    """The n-th failure in a row waits `first_s * factor**(n-1)`, at most `ceiling_s`, less up to `jitter` of itself.

    A child that was ready for `quiet_s` starts again from the first step.
    """

    first_s: float = 0.05
    factor: float = 2.0
    ceiling_s: float = 30.0
    jitter: float = 0.25
    quiet_s: float = 30.0

    def __post_init__(self) -> None:
        if not (0 < self.first_s <= FIRST_BACKOFF_MAX_S and self.factor >= 1 and self.ceiling_s >= self.first_s):
            raise ValueError(
                f"{self}: first_s must be in (0, {FIRST_BACKOFF_MAX_S}], factor >= 1, ceiling_s >= first_s"
            )
        if not (0 <= self.jitter < 1 and self.quiet_s >= 0):
            raise ValueError(f"{self}: jitter must be in [0, 1), quiet_s >= 0")

    def delay_s(self, failures: int, luck: float) -> float:
        """The wait after `failures` (>= 1) failures in a row; `luck` in [0, 1) shortens it by up to `jitter`."""
        steps = min(failures - 1, 64)  # beyond any ceiling, and short of a float's range
        return min(self.first_s * self.factor**steps, self.ceiling_s) * (1 - self.jitter * luck)


class Intensity(Struct, frozen=True, kw_only=True):
    """The restart budget: `restarts` failures within `period_s` seconds are forgiven, the next one is not."""

    restarts: int = 5
    period_s: float = 30.0

    def __post_init__(self) -> None:
        if self.restarts < 0 or self.period_s <= 0:
            raise ValueError(f"{self}: restarts must be >= 0 and period_s > 0")


class ChildSpec(Struct, frozen=True, kw_only=True):
    """One child. Not ready within `start_timeout_s`, or alive `shutdown_timeout_s` after a stop: killed.

    `on_demand`: it stays stopped until `start_child`. `spent`: what follows when the budget is; None: as its supervisor
    has it for all.
    """

    name: str
    restart: Restart = Restart.PERMANENT
    start_timeout_s: float = 10.0
    shutdown_timeout_s: float = 5.0
    significant: bool = False
    on_demand: bool = False
    backoff: Backoff | None = None
    spent: Spent | None = None


class Start(Struct, frozen=True):
    """Start this life of the child, then say `started` when it is ready or `exited` when it ended."""

    name: str
    incarnation: int


class Stop(Struct, frozen=True):
    """Ask the child to end; a `Kill` follows after `timeout_s` if it does not."""

    name: str
    timeout_s: float


class Kill(Struct, frozen=True):
    """End the child and all it started, without asking."""

    name: str


class Schedule(Struct, frozen=True):
    """Call `tick` at this monotonic time. Replaces the time asked for before."""

    at_s: float


class Park(Struct, frozen=True):
    """The child spent its budget; it is tried again at the back-off ceiling. To be shown, not carried out."""

    name: str
    reason: str


class Escalate(Struct, frozen=True):
    """All children are gone and the supervisor fails. `left_behind`: children that outlived their kill."""

    reason: str
    left_behind: tuple[str, ...] = ()


class Finished(Struct, frozen=True):
    """All children are gone, in order."""

    reason: str
    left_behind: tuple[str, ...] = ()


Decision = Start | Stop | Kill | Schedule | Park | Escalate | Finished


class Refused(Exception):
    """What an operator asked cannot be done; `code` says why."""

    def __init__(self, code: SupervisionRefusal, detail: str) -> None:
        super().__init__(detail)
        self.code = code


@dataclass
class _Child:
    spec: ChildSpec
    state: ChildState = ChildState.STOPPED
    incarnation: int = 0
    then: ChildState | None = None  # what it becomes once gone, when its end is wanted
    due_s: float = 0.0  # waiting, parked: not started before
    deadline_s: float | None = None  # starting, stopping, killed: the wait ends here
    killed: bool = False
    ready_s: float | None = None
    failures: int = 0  # in a row
    restarts: int = 0
    window: deque[float] = field(default_factory=deque)
    last_exit: str = ""

    @property
    def alive(self) -> bool:
        return self.state in _ALIVE


class Supervision:
    """Children in start order, and what to do next. Every event returns the decisions that follow from it."""

    def __init__(
        self,
        children: Iterable[ChildSpec] = (),
        *,
        random: Callable[[], float],
        strategy: Strategy = Strategy.ONE_FOR_ONE,
        intensity: Intensity | None = None,
        backoff: Backoff | None = None,
        spent: Spent = Spent.ESCALATE,
        auto_shutdown: AutoShutdown = AutoShutdown.NEVER,
    ) -> None:
        self._random = random
        self._strategy = strategy
        self._intensity = intensity or Intensity()
        self._backoff = backoff or Backoff()
        self._spent = spent
        self._auto_shutdown = auto_shutdown
        self._children: dict[str, _Child] = {}
        self._window: deque[float] = deque()
        self._closing: str | None = None
        self._failed = False
        self._done = False
        self._left_behind: list[str] = []
        self._scheduled_s: float | None = None
        self._out: list[Decision] = []
        for spec in children:
            self._enrol(spec)

    # Events

    def start_all(self, now_s: float) -> list[Decision]:
        """Start every child that is stopped and not `on_demand`, in order."""
        for child in self._children.values():
            if child.state is ChildState.STOPPED and not child.spec.on_demand and self._closing is None:
                child.state, child.due_s = ChildState.WAITING, now_s
        return self._advance(now_s)

    def started(self, name: str, incarnation: int, now_s: float) -> list[Decision]:
        """This life of the child is ready. Ignored when that life is over, being stopped or killed."""
        child = self._children.get(name)
        if child and child.incarnation == incarnation and child.state is ChildState.STARTING and not child.killed:
            child.state, child.ready_s, child.deadline_s = ChildState.RUNNING, now_s, None
        return self._advance(now_s)

    def exited(self, name: str, incarnation: int, now_s: float, reason: str, *, normal: bool = False) -> list[Decision]:
        """This life of the child is over, or could not begin. `normal`: it ended because its work was done."""
        child = self._children.get(name)
        if child is None or not child.alive or child.incarnation != incarnation:
            return self._advance(now_s)
        ran = child.state is ChildState.RUNNING
        if child.then is None and not ran:
            late = f"not ready within {child.spec.start_timeout_s:g} s, killed: "
            reason = (late if child.killed else "before it was ready: ") + reason
        child.last_exit = reason
        child.deadline_s = None
        if child.then is not None:
            child.state, child.then = child.then, None
        elif child.spec.restart is Restart.TEMPORARY or (child.spec.restart is Restart.TRANSIENT and normal and ran):
            child.state = ChildState.FINISHED
            self._shut_down_if_work_is_done(child)
        else:
            self._fail(child, now_s)
        return self._advance(now_s)

    def tick(self, now_s: float) -> list[Decision]:
        """Time passed: end the waits that are over."""
        self._scheduled_s = None  # the timer is used up, even if it came early
        for child in self._children.values():
            if child.alive and child.deadline_s is not None and now_s >= child.deadline_s:
                self._overdue(child, now_s)
        return self._advance(now_s)

    def shutdown(self, now_s: float, reason: str = "asked to") -> list[Decision]:
        """Stop all children in reverse start order, each within its timeout, then `Finished`."""
        self._close(reason, failed=False)
        return self._advance(now_s)

    # An operator's verbs: these win over the rules. They raise `Refused`.

    def add_child(self, spec: ChildSpec, now_s: float) -> list[Decision]:
        """Start one more child, last in the order."""
        self._refuse_when_closing()
        self._enrol(spec)
        return self.start_child(spec.name, now_s)

    def stop_child(self, name: str, now_s: float) -> list[Decision]:
        """Stop a child for good: nothing but `start_child` brings it back. In a shutdown it goes in its turn."""
        child = self._find(name)
        if not child.alive:
            child.state = ChildState.STOPPED
        elif child.state is not ChildState.STOPPING and self._closing is None:
            self._stop(child, now_s)
        if child.alive:
            child.then = ChildState.STOPPED
        return self._advance(now_s)

    def start_child(self, name: str, now_s: float) -> list[Decision]:
        """Start a child that is not alive, its history cleared; one that is stopping comes back when it is gone."""
        self._refuse_when_closing()
        child = self._find(name)
        child.failures, child.window = 0, deque()
        child.due_s = now_s
        if child.state is ChildState.STOPPING:
            child.then = ChildState.WAITING
        elif not child.alive:
            child.state = ChildState.WAITING
        return self._advance(now_s)

    def forget_child(self, name: str) -> None:
        """Take a child that is not alive out of the order."""
        if self._find(name).alive:
            raise Refused(SupervisionRefusal.CHILD_ALIVE, f"child {name!r} is alive: stop it first")
        del self._children[name]

    def view(self, now_s: float) -> SupervisorView:
        """The state as plain data."""
        rows = []
        for child in self._children.values():
            self._forget_old(self._window_of(child), now_s)
            rows.append(
                ChildView(
                    name=child.spec.name,
                    state=child.state,
                    restart=child.spec.restart,
                    incarnation=child.incarnation,
                    restarts=child.restarts,
                    budget_left=max(0, self._intensity.restarts - len(self._window_of(child))),
                    next_attempt_s=max(0.0, child.due_s - now_s) if child.state in _PLANNED else None,
                    last_exit=child.last_exit,
                )
            )
        return SupervisorView(strategy=self._strategy, children=tuple(rows), closing=self._closing or "")

    # Rules

    def _fail(self, child: _Child, now_s: float) -> None:
        backoff = child.spec.backoff or self._backoff
        quiet = child.ready_s is not None and now_s - child.ready_s >= backoff.quiet_s
        child.failures = 1 if quiet else child.failures + 1
        window = self._window_of(child)
        window.append(now_s)
        self._forget_old(window, now_s)
        spent = len(window) > self._intensity.restarts
        why = (
            f"child {child.spec.name!r} spent the budget of {self._intensity.restarts} restarts "
            f"in {self._intensity.period_s:g} s, last: {child.last_exit}"
        )
        if spent and not self._parks(child):
            child.state = ChildState.STOPPED
            self._close(why, failed=True)
            return
        if spent:
            self._out.append(Park(child.spec.name, why))
        child.state = ChildState.PARKED if spent else ChildState.WAITING
        child.restarts += 1
        delay_s = backoff.ceiling_s if spent else backoff.delay_s(child.failures, self._random())
        for one in self._affected(child):
            one.due_s = now_s + delay_s
            if one.alive and one.then is None:
                temporary = one.spec.restart is Restart.TEMPORARY
                one.then = ChildState.FINISHED if temporary else ChildState.WAITING

    def _affected(self, child: _Child) -> list[_Child]:
        """Who goes down with `child`, itself included."""
        order = list(self._children.values())
        match self._strategy:
            case Strategy.ONE_FOR_ONE:
                return [child]
            case Strategy.ONE_FOR_ALL:
                return order
            case Strategy.REST_FOR_ONE:
                return order[order.index(child) :]

    def _advance(self, now_s: float) -> list[Decision]:
        """Do what can be done now: the next stop of those to go, or the next starts, or the end."""
        order = list(self._children.values())
        going = [child for child in order if child.alive and child.then is not None]
        if going and not any(child.state is ChildState.STOPPING for child in order):
            self._stop(going[-1], now_s)
        if self._closing is not None:
            if not any(child.alive for child in order) and not self._done:
                self._done = True
                end = Escalate if self._failed else Finished
                self._out.append(end(self._closing, tuple(self._left_behind)))
        elif self._strategy is Strategy.ONE_FOR_ONE:
            for child in order:
                self._start_if_due(child, now_s)
        elif not going:
            for child in order:
                self._start_if_due(child, now_s)
                if child.state in (ChildState.STARTING, ChildState.WAITING):
                    break
        return self._decided(now_s)

    def _start_if_due(self, child: _Child, now_s: float) -> None:
        if child.state in _PLANNED and now_s >= child.due_s:
            child.state, child.killed, child.ready_s = ChildState.STARTING, False, None
            child.incarnation += 1
            child.deadline_s = now_s + child.spec.start_timeout_s
            self._out.append(Start(child.spec.name, child.incarnation))

    def _stop(self, child: _Child, now_s: float) -> None:
        child.state, child.killed = ChildState.STOPPING, False
        child.deadline_s = now_s + child.spec.shutdown_timeout_s
        self._out.append(Stop(child.spec.name, child.spec.shutdown_timeout_s))

    def _overdue(self, child: _Child, now_s: float) -> None:
        name = child.spec.name
        if child.killed and self._closing is not None:
            child.state, child.last_exit = ChildState.STOPPED, f"not gone {KILL_PATIENCE_S:g} s after its kill"
            self._left_behind.append(name)
            return
        if child.killed and not self._parks(child):
            self._close(f"child {name!r} is not gone {KILL_PATIENCE_S:g} s after its kill", failed=True)
        child.killed, child.deadline_s = True, now_s + KILL_PATIENCE_S
        self._out.append(Kill(name))

    def _close(self, reason: str, *, failed: bool) -> None:
        if self._closing is not None:
            return
        self._closing, self._failed = reason, failed
        for child in self._children.values():
            if child.alive:
                child.then = ChildState.STOPPED
            elif child.state in _PLANNED:
                child.state = ChildState.STOPPED

    def _shut_down_if_work_is_done(self, child: _Child) -> None:
        if not child.spec.significant or self._auto_shutdown is AutoShutdown.NEVER:
            return
        rest = [one for one in self._children.values() if one.spec.significant and one.state is not ChildState.FINISHED]
        if self._auto_shutdown is AutoShutdown.ANY_SIGNIFICANT or not rest:
            self._close(f"significant child {child.spec.name!r} finished: {child.last_exit}", failed=False)

    # Bookkeeping

    def _enrol(self, spec: ChildSpec) -> None:
        if spec.name in self._children:
            raise Refused(SupervisionRefusal.DUPLICATE_CHILD, f"there is a child {spec.name!r} already")
        if (spec.spent or self._spent) is Spent.PARK and self._strategy is not Strategy.ONE_FOR_ONE:
            raise ValueError(f"{self._strategy} children come back together: parking one needs one_for_one")
        if spec.significant and (spec.restart is Restart.PERMANENT or self._auto_shutdown is AutoShutdown.NEVER):
            raise ValueError(f"{spec.name!r}: only a transient or temporary child under auto_shutdown is significant")
        self._children[spec.name] = _Child(spec)

    def _find(self, name: str) -> _Child:
        if name not in self._children:
            known = ", ".join(self._children) or "none"
            raise Refused(SupervisionRefusal.UNKNOWN_CHILD, f"no child {name!r}; children: {known}")
        return self._children[name]

    def _refuse_when_closing(self) -> None:
        if self._closing is not None:
            raise Refused(SupervisionRefusal.SHUTTING_DOWN, f"nothing is started any more: {self._closing}")

    def _window_of(self, child: _Child) -> deque[float]:
        return child.window if self._parks(child) else self._window

    def _parks(self, child: _Child) -> bool:
        return (child.spec.spent or self._spent) is Spent.PARK

    def _forget_old(self, window: deque[float], now_s: float) -> None:
        while window and now_s - window[0] > self._intensity.period_s:
            window.popleft()

    def _decided(self, now_s: float) -> list[Decision]:
        waits = [child.deadline_s for child in self._children.values() if child.alive and child.deadline_s is not None]
        waits += [child.due_s for child in self._children.values() if child.state in _PLANNED and child.due_s > now_s]
        next_s = min(waits, default=None)
        if next_s != self._scheduled_s and next_s is not None and not self._done:
            self._out.append(Schedule(next_s))
        self._scheduled_s = next_s
        out, self._out = self._out, []
        return out


__all__ = [
    "FIRST_BACKOFF_MAX_S", "KILL_PATIENCE_S", "Backoff", "ChildSpec", "Decision", "Escalate", "Finished", "Intensity",
    "Kill", "Park", "Refused", "Schedule", "Start", "Stop", "Supervision",
]  # fmt: skip
