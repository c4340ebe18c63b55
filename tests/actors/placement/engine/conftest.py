"""The fleet and the workloads that the engine's tests share (G 7.1)."""

from __future__ import annotations

import msgspec
import pytest

from actors.placement.engine import place
from messages.engine import (
    Better,
    ClusterState,
    Execution,
    GatePermit,
    InstanceRecord,
    LatencyClass,
    Liveness,
    PerfTarget,
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
from messages.facts import (
    Capability,
    CapabilityState,
    MemoryDemand,
    Predicate,
    PredicateOp,
    Provenance,
    Requirement,
    measured_cycle,
)

GIB = 2**30


def cap(capability_id, provenance=Provenance.PROBED, state=CapabilityState.AVAILABLE, exclusive=False, **attrs):
    return Capability(id=capability_id, provenance=provenance, state=state, exclusive=exclusive, attrs=attrs)


def need(selector, *where, prefix=False, **fields):
    """A requirement; each of `where` is (attr, op, value)."""
    predicates = tuple(Predicate(attr=attr, op=PredicateOp(op), value=value) for attr, op, value in where)
    return Requirement(**{"id_prefix" if prefix else "id": selector}, where=predicates, **fields)


def node(node_id, *capabilities, tier=TrustTier.PAIRED, load=0.0):
    return PlacementFacts(
        node_id=node_id,
        capabilities=capabilities,
        liveness=Liveness.ALIVE,
        trust_tier=tier,
        facts_expire_at_ms=10_000,
        load=load,
    )


def native(*arches):
    return cap("runtime.native", arches_native=arches)


def memory(kind, free_gib):
    return cap(f"mem.{kind}", free=free_gib * GIB)


LAN_A = cap("feed.esp32-csi-udp", lan_id="lan-a")


def all_nodes():
    docker = "runtime.container.docker"
    return (
        node(
            "mac-dev",
            cap("os.macos"),
            cap("cpu.arch.aarch64"),
            cap("node.class.dev-mac"),
            cap("runtime.container.apple", arches_native=("aarch64",)),
            cap(docker, arches_native=("aarch64",), arches_emulated=("armv7", "x86_64")),
            cap("runtime.infer.llamacpp"),
            cap("format.gguf"),
            cap("accel.gpu.metal", unified=True, mem_bytes=128 * GIB),
            memory("unified", 90),
            tier=TrustTier.PINNED,
            load=0.5,
        ),
        node(
            "pi5",
            cap("os.linux"),
            cap("cpu.arch.aarch64"),
            cap("node.class.pi5"),
            native("aarch64"),
            memory("system", 6),
            LAN_A,
            measured_cycle("fall-detect", 1000),
            load=0.2,
        ),
        node(
            "seed",
            cap("os.linux"),
            cap("cpu.arch.armv7"),
            cap("node.class.cognitum-seed"),
            native("armv7"),
            memory("system", 1),
            LAN_A,
            measured_cycle("fall-detect", 1100),
            load=0.1,
        ),
        node(
            "zero",
            cap("os.linux"),
            cap("cpu.arch.armv7"),
            native("armv7"),
            memory("system", 1),
            LAN_A,
            measured_cycle("fall-detect", 6000),
        ),
        node(
            "x86",
            cap("os.linux"),
            cap("cpu.arch.x86_64"),
            native("x86_64"),
            cap(docker, arches_native=("x86_64",), arches_emulated=("aarch64", "armv7")),
            memory("system", 32),
            load=0.1,
        ),
        node(
            "gpu-box",
            cap("os.linux"),
            cap("cpu.arch.x86_64"),
            native("x86_64"),
            cap("runtime.infer.llamacpp"),
            cap("format.gguf"),
            cap("accel.gpu.cuda", mem_bytes=24 * GIB, precisions=("fp16", "int4")),
            memory("vram", 24),
            memory("system", 64),
            tier=TrustTier.PINNED,
            load=0.3,
        ),
        node(
            "coral",
            cap("os.linux"),
            cap("cpu.arch.aarch64"),
            native("aarch64"),
            cap("accel.tpu.coral", exclusive=True, formats=("tflite",)),
            cap("format.tflite"),
            memory("system", 4),
        ),
        node(
            "tsu",
            cap("os.linux"),
            cap("cpu.arch.x86_64"),
            native("x86_64"),
            cap("accel.tsu.acme", Provenance.CLAIMED, exclusive=True, mem_bytes=8 * GIB),
            memory("system", 16),
        ),
    )


def sensor(name, arches, lan=None, **policy):
    variants = []
    for arch in arches:
        for route, selector, prefix, attr in (
            ("native", "runtime.native", True, "arches_native"),
            ("container", "runtime.container", True, "arches_native"),
            ("emulated", "runtime.container", True, "arches_emulated"),
        ):
            requirements = [need(selector, (attr, "has", arch), prefix=prefix)]
            if route == "native":
                requirements.insert(0, need(f"cpu.arch.{arch}"))
            execution = Execution.EMULATED if route == "emulated" else Execution.NATIVE
            variants.append(Variant(name=f"{arch}-{route}", execution=execution, requirements=tuple(requirements)))
    common = (need("feed.esp32-csi-udp", ("lan_id", "eq", lan)),) if lan else ()
    return WorkloadSpec(
        kind="cog",
        name=name,
        requirements=WorkloadRequirements(
            common=common, variants=tuple(variants), memory=MemoryDemand(host_bytes=64 * 2**20)
        ),
        policy=PlacementPolicy(**policy),
    )


def fall_detect(budget=2000.0, latency_class=LatencyClass.INTERACTIVE, **policy):
    target = PerfTarget(
        id="perf.cog.cycle_ms", param="cog_id", param_value="fall-detect", better=Better.LOWER, budget=budget
    )
    return sensor("fall-detect", ("aarch64", "armv7"), "lan-a", latency_class=latency_class, perf=target, **policy)


def anomaly(**policy):
    return sensor("anomaly-detect", ("aarch64",), **policy)


WEIGHTS_PRESENT = need("model.present", ("shards", "has", "blake3-model-a"))


def gguf(accel_gib, preference_weight=25.0):
    return WorkloadSpec(
        kind="inference",
        name="llm",
        requirements=WorkloadRequirements(
            common=(need("runtime.infer.llamacpp"), need("format.gguf"), need("accel.gpu", prefix=True)),
            memory=MemoryDemand(host_bytes=GIB, accel_bytes=accel_gib * GIB),
        ),
        policy=PlacementPolicy(
            preferences=(Preference(name="weights-present", requirement=WEIGHTS_PRESENT, weight=preference_weight),)
        ),
    )


def coral_job():
    common = (need("accel.tpu.coral", exclusive=True), need("format.tflite"))
    return WorkloadSpec(kind="cog", name="coral-job", requirements=WorkloadRequirements(common=common))


def tsu_job():
    common = (need("accel.tsu", prefix=True, exclusive=True, min_provenance=Provenance.MEASURED),)
    return WorkloadSpec(kind="cog", name="tsu-job", requirements=WorkloadRequirements(common=common))


class Lab:
    """Everything above as one fixture, and the shortest way to a decision."""

    GIB = GIB
    PERMIT = UniformGate(verdict=GatePermit())
    cap, need, node, memory, native = map(staticmethod, (cap, need, node, memory, native))
    sensor, fall_detect, anomaly, gguf = map(staticmethod, (sensor, fall_detect, anomaly, gguf))
    coral_job, tsu_job = map(staticmethod, (coral_job, tsu_job))
    change = staticmethod(msgspec.structs.replace)

    @property
    def fleet(self):
        return all_nodes()

    def nodes(self, *ids):
        """Nodes of the fleet in the order asked for."""
        known = {facts.node_id: facts for facts in all_nodes()}
        return tuple(known[node_id] for node_id in ids)

    def pi5(self, **changes):
        return msgspec.structs.replace(self.nodes("pi5")[0], **changes)

    def with_caps(self, facts, *capabilities):
        return msgspec.structs.replace(facts, capabilities=facts.capabilities + capabilities)

    def policy(self, spec, **changes):
        return msgspec.structs.replace(spec, policy=msgspec.structs.replace(spec.policy, **changes))

    def request(self, spec, **fields):
        return PlacementRequest(spec=spec, **{"gate": self.PERMIT, **fields})

    def cluster(self, *instances, **fields):
        return ClusterState(**{"now_ms": 1000, "instances": instances, **fields})

    def resident(self, node_id="pi5", of=None, **fields):
        """An instance; `of` is (kind, name) of the workload it belongs to."""
        workload = None if of is None else WorkloadRef(kind=of[0], name=of[1])
        return InstanceRecord(node_id=node_id, workload=workload, **fields)

    def decide(self, spec, facts, cluster=None, **fields):
        return place(self.request(spec, **fields), facts, cluster or self.cluster())

    def report(self, decision, node_id):
        return next(report for report in decision.candidates if report.node_id == node_id)

    def constraints(self, decision, node_id):
        return [str(rejection.constraint) for rejection in self.report(decision, node_id).rejections]

    def eligible(self, decision):
        return [report.node_id for report in decision.candidates if report.eligible]

    def placed(self, decision):
        return decision.placement and decision.placement.node_id


@pytest.fixture(scope="session")
def lab():
    return Lab()
