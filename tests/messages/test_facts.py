"""Facts of a node: limits, freshness, load, changes (G 7.8 M13)."""

import msgspec
import pytest

from messages.facts import (
    Capability,
    CapabilityState,
    FactsCode,
    FactsDelta,
    FactsError,
    FactsNote,
    NodeFacts,
    Provenance,
    StateChange,
    from_json,
    to_json,
)


def cap(capability_id="os.linux", **fields):
    return Capability(id=capability_id, provenance=Provenance.PROBED, **fields)


FACTS = NodeFacts(version=1, node_id="n-0", issued_at=1000, ttl_secs=600, seq=7, capabilities=(cap(),))
LOADED = msgspec.structs.replace(
    FACTS,
    capabilities=(
        cap("accel.npu", state=CapabilityState.BUSY),
        cap("mem.system", attrs={"free": 60_000_000_000}),
        cap("os.linux"),
    ),
)


@pytest.mark.parametrize(
    ("now_s", "code"),
    [
        (1600, FactsCode.EXPIRED),
        (1599, None),
        (1000, None),
        (940, None),
        (939, FactsCode.FROM_FUTURE),
        (900, FactsCode.FROM_FUTURE),
    ],
)
def test_facts_are_good_in_their_window(now_s, code):
    if code is None:
        FACTS.check_window(now_s, skew_s=60)
    else:
        with pytest.raises(FactsError) as caught:
            FACTS.check_window(now_s, skew_s=60)
        assert caught.value.code is code
    assert FACTS.is_fresh(now_s) == (now_s < 1600)


@pytest.mark.parametrize(
    "broken",
    [
        {"version": 2},
        {"node_id": ""},
        {"node_id": "n" * 129},
        {"node_id": "a b"},
        {"node_id": "a\n"},
        {"node_id": "é"},
        {"ttl_secs": 9},
        {"ttl_secs": 86_401},
        {"ttl_secs": 5},
        {"ttl_secs": 90_000},
        {"issued_at": 2**64},
        {"seq": -1},
        {"capabilities": (cap("trust.pinned"),)},
        {"capabilities": (cap("BAD"),)},
        {"capabilities": (cap(attrs={"a": float("nan")}),)},
        {"capabilities": (cap(),) * 513},
        {"notes": (FactsNote(probe="p", text="t"),) * 65},
        {"notes": (FactsNote(probe="p", text="é" * 257),)},
        {"notes": (FactsNote(probe="p" * 513, text=""),)},
    ],
)
def test_malformed_facts_are_refused_and_never_written(broken):
    with pytest.raises(FactsError) as caught:
        to_json(msgspec.structs.replace(FACTS, **broken))
    assert caught.value.code is FactsCode.INVALID


@pytest.mark.parametrize(
    "fields",
    [
        {"node_id": "A-z_0.9:x" + "n" * 119},
        {"ttl_secs": 10},
        {"ttl_secs": 86_400},
        {"seq": 2**64 - 1},
        {"capabilities": ()},
        {"capabilities": (cap(),) * 512},
        {"notes": (FactsNote(probe="p" * 512, text="t" * 512),) * 64},
    ],
)
def test_facts_at_the_boundary_are_written_and_read_back(fields):
    facts = msgspec.structs.replace(FACTS, **fields)
    assert from_json(to_json(facts), NodeFacts) == facts


def test_the_wire_form_has_the_version_and_no_empty_notes():
    assert to_json(FACTS) == (
        b'{"version":1,"node_id":"n-0","issued_at":1000,"ttl_secs":600,"seq":7,'
        b'"capabilities":[{"id":"os.linux","provenance":"probed"}]}'
    )
    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        from_json(to_json(FACTS).replace(b'"seq"', b'"mood":"good","seq"'), NodeFacts)
    with pytest.raises(msgspec.ValidationError, match="version"):
        from_json(to_json(FACTS).replace(b'"version":1,', b""), NodeFacts)


def test_load_counts_what_is_busy_or_reserved():
    load = LOADED.load()
    assert (load.busy, load.total, load.mem_free) == (1, 3, 60_000_000_000)
    assert load.fraction == pytest.approx(1 / 3)
    reserved = msgspec.structs.replace(FACTS, capabilities=(cap(state=CapabilityState.RESERVED),))
    assert reserved.load().fraction == 1.0
    assert msgspec.structs.replace(FACTS, capabilities=()).load().fraction is None


@pytest.mark.parametrize(
    ("memory", "mem_free"),
    [
        ([("mem.system", 1), ("mem.unified", 2)], 2),
        ([("mem.system", 1)], 1),
        ([("mem.unified", -2), ("mem.system", 1)], 1),
        ([("mem.unified", 2.0)], None),
        ([("mem.unified", True)], None),
        ([], None),
    ],
)
def test_free_memory_is_a_whole_number_of_the_unified_pool_first(memory, mem_free):
    capabilities = tuple(cap(name, attrs={"free": free}) for name, free in memory)
    assert msgspec.structs.replace(FACTS, capabilities=capabilities).load().mem_free == mem_free


def delta(**changes):
    fields = {
        "node_id": "n-0", "base_seq": 7, "seq": 8, "issued_at": 1100,
        "changes": (StateChange(index=0, id="accel.npu", state=CapabilityState.AVAILABLE),),
    }  # fmt: skip
    return FactsDelta(**{**fields, **changes})


def test_a_change_applies_to_its_base():
    after = LOADED.apply(delta(mem_free=5))
    assert (after.seq, after.issued_at, after.load().busy, after.load().mem_free) == (8, 1100, 0, 5)
    assert LOADED.load().busy == 1
    assert LOADED.load().mem_free == 60_000_000_000


def test_free_memory_changes_in_both_pools():
    both = msgspec.structs.replace(LOADED, capabilities=(cap("mem.system"), cap("mem.unified", attrs={"total": 9})))
    after = both.apply(delta(changes=(), mem_free=5))
    assert [capability.attrs for capability in after.capabilities] == [{"free": 5}, {"total": 9, "free": 5}]


def _change(index, capability_id):
    return (
        StateChange(index=1, id="mem.system", state=CapabilityState.BUSY),
        StateChange(index=index, id=capability_id, state=CapabilityState.BUSY),
    )


@pytest.mark.parametrize(
    "broken",
    [
        {"node_id": "n-1"},
        {"base_seq": 6},
        {"seq": 7},
        {"changes": _change(0, "os.linux")},
        {"changes": _change(3, "os.linux")},
        {"changes": _change(-1, "os.linux")},
    ],
)
def test_a_change_to_something_else_applies_not_at_all(broken):
    before = to_json(LOADED)
    with pytest.raises(FactsError) as caught:
        LOADED.apply(delta(**broken))
    assert caught.value.code is FactsCode.DELTA_MISMATCH
    assert to_json(LOADED) == before


def test_a_change_is_bounded():
    change = StateChange(index=0, id="accel.npu", state=CapabilityState.BUSY)
    LOADED.apply(delta(changes=(change,) * 64))
    with pytest.raises(FactsError) as caught:
        LOADED.apply(delta(changes=(change,) * 65))
    assert caught.value.code is FactsCode.INVALID


def test_codes_of_facts_errors_are_stable():
    assert [str(code) for code in FactsCode] == ["invalid", "expired", "from_future", "delta_mismatch"]
