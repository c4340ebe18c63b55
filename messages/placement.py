"""The mailbox of `controller/plane`: `plane_place.rs` as messages (P 6, design 8)."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from messages.base import Message, NodeName, Record, Request
from messages.control import CtlConfig, Epoch, LifeState
from messages.engine import Decision, TrustTier
from messages.node import NodeBeat
from messages.system import PeerDown, PeerUp


class PlaneError(StrEnum):
    """Why an operation of the control plane failed (P 3.5): the code of the refusal that the asker gets."""

    INVALID = "invalid"
    PACKAGE = "package"
    UNKNOWN = "unknown"
    CALL_REFUSED = "call_refused"
    CALL_UNREACHABLE = "call_unreachable"
    CALL_INDETERMINATE = "call_indeterminate"
    GOVERNANCE = "governance"
    PLACEMENT = "placement"
    UNKNOWN_KIND = "unknown_kind"
    SLOT_HELD = "slot_held"
    UNSETTLED = "unsettled"
    NO_RECORD = "no_record"
    STALE_STATE = "stale_state"


class Outcome(StrEnum):
    """Outcome of one attempt (P 3.6)."""

    PLACED = "placed"
    REFUSED = "refused"
    UNREACHABLE = "unreachable"
    INDETERMINATE = "indeterminate"
    GATE_DENIED = "gate_denied"


class Attempt(Record, frozen=True):
    node_id: str
    variant: str
    outcome: Outcome
    code: str | None = None
    reason: str | None = None
    ingest: str | None = None


class PlacementRecord(Record, frozen=True):
    """One placed instance. `slot` and `epoch` are the right to run it (design 8)."""

    instance_id: str
    node_id: str
    kind: str
    workload: str
    variant: str
    decision_id: str
    manifest_hash: str
    slot: str
    epoch: Epoch
    project_id: str | None = None
    package_id: str | None = None
    signer_keys: list[str] = []
    artifact_hashes: list[str] = []


class PlaceReport(Message, frozen=True):
    """Result of a placement, also of a dry run and of one that found no node (`placed` is None then)."""

    decision: Decision
    decision_id: str
    explain: str
    attempts: list[Attempt]
    placed: PlacementRecord | None
    hardware_bound: bool = False


class PlaceOrder(Request[PlaceReport], frozen=True):
    """What the operator asks for. `pin`, `prefer` and `avoid` take node ids or configured names.

    Refused with a `PlaneError` code. A report without `placed` is not a refusal: no node fits, or every target
    refused, or the loop stopped because an answer is indeterminate (its last attempt says so).
    """

    package_dir: str
    config: CtlConfig
    pin: str | None = None
    prefer: list[str] = []
    avoid: list[str] = []
    allow_emulated: bool = False
    start: bool = True
    dry_run: bool = False
    project_id: str | None = None


class InstanceResult(Message, frozen=True):
    """`result` is the node's result as plain data; `indeterminate` answers were reconciled before this was said."""

    instance_id: str
    node_id: str
    result: Any


class InstanceOrder(Request[InstanceResult], frozen=True):
    """`method` is one of start, stop, unload, status, logs (`messages.control.Method` values).

    `instance` is an instance id, or `workload@node` where that names one instance.
    """

    method: str
    instance: str
    grace_ms: int | None = None
    stdout_offset: int | None = None
    stderr_offset: int | None = None


class InstanceLine(Record, frozen=True):
    instance_id: str
    workload: str
    node_id: str
    node: NodeName
    variant: str
    state: LifeState
    slot: str
    epoch: Epoch
    decision_id: str
    pid: int | None = None
    restarts: int = 0
    reachable: bool = True


class UnsettledLine(Record, frozen=True):
    """A decision whose dispatch is not settled: its slot is not placed again until it is."""

    decision_id: str
    slot: str
    node_id: str
    node: NodeName
    since_ms: int


class InstanceLines(Message, frozen=True):
    instances: list[InstanceLine]
    unsettled: list[UnsettledLine]


class ListInstances(Request[InstanceLines], frozen=True):
    """Settles what can be settled first, then asks every node that is reachable."""


class PlacedInstance(Record, frozen=True):
    """A placement and the configured name of its node. `unloading`: an unload was sent and its end is not known yet;
    `stopped`: it was stopped by order, or is about to be, as far as this life of the plane knows."""

    record: PlacementRecord
    node: NodeName
    unloading: bool = False
    stopped: bool = False


class Placements(Message, frozen=True):
    """Every placement, by instance id. `loaded`: whether the state behind them was read and is trusted; if not, what
    is missing here may be placed all the same."""

    rows: list[PlacedInstance]
    loaded: bool


class GetPlacements(Request[Placements], frozen=True):
    """What is placed, out of the plane's memory: no node is asked."""


class NodeLine(Record, frozen=True):
    """`capabilities` of the node's facts as plain data (id, attrs, state)."""

    node_id: str
    name: NodeName
    tier: TrustTier
    liveness: str
    reachable: bool
    incarnation: int
    instances: int
    beat_age_ms: int | None
    facts_age_ms: int | None
    capabilities: list[dict[str, Any]]


class NodeLines(Message, frozen=True):
    nodes: list[NodeLine]


class ListNodes(Request[NodeLines], frozen=True):
    pass


class SettleTick(Message, frozen=True):
    """The plane's own timer: settle what is unsettled, notice what is late."""


PlaneMessage = (
    PlaceOrder | InstanceOrder | ListInstances | GetPlacements | ListNodes | NodeBeat | SettleTick | PeerUp | PeerDown
)
