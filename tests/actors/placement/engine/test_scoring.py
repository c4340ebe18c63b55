"""Phase B: what a score is made of, and numbers that earn nothing (G 7.4, 7.7)."""

import math
import sys

import pytest

from actors.placement.engine.scoring import measured_value, plain_number
from messages.engine import (
    Better,
    Flag,
    LatencyClass,
    PerfTarget,
    Preference,
    ScoringWeights,
    Tier,
)
from messages.facts import Provenance


def test_each_tier_has_its_execution_score(lab):  # S1
    decision = lab.decide(lab.anomaly(), lab.nodes("pi5", "mac-dev", "x86"), allow_emulated=True)
    found = {report.node_id: (report.tier, report.score.execution) for report in decision.candidates}
    assert found == {
        "pi5": (Tier.NATIVE, 100.0), "mac-dev": (Tier.DEV_FALLBACK, 20.0), "x86": (Tier.EMULATED, 40.0),
    }  # fmt: skip
    assert lab.placed(decision) == "pi5"
    assert lab.placed(lab.decide(lab.anomaly(), lab.nodes("mac-dev", "x86"), allow_emulated=True)) == "x86"


def test_a_missed_budget_rejects_and_the_best_measurement_sets_the_scale(lab):  # S2
    decision = lab.decide(lab.fall_detect(), lab.nodes("zero", "seed", "pi5"))
    assert lab.constraints(decision, "zero") == ["perf_budget"]
    assert lab.report(decision, "zero").rejections[0].detail == "measured perf.cog.cycle_ms 6000 misses budget 2000"
    assert lab.report(decision, "pi5").score.perf == 60.0
    assert lab.report(decision, "seed").score.perf == pytest.approx(60 * 1000 / 1100, abs=1e-9)
    assert lab.placed(decision) == "pi5"


def test_without_a_budget_a_slow_node_will_do(lab):  # S3
    assert lab.placed(lab.decide(lab.fall_detect(budget=None), lab.nodes("zero"))) == "zero"


def test_an_unmeasured_node_is_eligible_but_earns_nothing(lab):  # S4
    pi5 = lab.pi5(node_id="pi5-new")
    bare = lab.change(pi5, capabilities=tuple(c for c in pi5.capabilities if c.id != "perf.cog.cycle_ms"))
    decision = lab.decide(lab.fall_detect(), [bare, *lab.nodes("seed")])
    report = lab.report(decision, "pi5-new")
    assert report.eligible
    assert report.flags == (Flag.UNMEASURED,)
    assert report.score.perf == 0.0
    assert lab.placed(decision) == "seed"


def test_the_smallest_accelerator_that_fits_scores_full(lab):  # S5
    decision = lab.decide(lab.gguf(20), lab.nodes("mac-dev", "gpu-box"))
    assert lab.report(decision, "gpu-box").score.accel_fit == 10.0
    assert lab.report(decision, "mac-dev").score.accel_fit == pytest.approx(10 * 24 / 128, abs=1e-9)
    assert decision.placement.accelerator == "accel.gpu.cuda"


def test_a_node_with_an_accelerator_is_kept_for_who_needs_it(lab):  # S5
    decision = lab.decide(lab.anomaly(), lab.nodes("coral", "pi5"))
    assert lab.report(decision, "coral").score.accel_fit == 0.0
    assert lab.report(decision, "pi5").score.accel_fit == 10.0
    assert lab.placed(decision) == "pi5"


def test_an_accelerator_of_unknown_or_senseless_size_scores_full(lab):
    def box(node_id, **attrs):
        gpu = lab.nodes("gpu-box")[0]
        caps = tuple(c for c in gpu.capabilities if c.id != "accel.gpu.cuda")
        return lab.change(gpu, node_id=node_id, capabilities=(*caps, lab.cap("accel.gpu.cuda", **attrs)))

    facts = [
        box("sized", mem_bytes=24 * lab.GIB),
        box("unsized"),
        box("nan", mem_bytes=math.nan),
        box("infinite", mem_bytes=math.inf),
        box("true", mem_bytes=True),
        box("zero", mem_bytes=0),
    ]
    decision = lab.decide(lab.gguf(20), facts)
    scores = {report.node_id: report.score.accel_fit for report in decision.candidates}
    assert scores == {"sized": 0.0, "unsized": 10.0, "nan": 10.0, "infinite": 10.0, "true": 10.0, "zero": 10.0}


def test_equal_scores_go_by_id_and_a_met_preference_decides(lab):  # S6
    a, mac = lab.nodes("gpu-box", "mac-dev")
    b = lab.change(a, node_id="gpu-box-b")
    assert lab.placed(lab.decide(lab.gguf(20), [b, a])) == "gpu-box"
    weights = lab.cap("model.present", shards=("blake3-model-a",))
    decision = lab.decide(lab.gguf(20, 100.0), [a, lab.with_caps(b, weights)])
    assert lab.report(decision, "gpu-box-b").score.locality == 100.0
    assert lab.placed(decision) == "gpu-box-b"
    assert lab.placed(lab.decide(lab.gguf(20, 100.0), [a, lab.with_caps(mac, weights)])) == "gpu-box"


def test_a_preference_is_matched_as_written(lab):
    probed = lab.need("os.linux")
    spec = lab.anomaly(preferences=(Preference(name="linux", requirement=probed, weight=3.0),))
    floored = lab.policy(lab.coral_job(), min_provenance=Provenance.MEASURED, preferences=spec.policy.preferences)
    coral = lab.nodes("coral")[0]
    measured = lab.change(
        coral,
        capabilities=tuple(
            c if c.id == "os.linux" else lab.change(c, provenance=Provenance.MEASURED) for c in coral.capabilities
        ),
    )
    assert lab.decide(floored, [measured]).placement.score.locality == 3.0


def test_idle_nodes_earn_headroom_and_unknown_load_none(lab):  # S7
    facts = [lab.pi5(), lab.pi5(node_id="busy", load=0.9), lab.pi5(node_id="unknown", load=None)]
    decision = lab.decide(lab.anomaly(), facts)
    assert lab.placed(decision) == "pi5"
    report = lab.report(decision, "unknown")
    assert (report.score.load, report.flags) == (0.0, (Flag.LOAD_UNKNOWN,))


@pytest.mark.parametrize(
    ("load", "earned"), [(-3.0, 10.0), (0, 10.0), (1.0, 0.0), (7.5, 0.0), (math.nan, 0.0), (math.inf, 0.0)]
)
def test_load_out_of_range_is_clamped(lab, load, earned):
    decision = lab.decide(lab.anomaly(), [lab.pi5(load=load)])
    assert decision.placement.score.load == earned
    assert (Flag.LOAD_UNKNOWN in decision.placement.flags) == (not math.isfinite(load))


def test_stickiness_outweighs_a_small_gap_and_sticky_any(lab):  # S8
    facts = lab.nodes("pi5", "seed")
    assert lab.placed(lab.decide(lab.fall_detect(), facts, current_node="seed")) == "seed"
    loaded = [facts[0], lab.change(facts[1], load=1.0)]
    weak = ScoringWeights(stickiness=1.0)
    batch = lab.fall_detect(latency_class=LatencyClass.BATCH)
    assert lab.placed(lab.decide(batch, loaded, current_node="seed", weights=weak)) == "pi5"
    sticky = lab.policy(batch, sticky=True)
    assert lab.placed(lab.decide(sticky, loaded, current_node="seed", weights=weak)) == "seed"


def test_a_fleet_and_its_reverse_give_the_same_decision(lab):  # S9
    for spec in (lab.fall_detect(), lab.anomaly(), lab.gguf(20), lab.coral_job(), lab.tsu_job()):
        assert lab.decide(spec, lab.fleet) == lab.decide(spec, lab.fleet[::-1])


# --- hostile numbers ------------------------------------------------------------------------------------------------


def _cycle(lab, value, provenance=Provenance.MEASURED):
    return lab.cap("perf.cog.cycle_ms", provenance, cog_id="fall-detect", value=value)


def _pi5_measuring(lab, *capabilities):
    pi5 = lab.pi5()
    return lab.change(pi5, capabilities=(*(c for c in pi5.capabilities if c.id != "perf.cog.cycle_ms"), *capabilities))


@pytest.mark.parametrize("budget", [2000.0, None])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -5.0, True, "900"])
def test_a_bad_measurement_counts_as_none(lab, value, budget):  # B4
    facts = [_pi5_measuring(lab, _cycle(lab, value)), *lab.nodes("seed")]
    decision = lab.decide(lab.fall_detect(budget=budget), facts)
    report = lab.report(decision, "pi5")
    assert (report.eligible, report.score.perf, report.flags) == (True, 0.0, (Flag.UNMEASURED,))
    assert lab.report(decision, "seed").score.perf == 60.0
    assert lab.placed(decision) == "seed"


def test_a_good_measurement_beside_a_bad_one_counts(lab):  # B5
    facts = [_pi5_measuring(lab, _cycle(lab, math.nan), _cycle(lab, 900)), *lab.nodes("seed")]
    decision = lab.decide(lab.fall_detect(), facts)
    assert lab.report(decision, "pi5").score.perf == 60.0
    assert lab.report(decision, "pi5").flags == ()
    assert lab.placed(decision) == "pi5"


def test_only_measurements_of_the_same_subject_count(lab):
    other = lab.cap("perf.cog.cycle_ms", Provenance.MEASURED, cog_id="other", value=1)
    facts = [_pi5_measuring(lab, other, _cycle(lab, 1, Provenance.PROBED))]
    assert lab.decide(lab.fall_detect(), facts).placement.flags == (Flag.UNMEASURED,)


def test_higher_can_be_better(lab):
    target = PerfTarget(id="perf.infer.tok_s", param="model", param_value="m", better=Better.HIGHER, budget=10.0)

    def box(node_id, *rates):
        rate_caps = [lab.cap("perf.infer.tok_s", Provenance.MEASURED, model="m", value=rate) for rate in rates]
        return lab.with_caps(lab.change(lab.nodes("gpu-box")[0], node_id=node_id), *rate_caps)

    spec = lab.policy(lab.gguf(20), perf=target)
    facts = [box("slow", 9.5), box("fair", 20, 15), box("fast", 40), box("still", 0)]
    assert measured_value(target, facts[1]) == 20.0
    decision = lab.decide(spec, facts)
    assert lab.report(decision, "fast").score.perf == 30.0
    assert lab.report(decision, "fair").score.perf == 15.0
    assert lab.report(decision, "slow").rejections[0].detail == "measured perf.infer.tok_s 9.5 misses budget 10"
    assert lab.constraints(decision, "still") == ["perf_budget"]


def test_a_zero_measurement_scores_full_and_the_rest_nothing(lab):
    facts = [_pi5_measuring(lab, _cycle(lab, 0)), *lab.nodes("seed")]
    decision = lab.decide(lab.fall_detect(), facts)
    assert lab.report(decision, "pi5").score.perf == 60.0
    assert lab.report(decision, "seed").score.perf == 0.0


def test_weights_at_the_end_of_the_range_leave_every_score_finite(lab):
    top = sys.float_info.max
    weights = ScoringWeights(native=top, accel_fit=top, perf=top, load=top, stickiness=top)
    likes = tuple(Preference(name=f"p{i}", requirement=lab.need("os.linux"), weight=top) for i in range(3))
    facts = [_pi5_measuring(lab, _cycle(lab, 0)), *lab.nodes("seed")]
    decision = lab.decide(lab.policy(lab.fall_detect(), preferences=likes), facts, weights=weights)
    for report in decision.candidates:
        parts = [getattr(report.score, name) for name in report.score.__struct_fields__]
        assert all(math.isfinite(part) for part in [*parts, report.score.total])


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (6000.0, "6000"), (1e21, "1000000000000000000000"), (0.1, "0.1"), (1e-7, "0.0000001"), (2.5, "2.5"),
        (0.0, "0"), (-5.0, "-5"), (1.5e300, "15" + "0" * 299), (123456789.125, "123456789.125"), (100.0, "100"),
    ],
)  # fmt: skip
def test_numbers_in_a_detail_have_no_exponent_and_no_empty_fraction(number, text):
    assert plain_number(number) == text
