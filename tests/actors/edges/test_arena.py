"""What `ArenaManager` promises: E 10.2, the worked examples of E 3.3, and the budget that workloads share."""

import pytest

from actors.edges.arena import (
    BUDGET_MAX,
    ArenaBootError,
    ArenaBootFault,
    ArenaManager,
    CancelledFreshLeaseReleased,
    ReleaseRejection,
    RingLeaseQueued,
    RingReleased,
    RingReleaseRejected,
)
from messages.base import U64_MAX
from messages.edge import (
    QuiescenceProof,
    RingLayout,
    RingLeased,
    RingLeaseRejected,
    RingLeaseRejection,
    RingSpec,
)
from messages.edge_end import ArenaSample

PROOF = QuiescenceProof(verified=True)
NO_PROOF = QuiescenceProof(verified=False)


def spec(data, alignment=64, header=128):
    return RingSpec(header_bytes=header, data_bytes=data, alignment=alignment)


def layout(start, data_offset, end, alignment=64):
    return RingLayout(
        start_offset=start,
        header_offset=start,
        data_offset=data_offset,
        end_offset=end,
        data_bytes=end - data_offset,
        alignment=alignment,
    )


def granted(request, ring, placed):
    return RingLeased(request_id=request, ring_id=ring, layout=placed)


def rejected(request, reason=RingLeaseRejection.CANNOT_FIT):
    return RingLeaseRejected(request_id=request, reason=reason)


@pytest.fixture
def arena():
    return ArenaManager(4096, 64)


# --- E 10.2 ---


def test_a_ring_is_granted_inside_the_ceiling(arena):
    assert arena.lease(1, "a", spec(512)) == [granted(1, 1, layout(0, 128, 640))]


@pytest.mark.parametrize(
    ("budget", "alignment", "fault"),
    [
        (0, 64, ArenaBootFault.INVALID_RESERVATION_CEILING),
        (-1, 64, ArenaBootFault.INVALID_RESERVATION_CEILING),
        (BUDGET_MAX + 1, 64, ArenaBootFault.INVALID_RESERVATION_CEILING),
        (4096, 0, ArenaBootFault.INVALID_BASE_ALIGNMENT),
        (4096, -64, ArenaBootFault.INVALID_BASE_ALIGNMENT),
    ],
)
def test_an_arena_of_nothing_does_not_boot(budget, alignment, fault):
    with pytest.raises(ArenaBootError) as refusal:
        ArenaManager(budget, alignment)
    assert refusal.value.code is fault


def test_what_fits_later_is_queued_and_what_never_fits_is_rejected(arena):
    assert arena.lease(1, "a", spec(3072)) == [granted(1, 1, layout(0, 128, 3200))]
    assert arena.lease(2, "a", spec(1024)) == [RingLeaseQueued(2)]
    assert arena.lease(3, "a", spec(8192)) == [rejected(3)]
    assert [lease.ring_id for lease in arena.live_leases()] == [1]


def test_two_rings_are_disjoint_and_each_is_aligned_as_it_asked(arena):
    arena.lease(1, "a", spec(512, alignment=64))
    assert arena.lease(2, "a", spec(512, alignment=128)) == [granted(2, 2, layout(640, 768, 1280, alignment=128))]
    assert arena.lease_of(1).layout == layout(0, 128, 640)
    assert (arena.lease_of(2).layout.end_offset, arena.lease_of(2).requested_alignment) == (1280, 128)
    assert arena.lease_of(3) is None


def test_a_request_cancelled_in_the_queue_takes_no_memory_and_no_ring_id(arena):
    arena.lease(1, "a", spec(3072))
    arena.lease(2, "a", spec(1024))
    assert arena.cancel(2) == [CancelledFreshLeaseReleased(2)]
    assert arena.release(1, PROOF) == [RingReleased(1, "a", 0, 3200)]
    assert arena.lease(3, "a", spec(1024)) == [granted(3, 2, layout(0, 128, 1152))]


def test_a_ring_goes_back_with_a_proof_only(arena):
    arena.lease(1, "a", spec(512))
    assert arena.release(1, NO_PROOF) == [RingReleaseRejected(1, ReleaseRejection.MISSING_QUIESCENCE_PROOF)]
    assert arena.lease_of(1) is not None
    assert arena.lease(2, "a", spec(512)) == [granted(2, 2, layout(640, 768, 1280))]
    assert arena.release(1, PROOF) == [RingReleased(1, "a", 0, 640)]
    assert arena.release(1, PROOF) == [RingReleaseRejected(1, ReleaseRejection.UNKNOWN_RING_ID)]
    assert arena.lease(3, "a", spec(512)) == [granted(3, 3, layout(0, 128, 640))]


def test_an_unknown_ring_is_named_so_even_without_a_proof(arena):
    assert arena.release(9, NO_PROOF) == [RingReleaseRejected(9, ReleaseRejection.UNKNOWN_RING_ID)]


def test_shutting_down_grants_nothing_and_keeps_what_is_leased(arena):
    arena.lease(1, "a", spec(3072))
    for request in (2, 3, 4):
        arena.lease(request, "a", spec(1024))
    arena.cancel(3)
    shutting_down = RingLeaseRejection.ARENA_SHUTTING_DOWN
    assert arena.shutdown() == [rejected(2, shutting_down), CancelledFreshLeaseReleased(3), rejected(4, shutting_down)]
    assert arena.shutdown() == []
    assert arena.lease(5, "a", spec(64)) == [rejected(5, shutting_down)]
    assert [lease.ring_id for lease in arena.live_leases()] == [1]
    assert arena.release(1, PROOF) == [RingReleased(1, "a", 0, 3200)]
    assert arena.cancel(5) == []


def sampled(live=0, *, active=0, pending=0, largest=None, allocation_failures=0, release_failures=0):
    return ArenaSample(
        capacity_bytes=4096,
        live_bytes=live,
        free_bytes=4096 - live,
        active_leases=active,
        pending_leases=pending,
        largest_free_range_bytes=4096 - live if largest is None else largest,
        allocation_failures_total=allocation_failures,
        release_failures_total=release_failures,
    )


def test_a_sample_shows_what_is_taken(arena):
    assert arena.sample() == sampled()
    arena.lease(1, "a", spec(512))
    assert arena.sample() == sampled(live=640, active=1)
    arena.release(1, PROOF)
    assert arena.sample() == sampled()


def test_a_sample_counts_what_waits_but_not_as_a_failure(arena):
    arena.lease(1, "a", spec(3072))
    arena.lease(2, "a", spec(1024))
    arena.lease(3, "a", spec(1024))
    assert arena.sample() == sampled(live=3200, active=1, pending=2)
    arena.cancel(3)
    assert arena.sample() == sampled(live=3200, active=1, pending=1)


def test_a_sample_counts_rejected_leases_and_releases(arena):
    arena.lease(1, "a", spec(8192))
    assert arena.sample() == sampled(allocation_failures=1)
    arena.lease(2, "a", spec(512))
    arena.release(1, NO_PROOF)
    arena.release(9, PROOF)
    assert arena.sample() == sampled(live=640, active=1, allocation_failures=1, release_failures=2)


def test_a_sample_names_the_largest_hole(arena):
    for request in (1, 2, 3):
        arena.lease(request, "a", spec(1024))
    arena.release(2, PROOF)
    assert arena.sample() == sampled(live=2304, active=2, largest=1152)


# --- E 3.3, 3.4 ---


@pytest.mark.parametrize(
    ("base", "asked", "placed"),
    [
        (64, spec(3072), layout(0, 128, 3200)),
        (64, spec(100, header=1), layout(0, 64, 164)),
        (64, spec(100, alignment=96), layout(0, 192, 292, alignment=192)),
        (1, spec(1, alignment=1, header=1), layout(0, 1, 2, alignment=1)),
        (64, spec(3968), layout(0, 128, 4096)),
    ],
)
def test_the_header_comes_first_and_the_data_at_the_next_multiple(base, asked, placed):
    assert ArenaManager(4096, base).lease(1, "a", asked) == [granted(1, 1, placed)]


@pytest.mark.parametrize(
    "asked",
    [
        spec(0),
        spec(64, alignment=0),
        spec(64, header=0),
        spec(3969),
        spec(U64_MAX),
        spec(64, header=U64_MAX),
        spec(64, alignment=U64_MAX),
        spec(64, alignment=2**63 + 1),
    ],
)
def test_a_specification_of_nothing_or_beyond_the_ceiling_is_rejected(arena, asked):
    assert arena.lease(1, "a", asked) == [rejected(1)]
    assert arena.sample().allocation_failures_total == 1
    assert arena.arenas_without_leases == []


def test_the_gap_in_front_of_an_aligned_ring_stays_free(arena):
    arena.lease(1, "a", spec(64, header=64))
    assert arena.lease(2, "a", spec(1024, alignment=1024)) == [granted(2, 2, layout(1024, 2048, 3072, alignment=1024))]
    assert arena.lease(3, "a", spec(768)) == [granted(3, 3, layout(128, 256, 1024))]
    assert arena.lease(4, "a", spec(896)) == [granted(4, 4, layout(3072, 3200, 4096))]
    assert arena.sample() == sampled(live=128 + 2048 + 896 + 1024, active=4)


def test_the_lowest_hole_that_fits_is_taken(arena):
    for request, data in ((1, 256), (2, 64), (3, 512), (4, 64)):
        arena.lease(request, "a", spec(data))
    arena.release(1, PROOF)
    arena.release(3, PROOF)
    assert arena.lease(5, "a", spec(512))[0].layout.start_offset == 576
    assert arena.lease(6, "a", spec(128))[0].layout.start_offset == 0


def test_freed_neighbours_become_one_hole_whatever_the_order(arena):
    for request in (1, 2, 3):
        arena.lease(request, "a", spec(1024))
    for ring in (1, 3, 2):
        arena.release(ring, PROOF)
    assert arena.lease(4, "a", spec(3968))[0].layout == layout(0, 128, 4096)


def test_nobody_overtakes_the_queue_and_a_release_grants_from_its_head(arena):
    arena.lease(1, "a", spec(1024))
    arena.lease(2, "a", spec(1024))
    assert arena.lease(3, "a", spec(3072)) == [RingLeaseQueued(3)]
    assert arena.lease(4, "a", spec(64)) == [RingLeaseQueued(4)]
    assert arena.release(1, PROOF) == [RingReleased(1, "a", 0, 1152)]
    assert arena.release(2, PROOF) == [
        RingReleased(2, "a", 1152, 2304),
        granted(3, 3, layout(0, 128, 3200)),
        granted(4, 4, layout(3200, 3328, 3392)),
    ]
    assert arena.lease(5, "a", spec(64))[0].ring_id == 5


def test_a_cancelled_head_lets_those_behind_it_through(arena):
    arena.lease(1, "a", spec(1024))
    arena.lease(2, "a", spec(3072))
    arena.lease(3, "a", spec(64))
    arena.lease(4, "a", spec(3072))
    assert arena.cancel(4) == []
    assert arena.cancel(2) == [
        CancelledFreshLeaseReleased(2),
        granted(3, 2, layout(1152, 1280, 1344)),
        CancelledFreshLeaseReleased(4),
    ]
    assert arena.sample().pending_leases == 0


@pytest.mark.parametrize("request_id", [1, 99])
def test_to_cancel_what_is_not_queued_changes_nothing(arena, request_id):
    arena.lease(1, "a", spec(3072))
    arena.lease(2, "a", spec(1024))
    before = arena.sample()
    assert arena.cancel(request_id) == []
    assert arena.sample() == before
    assert arena.release(1, PROOF)[1:] == [granted(2, 2, layout(0, 128, 1152))]


# --- one region per workload, one budget per node ---


def test_workloads_share_the_budget_but_no_offset(arena):
    assert arena.lease(1, "a", spec(1024)) == [granted(1, 1, layout(0, 128, 1152))]
    assert arena.lease(2, "b", spec(1024)) == [granted(2, 2, layout(0, 128, 1152))]
    assert arena.lease(3, "b", spec(1024)) == [granted(3, 3, layout(1152, 1280, 2304))]
    assert arena.lease(4, "c", spec(1024)) == [RingLeaseQueued(4)]
    assert arena.sample() == sampled(live=3456, active=3, pending=1, largest=640)
    assert arena.release(1, PROOF) == [RingReleased(1, "a", 0, 1152), granted(4, 4, layout(0, 128, 1152))]
    assert [(lease.ring_id, lease.arena) for lease in arena.live_leases()] == [(2, "b"), (3, "b"), (4, "c")]


def test_the_budget_holds_though_the_region_has_room(arena):
    arena.lease(1, "a", spec(3072))
    assert arena.lease(2, "b", spec(3072)) == [RingLeaseQueued(2)]
    assert arena.lease(3, "a", spec(64)) == [RingLeaseQueued(3)]
    assert arena.release(1, PROOF) == [
        RingReleased(1, "a", 0, 3200),
        granted(2, 2, layout(0, 128, 3200)),
        granted(3, 3, layout(0, 128, 192)),
    ]


def test_a_region_is_dropped_when_nothing_is_leased_or_awaited_in_it(arena):
    arena.lease(1, "a", spec(2048))
    arena.lease(2, "b", spec(1024))
    arena.lease(3, "b", spec(2048))
    assert arena.arenas_without_leases == []
    with pytest.raises(ValueError, match="'a' has live leases"):
        arena.drop_arena("a")
    arena.release(2, PROOF)
    assert arena.arenas_without_leases == []  # request 3 waits for it
    arena.cancel(3)
    assert arena.arenas_without_leases == ["b"]
    arena.drop_arena("b")
    arena.drop_arena("never seen")
    assert arena.arenas_without_leases == []
    assert arena.lease(4, "b", spec(1024)) == [granted(4, 3, layout(0, 128, 1152))]
