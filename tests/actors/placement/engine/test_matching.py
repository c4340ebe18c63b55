"""Matching of requirements and capabilities, alone and jointly, and the memory ledger (G 7.8)."""

import itertools
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.placement.engine.matching import (
    Assigned,
    Contended,
    InsufficientCount,
    NoSuchId,
    PredicateFailed,
    ProvenanceTooLow,
    Unavailable,
    Unmatched,
    candidates,
    holds,
    match_all,
    match_caps,
    matches,
)
from actors.placement.engine.memory import MemoryLedger, Pool, Shortfall
from messages.facts import (
    Capability,
    CapabilityState,
    MemoryDemand,
    Predicate,
    PredicateOp,
    Provenance,
    Requirement,
    cycle_within,
    measured_cycle,
    measured_tokens,
    tokens_at_least,
)

GPU = ("accel.gpu.cuda", "accel.gpu.rocm")


def caps(lab, *ids, **fields):
    return [lab.cap(capability_id, **fields) for capability_id in ids]


def exclusive(lab, selector, *where, **fields):
    return lab.need(selector, *where, exclusive=True, **fields)


# --- joint matching -------------------------------------------------------------------------------------------------


def test_two_exclusive_requirements_contend_for_one_device(lab):  # M1
    needs = [exclusive(lab, "accel.gpu.cuda")] * 2
    outcome = match_all(needs, caps(lab, "accel.gpu.cuda"))
    assert outcome == Unmatched(tuple((i, Contended("accel.gpu.cuda", 1)) for i in range(2)))
    assert outcome.failures[0][1].detail() == "accel.gpu.cuda: contended (need 1 exclusive)"


@pytest.mark.parametrize("prefix_first", [False, True])
def test_a_prefix_leaves_the_device_that_an_exact_id_needs(lab, prefix_first):  # M2
    needs = [exclusive(lab, "accel.gpu.cuda"), exclusive(lab, "accel.gpu", prefix=True)]
    expected = [(0,), (1,)]
    if prefix_first:
        needs, expected = needs[::-1], expected[::-1]
    assert match_all(needs, caps(lab, *GPU)) == Assigned(tuple(expected))


def test_exclusive_and_shared_do_not_share_a_device(lab):  # M3
    needs = [exclusive(lab, "accel.gpu", prefix=True), lab.need("accel.gpu", prefix=True)]
    outcome = match_all(needs, caps(lab, GPU[0]))
    assert [index for index, _ in outcome.failures] == [0, 1]
    assert match_all(needs, caps(lab, *GPU)) == Assigned(((0,), (1,)))


def test_a_bystander_is_not_blamed_for_contention(lab):
    needs = [exclusive(lab, "accel.gpu.cuda"), lab.need("os.linux"), exclusive(lab, "accel.gpu.cuda")]
    outcome = match_all(needs, caps(lab, "os.linux", "accel.gpu.cuda"))
    assert [index for index, _ in outcome.failures] == [0, 2]


def test_failures_of_single_requirements_are_all_reported_by_index(lab):  # M4
    needs = [lab.need("os.linux"), lab.need("os.macos"), lab.need("accel.gpu", prefix=True, count=2), lab.need(GPU[0])]
    outcome = match_all(needs, caps(lab, "os.linux", GPU[0]))
    assert outcome == Unmatched(((1, NoSuchId("os.macos")), (2, InsufficientCount("accel.gpu", 1, 2))))
    assert [failure.detail() for _, failure in outcome.failures] == [
        "os.macos: not advertised",
        "accel.gpu: 1 usable, need 2",
    ]


def test_counts_are_solved_jointly(lab):  # M5
    needs = [exclusive(lab, "accel.npu", prefix=True, count=2), exclusive(lab, "accel.npu.hailo")]
    three = caps(lab, "accel.npu.hailo", "accel.npu.edge", "accel.npu.kit")
    assert match_all(needs, three) == Assigned(((1, 2), (0,)))
    greedy = [*needs, exclusive(lab, "accel.npu", prefix=True)]
    outcome = match_all(greedy, three)
    assert [index for index, _ in outcome.failures] == [0, 1, 2]
    assert [failure.need for _, failure in outcome.failures] == [2, 1, 1]


def test_a_crowded_search_ends(lab):  # M6
    devices = caps(lab, *(f"accel.npu.n{i}" for i in range(12)))
    seats = [exclusive(lab, "accel.npu", prefix=True)] * 13
    started = time.perf_counter()
    outcome = match_all(seats, devices)
    # a shared requirement that can never be met makes every one of the permutations fail at its end
    hopeless = [*seats[:12], lab.need("accel.npu", prefix=True)]
    bounded = match_all(hopeless, devices)
    assert time.perf_counter() - started < 5
    assert len(outcome.failures) == len(bounded.failures) == 13
    assert match_all(seats[:12], devices) == Assigned(tuple((i,) for i in range(12)))


def test_a_hopeless_crowd_costs_no_search(lab):
    """Joint matching runs per machine type and variant; each full search would take a good part of a second."""
    devices = caps(lab, *(f"accel.npu.n{i}" for i in range(12)))
    started = time.perf_counter()
    for _ in range(40):
        match_all([exclusive(lab, "accel.npu", prefix=True)] * 13, devices)
    assert time.perf_counter() - started < 2


def test_an_exclusive_claim_takes_what_fewest_others_want(lab):
    needs = [exclusive(lab, "accel.gpu", prefix=True), lab.need("accel.gpu.a", prefix=True)]
    assert match_all(needs, caps(lab, "accel.gpu.a", "accel.gpu.a.x", "accel.gpu.b")) == Assigned(((2,), (0,)))


def test_a_thousand_seats_need_no_deep_recursion(lab):
    devices = caps(lab, *(f"accel.npu.n{i}" for i in range(2000)))
    seats = [exclusive(lab, "accel.npu", prefix=True, count=64)] * 31
    outcome = match_all(seats, devices)
    assert sorted(itertools.chain(*outcome.indices)) == list(range(31 * 64))


def test_shared_requirements_may_share_with_each_other(lab):
    needs = [lab.need("accel.gpu", prefix=True)] * 3
    assert match_all(needs, caps(lab, *GPU)) == Assigned(((0,),) * 3)


DEVICES = ("accel.npu.a", "accel.npu.b", "accel.gpu.a", "accel.gpu.b", "os.linux")
SELECTORS = ("accel", "accel.npu", "accel.gpu", "accel.npu.a", "accel.gpu.b", "os.linux")
REQUIREMENT = st.builds(
    lambda selector, count, alone: Requirement(
        **{"id" if selector in DEVICES else "id_prefix": selector}, count=count, exclusive=alone
    ),
    st.sampled_from(SELECTORS),
    st.integers(1, 3),
    st.booleans(),
)
NODE = st.lists(
    st.builds(
        lambda device, state: Capability(id=device, provenance=Provenance.PROBED, state=state),
        st.sampled_from(DEVICES),
        st.sampled_from([CapabilityState.AVAILABLE, CapabilityState.BUSY]),
    ),
    max_size=7,
)


def _feasible(needs, options):
    """Try everything: pick a subset for each exclusive requirement, check the shared ones against what is left."""
    alone = [(need.count, options[i]) for i, need in enumerate(needs) if need.exclusive]
    shared = [(need.count, options[i]) for i, need in enumerate(needs) if not need.exclusive]

    def go(position, used):
        if position == len(alone):
            return all(len(set(found) - used) >= count for count, found in shared)
        count, found = alone[position]
        free = [capability for capability in found if capability not in used]
        return any(go(position + 1, used | set(pick)) for pick in itertools.combinations(free, count))

    return go(0, frozenset())


@settings(max_examples=150, deadline=None)
@given(st.lists(REQUIREMENT, max_size=4), NODE, st.randoms(use_true_random=False))
def test_a_joint_assignment_is_found_exactly_when_there_is_one(needs, node, random):
    outcome = match_all(needs, node)
    options = [candidates(need, node) for need in needs]
    alone = [isinstance(found, tuple) and len(found) >= need.count for need, found in zip(needs, options, strict=True)]
    assert isinstance(outcome, Assigned) == (all(alone) and _feasible(needs, options))
    if isinstance(outcome, Assigned):
        taken = [i for need, indices in zip(needs, outcome.indices, strict=True) if need.exclusive for i in indices]
        assert len(taken) == len(set(taken))
        for need, indices, found in zip(needs, outcome.indices, options, strict=True):
            assert len(set(indices)) == need.count
            assert set(indices) <= set(found)
            assert need.exclusive or not set(indices) & set(taken)
    else:
        assert outcome.failures
        assert [index for index, _ in outcome.failures] == sorted(index for index, _ in outcome.failures)
    shuffled = needs[:]
    random.shuffle(shuffled)
    assert type(match_all(shuffled, node)) is type(outcome)


# --- one requirement ------------------------------------------------------------------------------------------------


def test_a_prefix_ends_at_a_segment(lab):  # M7
    npu = lab.need("accel.npu", prefix=True)
    assert matches(npu, caps(lab, "accel.npu.hailo"))
    assert not matches(npu, caps(lab, "accel.npux.fake"))
    assert matches(lab.need("accel.npu.hailo"), caps(lab, "accel.npu.hailo"))
    assert not matches(lab.need("accel.npu.hailo"), caps(lab, "accel.npu.hailo.pcie"))
    assert matches(lab.need("never.seen-before"), caps(lab, "never.seen-before"))
    assert matches(lab.need("x.lab.toy"), caps(lab, "x.lab.toy"))


TRUTH = [  # op, operand, what satisfies it, what does not
    ("eq", 5, [5, 5.0], [6, "5", True, (5,)]),
    ("eq", True, [True], [False, 1, "true"]),
    ("eq", "arm", ["arm"], ["Arm", "", ("arm",)]),
    ("eq", ("a", 2), [("a", 2.0)], [("a",), (2, "a"), "a"]),
    ("gte", 5, [5, 5.5], [4, "6", True, (6,)]),
    ("lte", 5, [5, 4.5], [6, "4", False, ()]),
    ("in", ("a", 2), ["a", 2.0], [3, ("a",), True, ""]),
    ("has", 2, [(1, 2.0), (2,)], [(1,), (), 2, "2", (True,), ("2",)]),
]
CASES = [
    (op, operand, value, expected)
    for op, operand, satisfying, failing in TRUTH
    for values, expected in ((satisfying, True), (failing, False))
    for value in values
]


@pytest.mark.parametrize(("op", "operand", "value", "expected"), CASES)
def test_each_operator_has_its_truth_table(lab, op, operand, value, expected):  # M8, N37
    predicate = Predicate(attr="attr", op=PredicateOp(op), value=operand)
    assert holds(predicate, lab.cap("a.b", attr=value)) is expected


@pytest.mark.parametrize("op", list(PredicateOp))
def test_no_operator_holds_for_a_missing_attribute(lab, op):  # M8, N37
    operand = ("a",) if op is PredicateOp.IN else 1
    failure = match_caps(lab.need("a.b", ("absent", op, operand)), caps(lab, "a.b"))
    assert failure == PredicateFailed("a.b", "absent", op)
    assert failure.detail() == f"a.b: predicate `absent {op}` failed"


def test_the_predicate_named_is_the_first_that_fails_on_the_first_candidate(lab):  # M8
    need = lab.need("a.b", ("x", "eq", 1), ("y", "eq", 1), ("z", "eq", 1))
    node = [lab.cap("a.b", x=1, y=2, z=2), lab.cap("a.b", x=2, y=1, z=1)]
    assert match_caps(need, node) == PredicateFailed("a.b", "y", PredicateOp.EQ)


def test_all_predicates_must_hold_on_one_capability(lab):
    need = lab.need("a.b", ("x", "eq", 1), ("y", "eq", 1))
    assert not matches(need, [lab.cap("a.b", x=1, y=2), lab.cap("a.b", x=2, y=1)])
    assert match_caps(need, [lab.cap("a.b", x=2, y=1), lab.cap("a.b", x=1, y=1)]) == (1,)


def test_provenance_has_a_minimum(lab):  # M9
    need = lab.need("a.b", min_provenance=Provenance.MEASURED)
    node = [lab.cap("a.b", Provenance.CLAIMED), lab.cap("a.b", Provenance.PROBED)]
    failure = match_caps(need, node)
    assert failure == ProvenanceTooLow("a.b", Provenance.PROBED, Provenance.MEASURED)
    assert failure.detail() == "a.b: provenance probed below measured"
    assert match_caps(need, [*node, lab.cap("a.b", Provenance.MEASURED)]) == (2,)
    assert [p.rank for p in (Provenance.CLAIMED, Provenance.PROBED, Provenance.MEASURED)] == [0, 1, 2]


@pytest.mark.parametrize(
    ("state", "need_exclusive", "cap_exclusive", "usable"),
    [
        ("available", True, True, True),
        ("busy", False, False, True),
        ("busy", True, False, False),
        ("busy", False, True, False),
        ("reserved", False, False, False),
        ("degraded", False, False, False),
    ],
)
def test_what_is_in_use_can_at_most_be_shared(lab, state, need_exclusive, cap_exclusive, usable):  # M9
    node = caps(lab, "a.b", state=CapabilityState(state), exclusive=cap_exclusive)
    outcome = match_caps(lab.need("a.b", exclusive=need_exclusive), node)
    assert outcome == ((0,) if usable else Unavailable("a.b", CapabilityState(state)))


def test_count_counts_distinct_capabilities(lab):  # M9
    assert match_caps(lab.need("a.b", count=2), caps(lab, "a.b")) == InsufficientCount("a.b", 1, 2)
    assert match_caps(lab.need("a.b", count=2), caps(lab, "a.b", "a.b", "a.b")) == (0, 1)


def test_measurements_are_asked_for_with_ready_requirements():  # M11
    node = [measured_cycle("fall-detect", 1000), measured_tokens("m", 42.5)]
    assert matches(cycle_within("fall-detect", 2000), node)
    assert not matches(cycle_within("fall-detect", 999), node)
    assert not matches(cycle_within("other", 2000), node)
    assert not matches(cycle_within("fall-detect", 2000), [measured_cycle("fall-detect", 6000)])
    assert matches(tokens_at_least("m", 30), node)
    assert not matches(tokens_at_least("m", 50), node)


def test_a_claimed_figure_is_no_measurement(lab):  # M11
    claimed = lab.cap("perf.cog.cycle_ms", Provenance.CLAIMED, cog_id="fall-detect", value=1000)
    assert not matches(cycle_within("fall-detect", 2000), [claimed])


# --- memory ---------------------------------------------------------------------------------------------------------

GIB = 2**30


def test_a_unified_pool_serves_both(lab):  # M10
    ledger = MemoryLedger.from_capabilities([lab.memory("unified", 100), lab.memory("vram", 7)])
    assert ledger.check(MemoryDemand(host_bytes=10 * GIB, accel_bytes=100 * GIB)) == Shortfall(
        Pool.UNIFIED, 110 * GIB, 100 * GIB
    )
    assert ledger.check(MemoryDemand(host_bytes=60 * GIB, accel_bytes=40 * GIB)) is None
    left = ledger.reserve(MemoryDemand(host_bytes=60 * GIB)).reserve(MemoryDemand(accel_bytes=30 * GIB))
    assert left == MemoryLedger(unified=True, host=10 * GIB, vram=0)
    assert ledger.host == 100 * GIB


def test_host_and_accelerator_memory_are_apart_on_a_discrete_node(lab):  # M10
    ledger = MemoryLedger.from_capabilities([lab.memory("vram", 8), lab.memory("system", 4), lab.memory("vram", 16)])
    assert ledger == MemoryLedger(unified=False, host=4 * GIB, vram=24 * GIB)
    assert ledger.check(MemoryDemand(host_bytes=5 * GIB, accel_bytes=99 * GIB)).pool is Pool.SYSTEM
    assert ledger.check(MemoryDemand(host_bytes=4 * GIB, accel_bytes=24 * GIB)) is None
    assert ledger.check(MemoryDemand(accel_bytes=25 * GIB)) == Shortfall(Pool.VRAM, 25 * GIB, 24 * GIB)
    assert ledger.reserve(MemoryDemand(host_bytes=GIB, accel_bytes=GIB)) == MemoryLedger(
        unified=False, host=3 * GIB, vram=23 * GIB
    )


@pytest.mark.parametrize(
    ("attrs", "free"),
    [
        ({"free": 5, "total": 9}, 5),
        ({"total": 9}, 9),
        ({}, 0),
        ({"free": 5.9}, 5),
        ({"free": -1}, 0),
        ({"free": 0, "total": 9}, 0),
        ({"free": float("nan")}, 0),
        ({"free": float("inf")}, 2**64 - 1),
        ({"free": 10**400}, 2**64 - 1),
        ({"free": 2**70}, 2**64 - 1),
        ({"free": True, "total": 9}, 9),
        ({"free": "lots"}, 0),
    ],
)
def test_free_memory_is_a_saturating_whole_number(lab, attrs, free):
    assert MemoryLedger.from_capabilities([lab.cap("mem.system", **attrs)]).host == free


def test_a_node_without_memory_facts_has_none(lab):
    assert MemoryLedger.from_capabilities([]) == MemoryLedger(unified=False, host=0, vram=0)
    pool = MemoryLedger.from_capabilities([lab.cap("mem.unified"), lab.memory("system", 3)])
    assert (pool.unified, pool.host) == (True, 3 * GIB)


def test_sums_of_memory_saturate(lab):
    top = 2**64 - 1
    ledger = MemoryLedger.from_capabilities([lab.cap("mem.vram", free=2.0**63), lab.cap("mem.vram", free=2.0**63)])
    assert ledger.vram == top
    unified = MemoryLedger.from_capabilities([lab.memory("unified", 1)])
    assert unified.check(MemoryDemand(host_bytes=top, accel_bytes=top)).need == top
