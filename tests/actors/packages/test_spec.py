"""What a cog asks of a node (G 4.7, design 9)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from actors.packages.manifest import ATTESTATION_LIMIT, SIGNATURE_LIMIT, parse_manifest, verify_signatures
from actors.packages.spec import variant_arch, variant_route, workload_spec
from actors.packages.workload import verified_workload
from messages.packages import Arch, CogLimits, FileRef, VerifiedWorkload
from messages.workload_spec import Execution, TrustTier, Variant


def workload(package: Any) -> VerifiedWorkload:
    manifest = parse_manifest(package.manifest)
    return verified_workload(manifest, verify_signatures(manifest, package.anchors), package.files["cog.toml"])


def needs(variant: Variant) -> list[tuple[str, tuple[tuple[str, str, object], ...]]]:
    return [
        (
            ("" if requirement.id else "under ") + requirement.selector,
            tuple((predicate.attr, predicate.op.value, predicate.value) for predicate in requirement.where),
        )
        for requirement in variant.requirements
    ]


def test_each_architecture_gives_three_routes_in_order(make_package: Any) -> None:
    spec = workload_spec(workload(make_package({Arch.X86_64: b"x", Arch.AARCH64: b"a"})))
    variants = spec.requirements.variants
    assert [variant.name for variant in variants] == [
        "aarch64-native",
        "aarch64-container",
        "aarch64-emulated",
        "x86_64-native",
        "x86_64-container",
        "x86_64-emulated",
    ]
    assert [variant.execution for variant in variants[:3]] == [
        Execution.NATIVE,
        Execution.NATIVE,
        Execution.EMULATED,
    ]
    assert needs(variants[0]) == [
        ("cpu.arch.aarch64", ()),
        ("os.linux", ()),
        ("under runtime.native", (("arches_native", "has", "aarch64"),)),
    ]
    assert needs(variants[1]) == [("under runtime.container", (("arches_native", "has", "aarch64"),))]
    assert needs(variants[2]) == [("under runtime.container", (("arches_emulated", "has", "aarch64"),))]


def test_a_script_has_one_route_and_needs_python(make_package: Any) -> None:
    spec = workload_spec(workload(make_package({Arch.NOARCH: b"print()"})))
    (variant,) = spec.requirements.variants
    assert (variant.name, variant.execution) == ("noarch-native", Execution.NATIVE)
    assert needs(variant) == [("os.linux", ()), ("under runtime.native", ()), ("under runtime.python", ())]


def test_other_payloads_come_last_by_name(make_package: Any) -> None:
    spec = workload_spec(workload(make_package({Arch.WASM: b"w", Arch.NOARCH: b"n", Arch.ARMV7: b"a"})))
    names = [variant.name for variant in spec.requirements.variants]
    assert names[0] == "armv7-native"
    assert names[3:] == ["noarch-native", "wasm-native", "wasm-container", "wasm-emulated"]


def test_memory_trust_and_references(make_package: Any) -> None:
    toml = b'[cog]\nid = "air"\nversion = "1.2.0"\nhardware_requirement = ["feed.csi"]\n[resources]\nram_mb = 64\n'
    verified = workload(make_package({Arch.NOARCH: b"n"}, cog_toml=toml))
    spec = workload_spec(verified)
    assert (spec.kind, spec.name) == ("cog", "air")
    assert spec.requirements.memory.host_bytes == 64 * 1024 * 1024
    assert [requirement.selector for requirement in spec.requirements.common] == ["feed.csi"]
    assert spec.policy.min_trust is TrustTier.PAIRED
    assert spec.policy.revocable_refs == (verified.package_id, *verified.signer_keys, *verified.artifact_hashes)


def test_the_largest_package_is_still_a_valid_specification() -> None:
    binaries = {arch: FileRef(path=arch.value, size=1, sha256="f" * 64) for arch in Arch}
    largest = VerifiedWorkload(
        kind="cog",
        id="a" * 64,
        version="1",
        package_id="0" * 64,
        manifest_hash="1" * 64,
        signer_keys=tuple(f"{number:064x}" for number in range(SIGNATURE_LIMIT)),
        limits=CogLimits(hardware=tuple(f"device.n{number}" for number in range(16)), ram_mb=65_536),
        binaries=binaries,
        artifact_hashes=tuple(f"{number:064x}" for number in range(1 + len(Arch) + ATTESTATION_LIMIT)),
    )
    spec = workload_spec(largest)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(spec), type=type(spec)) == spec


@pytest.mark.parametrize(
    ("variant", "arch", "route"),
    [
        ("x86_64-native", Arch.X86_64, "native"),
        ("noarch-native", Arch.NOARCH, "native"),
        ("aarch64-emulated", Arch.AARCH64, "emulated"),
        ("mips-native", None, "native"),
        ("default", None, "default"),
    ],
)
def test_a_variant_names_its_payload_and_its_route(variant: str, arch: Arch | None, route: str) -> None:
    assert variant_arch(variant) is arch
    assert variant_route(variant) == route
