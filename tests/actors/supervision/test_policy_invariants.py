"""Any order of crashes, hangs, timers and operator verbs: what holds in all of them."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from actors.supervision.policy import (
    Backoff,
    ChildSpec,
    Escalate,
    Finished,
    Intensity,
    Kill,
    Schedule,
    Start,
    Stop,
    Supervision,
)
from messages.supervision import Restart, Spent, Strategy

NAMES = ["a", "b", "c", "d"]


class Children(RuleBasedStateMachine):
    """The world: which lives are there. The policy only hears about it."""

    @initialize(
        strategy=st.sampled_from(Strategy),
        park=st.booleans(),
        restarts=st.integers(0, 3),
        kinds=st.lists(st.sampled_from(Restart), min_size=4, max_size=4),
    )
    def begin(self, strategy, park, restarts, kinds):
        spent = Spent.PARK if park and strategy is Strategy.ONE_FOR_ONE else Spent.ESCALATE
        self.strategy, self.spent = strategy, spent
        self.policy = Supervision(
            [ChildSpec(name=name, restart=kind) for name, kind in zip(NAMES, kinds, strict=True)],
            random=lambda: 0.5,
            strategy=strategy,
            intensity=Intensity(restarts=restarts, period_s=10),
            backoff=Backoff(ceiling_s=4),
            spent=spent,
        )
        self.now = 0.0
        self.alive: dict[str, int] = {}  # name -> incarnation
        self.ready: set[str] = set()
        self.told: list[str] = []  # stops not yet obeyed
        self.operator_stopped: set[str] = set()
        self.closing = False
        self.ended: list[object] = []
        self.timer: float | None = None
        self.carry_out(self.policy.start_all(0.0))

    def carry_out(self, decisions):
        for one in decisions:
            match one:
                case Start(name, incarnation):
                    assert name not in self.alive, "two lives of one child"
                    assert not self.closing, "a start during the shutdown"
                    assert name not in self.operator_stopped, "what an operator stopped came back"
                    if self.strategy is not Strategy.ONE_FOR_ONE:
                        earlier = [n for n in NAMES[: NAMES.index(name)] if n in self.alive]
                        assert all(n in self.ready for n in earlier), "a start before an earlier one was ready"
                    self.alive[name] = incarnation
                case Stop(name):
                    assert name in self.alive
                    if self.closing:
                        rows = self.policy.view(self.now).children
                        held = [row.name for row in rows if row.state in ("starting", "running", "stopping")]
                        assert name == max(held), "not in reverse start order"
                    self.told.append(name)
                case Kill(name):
                    self.told.append(name)
                case Schedule(at_s):
                    self.timer = at_s
                case Escalate() | Finished():
                    self.ended.append(one)

    @rule(data=st.data())
    @precondition(lambda self: set(self.alive) - self.ready)
    def one_gets_ready(self, data):
        name = data.draw(st.sampled_from(sorted(set(self.alive) - self.ready)))
        self.ready.add(name)
        self.carry_out(self.policy.started(name, self.alive[name], self.now))

    @rule(data=st.data(), normal=st.booleans())
    @precondition(lambda self: self.alive)
    def one_ends(self, data, normal):
        name = data.draw(st.sampled_from(sorted(self.alive)))
        self.gone(name, normal)

    @rule()
    @precondition(lambda self: any(name in self.alive for name in self.told))
    def one_obeys(self):
        self.gone(next(name for name in self.told if name in self.alive), True)

    def gone(self, name, normal):
        incarnation = self.alive.pop(name)
        self.ready.discard(name)
        self.told = [one for one in self.told if one != name]
        self.carry_out(self.policy.exited(name, incarnation, self.now, "gone", normal=normal))

    @rule(seconds=st.sampled_from([0.01, 0.1, 1.0, 5.0, 30.0]))
    def time_passes(self, seconds):
        self.now += seconds
        if self.timer is not None and self.now >= self.timer:
            self.timer = None
            self.carry_out(self.policy.tick(self.now))

    @rule(name=st.sampled_from(NAMES))
    def operator_stops(self, name):
        self.operator_stopped.add(name)
        self.carry_out(self.policy.stop_child(name, self.now))

    @rule(name=st.sampled_from(NAMES))
    @precondition(lambda self: not self.policy.view(self.now).closing)
    def operator_starts(self, name):
        self.operator_stopped.discard(name)
        self.carry_out(self.policy.start_child(name, self.now))

    @rule()
    def shut_down(self):
        closing = bool(self.policy.view(self.now).closing)
        decided = self.policy.shutdown(self.now)
        if not closing and not any(row.state.value == "stopping" for row in self.policy.view(self.now).children):
            assert decided
        self.closing = True
        self.carry_out(decided)

    @invariant()
    def nobody_waits_without_a_timer(self):
        rows = self.policy.view(self.now).children
        busy = [row for row in rows if row.state.value in ("starting", "stopping")]
        later = [row for row in rows if row.state.value in ("waiting", "parked") and row.next_attempt_s > 0]
        if (busy or later) and not self.ended:
            assert self.timer is not None

    @invariant()
    def it_ends_at_most_once_and_only_empty(self):
        assert len(self.ended) <= 1
        if self.ended:
            assert set(self.alive) <= set(self.ended[0].left_behind)
        elif self.policy.view(self.now).closing:
            assert self.alive

    @invariant()
    def no_more_restarts_than_the_budget(self):
        for row in self.policy.view(self.now).children:
            assert row.budget_left >= 0


Children.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestChildren = Children.TestCase
