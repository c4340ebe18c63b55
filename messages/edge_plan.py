"""The mailbox of `controller/edges`, the edge planner: which edges shall be, and what became of them (design 7)."""

from __future__ import annotations

from enum import StrEnum

from messages.base import U64, Message, NodeName, Record, Request
from messages.edge import EdgeId, RunId
from messages.edge_end import ArenaSample, EdgeFaultCode, EndChanged, EndReport, EndsBeat
from messages.system import Done, PeerDown, PeerUp


class EdgePlanRefusal(StrEnum):
    """Why the planner did not do what was asked."""

    INVALID = "invalid"
    UNKNOWN = "unknown"
    AMBIGUOUS = "ambiguous"
    EXISTS = "exists"
    GOVERNANCE = "governance"
    NO_RECORD = "no_record"
    STALE_STATE = "stale_state"
    STOPPING = "stopping"


class EdgePhase(StrEnum):
    """Where an edge stands. `waiting`: an end has no running instance, or a back-off runs, `reason` says which;
    `opening`; `ready`; `finished`: its producer closed the port and all has arrived; `stopping`: by order."""

    WAITING = "waiting"
    OPENING = "opening"
    READY = "ready"
    FINISHED = "finished"
    CLOSING = "closing"
    STOPPING = "stopping"


class EdgeLine(Record, frozen=True, kw_only=True):
    """One edge that shall be. `name`: `hostwatch.out -> trend.in`. `run_id` is its epoch, 0 before the first life.

    `fault`, `fault_text`: of the newest life that faulted; they stay until the next fault. `lives`: how many it had.
    `producer_node`, `consumer_node`: configured names. Sizes in bytes.
    """

    name: str
    source: str
    target: str
    phase: EdgePhase
    reason: str = ""
    run_id: RunId
    edge_id: EdgeId | None = None
    lives: U64 = 0
    faults: U64 = 0
    fault: EdgeFaultCode | None = None
    fault_text: str = ""
    producer_node: NodeName | None = None
    consumer_node: NodeName | None = None
    producer: EndReport | None = None
    consumer: EndReport | None = None
    max_extent_bytes: U64
    ring_bytes: U64
    since_ms: U64


class EdgeAdded(Message, frozen=True, kw_only=True):
    edge: EdgeLine


class AddEdge(Request[EdgeAdded], frozen=True, kw_only=True):
    """Join two ports for good: `source` and `target` are `workload.port`, or `workload@node.port` where a workload runs
    on several nodes. Answered when the wish is durable and on the chain; bytes flow when both instances run.

    `max_extent_bytes`: the largest payload of one object; `ring_bytes`: each end's ring, None for a size that fits.
    Refused with `EdgePlanRefusal`. Exactly the same edge again is answered as it is.
    """

    source: str
    target: str
    max_extent_bytes: U64 = 65_536
    ring_bytes: U64 | None = None


class RemoveEdge(Request[Done], frozen=True, kw_only=True):
    """End an edge and forget it (`sennit edge stop`); `edge` is its name, `source->target`, or its edge id.

    Answered when both ends are stopped; refused `stopping` when that takes longer than can be waited, and goes on.
    """

    edge: str


class EdgeNode(Record, frozen=True, kw_only=True):
    """One edges process: ring memory, and whether the planner hears it."""

    process: NodeName
    reachable: bool
    incarnation: U64
    ends: U64
    arena: ArenaSample | None


class EdgeLines(Message, frozen=True, kw_only=True):
    """Every edge by name, and every edges process that was ever needed."""

    edges: list[EdgeLine]
    nodes: list[EdgeNode]


class ListEdges(Request[EdgeLines], frozen=True, kw_only=True):
    """Answered from what the nodes told within the last beat."""


class PlanTick(Message, frozen=True, kw_only=True):
    """The planner's own timer."""


EdgePlanMessage = AddEdge | RemoveEdge | ListEdges | EndChanged | EndsBeat | PlanTick | PeerUp | PeerDown
