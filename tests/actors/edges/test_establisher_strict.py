"""What `strict` does: the cases of E 10.1, both ends on one node, provisions turned away, records forgotten."""

import itertools

import pytest

from actors.edges.establisher import EdgeEstablisher
from actors.edges.semantics import EventRejected, EventRejection, Semantics
from messages.edge import (
    EdgeCommand,
    EdgeFaulted,
    EdgeReady,
    EdgeRingLeaseRejectedReason,
    EdgeStopped,
    InstallWorkerRing,
    RingDirection,
    RingLeaseRejection,
)
from tests.actors.edges.notation import (
    LAYOUT,
    OBJECT_SPEC,
    RING_SPEC,
    crashed,
    driver_ready,
    installed,
    leased,
    observed,
    proven,
    pump_stopped,
    quiesced,
    ready,
    records,
    rejected,
    rx,
    stop,
    stopped,
    stream_fault,
    tx,
    worker_rejects,
)

EGRESS, INGRESS = RingDirection.EGRESS, RingDirection.INGRESS
STOPPING = [*ready(), stop()]
GONE = [quiesced(), pump_stopped(), proven()]
BOTH_READY = [*ready(), rx(), leased(2, 8002), installed(8002), (driver_ready(), INGRESS)]


def strict(*events, node=10):
    establisher = EdgeEstablisher(node, Semantics.STRICT)
    observed(establisher, events)
    return establisher


# --- E 10.1 ---


def test_provisioning_makes_local_records():
    producer, consumer = strict(tx()).local_record(1), strict(rx(node=11), node=11).local_record(1)
    assert (producer.peer_node_id, consumer.peer_node_id) == (11, None)
    assert producer.remote_actor_address is consumer.remote_actor_address is None


def test_a_lease_is_matched_by_its_request_and_a_late_one_goes_back():
    establisher = strict(tx())
    assert observed(establisher, [leased(99, 8009), rejected(), stop(), leased()]) == [
        "X8009",
        " | faulted RingLeaseRejected",
        " | stopped",
        "X8001",
    ]


def test_the_ring_is_installed_as_provisioned_before_the_driver_is_asked():
    establisher = EdgeEstablisher(10, Semantics.STRICT)
    establisher.observe(tx())
    establisher.drain_commands()
    establisher.observe(leased())
    assert establisher.drain_commands() == [
        InstallWorkerRing(
            edge_id=1,
            ring_id=8001,
            direction=EGRESS,
            layout=LAYOUT,
            object_spec=OBJECT_SPEC,
            ring_spec=RING_SPEC,
        )
    ]
    assert observed(establisher, [installed(8002), installed()]) == ["", "S11"]


def test_an_edge_is_ready_when_its_driver_is():
    assert observed(strict(tx(), leased(), installed()), [driver_ready(), driver_ready()]) == [" | ready 1", ""]


def test_an_edge_that_stopped_gets_ready_no_more():
    establisher = strict(*STOPPING, *GONE)
    assert observed(establisher, [driver_ready(), stopped(), driver_ready()]) == ["", "", ""]


def test_quiescence_before_the_stop_counts_for_nothing():
    establisher = strict(*ready())
    assert observed(establisher, [proven(), quiesced(), pump_stopped(), stop()]) == ["", "", "", "P8001 U8001"]
    assert observed(establisher, [proven(), pump_stopped(), quiesced()]) == ["", "", "X8001 | stopped"]


@pytest.mark.parametrize("order", list(itertools.permutations(GONE)))
@pytest.mark.parametrize("provision", [tx, rx])
def test_the_ring_goes_back_with_the_last_of_pump_worker_and_proof(order, provision):
    establisher = strict(*ready(provision=provision), stop())
    doubled = [event for event in order for _ in range(2)]
    assert observed(establisher, doubled) == ["", "", "", "", "X8001 | stopped", ""]


@pytest.mark.parametrize("order", list(itertools.permutations([quiesced(), proven()])))
def test_a_stop_while_the_worker_installs_waits_for_the_worker_alone(order):
    establisher = strict(tx(), leased(), stop())
    assert observed(establisher, [pump_stopped(), *order]) == ["", "", "X8001 | stopped"]


def test_a_stop_while_the_driver_starts_waits_for_the_pump_too():
    establisher = strict(tx(), leased(), installed())
    assert observed(establisher, [stop(), quiesced(), proven()]) == ["P8001 U8001", "", ""]
    assert observed(establisher, [driver_ready(), pump_stopped()]) == ["", "X8001 | stopped"]


def test_no_command_carries_bytes():
    def held(kind):
        for name, annotation in kind.__annotations__.items():
            yield f"{name}: {annotation}"

    members = [member for kind in EdgeCommand.__args__ for member in held(kind)]
    assert members
    assert not [member for member in members if any(word in member for word in ("bytes]", ": bytes", "memoryview"))]


# --- crashes and faults ---


@pytest.mark.parametrize(
    ("before", "asked"),
    [
        ([tx(), leased()], "U8001 | faulted RingFault"),
        ([tx(), leased(), installed()], "P8001 U8001 | faulted RingFault"),
        (ready(), "P8001 U8001 | faulted RingFault"),
    ],
)
def test_a_crash_takes_the_place_of_the_workers_word_but_not_of_the_proof(before, asked):
    establisher = strict(*before)
    assert observed(establisher, [crashed(), pump_stopped()]) == [asked, ""]
    assert observed(establisher, [crashed(), proven()]) == ["", "X8001 | stopped"]


def test_a_worker_that_rejects_a_ring_may_still_hold_it():
    establisher = strict(tx(), leased())
    assert observed(establisher, [worker_rejects(), proven(), worker_rejects()]) == [
        "U8001 | faulted RingFault",
        "",
        "",
    ]
    assert observed(establisher, [quiesced()]) == ["X8001 | stopped"]


@pytest.mark.parametrize("fault", [crashed(8002), worker_rejects(8002), crashed(8001, edge=2)])
def test_a_fault_of_another_ring_changes_nothing(fault):
    establisher = strict(*ready())
    assert observed(establisher, [fault, stream_fault(2)]) == ["", ""]
    assert records(establisher) == "egress RD 8001"


# --- both ends on one node ---


def test_both_ends_of_an_edge_live_and_die_apart():
    establisher = strict(*BOTH_READY)
    assert records(establisher) == "egress RD 8001, ingress RD 8002"
    assert observed(establisher, [(stop(), EGRESS), *GONE]) == ["P8001 U8001", "", "", "X8001 | stopped"]
    assert records(establisher) == "egress SD 8001, ingress RD 8002"
    assert observed(establisher, [(stopped(), EGRESS), (stream_fault(), INGRESS)])[-1].startswith("P8002 U8002")
    assert records(establisher) == "ingress SG 8002"


def test_events_of_both_ends_are_addressed_to_their_own_actors():
    establisher = EdgeEstablisher(10, Semantics.STRICT)
    for event in (tx(), rx(), leased(1), leased(2, 8002), installed(), stop()):
        establisher.observe(event)
    establisher.observe(driver_ready(), INGRESS)
    for ring in (8002, 8001):
        for event in (pump_stopped(ring), quiesced(ring), proven(ring)):
            establisher.observe(event)
    establisher.observe(rx(2))
    establisher.observe(rejected(3))
    refused = EdgeRingLeaseRejectedReason(reason=RingLeaseRejection.CANNOT_FIT)
    assert establisher.drain_addressed_events() == [
        (2, EdgeStopped(edge_id=1)),
        (1, EdgeStopped(edge_id=1)),
        (3, EdgeFaulted(edge_id=2, reason=refused)),
    ]
    assert establisher.drain_events() == []


@pytest.mark.parametrize("direction", [None, EGRESS, INGRESS])
def test_an_event_with_a_ring_finds_its_end_and_no_other(direction):
    establisher = strict(tx(), rx(), leased(1), leased(2, 8002))
    establisher.observe(installed(8002), direction)
    assert records(establisher) == ("egress WW 8001, ingress " + ("WW 8002" if direction is EGRESS else "WD 8002"))


@pytest.mark.parametrize("event", [driver_ready(), stream_fault()])
def test_an_event_of_an_edge_alone_needs_no_direction_while_one_end_is_live(event):
    establisher = strict(*ready(), stop(), *GONE, rx(), leased(2, 8002), installed(8002))
    assert establisher.observe(event) is None
    assert records(establisher) != "egress SD 8001, ingress WD 8002"


@pytest.mark.parametrize("event", [driver_ready(), stream_fault()])
def test_an_event_that_could_be_of_either_end_is_turned_away(event):
    establisher = strict(tx(), rx(), leased(1), leased(2, 8002), installed(8001), installed(8002))
    assert establisher.observe(event).reason is EventRejection.DIRECTION_NEEDED
    assert establisher.observe(event, EGRESS) is None
    assert records(establisher).endswith("ingress WD 8002")
    assert not records(establisher).startswith("egress WD")


def test_a_record_is_asked_for_by_edge_and_direction():
    establisher = strict(*BOTH_READY)
    assert establisher.local_record(1, EGRESS).ring_id == 8001
    assert establisher.local_record(1, INGRESS).ring_id == 8002
    with pytest.raises(ValueError, match="both ends"):
        establisher.local_record(1)
    assert establisher.local_record(2) is None


def test_the_seed_looks_at_no_direction():
    establisher = EdgeEstablisher(10)
    assert observed(establisher, [(event, INGRESS) for event in (*ready(), stop())])[-2:] == [
        " | ready 1",
        "C1 P8001 U8001",
    ]
    assert establisher.local_record(1, INGRESS).direction is EGRESS
    assert establisher.observe(tx(node=99)) is None


# --- provisions ---

DIED = {
    "stopped": [*STOPPING, *GONE],
    "stopped before its lease": [tx(), stop()],
    "failed": [tx(), rejected()],
}
LIVE = {
    "waiting for a lease": [tx()],
    "waiting for its worker": [tx(), leased()],
    "waiting for its driver": [tx(), leased(), installed()],
    "ready": ready(),
    "stopping": STOPPING,
}


@pytest.mark.parametrize("before", DIED.values(), ids=list(DIED))
@pytest.mark.parametrize("again", [tx(), tx(run=8, consumer=12)])
def test_an_edge_that_ended_may_be_provisioned_again(before, again):
    establisher = strict(*before)
    assert observed(establisher, [again, leased(2, 8002), quiesced(8001)]) == ["L2 egress", "I8002 egress", ""]
    assert establisher.local_record(1).local_edge_actor == 2


@pytest.mark.parametrize("before", LIVE.values(), ids=list(LIVE))
@pytest.mark.parametrize(
    ("again", "reason"),
    [
        (tx(consumer=12), EventRejection.EDGE_LIVE),
        (tx(run=8), EventRejection.EDGE_LIVE),
        (tx(run=6), EventRejection.STALE_RUN),
        (tx(node=99), EventRejection.WRONG_NODE),
    ],
)
def test_a_live_edge_is_not_provisioned_anew_and_the_sender_hears_why(before, again, reason):
    establisher = strict(*before)
    was = establisher.local_records()
    rejection = establisher.observe(again)
    assert isinstance(rejection, EventRejected)
    assert rejection.reason is reason
    assert rejection.text
    assert (establisher.drain_commands(), establisher.drain_events()) == ([], [])
    assert establisher.local_records() == was
    assert observed(establisher, [tx(2)]) == ["L2 egress"]  # no number was taken


@pytest.mark.parametrize("before", LIVE.values(), ids=list(LIVE))
def test_a_live_edge_provisioned_as_it_is_changes_nothing(before):
    establisher = strict(*before)
    was = establisher.local_records()
    assert observed(establisher, [tx()]) == [""]
    assert establisher.local_records() == was


def test_both_ends_may_be_on_the_node_that_the_provision_names():
    assert observed(strict(), [tx(consumer=10), rx()]) == ["L1 egress", "L2 ingress"]


def test_the_codes_of_rejections_are_stable():
    assert [reason.value for reason in EventRejection] == [
        "wrong_node",
        "invalid_spec",
        "stale_run",
        "edge_live",
        "unknown_edge",
        "direction_needed",
    ]


# --- what is kept ---


def test_after_a_thousand_lives_nothing_is_kept_of_them():
    establisher = EdgeEstablisher(10, Semantics.STRICT)
    for life in range(1, 1001):
        ring = 8000 + life
        for event in (*ready(life, life, ring), stop(life), quiesced(ring), pump_stopped(ring, life), proven(ring)):
            establisher.observe(event)
        assert establisher.drain_events() == [
            EdgeReady(edge_id=life, local_edge_actor=life),
            EdgeStopped(edge_id=life),
        ]
        establisher.drain_commands()
        establisher.observe(stopped(life), EGRESS)
    assert establisher.local_records() == []
    lives = vars(vars(establisher)["_lives"])
    assert [len(kept) for name, kept in lives.items() if isinstance(kept, dict)] == [0, 0, 0]
    assert len(vars(establisher)["_rings_given_back"]) == 1  # one span of ids


def test_a_failed_edge_is_kept_until_it_was_stopped():
    establisher = strict(tx(), rejected(), stopped())
    assert records(establisher) == "egress FL"
    assert observed(establisher, [stop(), stopped()]) == [" | stopped", ""]
    assert records(establisher) == ""


def test_stopped_without_a_direction_forgets_both_ends_that_ended():
    establisher = strict(tx(), rx(), stop())
    assert records(establisher) == "egress SD, ingress SD"
    assert observed(establisher, [stopped()]) == [""]
    assert records(establisher) == ""
