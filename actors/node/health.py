"""Is it well, and what follows if it is not (P 8.5, G 5.10): pure judgements about one instance."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from actors.node.lifecycle import BudgetSpent, Life, RestartAt, RestartNow, RestartPolicy, decide_restart
from messages.control import AdapterState, LifeState, RunStatus
from messages.ports import RunEvidence


class Verdict(StrEnum):
    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class Judgement:
    verdict: Verdict
    why: str = ""


class NextAct(StrEnum):
    NOTHING = "nothing"
    RESTART = "restart"
    WAIT = "wait"
    GIVE_UP = "give_up"


@dataclass(frozen=True, slots=True)
class Plan:
    """Steps to take, each with its reason, then what to do; `at_ms` is when to look again (`wait`)."""

    steps: tuple[tuple[LifeState, str], ...] = ()
    act: NextAct = NextAct.NOTHING
    at_ms: int = 0
    attempt: int = 0


def describe_end(evidence: RunEvidence | None) -> str:
    if evidence is None:
        return "it is gone and left no record of its end"
    if evidence.signal is not None:
        return f"killed by signal {evidence.signal}"
    return f"exited with code {evidence.exit_code}"


def judge(status: RunStatus, *, once: bool) -> Judgement:
    """The verdict on a status; `detail` says in words how a run ended."""
    match status.state:
        case AdapterState.RUNNING | AdapterState.LOADED:
            return Judgement(Verdict.HEALTHY)
        case AdapterState.DEGRADED | AdapterState.UNKNOWN:
            return Judgement(Verdict.UNHEALTHY, status.detail or f"its state is {status.state.value}")
        case AdapterState.EXITED:
            why = status.detail or f"exited with code {status.exit_code}"
            finished = once and status.exit_code == 0
            return Judgement(Verdict.FINISHED if finished else Verdict.UNHEALTHY, why)


def plan(life: Life, judgement: Judgement, policy: RestartPolicy, now_ms: int) -> Plan:
    """What follows for an instance that is meant to run and is in a live state. `now_ms`: the restarts' clock.

    The end of a process is certain, so a single one counts: there is no number of misses to wait for.
    """
    match judgement.verdict:
        case Verdict.HEALTHY:
            recovered = () if life.state is LifeState.RUNNING else ((LifeState.RUNNING, "health recovered"),)
            return Plan(recovered)
        case Verdict.FINISHED:
            return Plan((*_back_to_running(life), (LifeState.FINISHED, judgement.why)))
        case Verdict.UNHEALTHY:
            unhealthy = () if life.state is LifeState.UNHEALTHY else ((LifeState.UNHEALTHY, judgement.why),)
            match decide_restart(life, policy, now_ms):
                case RestartAt(at_ms=at_ms):
                    return Plan(unhealthy, NextAct.WAIT, at_ms)
                case RestartNow(attempt=attempt):
                    reason = f"restart {attempt}/{policy.max_restarts}: {judgement.why}"
                    return Plan((*unhealthy, (LifeState.RESTARTING, reason)), NextAct.RESTART, now_ms, attempt)
                case BudgetSpent():
                    reason = f"restart budget spent ({policy.max_restarts} restarts): {judgement.why}"
                    return Plan((*unhealthy, (LifeState.FAILED, reason)), NextAct.GIVE_UP)


def _back_to_running(life: Life) -> tuple[tuple[LifeState, str], ...]:
    """Finishing is a step from `running` only."""
    return () if life.state is LifeState.RUNNING else ((LifeState.RUNNING, "its run came to an end"),)


__all__ = ["Judgement", "NextAct", "Plan", "Verdict", "describe_end", "judge", "plan"]
