"""What holds for every request and every fleet: order, preferences, completeness, speed (G 8.1, N35, N41, N74)."""

import csv
import gc
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import actors.placement.engine
from actors.placement.engine import PlacementError, explain, place
from messages.engine import (
    Affinity,
    Better,
    ClusterState,
    Constraint,
    Execution,
    Flag,
    GateDeny,
    GatePermit,
    InstanceRecord,
    LatencyClass,
    Liveness,
    PerfTarget,
    PerNodeGate,
    PlacementFacts,
    PlacementPolicy,
    PlacementRequest,
    Preference,
    TrustTier,
    UniformGate,
    Variant,
    WorkloadRef,
    WorkloadRequirements,
    WorkloadSpec,
)
from messages.facts import Capability, CapabilityState, MemoryDemand, Predicate, PredicateOp, Provenance, Requirement

NAMES = [f"n{i}" for i in range(6)]
IDS = ["os.linux", "node.class.dev-mac", "accel.gpu.a", "accel.gpu.b", "accel.npu.a", "mem.system", "perf.cog.cycle_ms"]
ODD_NUMBERS = [0, 1, 2.5, 900, -1, True, float("nan"), float("inf"), 2**70]
PERF = {"id": "perf.cog.cycle_ms", "param": "cog_id", "param_value": "w"}


class Dice(random.Random):
    """Draws cases in which most constraints pass most of the time, so that every outcome is common."""

    def some(self, draw, most):
        return tuple(draw() for _ in range(self.randint(0, most)))

    def mostly(self, usual, *others):
        return usual if self.random() < 0.8 else self.choice(others)

    def capability(self):
        return Capability(
            id=self.choice(IDS),
            attrs={name: self.choice(ODD_NUMBERS) for name in ("free", "mem_bytes", "value")} | {"cog_id": "w"},
            provenance=self.choice(list(Provenance)),
            state=self.mostly(CapabilityState.AVAILABLE, *CapabilityState),
            exclusive=self.mostly(False, True),
        )

    def requirement(self):
        selector = self.choice([*IDS, "accel", "accel.gpu"])
        value = Predicate(attr="value", op=PredicateOp.GTE, value=1)
        return Requirement(
            **{"id" if selector in IDS else "id_prefix": selector},
            where=self.mostly((), (value,)),
            count=self.mostly(1, 2),
            exclusive=self.mostly(False, True),
            min_provenance=self.mostly(None, *Provenance),
        )

    def node(self, node_id):
        return PlacementFacts(
            node_id=node_id,
            capabilities=self.some(self.capability, 12),
            liveness=self.mostly(Liveness.ALIVE, Liveness.DEAD),
            trust_tier=self.mostly(TrustTier.PAIRED, *TrustTier),
            facts_expire_at_ms=self.mostly(5000, None, 500),
            load=self.choice([None, 0.0, 0.5, 1.5, float("nan")]),
        )

    def variant(self):
        return Variant(
            name=self.choice(["one", "two"]),
            execution=self.choice(list(Execution)),
            requirements=self.some(self.requirement, 2),
        )

    def preference(self):
        return Preference(name="p", requirement=self.requirement(), weight=self.choice([0.0, 1.0, 25.0]))

    def names(self):
        return self.some(lambda: self.choice(NAMES), 2)

    def labels(self):
        return self.some(lambda: self.choice("abc"), 1)

    def verdicts(self):
        return {name: self.mostly(GatePermit(), GateDeny(reason="no")) for name in NAMES[1:]}

    def spec(self):
        target = PerfTarget(**PERF, better=self.choice(list(Better)), budget=self.choice([None, 2.0]))
        return WorkloadSpec(
            kind="cog",
            name="w",
            requirements=WorkloadRequirements(
                common=self.some(self.requirement, 1),
                variants=self.some(self.variant, 3),
                memory=MemoryDemand(host_bytes=self.mostly(0, 1, 900)),
            ),
            policy=PlacementPolicy(
                min_provenance=self.mostly(None, Provenance.PROBED),
                labels=self.labels(),
                excludes=self.labels(),
                latency_class=self.choice(list(LatencyClass)),
                perf=self.choice([None, target]),
                preferences=self.some(self.preference, 2),
            ),
        )

    def request(self):
        return PlacementRequest(
            spec=self.spec(),
            affinity=Affinity(prefer=self.names(), avoid=self.names()),
            pin=self.mostly(None, *NAMES),
            allow_emulated=self.random() < 0.5,
            current_node=self.choice([None, *NAMES]),
            gate=self.mostly(UniformGate(verdict=GatePermit()), PerNodeGate(verdicts=self.verdicts())),
        )

    def instance(self):
        workload = self.choice([None, WorkloadRef(kind="cog", name="w"), WorkloadRef(kind="cog", name="v")])
        return InstanceRecord(
            node_id=self.choice(NAMES),
            workload=workload,
            labels=self.labels(),
            excludes=self.labels(),
            pending=MemoryDemand(host_bytes=self.choice([0, 1, 2**64 - 1])),
        )

    def case(self):
        facts = [self.node(name) for name in self.sample(NAMES, self.randint(0, len(NAMES)))]
        revoked = frozenset(self.mostly((), self.names()))
        return self.request(), facts, ClusterState(
            now_ms=1000, revoked_nodes=revoked, instances=self.some(self.instance, 3)
        )  # fmt: skip


dice = st.integers(0, 2**32 - 1).map(Dice)
many = settings(max_examples=300, deadline=None)


def outcome(request, facts, cluster):
    """Every byte of what a caller sees."""
    try:
        decision = place(request, facts, cluster)
    except PlacementError as error:
        return type(error), str(error), error.constraints()
    return msgspec.json.encode(decision), explain(decision)


@many
@given(dice)
def test_the_order_of_facts_does_not_matter(dice):
    request, facts, cluster = dice.case()
    before = outcome(request, facts, cluster)
    shuffled = facts[:]
    dice.shuffle(shuffled)
    assert outcome(request, shuffled, cluster) == before


@many
@given(dice)
def test_every_node_is_either_eligible_or_rejected_with_reasons(dice):  # N35
    request, facts, cluster = dice.case()
    decision = place(msgspec.structs.replace(request, pin=None), facts, cluster)
    eligible = [report for report in decision.candidates if report.eligible]
    assert sorted(report.node_id for report in decision.candidates) == sorted(node.node_id for node in facts)
    assert len(eligible) + len(decision.reasons()) == len(facts)
    assert decision.candidates == (*eligible, *decision.reasons())
    assert decision.is_unplaceable == (not eligible)
    for report in eligible:
        assert None not in (report.variant, report.tier, report.score)
    for report in decision.reasons():
        assert all(rejection.detail for rejection in report.rejections)
        assert (report.variant, report.tier, report.score, report.flags, report.assigned) == (None, None, None, (), ())


@many
@given(dice)
def test_the_chosen_node_is_the_best_tier_and_was_never_rejected(dice):
    request, facts, cluster = dice.case()
    try:
        decision = place(request, facts, cluster)
    except PlacementError:
        return
    if decision.placement is None:
        return
    report = next(r for r in decision.candidates if r.node_id == decision.placement.node_id)
    assert report.eligible
    assert (report.score, report.flags, report.tier) == (
        decision.placement.score, decision.placement.flags, decision.placement.tier,
    )  # fmt: skip
    assert list(report.flags) == sorted(report.flags, key=list(Flag).index)
    if request.pin is None:
        assert report.tier is decision.candidates[0].tier
    else:
        assert report.node_id == request.pin


@many
@given(dice)
def test_adding_a_met_preference_never_lowers_a_node(dice):  # N41
    request, facts, cluster = dice.case()
    favoured, weight = dice.choice(NAMES), dice.choice([0.0, 0.5, 40.0])
    request = msgspec.structs.replace(request, pin=None)
    mark = Capability(id="x.mark", provenance=Provenance.PROBED)
    facts = [
        msgspec.structs.replace(node, capabilities=(*node.capabilities, mark)) if node.node_id == favoured else node
        for node in facts
    ]
    before = place(request, facts, cluster)
    policy = request.spec.policy
    likes = (*policy.preferences, Preference(name="mark", requirement=Requirement(id=mark.id), weight=weight))
    spec = msgspec.structs.replace(request.spec, policy=msgspec.structs.replace(policy, preferences=likes))
    after = place(msgspec.structs.replace(request, spec=spec), facts, cluster)
    ranks = [{report.node_id: rank for rank, report in enumerate(decision.candidates)} for decision in (before, after)]
    if favoured in ranks[0]:
        assert ranks[1][favoured] <= ranks[0][favoured]


@many
@given(dice)
def test_a_node_is_judged_the_same_alone_and_in_company(dice):
    """Cached answers of one capability set hold for nobody else: reasons do not depend on the neighbours' facts."""
    request, facts, cluster = dice.case()
    request = msgspec.structs.replace(request, pin=None)
    together = {report.node_id: report for report in place(request, facts, cluster).candidates}
    for node in facts:
        (alone,) = place(request, [node], cluster).candidates
        assert (alone.rejections, alone.variant, alone.tier, alone.assigned) == (
            together[node.node_id].rejections, together[node.node_id].variant, together[node.node_id].tier,
            together[node.node_id].assigned,
        )  # fmt: skip


@many
@given(dice)
def test_inputs_are_left_as_they_were(dice):  # N74
    request, facts, cluster = dice.case()

    def image():
        return repr((request, facts, cluster.now_ms, sorted(cluster.revoked_nodes), cluster.instances))

    before = image()
    outcome(request, facts, cluster)
    assert image() == before


def test_the_hash_seed_does_not_matter(lab):
    question = {
        "request": lab.request(
            lab.anomaly(labels=("a",), excludes=("b", "c")), allow_emulated=True, affinity=Affinity(avoid=("pi5",))
        ),
        "facts": lab.fleet,
        "cluster": lab.cluster(
            *(lab.resident(node_id, labels=("c", "b"), excludes=("a",)) for node_id in ("seed", "x86")),
            revoked_nodes=frozenset(f"r{i}" for i in range(50)) | {"zero"},
        ),
    }
    line = msgspec.json.encode(question).decode()
    code = "import sys; from runtime.replay_engine import replay; print(*replay(sys.stdin), sep='\\n')"
    root = Path(actors.placement.engine.__file__).parents[3]
    answers = {
        subprocess.run(
            [sys.executable, "-c", code], input=line, capture_output=True, text=True, check=True, timeout=30, cwd=root,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "4242")
    }  # fmt: skip
    assert len(answers) == 1
    assert json.loads(answers.pop())["decision"]["placement"]["node_id"] == "coral"


def test_the_cases_drawn_reach_every_outcome():
    seen = Counter()
    for seed in range(400):
        request, facts, cluster = Dice(seed).case()
        try:
            decision = place(request, facts, cluster)
        except PlacementError as error:
            seen[error.code] += 1
            continue
        seen["placed"] += decision.placement is not None
        seen["contest"] += sum(report.eligible for report in decision.candidates) > 1
        seen.update(flag for flag in (decision.placement.flags if decision.placement else ()))
        seen.update(rejection.constraint for report in decision.reasons() for rejection in report.rejections)
    wanted = {"placed", "contest", "unknown_pin", "pin_ineligible", *Flag, *Constraint} - {Constraint.WORKLOAD_REVOKED}
    assert {outcome: seen[outcome] for outcome in wanted if seen[outcome] < 5} == {}


def test_constraint_names_are_stable():
    assert [str(constraint) for constraint in Constraint] == [
        "node_revoked", "liveness", "facts_expired", "trust", "workload_revoked", "co_residency", "memory",
        "requirements", "provenance", "emulation_not_allowed", "gate", "perf_budget",
    ]  # fmt: skip


# --- large fleets ---------------------------------------------------------------------------------------------------


def decide_quickly(request, facts, cluster, limit_s):
    """The decision, which must take less than `limit_s` at the best of several tries."""
    best = float("inf")
    for _ in range(8):
        gc.collect()
        started = time.perf_counter()
        decision = place(request, facts, cluster)
        best = min(best, time.perf_counter() - started)
        if best < limit_s:
            return decision
    pytest.fail(f"a decision over {len(facts)} nodes took {best * 1000:.0f} ms, more than {limit_s * 1000:.0f} ms")


def test_two_thousand_nodes_of_a_few_types_are_decided_at_once(lab):
    facts = [
        lab.change(
            node,
            node_id=f"{node.node_id}-{i:04}",
            capabilities=tuple(
                lab.cap(c.id, c.provenance, free=lab.GIB + i * 4096) if c.id == "mem.system" else c
                for c in node.capabilities
            ),
        )
        for i in range(250)
        for node in lab.fleet
    ]
    decision = decide_quickly(lab.request(lab.anomaly(), allow_emulated=True), facts, lab.cluster(), 0.1)
    assert len(decision.candidates) == 2000
    assert lab.placed(decision) == "pi5-0000"


OPENB = Path(__file__).parents[4].parent / "shared" / "vectors" / "openb" / "openb_node_list_all_node.csv"


@pytest.mark.skipif(not OPENB.exists(), reason="the recorded fleet is not part of the project")
def test_a_recorded_fleet_of_unlike_machines_is_decided_at_once(lab):
    with OPENB.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    facts = [
        lab.node(
            row["sn"],
            lab.cap("os.linux"),
            lab.cap("mem.system", free=int(row["memory_mib"]) * 2**20),
            lab.cap("mem.vram", free=int(row["gpu"] or 0) * 16 * lab.GIB),
            *(
                lab.cap(f"accel.gpu.{row['model'].lower()}", exclusive=True, mem_bytes=16 * lab.GIB)
                for _ in range(int(row["gpu"] or 0))
            ),
        )
        for row in rows
    ]
    spec = WorkloadSpec(
        kind="task",
        name="two-gpus",
        requirements=WorkloadRequirements(
            common=(lab.need("os.linux"), lab.need("accel.gpu", prefix=True, exclusive=True, count=2)),
            memory=MemoryDemand(host_bytes=16 * lab.GIB, accel_bytes=32 * lab.GIB),
        ),
    )
    decision = decide_quickly(lab.request(spec), facts, lab.cluster(), 0.1)
    assert len(decision.candidates) == len(rows)
    assert len(lab.eligible(decision)) == sum(
        int(row["gpu"] or 0) >= 2 and int(row["memory_mib"]) >= 16 * 1024 for row in rows
    )
