"""Every fault code has its seed event, and none is lost between the record reader and the operator."""

import pytest

from actors.edges.faults import REASONS, code_of, reported_fault, seed_event
from actors.edges.records import CODES
from messages.edge import (
    EdgeRingFaultReason,
    EdgeRingLeaseRejectedReason,
    EdgeStreamFaultReason,
    RingDirection,
    RingFault,
    RingFaultReason,
    RingLeaseRejected,
    RingLeaseRejection,
    StopEdge,
    StreamFault,
    StreamFaultReason,
)
from messages.edge_end import EdgeFaultCode as Code

HERE = {"edge_id": 7, "ring_id": 3, "request_id": 9}


def test_every_code_is_in_the_table():
    assert set(REASONS) == set(Code)


def test_every_fault_of_a_record_is_a_fault_code_of_the_stream():
    for code in CODES:
        assert REASONS[Code(code)] is StreamFaultReason.PROTOCOL_ERROR


@pytest.mark.parametrize(
    ("code", "event"),
    [
        (Code.CANNOT_FIT, RingLeaseRejected(request_id=9, reason=RingLeaseRejection.CANNOT_FIT)),
        (Code.LEASE_TIMEOUT, StopEdge(edge_id=7)),
        (Code.INSTALL_TIMEOUT, RingFault(edge_id=7, ring_id=3, reason=RingFaultReason.WORKER_REJECTED_RING)),
        (Code.WORKER_CRASHED, RingFault(edge_id=7, ring_id=3, reason=RingFaultReason.WORKER_CRASHED)),
        (Code.DRIVER_TIMEOUT, StreamFault(edge_id=7, reason=StreamFaultReason.PROTOCOL_ERROR)),
    ],
)
def test_each_deadline_and_refusal_becomes_the_event_that_the_design_names(code, event):
    assert seed_event(code, direction=RingDirection.INGRESS, **HERE) == event


def test_a_lost_link_is_a_write_error_at_the_sending_end_and_a_read_error_at_the_other():
    reasons = {side: seed_event(Code.LINK_LOST, direction=side, **HERE).reason for side in RingDirection}
    assert reasons == {
        RingDirection.EGRESS: StreamFaultReason.WRITE_ERROR,
        RingDirection.INGRESS: StreamFaultReason.READ_ERROR,
    }


@pytest.mark.parametrize("code", list(Code))
def test_whatever_a_pump_or_worker_reports_faults_the_ring_in_use_but_never_proves_a_crash(code):
    for streaming in (True, False):
        event = reported_fault(code, edge_id=7, direction=RingDirection.EGRESS, ring_id=3, streaming=streaming)
        assert isinstance(event, RingFault | StreamFault if streaming else RingFault)
        assert event.edge_id == 7
        assert event.reason is not RingFaultReason.WORKER_CRASHED


@pytest.mark.parametrize("code", [Code.CANNOT_FIT, Code.WORKER_REFUSED])
def test_a_code_whose_ring_or_request_is_missing_is_an_error(code):
    with pytest.raises(ValueError, match=code):
        seed_event(code, edge_id=7, direction=RingDirection.EGRESS)


def test_every_reason_of_the_seed_has_a_code_of_the_same_kind():
    reasons = [
        *(EdgeRingLeaseRejectedReason(reason=reason) for reason in RingLeaseRejection),
        *(EdgeRingFaultReason(reason=reason) for reason in RingFaultReason),
        *(EdgeStreamFaultReason(reason=reason) for reason in StreamFaultReason),
    ]
    for reason in reasons:
        assert type(REASONS[code_of(reason)]) is type(reason.reason)
