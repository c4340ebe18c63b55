"""What `strict` keeps whatever it observes (E 11.1), judged by a watch that sees events, commands and what is told.

The seed does not keep it, and the watch says so.
"""

from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.edges.establisher import EdgeEstablisher
from actors.edges.id_spans import IdSpans
from actors.edges.semantics import EventRejection, Semantics
from messages.edge import (
    CancelQueuedLease,
    DriverEdgeReady,
    EdgeFaulted,
    EdgeReady,
    EdgeStopped,
    EstablishRecv,
    EstablishSend,
    InstallWorkerRing,
    LeaseRing,
    ProvisionRx,
    ProvisionTx,
    PumpStopped,
    QuiescenceProven,
    ReleaseArenaLease,
    RingDirection,
    RingFault,
    RingFaultReason,
    RingInstalled,
    RingLeased,
    RingLeaseRejected,
    RingLeaseRejection,
    RingQuiesced,
    StopEdge,
    Stopped,
    StopPump,
    StreamFault,
    StreamFaultReason,
    UninstallWorkerRing,
)
from tests.actors.edges.notation import (
    LAYOUT,
    OBJECT_SPEC,
    RING_SPEC,
    crashed,
    driver_ready,
    installed,
    leased,
    proven,
    pump_stopped,
    quiesced,
    ready,
    rx,
    stop,
    stream_fault,
    tx,
)

EGRESS, INGRESS = RingDirection.EGRESS, RingDirection.INGRESS
EDGES = st.sampled_from([1, 2])
RINGS = st.sampled_from([100, 101, 102, 103])
REQUESTS = st.integers(1, 5)
PROVISIONED = {
    "run_id": st.sampled_from([7, 7, 8]),
    "edge_id": EDGES,
    "local_node_id": st.sampled_from([10, 10, 10, 99]),
    "object_spec": st.just(OBJECT_SPEC),
    "ring_spec": st.just(RING_SPEC),
}
EVENTS = st.one_of(
    st.builds(ProvisionTx, consumer_node_id=st.sampled_from([10, 11]), **PROVISIONED),
    st.builds(ProvisionRx, **PROVISIONED),
    st.builds(RingLeased, request_id=REQUESTS, ring_id=RINGS, layout=st.just(LAYOUT)),
    st.builds(RingLeased, request_id=REQUESTS, ring_id=RINGS, layout=st.just(LAYOUT)),
    st.builds(RingLeaseRejected, request_id=REQUESTS, reason=st.sampled_from(RingLeaseRejection)),
    st.builds(RingInstalled, edge_id=EDGES, ring_id=RINGS),
    st.builds(RingInstalled, edge_id=EDGES, ring_id=RINGS),
    st.builds(DriverEdgeReady, edge_id=EDGES),
    st.builds(StreamFault, edge_id=EDGES, reason=st.sampled_from(StreamFaultReason)),
    st.builds(RingFault, edge_id=EDGES, ring_id=RINGS, reason=st.sampled_from(RingFaultReason)),
    st.builds(StopEdge, edge_id=EDGES),
    st.builds(PumpStopped, edge_id=EDGES, ring_id=RINGS),
    st.builds(RingQuiesced, ring_id=RINGS),
    st.builds(QuiescenceProven, ring_id=RINGS),
    st.builds(Stopped, edge_id=EDGES),
)
OBSERVED = st.lists(st.tuples(EVENTS, st.sampled_from([None, EGRESS, INGRESS])), max_size=60)
STEPS = st.lists(
    st.one_of(st.integers(0, 11), st.tuples(EVENTS, st.sampled_from([None, EGRESS, INGRESS]))), max_size=60
)
"""A number moves one live end one step on; events alone seldom get far."""


@dataclass
class Lent:
    """A ring that the worker was told of."""

    edge_id: int
    direction: RingDirection
    pump_asked: bool = False
    uninstalled: bool = False
    seen: set = field(default_factory=set)


class Watch:
    """Observes through an establisher and asserts after every event."""

    def __init__(self, semantics=Semantics.STRICT):
        self.semantics = semantics
        self.establisher = EdgeEstablisher(10, semantics)
        self.lent = {}
        self.given_back = set()
        self.requests = {}
        self.told = {}

    def observe(self, event, direction=None):
        self.establisher.observe(event, direction)
        commands = self.establisher.drain_commands()
        for command in commands:
            self.follow(event, command)
        self.note(event)
        for command in commands:
            if isinstance(command, ReleaseArenaLease):
                self.release(command)
        if isinstance(event, RingLeased):
            assert event.ring_id in self.lent.keys() | self.given_back, f"ring {event.ring_id} leaks"
        for actor, told in self.establisher.drain_addressed_events():
            self.hear(actor, told)
        self.compare()

    def follow(self, event, command):
        match command:
            case LeaseRing():
                assert command.request_id == len(self.requests) + 1
                self.requests[command.request_id] = "asked"
            case CancelQueuedLease() if self.semantics is Semantics.STRICT:  # the seed's is noise on every stop
                assert self.requests[command.request_id] == "asked"
                self.requests[command.request_id] = "cancelled"
            case InstallWorkerRing():
                assert self.requests[event.request_id] == "asked"
                self.requests[event.request_id] = "granted"
                assert command.ring_id not in self.lent
                self.given_back.discard(command.ring_id)
                self.lent[command.ring_id] = Lent(command.edge_id, command.direction)
            case EstablishSend() | EstablishRecv():
                lent = self.end(command.edge_id, EGRESS if isinstance(command, EstablishSend) else INGRESS)
                assert not lent.pump_asked
                assert not lent.uninstalled
                lent.pump_asked = True
            case StopPump():
                assert self.lent[command.ring_id].pump_asked
            case UninstallWorkerRing():
                assert not self.lent[command.ring_id].uninstalled
                self.lent[command.ring_id].uninstalled = True

    def end(self, edge_id, direction):
        ends = [lent for lent in self.lent.values() if (lent.edge_id, lent.direction) == (edge_id, direction)]
        (lent,) = [lent for lent in ends if not lent.uninstalled]
        return lent

    def note(self, event):
        """What was seen of a ring after its uninstall was asked for."""
        lent = self.lent.get(getattr(event, "ring_id", None))
        if lent is None or not lent.uninstalled:
            return
        match event:
            case PumpStopped() if event.edge_id == lent.edge_id:
                lent.seen.add("pump")
            case RingQuiesced():
                lent.seen.add("worker")
            case QuiescenceProven():
                lent.seen.add("proof")
            case RingFault() if event.edge_id == lent.edge_id and event.reason is RingFaultReason.WORKER_CRASHED:
                lent.seen.add("worker")

    def release(self, command):
        ring = command.ring_id
        assert command.proof.verified
        assert ring not in self.given_back, f"ring {ring} is given back twice"
        self.given_back.add(ring)
        lent = self.lent.pop(ring, None)
        if lent is not None:
            needed = {"worker", "proof"} | ({"pump"} if lent.pump_asked else set())
            assert lent.uninstalled, f"ring {ring} is given back while the worker has it"
            assert needed <= lent.seen, f"ring {ring} is given back before {needed - lent.seen}"

    def hear(self, actor, told):
        before = self.told.setdefault(actor, [])
        assert EdgeStopped not in before, f"edge actor {actor} is told more after EdgeStopped"
        assert type(told) not in before, f"edge actor {actor} is told twice"
        if isinstance(told, EdgeReady):
            assert told.local_edge_actor == actor
            assert EdgeFaulted not in before
        before.append(type(told))

    def compare(self):
        """The records agree with what was asked of the world."""
        records = self.establisher.local_records()
        dead = {"stopped", "failed"}
        live = [record for record in records if record.state not in dead]
        assert {record.ring_id for record in live if record.ring_id is not None} == set(self.lent)
        assert max(Counter((record.edge_id, record.direction) for record in records).values(), default=1) == 1
        for record in records:
            told = self.told.get(record.local_edge_actor, [])
            assert (EdgeStopped in told) == (record.state == "stopped")
            assert (record.state == "failed") <= (told == [EdgeFaulted])

    def move_on(self, number):
        """What the world would say next to one of the live ends."""
        live = [record for record in self.establisher.local_records() if record.state not in ("stopped", "failed")]
        if not live:
            return self.observe(tx(1 + number % 2))
        record = live[number % len(live)]
        edge, ring = record.edge_id, record.ring_id
        answers = {
            "waiting_for_lease": [leased(record.lease_request_id, 1000 + record.lease_request_id)],
            "waiting_for_worker_ring": [installed(ring, edge)],
            "waiting_for_driver": [driver_ready(edge)],
            "ready": [stop(edge)],
            "stopping": [quiesced(ring), proven(ring), pump_stopped(ring, edge)],
        }[record.state]
        return self.observe(answers[number % len(answers)], record.direction)

    def wind_up(self):
        """Stop what is live and let the world answer everything."""
        for edge in (1, 2):
            self.observe(stop(edge))
        for ring, lent in list(self.lent.items()):
            self.observe(quiesced(ring) if ring % 2 else crashed(ring, lent.edge_id))
            self.observe(proven(ring))
            self.observe(pump_stopped(ring, lent.edge_id), lent.direction)


@settings(max_examples=300, deadline=None)
@given(STEPS)
def test_whatever_is_observed_no_ring_goes_back_in_use_and_every_life_is_told_once(steps):
    watch = Watch()
    for step in steps:
        if isinstance(step, int):
            watch.move_on(step)
        else:
            watch.observe(*step)
    watch.wind_up()
    assert watch.lent == {}
    assert {record.state for record in watch.establisher.local_records()} <= {"stopped"}
    for edge in (1, 2):
        watch.establisher.observe(Stopped(edge_id=edge))
    assert watch.establisher.local_records() == []
    assert set(watch.told) == set(watch.requests)
    assert all(EdgeStopped in told or told == [EdgeFaulted] for told in watch.told.values())  # refused, then replaced


SEED_HAZARDS = {
    "while the worker has it": [tx(), leased(), stop()],
    "before": [*ready(), stop(), quiesced()],
    "given back while": [*ready(), leased()],
    "given back twice": [tx(), stop(), leased(), leased()],
}


@pytest.mark.parametrize(("hazard", "events"), SEED_HAZARDS.items(), ids=list(SEED_HAZARDS))
def test_the_watch_finds_what_the_seed_gives_back_in_use(hazard, events):
    seed, strict = Watch(Semantics.SEED), Watch()
    for event in events[:-1]:
        seed.observe(event)
        strict.observe(event)
    with pytest.raises(AssertionError, match=hazard):
        seed.observe(events[-1])
    strict.observe(events[-1])


@settings(max_examples=100, deadline=None)
@given(OBSERVED)
def test_an_event_that_is_turned_away_leaves_no_trace(observed):
    establisher = EdgeEstablisher(10, Semantics.STRICT)
    for event, direction in observed:
        before = establisher.local_records()
        if establisher.observe(event, direction) is not None:
            assert (establisher.drain_commands(), establisher.drain_events()) == ([], [])
            assert establisher.local_records() == before
        establisher.drain_commands()
        establisher.drain_events()


@settings(max_examples=100, deadline=None)
@given(OBSERVED)
def test_only_what_someone_must_hear_of_is_turned_away(observed):
    establisher = EdgeEstablisher(10, Semantics.STRICT)
    for event, direction in observed:
        rejection = establisher.observe(event, direction)
        if rejection is not None:
            told = {
                ProvisionTx: {EventRejection.WRONG_NODE, EventRejection.STALE_RUN, EventRejection.EDGE_LIVE},
                ProvisionRx: {EventRejection.WRONG_NODE, EventRejection.STALE_RUN, EventRejection.EDGE_LIVE},
                StopEdge: {EventRejection.UNKNOWN_EDGE},
                DriverEdgeReady: {EventRejection.DIRECTION_NEEDED},
                StreamFault: {EventRejection.DIRECTION_NEEDED},
            }
            assert rejection.reason in told[type(event)]
            assert direction is None or rejection.reason is not EventRejection.DIRECTION_NEEDED


@settings(max_examples=100, deadline=None)
@given(OBSERVED, st.sampled_from([tx(3), rx(3)]))
def test_events_of_other_edges_do_not_touch_an_edge(observed, provision):
    establisher = EdgeEstablisher(10, Semantics.STRICT)
    for event in (provision, leased(1, 200), installed(200, 3)):
        establisher.observe(event)
    before = establisher.local_record(3)
    for event, direction in observed:
        if getattr(event, "request_id", None) != 1:
            establisher.observe(event, direction)
            assert establisher.local_record(3) == before
    establisher.observe(stream_fault(3))
    assert establisher.local_record(3).state == "stopping"


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 12)), max_size=60))
def test_spans_of_ids_are_a_set(calls):
    spans, plain = IdSpans(), set()
    for add, number in calls:
        if add:
            spans.add(number)
            plain.add(number)
        else:
            spans.discard(number)
            plain.discard(number)
        assert [number for number in range(-1, 14) if number in spans] == sorted(plain)
        assert len(spans) == sum(number - 1 not in plain for number in plain)
