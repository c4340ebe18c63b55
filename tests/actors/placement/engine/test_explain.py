"""The text of a decision, and a decision that never looks at the workload's kind (G 7.6)."""

import ast
import re
from pathlib import Path

import pytest

import actors.placement.engine
from actors.placement.engine import explain
from messages.engine import (
    GateDeny,
    GatePermit,
    LatencyClass,
    Liveness,
    PerfTarget,
    PerNodeGate,
    PlacementPolicy,
    UniformGate,
    Variant,
    WorkloadRequirements,
    WorkloadSpec,
)
from messages.facts import measured_cycle

HEAD = "  tier order (strict): native > emulated > dev_fallback (candidates rank by tier, then score)\n"

FALL_DETECT = (
    "workload fall-detect (kind cog)\n"
    "  allow_emulated: false   pin: -\n" + HEAD +
    """\
decision: PLACED on pi5 via aarch64-native (tier native, emulated false) score 178.00
candidates:
  1. pi5 eligible via aarch64-native (tier native) score 178.00
       execution 100.00 + locality 0.00 + accel_fit 10.00 + perf 60.00 + load 8.00 + stickiness 0.00
  2. seed eligible via armv7-native (tier native) score 173.55
       execution 100.00 + locality 0.00 + accel_fit 10.00 + perf 54.55 + load 9.00 + stickiness 0.00
  -  coral rejected
       requirements: feed.esp32-csi-udp: not advertised
  -  gpu-box rejected
       requirements: feed.esp32-csi-udp: not advertised
  -  mac-dev rejected
       requirements: feed.esp32-csi-udp: not advertised
  -  tsu rejected
       requirements: feed.esp32-csi-udp: not advertised
  -  x86 rejected
       requirements: feed.esp32-csi-udp: not advertised
  -  zero rejected
       perf_budget: measured perf.cog.cycle_ms 6000 misses budget 2000
"""
)  # fmt: skip


def test_the_whole_text_of_a_measured_placement(lab):  # X1
    assert explain(lab.decide(lab.fall_detect(), lab.fleet)) == FALL_DETECT


WATCH = (
    "workload door-watch (kind cog)\n"
    "  allow_emulated: false   pin: -\n" + HEAD +
    """\
decision: PLACED on attic via arm64-native (tier native, emulated false) score 171.00
candidates:
  1. attic eligible via arm64-native (tier native) score 171.00
       execution 100.00 + locality 0.00 + accel_fit 10.00 + perf 60.00 + load 1.00 + stickiness 0.00
  2. shed eligible via arm64-native (tier native) score 110.00 [unmeasured, load_unknown]
       execution 100.00 + locality 0.00 + accel_fit 10.00 + perf 0.00 + load 0.00 + stickiness 0.00
  -  loft rejected
       liveness: node is suspect
       gate: workload.place denied: no gate decision for this node
"""
)  # fmt: skip


def test_flags_and_reasons_have_their_places(lab):
    """The worked example of the text's specification (G 1.11)."""
    spec = WorkloadSpec(
        kind="cog",
        name="door-watch",
        requirements=WorkloadRequirements(variants=(Variant(name="arm64-native"),)),
        policy=PlacementPolicy(
            latency_class=LatencyClass.INTERACTIVE,
            perf=PerfTarget(id="perf.cog.cycle_ms", param="cog_id", param_value="door-watch"),
        ),
    )
    facts = [
        lab.change(lab.node("loft"), liveness=Liveness.SUSPECT),
        lab.node("shed", load=None),
        lab.node("attic", measured_cycle("door-watch", 40), load=0.9),
    ]
    gate = PerNodeGate(verdicts={"attic": GatePermit(), "shed": GatePermit()})
    assert explain(lab.decide(spec, facts, gate=gate)) == WATCH


def test_an_assigned_accelerator_is_named(lab):  # X2
    text = explain(lab.decide(lab.gguf(20), lab.fleet))
    assert (
        "decision: PLACED on gpu-box via default (tier native, emulated false) score 117.00, "
        "accelerator accel.gpu.cuda\n" in text
    )
    assert "  2. mac-dev eligible via default (tier dev_fallback) score 26.88\n" in text
    assert "       execution 20.00 + locality 0.00 + accel_fit 1.88 + perf 0.00 + load 5.00 + stickiness 0.00\n" in text


def test_each_failing_requirement_of_each_variant_has_its_line(lab):  # X3
    text = explain(lab.decide(lab.anomaly(), lab.nodes("x86", "gpu-box"), allow_emulated=True))
    assert text.endswith(
        """\
  1. x86 eligible via aarch64-emulated (tier emulated) score 59.00 [emulated]
       execution 40.00 + locality 0.00 + accel_fit 10.00 + perf 0.00 + load 9.00 + stickiness 0.00
  -  gpu-box rejected
       requirements: variant aarch64-native: cpu.arch.aarch64: not advertised
       requirements: variant aarch64-native: runtime.native: predicate `arches_native has` failed
       requirements: variant aarch64-container: runtime.container: not advertised
       requirements: variant aarch64-emulated: runtime.container: not advertised
"""
    )


def test_an_unplaceable_workload_says_so_and_why(lab):  # X4
    text = explain(lab.decide(lab.anomaly(), lab.nodes("x86", "gpu-box", "tsu")))
    assert "decision: UNPLACEABLE (no eligible node)\n" in text
    assert re.findall(r"  -  (\S+) rejected", text) == ["gpu-box", "tsu", "x86"]
    assert text.endswith(
        "  -  x86 rejected\n       emulation_not_allowed: only emulated route(s) fit (aarch64-emulated); "
        "emulation needs explicit allow_emulated\n"
    )


def test_every_node_is_in_the_text(lab):  # X5
    text = explain(lab.decide(lab.tsu_job(), lab.fleet))
    assert all(f" {node_id} " in text for node_id in [facts.node_id for facts in lab.fleet])


def test_configured_names_stand_before_the_ids(lab):
    decision = lab.decide(lab.anomaly(), lab.nodes("pi5", "zero"), pin="pi5")
    text = explain(decision, {"pi5": "attic", "zero": "zero"})
    assert "   pin: attic (pi5)\n" in text
    assert "decision: PLACED on attic (pi5) via " in text
    assert "  1. attic (pi5) eligible via aarch64-native (tier native) score 118.00 [pinned]\n" in text
    assert "  -  zero rejected\n" in text


def test_a_reason_cannot_forge_a_line(lab):
    gate = UniformGate(verdict=GateDeny(reason="no\n  1. pi5 eligible via x\u2028\x1b[2K"))
    text = explain(lab.decide(lab.anomaly(), [lab.pi5()], gate=gate))
    assert text.endswith("       gate: workload.place denied: no\\n  1. pi5 eligible via x\\u2028\\x1b[2K\n")


# --- the kind is never looked at ------------------------------------------------------------------------------------


@pytest.mark.parametrize("build", ["fall_detect", "anomaly", "coral_job", "tsu_job"])
def test_another_kind_changes_nothing_but_its_name(lab, build):  # X6
    spec = getattr(lab, build)()
    known = lab.decide(spec, lab.fleet)
    unknown = lab.decide(lab.change(spec, kind="zz-unknown-kind"), lab.fleet)
    assert lab.change(unknown, kind=spec.kind) == known
    assert explain(unknown).replace("zz-unknown-kind", spec.kind) == explain(known)


KINDS = {"cog", "project", "inference", "model", "agent"}


def _looks_at_kinds(source: str) -> list[int]:
    """Lines that hold a kind as a literal, or compare, match or look something up by a `kind`."""
    lines = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and node.value in KINDS:
            lines.append(node.lineno)
        judged = []
        if isinstance(node, ast.Compare):
            judged = [node.left, *node.comparators]
        elif isinstance(node, ast.Match):
            judged = [node.subject]
        elif isinstance(node, ast.Subscript):
            judged = [node.slice]
        lines += [part.lineno for part in judged if getattr(part, "attr", getattr(part, "id", None)) == "kind"]
    return lines


def test_the_sources_of_the_engine_name_no_kind():  # X7
    sources = sorted(Path(actors.placement.engine.__file__).parent.glob("*.py"))
    assert len(sources) >= 8
    assert {source.name: _looks_at_kinds(source.read_text(encoding="utf-8")) for source in sources} == {
        source.name: [] for source in sources
    }
    for bad in ('x = "cog"', "if spec.kind == other: pass", "match kind:\n case _: pass", "table[spec.kind]"):
        assert _looks_at_kinds(bad) == [1]


def test_a_permit_for_one_node_does_not_speak_for_another(lab):
    gate = PerNodeGate(verdicts={"coral": GatePermit()})
    decision = lab.decide(lab.anomaly(), lab.nodes("pi5", "coral"), gate=gate)
    assert lab.placed(decision) == "coral"
    assert lab.constraints(decision, "pi5") == ["gate"]
