"""What goes into a placement decision and what comes out (G 1.3 to 1.10). JSON names are the field names.

`check()` of a specification or request raises `VocabularyError` with the first broken rule in the order of G 1.4 and
1.5; `place` turns it into `InvalidPlacement`. Absent optional members are omitted on the wire.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from enum import StrEnum

from messages.base import U64, Record, check_u64
from messages.capabilities import (
    Capability,
    CapabilityId,
    InvalidRequirement,
    MemoryDemand,
    VocabularyError,
    check_capability_id,
    quoted,
)
from messages.workload_spec import (
    MAX_LIST_ITEMS,
    Better,
    Execution,
    LatencyClass,
    PerfTarget,
    PlacementPolicy,
    Preference,
    TrustTier,
    Variant,
    WorkloadRef,
    WorkloadRequirements,
    WorkloadSpec,
    check_text,
    is_finite_and_non_negative,
)

NO_GATE_DECISION = "no gate decision for this node"


class Constraint(StrEnum):
    """Names of hard constraints: they appear in pin errors, explanations and on the chain, and never change."""

    NODE_REVOKED = "node_revoked"
    LIVENESS = "liveness"
    FACTS_EXPIRED = "facts_expired"
    TRUST = "trust"
    WORKLOAD_REVOKED = "workload_revoked"
    CO_RESIDENCY = "co_residency"
    MEMORY = "memory"
    REQUIREMENTS = "requirements"
    PROVENANCE = "provenance"
    EMULATION_NOT_ALLOWED = "emulation_not_allowed"
    GATE = "gate"
    PERF_BUDGET = "perf_budget"


class Liveness(StrEnum):
    ALIVE = "alive"
    SUSPECT = "suspect"
    DEAD = "dead"
    UNKNOWN = "unknown"


class Tier(StrEnum):
    """Class of a route in strict order of preference; a better tier wins whatever the scores. Compare by `rank`."""

    NATIVE = "native"
    EMULATED = "emulated"
    DEV_FALLBACK = "dev_fallback"

    @property
    def rank(self) -> int:
        return _TIER_RANK[self]


_TIER_RANK = {tier: rank for rank, tier in enumerate(Tier)}


class Flag(StrEnum):
    """Remarks on a candidate, listed in this order."""

    UNMEASURED = "unmeasured"
    EMULATED = "emulated"
    PINNED = "pinned"
    AFFINITY = "affinity"
    LOAD_UNKNOWN = "load_unknown"


# --- one node -------------------------------------------------------------------------------------------------------


class PlacementFacts(Record, frozen=True, kw_only=True):
    """One node as the engine sees it. `trust_tier` is assigned by the receiver; `facts_expire_at_ms` is unix ms, None
    for no limit; `load` is 0 (idle) to 1 (full), None when unknown."""

    node_id: str
    capabilities: tuple[Capability, ...]
    liveness: Liveness
    trust_tier: TrustTier
    facts_expire_at_ms: U64 | None = None
    load: float | None = None

    def check(self) -> None:
        """For facts that enter as text. The engine itself takes whatever it is given and credits no bad number.
        Raises `VocabularyError`."""
        check_text(self.node_id, "node ids")
        if self.facts_expire_at_ms is not None:
            _check_ms(self.facts_expire_at_ms, "facts_expire_at_ms")
        for capability in self.capabilities:
            capability.check()


# --- the request ----------------------------------------------------------------------------------------------------


class GatePermit(Record, frozen=True, kw_only=True, tag_field="verdict", tag="permit"):
    pass


class GateDeny(Record, frozen=True, kw_only=True, tag_field="verdict", tag="deny"):
    reason: str


GateVerdict = GatePermit | GateDeny


class UniformGate(Record, frozen=True, kw_only=True, tag_field="mode", tag="uniform"):
    """One verdict for every node."""

    verdict: GateVerdict

    def verdict_for(self, node_id: str) -> GateVerdict:  # noqa: ARG002 - the verdict does not depend on the node
        return self.verdict


class PerNodeGate(Record, frozen=True, kw_only=True, tag_field="mode", tag="per_node"):
    """A verdict per node id; a node without one is denied."""

    verdicts: dict[str, GateVerdict]

    def verdict_for(self, node_id: str) -> GateVerdict:
        return self.verdicts.get(node_id, _DENY_UNDECIDED)


GateInput = UniformGate | PerNodeGate
_DENY_UNDECIDED = GateDeny(reason=NO_GATE_DECISION)


class ScoringWeights(Record, frozen=True, kw_only=True):
    """Weights of the score (G 1.5), each finite and not negative. `dev_fallback_class` marks a developer machine."""

    native: float = 100.0
    emulated: float = 40.0
    dev_fallback: float = 20.0
    dev_fallback_class: CapabilityId = CapabilityId("node.class.dev-mac")
    accel_fit: float = 10.0
    perf: float = 30.0
    interactive_perf_multiplier: float = 2.0
    load: float = 10.0
    stickiness: float = 15.0
    sticky: float = 1000.0

    def of_tier(self, tier: Tier) -> float:
        match tier:
            case Tier.NATIVE:
                return self.native
            case Tier.EMULATED:
                return self.emulated
            case Tier.DEV_FALLBACK:
                return self.dev_fallback

    def check(self) -> None:
        weights = (
            self.native, self.emulated, self.dev_fallback, self.accel_fit, self.perf,
            self.interactive_perf_multiplier, self.load, self.stickiness, self.sticky,
        )  # fmt: skip
        if not all(is_finite_and_non_negative(weight) for weight in weights):
            raise InvalidRequirement("scoring weights must be finite and non-negative")
        check_capability_id(self.dev_fallback_class)


class Affinity(Record, frozen=True, kw_only=True):
    """Node ids, each list at most 64. `prefer` beats `avoid`; neither crosses a tier nor overrides a constraint."""

    prefer: tuple[str, ...] = ()
    avoid: tuple[str, ...] = ()


class PlacementRequest(Record, frozen=True, kw_only=True):
    """`gate` has no default: who asks for a placement has asked the gate first."""

    spec: WorkloadSpec
    pin: str | None = None
    affinity: Affinity = Affinity()
    allow_emulated: bool = False
    current_node: str | None = None
    gate: GateInput
    weights: ScoringWeights = ScoringWeights()

    def check(self) -> None:
        """Raises `VocabularyError`."""
        self.spec.check()
        self.weights.check()
        single = [node_id for node_id in (self.pin, self.current_node) if node_id is not None]
        for node_id in (*single, *self.affinity.prefer, *self.affinity.avoid):
            check_text(node_id, "node ids")
        if max(len(self.affinity.prefer), len(self.affinity.avoid)) > MAX_LIST_ITEMS:
            raise InvalidRequirement("too many affinity entries")


# --- the cluster ----------------------------------------------------------------------------------------------------


class InstanceRecord(Record, frozen=True, kw_only=True):
    """An instance on a node. `pending` is memory that the node's advertised free memory does not show yet."""

    node_id: str
    workload: WorkloadRef | None = None
    labels: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    pending: MemoryDemand = MemoryDemand()

    def belongs_to(self, spec: WorkloadSpec) -> bool:
        """An instance without attribution belongs to nobody's workload: it is always a neighbour."""
        return self.workload is not None and (self.workload.kind, self.workload.name) == (spec.kind, spec.name)


class ClusterState(Record, frozen=True, kw_only=True):
    """`now_ms` in unix ms."""

    now_ms: U64
    revoked_nodes: frozenset[str] = frozenset()
    revoked_refs: frozenset[str] = frozenset()
    instances: tuple[InstanceRecord, ...] = ()

    def check(self) -> None:
        """For state that enters as text. Raises `VocabularyError`."""
        _check_ms(self.now_ms, "now_ms")
        for instance in self.instances:
            instance.pending.check()


# --- the decision ---------------------------------------------------------------------------------------------------


class Rejection(Record, frozen=True, kw_only=True):
    constraint: Constraint
    detail: str


class Score(Record, frozen=True, kw_only=True):
    execution: float
    locality: float
    accel_fit: float
    perf: float
    load: float
    stickiness: float

    @property
    def total(self) -> float:
        """Added from left to right; finite even for weights near the end of the range."""
        total = self.execution + self.locality + self.accel_fit + self.perf + self.load + self.stickiness
        return min(total, sys.float_info.max)


class NodeReport(Record, frozen=True, kw_only=True):
    """One node's outcome. `assigned` lists the capability ids given to each requirement, the common ones first; a
    rejected node has no variant, tier or score and nothing assigned."""

    node_id: str
    rejections: tuple[Rejection, ...]
    variant: str | None = None
    tier: Tier | None = None
    score: Score | None = None
    flags: tuple[Flag, ...]
    assigned: tuple[tuple[CapabilityId, ...], ...]

    @property
    def eligible(self) -> bool:
        return not self.rejections


class Placement(Record, frozen=True, kw_only=True):
    node_id: str
    variant: str
    execution: Execution
    tier: Tier
    accelerator: CapabilityId | None = None
    score: Score
    flags: tuple[Flag, ...]


class Decision(Record, frozen=True, kw_only=True):
    """`candidates` holds every node: the eligible by rank, then the rejected by id."""

    kind: str
    name: str
    allow_emulated: bool
    pin: str | None = None
    placement: Placement | None = None
    candidates: tuple[NodeReport, ...]

    @property
    def is_unplaceable(self) -> bool:
        return self.placement is None

    def reasons(self) -> tuple[NodeReport, ...]:
        return tuple(candidate for candidate in self.candidates if not candidate.eligible)


class PlacementErrorCode(StrEnum):
    INVALID = "invalid"
    DUPLICATE_NODE = "duplicate_node"
    UNKNOWN_PIN = "unknown_pin"
    PIN_INELIGIBLE = "pin_ineligible"


class PlacementError(Exception):
    """The request cannot be decided at all; an unplaceable workload is a `Decision`, not an error."""

    code: PlacementErrorCode

    def constraints(self) -> tuple[Constraint, ...]:
        """The constraints that a pinned node fails, in order, duplicates kept; empty for every other error."""
        return ()


class InvalidPlacement(PlacementError):
    code = PlacementErrorCode.INVALID

    def __init__(self, cause: VocabularyError) -> None:
        self.cause = cause
        super().__init__(f"invalid placement request: {cause}")


class DuplicateNode(PlacementError):
    code = PlacementErrorCode.DUPLICATE_NODE

    def __init__(self, node_id: str) -> None:
        self.node_id = node_id
        super().__init__(f"duplicate node id {quoted(node_id)} in facts")


class UnknownPin(PlacementError):
    code = PlacementErrorCode.UNKNOWN_PIN

    def __init__(self, node_id: str) -> None:
        self.node_id = node_id
        super().__init__(f"pinned node {quoted(node_id)} is not a known node")


class PinIneligible(PlacementError):
    code = PlacementErrorCode.PIN_INELIGIBLE

    def __init__(self, node_id: str, rejections: Sequence[Rejection]) -> None:
        self.node_id, self.rejections = node_id, tuple(rejections)
        reasons = "; ".join(f"constraint `{rejection.constraint}`: {rejection.detail}" for rejection in self.rejections)
        super().__init__(f"pinned node {quoted(node_id)} is ineligible: {reasons}")

    def constraints(self) -> tuple[Constraint, ...]:
        return tuple(rejection.constraint for rejection in self.rejections)


def _check_ms(value: int, what: str) -> None:
    try:
        check_u64(value, what)
    except ValueError as error:
        raise InvalidRequirement(str(error)) from None


__all__ = [
    "NO_GATE_DECISION", "Affinity", "Better",
    "ClusterState", "Constraint", "Decision", "DuplicateNode", "Execution", "Flag", "GateDeny", "GateInput",
    "GatePermit", "GateVerdict", "InstanceRecord", "InvalidPlacement", "LatencyClass", "Liveness", "NodeReport",
    "PerNodeGate", "PerfTarget", "PinIneligible", "Placement", "PlacementError", "PlacementErrorCode",
    "PlacementFacts", "PlacementPolicy", "PlacementRequest", "Preference", "Rejection", "Score", "ScoringWeights",
    "Tier", "TrustTier", "UniformGate", "UnknownPin", "Variant", "WorkloadRef", "WorkloadRequirements",
    "WorkloadSpec",
]  # fmt: skip
