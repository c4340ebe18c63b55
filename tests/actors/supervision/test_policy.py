"""The restart rules, in virtual time: what each strategy, restart type and budget decides."""

from __future__ import annotations

import pytest

from actors.supervision.policy import (
    KILL_PATIENCE_S,
    Backoff,
    ChildSpec,
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
from messages.supervision import AutoShutdown, ChildState, Restart, Spent, Strategy, SupervisionRefusal

PLAIN = Backoff(first_s=0.1, factor=2, ceiling_s=8, jitter=0, quiet_s=20)


def supervision(*children, restart=Restart.PERMANENT, **options):
    options = {"random": lambda: 0.0, "backoff": PLAIN, "intensity": Intensity(restarts=3, period_s=10)} | options
    specs = [one if isinstance(one, ChildSpec) else ChildSpec(name=one, restart=restart) for one in children]
    return Supervision(specs, **options)


def acts(decisions):
    return [one for one in decisions if not isinstance(one, Schedule)]


def up(policy, now=0.0):
    """Start all and say ready until nobody is left to start."""
    pending = acts(policy.start_all(now))
    seen = list(pending)
    while pending:
        start = pending.pop(0)
        more = acts(policy.started(start.name, start.incarnation, now))
        seen += more
        pending += more
    return seen


def states(policy, now=0.0):
    return {row.name: row.state.value for row in policy.view(now).children}


def test_one_for_one_starts_all_side_by_side_the_others_one_after_another():
    assert acts(supervision("a", "b").start_all(0)) == [Start("a", 1), Start("b", 1)]
    for strategy in (Strategy.ONE_FOR_ALL, Strategy.REST_FOR_ONE):
        policy = supervision("a", "b", strategy=strategy)
        assert acts(policy.start_all(0)) == [Start("a", 1)]
        assert acts(policy.started("a", 1, 0.5)) == [Start("b", 1)]


@pytest.mark.parametrize(
    ("restart", "normal", "comes_back"),
    [
        (Restart.PERMANENT, True, True),
        (Restart.PERMANENT, False, True),
        (Restart.TRANSIENT, True, False),
        (Restart.TRANSIENT, False, True),
        (Restart.TEMPORARY, True, False),
        (Restart.TEMPORARY, False, False),
    ],
)
def test_restart_type_decides_which_ends_are_followed_by_a_restart(restart, normal, comes_back):
    policy = supervision("a", restart=restart)
    up(policy)
    decided = policy.exited("a", 1, 1.0, "gone", normal=normal)
    assert decided == ([Schedule(1.1)] if comes_back else [])
    assert acts(policy.tick(1.1)) == ([Start("a", 2)] if comes_back else [])
    assert states(policy)["a"] == ("starting" if comes_back else "finished")


@pytest.mark.parametrize(
    ("strategy", "stopped", "started"),
    [
        (Strategy.ONE_FOR_ONE, [], ["b"]),
        (Strategy.ONE_FOR_ALL, ["d", "c", "a"], ["a", "b", "c", "d"]),
        (Strategy.REST_FOR_ONE, ["d", "c"], ["b", "c", "d"]),
    ],
)
def test_strategy_decides_who_goes_down_in_reverse_and_comes_back_in_order(strategy, stopped, started):
    policy = supervision("a", "b", "c", "d", strategy=strategy)
    up(policy)
    seen, pending = [], acts(policy.exited("b", 1, 1.0, "crashed"))
    while pending:
        stop = pending.pop(0)
        seen.append(stop.name)
        pending += acts(policy.exited(stop.name, 1, 1.05, "stopped"))
    assert seen == stopped
    again, pending = [], acts(policy.tick(1.1))
    while pending:
        start = pending.pop(0)
        again.append(start.name)
        pending += acts(policy.started(start.name, start.incarnation, 1.2))
    assert again == started
    assert set(states(policy).values()) == {"running"}


def test_a_group_does_not_start_before_the_last_of_it_is_gone():
    policy = supervision("a", "b", strategy=Strategy.ONE_FOR_ALL)
    up(policy)
    assert acts(policy.exited("a", 1, 1.0, "crashed")) == [Stop("b", 5.0)]
    assert acts(policy.tick(2.0)) == []
    assert acts(policy.exited("b", 1, 3.0, "stopped")) == [Start("a", 2)]


def test_a_temporary_child_stopped_with_its_group_is_not_started_again():
    policy = supervision(ChildSpec(name="a"), ChildSpec(name="b", restart=Restart.TEMPORARY), strategy="one_for_all")
    up(policy)
    policy.exited("a", 1, 1.0, "crashed")
    policy.exited("b", 1, 1.0, "stopped")
    assert acts(policy.tick(1.1)) == [Start("a", 2)]
    assert acts(policy.started("a", 2, 1.2)) == []
    assert states(policy)["b"] == "finished"


def test_backoff_doubles_to_its_ceiling_and_a_quiet_time_resets_it():
    policy = supervision("a", intensity=Intensity(restarts=100, period_s=1000))
    up(policy)
    now, waits = 1.0, []
    for incarnation in range(1, 10):
        (schedule,) = policy.exited("a", incarnation, now, "crashed")
        waits.append(round(schedule.at_s - now, 6))
        now = schedule.at_s
        assert acts(policy.tick(now)) == [Start("a", incarnation + 1)]
        policy.started("a", incarnation + 1, now)
    assert waits == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 8, 8]
    assert policy.exited("a", 10, now + 19.9, "crashed") == [Schedule(now + 19.9 + 8)]
    policy.tick(now + 28)
    policy.started("a", 11, now + 30)
    assert policy.exited("a", 11, now + 50, "crashed") == [Schedule(now + 50 + 0.1)]


def test_jitter_shortens_a_wait_and_never_lengthens_it():
    backoff = Backoff(first_s=0.1, jitter=0.5, ceiling_s=10)
    assert backoff.delay_s(1, 0.0) == pytest.approx(0.1)
    assert backoff.delay_s(1, 0.999) == pytest.approx(0.05, rel=0.01)
    assert backoff.delay_s(10_000, 0.0) == 10


@pytest.mark.parametrize("bad", [{"first_s": 0.2}, {"first_s": 0}, {"factor": 0.5}, {"ceiling_s": 0.01}, {"jitter": 1}])
def test_a_backoff_that_waits_too_long_at_first_or_never_is_refused(bad):
    with pytest.raises(ValueError, match="must be"):
        Backoff(**bad)


def test_a_failed_start_counts_and_waits_like_a_crash():
    policy = supervision("a")
    policy.start_all(0.0)
    now = 0.0
    for incarnation, wait in ((1, 0.1), (2, 0.2), (3, 0.4)):
        assert acts(policy.exited("a", incarnation, now, "no such file")) == []
        now += wait
        assert acts(policy.tick(now)) == [Start("a", incarnation + 1)]
    (end,) = acts(policy.exited("a", 4, now, "no such file"))
    assert isinstance(end, Escalate)
    assert "before it was ready: no such file" in end.reason


def test_a_transient_child_that_ends_normally_before_it_was_ready_failed_to_start():
    policy = supervision("a", restart=Restart.TRANSIENT)
    policy.start_all(0)
    policy.exited("a", 1, 0.0, "exit code 0", normal=True)
    assert states(policy)["a"] == "waiting"


def test_a_child_that_is_never_ready_is_killed_at_its_deadline_and_tried_again():
    policy = supervision(ChildSpec(name="a", start_timeout_s=4))
    assert policy.start_all(0) == [Start("a", 1), Schedule(4)]
    assert policy.tick(4) == [Kill("a"), Schedule(4 + KILL_PATIENCE_S)]
    assert policy.started("a", 1, 4.1) == []  # too late
    assert policy.exited("a", 1, 4.2, "signal 9") == [Schedule(pytest.approx(4.3))]
    assert policy.view(4.2).children[0].last_exit == "not ready within 4 s, killed: signal 9"


@pytest.mark.parametrize(("last", "spent"), [(10.0, True), (9.999, True), (10.001, False), (10.999, False)], ids=str)
def test_a_failure_counts_until_it_is_more_than_the_period_old(last, spent):
    policy = supervision("a")
    up(policy)
    for incarnation, now in enumerate((0.0, 5.0, 8.0), 1):
        policy.exited("a", incarnation, now, "crashed")
        policy.tick(now + 1)
        policy.started("a", incarnation + 1, now + 1)
    decided = acts(policy.exited("a", 4, last, "crashed"))
    assert [type(one) for one in decided] == ([Escalate] if spent else [])


@pytest.mark.parametrize(("gap", "survives"), [(10.0, False), (10.001, True)])
def test_crashes_one_period_apart_spend_a_budget_of_one_and_further_apart_never_do(gap, survives):
    policy = supervision("a", intensity=Intensity(restarts=1, period_s=10))
    up(policy)
    ended = []
    for n in range(1, 4):
        ended += acts(policy.exited("a", n, n * gap, "crashed"))
        policy.tick(n * gap + 1)
        policy.started("a", n + 1, n * gap + 1)
    assert (ended == []) is survives


def test_a_spent_budget_stops_the_siblings_in_reverse_then_escalates_once():
    policy = supervision("a", "b", "c", intensity=Intensity(restarts=0, period_s=10))
    up(policy)
    assert acts(policy.exited("b", 1, 1, "crashed")) == [Stop("c", 5.0)]
    assert acts(policy.exited("c", 1, 2, "stopped")) == [Stop("a", 5.0)]
    (end,) = policy.exited("a", 1, 3, "stopped")
    assert end == Escalate("child 'b' spent the budget of 0 restarts in 10 s, last: crashed")
    assert policy.tick(99) == []
    assert policy.shutdown(100) == []


def test_a_parked_child_is_tried_at_the_ceiling_and_its_siblings_stay():
    policy = supervision("a", "b", spent=Spent.PARK, intensity=Intensity(restarts=1, period_s=10))
    up(policy)
    policy.exited("a", 1, 1.0, "crashed")
    policy.tick(1.1)
    park, schedule = policy.exited("a", 2, 1.2, "crashed")
    assert isinstance(park, Park)
    assert schedule == Schedule(1.2 + 8)
    assert states(policy) == {"a": "parked", "b": "running"}
    assert policy.view(2.2).children[0].next_attempt_s == pytest.approx(7)
    assert acts(policy.tick(9.2)) == [Start("a", 3)]
    policy.started("a", 3, 9.3)
    assert states(policy) == {"a": "running", "b": "running"}


def test_the_budgets_of_parkable_children_are_their_own():
    policy = supervision("a", "b", spent=Spent.PARK, intensity=Intensity(restarts=1, period_s=10))
    up(policy)
    for name in ("a", "b"):
        policy.exited(name, 1, 1.0, "crashed")
    assert states(policy) == {"a": "waiting", "b": "waiting"}


def test_a_child_may_have_a_backoff_ceiling_of_its_own():
    spec = ChildSpec(name="controller", backoff=Backoff(ceiling_s=2, jitter=0))
    policy = supervision(spec, spent=Spent.PARK, intensity=Intensity(restarts=0, period_s=10))
    up(policy)
    assert policy.exited("controller", 1, 5.0, "crashed")[-1] == Schedule(7.0)


def test_one_child_may_be_parked_where_the_failures_of_others_escalate():
    process = ChildSpec(name="shed.edges", spent=Spent.PARK, backoff=Backoff(ceiling_s=2, jitter=0))
    policy = supervision("agent", "probe", process, intensity=Intensity(restarts=1, period_s=10))
    up(policy)
    for life in (1, 2):
        policy.exited("shed.edges", life, life, "crashed")
        policy.tick(life + 0.9)
    assert states(policy) == {"agent": "running", "probe": "running", "shed.edges": "parked"}
    assert policy.exited("agent", 1, 3.0, "crashed")[-1] == Schedule(3.1), "its own budget is untouched"
    assert acts(policy.tick(3.1)) == [Start("agent", 2)]
    policy.started("agent", 2, 3.2)
    assert acts(policy.tick(4.0)) == [Start("shed.edges", 3)]
    policy.exited("probe", 1, 6.0, "crashed")
    assert states(policy)["shed.edges"] == "stopping", "that of the others is one, and ends all"


def test_a_parkable_process_that_outlives_its_kill_does_not_end_its_siblings():
    policy = supervision("agent", ChildSpec(name="shed.edges", spent=Spent.PARK, shutdown_timeout_s=2))
    up(policy)
    policy.stop_child("shed.edges", 1)
    assert acts(policy.tick(3)) == acts(policy.tick(3 + KILL_PATIENCE_S)) == [Kill("shed.edges")]
    assert states(policy) == {"agent": "running", "shed.edges": "stopping"}


def test_parking_needs_children_that_do_not_come_back_together():
    with pytest.raises(ValueError, match="one_for_one"):
        supervision("a", strategy=Strategy.ONE_FOR_ALL, spent=Spent.PARK)
    with pytest.raises(ValueError, match="one_for_one"):
        supervision("a", ChildSpec(name="b", spent=Spent.PARK), strategy=Strategy.REST_FOR_ONE)


def test_a_crash_while_stopping_is_not_restarted_and_not_counted():
    policy = supervision("a", "b")
    up(policy)
    assert acts(policy.stop_child("a", 1)) == [Stop("a", 5.0)]
    assert acts(policy.exited("a", 1, 1.5, "signal 11")) == []
    assert states(policy) == {"a": "stopped", "b": "running"}
    assert policy.view(1.5).children[0].budget_left == 3


@pytest.mark.parametrize("strategy", Strategy)
def test_what_an_operator_stopped_stays_stopped_through_a_restart_of_its_group(strategy):
    policy = supervision("a", "b", "c", strategy=strategy)
    up(policy)
    policy.stop_child("b", 1)
    policy.exited("b", 1, 1, "stopped")
    pending = acts(policy.exited("a", 1, 2, "crashed"))
    for stop in pending:
        policy.exited(stop.name, 1, 2, "stopped")
    policy.tick(2.1)
    policy.started("a", 2, 2.2)
    policy.started("c", 2, 2.2)
    assert states(policy) == {"a": "running", "b": "stopped", "c": "running"}
    assert acts(policy.start_child("b", 3)) == [Start("b", 2)]


def test_an_operators_start_clears_the_history_of_a_parked_child():
    policy = supervision("a", spent=Spent.PARK, intensity=Intensity(restarts=1, period_s=10))
    up(policy)
    policy.exited("a", 1, 1.0, "crashed")
    policy.tick(1.1)
    policy.exited("a", 2, 1.2, "crashed")
    assert acts(policy.start_child("a", 1.3)) == [Start("a", 3)]
    assert policy.exited("a", 3, 1.4, "crashed")[-1] == Schedule(1.5)


def test_a_stop_and_a_start_while_it_stops_bring_the_child_back_once_it_is_gone():
    policy = supervision("a")
    up(policy)
    policy.stop_child("a", 1)
    assert acts(policy.start_child("a", 1.1)) == []
    assert acts(policy.exited("a", 1, 2, "stopped")) == [Start("a", 2)]


def test_a_waiting_child_can_be_stopped():
    policy = supervision("a")
    up(policy)
    policy.exited("a", 1, 1, "crashed")
    policy.stop_child("a", 1.01)
    assert acts(policy.tick(60)) == []
    assert states(policy) == {"a": "stopped"}


def test_shutdown_stops_in_reverse_start_order_and_kills_what_does_not_go():
    policy = supervision("a", ChildSpec(name="b", shutdown_timeout_s=2), "c")
    up(policy)
    assert policy.shutdown(10, "SIGTERM") == [Stop("c", 5.0), Schedule(15.0)]
    assert policy.exited("c", 1, 11, "exit code 0") == [Stop("b", 2), Schedule(13.0)]
    assert policy.tick(13) == [Kill("b"), Schedule(13 + KILL_PATIENCE_S)]
    assert acts(policy.exited("b", 1, 13.1, "signal 9")) == [Stop("a", 5.0)]
    assert policy.exited("a", 1, 14, "exit code 1") == [Finished("SIGTERM")]
    assert states(policy) == {"a": "stopped", "b": "stopped", "c": "stopped"}


def test_shutdown_ends_even_when_a_child_outlives_its_kill_and_says_so():
    policy = supervision("a")
    up(policy)
    policy.shutdown(0)
    assert acts(policy.tick(5)) == [Kill("a")]
    assert policy.tick(5 + KILL_PATIENCE_S) == [Finished("asked to", left_behind=("a",))]


def test_shutdown_while_a_child_waits_starts_nothing():
    policy = supervision("a", "b")
    up(policy)
    policy.exited("a", 1, 1, "crashed")
    assert acts(policy.shutdown(1.05)) == [Stop("b", 5.0)]
    assert acts(policy.tick(1.2)) == []
    assert policy.exited("b", 1, 1.3, "stopped") == [Finished("asked to")]
    with pytest.raises(Refused) as refused:
        policy.start_child("a", 2)
    assert refused.value.code is SupervisionRefusal.SHUTTING_DOWN


def test_shutdown_with_nothing_alive_is_finished_at_once():
    assert supervision().shutdown(0) == [Finished("asked to")]


def test_a_child_that_outlives_its_kill_is_a_failure_of_its_supervisor():
    policy = supervision("a", "b")
    up(policy)
    policy.stop_child("a", 0)
    policy.tick(5)
    decided = acts(policy.tick(5 + KILL_PATIENCE_S))
    assert decided == [Kill("a")]
    assert policy.view(10).closing == "child 'a' is not gone 5 s after its kill"


@pytest.mark.parametrize(
    ("mode", "ends_after"), [(AutoShutdown.ANY_SIGNIFICANT, 1), (AutoShutdown.ALL_SIGNIFICANT, 2)], ids=str
)
def test_significant_children_that_finish_end_the_supervisor(mode, ends_after):
    one, two = (ChildSpec(name=name, restart=Restart.TRANSIENT, significant=True) for name in ("one", "two"))
    policy = supervision("server", one, two, auto_shutdown=mode)
    up(policy)
    for count, name in enumerate(("one", "two"), 1):
        policy.exited(name, 1, count, "exit code 0", normal=True)
        assert bool(policy.view(count).closing) is (count >= ends_after)


def test_a_permanent_child_cannot_be_significant():
    with pytest.raises(ValueError, match="significant"):
        supervision(ChildSpec(name="a", significant=True), auto_shutdown=AutoShutdown.ANY_SIGNIFICANT)


def test_news_of_an_earlier_life_change_nothing():
    policy = supervision("a")
    up(policy)
    policy.exited("a", 1, 1, "crashed")
    policy.tick(1.1)
    assert policy.started("a", 1, 1.2) == []
    assert policy.exited("a", 1, 1.2, "crashed") == []
    assert states(policy) == {"a": "starting"}


def test_an_early_tick_asks_for_the_timer_again():
    policy = supervision("a")
    up(policy)
    policy.exited("a", 1, 1, "crashed")
    assert policy.tick(1.05) == [Schedule(1.1)]


def test_children_join_and_leave_while_it_runs():
    policy = supervision("a")
    up(policy)
    assert acts(policy.add_child(ChildSpec(name="b"), 1)) == [Start("b", 1)]
    with pytest.raises(Refused, match="already"):
        policy.add_child(ChildSpec(name="b"), 1)
    with pytest.raises(Refused, match="stop it first"):
        policy.forget_child("b")
    policy.stop_child("b", 2)
    policy.exited("b", 1, 2, "stopped")
    policy.forget_child("b")
    assert states(policy) == {"a": ChildState.RUNNING}
    with pytest.raises(Refused, match="children: a"):
        policy.stop_child("b", 3)
