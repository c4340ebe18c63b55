"""Phase A: which nodes may run a workload, and every reason why one may not (G 7.2)."""

import pytest

from messages.engine import (
    ClusterState,
    GateDeny,
    Liveness,
    PerNodeGate,
    TrustTier,
    UniformGate,
)
from messages.facts import CapabilityState, MemoryDemand, Provenance


@pytest.mark.parametrize(
    ("spec", "emulated", "eligible", "placed"),
    [
        (lambda lab: lab.fall_detect(), False, {"pi5", "seed"}, "pi5"),
        (lambda lab: lab.anomaly(), False, {"pi5", "coral", "mac-dev"}, "pi5"),
        (lambda lab: lab.anomaly(), True, {"pi5", "coral", "mac-dev", "x86"}, "pi5"),
        (lambda lab: lab.gguf(20), False, {"gpu-box", "mac-dev"}, "gpu-box"),
        (lambda lab: lab.coral_job(), False, {"coral"}, "coral"),
        (lambda lab: lab.tsu_job(), False, set(), None),
    ],
    ids=["fall-detect", "anomaly", "anomaly-emulated", "gguf", "coral", "tsu"],
)
def test_each_workload_finds_its_nodes_in_the_fleet(lab, spec, emulated, eligible, placed):  # E1
    decision = lab.decide(spec(lab), lab.fleet, allow_emulated=emulated)
    assert set(lab.eligible(decision)) == eligible
    assert lab.placed(decision) == placed
    assert len(decision.candidates) == 8


def _without(facts, capability_id, lab):
    return lab.change(facts, capabilities=tuple(c for c in facts.capabilities if c.id != capability_id))


SIX_GIB = MemoryDemand(host_bytes=6 * 2**30)
MUTATIONS = {
    "dead": (lambda lab: {"facts": lab.pi5(liveness=Liveness.DEAD)}, {"liveness"}),
    "suspect": (lambda lab: {"facts": lab.pi5(liveness=Liveness.SUSPECT)}, {"liveness"}),
    "unknown": (lambda lab: {"facts": lab.pi5(liveness=Liveness.UNKNOWN)}, {"liveness"}),
    "facts expired": (lambda lab: {"facts": lab.pi5(facts_expire_at_ms=500)}, {"facts_expired"}),
    "facts expire now": (lambda lab: {"facts": lab.pi5(facts_expire_at_ms=1000)}, {"facts_expired"}),
    "discovered": (lambda lab: {"facts": lab.pi5(trust_tier=TrustTier.DISCOVERED)}, {"trust"}),
    "pinned wanted": (lambda lab: {"spec": lab.anomaly(min_trust=TrustTier.PINNED)}, {"trust"}),
    "node revoked": (lambda lab: {"cluster": lab.cluster(revoked_nodes=frozenset({"pi5"}))}, {"node_revoked"}),
    "reference revoked": (
        lambda lab: {
            "spec": lab.anomaly(revocable_refs=("key:a", "pkg:anomaly@1")),
            "cluster": lab.cluster(revoked_refs=frozenset({"pkg:anomaly@1"})),
        },
        {"workload_revoked"},
    ),
    "we exclude a resident": (
        lambda lab: {
            "spec": lab.anomaly(excludes=("role:planner",)),
            "cluster": lab.cluster(lab.resident(labels=("role:planner",))),
        },
        {"co_residency"},
    ),
    "a resident excludes us": (
        lambda lab: {
            "spec": lab.anomaly(labels=("role:coder",)),
            "cluster": lab.cluster(lab.resident(excludes=("role:coder",))),
        },
        {"co_residency"},
    ),
    "too much memory": (
        lambda lab: {"spec": _demanding(lab, lab.anomaly(), MemoryDemand(host_bytes=7 * lab.GIB))},
        {"memory"},
    ),
    "memory pending": (lambda lab: {"cluster": lab.cluster(lab.resident(pending=SIX_GIB))}, {"memory"}),
    "own memory pending": (
        lambda lab: {"cluster": lab.cluster(lab.resident(of=("cog", "anomaly-detect"), pending=SIX_GIB))},
        {"memory"},
    ),
    "no native runtime": (
        lambda lab: {"facts": _without(lab.pi5(), "runtime.native", lab)},
        {"requirements"},
    ),
    "provenance floor": (
        lambda lab: {"spec": lab.anomaly(min_provenance=Provenance.MEASURED)},
        {"provenance", "requirements"},
    ),
    "gate denies": (
        lambda lab: {"gate": UniformGate(verdict=GateDeny(reason="default deny"))},
        {"gate"},
    ),
    "gate silent": (lambda lab: {"gate": PerNodeGate(verdicts={})}, {"gate"}),
}


def _demanding(lab, spec, demand):
    return lab.change(spec, requirements=lab.change(spec.requirements, memory=demand))


def test_the_case_before_each_mutation_is_placed(lab):  # E2
    assert lab.placed(lab.decide(lab.anomaly(), [lab.pi5()])) == "pi5"


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_one_mutation_makes_exactly_its_constraint_fail(lab, mutation):  # E2
    build, expected = MUTATIONS[mutation]
    case = {"spec": lab.anomaly(), "facts": lab.pi5(), "cluster": lab.cluster(), **build(lab)}
    gate = {"gate": case["gate"]} if "gate" in case else {}
    decision = lab.decide(case["spec"], [case["facts"]], case["cluster"], **gate)
    assert decision.is_unplaceable
    assert set(lab.constraints(decision, "pi5")) == expected


@pytest.mark.parametrize(
    ("mutation", "detail"),
    [
        ("dead", "node is dead"),
        ("facts expired", "facts expired at 500 ms, now 1000 ms"),
        ("discovered", "node tier discovered below required paired"),
        ("node revoked", "node is revoked"),
        ("reference revoked", "`pkg:anomaly@1` is revoked"),
        ("we exclude a resident", "this workload excludes `role:planner`, which runs here"),
        ("a resident excludes us", "an instance here excludes `role:coder`"),
        ("too much memory", "system pool: need 7516192768 bytes, free 6442450944 bytes"),
        ("gate denies", "workload.place denied: default deny"),
        ("gate silent", "workload.place denied: no gate decision for this node"),
    ],
)
def test_each_constraint_says_what_failed(lab, mutation, detail):
    case = {"spec": lab.anomaly(), "facts": lab.pi5(), "cluster": lab.cluster(), **MUTATIONS[mutation][0](lab)}
    gate = {"gate": case["gate"]} if "gate" in case else {}
    decision = lab.decide(case["spec"], [case["facts"]], case["cluster"], **gate)
    assert [rejection.detail for rejection in lab.report(decision, "pi5").rejections] == [detail]


def test_every_failing_constraint_is_listed_in_order(lab):  # E3, N34
    x86 = lab.change(lab.nodes("x86")[0], liveness=Liveness.DEAD, trust_tier=TrustTier.DISCOVERED)
    decision = lab.decide(lab.anomaly(), [x86])
    assert lab.constraints(decision, "x86") == ["liveness", "trust", "emulation_not_allowed"]


def test_all_nine_constraints_of_phase_a_can_fail_together(lab):  # N34
    broken = lab.pi5(liveness=Liveness.DEAD, facts_expire_at_ms=1, trust_tier=TrustTier.DISCOVERED, capabilities=())
    cluster = ClusterState(
        now_ms=1000,
        revoked_nodes=frozenset({"pi5"}),
        revoked_refs=frozenset({"ref"}),
        instances=(lab.resident(labels=("a",), excludes=("b",)),),
    )
    decision = lab.decide(
        lab.anomaly(excludes=("a",), labels=("b",), revocable_refs=("ref",)),
        [broken],
        cluster,
        gate=PerNodeGate(verdicts={}),
    )
    assert lab.constraints(decision, "pi5") == [
        "node_revoked", "liveness", "facts_expired", "trust", "workload_revoked", "co_residency", "co_residency",
        "memory", *["requirements"] * 4, "gate",
    ]  # fmt: skip


def test_a_model_too_large_for_the_accelerator_goes_where_memory_is_unified(lab):  # E4
    decision = lab.decide(lab.gguf(80), lab.fleet)
    assert lab.placed(decision) == "mac-dev"
    first = lab.report(decision, "gpu-box").rejections[0]
    assert first.constraint == "memory"
    assert first.detail.startswith("vram pool")


def test_host_and_accelerator_share_a_unified_pool(lab):  # E4
    decision = lab.decide(lab.gguf(94), lab.nodes("mac-dev"))
    first = lab.report(decision, "mac-dev").rejections[0]
    assert first.detail.startswith("unified pool: need")


def test_a_busy_exclusive_device_is_unavailable(lab):  # E5
    coral = lab.nodes("coral")[0]
    busy = tuple(
        lab.change(c, state=CapabilityState.BUSY) if c.id == "accel.tpu.coral" else c for c in coral.capabilities
    )
    decision = lab.decide(lab.coral_job(), [lab.change(coral, capabilities=busy)])
    assert lab.constraints(decision, "coral") == ["requirements"]
    assert "unavailable (busy)" in lab.report(decision, "coral").rejections[0].detail


def test_a_claim_does_not_stand_for_a_measurement(lab):  # E6
    tsu = lab.nodes("tsu")[0]
    claimed = lab.decide(lab.tsu_job(), [tsu])
    assert lab.constraints(claimed, "tsu") == ["provenance"]
    assert lab.report(claimed, "tsu").rejections[0].detail == "accel.tsu: provenance claimed below measured"
    measured = tuple(
        lab.change(c, provenance=Provenance.MEASURED) if c.id == "accel.tsu.acme" else c for c in tsu.capabilities
    )
    decision = lab.decide(lab.tsu_job(), [lab.change(tsu, capabilities=measured)])
    assert lab.placed(decision) == "tsu"
    assert decision.placement.accelerator == "accel.tsu.acme"


def test_an_unplaceable_workload_has_a_reason_from_every_node(lab):  # E7
    decision = lab.decide(lab.tsu_job(), lab.fleet)
    assert decision.is_unplaceable
    assert len(decision.reasons()) == 8
    assert all(rejection.detail for report in decision.reasons() for rejection in report.rejections)


class TestOwnInstances:
    def test_a_workload_is_no_neighbour_of_itself(self, lab):  # B1
        spec = lab.anomaly(labels=("role:model-server",), excludes=("role:model-server",))
        own = lab.resident(of=("cog", "anomaly-detect"), labels=("role:model-server",), excludes=("role:model-server",))
        decision = lab.decide(spec, [lab.pi5()], lab.cluster(own))
        assert lab.placed(decision) == "pi5"

    @pytest.mark.parametrize(
        "of", [("cog", "other"), ("inference", "anomaly-detect"), None], ids=["name", "kind", "unattributed"]
    )
    def test_whatever_else_runs_there_is_a_neighbour(self, lab, of):  # B2
        spec = lab.anomaly(labels=("role:model-server",), excludes=("role:model-server",))
        labels = {"labels": ("role:model-server",), "excludes": ("role:model-server",)}
        decision = lab.decide(spec, [lab.pi5()], lab.cluster(lab.resident(of=of, **labels)))
        assert lab.constraints(decision, "pi5") == ["co_residency"] * 2
        assert decision.is_unplaceable

    def test_an_own_instance_does_not_hide_a_neighbour(self, lab):  # B2
        spec = lab.anomaly(labels=("a",), excludes=("a",))
        cluster = lab.cluster(
            lab.resident(of=("cog", "anomaly-detect"), labels=("a",)), lab.resident(of=("cog", "other"), labels=("a",))
        )
        assert lab.constraints(lab.decide(spec, [lab.pi5()], cluster), "pi5") == ["co_residency"]

    def test_the_instance_being_replaced_gives_its_pending_memory_back(self, lab):
        own = lab.resident(of=("cog", "anomaly-detect"), pending=SIX_GIB)
        decision = lab.decide(lab.anomaly(), [lab.pi5()], lab.cluster(own), current_node="pi5")
        assert lab.placed(decision) == "pi5"
        twice = lab.decide(lab.anomaly(), [lab.pi5()], lab.cluster(own, own), current_node="pi5")
        assert lab.constraints(twice, "pi5") == ["memory"]


def test_pending_memory_saturates_instead_of_wrapping(lab):
    huge = MemoryDemand(host_bytes=2**64 - 1)
    decision = lab.decide(lab.anomaly(), [lab.pi5()], lab.cluster(lab.resident(pending=huge)))
    assert lab.report(decision, "pi5").rejections[0].detail.startswith(f"system pool: need {2**64 - 1} bytes")


def test_a_workload_that_asks_for_no_memory_fits_a_full_node(lab):
    spec = _demanding(lab, lab.anomaly(), MemoryDemand())
    overbooked = lab.resident(pending=MemoryDemand(host_bytes=7 * lab.GIB))
    assert lab.placed(lab.decide(spec, [lab.pi5()], lab.cluster(overbooked))) == "pi5"


def test_a_provenance_floor_lowers_no_requirement(lab):
    spec = lab.policy(lab.tsu_job(), min_provenance=Provenance.CLAIMED)
    assert lab.constraints(lab.decide(spec, lab.nodes("tsu")), "tsu") == ["provenance"]


def test_no_variants_means_one_native_route_named_default(lab):
    decision = lab.decide(lab.coral_job(), lab.nodes("coral"))
    assert decision.placement.variant == "default"
    missing = lab.decide(lab.coral_job(), lab.nodes("pi5"))
    assert [r.detail for r in lab.report(missing, "pi5").rejections] == [
        "accel.tpu.coral: not advertised",
        "format.tflite: not advertised",
    ]


def test_variants_are_not_tried_when_the_common_requirements_fail(lab):
    decision = lab.decide(lab.fall_detect(), lab.nodes("x86"))
    assert [r.detail for r in lab.report(decision, "x86").rejections] == ["feed.esp32-csi-udp: not advertised"]
