"""Every cell of the table of E 2.3: each state, reached by its shortest path, meets each event of each guard."""

import pytest

from actors.edges.establisher import EdgeEstablisher
from messages.edge import (
    CancelQueuedLease,
    DriverEdgeReady,
    DType,
    EdgeFaulted,
    EdgeId,
    EdgeProvisionState,
    EdgeReady,
    EdgeRingFaultReason,
    EdgeRingLeaseRejectedReason,
    EdgeStopped,
    EdgeStreamFaultReason,
    EstablishRecv,
    EstablishSend,
    InstallWorkerRing,
    LeaseRing,
    ObjectKind,
    ObjectSpec,
    ProvisionRx,
    ProvisionTx,
    PumpStopped,
    QuiescenceProof,
    QuiescenceProven,
    ReleaseArenaLease,
    RingDirection,
    RingFault,
    RingFaultReason,
    RingInstalled,
    RingLayout,
    RingLeased,
    RingLeaseRejected,
    RingLeaseRejection,
    RingQuiesced,
    RingSpec,
    StopEdge,
    Stopped,
    StopPump,
    StreamFault,
    StreamFaultReason,
    UninstallWorkerRing,
)

NODE, CONSUMER, EDGE, RING, OTHER_RING = 10, 11, 1, 8001, 8002
OBJECT_SPEC = ObjectSpec(kind=ObjectKind.ACTIVATION, dtype=DType.F16, max_extent_bytes=4096)
RING_SPEC = RingSpec(header_bytes=128, data_bytes=4096, alignment=64)
VERIFIED = QuiescenceProof(verified=True)


def layout_at(start: int) -> RingLayout:
    return RingLayout(
        start_offset=start,
        header_offset=start,
        data_offset=start + 128,
        end_offset=start + 4224,
        data_bytes=4096,
        alignment=64,
    )


LAYOUT = layout_at(0)


def provision(direction: RingDirection, local: int = NODE):
    common = {
        "run_id": 7,
        "edge_id": EDGE,
        "local_node_id": local,
        "object_spec": OBJECT_SPEC,
        "ring_spec": RING_SPEC,
    }
    if direction is RingDirection.EGRESS:
        return ProvisionTx(consumer_node_id=CONSUMER, **common)
    return ProvisionRx(**common)


GRANT = RingLeased(request_id=1, ring_id=RING, layout=LAYOUT)
LATE_GRANT = RingLeased(request_id=1, ring_id=OTHER_RING, layout=layout_at(8192))
REJECTION = RingLeaseRejected(request_id=1, reason=RingLeaseRejection.CANNOT_FIT)
INSTALLED = RingInstalled(edge_id=EDGE, ring_id=RING)
DRIVER_READY = DriverEdgeReady(edge_id=EDGE)
STREAM_FAULT = StreamFault(edge_id=EDGE, reason=StreamFaultReason.WRITE_ERROR)
RING_FAULT = RingFault(edge_id=EDGE, ring_id=RING, reason=RingFaultReason.WORKER_CRASHED)
STOP = StopEdge(edge_id=EDGE)

# The way into each state, after the provision. SD and FL exist with and without a ring.
WAYS = {
    "WL": [],
    "WW": [GRANT],
    "WD": [GRANT, INSTALLED],
    "RD": [GRANT, INSTALLED, DRIVER_READY],
    "SG": [GRANT, INSTALLED, DRIVER_READY, STOP],
    "SD": [GRANT, INSTALLED, DRIVER_READY, STOP, RingQuiesced(ring_id=RING)],
    "SD without a ring": [STOP],
    "FL": [REJECTION],
}
NAMES = {
    "WL": EdgeProvisionState.WAITING_FOR_LEASE,
    "WW": EdgeProvisionState.WAITING_FOR_WORKER_RING,
    "WD": EdgeProvisionState.WAITING_FOR_DRIVER,
    "RD": EdgeProvisionState.READY,
    "SG": EdgeProvisionState.STOPPING,
    "SD": EdgeProvisionState.STOPPED,
    "SD without a ring": EdgeProvisionState.STOPPED,
    "FL": EdgeProvisionState.FAILED,
}
STATES = list(WAYS)

CANCEL = CancelQueuedLease(request_id=1, edge_id=EDGE)
STOP_PUMP = StopPump(edge_id=EDGE, ring_id=RING)
UNINSTALL = UninstallWorkerRing(edge_id=EDGE, ring_id=RING)
RELEASE = ReleaseArenaLease(ring_id=RING, proof=VERIFIED)
RELEASE_OTHER = ReleaseArenaLease(ring_id=OTHER_RING, proof=VERIFIED)
STOPPED = EdgeStopped(edge_id=EDGE)
READY = EdgeReady(edge_id=EDGE, local_edge_actor=1)
STREAM_FAULTED = EdgeFaulted(edge_id=EDGE, reason=EdgeStreamFaultReason(reason=StreamFaultReason.WRITE_ERROR))
RING_FAULTED = EdgeFaulted(edge_id=EDGE, reason=EdgeRingFaultReason(reason=RingFaultReason.WORKER_CRASHED))
REFUSED = EdgeFaulted(edge_id=EDGE, reason=EdgeRingLeaseRejectedReason(reason=RingLeaseRejection.CANNOT_FIT))


def install(direction):
    return InstallWorkerRing(
        edge_id=EDGE, ring_id=RING, direction=direction, layout=LAYOUT, object_spec=OBJECT_SPEC, ring_spec=RING_SPEC
    )


def establish(direction):
    if direction is RingDirection.EGRESS:
        return EstablishSend(edge_id=EDGE, consumer_node_id=CONSUMER, layout=LAYOUT)
    return EstablishRecv(edge_id=EDGE, layout=LAYOUT)


def teardown(event):
    return {
        "WL": ("SD", [CANCEL], [event, STOPPED]),
        "WW": ("SD", [CANCEL, RELEASE], [event, STOPPED]),
        "WD": ("SG", [CANCEL, STOP_PUMP, UNINSTALL], [event]),
        "RD": ("SG", [CANCEL, STOP_PUMP, UNINSTALL], [event]),
    }


def without_fault(cells):
    return {state: (to, commands, events[1:]) for state, (to, commands, events) in cells.items()}


def quiescent():
    return {"SG": ("SD", [RELEASE], [STOPPED])}


def table(direction):
    """Per event the states that react: next state, commands, life-cycle events. All other cells are `·`."""
    faulted = teardown(STREAM_FAULTED)
    ring_faulted = {state: cell for state, cell in teardown(RING_FAULTED).items() if state != "WL"}
    return [
        (provision(RingDirection.EGRESS, local=99), {}),
        (provision(RingDirection.INGRESS, local=99), {}),
        (RingLeased(request_id=99, ring_id=RING, layout=LAYOUT), {}),
        (
            LATE_GRANT,
            {state: (state, [RELEASE_OTHER], []) for state in STATES if state != "WL"},
        ),
        (
            GRANT,
            {state: (state, [RELEASE], []) for state in STATES} | {"WL": ("WW", [install(direction)], [])},
        ),
        (REJECTION, {"WL": ("FL", [], [REFUSED])}),
        (RingLeaseRejected(request_id=99, reason=RingLeaseRejection.CANNOT_FIT), {}),
        (INSTALLED, {"WW": ("WD", [establish(direction)], [])}),
        (RingInstalled(edge_id=EDGE, ring_id=OTHER_RING), {}),
        (DRIVER_READY, {"WD": ("RD", [], [READY])}),
        (STREAM_FAULT, faulted),
        (RING_FAULT, ring_faulted),
        (RingFault(edge_id=EDGE, ring_id=OTHER_RING, reason=RingFaultReason.WORKER_CRASHED), {}),
        (STOP, without_fault(teardown(None)) | {"FL": ("SD", [CANCEL], [STOPPED])}),
        (PumpStopped(edge_id=EDGE, ring_id=RING), {}),
        (PumpStopped(edge_id=EDGE, ring_id=OTHER_RING), {}),
        (RingQuiesced(ring_id=RING), quiescent()),
        (RingQuiesced(ring_id=OTHER_RING), {}),
        (QuiescenceProven(ring_id=RING), quiescent()),
        (QuiescenceProven(ring_id=OTHER_RING), {}),
        (Stopped(edge_id=EDGE), {state: ("SD", [], []) for state in STATES}),
    ]


CELLS = [
    pytest.param(direction, state, event, cells.get(state, (state, [], [])), id=f"{direction}-{state}-{event}"[:90])
    for direction in RingDirection
    for event, cells in table(direction)
    for state in STATES
    if not (event is LATE_GRANT and state == "WL")  # the first grant of all, whichever ring: GRANT's cell
]


def reach(direction, state):
    establisher = EdgeEstablisher(NODE)
    establisher.observe(provision(direction))
    for event in WAYS[state]:
        establisher.observe(event)
    establisher.drain_commands()
    establisher.drain_events()
    assert establisher.local_record(EDGE).state == NAMES[state]
    return establisher


@pytest.mark.parametrize(("direction", "state", "event", "expected"), CELLS)
def test_a_state_meets_an_event(direction, state, event, expected):
    establisher = reach(direction, state)
    before = establisher.local_record(EDGE)
    establisher.observe(event)
    to, commands, events = expected
    after = establisher.local_record(EDGE)
    assert establisher.drain_commands() == commands
    assert establisher.drain_events() == events
    assert after.state == NAMES[to]
    assert after.lease_request_id == before.lease_request_id == 1
    assert after.local_edge_actor == before.local_edge_actor == 1
    assert after.direction == direction
    assert after.ring_id == (RING if event is GRANT and state == "WL" else before.ring_id)
    assert after.peer_node_id == (CONSUMER if direction is RingDirection.EGRESS else None)
    assert after.remote_actor_address is None


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("first", list(RingDirection))
@pytest.mark.parametrize("second", list(RingDirection))
def test_a_provision_replaces_the_record_of_every_state(first, second, state):
    establisher = reach(first, state)
    establisher.observe(provision(second))
    assert establisher.drain_commands() == [
        LeaseRing(request_id=2, edge_id=EDGE, direction=second, ring_spec=RING_SPEC),
    ]
    assert establisher.drain_events() == []
    record = establisher.local_record(EDGE)
    assert (record.state, record.direction) == (EdgeProvisionState.WAITING_FOR_LEASE, second)
    assert (record.lease_request_id, record.local_edge_actor, record.ring_id) == (2, 2, None)


@pytest.mark.parametrize("direction", list(RingDirection))
def test_a_provision_of_an_absent_edge_asks_for_a_lease(direction):
    establisher = EdgeEstablisher(NODE)
    establisher.observe(provision(direction))
    assert establisher.drain_commands() == [
        LeaseRing(request_id=1, edge_id=EDGE, direction=direction, ring_spec=RING_SPEC),
    ]
    assert establisher.drain_events() == []


@pytest.mark.parametrize(
    "event",
    [event for event, _ in table(RingDirection.EGRESS)],
    ids=lambda event: type(event).__name__,
)
def test_an_absent_edge_ignores_every_other_event(event):
    establisher = EdgeEstablisher(NODE)
    establisher.observe(event)
    assert (establisher.drain_commands(), establisher.drain_events()) == ([], [])
    assert establisher.local_record(EdgeId(EDGE)) is None
    establisher.observe(provision(RingDirection.EGRESS))
    assert establisher.local_record(EDGE).lease_request_id == 1  # no id was consumed


@pytest.mark.parametrize("reason", list(StreamFaultReason))
def test_a_stream_fault_is_told_with_its_reason(reason):
    establisher = reach(RingDirection.INGRESS, "RD")
    establisher.observe(StreamFault(edge_id=EDGE, reason=reason))
    assert establisher.drain_events() == [EdgeFaulted(edge_id=EDGE, reason=EdgeStreamFaultReason(reason=reason))]


@pytest.mark.parametrize("reason", list(RingFaultReason))
def test_a_ring_fault_is_told_with_its_reason(reason):
    establisher = reach(RingDirection.INGRESS, "RD")
    establisher.observe(RingFault(edge_id=EDGE, ring_id=RING, reason=reason))
    assert establisher.drain_events() == [EdgeFaulted(edge_id=EDGE, reason=EdgeRingFaultReason(reason=reason))]


@pytest.mark.parametrize("reason", list(RingLeaseRejection))
def test_a_refused_lease_is_told_with_its_reason(reason):
    establisher = reach(RingDirection.INGRESS, "WL")
    establisher.observe(RingLeaseRejected(request_id=1, reason=reason))
    assert establisher.drain_events() == [EdgeFaulted(edge_id=EDGE, reason=EdgeRingLeaseRejectedReason(reason=reason))]
