"""When a shim stops its workload, and when it says that it is over."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.shim.decisions import KILL, KILL_MARGIN_MS, RECORD, TERMINATE, Decisions


def test_an_exit_with_nobody_left_is_recorded_with_its_code():
    run = Decisions(0)
    run.leader_exited(100, 3, None)
    assert run.emptied() == [RECORD]
    assert (run.phase, run.reason, run.exit_code, run.signal, run.killed) == ("ended", "exited", 3, None, False)
    assert run.due_ms() is None


def test_whoever_the_leader_left_behind_is_asked_then_killed_until_nobody_is_left():
    run = Decisions(0, grace_ms=2000)
    assert run.leader_exited(100, 0, None) == [TERMINATE]
    assert run.due_ms() == 2100
    assert run.tick(2100) == [KILL]
    assert run.tick(run.due_ms()) == [KILL]
    assert run.emptied() == [RECORD]
    assert run.killed is False  # the leader went by itself


def test_a_stop_asks_gives_its_grace_then_kills():
    run = Decisions(0)
    assert run.told_to_stop(1000, 500) == [TERMINATE]
    assert run.tick(1499) == []
    assert run.tick(1500) == [KILL]
    assert run.leader_exited(1510, None, 9) == []
    assert run.emptied() == [RECORD]
    assert (run.reason, run.killed) == ("stopped", True)


def test_a_stop_without_grace_kills_at_once():
    assert Decisions(0).told_to_stop(1000, 0) == [KILL]


@pytest.mark.parametrize(("second", "due"), [(100, 1200), (60_000, 3000)], ids=["shorter", "longer"])
def test_a_second_stop_only_shortens_the_first(second, due):
    run = Decisions(0)
    run.told_to_stop(1000, 2000)
    assert run.told_to_stop(1100, second) == []
    assert run.due_ms() == due


def test_a_grace_is_at_most_a_minute():
    run = Decisions(0)
    run.told_to_stop(0, 10**9)
    assert run.due_ms() == 60_000


def test_nothing_is_left_only_after_the_leader_is_gone():
    run = Decisions(0)
    run.told_to_stop(0, 0)
    assert run.emptied() == []


def test_at_the_deadline_everything_is_dead_so_the_stop_begins_its_grace_earlier():
    run = Decisions(0, deadline_ms=60_000, grace_ms=2000)
    assert run.due_ms() == 60_000 - KILL_MARGIN_MS - 2000
    assert run.tick(run.due_ms()) == [TERMINATE]
    assert run.reason == "lease_over"
    assert run.due_ms() == 60_000 - KILL_MARGIN_MS
    assert run.tick(run.due_ms()) == [KILL]


def test_a_deadline_slept_through_kills_at_once():
    assert Decisions(0, deadline_ms=60_000).tick(3_600_000) == [KILL]


def test_an_operators_long_grace_does_not_outlast_the_lease():
    run = Decisions(0, deadline_ms=10_000)
    run.told_to_stop(7_000, 60_000)
    assert run.due_ms() == 10_000 - KILL_MARGIN_MS


def test_a_renewal_moves_the_deadline_forward_and_never_back():
    run = Decisions(0, deadline_ms=60_000)
    assert run.renewed(10_000, 90_000)
    assert run.deadline_ms == 90_000
    assert run.renewed(11_000, 80_000)
    assert run.deadline_ms == 90_000


def test_a_renewal_that_comes_too_late_is_refused_and_revives_nothing():
    run = Decisions(0, deadline_ms=60_000)
    assert not run.renewed(70_000, 72_000)
    run.tick(70_000)
    assert not run.renewed(70_001, 900_000)
    assert run.phase != "running"


def test_without_a_lease_silence_of_the_agent_ends_the_run():
    run = Decisions(0, orphan_after_ms=5000)
    run.contacted(3000)
    assert run.due_ms() == 8000
    assert run.tick(7999) == []
    assert run.tick(8000) == [TERMINATE]
    assert run.reason == "orphaned"


def test_with_a_lease_only_the_lease_counts():
    assert Decisions(0, deadline_ms=60_000, orphan_after_ms=10).due_ms() == 57_500


def test_a_run_without_lease_limit_or_orphan_rule_goes_on_for_ever():
    assert Decisions(0).due_ms() is None


def test_a_run_that_takes_too_long_is_stopped():
    run = Decisions(0, run_for_ms=15_000)
    assert run.tick(15_000) == [TERMINATE]
    assert run.reason == "runtime_over"


@settings(max_examples=150)
@given(
    deadline=st.integers(3_000, 100_000),
    steps=st.lists(
        st.tuples(
            st.sampled_from(["stop", "renew", "contact", "exit"]), st.integers(0, 50_000), st.integers(0, 90_000)
        ),
        max_size=12,
    ),
)
def test_whatever_happens_the_kill_comes_before_the_last_deadline_granted(deadline, steps):
    run = Decisions(0, deadline_ms=deadline)
    now, killed_at = 0, None

    def pass_to(then):
        nonlocal now, killed_at
        while (due := run.due_ms()) is not None and due <= then:
            now = max(now, due)
            if KILL in run.tick(now) and killed_at is None:
                killed_at = now
        now = then

    for what, wait, number in steps:
        pass_to(now + wait)
        actions = []
        if what == "stop":
            actions = run.told_to_stop(now, number)
        elif what == "renew":
            run.renewed(now, now + number)
        elif what == "exit" and run.phase == "running":
            actions = run.leader_exited(now, 0, None)
        if KILL in actions and killed_at is None:
            killed_at = now
        if killed_at is not None:
            break
    pass_to(run.deadline_ms)
    assert killed_at is not None
    assert killed_at <= run.deadline_ms - KILL_MARGIN_MS
