"""The capability vocabulary: what a node can say it has and what a workload can ask for (G 1.2).

Constructors validate nothing, since a measurement may have gone wrong in code that is still running; every record has
`check()`, which raises a `VocabularyError`. `to_json` and `from_json` call it, so that a record which would not be
read back is never written. JSON names are the field names.
"""

from __future__ import annotations

import json
import math
import re
from enum import StrEnum
from typing import Any, NewType, Protocol, TypeVar

import msgspec

from messages.base import U64, Record, check_u64

CapabilityId = NewType("CapabilityId", str)
"""Dotted lower-case text of 2 to 8 segments, at most 128 bytes, for example `accel.npu.hailo`."""

AttrScalar = bool | int | float | str
AttrValue = AttrScalar | tuple[AttrScalar, ...]
"""Untagged on the wire. A boolean is not a number; `2` and `2.0` stay apart but compare equal (`loose_eq`)."""

MAX_ID_BYTES = 128
MAX_SEGMENTS = 8
MAX_ATTRS = 64
MAX_ATTR_NAME_BYTES = 64
MAX_STRING_BYTES = 1024
MAX_LIST_ITEMS = 256
MAX_PREDICATES = 32
MAX_COUNT = 64

_SEGMENT = re.compile(r"[a-z0-9][a-z0-9_-]*")
_ATTR_NAME = re.compile(r"[a-z][a-z0-9_]*")
_NAME_RULE = "name must match [a-z][a-z0-9_]*"


class VocabularyCode(StrEnum):
    INVALID_ID = "invalid_id"
    INVALID_ATTR = "invalid_attr"
    INVALID_PREDICATE = "invalid_predicate"
    INVALID_REQUIREMENT = "invalid_requirement"


class VocabularyError(ValueError):
    """A record breaks a rule of the vocabulary. The text names the part and the rule."""

    code: VocabularyCode


class InvalidId(VocabularyError):
    code = VocabularyCode.INVALID_ID

    def __init__(self, capability_id: str, reason: str) -> None:
        self.id, self.reason = capability_id[:128], reason
        super().__init__(f"invalid capability id {quoted(self.id)}: {reason}")


class InvalidAttr(VocabularyError):
    code = VocabularyCode.INVALID_ATTR

    def __init__(self, capability_id: str, attr: str, reason: str) -> None:
        self.id, self.attr, self.reason = capability_id, attr[:64], reason
        super().__init__(f"invalid attribute {quoted(self.attr)} on {capability_id}: {reason}")


class InvalidPredicate(VocabularyError):
    code = VocabularyCode.INVALID_PREDICATE

    def __init__(self, attr: str, reason: str) -> None:
        self.attr, self.reason = attr[:64], reason
        super().__init__(f"invalid predicate on {quoted(self.attr)}: {reason}")


class InvalidRequirement(VocabularyError):
    """Also every broken rule of a workload's specification, its request and the weights (G 1.4, 1.5)."""

    code = VocabularyCode.INVALID_REQUIREMENT

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"invalid requirement: {reason}")


class Provenance(StrEnum):
    """How a fact is known, from weakest to strongest. Compare by `rank`: as text the order would be another."""

    CLAIMED = "claimed"
    PROBED = "probed"
    MEASURED = "measured"

    @property
    def rank(self) -> int:
        return _PROVENANCE_RANK[self]


_PROVENANCE_RANK = {provenance: rank for rank, provenance in enumerate(Provenance)}


class CapabilityState(StrEnum):
    AVAILABLE = "available"
    BUSY = "busy"
    RESERVED = "reserved"
    DEGRADED = "degraded"


class PredicateOp(StrEnum):
    EQ = "eq"
    GTE = "gte"
    LTE = "lte"
    IN = "in"
    HAS = "has"


class Capability(Record, frozen=True, kw_only=True):
    """One thing a node has: a device, a runtime, a feed, memory or a measured figure."""

    id: CapabilityId
    attrs: dict[str, AttrValue] = {}
    provenance: Provenance
    state: CapabilityState = CapabilityState.AVAILABLE
    exclusive: bool = False

    def check(self) -> None:
        """Raises `InvalidId` or `InvalidAttr`."""
        check_capability_id(self.id)
        if len(self.attrs) > MAX_ATTRS:
            raise InvalidAttr(self.id, "*", "too many attributes")
        for name, value in self.attrs.items():
            if (reason := _attr_name_fault(name) or value_fault(value)) is not None:
                raise InvalidAttr(self.id, name, reason)


class Predicate(Record, frozen=True, kw_only=True):
    """A condition on one attribute of one capability. A missing attribute never satisfies it."""

    attr: str
    op: PredicateOp
    value: AttrValue

    def check(self) -> None:
        """Raises `InvalidPredicate`."""
        reason = _attr_name_fault(self.attr) or value_fault(self.value)
        if reason is None:
            is_list = isinstance(self.value, tuple | list)
            if self.op in (PredicateOp.GTE, PredicateOp.LTE) and as_f64(self.value) is None:
                reason = "gte/lte need a numeric value"
            elif self.op is PredicateOp.IN and not is_list:
                reason = "in needs a list value"
            elif self.op is PredicateOp.HAS and is_list:
                reason = "has needs a scalar value"
        if reason is not None:
            raise InvalidPredicate(self.attr, reason)


class Requirement(Record, frozen=True, kw_only=True):
    """`count` capabilities (1..=64) selected by `id` or by `id_prefix`, each passing all of `where`."""

    id: CapabilityId | None = None
    id_prefix: str | None = None
    where: tuple[Predicate, ...] = ()
    count: int = 1
    exclusive: bool = False
    min_provenance: Provenance | None = None

    @property
    def selector(self) -> str:
        return self.id if self.id is not None else self.id_prefix or ""

    def selects(self, capability_id: str) -> bool:
        if self.id is not None:
            return capability_id == self.id
        return self.id_prefix is not None and is_under(capability_id, self.id_prefix)

    def check(self) -> None:
        """Raises `InvalidRequirement`, `InvalidId` or `InvalidPredicate`."""
        if (self.id is None) == (self.id_prefix is None):
            raise InvalidRequirement("exactly one of `id` or `id_prefix` is required")
        if self.id is not None:
            check_capability_id(self.id)
        if self.id_prefix is not None:
            _check_dotted(self.id_prefix, least_segments=1)
        if isinstance(self.count, bool) or not 1 <= self.count <= MAX_COUNT:
            raise InvalidRequirement("count must be 1..=64")
        if len(self.where) > MAX_PREDICATES:
            raise InvalidRequirement("too many predicates")
        for predicate in self.where:
            predicate.check()


class MemoryDemand(Record, frozen=True, kw_only=True):
    """Bytes of host and of accelerator memory, each unsigned 64-bit."""

    host_bytes: U64 = 0
    accel_bytes: U64 = 0

    def check(self) -> None:
        """Raises `InvalidRequirement`."""
        for name in ("host_bytes", "accel_bytes"):
            try:
                check_u64(getattr(self, name), name)
            except ValueError as error:
                raise InvalidRequirement(str(error)) from None


# --- ids and values -------------------------------------------------------------------------------------------------


def check_capability_id(text: str) -> CapabilityId:
    """`text` as a capability id. Raises `InvalidId` with the first rule it breaks."""
    _check_dotted(text, least_segments=2)
    return CapabilityId(text)


def _check_dotted(text: str, *, least_segments: int) -> None:
    if not text:
        raise InvalidId(text, "empty")
    if byte_length(text) > MAX_ID_BYTES:
        raise InvalidId(text, "too long")
    segments = text.split(".")
    if len(segments) < least_segments:
        raise InvalidId(text, "too few dot-separated segments")
    if len(segments) > MAX_SEGMENTS:
        raise InvalidId(text, "too many dot-separated segments")
    for segment in segments:
        if not _SEGMENT.fullmatch(segment):
            raise InvalidId(text, f'segment "{segment}" must match [a-z0-9][a-z0-9_-]*')


def family(capability_id: str) -> str:
    """The first segment. Family `x` is experimental, family `trust` is never self-asserted."""
    return capability_id.partition(".")[0]


def is_experimental(capability_id: str) -> bool:
    return family(capability_id) == "x"


def is_under(capability_id: str, prefix: str) -> bool:
    """Whether the id is `prefix` or continues it at a segment boundary: `accel.npu` does not cover `accel.npux.a`."""
    return capability_id == prefix or capability_id.startswith(prefix + ".")


def as_f64(value: object) -> float | None:
    """The number as a 64-bit float; None for anything else, booleans included. Beyond the float range: infinity."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def loose_eq(a: object, b: object) -> bool:
    """Equality of attribute values: numbers compare as 64-bit floats, lists by element, the rest by type and value."""
    x, y = as_f64(a), as_f64(b)
    if x is not None and y is not None:
        return x == y
    if isinstance(a, tuple | list) and isinstance(b, tuple | list):
        return len(a) == len(b) and all(loose_eq(left, right) for left, right in zip(a, b, strict=True))
    return type(a) is type(b) and a == b


def byte_length(text: str) -> int:
    """Length in UTF-8: limits of text are in bytes. A lone surrogate counts as three."""
    return len(text.encode("utf-8", "surrogatepass"))


def quoted(text: str) -> str:
    """`text` between double quotes, with control characters escaped: one error stays one line."""
    return json.dumps(text, ensure_ascii=False)


def value_fault(value: object) -> str | None:
    """Why `value` is no bounded attribute value, or None."""
    if isinstance(value, tuple | list):
        if len(value) > MAX_LIST_ITEMS:
            return "list too long"
        if any(isinstance(item, tuple | list) for item in value):
            return "nested lists are not allowed"
        return next((reason for item in value if (reason := value_fault(item)) is not None), None)
    if isinstance(value, str):
        return "string too long" if byte_length(value) > MAX_STRING_BYTES else None
    if isinstance(value, float):
        return None if math.isfinite(value) else "non-finite float"
    if isinstance(value, int):  # booleans included; a wider integer could not be written as MessagePack
        return None if -(2**63) <= value < 2**64 else "integer beyond 64 bits"
    return "must be a boolean, a number, a string or a list"


def _attr_name_fault(name: str) -> str | None:
    if len(name) > MAX_ATTR_NAME_BYTES or not _ATTR_NAME.fullmatch(name):
        return _NAME_RULE
    return None


# --- measured performance -------------------------------------------------------------------------------------------

PERF_CYCLE_MS = CapabilityId("perf.cog.cycle_ms")
"""Milliseconds of one cycle of the cog named by attribute `cog_id`; lower is better."""
PERF_TOKENS_PER_S = CapabilityId("perf.infer.tok_s")
"""Tokens a second of the model named by attribute `model`; higher is better."""


def measured_cycle(cog_id: str, value_ms: float) -> Capability:
    """Raises `InvalidAttr` for an empty or long parameter and for a value that is negative or not finite."""
    return _measured(PERF_CYCLE_MS, "cog_id", cog_id, value_ms)


def measured_tokens(model: str, value_per_s: float) -> Capability:
    """As `measured_cycle`, for tokens a second of `model`."""
    return _measured(PERF_TOKENS_PER_S, "model", model, value_per_s)


def cycle_within(cog_id: str, budget_ms: float) -> Requirement:
    """A measured cycle of `cog_id` of at most `budget_ms`."""
    return _measured_requirement(PERF_CYCLE_MS, "cog_id", cog_id, PredicateOp.LTE, budget_ms)


def tokens_at_least(model: str, floor_per_s: float) -> Requirement:
    """A measured rate of `model` of at least `floor_per_s`."""
    return _measured_requirement(PERF_TOKENS_PER_S, "model", model, PredicateOp.GTE, floor_per_s)


def _measured(capability_id: CapabilityId, param: str, subject: str, value: float) -> Capability:
    if not 1 <= byte_length(subject) <= MAX_STRING_BYTES:
        raise InvalidAttr(capability_id, param, "parameter must be non-empty and bounded")
    number = as_f64(value)
    if number is None or not math.isfinite(number) or number < 0:
        raise InvalidAttr(capability_id, "value", "measured value must be finite and non-negative")
    return Capability(id=capability_id, attrs={param: subject, "value": number}, provenance=Provenance.MEASURED)


def _measured_requirement(
    capability_id: CapabilityId, param: str, subject: str, op: PredicateOp, bound: float
) -> Requirement:
    return Requirement(
        id=capability_id,
        where=(
            Predicate(attr=param, op=PredicateOp.EQ, value=subject),
            Predicate(attr="value", op=op, value=bound),
        ),
        min_provenance=Provenance.MEASURED,
    )


# --- JSON -----------------------------------------------------------------------------------------------------------


class Checked(Protocol):
    def check(self) -> None: ...


CheckedRecord = TypeVar("CheckedRecord", bound=Checked)


def to_json(record: Checked) -> bytes:
    """JSON of a record that passes its check; maps and sets sorted. Raises what `check` raises."""
    record.check()
    return msgspec.json.encode(record, order="deterministic")


def from_json(data: bytes | str, record_type: type[CheckedRecord]) -> CheckedRecord:
    """The checked record. Raises `msgspec.ValidationError` for its shape, else what `check` raises."""
    record: Any = msgspec.json.decode(data, type=record_type)
    record.check()
    return record  # type: ignore[no-any-return]


__all__ = [
    "MAX_STRING_BYTES", "PERF_CYCLE_MS", "PERF_TOKENS_PER_S", "AttrScalar", "AttrValue", "Capability", "CapabilityId",
    "CapabilityState", "Checked", "InvalidAttr", "InvalidId", "InvalidPredicate", "InvalidRequirement", "MemoryDemand",
    "Predicate", "PredicateOp", "Provenance", "Requirement", "VocabularyCode", "VocabularyError", "as_f64",
    "byte_length", "check_capability_id", "cycle_within", "family", "from_json", "is_experimental", "is_under",
    "loose_eq", "measured_cycle", "measured_tokens", "quoted", "to_json", "tokens_at_least", "value_fault",
]  # fmt: skip
