"""The pure plan: whatever is known, what may be done next; and that what is done leads somewhere (design 7)."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.edges.planning.plan import (
    Begin,
    Close,
    CloseEnds,
    FindRuns,
    Forget,
    Judge,
    ListProcess,
    NoteReady,
    OpenEnds,
    Record,
    Settle,
    StartProcesses,
    TellEstablished,
    Wait,
    backoff_s,
    next_step,
)
from actors.edges.planning.situation import EndSight, Listed, PlanTimes, Situation
from actors.edges.planning.state import Closing, DesiredEdge, Life, Pair
from actors.edges.planning.wish import Sizes
from messages.control import Epoch
from messages.edge import EdgeProvisionState as State
from messages.edge import RingDirection
from messages.edge_end import EdgeFaultCode, EdgeParty, EndReport
from messages.edge_plan import EdgePhase

TIMES = PlanTimes()
TERMINAL = (State.STOPPED, State.FAILED)
WAYS = tuple(RingDirection)


def party(name: str, number: int = 1) -> EdgeParty:
    return EdgeParty(
        node_id=f"n-{name}",
        process=f"{name}.edges",
        instance_id=f"w-{name}",
        epoch=Epoch(term=1, number=number),
        port="p",
    )


PAIRS = [Pair(producer=party("attic", number), consumer=party("shed")) for number in (1, 2)]


def report(state, fault=None, ended=False):
    return EndReport(
        name="e", edge_id=1, run_id=1, direction=RingDirection.EGRESS, state=state, instance_id="i", port="p",
        local_edge_actor=1, peer="q", fault=fault, fault_text="" if fault is None else "text", ended=ended,
    )  # fmt: skip


def edge_of(life=None, **more):
    return DesiredEdge(
        source="a.out", target="b.in", sizes=Sizes(max_extent_bytes=1, ring_bytes=4096), added_key="k", since_ms=0,
        run_id=1, life=life, **more,
    )  # fmt: skip


reports = st.one_of(
    st.none(),
    st.builds(
        report,
        st.sampled_from(State),
        st.one_of(st.none(), st.sampled_from(EdgeFaultCode)),
        st.booleans(),
    ),
)
sights = st.builds(
    EndSight,
    linked=st.booleans(),
    silent_s=st.sampled_from([0.0, 61.0]),
    listed=st.sampled_from(Listed),
    suspect=st.booleans(),
    report=reports,
    ordered=st.booleans(),
    opened=st.booleans(),
    refusal=st.sampled_from(["", "no"]),
    closed=st.booleans(),
    placed=st.booleans(),
    stopped=st.booleans(),
)
lives = st.one_of(
    st.none(),
    st.builds(
        Life,
        edge_id=st.just(1),
        run_id=st.just(1),
        pair=st.sampled_from(PAIRS),
        ready=st.booleans(),
        closing=st.one_of(st.none(), st.sampled_from(Closing)),
    ),
)
edges = st.builds(
    edge_of,
    life=lives,
    permitted=st.one_of(st.none(), st.sampled_from(PAIRS)),
    finished=st.one_of(st.none(), st.sampled_from(PAIRS)),
    removing=st.booleans(),
)
situations = st.builds(
    Situation,
    edge=edges,
    loaded=st.booleans(),
    recorded=st.booleans(),
    fresh=st.booleans(),
    pair=st.one_of(st.none(), st.sampled_from(PAIRS)),
    unresolved=st.just("nobody"),
    unheard=st.sampled_from([(), ("shed.edges",)]),
    hold=st.sampled_from(["", "held"]),
    running=st.booleans(),
    permitted=st.booleans(),
    producer=sights,
    consumer=sights,
    opening_s=st.sampled_from([0.0, 91.0]),
    told_established=st.booleans(),
)


@settings(max_examples=300)
@given(seen=situations)
def test_a_step_is_only_taken_when_it_may_be(seen):
    step = next_step(seen, TIMES)
    edge, life = seen.edge, seen.edge.life
    match step:
        case Begin(pair=pair):
            assert life is None, "never two lives"
            assert seen.loaded
            assert seen.recorded
            assert not edge.removing
            assert not seen.hold
            assert not seen.unheard
            assert pair == seen.pair != edge.finished
            assert edge.permitted == pair or seen.permitted, "the gate permits the pair"
            assert seen.running, "no life for an instance that does not run"
        case Judge(pair=pair):
            assert life is None
            assert edge.permitted != pair == seen.pair
            assert not seen.permitted
            assert not seen.hold
        case FindRuns(pair=pair):
            assert life is None
            assert pair == seen.pair
            assert not seen.running or edge.finished == pair
            assert not seen.hold
            assert not seen.unheard
        case OpenEnds(directions=ways):
            assert life is not None
            assert life.closing is None
            assert seen.fresh, "what an earlier planner began is never ordered again"
            assert seen.recorded, "no record, no act"
            assert not edge.removing
            assert all(seen.end(way).linked and not seen.end(way).opened for way in ways)
        case Settle():
            assert life is not None
            assert life.closing is not None
            for way in WAYS:
                assert over(seen.end(way))
        case Forget():
            assert edge.removing
            assert life is None
        case Close(why=why, fault=fault):
            assert life is not None
            assert life.closing is None
            assert (why is Closing.FAULT) == (fault is not None)
            assert why is not Closing.REMOVED or edge.removing
            assert why is not Closing.STOPPED or seen.producer.stopped or seen.consumer.stopped
            assert why is not Closing.FINISHED or (seen.producer.ended and seen.consumer.ended)
            assert why is not Closing.MOVED or (seen.loaded and not (seen.producer.placed and seen.consumer.placed))
        case CloseEnds(directions=ways):
            assert life is not None
            assert life.closing is not None
            assert ways
            assert all(seen.end(way).linked and not seen.end(way).closed for way in ways)
        case NoteReady():
            assert life is not None
            assert not life.ready
            assert seen.producer.is_ready
            assert seen.consumer.is_ready
        case Wait(phase=phase, reason=reason):
            assert phase is not EdgePhase.READY or (seen.producer.is_ready and seen.consumer.is_ready)
            assert reason or phase in (EdgePhase.READY, EdgePhase.OPENING), "waiting has a reason"
            assert phase is not EdgePhase.FINISHED or edge.finished == seen.pair
        case Record():
            assert not seen.recorded
        case StartProcesses() | ListProcess() | TellEstablished():
            assert not edge.removing or life is not None


def over(end):
    """Nothing of it can move a byte: stated anew, and not by the words of the plan."""
    return (
        not end.ordered
        or (end.report is not None and end.report.state in TERMINAL)
        or (end.closed and end.listed is Listed.ABSENT)
        or (not end.linked and end.silent_s > 3 and not end.placed)
    )


class World:
    """A node's side of one edge, as simple as can be: what each step leads to when nothing more goes wrong."""

    def __init__(self, seen):
        self.seen = seen
        self.steps = []

    def carry_out(self, step):
        seen, edge = self.seen, self.seen.edge
        self.steps.append(type(step).__name__)
        match step:
            case Begin(pair=pair):
                life = Life(edge_id=2, run_id=2, pair=pair)
                self.change(life=life, permitted=pair, finished=None)
                self.ends(EndSight(ordered=False))
            case Judge():
                self.seen = replace(seen, permitted=True)
            case FindRuns():
                self.change(finished=None)
                self.seen = replace(self.seen, running=True)
            case StartProcesses():
                self.seen = replace(seen, unheard=(), producer=heard(seen.producer), consumer=heard(seen.consumer))
            case OpenEnds(directions=ways):
                for way in ways:
                    self.end(way, ordered=True, opened=True, listed=Listed.PRESENT, report=report(State.READY))
            case ListProcess(process=process):
                for way, owner in zip(WAYS, (edge.life.pair.producer, edge.life.pair.consumer), strict=True):
                    if owner.process == process:
                        there = seen.end(way).report is not None and seen.end(way).report.state not in TERMINAL
                        listed = Listed.PRESENT if there else Listed.ABSENT
                        self.end(way, listed=listed, suspect=False, opened=there or seen.end(way).opened)
            case TellEstablished():
                self.seen = replace(seen, told_established=True)
                for way in WAYS:
                    if seen.end(way).opened:
                        self.end(way, report=report(State.READY))
            case NoteReady():
                self.change(life=msgspec.structs.replace(edge.life, ready=True))
            case Close(why=why, reason=reason):
                self.change(life=msgspec.structs.replace(edge.life, closing=why, reason=reason))
            case CloseEnds(directions=ways):
                for way in ways:
                    self.end(way, closed=True, listed=Listed.ABSENT, suspect=False, report=None)
            case Settle():
                finished = edge.life.pair if edge.life.closing is Closing.FINISHED else None
                self.change(life=None, finished=finished)
                self.ends(EndSight())
            case Record():
                self.seen = replace(seen, recorded=True)

    def change(self, **more):
        fresh = self.seen.fresh or "permitted" in more
        self.seen = replace(self.seen, edge=msgspec.structs.replace(self.seen.edge, **more), fresh=fresh)

    def ends(self, sight):
        self.seen = replace(self.seen, producer=sight, consumer=sight, opening_s=0.0, told_established=False)

    def end(self, way, **more):
        field = "producer" if way is RingDirection.EGRESS else "consumer"
        self.seen = replace(self.seen, **{field: replace(self.seen.end(way), **more)})


def heard(end):
    return replace(end, linked=True, silent_s=0.0)


@settings(max_examples=150)
@given(seen=situations)
def test_from_any_situation_an_edge_comes_to_rest_and_removed_ones_are_forgotten(seen):
    world = World(replace(seen, hold="", loaded=True))
    for _ in range(24):
        step = next_step(world.seen, TIMES)
        if isinstance(step, Wait | Forget):
            break
        world.carry_out(step)
    else:
        raise AssertionError(f"no rest: {world.steps}")
    assert isinstance(step, Forget) or not seen.edge.removing or seen_is_stuck(world.seen), world.steps


def seen_is_stuck(seen):
    """Its process was told to close, and still shows the end."""
    return any(not over(seen.end(way)) and seen.end(way).closed for way in WAYS)


@pytest.mark.parametrize("jitter", [0.0, 0.5, 1.0])
def test_the_back_off_stays_within_its_bounds(jitter):
    waits = [backoff_s(strikes, jitter, TIMES) for strikes in range(1, 2000)]
    assert waits == sorted(waits)
    assert waits[0] == pytest.approx(0.2 * (1 - jitter / 2))
    assert waits[-1] == pytest.approx(5.0 * (1 - jitter / 2))


@pytest.mark.parametrize("ready", [True, False])
def test_an_edges_process_is_started_again_only_after_it_was_silent_for_a_while(ready):
    state = State.READY if ready else State.WAITING_FOR_WORKER_RING
    up = EndSight(listed=Listed.PRESENT, opened=True, report=report(state))
    life = Life(edge_id=1, run_id=1, pair=PAIRS[0], ready=ready, closing=None)
    seen = Situation(
        edge=edge_of(life, permitted=PAIRS[0]), loaded=True, recorded=True, fresh=True, pair=PAIRS[0], unresolved="",
        unheard=("shed.edges",), hold="", running=True, permitted=True, producer=up,
        consumer=replace(up, linked=False, silent_s=2.0),
    )  # fmt: skip
    assert isinstance(next_step(seen, TIMES), Wait)
    silent = replace(seen, consumer=replace(seen.consumer, silent_s=2.1))
    assert next_step(silent, TIMES) == StartProcesses(("shed.edges",))
    assert isinstance(next_step(replace(silent, hold="asked already"), TIMES), Wait)
