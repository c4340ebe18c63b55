"""Two semantics of one establisher: what `strict` does where `seed` does what the origin did (design 7, E 2.5).

`Rules` is the table of differences: one field each, read in exactly one place of the machine, named by what it adds to
the seed. The seed has none of them, `strict` has all.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum

from messages.base import U64_MAX
from messages.edge import ObjectSpec, RingSpec


class Semantics(StrEnum):
    """`seed`: the table of E 2.3 to the letter, for recorded traces. `strict`: what runs."""

    SEED = "seed"
    STRICT = "strict"


class EventRejection(StrEnum):
    """Why an event was turned away: nothing was changed, emitted or numbered, and whoever sent it must hear of it."""

    WRONG_NODE = "wrong_node"
    INVALID_SPEC = "invalid_spec"
    STALE_RUN = "stale_run"
    EDGE_LIVE = "edge_live"
    UNKNOWN_EDGE = "unknown_edge"
    DIRECTION_NEEDED = "direction_needed"


@dataclass(frozen=True, slots=True)
class EventRejected:
    """What `EdgeEstablisher.observe` returns for an event that it turned away; never a life-cycle event (design 7).

    `text` says what was wrong and what to do. `unknown_edge` answers a `StopEdge`: there is nothing to stop, so the
    caller acknowledges it (Q24).
    """

    reason: EventRejection
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The differences, in the order of their numbers in E 2.5."""

    sender_hears_of_rejection: bool
    """Q1, Q24: the seed turns events away without a trace."""
    live_end_is_not_replaced: bool
    """Q2: an identical provision of a live end is a no-op, any other is rejected."""
    ends_are_keyed_by_direction: bool
    """Q3, Q23: producer and consumer share a node; what names an edge alone goes to the end that it is about."""
    unclaimed_grant_is_released: bool
    """Q4: the seed leaks it."""
    repeated_grant_is_ignored: bool
    """Q5: the seed gives back the ring under its pump."""
    only_queued_request_is_cancelled: bool
    """Q8, Q9: the seed cancels on every stop."""
    stop_uninstalls_ring_being_installed: bool
    """Q11, Q12, Q33: the seed gives the range back while the worker maps it."""
    release_waits_for_every_gate: bool
    """Q13, Q14: pump, worker and proof; the seed takes any word of quiescence for all three."""
    crashed_worker_is_quiescent: bool
    """Q16, Q17: for good; the seed waits for ever for a worker that crashed before or while it stopped."""
    fault_needs_a_stream: bool
    """Q18: before the driver was asked there is none, so the fault is of an earlier life."""
    stopped_acts_on_stopped_end_alone: bool
    """Q21, Q22, Q29: it says that the arena has the ring back and forgets the record; the seed drops a live edge's
    ring with it and keeps every record."""
    lower_run_is_fenced: bool
    """Q26."""
    specs_are_validated: bool
    """Q27."""
    only_live_ends_are_found: bool
    """Q28: by request and by ring; the seed lets a dead record shadow a live one."""


SEED = Rules(**{field.name: False for field in fields(Rules)})
STRICT = Rules(**{field.name: True for field in fields(Rules)})


def rules_of(semantics: Semantics) -> Rules:
    return STRICT if semantics is Semantics.STRICT else SEED


def fault_of_specs(object_spec: ObjectSpec, ring_spec: RingSpec) -> str | None:
    """What makes the specifications of an end unusable whatever the arena; `None`: nothing does (Q27)."""
    sizes = {
        "max_extent_bytes": object_spec.max_extent_bytes,
        "header_bytes": ring_spec.header_bytes,
        "data_bytes": ring_spec.data_bytes,
        "alignment": ring_spec.alignment,
    }
    for name, size in sizes.items():
        if not 0 < size <= U64_MAX:
            return f"{name} is {size}, which is not in 1..{U64_MAX}"
    data_offset = -(-ring_spec.header_bytes // ring_spec.alignment) * ring_spec.alignment
    if data_offset + ring_spec.data_bytes > U64_MAX:
        return f"a ring of {ring_spec.data_bytes} bytes after offset {data_offset} ends beyond {U64_MAX}"
    return None
