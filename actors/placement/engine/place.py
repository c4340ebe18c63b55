"""The placement decision: pure, deterministic, independent of the order of facts (G 1.1, 1.9, 1.10).

The caller asks the gate first, hands its verdicts in and records the decision itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from actors.placement.engine.capability_sets import CapabilitySet, CapabilitySets
from actors.placement.engine.constraints import Constraints, Examined, Route
from actors.placement.engine.scoring import Scored, Scoring
from messages.capabilities import CapabilityId, Requirement, VocabularyError, family
from messages.engine import (
    ClusterState,
    Decision,
    DuplicateNode,
    Flag,
    InvalidPlacement,
    NodeReport,
    PinIneligible,
    Placement,
    PlacementFacts,
    PlacementRequest,
    Rejection,
    UnknownPin,
)


@dataclass(frozen=True, slots=True)
class _Candidate:
    node_id: str
    route: Route
    report: NodeReport
    total: float


def place(request: PlacementRequest, facts: Iterable[PlacementFacts], cluster: ClusterState) -> Decision:
    """Judge every node and choose one, or none. Raises a `PlacementError` when there is nothing to decide.

    Ids sort by code point, which is the order of their UTF-8 bytes.
    """
    try:
        request.check()
    except VocabularyError as error:
        raise InvalidPlacement(error) from error
    fleet = sorted(facts, key=lambda node: node.node_id)
    for earlier, later in itertools.pairwise(fleet):
        if earlier.node_id == later.node_id:
            raise DuplicateNode(later.node_id)
    if request.pin is not None and all(one.node_id != request.pin for one in fleet):
        raise UnknownPin(request.pin)

    constraints = Constraints(request, cluster, CapabilitySets(_asked_about(request)))
    examined = [constraints.examine(one) for one in fleet]
    survivors = [(node, node.route) for node in examined if node.route is not None and not node.rejections]
    scoring = Scoring(request, survivors)
    assigned_ids = _AssignedIds()
    eligible: list[_Candidate] = []
    rejected: dict[str, NodeReport] = {
        node.facts.node_id: _rejected(node.facts.node_id, node.rejections) for node in examined if node.rejections
    }
    for node, route in survivors:
        outcome = scoring.score(node, route)
        if isinstance(outcome, Rejection):
            rejected[node.facts.node_id] = _rejected(node.facts.node_id, (outcome,))
        else:
            eligible.append(_candidate(node, route, outcome, assigned_ids.of(node.capability_set, route)))
    eligible.sort(key=lambda candidate: (candidate.route.tier.rank, -candidate.total, candidate.node_id))

    chosen = _select(request, eligible, rejected)
    reports = [candidate.report for candidate in eligible]
    placement = None
    if chosen is not None:
        position, flag = chosen
        if flag is not None:
            reports[position] = _with_flag(reports[position], flag)
        placement = _placement(eligible[position], reports[position])
    return Decision(
        kind=request.spec.kind,
        name=request.spec.name,
        allow_emulated=request.allow_emulated,
        pin=request.pin,
        placement=placement,
        candidates=(*reports, *(rejected[node_id] for node_id in sorted(rejected))),
    )


def _asked_about(request: PlacementRequest) -> list[Requirement]:
    """Everything the decision may look up in a capability set. The provenance floor does not change selectors."""
    spec = request.spec
    return [
        *spec.requirements.common,
        *(requirement for variant in spec.requirements.variants for requirement in variant.requirements),
        *(preference.requirement for preference in spec.policy.preferences),
        Requirement(id=request.weights.dev_fallback_class),
        Requirement(id_prefix="accel"),
    ]


class _AssignedIds:
    """Capability ids of an assignment; nodes with the same set share them."""

    def __init__(self) -> None:
        self._known: dict[CapabilitySet, tuple[tuple[CapabilityId, ...], ...]] = {}

    def of(self, capability_set: CapabilitySet, route: Route) -> tuple[tuple[CapabilityId, ...], ...]:
        known = self._known.get(capability_set)
        if known is None:
            capabilities = capability_set.capabilities
            known = tuple(tuple(capabilities[i].id for i in indices) for indices in route.assigned)
            self._known[capability_set] = known
        return known


def _candidate(
    node: Examined, route: Route, scored: Scored, assigned: tuple[tuple[CapabilityId, ...], ...]
) -> _Candidate:
    report = NodeReport(
        node_id=node.facts.node_id,
        rejections=(),
        variant=route.variant,
        tier=route.tier,
        score=scored.score,
        flags=scored.flags,
        assigned=assigned,
    )
    return _Candidate(node.facts.node_id, route, report, scored.score.total)


def _rejected(node_id: str, rejections: tuple[Rejection, ...]) -> NodeReport:
    return NodeReport(node_id=node_id, rejections=rejections, flags=(), assigned=())


def _select(
    request: PlacementRequest, eligible: Sequence[_Candidate], rejected: dict[str, NodeReport]
) -> tuple[int, Flag | None] | None:
    """Position of the chosen candidate and the flag it earns by being chosen; None when nobody is eligible.

    A pin wins whatever tier and score say; affinity chooses only among the best tier present.
    """
    if request.pin is not None:
        if request.pin in rejected:
            raise PinIneligible(request.pin, rejected[request.pin].rejections)
        position = next(i for i, candidate in enumerate(eligible) if candidate.node_id == request.pin)
        return position, Flag.PINNED
    if not eligible:
        return None
    best_tier = eligible[0].route.tier
    pool = [candidate.node_id for candidate in eligible if candidate.route.tier is best_tier]
    preferred = next((i for i, node_id in enumerate(pool) if node_id in request.affinity.prefer), None)
    if preferred is None:
        preferred = next((i for i, node_id in enumerate(pool) if node_id not in request.affinity.avoid), 0)
    return preferred, None if preferred == 0 else Flag.AFFINITY


def _with_flag(report: NodeReport, flag: Flag) -> NodeReport:
    flags = {*report.flags, flag}
    return msgspec.structs.replace(report, flags=tuple(known for known in Flag if known in flags))


def _placement(candidate: _Candidate, report: NodeReport) -> Placement:
    assert report.score is not None
    return Placement(
        node_id=candidate.node_id,
        variant=candidate.route.variant,
        execution=candidate.route.execution,
        tier=candidate.route.tier,
        accelerator=next((name for names in report.assigned for name in names if family(name) == "accel"), None),
        score=report.score,
        flags=report.flags,
    )


__all__ = ["place"]
