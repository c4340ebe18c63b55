"""The traces A to N of E 2.10, in its own notation: input => commands || events -> state.

Commands: L lease, C cancel, I install, U uninstall, S send (to), R receive, P stop pump, X release, with the number of
the request or ring. Edge 1 on node 10, consumer 11.
"""

import pytest

from actors.edges.establisher import EdgeEstablisher
from messages.edge import (
    CancelQueuedLease,
    DriverEdgeReady,
    DType,
    EdgeFaulted,
    EdgeProvisionState,
    EdgeReady,
    EdgeStopped,
    EstablishRecv,
    EstablishSend,
    InstallWorkerRing,
    LeaseRing,
    ObjectKind,
    ObjectSpec,
    ProvisionRx,
    ProvisionTx,
    PumpStopped,
    QuiescenceProven,
    ReleaseArenaLease,
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

SPECS = {
    "object_spec": ObjectSpec(kind=ObjectKind.ACTIVATION, dtype=DType.F16, max_extent_bytes=4096),
    "ring_spec": RingSpec(header_bytes=128, data_bytes=4096, alignment=64),
}
LAYOUT = RingLayout(
    start_offset=0, header_offset=0, data_offset=128, end_offset=4224, data_bytes=4096, alignment=64
)  # fmt: skip
STATES = {
    "WL": EdgeProvisionState.WAITING_FOR_LEASE,
    "WW": EdgeProvisionState.WAITING_FOR_WORKER_RING,
    "WD": EdgeProvisionState.WAITING_FOR_DRIVER,
    "RD": EdgeProvisionState.READY,
    "SG": EdgeProvisionState.STOPPING,
    "SD": EdgeProvisionState.STOPPED,
    "FL": EdgeProvisionState.FAILED,
}


def tx(edge=1, node=10):
    return ProvisionTx(run_id=7, edge_id=edge, local_node_id=node, consumer_node_id=11, **SPECS)


def rx(edge=1, node=10):
    return ProvisionRx(run_id=7, edge_id=edge, local_node_id=node, **SPECS)


def leased(request=1, ring=8001):
    return RingLeased(request_id=request, ring_id=ring, layout=LAYOUT)


def installed(ring=8001, edge=1):
    return RingInstalled(edge_id=edge, ring_id=ring)


def driver_ready(edge=1):
    return DriverEdgeReady(edge_id=edge)


def stop(edge=1):
    return StopEdge(edge_id=edge)


REJECTED = RingLeaseRejected(request_id=1, reason=RingLeaseRejection.CANNOT_FIT)
STREAM_FAULT = StreamFault(edge_id=1, reason=StreamFaultReason.READ_ERROR)
RING_FAULT = RingFault(edge_id=1, ring_id=8001, reason=RingFaultReason.WORKER_REJECTED_RING)
QUIESCED = RingQuiesced(ring_id=8001)
PROVEN = QuiescenceProven(ring_id=8001)
PUMP_STOPPED = PumpStopped(edge_id=1, ring_id=8001)

TX_TO_WW = [(tx(), "L1 egress", "", "WL"), (leased(), "I8001 egress", "", "WW")]
TX_TO_RD = [*TX_TO_WW, (installed(), "S11", "", "WD"), (driver_ready(), "", "ready 1", "RD")]
RX_TO_RD = [
    (rx(), "L1 ingress", "", "WL"),
    (leased(), "I8001 ingress", "", "WW"),
    (installed(), "R", "", "WD"),
    (driver_ready(), "", "ready 1", "RD"),
]

TRACES = {
    "A, Tx and stop": [
        *TX_TO_RD,
        (stop(), "C1 P8001 U8001", "", "SG"),
        (PUMP_STOPPED, "", "", "SG"),
        (QUIESCED, "X8001", "stopped", "SD"),
        (PROVEN, "", "", "SD"),
        (driver_ready(), "", "", "SD"),
    ],
    "B, Rx and stream fault": [
        *RX_TO_RD,
        (STREAM_FAULT, "C1 P8001 U8001", "faulted StreamFault", "SG"),
        (RING_FAULT, "", "", "SG"),
        (stop(), "", "", "SG"),
        (PROVEN, "X8001", "stopped", "SD"),
        (QUIESCED, "", "", "SD"),
    ],
    "C, stop before the grant": [
        (tx(), "L1 egress", "", "WL"),
        (stop(), "C1", "stopped", "SD"),
        (leased(), "X8001", "", "SD without a ring"),
        (QUIESCED, "", "", "SD without a ring"),
    ],
    "D, rejected, stopped, granted": [
        (tx(), "L1 egress", "", "WL"),
        (REJECTED, "", "faulted RingLeaseRejected", "FL"),
        (STREAM_FAULT, "", "", "FL"),
        (stop(), "C1", "stopped", "SD"),
        (leased(), "X8001", "", "SD"),
    ],
    "E, stop during install": [
        *TX_TO_WW,
        (stop(), "C1 X8001", "stopped", "SD"),
        (installed(), "", "", "SD"),
        (QUIESCED, "", "", "SD"),
    ],
    "F, worker refuses": [
        *TX_TO_WW,
        (RING_FAULT, "C1 X8001", "faulted RingFault, stopped", "SD"),
        (installed(), "", "", "SD"),
    ],
    "G, re-provision while ready": [
        *TX_TO_RD,
        (tx(), "L2 egress", "", "WL without a ring"),
        (QUIESCED, "", "", "WL"),
        (leased(1, 8005), "", "", "WL"),
        (driver_ready(), "", "", "WL"),
        (leased(2, 8002), "I8002 egress", "", "WW"),
        (installed(8001), "", "", "WW"),
        (installed(8002), "S11", "", "WD"),
        (driver_ready(), "", "ready 2", "RD"),
    ],
    "H, both directions on one node": [
        (tx(), "L1 egress", "", "WL"),
        (rx(), "L2 ingress", "", "WL"),
        (leased(1, 8001), "", "", "WL without a ring"),
        (leased(2, 8002), "I8002 ingress", "", "WW"),
        (installed(8002), "R", "", "WD"),
    ],
    "I, duplicated grant": [
        *TX_TO_RD,
        (leased(), "X8001", "", "RD"),
        (stop(), "C1 P8001 U8001", "", "SG"),
        (QUIESCED, "X8001", "stopped", "SD"),
    ],
    "J, forced Stopped": [
        *TX_TO_RD,
        (Stopped(edge_id=1), "", "", "SD"),
        (QUIESCED, "", "", "SD"),
        (stop(), "", "", "SD"),
    ],
    "K, crash while stopping": [
        *TX_TO_RD,
        (stop(), "C1 P8001 U8001", "", "SG"),
        (RING_FAULT, "", "", "SG"),
        (stop(), "", "", "SG"),
    ],
    "L, early quiescence": [
        *TX_TO_RD,
        (QUIESCED, "", "", "RD"),
        (stop(), "C1 P8001 U8001", "", "SG"),
        (PUMP_STOPPED, "", "", "SG"),
    ],
    "M, foreign node": [
        (tx(node=99), "", "", "absent"),
        (stop(), "", "", "absent"),
        (tx(), "L1 egress", "", "WL"),
    ],
}


def written(command):
    match command:
        case LeaseRing():
            return f"L{command.request_id} {command.direction}"
        case CancelQueuedLease():
            return f"C{command.request_id}"
        case InstallWorkerRing():
            assert (command.layout, command.object_spec, command.ring_spec) == (LAYOUT, *SPECS.values())
            return f"I{command.ring_id} {command.direction}"
        case UninstallWorkerRing():
            return f"U{command.ring_id}"
        case EstablishSend():
            assert command.layout == LAYOUT
            return f"S{command.consumer_node_id}"
        case EstablishRecv():
            assert command.layout == LAYOUT
            return "R"
        case StopPump():
            return f"P{command.ring_id}"
        case ReleaseArenaLease():
            assert command.proof.verified
            return f"X{command.ring_id}"


def told(event):
    match event:
        case EdgeReady():
            return f"ready {event.local_edge_actor}"
        case EdgeFaulted():
            return f"faulted {event.reason.__struct_config__.tag}"
        case EdgeStopped():
            return "stopped"


def run(establisher, steps, edge=1):
    for position, (event, commands, events, state) in enumerate(steps):
        establisher.observe(event)
        where = f"step {position}, {event}"
        assert " ".join(map(written, establisher.drain_commands())) == commands, where
        assert ", ".join(map(told, establisher.drain_events())) == events, where
        record = establisher.local_record(edge)
        if state == "absent":
            assert record is None, where
            continue
        assert record.state == STATES[state.removesuffix(" without a ring")], where
        if state.endswith(" without a ring"):
            assert record.ring_id is None, where


@pytest.mark.parametrize("name", TRACES)
def test_a_trace_of_the_reference(name):
    run(EdgeEstablisher(10), TRACES[name])


def test_trace_n_a_dead_record_shadows_a_ring_id_used_again():
    establisher = EdgeEstablisher(10)
    run(establisher, TRACES["A, Tx and stop"])
    steps = [
        (rx(edge=2), "L2 ingress", "", "WL"),
        (leased(2, 8001), "I8001 ingress", "", "WW"),
        (installed(8001, edge=2), "R", "", "WD"),
        (driver_ready(2), "", "ready 2", "RD"),
        (stop(2), "C2 P8001 U8001", "", "SG"),
        (QUIESCED, "", "", "SG"),
    ]
    run(establisher, steps, edge=2)
    run(establisher, [(tx(), "L3 egress", "", "WL")])  # the shadow goes with the dead record
    run(establisher, [(QUIESCED, "X8001", "stopped", "SD")], edge=2)


def test_of_two_records_with_one_ring_the_lower_edge_id_is_found_whichever_came_first():
    establisher = EdgeEstablisher(10)
    for request, edge in ((1, 9), (2, 3)):
        for event in (tx(edge), leased(request), installed(edge=edge), stop(edge)):
            establisher.observe(event)
    establisher.drain_events()
    establisher.observe(QUIESCED)
    assert establisher.drain_events() == [EdgeStopped(edge_id=3)]
    establisher.observe(QUIESCED)
    assert establisher.drain_events() == []
