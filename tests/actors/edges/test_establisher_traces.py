"""The traces A to N of E 2.10, in its own notation: input => commands || events -> state."""

import pytest

from actors.edges.establisher import EdgeEstablisher
from messages.edge import EdgeStopped
from tests.actors.edges.notation import (
    STATES,
    driver_ready,
    installed,
    leased,
    proven,
    pump_stopped,
    quiesced,
    rejected,
    rx,
    stop,
    stopped,
    stream_fault,
    told,
    tx,
    worker_rejects,
    written,
)

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
        (pump_stopped(), "", "", "SG"),
        (quiesced(), "X8001", "stopped", "SD"),
        (proven(), "", "", "SD"),
        (driver_ready(), "", "", "SD"),
    ],
    "B, Rx and stream fault": [
        *RX_TO_RD,
        (stream_fault(), "C1 P8001 U8001", "faulted StreamFault", "SG"),
        (worker_rejects(), "", "", "SG"),
        (stop(), "", "", "SG"),
        (proven(), "X8001", "stopped", "SD"),
        (quiesced(), "", "", "SD"),
    ],
    "C, stop before the grant": [
        (tx(), "L1 egress", "", "WL"),
        (stop(), "C1", "stopped", "SD"),
        (leased(), "X8001", "", "SD without a ring"),
        (quiesced(), "", "", "SD without a ring"),
    ],
    "D, rejected, stopped, granted": [
        (tx(), "L1 egress", "", "WL"),
        (rejected(), "", "faulted RingLeaseRejected", "FL"),
        (stream_fault(), "", "", "FL"),
        (stop(), "C1", "stopped", "SD"),
        (leased(), "X8001", "", "SD"),
    ],
    "E, stop during install": [
        *TX_TO_WW,
        (stop(), "C1 X8001", "stopped", "SD"),
        (installed(), "", "", "SD"),
        (quiesced(), "", "", "SD"),
    ],
    "F, worker refuses": [
        *TX_TO_WW,
        (worker_rejects(), "C1 X8001", "faulted RingFault, stopped", "SD"),
        (installed(), "", "", "SD"),
    ],
    "G, re-provision while ready": [
        *TX_TO_RD,
        (tx(), "L2 egress", "", "WL without a ring"),
        (quiesced(), "", "", "WL"),
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
        (quiesced(), "X8001", "stopped", "SD"),
    ],
    "J, forced Stopped": [
        *TX_TO_RD,
        (stopped(), "", "", "SD"),
        (quiesced(), "", "", "SD"),
        (stop(), "", "", "SD"),
    ],
    "K, crash while stopping": [
        *TX_TO_RD,
        (stop(), "C1 P8001 U8001", "", "SG"),
        (worker_rejects(), "", "", "SG"),
        (stop(), "", "", "SG"),
    ],
    "L, early quiescence": [
        *TX_TO_RD,
        (quiesced(), "", "", "RD"),
        (stop(), "C1 P8001 U8001", "", "SG"),
        (pump_stopped(), "", "", "SG"),
    ],
    "M, foreign node": [
        (tx(node=99), "", "", "absent"),
        (stop(), "", "", "absent"),
        (tx(), "L1 egress", "", "WL"),
    ],
}


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
        (quiesced(), "", "", "SG"),
    ]
    run(establisher, steps, edge=2)
    run(establisher, [(tx(), "L3 egress", "", "WL")])  # the shadow goes with the dead record
    run(establisher, [(quiesced(), "X8001", "stopped", "SD")], edge=2)


def test_of_two_records_with_one_ring_the_lower_edge_id_is_found_whichever_came_first():
    establisher = EdgeEstablisher(10)
    for request, edge in ((1, 9), (2, 3)):
        for event in (tx(edge), leased(request), installed(edge=edge), stop(edge)):
            establisher.observe(event)
    establisher.drain_events()
    establisher.observe(quiesced())
    assert establisher.drain_events() == [EdgeStopped(edge_id=3)]
    establisher.observe(quiesced())
    assert establisher.drain_events() == []
