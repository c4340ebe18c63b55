"""What is said about edges: the mailbox of the establisher, its commands and its life-cycle events.

Names, fields and their order are those of the seed, `edge_establisher.rs` (design 7, E 2.1). The JSON form carries the
class name as `type`, enums in snake case and ids as numbers from 0 to 2^64-1. Sizes are bytes, offsets are bytes from
the start of the arena, ranges are half-open. The seed calls three events and the fault reasons made from them by one
name each; here the class of the reason is `Edge...Reason`, while its tag stays the seed's (design 3).
"""

from __future__ import annotations

from enum import StrEnum
from typing import NewType

from messages.base import U64, Message, Record

RunId = NewType("RunId", U64)
"""Which epoch of an edge a provision belongs to (design 7)."""

NodeId = NewType("NodeId", U64)
"""A node as a number: the first 8 bytes of SHA-256 of its key, big-endian (design 5)."""

EdgeId = NewType("EdgeId", U64)
"""A logical edge; both of its ends use the same number."""

LeaseRequestId = NewType("LeaseRequestId", U64)
"""One request for arena memory, numbered from 1 by the establisher that asks."""

RingId = NewType("RingId", U64)
"""A local buffer in the arena of one node; never exchangeable with an `EdgeId`."""

ActorAddress = NewType("ActorAddress", U64)
"""The number of the actor at this end of an edge, given by the establisher from 1 (E 2.5 Q31)."""


class RingDirection(StrEnum):
    """`egress`: this node produces; `ingress`: this node consumes."""

    EGRESS = "egress"
    INGRESS = "ingress"


class ObjectKind(StrEnum):
    """What an object on an edge is."""

    ACTIVATION = "activation"


class DType(StrEnum):
    """Element type of an object."""

    F16 = "f16"


class RingLeaseRejection(StrEnum):
    """Why the arena gives no ring."""

    CANNOT_FIT = "cannot_fit"
    ARENA_SHUTTING_DOWN = "arena_shutting_down"


class StreamFaultReason(StrEnum):
    """What went wrong on the stream between the two ends."""

    READ_ERROR = "read_error"
    WRITE_ERROR = "write_error"
    PROTOCOL_ERROR = "protocol_error"


class RingFaultReason(StrEnum):
    """What went wrong with a ring at the worker."""

    WORKER_REJECTED_RING = "worker_rejected_ring"
    WORKER_CRASHED = "worker_crashed"


class EdgeProvisionState(StrEnum):
    """The states of a local edge record (E 2.2)."""

    WAITING_FOR_LEASE = "waiting_for_lease"
    WAITING_FOR_WORKER_RING = "waiting_for_worker_ring"
    WAITING_FOR_DRIVER = "waiting_for_driver"
    READY = "ready"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"


class ObjectSpec(Record, frozen=True, kw_only=True):
    """What travels on an edge; an object that announces more than `max_extent_bytes` is refused by the worker."""

    kind: ObjectKind
    dtype: DType
    max_extent_bytes: U64


class RingSpec(Record, frozen=True, kw_only=True):
    """What ring an end of an edge asks for: header and data in bytes, alignment of the start in bytes."""

    header_bytes: U64
    data_bytes: U64
    alignment: U64


class RingLayout(Record, frozen=True, kw_only=True):
    """Where a leased ring lies: `[start_offset, end_offset)`, its header first, then `data_bytes` of data."""

    start_offset: U64
    header_offset: U64
    data_offset: U64
    end_offset: U64
    data_bytes: U64
    alignment: U64


class QuiescenceProof(Record, frozen=True, kw_only=True):
    """Whether it is proved that nothing touches a ring any more; the arena refuses to take a ring back without."""

    verified: bool


class LocalEdgeRecord(Record, frozen=True, kw_only=True):
    """A snapshot of one end of an edge on this node. `remote_actor_address` is always `None`: the far end is addressed
    by node and edge (E 2.5 Q32)."""

    edge_id: EdgeId
    direction: RingDirection
    state: EdgeProvisionState
    lease_request_id: LeaseRequestId | None
    ring_id: RingId | None
    peer_node_id: NodeId | None
    local_edge_actor: ActorAddress
    remote_actor_address: ActorAddress | None


# --- events: what the establisher takes ---


class ProvisionTx(Message, frozen=True, kw_only=True):
    """Make `local_node_id` the producer of an edge that `consumer_node_id` consumes."""

    run_id: RunId
    edge_id: EdgeId
    local_node_id: NodeId
    consumer_node_id: NodeId
    object_spec: ObjectSpec
    ring_spec: RingSpec


class ProvisionRx(Message, frozen=True, kw_only=True):
    """Make `local_node_id` the consumer of an edge."""

    run_id: RunId
    edge_id: EdgeId
    local_node_id: NodeId
    object_spec: ObjectSpec
    ring_spec: RingSpec


class RingLeased(Message, frozen=True, kw_only=True):
    """The arena grants a ring."""

    request_id: LeaseRequestId
    ring_id: RingId
    layout: RingLayout


class RingLeaseRejected(Message, frozen=True, kw_only=True):
    """The arena refuses a ring."""

    request_id: LeaseRequestId
    reason: RingLeaseRejection


class RingInstalled(Message, frozen=True, kw_only=True):
    """The worker has mapped the ring."""

    edge_id: EdgeId
    ring_id: RingId


class DriverEdgeReady(Message, frozen=True, kw_only=True):
    """The driver's pump for this edge is running."""

    edge_id: EdgeId


class StreamFault(Message, frozen=True, kw_only=True):
    """The stream of an edge failed."""

    edge_id: EdgeId
    reason: StreamFaultReason


class RingFault(Message, frozen=True, kw_only=True):
    """The worker's side of a ring failed."""

    edge_id: EdgeId
    ring_id: RingId
    reason: RingFaultReason


class StopEdge(Message, frozen=True, kw_only=True):
    """Tear this end of the edge down."""

    edge_id: EdgeId


class PumpStopped(Message, frozen=True, kw_only=True):
    """The driver's pump no longer touches the ring."""

    edge_id: EdgeId
    ring_id: RingId


class RingQuiesced(Message, frozen=True, kw_only=True):
    """The worker no longer touches the ring."""

    ring_id: RingId


class QuiescenceProven(Message, frozen=True, kw_only=True):
    """Nothing on this node touches the ring any more."""

    ring_id: RingId


class Stopped(Message, frozen=True, kw_only=True):
    """The edge is gone; recorded without any teardown."""

    edge_id: EdgeId


EdgeEvent = (
    ProvisionTx
    | ProvisionRx
    | RingLeased
    | RingLeaseRejected
    | RingInstalled
    | DriverEdgeReady
    | StreamFault
    | RingFault
    | StopEdge
    | PumpStopped
    | RingQuiesced
    | QuiescenceProven
    | Stopped
)
"""Everything the establisher observes."""


# --- commands: what the establisher wants done ---


class LeaseRing(Message, frozen=True, kw_only=True):
    """Arena: lease a ring."""

    request_id: LeaseRequestId
    edge_id: EdgeId
    direction: RingDirection
    ring_spec: RingSpec


class CancelQueuedLease(Message, frozen=True, kw_only=True):
    """Arena: forget the request if it is still queued."""

    request_id: LeaseRequestId
    edge_id: EdgeId


class InstallWorkerRing(Message, frozen=True, kw_only=True):
    """Worker: map the ring, with the specifications exactly as provisioned."""

    edge_id: EdgeId
    ring_id: RingId
    direction: RingDirection
    layout: RingLayout
    object_spec: ObjectSpec
    ring_spec: RingSpec


class UninstallWorkerRing(Message, frozen=True, kw_only=True):
    """Worker: unmap the ring."""

    edge_id: EdgeId
    ring_id: RingId


class EstablishSend(Message, frozen=True, kw_only=True):
    """Driver: pump the ring to the consumer."""

    edge_id: EdgeId
    consumer_node_id: NodeId
    layout: RingLayout


class EstablishRecv(Message, frozen=True, kw_only=True):
    """Driver: pump what arrives for the edge into the ring."""

    edge_id: EdgeId
    layout: RingLayout


class StopPump(Message, frozen=True, kw_only=True):
    """Driver: stop the pump; harmless if there is none (E 2.5 Q10)."""

    edge_id: EdgeId
    ring_id: RingId


class ReleaseArenaLease(Message, frozen=True, kw_only=True):
    """Arena: take the ring back."""

    ring_id: RingId
    proof: QuiescenceProof


EdgeCommand = (
    LeaseRing
    | CancelQueuedLease
    | InstallWorkerRing
    | UninstallWorkerRing
    | EstablishSend
    | EstablishRecv
    | StopPump
    | ReleaseArenaLease
)
"""Everything the establisher asks of arena, worker and driver."""


# --- life-cycle events: what the establisher tells ---


class EdgeRingLeaseRejectedReason(Record, frozen=True, kw_only=True, tag="RingLeaseRejected"):
    """Faulted, because the arena refused the ring."""

    reason: RingLeaseRejection


class EdgeRingFaultReason(Record, frozen=True, kw_only=True, tag="RingFault"):
    """Faulted, because the ring failed at the worker."""

    reason: RingFaultReason


class EdgeStreamFaultReason(Record, frozen=True, kw_only=True, tag="StreamFault"):
    """Faulted, because the stream failed."""

    reason: StreamFaultReason


EdgeFaultReason = EdgeRingLeaseRejectedReason | EdgeRingFaultReason | EdgeStreamFaultReason
"""Why an edge faulted."""


class EdgeReady(Message, frozen=True, kw_only=True):
    """Bytes may flow through this end."""

    edge_id: EdgeId
    local_edge_actor: ActorAddress


class EdgeFaulted(Message, frozen=True, kw_only=True):
    """This end failed; unless the lease was refused, its teardown has begun."""

    edge_id: EdgeId
    reason: EdgeFaultReason


class EdgeStopped(Message, frozen=True, kw_only=True):
    """This end is torn down, its ring given back if it had one."""

    edge_id: EdgeId


EdgeLifecycleEvent = EdgeReady | EdgeFaulted | EdgeStopped
"""Everything the establisher tells about an edge."""
