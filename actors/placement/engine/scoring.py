"""Phase B: the score of each node that survived phase A (G 1.8).

Bad numbers never earn credit: what is not finite or is negative counts as unmeasured or unknown, and every component
stays finite even for weights near the end of the range. A missed performance budget still rejects here.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal

from actors.placement.engine.capability_sets import CapabilitySet
from actors.placement.engine.constraints import Examined, Route
from actors.placement.engine.matching import matches
from messages.capabilities import Provenance, as_f64, family, loose_eq
from messages.engine import (
    Better,
    Constraint,
    Flag,
    LatencyClass,
    PerfTarget,
    PlacementFacts,
    PlacementRequest,
    Rejection,
    Score,
    Tier,
)


@dataclass(frozen=True, slots=True)
class Scored:
    """Flags in the order of `Flag`."""

    score: Score
    flags: tuple[Flag, ...]


class Scoring:
    """Scores of one request. Some components compare a node with the others, so all survivors are given at once."""

    def __init__(self, request: PlacementRequest, survivors: Sequence[tuple[Examined, Route]]) -> None:
        self._request = request
        self._locality: dict[CapabilitySet, float] = {}
        self._accel: dict[CapabilitySet, _Accelerators] = {}
        self._measured: dict[str, float] = {}
        capacities = [self._accelerators(node, route).capacity for node, route in survivors]
        self._smallest = min((capacity for capacity in capacities if capacity is not None), default=None)
        self._best: float | None = None
        target = request.spec.policy.perf
        if target is not None:
            self._measured = {
                node.facts.node_id: value
                for node, _ in survivors
                if (value := measured_value(target, node.facts)) is not None
            }
            # who misses the budget is never better than who meets it, so it cannot set the scale
            self._best = _best(target, self._measured.values())

    def score(self, node: Examined, route: Route) -> Scored | Rejection:
        weights = self._request.weights
        flags: set[Flag] = {Flag.EMULATED} if route.tier is Tier.EMULATED else set()
        perf = 0.0
        target = self._request.spec.policy.perf
        if target is not None:
            value = self._measured.get(node.facts.node_id)
            if value is None:
                flags.add(Flag.UNMEASURED)
            elif _misses(target, value):
                return _missed(target, value)
            else:
                perf = self._perf(target, value)
        load = _known_load(node.facts)
        if load is None:
            flags.add(Flag.LOAD_UNKNOWN)
        score = Score(
            execution=float(weights.of_tier(route.tier)),
            locality=self._locality_of(node.capability_set),
            accel_fit=self._accel_fit(node, route),
            perf=perf,
            load=0.0 if load is None else weights.load * (1.0 - load),
            stickiness=self._stickiness(node.facts.node_id),
        )
        return Scored(score, tuple(flag for flag in Flag if flag in flags))

    def _locality_of(self, capability_set: CapabilitySet) -> float:
        known = self._locality.get(capability_set)
        if known is None:
            known = 0.0  # preferences are matched as written: the provenance floor is not raised onto them
            for preference in self._request.spec.policy.preferences:
                if matches(preference.requirement, capability_set.capabilities):
                    known = _finite(known + preference.weight)
            self._locality[capability_set] = known
        return known

    def _accelerators(self, node: Examined, route: Route) -> _Accelerators:
        known = self._accel.get(node.capability_set)  # the route is a function of the set
        if known is None:
            known = self._accel[node.capability_set] = _Accelerators.of(node.capability_set, route)
        return known

    def _accel_fit(self, node: Examined, route: Route) -> float:
        full = float(self._request.weights.accel_fit)
        accelerators = self._accelerators(node, route)
        if not accelerators.assigned:
            return 0.0 if accelerators.advertised else full  # a node with an accelerator is kept for who needs it
        if accelerators.capacity is None or self._smallest is None or accelerators.capacity <= 0:
            return full
        return full * _clamp(self._smallest / accelerators.capacity)

    def _perf(self, target: PerfTarget, value: float) -> float:
        weights = self._request.weights
        full = weights.perf
        if self._request.spec.policy.latency_class is LatencyClass.INTERACTIVE:
            full = _finite(full * weights.interactive_perf_multiplier)
        best = value if self._best is None else self._best
        above, below = (best, value) if target.better is Better.LOWER else (value, best)
        return full * (1.0 if below <= 0 else _clamp(above / below))

    def _stickiness(self, node_id: str) -> float:
        if node_id != self._request.current_node:
            return 0.0
        weights = self._request.weights
        return float(weights.sticky if self._request.spec.policy.sticky else weights.stickiness)


@dataclass(frozen=True, slots=True)
class _Accelerators:
    """Whether a route uses an accelerator, how much memory those it uses have (bytes), whether the node has any."""

    assigned: bool
    capacity: float | None
    advertised: bool

    @classmethod
    def of(cls, capability_set: CapabilitySet, route: Route) -> _Accelerators:
        capabilities = capability_set.capabilities
        used = sorted({i for indices in route.assigned for i in indices if family(capabilities[i].id) == "accel"})
        sizes = [as_f64(capabilities[i].attrs.get("mem_bytes")) for i in used]
        known = [size for size in sizes if size is not None and math.isfinite(size)]
        capacity: float | None = None
        for size in known:
            capacity = _finite((capacity or 0.0) + size)
        advertised = any(family(capability.id) == "accel" for capability in capabilities)
        return cls(bool(used), capacity, advertised)


def measured_value(target: PerfTarget, facts: PlacementFacts) -> float | None:
    """The node's best credible measurement of the target, None when there is none."""
    values = [
        number
        for capability in facts.capabilities
        if capability.id == target.id
        and capability.provenance is Provenance.MEASURED
        and loose_eq(capability.attrs.get(target.param), target.param_value)
        and (number := as_f64(capability.attrs.get("value"))) is not None
        and math.isfinite(number)
        and number >= 0
    ]
    return _best(target, values)


def _best(target: PerfTarget, values: Iterable[float]) -> float | None:
    return (min if target.better is Better.LOWER else max)(values, default=None)


def _misses(target: PerfTarget, value: float) -> bool:
    if target.budget is None:
        return False
    return value > target.budget if target.better is Better.LOWER else value < target.budget


def _missed(target: PerfTarget, value: float) -> Rejection:
    budget = 0.0 if target.budget is None else float(target.budget)
    detail = f"measured {target.id} {plain_number(value)} misses budget {plain_number(budget)}"
    return Rejection(constraint=Constraint.PERF_BUDGET, detail=detail)


def plain_number(value: float) -> str:
    """Shortest digits that read back as `value`, without exponent and without a trailing `.0`."""
    return format(Decimal(repr(value)), "f").removesuffix(".0")


def _known_load(facts: PlacementFacts) -> float | None:
    load = as_f64(facts.load)
    return None if load is None or not math.isfinite(load) else _clamp(load)


def _clamp(ratio: float) -> float:
    return min(max(ratio, 0.0), 1.0)


def _finite(value: float) -> float:
    return min(value, sys.float_info.max)


__all__ = ["Scored", "Scoring", "measured_value", "plain_number"]
