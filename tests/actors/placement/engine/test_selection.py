"""Pins, affinity, emulation and the strict order of tiers (G 7.3, 7.5)."""

import itertools
import math

import pytest

from actors.placement.engine import explain, place
from messages.engine import (
    Affinity,
    DuplicateNode,
    Execution,
    Flag,
    InvalidPlacement,
    PinIneligible,
    PlacementErrorCode,
    Preference,
    ScoringWeights,
    Tier,
    TrustTier,
    UnknownPin,
)


@pytest.mark.parametrize(
    ("spec", "pin", "constraint"),
    [
        (lambda lab: lab.anomaly(), "x86", "emulation_not_allowed"),
        (lambda lab: lab.anomaly(), "gpu-box", "requirements"),
        (lambda lab: lab.fall_detect(), "zero", "perf_budget"),
    ],
    ids=["emulation", "requirements", "budget"],
)
def test_a_pin_never_overrides_a_constraint(lab, spec, pin, constraint):  # P1
    with pytest.raises(PinIneligible) as caught:
        lab.decide(spec(lab), lab.fleet, pin=pin)
    assert caught.value.node_id == pin
    assert constraint in caught.value.constraints()
    assert str(caught.value).startswith(f'pinned node "{pin}" is ineligible: constraint `')
    assert f"constraint `{constraint}`: " in str(caught.value)


def test_a_pin_to_an_untrusted_node_fails(lab):  # P1
    with pytest.raises(PinIneligible) as caught:
        lab.decide(lab.anomaly(), [lab.pi5(trust_tier=TrustTier.DISCOVERED)], pin="pi5")
    assert caught.value.constraints() == ("trust",)


def test_a_pin_error_joins_every_failed_constraint(lab):
    with pytest.raises(PinIneligible) as caught:
        lab.decide(lab.coral_job(), lab.nodes("pi5"), pin="pi5")
    assert str(caught.value) == (
        'pinned node "pi5" is ineligible: constraint `requirements`: accel.tpu.coral: not advertised; '
        "constraint `requirements`: format.tflite: not advertised"
    )
    assert caught.value.constraints() == ("requirements", "requirements")


def test_a_pin_wins_over_a_better_score_and_leaves_the_ranking_alone(lab):  # P2
    decision = lab.decide(lab.anomaly(), lab.fleet, pin="coral")
    assert lab.placed(decision) == "coral"
    assert decision.placement.flags == (Flag.PINNED,)
    assert decision.candidates[0].node_id == "pi5"
    assert lab.report(decision, "coral").flags == (Flag.PINNED,)


def test_an_unknown_pin_is_an_error(lab):  # P3
    with pytest.raises(UnknownPin) as caught:
        lab.decide(lab.anomaly(), lab.fleet, pin="nowhere")
    assert str(caught.value) == 'pinned node "nowhere" is not a known node'
    assert caught.value.code is PlacementErrorCode.UNKNOWN_PIN
    assert caught.value.constraints() == ()


def test_emulation_needs_consent(lab):  # P4
    facts = lab.nodes("x86", "gpu-box")
    refused = lab.decide(lab.anomaly(), facts)
    assert refused.is_unplaceable
    first = lab.report(refused, "x86").rejections[0]
    assert first.constraint == "emulation_not_allowed"
    assert "aarch64-emulated" in first.detail
    allowed = lab.decide(lab.anomaly(), facts, allow_emulated=True).placement
    assert (allowed.node_id, allowed.execution, allowed.tier) == ("x86", Execution.EMULATED, Tier.EMULATED)
    assert allowed.flags == (Flag.EMULATED,)


def test_no_preference_lifts_an_emulated_route_over_a_native_one(lab):  # P5
    spec = lab.policy(lab.anomaly(), preferences=(_likes(lab, "cpu.arch.x86_64", 500.0),))
    decision = lab.decide(spec, lab.nodes("x86", "pi5"), allow_emulated=True)
    assert lab.report(decision, "x86").score.total > lab.report(decision, "pi5").score.total
    assert lab.placed(decision) == decision.candidates[0].node_id == "pi5"


def _likes(lab, capability_id, weight):
    return Preference(name=f"likes-{capability_id}", requirement=lab.need(capability_id), weight=weight)


@pytest.mark.parametrize(
    ("prefer", "avoid", "placed", "flags"),
    [
        (("seed",), (), "seed", (Flag.AFFINITY,)),
        (("zero",), (), "pi5", ()),
        (("pi5",), (), "pi5", ()),
        ((), ("pi5",), "seed", (Flag.AFFINITY,)),
        ((), ("pi5", "seed"), "pi5", ()),
        (("seed",), ("seed",), "seed", (Flag.AFFINITY,)),
    ],
    ids=["prefer", "prefer-ineligible", "prefer-winner", "avoid", "avoid-all", "prefer-beats-avoid"],
)
def test_affinity_chooses_within_the_best_tier(lab, prefer, avoid, placed, flags):  # P6
    decision = lab.decide(lab.fall_detect(), lab.fleet, affinity=Affinity(prefer=prefer, avoid=avoid))
    assert lab.placed(decision) == placed
    assert decision.placement.flags == flags == lab.report(decision, placed).flags
    assert decision.candidates[0].node_id == "pi5"


def test_a_bad_number_or_kind_makes_the_request_invalid(lab):  # P7
    with pytest.raises(InvalidPlacement, match="scoring weights must be finite and non-negative"):
        lab.decide(lab.anomaly(), lab.fleet, weights=ScoringWeights(load=math.nan))
    with pytest.raises(InvalidPlacement) as caught:
        lab.decide(lab.change(lab.anomaly(), kind="Bad Kind"), lab.fleet)
    assert str(caught.value) == ("invalid placement request: invalid requirement: kind must be 1..=64 of [a-z0-9_-]")


def test_a_node_that_appears_twice_is_an_error_whatever_the_order(lab):  # P7
    facts = (*lab.nodes("seed", "pi5", "x86", "pi5", "seed"),)
    for order in itertools.permutations(facts):
        with pytest.raises(DuplicateNode) as caught:
            lab.decide(lab.anomaly(), order)
        assert str(caught.value) == 'duplicate node id "pi5" in facts'


# --- tiers ----------------------------------------------------------------------------------------------------------


def test_tiers_are_ordered_and_weighed_by_default():  # T1
    weights = ScoringWeights()
    assert [weights.of_tier(tier) for tier in Tier] == [100.0, 40.0, 20.0]
    assert [str(tier) for tier in Tier] == ["native", "emulated", "dev_fallback"]
    assert [tier.rank for tier in Tier] == [0, 1, 2]


NODE_OF_TIER = {Tier.NATIVE: "pi5", Tier.EMULATED: "x86", Tier.DEV_FALLBACK: "mac-dev"}
MARK_OF_TIER = {Tier.EMULATED: "cpu.arch.x86_64", Tier.DEV_FALLBACK: "os.macos"}
BONUSES = ("none", "locality", "sticky", "prefer", "weights", "all")


@pytest.mark.parametrize("bonus", BONUSES)
@pytest.mark.parametrize(
    ("higher", "lower"),
    [(Tier.NATIVE, Tier.EMULATED), (Tier.NATIVE, Tier.DEV_FALLBACK), (Tier.EMULATED, Tier.DEV_FALLBACK)],
)
@pytest.mark.parametrize("reverse", [False, True])
def test_no_bonus_lifts_a_node_over_a_better_tier(lab, higher, lower, bonus, reverse):  # T2
    good, bad = NODE_OF_TIER[higher], NODE_OF_TIER[lower]
    facts = [
        lab.change(lab.nodes(good)[0], load=1.0),
        lab.change(lab.nodes(bad)[0], load=0.0),
    ]
    given = set(BONUSES) if bonus == "all" else {bonus}
    spec, fields = lab.anomaly(sticky=True), {}
    if "locality" in given:
        spec = lab.policy(spec, preferences=(_likes(lab, MARK_OF_TIER[lower], 1e6),))
    if "sticky" in given:
        fields["current_node"] = bad
    if "prefer" in given:
        fields["affinity"] = Affinity(prefer=(bad,), avoid=(good,))
    if "weights" in given:
        fields["weights"] = ScoringWeights(native=0.0, emulated=500.0, dev_fallback=1000.0)
    decision = lab.decide(spec, facts[::-1] if reverse else facts, allow_emulated=True, **fields)
    assert lab.eligible(decision) == [good, bad]
    assert (lab.placed(decision), decision.placement.tier) == (good, higher)


def test_ranking_goes_by_tier_before_score(lab):  # T3
    spec = lab.policy(
        lab.anomaly(), preferences=(_likes(lab, "os.macos", 9000.0), _likes(lab, "cpu.arch.x86_64", 5000.0))
    )
    facts = lab.nodes("mac-dev", "x86", "pi5")
    assert lab.eligible(lab.decide(spec, facts, allow_emulated=True)) == ["pi5", "x86", "mac-dev"]
    assert lab.placed(lab.decide(spec, facts[:2], allow_emulated=True)) == "x86"
    assert lab.placed(lab.decide(spec, facts[:2])) == "mac-dev"


def test_a_developer_machine_can_be_pinned(lab):  # T4
    placement = lab.decide(lab.anomaly(), lab.fleet, pin="mac-dev").placement
    assert (placement.node_id, placement.tier) == ("mac-dev", Tier.DEV_FALLBACK)


def test_the_explanation_shows_the_tiers(lab):  # T5
    text = explain(lab.decide(lab.anomaly(), lab.fleet, allow_emulated=True))
    assert "tier order (strict): native > emulated > dev_fallback (candidates rank by tier, then score)" in text
    assert "decision: PLACED on pi5 via aarch64-native (tier native," in text
    for rank, (node_id, tier) in enumerate(
        [("pi5", "native"), ("coral", "native"), ("x86", "emulated"), ("mac-dev", "dev_fallback")], start=1
    ):
        line = next(line for line in text.splitlines() if line.startswith(f"  {rank}. {node_id} eligible via "))
        assert f"(tier {tier})" in line


def test_an_emulated_route_is_never_taken_where_a_native_one_fits(lab):
    spec = lab.anomaly()
    variants = spec.requirements.variants
    emulated_first = lab.change(spec, requirements=lab.change(spec.requirements, variants=variants[::-1]))
    x86 = lab.with_caps(
        lab.nodes("x86")[0],
        lab.cap("cpu.arch.aarch64"),
        lab.cap("runtime.native.b", arches_native=("aarch64",)),
    )
    placement = lab.decide(emulated_first, [x86], allow_emulated=True).placement
    assert (placement.variant, placement.tier, placement.flags) == ("aarch64-native", Tier.NATIVE, ())


def test_the_first_variant_that_fits_is_taken(lab):
    mac = lab.with_caps(lab.nodes("mac-dev")[0], lab.native("aarch64"))
    assert lab.decide(lab.anomaly(), [mac]).placement.variant == "aarch64-native"
    assert lab.decide(lab.anomaly(), lab.nodes("mac-dev")).placement.variant == "aarch64-container"


def test_no_node_at_all_is_unplaceable_not_an_error(lab):
    decision = place(lab.request(lab.anomaly()), [], lab.cluster())
    assert decision.is_unplaceable
    assert decision.candidates == ()
