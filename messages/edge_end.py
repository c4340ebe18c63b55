"""The mailbox of `NODE.edges/edges`, and what the actors of its edge ends tell (design 7, E 7.1).

An edge end is one side of one life of an edge on one node; its key is `(edge_id, direction)`, so a producer and its
consumer may share a node. Payload bytes never travel in these messages.
"""

from __future__ import annotations

from enum import StrEnum

from messages.base import U64, Message, NodeName, Record, Request
from messages.control import Epoch
from messages.edge import (
    ActorAddress,
    EdgeFaulted,
    EdgeId,
    EdgeProvisionState,
    EdgeReady,
    EdgeStopped,
    ObjectSpec,
    RingDirection,
    RingId,
    RingSpec,
    RunId,
)
from messages.system import Done, Down, PeerDown, PeerUp


class EdgeFaultCode(StrEnum):
    """Why an edge faulted, in one word that reaches the operator; `actors.edges.faults` maps each to a seed reason."""

    CANNOT_FIT = "cannot_fit"
    ARENA_SHUTTING_DOWN = "arena_shutting_down"
    ARENA_FAILED = "arena_failed"
    LEASE_TIMEOUT = "lease_timeout"
    WORKER_NOT_RUNNING = "worker_not_running"
    WORKER_REFUSED = "worker_refused"
    WORKER_CRASHED = "worker_crashed"
    INSTALL_TIMEOUT = "install_timeout"
    RING_HEADER_CHANGED = "ring_header_changed"
    CURSOR_BEYOND_CAPACITY = "cursor_beyond_capacity"
    UNSUPPORTED_MAGIC = "unsupported_magic"
    UNSUPPORTED_VERSION = "unsupported_version"
    MALFORMED_HEADER_LENGTH = "malformed_header_length"
    MALFORMED_HEADER = "malformed_header"
    EXTENT_EXCEEDS_MAX = "extent_exceeds_max"
    EXTENT_ALIGNMENT_VIOLATION = "extent_alignment_violation"
    SEQUENCE_VIOLATION = "sequence_violation"
    EOF_BEFORE_FULL_PAYLOAD = "eof_before_full_payload"
    NOT_THE_PRODUCER = "not_the_producer"
    STALE_EPOCH = "stale_epoch"
    PEER_RESTARTED = "peer_restarted"
    LINK_LOST = "link_lost"
    CREDIT_EXCEEDED = "credit_exceeded"
    MALFORMED_FRAME = "malformed_frame"
    DRIVER_TIMEOUT = "driver_timeout"
    TEARDOWN_TIMEOUT = "teardown_timeout"
    EDGES_RESTARTED = "edges_restarted"


class EndRefusal(StrEnum):
    """Why an edge end was not opened; nothing was done."""

    NOT_ALLOWED = "not_allowed"
    NOT_HERE = "not_here"
    INVALID = "invalid"
    CONFLICT = "conflict"
    STALE_EPOCH = "stale_epoch"


class EdgeParty(Record, frozen=True, kw_only=True):
    """Who is at one end: the node, its edges process (`shed.edges`), the placed instance and its epoch, the port.

    `port`: 1 to 63 lower-case letters, digits and hyphens, named by the workload.
    """

    node_id: str
    process: NodeName
    instance_id: str
    epoch: Epoch
    port: str


class Progress(Record, frozen=True, kw_only=True):
    """What an end has moved since it was opened. Sizes in bytes; `last_*` absent before the first object.

    `bytes` counts records whole, headers included, as they enter (egress) or leave for (ingress) the ring;
    `in_flight_bytes`: egress: committed by the producer and not yet acknowledged by the far ring; ingress: committed
    into the ring and not yet consumed. `stalls`: how often the pump had something to move and no room for it.
    """

    objects: U64 = 0
    bytes: U64 = 0
    bytes_per_s: float = 0.0
    in_flight_bytes: U64 = 0
    ring_bytes: U64 = 0
    stalls: U64 = 0
    stalled: bool = False
    last_object_id: U64 | None = None
    last_sequence: U64 | None = None
    duplicates_dropped: U64 = 0
    resumed: U64 = 0


class EndReport(Record, frozen=True, kw_only=True):
    """One edge end as its node sees it. `fault` with `fault_text`: what made it end, once it has faulted.

    `ended`: every object that the producer sent before it closed the port has arrived (egress: was acknowledged;
    ingress: was consumed).
    """

    name: str
    edge_id: EdgeId
    run_id: RunId
    direction: RingDirection
    state: EdgeProvisionState
    instance_id: str
    port: str
    local_edge_actor: ActorAddress
    ring_id: RingId | None = None
    peer: NodeName
    fault: EdgeFaultCode | None = None
    fault_text: str = ""
    ended: bool = False
    progress: Progress = Progress()


class ArenaSample(Record, frozen=True, kw_only=True):
    """Ring memory of one node (E 3.8), bytes and counts."""

    capacity_bytes: U64
    live_bytes: U64
    free_bytes: U64
    active_leases: U64
    pending_leases: U64
    largest_free_range_bytes: U64
    allocation_failures_total: U64
    release_failures_total: U64


# --- asked by the planner, or read by the operator ---


class EdgeOpened(Message, frozen=True, kw_only=True):
    """The end exists (again, or already); what becomes of it is told as `EndChanged`."""

    incarnation: U64
    report: EndReport


class OpenEdge(Request[EdgeOpened], frozen=True, kw_only=True):
    """Planner: make this node's end of one life of an edge. Unpacked into `ProvisionTx` or `ProvisionRx`.

    `run_id` is the edge's epoch (durable counter) and the generation of its ring; `edge_id` is new for each life. The
    same order again is a no-op with the same answer. Refused with `EndRefusal`; with `KernelRefusal.OVERLOADED` where
    there are as many ends as the process can have: the same order may be given again.
    """

    name: str
    run_id: RunId
    edge_id: EdgeId
    direction: RingDirection
    producer: EdgeParty
    consumer: EdgeParty
    object_spec: ObjectSpec
    ring_spec: RingSpec


class CloseEdge(Request[Done], frozen=True, kw_only=True):
    """Planner: tear this end down. Answered at once, also for an end that is not there (E 2.5 Q24)."""

    edge_id: EdgeId
    direction: RingDirection
    reason: str


class ProducerEstablished(Message, frozen=True, kw_only=True):
    """Planner to the consumer's end: the producer's pump runs, so the wait for its stream counts (design 7)."""

    edge_id: EdgeId


class Ends(Message, frozen=True, kw_only=True):
    """Every end that this edges process has, in order of edge id and direction; terminal ones until they are pruned."""

    process: NodeName
    incarnation: U64
    ends: list[EndReport]
    arena: ArenaSample


class ListEnds(Request[Ends], frozen=True, kw_only=True):
    """What ends are here?"""


class RunFound(Message, frozen=True, kw_only=True):
    """Whether the instance runs at that epoch; `detail` says more where there is more than that it does not.

    `run`: tells its runs apart, each from its start to its end.
    """

    runs: bool
    run: str = ""
    detail: str = ""


class FindRun(Request[RunFound], frozen=True, kw_only=True):
    """Does this instance run here at this epoch, so that a ring could be handed to it? Changes nothing.

    Asked of `NODE.edges/edges`, which asks its `workers` port. Refused where it cannot be told.
    """

    instance_id: str
    epoch: Epoch


class BounceLink(Request[Done], frozen=True, kw_only=True):
    """Operator: cut the data link to the edges process `peer` once; it dials again and streams resume."""

    peer: NodeName


# --- told to the planner (`controller/edges`) ---


class EndChanged(Message, frozen=True, kw_only=True):
    """Told by the actor of one end when its state or its fault changed, or its stream ended."""

    process: NodeName
    incarnation: U64
    report: EndReport


class EndsBeat(Message, frozen=True, kw_only=True):
    """Told by `NODE.edges/edges` each beat, and first of all when it starts: everything that is there."""

    process: NodeName
    incarnation: U64
    ends: list[EndReport]
    arena: ArenaSample


# --- the mailbox of one end, `NODE.edges/edge/NUMBER` ---


class FaultNoted(Message, frozen=True, kw_only=True):
    """The detail of the fault that the next `EdgeFaulted` tells: the seed's reasons have no room for it."""

    code: EdgeFaultCode
    text: str


class ObjectsMoved(Message, frozen=True, kw_only=True):
    """Identity of the newest object and totals, told at intervals while objects move (E 7.1: identities, no bytes)."""

    progress: Progress


class EndBound(Message, frozen=True, kw_only=True):
    """State and ring of the end changed without a life-cycle event."""

    state: EdgeProvisionState
    ring_id: RingId | None


class StreamFinished(Message, frozen=True, kw_only=True):
    """Everything the producer sent before it closed has passed this end."""


EdgeActorMessage = EdgeReady | EdgeFaulted | EdgeStopped | FaultNoted | ObjectsMoved | EndBound | StreamFinished


# --- timers of `NODE.edges/edges` ---


class EndsBeatDue(Message, frozen=True, kw_only=True):
    """Its own timer."""


class WaitOver(Message, frozen=True, kw_only=True):
    """Its own timer: the wait `serial` of one end has lasted too long, unless it is over already."""

    edge_id: EdgeId
    direction: RingDirection
    serial: U64


EdgesControl = (
    OpenEdge
    | CloseEdge
    | ProducerEstablished
    | ListEnds
    | FindRun
    | BounceLink
    | EndsBeatDue
    | WaitOver
    | Down
    | PeerUp
    | PeerDown
)
