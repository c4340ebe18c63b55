"""What a workload asks of the node that shall run it (G 1.4). JSON names are the field names.

`check()` raises `VocabularyError` with the first broken rule, in the order of G 1.4. Absent optional members are
omitted on the wire.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from enum import StrEnum

from messages.base import Record
from messages.capabilities import (
    CapabilityId,
    InvalidRequirement,
    MemoryDemand,
    Provenance,
    Requirement,
    as_f64,
    byte_length,
    check_capability_id,
)

MAX_TEXT_BYTES = 256
MAX_REQUIREMENTS = 64
MAX_VARIANTS = 16
MAX_LIST_ITEMS = 64

_KIND = re.compile(r"[a-z0-9_-]{1,64}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class TrustTier(StrEnum):
    """How far the receiver trusts a node, from least to most. Compare by `rank`."""

    DISCOVERED = "discovered"
    PAIRED = "paired"
    PINNED = "pinned"

    @property
    def rank(self) -> int:
        return _TRUST_RANK[self]


_TRUST_RANK = {tier: rank for rank, tier in enumerate(TrustTier)}


class Execution(StrEnum):
    NATIVE = "native"
    EMULATED = "emulated"


class LatencyClass(StrEnum):
    BATCH = "batch"
    INTERACTIVE = "interactive"


class Better(StrEnum):
    LOWER = "lower"
    HIGHER = "higher"


class Variant(Record, frozen=True, kw_only=True):
    """One way to run the workload: an execution with requirements of its own."""

    name: str
    execution: Execution = Execution.NATIVE
    requirements: tuple[Requirement, ...] = ()

    def check(self) -> None:
        check_text(self.name, "variant name")
        _check_requirements(self.requirements)


class WorkloadRequirements(Record, frozen=True, kw_only=True):
    """No variants means one native route named `default` that needs `common` alone."""

    common: tuple[Requirement, ...] = ()
    variants: tuple[Variant, ...] = ()
    memory: MemoryDemand = MemoryDemand()

    def check(self) -> None:
        _check_requirements(self.common)
        if len(self.variants) > MAX_VARIANTS:
            raise InvalidRequirement(f"too many variants (max {MAX_VARIANTS})")
        for variant in self.variants:
            variant.check()
        self.memory.check()


class PerfTarget(Record, frozen=True, kw_only=True):
    """A measured figure to rank by, and to reject by when `budget` is set: capability `id` whose attribute `param`
    equals `param_value`, read from its attribute `value`."""

    id: CapabilityId
    param: str
    param_value: str
    better: Better = Better.LOWER
    budget: float | None = None

    def check(self) -> None:
        check_capability_id(self.id)
        check_text(self.param, "perf param")
        check_text(self.param_value, "perf param value")
        if self.budget is not None and not is_finite_and_non_negative(self.budget):
            raise InvalidRequirement("perf budget must be finite and non-negative")


class Preference(Record, frozen=True, kw_only=True):
    """`weight` is added to the score of a node whose capabilities meet `requirement`."""

    name: str
    requirement: Requirement
    weight: float

    def check(self) -> None:
        check_text(self.name, "preference name")
        self.requirement.check()
        if not is_finite_and_non_negative(self.weight):
            raise InvalidRequirement("preference weight must be finite and non-negative")


class PlacementPolicy(Record, frozen=True, kw_only=True):
    """`min_provenance` is a floor raised onto every requirement that asks for less; `revocable_refs` are the
    references (package, signers, artifact hashes) whose revocation bars the workload everywhere."""

    min_trust: TrustTier = TrustTier.PAIRED
    min_provenance: Provenance | None = None
    labels: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    latency_class: LatencyClass = LatencyClass.BATCH
    perf: PerfTarget | None = None
    preferences: tuple[Preference, ...] = ()
    sticky: bool = False
    revocable_refs: tuple[str, ...] = ()

    def check(self) -> None:
        _check_texts(self.labels, "label")
        _check_texts(self.excludes, "exclude")
        _check_texts(self.revocable_refs, "revocable ref")
        _check_size(self.preferences, "preferences")
        for preference in self.preferences:
            preference.check()
        if self.perf is not None:
            self.perf.check()


class WorkloadSpec(Record, frozen=True, kw_only=True):
    kind: str
    name: str
    requirements: WorkloadRequirements = WorkloadRequirements()
    policy: PlacementPolicy = PlacementPolicy()

    def check(self) -> None:
        """Raises `VocabularyError`."""
        if not _KIND.fullmatch(self.kind):
            raise InvalidRequirement("kind must be 1..=64 of [a-z0-9_-]")
        check_text(self.name, "name")
        self.requirements.check()
        self.policy.check()


class WorkloadRef(Record, frozen=True, kw_only=True):
    kind: str
    name: str


# --- rules shared by the checks -------------------------------------------------------------------------------------


def check_text(text: str, what: str) -> None:
    if not 1 <= byte_length(text) <= MAX_TEXT_BYTES or _CONTROL.search(text):
        raise InvalidRequirement(f"{what} must be 1..={MAX_TEXT_BYTES} printable bytes")


def _check_texts(texts: Sequence[str], what: str) -> None:
    _check_size(texts, what + "s")
    for text in texts:
        check_text(text, what)


def _check_size(items: Sequence[object], what: str) -> None:
    if len(items) > MAX_LIST_ITEMS:
        raise InvalidRequirement(f"too many {what} (max {MAX_LIST_ITEMS})")


def _check_requirements(requirements: Sequence[Requirement]) -> None:
    if len(requirements) > MAX_REQUIREMENTS:
        raise InvalidRequirement(f"too many requirements (max {MAX_REQUIREMENTS})")
    for requirement in requirements:
        requirement.check()


def is_finite_and_non_negative(value: float) -> bool:
    number = as_f64(value)
    return number is not None and math.isfinite(number) and number >= 0


__all__ = [
    "MAX_LIST_ITEMS", "MAX_REQUIREMENTS", "MAX_TEXT_BYTES", "MAX_VARIANTS", "Better", "Execution", "LatencyClass",
    "PerfTarget", "PlacementPolicy", "Preference", "TrustTier", "Variant", "WorkloadRef", "WorkloadRequirements",
    "WorkloadSpec", "check_text", "is_finite_and_non_negative",
]  # fmt: skip
