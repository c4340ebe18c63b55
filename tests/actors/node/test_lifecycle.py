"""The sixteen states, the restart decision and the judgements, pure (P 10.11, G 7.14 L1 to L3)."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.node.budget import RefusalBudget
from actors.node.health import Judgement, NextAct, Verdict, judge, plan
from actors.node.lifecycle import (
    BudgetSpent,
    IllegalStep,
    Life,
    RestartAt,
    RestartNow,
    RestartPolicy,
    decide_restart,
    may_step,
    record_restart,
    step,
)
from messages.control import AdapterState, LifeState, RunStatus

TABLE = """
requested    placed failed
placed       fetching loaded running failed
fetching     verified failed
verified     loaded failed
loaded       running unloaded failed
running      unhealthy stopping stopped finished failed unloaded
unhealthy    running restarting stopping failed unloaded
restarting   running unhealthy failed stopping
stopping     stopped unloaded failed
stopped      running unloaded failed
finished     running unloaded
failed       running unloaded
lost         running rescheduled unloaded failed
rescheduled  unloaded
revoked      unloaded failed
unloaded
"""
LEGAL = {(LifeState(row.split()[0]), LifeState(to)) for row in TABLE.strip().splitlines() for to in row.split()[1:]}
EVERYTHING = [(origin, to) for origin in LifeState for to in LifeState]


@pytest.mark.parametrize(("origin", "to"), EVERYTHING, ids=[f"{a.value}-{b.value}" for a, b in EVERYTHING])
def test_every_step_is_legal_exactly_where_the_table_says_so(origin, to):
    anywhere = to in (LifeState.REVOKED, LifeState.LOST) and origin is not to
    barred = origin in (LifeState.UNLOADED, LifeState.RESCHEDULED) or (origin, to) == (
        LifeState.REVOKED,
        LifeState.LOST,
    )
    assert may_step(origin, to) == ((origin, to) in LEGAL or (anywhere and not barred))


def test_there_are_sixteen_states():
    assert len(LifeState) == 16


def test_a_step_tells_the_time_and_running_clears_the_misses():
    life = step(Life(state=LifeState.UNHEALTHY, since_ms=1, misses=2, restarts=(5,)), LifeState.RUNNING, 9)
    assert life == Life(state=LifeState.RUNNING, since_ms=9, misses=0, restarts=(5,))


def test_an_illegal_step_names_both_states_and_changes_nothing():
    life = Life(state=LifeState.STOPPED, since_ms=1)
    with pytest.raises(IllegalStep, match=r"stopped.*unhealthy"):
        step(life, LifeState.UNHEALTHY, 2)
    assert life == Life(state=LifeState.STOPPED, since_ms=1)


def lived(*restarts):
    return Life(state=LifeState.UNHEALTHY, since_ms=0, restarts=restarts)


POLICY = RestartPolicy(max_restarts=3, window_ms=10_000, first_ms=100, ceiling_ms=250)


@pytest.mark.parametrize(
    ("life", "now_ms", "decision"),
    [
        (lived(), 0, RestartNow(1)),
        (lived(0), 50, RestartAt(100)),
        (lived(0), 100, RestartNow(2)),
        (lived(0, 100), 150, RestartAt(300)),
        (lived(0, 100), 300, RestartNow(3)),
        (lived(0, 100, 300), 400, BudgetSpent()),
        (lived(0, 100, 300), 10_000, RestartNow(3)),
        (lived(0), 10_000, RestartNow(1)),
    ],
)
def test_restarts_wait_longer_each_time_until_the_budget_is_spent(life, now_ms, decision):
    assert decide_restart(life, POLICY, now_ms) == decision


def test_the_pause_never_exceeds_the_ceiling():
    policy = RestartPolicy(max_restarts=4, window_ms=10_000, first_ms=100, ceiling_ms=250)
    assert decide_restart(lived(0, 100, 300), policy, 301) == RestartAt(550)


def test_a_budget_of_none_is_spent_at_once():
    assert decide_restart(lived(), RestartPolicy(max_restarts=0), 0) == BudgetSpent()


@settings(max_examples=60)
@given(gaps=st.lists(st.integers(0, 400_000), max_size=30))
def test_no_window_ever_holds_more_restarts_than_the_policy_allows(gaps):
    policy, life, now = RestartPolicy(), lived(), 0
    times = []
    for gap in gaps:
        now += gap
        if isinstance(decide_restart(life, policy, now), RestartNow):
            life = record_restart(life, policy, now)
            times.append(now)
    for at in times:
        assert sum(at - policy.window_ms < other <= at for other in times) <= policy.max_restarts


def status(state, code=None):
    return RunStatus(state=state, exit_code=code)


@pytest.mark.parametrize(
    ("told", "once", "verdict"),
    [
        (status(AdapterState.RUNNING), False, Verdict.HEALTHY),
        (status(AdapterState.LOADED), False, Verdict.HEALTHY),
        (status(AdapterState.DEGRADED), False, Verdict.UNHEALTHY),
        (status(AdapterState.UNKNOWN), True, Verdict.UNHEALTHY),
        (status(AdapterState.EXITED, 0), True, Verdict.FINISHED),
        (status(AdapterState.EXITED, 0), False, Verdict.UNHEALTHY),
        (status(AdapterState.EXITED, 3), True, Verdict.UNHEALTHY),
        (status(AdapterState.EXITED), True, Verdict.UNHEALTHY),
    ],
)
def test_health_is_judged_by_state_exit_code_and_mode(told, once, verdict):
    assert judge(told, once=once).verdict is verdict


def test_a_plan_is_made_of_legal_steps_only():
    for state in (LifeState.RUNNING, LifeState.UNHEALTHY, LifeState.RESTARTING):
        for verdict in Verdict:
            for restarts in ((), (90,), (10, 20, 90)):
                life = Life(state=state, since_ms=0, restarts=restarts)
                planned = plan(life, Judgement(verdict, "why"), POLICY, 100)
                for to, _ in planned.steps:
                    life = step(life, to, 100)
                if verdict is Verdict.FINISHED:
                    assert life.state is LifeState.FINISHED
                if planned.act is NextAct.GIVE_UP:
                    assert life.state is LifeState.FAILED


def test_a_refusal_budget_counts_what_it_suppresses():
    budget = RefusalBudget(limit=2, window_s=0.06)
    assert [budget.take(0.0), budget.take(0.0)] == [0, 0]
    assert [budget.take(0.01) for _ in range(5)] == [None] * 5
    assert [budget.take(0.061), budget.take(0.062), budget.take(0.063)] == [5, 0, None]
