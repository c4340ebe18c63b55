"""Which event of the seed an edge fault becomes (design 7): the seed has seven reasons, the operator is told one of
`EdgeFaultCode`.

The code and its text travel beside the seed's event, never instead of it: the machine tears down by the reason, the
report carries the code.
"""

from __future__ import annotations

from collections.abc import Mapping

from messages.edge import (
    EdgeFaultReason,
    EdgeId,
    EdgeRingFaultReason,
    EdgeRingLeaseRejectedReason,
    EdgeStreamFaultReason,
    LeaseRequestId,
    RingDirection,
    RingFault,
    RingFaultReason,
    RingId,
    RingLeaseRejected,
    RingLeaseRejection,
    StopEdge,
    StreamFault,
    StreamFaultReason,
)
from messages.edge_end import EdgeFaultCode

Code = EdgeFaultCode

_REJECTED = RingFaultReason.WORKER_REJECTED_RING
_PROTOCOL = StreamFaultReason.PROTOCOL_ERROR

REASONS: Mapping[EdgeFaultCode, RingLeaseRejection | RingFaultReason | StreamFaultReason | None] = {
    Code.CANNOT_FIT: RingLeaseRejection.CANNOT_FIT,
    Code.ARENA_SHUTTING_DOWN: RingLeaseRejection.ARENA_SHUTTING_DOWN,
    Code.ARENA_FAILED: _REJECTED,
    Code.LEASE_TIMEOUT: None,
    Code.WORKER_NOT_RUNNING: _REJECTED,
    Code.WORKER_REFUSED: _REJECTED,
    Code.WORKER_CRASHED: RingFaultReason.WORKER_CRASHED,
    Code.INSTALL_TIMEOUT: _REJECTED,
    Code.RING_HEADER_CHANGED: _REJECTED,
    Code.CURSOR_BEYOND_CAPACITY: _REJECTED,
    Code.UNSUPPORTED_MAGIC: _PROTOCOL,
    Code.UNSUPPORTED_VERSION: _PROTOCOL,
    Code.MALFORMED_HEADER_LENGTH: _PROTOCOL,
    Code.MALFORMED_HEADER: _PROTOCOL,
    Code.EXTENT_EXCEEDS_MAX: _PROTOCOL,
    Code.EXTENT_ALIGNMENT_VIOLATION: _PROTOCOL,
    Code.SEQUENCE_VIOLATION: _PROTOCOL,
    Code.EOF_BEFORE_FULL_PAYLOAD: _PROTOCOL,
    Code.NOT_THE_PRODUCER: _PROTOCOL,
    Code.STALE_EPOCH: _PROTOCOL,
    Code.PEER_RESTARTED: _PROTOCOL,
    Code.LINK_LOST: StreamFaultReason.READ_ERROR,
    Code.CREDIT_EXCEEDED: _PROTOCOL,
    Code.MALFORMED_FRAME: _PROTOCOL,
    Code.DRIVER_TIMEOUT: _PROTOCOL,
    Code.TEARDOWN_TIMEOUT: None,
    Code.EDGES_RESTARTED: None,
}
"""`None`: the seed has no reason for it and the end is only stopped. At the sending end `read_error` is
`write_error`."""

_CODES: Mapping[RingLeaseRejection | RingFaultReason | StreamFaultReason, EdgeFaultCode] = {
    RingLeaseRejection.CANNOT_FIT: Code.CANNOT_FIT,
    RingLeaseRejection.ARENA_SHUTTING_DOWN: Code.ARENA_SHUTTING_DOWN,
    RingFaultReason.WORKER_REJECTED_RING: Code.WORKER_REFUSED,
    RingFaultReason.WORKER_CRASHED: Code.WORKER_CRASHED,
    StreamFaultReason.READ_ERROR: Code.LINK_LOST,
    StreamFaultReason.WRITE_ERROR: Code.LINK_LOST,
    StreamFaultReason.PROTOCOL_ERROR: Code.MALFORMED_FRAME,
}


def seed_event(
    code: EdgeFaultCode,
    *,
    edge_id: EdgeId,
    direction: RingDirection,
    ring_id: RingId | None = None,
    request_id: LeaseRequestId | None = None,
) -> RingLeaseRejected | RingFault | StreamFault | StopEdge:
    """What the establisher observes for `code`. Raises `ValueError` when the ring or request that it names is missing.

    `ring_id` is needed for faults of the ring, `request_id` for refusals of a lease.
    """
    match REASONS[code]:
        case None:
            return StopEdge(edge_id=edge_id)
        case RingLeaseRejection() as rejection:
            if request_id is None:
                raise ValueError(f"{code}: a refusal of a lease needs the request it answers")
            return RingLeaseRejected(request_id=request_id, reason=rejection)
        case RingFaultReason() as reason:
            if ring_id is None:
                raise ValueError(f"{code}: a fault of a ring needs the ring")
            return RingFault(edge_id=edge_id, ring_id=ring_id, reason=reason)
        case StreamFaultReason.READ_ERROR if direction is RingDirection.EGRESS:
            return StreamFault(edge_id=edge_id, reason=StreamFaultReason.WRITE_ERROR)
        case StreamFaultReason() as broken:
            return StreamFault(edge_id=edge_id, reason=broken)


def reported_fault(
    code: EdgeFaultCode, *, edge_id: EdgeId, direction: RingDirection, ring_id: RingId, streaming: bool
) -> RingFault | StreamFault:
    """What a fault becomes that a pump or a worker reports of a ring which it has been given.

    A crash is believed of `WorkerGone` alone: the establisher takes `worker_crashed` for a worker that touches nothing
    any more. A code that is not theirs to tell (a refused lease, a restart) faults the edge all the same, and so does
    one of a stream before there is any (not `streaming`, E 2.5 Q18).
    """
    reason = REASONS[code]
    if isinstance(reason, RingFaultReason) or not streaming:
        return RingFault(edge_id=edge_id, ring_id=ring_id, reason=RingFaultReason.WORKER_REJECTED_RING)
    if isinstance(reason, StreamFaultReason):
        event = seed_event(code, edge_id=edge_id, direction=direction)
        assert isinstance(event, StreamFault)
        return event
    return StreamFault(edge_id=edge_id, reason=StreamFaultReason.PROTOCOL_ERROR)


def code_of(reason: EdgeFaultReason) -> EdgeFaultCode:
    """The code for a seed reason that came without one."""
    match reason:
        case EdgeRingLeaseRejectedReason() | EdgeRingFaultReason() | EdgeStreamFaultReason():
            return _CODES[reason.reason]
