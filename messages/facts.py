"""The facts a node states about itself: body, limits, freshness, changes (G 1.2, P 4.4, P 9.1).

Whoever receives facts verifies their signature elsewhere and calls `NodeFacts.check()`. Times are unix seconds given
by the caller. The capability vocabulary is re-exported: a reader of facts needs both.
"""

from __future__ import annotations

import re
from enum import StrEnum

import msgspec

from messages.base import U64, U64_MAX, Record
from messages.capabilities import (
    PERF_CYCLE_MS,
    PERF_TOKENS_PER_S,
    AttrScalar,
    AttrValue,
    Capability,
    CapabilityId,
    CapabilityState,
    InvalidAttr,
    InvalidId,
    InvalidPredicate,
    InvalidRequirement,
    MemoryDemand,
    Predicate,
    PredicateOp,
    Provenance,
    Requirement,
    VocabularyCode,
    VocabularyError,
    as_f64,
    byte_length,
    check_capability_id,
    cycle_within,
    family,
    from_json,
    is_experimental,
    is_under,
    loose_eq,
    measured_cycle,
    measured_tokens,
    to_json,
    tokens_at_least,
)

FACTS_VERSION = 1
MIN_TTL_S, MAX_TTL_S = 10, 86_400
MAX_CAPABILITIES = 512
MAX_NOTES = 64
MAX_NOTE_BYTES = 512
MAX_DELTA_CHANGES = 64
MAX_SKEW_S = 60
"""How far in the future a receiver lets `issued_at` be."""

_NODE_ID = re.compile(r"[A-Za-z0-9\-_.:]{1,128}")


class FactsCode(StrEnum):
    INVALID = "invalid"
    EXPIRED = "expired"
    FROM_FUTURE = "from_future"
    DELTA_MISMATCH = "delta_mismatch"


class FactsError(ValueError):
    """Facts or a change to them cannot be used; `code` says which way."""

    def __init__(self, code: FactsCode, reason: str) -> None:
        self.code, self.reason = code, reason
        super().__init__(f"node facts {code.replace('_', ' ')}: {reason}")


class FactsNote(Record, frozen=True, kw_only=True):
    """Free text of a probe for people; never matched. Each field holds at most 512 bytes."""

    probe: str
    text: str


class NodeLoad(Record, frozen=True, kw_only=True):
    """`busy` of `total` capabilities are busy or reserved; `mem_free` in bytes, None when no memory fact says it."""

    busy: int
    total: int
    mem_free: int | None = None

    @property
    def fraction(self) -> float | None:
        """0..1, or None for a node that advertises nothing."""
        return self.busy / self.total if self.total else None


class NodeFacts(Record, frozen=True, kw_only=True):
    """What a node has, good for `ttl_secs` from `issued_at` (unix s); `seq` grows with each issue of the node."""

    version: int
    node_id: str
    issued_at: U64
    ttl_secs: int
    seq: U64
    capabilities: tuple[Capability, ...]
    notes: tuple[FactsNote, ...] = ()

    @property
    def expires_at(self) -> int:
        """Unix seconds of the first moment at which the facts are no longer fresh."""
        return self.issued_at + self.ttl_secs

    def check(self) -> None:
        """Structure only. Raises `FactsError` with code `invalid`."""
        if self.version != FACTS_VERSION:
            raise _invalid(f"version {self.version} is unknown, this reads version {FACTS_VERSION}")
        if not _NODE_ID.fullmatch(self.node_id):
            raise _invalid("node_id must be 1..=128 of [A-Za-z0-9-_.:]")
        for name, number in (("issued_at", self.issued_at), ("seq", self.seq)):
            if isinstance(number, bool) or not 0 <= number <= U64_MAX:
                raise _invalid(f"{name} must be an unsigned 64-bit number")
        if not MIN_TTL_S <= self.ttl_secs <= MAX_TTL_S:
            raise _invalid(f"ttl_secs must be {MIN_TTL_S}..={MAX_TTL_S}, is {self.ttl_secs}")
        if len(self.capabilities) > MAX_CAPABILITIES:
            raise _invalid(f"too many capabilities (max {MAX_CAPABILITIES})")
        for capability in self.capabilities:
            try:
                capability.check()
            except VocabularyError as error:
                raise _invalid(str(error)) from error
            if family(capability.id) == "trust":
                raise _invalid(f"{capability.id}: trust is assigned by the receiver, never stated by the node")
        if len(self.notes) > MAX_NOTES:
            raise _invalid(f"too many notes (max {MAX_NOTES})")
        if any(byte_length(text) > MAX_NOTE_BYTES for note in self.notes for text in (note.probe, note.text)):
            raise _invalid(f"a note field is longer than {MAX_NOTE_BYTES} bytes")

    def is_fresh(self, now_s: int) -> bool:
        return now_s < self.expires_at

    def check_window(self, now_s: int, skew_s: int = MAX_SKEW_S) -> None:
        """Raises `FactsError`: `from_future` beyond `now_s + skew_s`, `expired` from `expires_at` on."""
        if self.issued_at > now_s + skew_s:
            raise FactsError(FactsCode.FROM_FUTURE, f"issued at {self.issued_at} s, now {now_s} s, skew {skew_s} s")
        if not self.is_fresh(now_s):
            raise FactsError(FactsCode.EXPIRED, f"good until {self.expires_at} s, now {now_s} s")

    def load(self) -> NodeLoad:
        in_use = (CapabilityState.BUSY, CapabilityState.RESERVED)
        return NodeLoad(
            busy=sum(capability.state in in_use for capability in self.capabilities),
            total=len(self.capabilities),
            mem_free=self._mem_free(),
        )

    def _mem_free(self) -> int | None:
        for memory_id in ("mem.unified", "mem.system"):
            for capability in self.capabilities:
                if capability.id == memory_id:
                    free = capability.attrs.get("free")
                    if isinstance(free, int) and not isinstance(free, bool) and free >= 0:
                        return free
        return None

    def apply(self, delta: FactsDelta) -> NodeFacts:
        """The facts after `delta`, or `FactsError`; never part of it."""
        delta.check()
        if delta.node_id != self.node_id:
            raise _mismatch(f"it is for node {delta.node_id}, the facts are of {self.node_id}")
        if delta.base_seq != self.seq:
            raise _mismatch(f"it builds on seq {delta.base_seq}, the facts have seq {self.seq}")
        capabilities = list(self.capabilities)
        for change in delta.changes:
            if not 0 <= change.index < len(capabilities) or capabilities[change.index].id != change.id:
                raise _mismatch(f"capability {change.index} is not {change.id}")
            capabilities[change.index] = msgspec.structs.replace(capabilities[change.index], state=change.state)
        if delta.mem_free is not None:
            capabilities = [
                msgspec.structs.replace(capability, attrs={**capability.attrs, "free": delta.mem_free})
                if capability.id in ("mem.unified", "mem.system")
                else capability
                for capability in capabilities
            ]
        return msgspec.structs.replace(self, capabilities=tuple(capabilities), seq=delta.seq, issued_at=delta.issued_at)


class StateChange(Record, frozen=True, kw_only=True):
    """`id` repeats what stands at `index`, so that a change can never hit another capability."""

    index: U64
    id: CapabilityId
    state: CapabilityState


class FactsDelta(Record, frozen=True, kw_only=True):
    """New states of some capabilities and, with `mem_free` (bytes), of the free memory; applies whole or not at all."""

    node_id: str
    base_seq: U64
    seq: U64
    issued_at: U64
    changes: tuple[StateChange, ...]
    mem_free: U64 | None = None

    def check(self) -> None:
        """Raises `FactsError` with code `invalid` or `delta_mismatch`."""
        if len(self.changes) > MAX_DELTA_CHANGES:
            raise _invalid(f"too many changes (max {MAX_DELTA_CHANGES})")
        numbers = (self.base_seq, self.seq, self.issued_at, self.mem_free or 0)
        if any(not 0 <= number <= U64_MAX for number in numbers):
            raise _invalid("numbers of a change must be unsigned 64-bit")
        if self.seq <= self.base_seq:
            raise _mismatch(f"seq {self.seq} does not follow its base {self.base_seq}")


def _invalid(reason: str) -> FactsError:
    return FactsError(FactsCode.INVALID, reason)


def _mismatch(reason: str) -> FactsError:
    return FactsError(FactsCode.DELTA_MISMATCH, reason)


__all__ = [
    "FACTS_VERSION", "MAX_CAPABILITIES", "MAX_DELTA_CHANGES", "MAX_NOTES", "MAX_NOTE_BYTES", "MAX_SKEW_S", "MAX_TTL_S",
    "MIN_TTL_S", "PERF_CYCLE_MS", "PERF_TOKENS_PER_S", "AttrScalar", "AttrValue", "Capability", "CapabilityId",
    "CapabilityState", "FactsCode", "FactsDelta", "FactsError", "FactsNote", "InvalidAttr", "InvalidId",
    "InvalidPredicate", "InvalidRequirement", "MemoryDemand", "NodeFacts", "NodeLoad", "Predicate", "PredicateOp",
    "Provenance", "Requirement", "StateChange", "VocabularyCode", "VocabularyError", "as_f64", "check_capability_id",
    "cycle_within", "family", "from_json", "is_experimental", "is_under", "loose_eq", "measured_cycle",
    "measured_tokens", "to_json", "tokens_at_least",
]  # fmt: skip
