"""Phase A: every hard constraint of a node, every failure recorded (G 1.7).

A node is eligible only if nothing failed. Nothing stops at the first failure, except that variants are not tried when
the common requirements fail already.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from actors.placement.engine.capability_sets import CapabilitySet, CapabilitySets
from actors.placement.engine.matching import Assigned, Indices, ProvenanceTooLow, Unmatched, match_all
from actors.placement.engine.memory import MemoryLedger, combined
from messages.capabilities import MemoryDemand, Provenance, Requirement
from messages.engine import (
    ClusterState,
    Constraint,
    Execution,
    GateDeny,
    InstanceRecord,
    Liveness,
    PlacementFacts,
    PlacementRequest,
    Rejection,
    Tier,
    Variant,
)

IMPLICIT_VARIANT = "default"
_NO_DEMAND = MemoryDemand()


@dataclass(frozen=True, slots=True)
class Route:
    """How the workload would run on a node: `assigned` holds, per requirement, indices into the capability set."""

    variant: str
    execution: Execution
    tier: Tier
    assigned: tuple[Indices, ...]


@dataclass(frozen=True, slots=True)
class Examined:
    """One node after phase A. It survives when it has a route and nothing was rejected."""

    facts: PlacementFacts
    capability_set: CapabilitySet
    rejections: tuple[Rejection, ...]
    route: Route | None


class Constraints:
    """The constraints of one request in one cluster; `examine` judges a node."""

    def __init__(self, request: PlacementRequest, cluster: ClusterState, sets: CapabilitySets) -> None:
        self._request = request
        self._cluster = cluster
        self._sets = sets
        spec = request.spec
        floor = spec.policy.min_provenance
        self._common = _raised(spec.requirements.common, floor)
        variants = spec.requirements.variants or (Variant(name=IMPLICIT_VARIANT),)
        self._variants = [(variant, self._common + _raised(variant.requirements, floor)) for variant in variants]
        self._revoked_ref = next((ref for ref in spec.policy.revocable_refs if ref in cluster.revoked_refs), None)
        self._instances: dict[str, list[InstanceRecord]] = {}
        for instance in cluster.instances:
            self._instances.setdefault(instance.node_id, []).append(instance)
        self._routes: dict[CapabilitySet, Route | tuple[Rejection, ...]] = {}

    def examine(self, facts: PlacementFacts) -> Examined:
        capability_set = self._sets.of(facts.capabilities)
        rejections = self._standing(facts)
        if facts.node_id in self._instances:
            rejections += self._co_residency(facts.node_id)
        rejections += self._memory(facts)
        route = self._routes.get(capability_set)
        if route is None:
            route = self._routes[capability_set] = self._choose_route(capability_set)
        if isinstance(route, tuple):
            rejections += route
        verdict = self._request.gate.verdict_for(facts.node_id)
        if isinstance(verdict, GateDeny):
            rejections.append(_rejection(Constraint.GATE, f"workload.place denied: {verdict.reason}"))
        return Examined(facts, capability_set, tuple(rejections), None if isinstance(route, tuple) else route)

    def _standing(self, facts: PlacementFacts) -> list[Rejection]:
        """What the cluster thinks of the node and of the workload, whatever the node has."""
        rejections = []
        if facts.node_id in self._cluster.revoked_nodes:
            rejections.append(_rejection(Constraint.NODE_REVOKED, "node is revoked"))
        if facts.liveness is not Liveness.ALIVE:
            rejections.append(_rejection(Constraint.LIVENESS, f"node is {facts.liveness}"))
        expiry, now = facts.facts_expire_at_ms, self._cluster.now_ms
        if expiry is not None and expiry <= now:
            rejections.append(_rejection(Constraint.FACTS_EXPIRED, f"facts expired at {expiry} ms, now {now} ms"))
        need = self._request.spec.policy.min_trust
        if facts.trust_tier.rank < need.rank:
            rejections.append(_rejection(Constraint.TRUST, f"node tier {facts.trust_tier} below required {need}"))
        if self._revoked_ref is not None:
            rejections.append(_rejection(Constraint.WORKLOAD_REVOKED, f"`{self._revoked_ref}` is revoked"))
        return rejections

    def _co_residency(self, node_id: str) -> list[Rejection]:
        spec = self._request.spec
        rejections = []
        for neighbour in self._instances[node_id]:
            if neighbour.belongs_to(spec):
                continue
            unwanted = next((label for label in neighbour.labels if label in spec.policy.excludes), None)
            if unwanted is not None:
                detail = f"this workload excludes `{unwanted}`, which runs here"
                rejections.append(_rejection(Constraint.CO_RESIDENCY, detail))
            resented = next((label for label in neighbour.excludes if label in spec.policy.labels), None)
            if resented is not None:
                rejections.append(_rejection(Constraint.CO_RESIDENCY, f"an instance here excludes `{resented}`"))
        return rejections

    def _memory(self, facts: PlacementFacts) -> list[Rejection]:
        demand = self._request.spec.requirements.memory
        if demand == _NO_DEMAND:
            return []
        total = combined(demand, *(instance.pending for instance in self._counted_instances(facts.node_id)))
        shortfall = MemoryLedger.from_capabilities(facts.capabilities).check(total)
        return [] if shortfall is None else [_rejection(Constraint.MEMORY, shortfall.detail())]

    def _counted_instances(self, node_id: str) -> list[InstanceRecord]:
        """Instances whose pending memory counts: all, own ones included. Only the one that this very placement
        replaces on its current node gives its memory back first; with several own ones there nobody knows which."""
        instances = self._instances.get(node_id, [])
        if node_id == self._request.current_node:
            others = [instance for instance in instances if not instance.belongs_to(self._request.spec)]
            if len(others) == len(instances) - 1:
                return others
        return instances

    def _choose_route(self, capability_set: CapabilitySet) -> Route | tuple[Rejection, ...]:
        capabilities = capability_set.capabilities
        common = match_all(self._common, capabilities)
        if isinstance(common, Unmatched):
            return _failures(common, "")
        fitting: list[tuple[Variant, Assigned]] = []
        failures: list[Rejection] = []
        for variant, requirements in self._variants:
            outcome = match_all(requirements, capabilities)
            if isinstance(outcome, Assigned):
                fitting.append((variant, outcome))
            else:
                implicit = not self._request.spec.requirements.variants
                failures += _failures(outcome, "" if implicit else f"variant {variant.name}: ")
        if not fitting:
            return tuple(failures)
        native = [choice for choice in fitting if choice[0].execution is Execution.NATIVE]
        if not native and not self._request.allow_emulated:
            names = ", ".join(variant.name for variant, _ in fitting)
            detail = f"only emulated route(s) fit ({names}); emulation needs explicit allow_emulated"
            return (_rejection(Constraint.EMULATION_NOT_ALLOWED, detail),)
        variant, assigned = (native or fitting)[0]
        return Route(variant.name, variant.execution, self._tier(variant, capability_set), assigned.indices)

    def _tier(self, variant: Variant, capability_set: CapabilitySet) -> Tier:
        if variant.execution is Execution.EMULATED:
            return Tier.EMULATED
        marker = self._request.weights.dev_fallback_class
        is_dev = any(capability.id == marker for capability in capability_set.capabilities)
        return Tier.DEV_FALLBACK if is_dev else Tier.NATIVE


def _raised(requirements: Sequence[Requirement], floor: Provenance | None) -> tuple[Requirement, ...]:
    """The requirements, none asking for less provenance than `floor`."""
    if floor is None:
        return tuple(requirements)
    return tuple(
        requirement
        if requirement.min_provenance is not None and requirement.min_provenance.rank >= floor.rank
        else msgspec.structs.replace(requirement, min_provenance=floor)
        for requirement in requirements
    )


def _failures(outcome: Unmatched, prefix: str) -> tuple[Rejection, ...]:
    return tuple(
        _rejection(
            Constraint.PROVENANCE if isinstance(failure, ProvenanceTooLow) else Constraint.REQUIREMENTS,
            prefix + failure.detail(),
        )
        for _, failure in outcome.failures
    )


def _rejection(constraint: Constraint, detail: str) -> Rejection:
    return Rejection(constraint=constraint, detail=detail)


__all__ = ["IMPLICIT_VARIANT", "Constraints", "Examined", "Route"]
