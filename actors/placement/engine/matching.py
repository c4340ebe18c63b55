"""Which of a node's capabilities meet which requirements (G 1.2).

One requirement alone goes through stages, and the first stage that leaves nothing names the failure. A whole set is
matched jointly, since exclusive requirements compete for capabilities. The search is bounded: giving up counts as
contention, never as a match. Capabilities are named by their index in the node's list.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from messages.capabilities import (
    Capability,
    CapabilityState,
    Predicate,
    PredicateOp,
    Provenance,
    Requirement,
    as_f64,
    loose_eq,
)

MAX_STEPS = 100_000
"""Choices tried for one joint assignment before it counts as contended."""


@dataclass(frozen=True, slots=True)
class NoSuchId:
    selector: str

    def detail(self) -> str:
        return f"{self.selector}: not advertised"


@dataclass(frozen=True, slots=True)
class ProvenanceTooLow:
    selector: str
    best: Provenance
    need: Provenance

    def detail(self) -> str:
        return f"{self.selector}: provenance {self.best} below {self.need}".lower()


@dataclass(frozen=True, slots=True)
class PredicateFailed:
    selector: str
    attr: str
    op: PredicateOp

    def detail(self) -> str:
        return f"{self.selector}: predicate `{self.attr} {self.op}` failed"


@dataclass(frozen=True, slots=True)
class Unavailable:
    selector: str
    state: CapabilityState

    def detail(self) -> str:
        return f"{self.selector}: unavailable ({self.state})"


@dataclass(frozen=True, slots=True)
class InsufficientCount:
    selector: str
    have: int
    need: int

    def detail(self) -> str:
        return f"{self.selector}: {self.have} usable, need {self.need}"


@dataclass(frozen=True, slots=True)
class Contended:
    selector: str
    need: int

    def detail(self) -> str:
        return f"{self.selector}: contended (need {self.need} exclusive)"


MatchFailure = NoSuchId | ProvenanceTooLow | PredicateFailed | Unavailable | InsufficientCount | Contended
Indices = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Assigned:
    """Capability indices per requirement, in the order of the requirements."""

    indices: tuple[Indices, ...]


@dataclass(frozen=True, slots=True)
class Unmatched:
    """(requirement index, failure), sorted by index."""

    failures: tuple[tuple[int, MatchFailure], ...]


def holds(predicate: Predicate, capability: Capability) -> bool:
    """Whether the capability's attribute satisfies the predicate; a missing attribute never does."""
    if predicate.attr not in capability.attrs:
        return False
    value = capability.attrs[predicate.attr]
    match predicate.op:
        case PredicateOp.EQ:
            return loose_eq(value, predicate.value)
        case PredicateOp.GTE | PredicateOp.LTE:
            left, right = as_f64(value), as_f64(predicate.value)
            if left is None or right is None:
                return False
            return left >= right if predicate.op is PredicateOp.GTE else left <= right
        case PredicateOp.IN:
            return _contains(predicate.value, value)
        case PredicateOp.HAS:
            return _contains(value, predicate.value)


def _contains(items: object, wanted: object) -> bool:
    return isinstance(items, tuple | list) and any(loose_eq(item, wanted) for item in items)


def candidates(requirement: Requirement, capabilities: Sequence[Capability]) -> Indices | MatchFailure:
    """Every usable capability that meets the requirement, in list order, or why there is none."""
    selector = requirement.selector
    selected = [i for i, capability in enumerate(capabilities) if requirement.selects(capability.id)]
    if not selected:
        return NoSuchId(selector)
    need = requirement.min_provenance
    if need is not None:
        proven = [i for i in selected if capabilities[i].provenance.rank >= need.rank]
        if not proven:
            best = max((capabilities[i].provenance for i in selected), key=lambda provenance: provenance.rank)
            return ProvenanceTooLow(selector, best, need)
        selected = proven
    passing = [i for i in selected if all(holds(predicate, capabilities[i]) for predicate in requirement.where)]
    if not passing:
        first = capabilities[selected[0]]
        failed = next(predicate for predicate in requirement.where if not holds(predicate, first))
        return PredicateFailed(selector, failed.attr, failed.op)
    usable = tuple(i for i in passing if _is_usable(capabilities[i], requirement))
    return usable or Unavailable(selector, capabilities[passing[0]].state)


def _is_usable(capability: Capability, requirement: Requirement) -> bool:
    match capability.state:
        case CapabilityState.AVAILABLE:
            return True
        case CapabilityState.BUSY:
            return not (requirement.exclusive or capability.exclusive)
        case CapabilityState.RESERVED | CapabilityState.DEGRADED:
            return False


def match_caps(requirement: Requirement, capabilities: Sequence[Capability]) -> Indices | MatchFailure:
    """The first `count` usable capabilities for one requirement alone."""
    found = _enough(requirement, capabilities)
    return found[: requirement.count] if isinstance(found, tuple) else found


def matches(requirement: Requirement, capabilities: Sequence[Capability]) -> bool:
    return isinstance(_enough(requirement, capabilities), tuple)


def _enough(requirement: Requirement, capabilities: Sequence[Capability]) -> Indices | MatchFailure:
    found = candidates(requirement, capabilities)
    if isinstance(found, tuple) and len(found) < requirement.count:
        return InsufficientCount(requirement.selector, len(found), requirement.count)
    return found


def match_all(requirements: Sequence[Requirement], capabilities: Sequence[Capability]) -> Assigned | Unmatched:
    """A joint assignment, or every failure: those of single requirements if there are any, else the contended ones.

    Whether there is an assignment does not depend on the order of the requirements.
    """
    found: list[Indices] = []
    failures: list[tuple[int, MatchFailure]] = []
    for index, requirement in enumerate(requirements):
        outcome = _enough(requirement, capabilities)
        if isinstance(outcome, tuple):
            found.append(outcome)
        else:
            failures.append((index, outcome))
    if failures:
        return Unmatched(tuple(failures))
    claims = _claim_exclusively(requirements, found)
    if claims is None:
        return Unmatched(tuple(_contention(requirements, found)))
    claimed = {capability for claim in claims.values() for capability in claim}
    return Assigned(
        tuple(
            claims[index] if requirement.exclusive else _unclaimed(found[index], claimed)[: requirement.count]
            for index, requirement in enumerate(requirements)
        )
    )


def _unclaimed(options: Indices, claimed: set[int]) -> Indices:
    return tuple(capability for capability in options if capability not in claimed)


def _contention(requirements: Sequence[Requirement], found: Sequence[Indices]) -> list[tuple[int, MatchFailure]]:
    """Everyone who takes part in the contest: the exclusive ones, and whoever wants what one of them could claim."""
    claimable = {
        capability
        for requirement, options in zip(requirements, found, strict=True)
        if requirement.exclusive
        for capability in options
    }
    return [
        (index, Contended(requirement.selector, requirement.count))
        for index, requirement in enumerate(requirements)
        if not claimable.isdisjoint(found[index])
    ]


def _claim_exclusively(requirements: Sequence[Requirement], found: Sequence[Indices]) -> dict[int, Indices] | None:
    """Disjoint claims of the exclusive requirements that leave every shared one enough, or None.

    A search in depth without recursion, most constrained requirement first. A seat is one capability to be chosen for
    one requirement; the seats of a requirement take ascending options, so that each combination is tried once.
    """
    exclusive = [index for index, requirement in enumerate(requirements) if requirement.exclusive]
    if not exclusive:
        return {}
    demand = Counter(capability for options in found for capability in options)
    options_of = {
        index: sorted(found[index], key=lambda capability: (demand[capability], capability)) for index in exclusive
    }
    exclusive.sort(key=lambda index: (len(found[index]) - requirements[index].count, index))
    if not _seats_can_be_filled(requirements, options_of):
        return None
    claimable = {capability for options in options_of.values() for capability in options}
    at_risk = [  # shared requirements that claims could leave with too little
        (frozenset(options), requirement.count)
        for requirement, options in zip(requirements, found, strict=True)
        if not requirement.exclusive and len(set(options) - claimable) < requirement.count
    ]
    seats = [(index, seat) for index in exclusive for seat in range(requirements[index].count)]
    chosen: list[int] = []  # per filled seat, the position in its requirement's options
    claimed: set[int] = set()
    start, steps = 0, 1
    while True:
        if len(chosen) == len(seats):
            if all(len(options - claimed) >= count for options, count in at_risk):
                return _claims(seats, chosen, options_of)
            position = None
        else:
            index, seat = seats[len(chosen)]
            wanted = options_of[index]
            last = len(wanted) - (requirements[index].count - seat)  # beyond it too few are left for this requirement
            position = next((p for p in range(start, last + 1) if wanted[p] not in claimed), None)
        if position is not None:
            chosen.append(position)
            claimed.add(wanted[position])
            steps += 1
            if steps > MAX_STEPS:
                return None
            same_requirement = len(chosen) < len(seats) and seats[len(chosen)][0] == index
            start = position + 1 if same_requirement else 0
            continue
        if not chosen:
            return None
        undone = chosen.pop()
        claimed.discard(options_of[seats[len(chosen)][0]][undone])
        start = undone + 1


def _claims(
    seats: Sequence[tuple[int, int]], chosen: Sequence[int], options_of: dict[int, list[int]]
) -> dict[int, Indices]:
    claims: dict[int, Indices] = {}
    for (index, _), position in zip(seats, chosen, strict=True):
        claims[index] = (*claims.get(index, ()), options_of[index][position])
    return claims


def _seats_can_be_filled(requirements: Sequence[Requirement], options_of: dict[int, list[int]]) -> bool:
    """Whether the exclusive requirements fit if nobody else took part. Augmenting paths say no at once where the
    search would try every permutation first."""
    holder: dict[int, int] = {}
    return all(_take_one(index, options_of, holder) for index in options_of for _ in range(requirements[index].count))


def _take_one(index: int, options_of: dict[int, list[int]], holder: dict[int, int]) -> bool:
    """Give requirement `index` one more capability, moving other holders along the shortest path to a free one."""
    hands_on: dict[int, int | None] = {index: None}  # requirement on a path -> the capability it would give up
    wanted_by: dict[int, int] = {}
    queue = [index]
    for requirement in queue:
        for capability in options_of[requirement]:
            if capability in wanted_by:
                continue
            wanted_by[capability] = requirement
            owner = holder.get(capability)
            if owner is None:
                step: int | None = capability
                while step is not None:
                    holder[step] = wanted_by[step]
                    step = hands_on[wanted_by[step]]
                return True
            if owner not in hands_on:
                hands_on[owner] = capability
                queue.append(owner)
    return False
