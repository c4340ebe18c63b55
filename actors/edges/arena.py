"""Who holds which range of ring memory: `ArenaManager` (E 3, design 7). Arithmetic only: no memory, no descriptor.

There is one region of offsets per workload and one budget per node over all live leases, so no workload sees another's
rings and all of them together stay below what the node gives. With one workload it is E 3, with two differences: a
specification with a zero in it is refused (the reference lets `data_bytes` be zero), and a cancelled request at the
head of the queue is dropped at once (the reference leaves it there until the next release, which may never come, while
what is behind it would fit).

Every call returns what came of it, in order; a grant that a release or a cancel lets through is in that list.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from math import lcm
from typing import NamedTuple

from messages.edge import (
    LeaseRequestId,
    QuiescenceProof,
    RingId,
    RingLayout,
    RingLeased,
    RingLeaseRejected,
    RingLeaseRejection,
    RingSpec,
)
from messages.edge_end import ArenaSample

BUDGET_MAX = 2**63 - 1
"""The largest budget in bytes: a file has no greater size."""


class ArenaBootFault(StrEnum):
    """Why there is no arena (E 3.1)."""

    INVALID_RESERVATION_CEILING = "invalid_reservation_ceiling"
    INVALID_BASE_ALIGNMENT = "invalid_base_alignment"


class ArenaBootError(ValueError):
    """The arena cannot be made with this budget or alignment; `code` says which."""

    def __init__(self, code: ArenaBootFault, text: str) -> None:
        super().__init__(text)
        self.code = code


class ReleaseRejection(StrEnum):
    """Why a ring was not taken back."""

    UNKNOWN_RING_ID = "unknown_ring_id"
    MISSING_QUIESCENCE_PROOF = "missing_quiescence_proof"


@dataclass(frozen=True, slots=True)
class RingLeaseQueued:
    """Nothing is free for this request now; a later call returns its `RingLeased`, unless it is cancelled."""

    request_id: LeaseRequestId


@dataclass(frozen=True, slots=True)
class CancelledFreshLeaseReleased:
    """The request was cancelled while it was queued; it never took memory or a ring id."""

    request_id: LeaseRequestId


@dataclass(frozen=True, slots=True)
class RingReleased:
    """`[start_offset, end_offset)` of the region `arena` is free again."""

    ring_id: RingId
    arena: str
    start_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class RingReleaseRejected:
    """The ring was not taken back; if it is known, it is still leased."""

    ring_id: RingId
    reason: ReleaseRejection


ArenaOutcome = (
    RingLeased
    | RingLeaseQueued
    | RingLeaseRejected
    | CancelledFreshLeaseReleased
    | RingReleased
    | RingReleaseRejected
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Lease:
    """A live lease: who asked, which ring, and where it lies in the region `arena`. Constant for the lease's life."""

    request_id: LeaseRequestId
    ring_id: RingId
    arena: str
    layout: RingLayout
    requested_alignment: int

    @property
    def size_bytes(self) -> int:
        """What it takes of the budget: header, gap and data."""
        return self.layout.end_offset - self.layout.start_offset


@dataclass(slots=True)
class _Queued:
    request_id: LeaseRequestId
    arena: str
    ring_spec: RingSpec
    cancelled: bool = False


class ArenaManager:
    """Ring memory of one node: `budget_bytes` over all live leases, which is also the size of each region.

    `base_alignment` in bytes; every ring starts, and has its data, at a multiple of the least common multiple of it
    and of what the ring asks for. Ring ids are numbered from 1 and never used again. Raises `ArenaBootError`.
    """

    def __init__(self, budget_bytes: int, base_alignment: int = 64) -> None:
        if not 0 < budget_bytes <= BUDGET_MAX:
            text = f"a budget of {budget_bytes} bytes is not in 1..{BUDGET_MAX}"
            raise ArenaBootError(ArenaBootFault.INVALID_RESERVATION_CEILING, text)
        if base_alignment <= 0:
            text = f"a base alignment of {base_alignment} bytes is not positive"
            raise ArenaBootError(ArenaBootFault.INVALID_BASE_ALIGNMENT, text)
        self._budget_bytes = budget_bytes
        self._base_alignment = base_alignment
        self._regions: dict[str, _Region] = {}
        self._leases: dict[RingId, Lease] = {}
        self._queue: deque[_Queued] = deque()
        self._live_bytes = 0
        self._rings_granted = 0
        self._shutting_down = False
        self._allocation_failures = 0
        self._release_failures = 0

    def lease(self, request_id: LeaseRequestId, arena: str, ring_spec: RingSpec) -> list[ArenaOutcome]:
        """A ring in the region `arena`: granted, queued behind those that wait, or rejected (E 3.4).

        `CANNOT_FIT`: not even an empty region of the whole budget could hold it. Repeated request ids are not noticed.
        """
        if self._shutting_down:
            return [self._reject(request_id, RingLeaseRejection.ARENA_SHUTTING_DOWN)]
        if _place(ring_spec, _Range(0, self._budget_bytes), self._base_alignment) is None:
            return [self._reject(request_id, RingLeaseRejection.CANNOT_FIT)]
        if not self._queue:
            granted = self._grant(request_id, arena, ring_spec)
            if granted is not None:
                return [granted]
        self._queue.append(_Queued(request_id, arena, ring_spec))
        return [RingLeaseQueued(request_id)]

    def cancel(self, request_id: LeaseRequestId) -> list[ArenaOutcome]:
        """Forget a request that is queued; unknown and granted ones: nothing (E 3.5).

        Returns what now moves up: with the head of the queue gone, those behind it may fit.
        """
        for entry in self._queue:
            if entry.request_id == request_id:
                entry.cancelled = True
        return list(self._retry())

    def release(self, ring_id: RingId, proof: QuiescenceProof) -> list[ArenaOutcome]:
        """Take a ring back, if it is proved that nothing touches it; then grant from the head of the queue (E 3.6).

        Allowed while shutting down.
        """
        lease = self._leases.get(ring_id)
        if lease is None:
            return [self._keep(ring_id, ReleaseRejection.UNKNOWN_RING_ID)]
        if not proof.verified:
            return [self._keep(ring_id, ReleaseRejection.MISSING_QUIESCENCE_PROOF)]
        del self._leases[ring_id]
        self._live_bytes -= lease.size_bytes
        start, end = lease.layout.start_offset, lease.layout.end_offset
        self._regions[lease.arena].put_back(_Range(start, end))
        return [RingReleased(ring_id, lease.arena, start, end), *self._retry()]

    def shutdown(self) -> list[ArenaOutcome]:
        """Grant nothing any more; what is queued is rejected, what is leased stays until it is released (E 3.7)."""
        self._shutting_down = True
        outcomes: list[ArenaOutcome] = []
        while self._queue:
            entry = self._queue.popleft()
            if entry.cancelled:
                outcomes.append(CancelledFreshLeaseReleased(entry.request_id))
            else:
                outcomes.append(self._reject(entry.request_id, RingLeaseRejection.ARENA_SHUTTING_DOWN))
        return outcomes

    def lease_of(self, ring_id: RingId) -> Lease | None:
        """The live lease of a ring."""
        return self._leases.get(ring_id)

    def live_leases(self) -> list[Lease]:
        """In the order granted."""
        return list(self._leases.values())

    @property
    def arenas_without_leases(self) -> list[str]:
        """Regions that had leases, and now have none and nobody waiting for one: `drop_arena` forgets them."""
        held = {lease.arena for lease in self._leases.values()}
        wanted = {entry.arena for entry in self._queue if not entry.cancelled}
        return [arena for arena in self._regions if arena not in held | wanted]

    def drop_arena(self, arena: str) -> None:
        """Forget a region without leases; a later lease starts with a new, empty one. Unknown: nothing.

        Raises `ValueError` while a ring of it is leased.
        """
        if any(lease.arena == arena for lease in self._leases.values()):
            raise ValueError(f"arena {arena!r} has live leases: release them first")
        self._regions.pop(arena, None)

    def sample(self) -> ArenaSample:
        """What is taken and what is free (E 3.8), over all regions.

        `largest_free_range_bytes`: of the regions there are, and within what is left of the budget.
        """
        free_bytes = self._budget_bytes - self._live_bytes
        largest = max((region.largest for region in self._regions.values()), default=self._budget_bytes)
        return ArenaSample(
            capacity_bytes=self._budget_bytes,
            live_bytes=self._live_bytes,
            free_bytes=free_bytes,
            active_leases=len(self._leases),
            pending_leases=sum(not entry.cancelled for entry in self._queue),
            largest_free_range_bytes=min(largest, free_bytes),
            allocation_failures_total=self._allocation_failures,
            release_failures_total=self._release_failures,
        )

    def _retry(self) -> Iterator[ArenaOutcome]:
        """Grant from the head of the queue until the head does not fit; the first that does not holds up the rest."""
        while self._queue:
            head = self._queue[0]
            if head.cancelled:
                outcome: ArenaOutcome | None = CancelledFreshLeaseReleased(head.request_id)
            else:
                outcome = self._grant(head.request_id, head.arena, head.ring_spec)
            if outcome is None:
                return
            self._queue.popleft()
            yield outcome

    def _grant(self, request_id: LeaseRequestId, arena: str, ring_spec: RingSpec) -> RingLeased | None:
        """First fit in the region, within the budget."""
        region = self._regions.get(arena) or _Region(self._budget_bytes)
        layout = region.first_fit(ring_spec, self._base_alignment)
        if layout is None:
            return None
        ring_id = RingId(self._rings_granted + 1)
        lease = Lease(request_id, ring_id, arena, layout, ring_spec.alignment)
        if self._live_bytes + lease.size_bytes > self._budget_bytes:
            return None
        region.take(_Range(layout.start_offset, layout.end_offset))
        self._regions[arena] = region
        self._leases[ring_id] = lease
        self._rings_granted += 1
        self._live_bytes += lease.size_bytes
        return RingLeased(request_id=request_id, ring_id=ring_id, layout=layout)

    def _reject(self, request_id: LeaseRequestId, reason: RingLeaseRejection) -> RingLeaseRejected:
        self._allocation_failures += 1
        return RingLeaseRejected(request_id=request_id, reason=reason)

    def _keep(self, ring_id: RingId, reason: ReleaseRejection) -> RingReleaseRejected:
        self._release_failures += 1
        return RingReleaseRejected(ring_id, reason)


class _Range(NamedTuple):
    """`[start, end)`, bytes from the start of a region."""

    start: int
    end: int


class _Region:
    """The free ranges of one region, ascending; no two of them touch and none is empty."""

    def __init__(self, size_bytes: int) -> None:
        self._free = [_Range(0, size_bytes)]

    @property
    def largest(self) -> int:
        return max((free.end - free.start for free in self._free), default=0)

    def first_fit(self, spec: RingSpec, base_alignment: int) -> RingLayout | None:
        """Where the ring would lie in the lowest free range that can hold it."""
        return next((layout for free in self._free if (layout := _place(spec, free, base_alignment))), None)

    def take(self, taken: _Range) -> None:
        """Cut a range out of the free range it lies in; what is left before and behind it stays free."""
        place = next(place for place, free in enumerate(self._free) if free.start <= taken.start < free.end)
        around = self._free[place]
        assert taken.end <= around.end, f"{taken} is not free: {around}"
        left = (_Range(around.start, taken.start), _Range(taken.end, around.end))
        self._free[place : place + 1] = [rest for rest in left if rest.start < rest.end]

    def put_back(self, freed: _Range) -> None:
        """Free a range again; ranges that touch become one."""
        insort(self._free, freed)
        merged: list[_Range] = []
        for free in self._free:
            if merged and free.start <= merged[-1].end:
                assert free.start == merged[-1].end, f"{free} was free already: {merged[-1]}"
                merged[-1] = _Range(merged[-1].start, free.end)
            else:
                merged.append(free)
        self._free = merged


def _place(spec: RingSpec, free: _Range, base_alignment: int) -> RingLayout | None:
    """The ring at the first aligned offset of a free range, if it ends within it (E 3.3).

    Nothing overflows: a sum beyond 64 bits is beyond every range.
    """
    if min(spec.header_bytes, spec.data_bytes, spec.alignment) <= 0:
        return None
    alignment = lcm(base_alignment, spec.alignment)
    start = _round_up(free.start, alignment)
    data = _round_up(start + spec.header_bytes, alignment)
    end = data + spec.data_bytes
    if end > free.end:
        return None
    return RingLayout(
        start_offset=start,
        header_offset=start,
        data_offset=data,
        end_offset=end,
        data_bytes=spec.data_bytes,
        alignment=alignment,
    )


def _round_up(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment
