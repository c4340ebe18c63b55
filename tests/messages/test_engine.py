"""Requests, specifications and records of the placement engine: JSON round trips and what is refused (G 7.6 X8, B3)."""

import math

import msgspec
import pytest

from messages.engine import (
    Affinity,
    Better,
    ClusterState,
    Execution,
    GateDeny,
    GatePermit,
    InstanceRecord,
    LatencyClass,
    PerfTarget,
    PerNodeGate,
    PlacementPolicy,
    PlacementRequest,
    Preference,
    ScoringWeights,
    TrustTier,
    UniformGate,
    Variant,
    WorkloadRef,
    WorkloadRequirements,
    WorkloadSpec,
)
from messages.facts import InvalidId, InvalidRequirement, MemoryDemand, Provenance, Requirement, from_json, to_json

LINUX = Requirement(id="os.linux")
PERF = PerfTarget(id="perf.cog.cycle_ms", param="cog_id", param_value="w", better=Better.HIGHER, budget=1.5)
SPEC = WorkloadSpec(
    kind="cog",
    name="watch",
    requirements=WorkloadRequirements(
        common=(LINUX,),
        variants=(Variant(name="v", execution=Execution.EMULATED, requirements=(Requirement(id_prefix="accel"),)),),
        memory=MemoryDemand(host_bytes=1, accel_bytes=2),
    ),
    policy=PlacementPolicy(
        min_trust=TrustTier.PINNED,
        min_provenance=Provenance.PROBED,
        labels=("a",),
        excludes=("b",),
        latency_class=LatencyClass.INTERACTIVE,
        perf=PERF,
        preferences=(Preference(name="p", requirement=LINUX, weight=2.5),),
        sticky=True,
        revocable_refs=("pkg:a",),
    ),
)
PERMIT = UniformGate(verdict=GatePermit())
REQUEST = PlacementRequest(
    spec=SPEC,
    pin="n-0",
    affinity=Affinity(prefer=("n-0",), avoid=("n-1",)),
    allow_emulated=True,
    current_node="n-1",
    gate=PerNodeGate(verdicts={"n-0": GatePermit(), "n-1": GateDeny(reason="no")}),
    weights=ScoringWeights(native=1.0),
)
replace = msgspec.structs.replace


def test_specification_and_request_survive_a_round_trip():  # X8
    assert from_json(to_json(SPEC), WorkloadSpec) == SPEC
    assert from_json(to_json(REQUEST), PlacementRequest) == REQUEST


def test_a_minimal_specification_asks_for_paired_trust():  # X8
    spec = from_json('{"kind":"x-new-kind","name":"n"}', WorkloadSpec)
    assert spec.policy.min_trust is TrustTier.PAIRED
    assert to_json(spec) == b'{"kind":"x-new-kind","name":"n"}'


def test_verdicts_are_told_apart_by_name():
    request = PlacementRequest(spec=WorkloadSpec(kind="k", name="n"), gate=REQUEST.gate)
    assert to_json(request) == (
        b'{"spec":{"kind":"k","name":"n"},"gate":{"mode":"per_node","verdicts":'
        b'{"n-0":{"verdict":"permit"},"n-1":{"verdict":"deny","reason":"no"}}}}'
    )
    assert msgspec.json.encode(PERMIT) == b'{"mode":"uniform","verdict":{"verdict":"permit"}}'
    with pytest.raises(msgspec.ValidationError, match="gate"):
        from_json('{"spec":{"kind":"k","name":"n"}}', PlacementRequest)


def test_a_node_without_a_verdict_is_denied():
    assert REQUEST.gate.verdict_for("n-2") == GateDeny(reason="no gate decision for this node")
    assert REQUEST.gate.verdict_for("n-0") == GatePermit()


def test_an_instance_record_survives_a_round_trip_and_may_be_unattributed():  # B3
    record = InstanceRecord(
        node_id="n-0",
        workload=WorkloadRef(kind="cog", name="w"),
        labels=("a",),
        excludes=("b",),
        pending=MemoryDemand(host_bytes=3),
    )
    assert msgspec.json.decode(msgspec.json.encode(record), type=InstanceRecord) == record
    bare = msgspec.json.decode(b'{"node_id":"n-0"}', type=InstanceRecord)
    assert bare.workload is None
    assert not bare.belongs_to(SPEC)


def _with(requirements=None, policy=None, **fields):
    return replace(
        SPEC,
        requirements=replace(SPEC.requirements, **(requirements or {})),
        policy=replace(SPEC.policy, **(policy or {})),
        **fields,
    )


def _preferring(**fields):
    return _with(policy={"preferences": (Preference(**{"name": "p", "requirement": LINUX, "weight": 1.0, **fields}),)})


WEIGHT = "preference weight must be finite and non-negative"
BUDGET = "perf budget must be finite and non-negative"


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (_with(kind=""), "kind must be 1..=64 of [a-z0-9_-]"),
        (_with(kind="Cog"), "kind must be 1..=64 of [a-z0-9_-]"),
        (_with(kind="cog\n"), "kind must be 1..=64 of [a-z0-9_-]"),
        (_with(kind="k" * 65), "kind must be 1..=64 of [a-z0-9_-]"),
        (_with(name=""), "name must be 1..=256 printable bytes"),
        (_with(name="a\x85"), "name must be 1..=256 printable bytes"),
        (_with(name="é" * 129), "name must be 1..=256 printable bytes"),
        (_with({"common": (LINUX,) * 65}), "too many requirements (max 64)"),
        (_with({"variants": (Variant(name="v"),) * 17}), "too many variants (max 16)"),
        (_with({"variants": (Variant(name=""),)}), "variant name must be 1..=256 printable bytes"),
        (_with({"variants": (Variant(name="v", requirements=(LINUX,) * 65),)}), "too many requirements (max 64)"),
        (_with(policy={"labels": ("a",) * 65}), "too many labels (max 64)"),
        (_with(policy={"excludes": ("a",) * 65}), "too many excludes (max 64)"),
        (_with(policy={"revocable_refs": ("a",) * 65}), "too many revocable refs (max 64)"),
        (_with(policy={"preferences": SPEC.policy.preferences * 65}), "too many preferences (max 64)"),
        (_with(policy={"labels": ("",)}), "label must be 1..=256 printable bytes"),
        (_preferring(name=""), "preference name must be 1..=256 printable bytes"),
        (_preferring(weight=-1.0), WEIGHT),
        (_preferring(weight=math.nan), WEIGHT),
        (_preferring(weight=math.inf), WEIGHT),
        (_preferring(weight=True), WEIGHT),
        (_with(policy={"perf": replace(PERF, param="")}), "perf param must be 1..=256 printable bytes"),
        (_with(policy={"perf": replace(PERF, param_value="")}), "perf param value must be 1..=256 printable bytes"),
        (_with(policy={"perf": replace(PERF, budget=-1.0)}), BUDGET),
        (_with(policy={"perf": replace(PERF, budget=math.nan)}), BUDGET),
        # the first broken rule is the one named
        (_with(kind="", name=""), "kind must be 1..=64 of [a-z0-9_-]"),
        (_with(policy={"labels": ("",), "perf": replace(PERF, budget=-1.0)}), "label must be 1..=256 printable bytes"),
    ],
)
def test_a_specification_is_refused_by_its_first_fault(spec, reason):  # X8
    with pytest.raises(InvalidRequirement) as caught:
        to_json(spec)
    assert str(caught.value) == f"invalid requirement: {reason}"


def test_ids_inside_a_specification_are_checked():  # X8
    for spec in (
        _with({"common": (Requirement(id="BAD"),)}),
        _preferring(requirement=Requirement(id="BAD")),
        _with(policy={"perf": replace(PERF, id="BAD")}),
    ):
        with pytest.raises(InvalidId):
            to_json(spec)


def test_specifications_at_the_boundary_are_accepted():
    for spec in (
        _with(kind="k" * 64, name="é" * 128),
        _with({"common": (LINUX,) * 64, "variants": (Variant(name="v"),) * 16}),
        _with(policy={"labels": ("a",) * 64, "preferences": SPEC.policy.preferences * 64}),
        _preferring(weight=0.0),
        _with(policy={"perf": replace(PERF, budget=0.0)}),
    ):
        assert from_json(to_json(spec), WorkloadSpec) == spec


NODE_IDS = "node ids must be 1..=256 printable bytes"
WEIGHTS = "scoring weights must be finite and non-negative"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        *(({"weights": ScoringWeights(**{name: bad})}, WEIGHTS)
          for name in ScoringWeights.__struct_fields__ if name != "dev_fallback_class"
          for bad in (-1.0, math.nan, math.inf)),
        ({"pin": ""}, NODE_IDS),
        ({"current_node": "a\n"}, NODE_IDS),
        ({"affinity": Affinity(prefer=("",))}, NODE_IDS),
        ({"affinity": Affinity(avoid=("n" * 257,))}, NODE_IDS),
        ({"affinity": Affinity(prefer=("n",) * 65)}, "too many affinity entries"),
        ({"affinity": Affinity(avoid=("n",) * 65)}, "too many affinity entries"),
    ],
)  # fmt: skip
def test_a_request_is_refused_by_its_first_fault(changes, reason):
    with pytest.raises(InvalidRequirement) as caught:
        to_json(replace(REQUEST, **changes))
    assert caught.value.reason == reason


def test_the_class_of_developer_machines_is_a_capability_id():
    with pytest.raises(InvalidId):
        to_json(replace(REQUEST, weights=ScoringWeights(dev_fallback_class="dev")))


def test_cluster_state_is_written_the_same_whatever_the_hash_seed():
    state = ClusterState(now_ms=1, revoked_refs=frozenset("cab"))
    assert to_json(state) == b'{"now_ms":1,"revoked_refs":["a","b","c"]}'
    assert from_json(to_json(state), ClusterState) == state


def test_default_weights_are_the_specified_ones():
    assert msgspec.structs.asdict(ScoringWeights()) == {
        "native": 100.0, "emulated": 40.0, "dev_fallback": 20.0, "dev_fallback_class": "node.class.dev-mac",
        "accel_fit": 10.0, "perf": 30.0, "interactive_perf_multiplier": 2.0, "load": 10.0, "stickiness": 15.0,
        "sticky": 1000.0,
    }  # fmt: skip
