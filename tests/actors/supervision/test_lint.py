"""The bounds that are printed hold for the policy that runs."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.supervision.lint import Tree, lint, time_to_give_up
from actors.supervision.policy import (
    KILL_PATIENCE_S,
    Backoff,
    ChildSpec,
    Escalate,
    Intensity,
    Kill,
    Schedule,
    Stop,
    Supervision,
)

FAST = Backoff(first_s=0.1, factor=2, ceiling_s=8, jitter=0)


@settings(max_examples=80, deadline=None)
@given(
    restarts=st.integers(0, 8),
    period=st.floats(0.5, 60),
    ceiling=st.floats(0.1, 20),
    factor=st.floats(1, 3),
    jitter=st.floats(0, 0.9),
)
def test_a_child_that_fails_at_once_spends_the_budget_exactly_when_foretold(restarts, period, ceiling, factor, jitter):
    intensity = Intensity(restarts=restarts, period_s=period)
    backoff = Backoff(first_s=0.1, factor=factor, ceiling_s=ceiling, jitter=jitter, quiet_s=1000)
    foretold = time_to_give_up(intensity, backoff)
    policy = Supervision([ChildSpec(name="a")], random=lambda: 1.0, intensity=intensity, backoff=backoff)
    now, ended, timer = 0.0, None, None
    decided = policy.start_all(0.0)
    for incarnation in range(1, 400):
        decided += policy.exited("a", incarnation, now, "crashed")
        if any(isinstance(one, Escalate) for one in decided):
            ended = now
            break
        timer = next((one.at_s for one in reversed(decided) if isinstance(one, Schedule)), timer)
        now = timer
        decided = policy.tick(now)
    if foretold is None:
        assert ended is None
    else:
        assert ended == pytest.approx(foretold)


def test_shutdown_of_children_that_ignore_everything_takes_no_longer_than_foretold():
    specs = (ChildSpec(name="a", shutdown_timeout_s=2), ChildSpec(name="b", shutdown_timeout_s=3))
    (bounds,) = lint(Tree(name="root", children=specs))
    policy = Supervision(specs, random=lambda: 0.0)
    for start in policy.start_all(0)[:2]:
        policy.started(start.name, start.incarnation, 0)
    now, decided = 0.0, policy.shutdown(0.0)
    while not any(type(one).__name__ == "Finished" for one in decided):
        assert any(isinstance(one, Stop | Kill | Schedule) for one in decided)
        now = next(one.at_s for one in decided if isinstance(one, Schedule))
        decided = policy.tick(now)
    assert now == bounds.shutdown_s == 2 + 3 + 2 * KILL_PATIENCE_S


def test_lives_multiply_with_each_level():
    inner = Tree(
        name="inner",
        children=(ChildSpec(name="leaf"),),
        spec=ChildSpec(name="inner", shutdown_timeout_s=60),
        intensity=Intensity(restarts=2),
        backoff=FAST,
    )
    outer, below = lint(Tree(name="outer", children=(inner,), intensity=Intensity(restarts=3), backoff=FAST))
    assert (below.lives, below.depth) == (3, 1)
    assert (outer.lives, outer.depth) == (12, 0)
    assert outer.findings == below.findings == ()


def test_a_supervisor_that_is_killed_before_its_children_can_be_stopped_is_found():
    inner = Tree(name="inner", children=(ChildSpec(name="leaf"),), spec=ChildSpec(name="inner"), backoff=FAST)
    outer, _ = lint(Tree(name="outer", children=(inner,), backoff=FAST))
    assert any("'inner' is killed 5 s into a stop that may take it 10 s" in text for text in outer.findings)


def test_a_backoff_too_slow_for_its_budget_is_found():
    slow = Backoff(ceiling_s=30, jitter=0)
    (bounds,) = lint(Tree(name="root", children=(ChildSpec(name="a"),), backoff=slow))
    assert bounds.gives_up_s is not None
    slower = Tree(
        name="root", children=(ChildSpec(name="a"),), backoff=slow, intensity=Intensity(restarts=9, period_s=5)
    )
    (bounds,) = lint(slower)
    assert bounds.gives_up_s is None
    assert "can fail for ever" in bounds.findings[0]


def test_a_supervisor_below_another_needs_its_place_named():
    with pytest.raises(ValueError, match="no child specification"):
        list(lint(Tree(name="outer", children=(Tree(name="inner", children=()),))))
