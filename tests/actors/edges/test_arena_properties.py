"""What holds of the arena after any calls at all (E 11.1), and agreement with a byte map that knows no ranges."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from actors.edges.arena import (
    ArenaManager,
    CancelledFreshLeaseReleased,
    RingLeaseQueued,
    RingReleased,
)
from messages.edge import QuiescenceProof, RingLeased, RingLeaseRejected, RingSpec

BUDGET = 256
SPECS = st.builds(
    RingSpec,
    header_bytes=st.sampled_from([0, 8, 16, 20]),
    data_bytes=st.sampled_from([0, 1, 16, 60, 100, 200, 300, 2**64 - 1]),
    alignment=st.sampled_from([0, 1, 8, 12, 16, 64, 2**63]),
)
PROOF, NO_PROOF = QuiescenceProof(verified=True), QuiescenceProof(verified=False)
CALLS = st.lists(
    st.one_of(
        st.tuples(st.just("lease"), st.sampled_from("ab"), SPECS),
        st.tuples(st.just("lease"), st.sampled_from("ab"), SPECS),
        st.tuples(st.just("release"), st.integers(1, 12), st.sampled_from([PROOF, PROOF, PROOF, NO_PROOF])),
        st.tuples(st.just("cancel"), st.integers(1, 20), st.none()),
    ),
    max_size=40,
)


def replayed(calls, base):
    """Each call made, with the request number if it leases, and the outcomes."""
    arena = ArenaManager(BUDGET, base)
    requests = 0
    for verb, first, second in calls:
        if verb == "lease":
            requests += 1
            yield arena, (verb, requests, first, second), arena.lease(requests, first, second)
        elif verb == "release":
            yield arena, (verb, first, second), arena.release(first, second)
        else:
            yield arena, (verb, first), arena.cancel(first)


@settings(max_examples=150, deadline=None)
@given(CALLS, st.sampled_from([1, 8, 12]))
def test_live_rings_are_disjoint_aligned_constant_and_within_the_budget(calls, base):
    granted = {}
    for arena, _, outcomes in replayed(calls, base):
        for outcome in outcomes:
            if isinstance(outcome, RingLeased):
                assert outcome.ring_id == len(granted) + 1  # never used again
                granted[outcome.ring_id] = outcome
        taken = {}
        for lease in arena.live_leases():
            layout = lease.layout
            assert granted[lease.ring_id] == RingLeased(
                request_id=lease.request_id, ring_id=lease.ring_id, layout=layout
            )
            assert layout.alignment == math.lcm(base, lease.requested_alignment)
            assert layout.start_offset % layout.alignment == layout.data_offset % layout.alignment == 0
            assert 0 <= layout.start_offset == layout.header_offset < layout.data_offset < layout.end_offset <= BUDGET
            ours = set(range(layout.start_offset, layout.end_offset))
            assert not ours & taken.setdefault(lease.arena, set())
            taken[lease.arena] |= ours
        sample = arena.sample()
        assert sample.live_bytes == sum(map(len, taken.values())) <= BUDGET == sample.live_bytes + sample.free_bytes
        assert sample.active_leases == len(arena.live_leases())
        assert sample.largest_free_range_bytes <= sample.free_bytes


@settings(max_examples=150, deadline=None)
@given(CALLS, st.sampled_from([1, 8]))
def test_every_request_has_one_outcome_and_the_queue_is_first_in_first_out(calls, base):
    queue, ended = [], set()
    for arena, call, outcomes in replayed(calls, base):
        assert sum(isinstance(outcome, RingLeaseQueued) for outcome in outcomes) <= 1
        for outcome in outcomes:
            match outcome:
                case RingLeaseQueued():
                    assert call[:2] == ("lease", outcome.request_id)
                    queue.append(outcome.request_id)
                case RingLeased() | RingLeaseRejected() | CancelledFreshLeaseReleased():
                    assert outcome.request_id not in ended
                    ended.add(outcome.request_id)
                    if queue and outcome.request_id in queue:
                        assert queue.pop(0) == outcome.request_id
                    else:
                        assert call[:2] == ("lease", outcome.request_id)
                        assert isinstance(outcome, RingLeaseRejected) or not queue
        if call[0] == "lease":
            assert (call[1] in ended) != (call[1] in queue)
        assert arena.sample().pending_leases <= len(queue)


@settings(max_examples=100, deadline=None)
@given(CALLS, st.randoms(use_true_random=False))
def test_what_is_queued_does_not_fit_and_after_all_is_released_everything_is_free(calls, order):
    arena, waiting = ArenaManager(BUDGET, 8), {}
    for arena, call, outcomes in replayed(calls, 8):
        if call[0] == "lease":
            waiting[call[1]] = call[2:]
        for outcome in outcomes:
            if isinstance(outcome, RingLeased | RingLeaseRejected | CancelledFreshLeaseReleased):
                del waiting[outcome.request_id]
        if waiting:
            head = waiting[min(waiting)]
            assert not fits(arena, *head)
    for _ in range(len(waiting) + len(arena.live_leases())):
        leases = arena.live_leases()
        outcomes = arena.release(order.choice(leases).ring_id, PROOF) if leases else []
        for outcome in outcomes:
            if isinstance(outcome, RingLeased | CancelledFreshLeaseReleased):
                del waiting[outcome.request_id]
    assert (waiting, arena.live_leases()) == ({}, [])
    sample = arena.sample()
    assert sample.free_bytes == sample.largest_free_range_bytes == BUDGET
    for name in arena.arenas_without_leases:
        arena.drop_arena(name)
    assert arena.arenas_without_leases == []


def fits(arena, name, spec):
    """Whether any aligned offset of the region has every byte free, read from the live leases byte by byte."""
    alignment = math.lcm(8, spec.alignment)
    size = math.ceil(spec.header_bytes / alignment) * alignment + spec.data_bytes
    used = sum(lease.layout.end_offset - lease.layout.start_offset for lease in arena.live_leases())
    taken = {
        byte
        for lease in arena.live_leases()
        if lease.arena == name
        for byte in range(lease.layout.start_offset, lease.layout.end_offset)
    }
    starts = range(0, BUDGET - size + 1, alignment)
    return used + size <= BUDGET and any(taken.isdisjoint(range(start, start + size)) for start in starts)


@settings(max_examples=100, deadline=None)
@given(CALLS)
def test_a_release_is_refused_without_a_proof_and_of_what_is_not_leased(calls):
    live = set()
    for _, call, outcomes in replayed(calls, 8):
        if call[0] == "release":
            assert isinstance(outcomes[0], RingReleased) == (call[1] in live and call[2].verified)
            if isinstance(outcomes[0], RingReleased):
                live.remove(call[1])
        live |= {outcome.ring_id for outcome in outcomes if isinstance(outcome, RingLeased)}
