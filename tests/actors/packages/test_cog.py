"""`cog.toml`: bounds, defaults, and arguments at place time (G 5.5)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.packages.cog import check_arguments, parse_cog
from actors.packages.fault import PackageFault
from actors.packages.manifest import parse_manifest, verify_signatures
from actors.packages.workload import verified_workload
from messages.packages import COG_TOML_LIMIT_BYTES, Arch, CogArgument, CogLimits, PackageErrorCode, PackageOrigin

HEAD = '[cog]\nid = "air"\nversion = "1.2.0"\n'


def cog_fault(text: str | bytes) -> PackageFault:
    with pytest.raises(PackageFault) as caught:
        parse_cog(text.encode() if isinstance(text, str) else text)
    assert caught.value.code is PackageErrorCode.COG_INVALID
    assert caught.value.text.startswith("cog.toml invalid: ")
    return caught.value


def test_defaults() -> None:
    cog = parse_cog(HEAD.encode())
    assert (cog.id, cog.version) == ("air", "1.2.0")
    assert cog.limits == CogLimits(max_runtime_secs=15, output_limit_bytes=65_536, ram_mb=256, cpu_pct=100)
    assert cog.packing.origin is None
    assert cog.packing.binaries == {}


def test_everything_that_is_read() -> None:
    text = """
        [cog]
        id = "air"
        version = "1.2.0"
        hardware_requirement = ["feed.csi", "lidar"]
        [resources]
        ram_mb = 64
        cpu_pct = 400
        [console]
        max_runtime_secs = 3600
        output_limit_bytes = 16777216
        allowed_commands = ["status", "set level 3"]
        [config.verbose]
        cli_arg = "--verbose"
        type = "boolean"
        [config.level]
        cli_arg = "--level"
        type = "integer"
        [config.other]
        label = "no argument of the command line"
        [simulation]
        behaviour = "air"
        [package]
        commit = "0123abc"
        binaries = { noarch = "air.py", x86_64 = "build/air" }
        [vendor]
        anything = true
    """
    cog = parse_cog(text.encode())
    assert cog.limits == CogLimits(
        max_runtime_secs=3600,
        output_limit_bytes=16 * 1024 * 1024,
        ram_mb=64,
        cpu_pct=400,
        allowed_commands=("status", "set level 3"),
        arguments=(CogArgument(name="--verbose"), CogArgument(name="--level", takes_value=True)),
        hardware=("feed.csi", "x.hw.lidar"),
        behaviour="air",
    )
    assert cog.packing.origin == PackageOrigin(commit="0123abc")
    assert cog.packing.binaries == {Arch.NOARCH: "air.py", Arch.X86_64: "build/air"}


@pytest.mark.parametrize(
    ("table", "member", "low", "high"),
    [
        ("console", "max_runtime_secs", 1, 3600),
        ("console", "output_limit_bytes", 1, 16 * 1024 * 1024),
        ("resources", "ram_mb", 1, 65_536),
        ("resources", "cpu_pct", 1, 400),
    ],
)
def test_limits_hold_their_bounds(table: str, member: str, low: int, high: int) -> None:
    for good in (low, high):
        cog = parse_cog(f"{HEAD}[{table}]\n{member} = {good}\n".encode())
        assert getattr(cog.limits, member) == good
    for bad in (low - 1, high + 1, "true", "1.0", '"1"'):
        assert (
            f"{table}.{member} must be an integer within {low}..{high}"
            in cog_fault(f"{HEAD}[{table}]\n{member} = {bad}\n").text
        )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "cog.id"),
        ('cog = "x"', "cog is not a table"),
        ('[cog]\nid = "Air"\nversion = "1"', "cog.id"),
        ('[cog]\nid = "air"', "cog.version"),
        ('[cog]\nid = "air"\nversion = 1.2', "cog.version must be a token of at most 64 bytes, in quotes"),
        (HEAD + "[resources]\nram_md = 3", "resources.ram_md is not known; known are ram_mb, cpu_pct"),
        (HEAD + "[resources]\nram_mb =\n", "at line 5"),
        (HEAD + "[cog]\n", "at line 4"),
        (HEAD + f"[resources]\nram_mb = {'9' * 5000}", "beyond 64 bits"),
        (HEAD + "[console]\nallowed_commands = [3]", "console.allowed_commands"),
        (HEAD + '[console]\nallowed_commands = ["a  b"]', "1 to 32 parts"),
        (HEAD + '[console]\nallowed_commands = ["a\\tb"]', "1 to 32 parts"),
        (HEAD + f'[console]\nallowed_commands = ["{"a " * 32}a"]', "1 to 32 parts"),
        (HEAD + f'[console]\nallowed_commands = ["{"a" * 129}"]', "1 to 32 parts"),
        (HEAD + "[config]\nx = 1", "config.x is not a table"),
        (HEAD + '[config.x]\ncli_arg = "-x"', "config.x.cli_arg"),
        (HEAD + '[config.x]\ncli_arg = "--X"', "config.x.cli_arg"),
        (HEAD + f'[config.x]\ncli_arg = "--{"x" * 63}"', "config.x.cli_arg"),
        (HEAD + '[config.x]\ncli_arg = "--a"\n[config.y]\ncli_arg = "--a"', "--a is declared twice"),
        (HEAD + 'hardware_requirement = "feed.csi"', "cog.hardware_requirement"),
        (HEAD + 'hardware_requirement = ["Feed.CSI"]', "not a capability id"),
        (HEAD + '[simulation]\nbehaviour = "a b"', "simulation.behaviour"),
        (HEAD + '[package]\nbinaries = { mips = "x" }', "known architectures"),
        (HEAD + '[package]\nbinaries = "x"', "not a table"),
        (HEAD + "[package]\ncommit = 1234567", "package.commit must be text"),
        (b"\xff", "not UTF-8 at byte 0"),
        ("x = " + "[" * 5000, "nested deeper than 32 levels"),
        (b"#" * (COG_TOML_LIMIT_BYTES + 1), "larger than"),
    ],
    ids=range(28),
)
def test_what_is_malformed_is_named(text: str | bytes, why: str) -> None:
    fault = cog_fault(text)
    assert why in fault.text
    assert len(fault.text) < 300


@settings(max_examples=100)
@given(st.text(alphabet='[]{}="\n.,# \\abcdefgio_123t', max_size=60))
def test_any_text_is_a_cog_or_a_named_fault(text: str) -> None:
    try:
        cog = parse_cog((HEAD + text).encode())
    except PackageFault as fault:
        if fault.code is not PackageErrorCode.COG_INVALID:
            raise
    else:
        assert cog.id == "air"


LIMITS = CogLimits(
    arguments=(
        CogArgument(name="--verbose"),
        CogArgument(name="--level", takes_value=True),
        CogArgument(name="--once", takes_value=False),
    )
)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--verbose"],
        ["--level", "3"],
        ["--level", "-3"],
        ["--level", "-0.5"],
        ["--level", "a/b:c+d.e_f-g", "--verbose"],
        ["--level", "v" * 128],
        ["--verbose"] * 32,
    ],
    ids=range(8),
)
def test_declared_arguments_are_allowed(arguments: list[str]) -> None:
    check_arguments(LIMITS, arguments)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--once"], "set by the run mode"),
        (["--interval", "3"], "set by the run mode"),
        (["--quiet"], "cog.toml declares: --level, --once, --verbose"),
        (["stray"], "unknown argument 'stray'"),
        (["--level"], "needs a value"),
        (["--level", ""], "1 to 128"),
        (["--level", "v" * 129], "1 to 128"),
        (["--level", "--verbose"], "only before a number"),
        (["--level", "-x"], "only before a number"),
        (["--level", "a b"], "1 to 128"),
        (["--level", "$(reboot)"], "1 to 128"),
        (["--level", "1\n"], "1 to 128"),
        (["--level", "٣"], "1 to 128"),
        (["--verbose"] * 33, "at most 32"),
    ],
    ids=range(14),
)
def test_other_arguments_are_refused(arguments: list[str], why: str) -> None:
    with pytest.raises(PackageFault) as caught:
        check_arguments(LIMITS, arguments)
    assert caught.value.code is PackageErrorCode.INPUT_INVALID
    assert why in caught.value.text


def test_a_workload_is_what_its_manifest_and_its_cog_toml_agree_on(package: Any) -> None:
    manifest = parse_manifest(package.manifest)
    signers = verify_signatures(manifest, package.anchors)
    workload = verified_workload(manifest, signers, package.files["cog.toml"])
    assert (workload.kind, workload.id, workload.version) == ("cog", "air", "1.2.0")
    assert workload.signer_keys == tuple(package.anchors.by_key)
    assert workload.artifact_hashes == tuple(sorted(file.sha256 for file in manifest.body.files()))
    with pytest.raises(PackageFault) as caught:
        verified_workload(manifest, signers, package.files["cog.toml"].replace(b"1.2.0", b"1.2.1"))
    assert caught.value.code is PackageErrorCode.FILE_TAMPERED


def test_a_cog_toml_of_another_workload_is_refused(make_package: Any) -> None:
    package = make_package(cog_toml=b'[cog]\nid = "water"\nversion = "1.2.0"\n')
    manifest = parse_manifest(package.manifest)
    with pytest.raises(PackageFault, match=r"it is water 1\.2\.0, its manifest is air 1\.2\.0"):
        verified_workload(manifest, verify_signatures(manifest, package.anchors), package.files["cog.toml"])
