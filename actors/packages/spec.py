"""What a verified cog asks of a node (G 4.7, design 9).

Each real architecture gives three variants: native, in a container, emulated in a container; `noarch` gives one, run
by the node's Python. The text after the last `-` of a variant's name is the adapter's route. Hardware that `cog.toml`
requires is common to all variants; processor headroom and the sensor's LAN are not derived.
"""

from __future__ import annotations

from messages.capabilities import CapabilityId, MemoryDemand, Predicate, PredicateOp, Requirement
from messages.packages import Arch, VerifiedWorkload
from messages.workload_spec import Execution, PlacementPolicy, TrustTier, Variant, WorkloadRequirements, WorkloadSpec

_FIRST = (Arch.AARCH64, Arch.ARMV7, Arch.X86_64)
_MIB = 1024 * 1024


def workload_spec(workload: VerifiedWorkload) -> WorkloadSpec:
    """The specification that the engine places; it passes its own `check`."""
    others = sorted(arch for arch in workload.binaries if arch not in _FIRST)
    variants = tuple(
        variant
        for arch in (*_FIRST, *others)
        if arch in workload.binaries
        for variant in (_noarch() if arch is Arch.NOARCH else _routes(arch))
    )
    assert variants, "a manifest without payload is never verified"
    spec = WorkloadSpec(
        kind=workload.kind,
        name=workload.id,
        requirements=WorkloadRequirements(
            common=tuple(Requirement(id=CapabilityId(name)) for name in workload.limits.hardware),
            variants=variants,
            memory=MemoryDemand(host_bytes=workload.limits.ram_mb * _MIB),
        ),
        policy=PlacementPolicy(min_trust=TrustTier.PAIRED, revocable_refs=workload.revocable_refs()),
    )
    spec.check()
    return spec


def variant_arch(variant: str) -> Arch | None:
    """The architecture whose payload the variant runs; None for a name that `workload_spec` does not make."""
    name = variant.rpartition("-")[0]
    return Arch(name) if name in Arch.__members__.values() else None


def variant_route(variant: str) -> str:
    """The adapter: the text after the last `-`."""
    return variant.rpartition("-")[2]


def _routes(arch: Arch) -> tuple[Variant, ...]:
    native = (
        Requirement(id=CapabilityId(f"cpu.arch.{arch.value}")),
        Requirement(id=CapabilityId("os.linux")),
        _runtime("runtime.native", "arches_native", arch),
    )
    contained = (_runtime("runtime.container", "arches_native", arch),)
    emulated = (_runtime("runtime.container", "arches_emulated", arch),)
    return (
        Variant(name=f"{arch.value}-native", requirements=native),
        Variant(name=f"{arch.value}-container", requirements=contained),
        Variant(name=f"{arch.value}-emulated", execution=Execution.EMULATED, requirements=emulated),
    )


def _noarch() -> tuple[Variant, ...]:
    needs = (
        Requirement(id=CapabilityId("os.linux")),
        Requirement(id_prefix="runtime.native"),
        Requirement(id_prefix="runtime.python"),
    )
    return (Variant(name="noarch-native", requirements=needs),)


def _runtime(prefix: str, attribute: str, arch: Arch) -> Requirement:
    runs = Predicate(attr=attribute, op=PredicateOp.HAS, value=arch.value)
    return Requirement(id_prefix=prefix, where=(runs,))
