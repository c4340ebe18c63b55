"""The life of an instance: sixteen states, their legal steps, when a failed run is started again (P 8.1, G 5.12).

Pure and without a clock: both sides of the cluster use it. `since_ms` is Unix time for people; restarts are counted
on a clock that the wall cannot move (the caller's, milliseconds), so a wrong date neither spends nor refills a budget.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from messages.base import Record
from messages.control import LifeState

LIVE = frozenset({LifeState.RUNNING, LifeState.UNHEALTHY, LifeState.RESTARTING})
"""A process runs, or shall run again by itself."""

MAX_EXPONENT = 20

_S = LifeState
_STEPS: dict[LifeState, frozenset[LifeState]] = {
    _S.REQUESTED: frozenset({_S.PLACED, _S.FAILED}),
    _S.PLACED: frozenset({_S.FETCHING, _S.LOADED, _S.RUNNING, _S.FAILED}),
    _S.FETCHING: frozenset({_S.VERIFIED, _S.FAILED}),
    _S.VERIFIED: frozenset({_S.LOADED, _S.FAILED}),
    _S.LOADED: frozenset({_S.RUNNING, _S.UNLOADED, _S.FAILED}),
    _S.RUNNING: frozenset({_S.UNHEALTHY, _S.STOPPING, _S.STOPPED, _S.FINISHED, _S.FAILED, _S.UNLOADED}),
    _S.UNHEALTHY: frozenset({_S.RUNNING, _S.RESTARTING, _S.STOPPING, _S.FAILED, _S.UNLOADED}),
    _S.RESTARTING: frozenset({_S.RUNNING, _S.UNHEALTHY, _S.FAILED, _S.STOPPING}),
    _S.STOPPING: frozenset({_S.STOPPED, _S.UNLOADED, _S.FAILED}),
    _S.STOPPED: frozenset({_S.RUNNING, _S.UNLOADED, _S.FAILED}),
    _S.FINISHED: frozenset({_S.RUNNING, _S.UNLOADED}),
    _S.FAILED: frozenset({_S.RUNNING, _S.UNLOADED}),
    _S.LOST: frozenset({_S.RUNNING, _S.RESCHEDULED, _S.UNLOADED, _S.FAILED}),
    _S.RESCHEDULED: frozenset({_S.UNLOADED}),
    _S.REVOKED: frozenset({_S.UNLOADED, _S.FAILED}),
    _S.UNLOADED: frozenset(),
}
_ENDED_FOR_GOOD = frozenset({_S.UNLOADED, _S.RESCHEDULED})


class IllegalStep(ValueError):
    """A step that the table does not have. Nothing was changed."""

    def __init__(self, origin: LifeState, to: LifeState) -> None:
        super().__init__(f"an instance that is {origin.value} does not become {to.value}")
        self.origin = origin
        self.to = to


class Life(Record, frozen=True):
    """Where an instance is and since when. `restarts`: when it was restarted, within the policy's window."""

    state: LifeState
    since_ms: int
    misses: int = 0
    restarts: tuple[int, ...] = ()


def may_step(origin: LifeState, to: LifeState) -> bool:
    if origin is to:
        return False
    if to in (_S.REVOKED, _S.LOST):
        return origin not in _ENDED_FOR_GOOD and not (origin is _S.REVOKED and to is _S.LOST)
    return to in _STEPS[origin]


def step(life: Life, to: LifeState, wall_ms: int) -> Life:
    """The life after a legal step; entering `running` resets the misses. Raises `IllegalStep`."""
    if not may_step(life.state, to):
        raise IllegalStep(life.state, to)
    misses = 0 if to is LifeState.RUNNING else life.misses
    return msgspec.structs.replace(life, state=to, since_ms=wall_ms, misses=misses)


class RestartPolicy(Record, frozen=True):
    """At most `max_restarts` within `window_ms`; pauses double from `first_ms` up to `ceiling_ms`."""

    max_restarts: int = 3
    window_ms: int = 600_000
    first_ms: int = 1_000
    ceiling_ms: int = 30_000


@dataclass(frozen=True, slots=True)
class RestartNow:
    """`attempt` counts from 1."""

    attempt: int


@dataclass(frozen=True, slots=True)
class RestartAt:
    at_ms: int


@dataclass(frozen=True, slots=True)
class BudgetSpent:
    pass


RestartDecision = RestartNow | RestartAt | BudgetSpent


def decide_restart(life: Life, policy: RestartPolicy, now_ms: int) -> RestartDecision:
    """The first restart is immediate; the pause after the nth is `first_ms * 2^(n-1)`, at most the ceiling."""
    recent = _recent(life, policy, now_ms)
    if len(recent) >= policy.max_restarts:
        return BudgetSpent()
    if recent:
        pause_ms = min(policy.first_ms * 2 ** min(len(recent) - 1, MAX_EXPONENT), policy.ceiling_ms)
        if recent[-1] + pause_ms > now_ms:
            return RestartAt(recent[-1] + pause_ms)
    return RestartNow(len(recent) + 1)


def record_restart(life: Life, policy: RestartPolicy, now_ms: int) -> Life:
    return msgspec.structs.replace(life, restarts=(*_recent(life, policy, now_ms), now_ms))


def _recent(life: Life, policy: RestartPolicy, now_ms: int) -> tuple[int, ...]:
    return tuple(at_ms for at_ms in life.restarts if now_ms - at_ms < policy.window_ms)


__all__ = [
    "LIVE", "BudgetSpent", "IllegalStep", "Life", "RestartAt", "RestartDecision", "RestartNow", "RestartPolicy",
    "decide_restart", "may_step", "record_restart", "step",
]  # fmt: skip
