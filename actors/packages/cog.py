"""The subset of `cog.toml` that this project reads (G 5.5).

    [cog]         id, version, hardware_requirement = ["feed.csi"]
    [resources]   ram_mb, cpu_pct
    [console]     max_runtime_secs, output_limit_bytes, allowed_commands
    [config.*]    cli_arg = "--name", type = "boolean" (a flag) or anything else (takes a value)
    [simulation]  behaviour: what stands for the program in the simulated world
    [package]     repo, commit, release_url, binaries = { noarch = "script.py" }: read by `package pack` only

Members of `[cog]`, `[config.*]` and tables not named here belong to others and are left alone; a member of the other
four that is not known is refused, since a mistyped limit would silently be the default.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from actors.packages.fault import cog_invalid, input_invalid
from actors.packages.text import has_control, is_cog_id, is_token
from actors.toml import TomlFault, load_toml
from messages.packages import COG_TOML_LIMIT_BYTES, Arch, CogArgument, CogLimits, PackageOrigin

_CLI_ARGUMENT = re.compile(r"--[a-z0-9-]+", re.ASCII)
_HARDWARE = re.compile(r"[a-z0-9][a-z0-9_-]*(\.[a-z0-9][a-z0-9_-]*){0,7}", re.ASCII)
_VALUE = re.compile(r"[A-Za-z0-9._:\-+/]{1,128}", re.ASCII)
_NUMBER = re.compile(r"-[0-9]+(\.[0-9]+)?", re.ASCII)
_MODE_ARGUMENTS = ("--once", "--interval")

_BOUNDS = {
    "console.max_runtime_secs": (1, 3600),
    "console.output_limit_bytes": (1, 16 * 1024 * 1024),
    "resources.ram_mb": (1, 65_536),
    "resources.cpu_pct": (1, 400),
}


@dataclass(frozen=True, slots=True)
class Packing:
    """How `package pack` makes a package out of the folder: where it came from, payload files by architecture."""

    origin: PackageOrigin | None
    binaries: dict[Arch, str]


@dataclass(frozen=True, slots=True)
class Cog:
    id: str
    version: str
    limits: CogLimits
    packing: Packing


def parse_cog(data: bytes) -> Cog:
    """The subset out of the bytes of `cog.toml` (at most 256 KiB). Raises `PackageFault` (`cog-invalid`)."""
    if len(data) > COG_TOML_LIMIT_BYTES:
        raise cog_invalid(f"larger than {COG_TOML_LIMIT_BYTES} bytes")
    try:
        document = load_toml(data.decode())
    except UnicodeDecodeError as error:
        raise cog_invalid(f"not UTF-8 at byte {error.start}") from None
    except TomlFault as fault:
        raise cog_invalid(str(fault)[:200]) from None
    cog = _table(document, "cog", None)
    resources = _table(document, "resources", ("ram_mb", "cpu_pct"))
    console = _table(document, "console", ("max_runtime_secs", "output_limit_bytes", "allowed_commands"))
    simulation = _table(document, "simulation", ("behaviour",))
    default = CogLimits()
    limits = CogLimits(
        max_runtime_secs=_bounded(console, "console.max_runtime_secs", default.max_runtime_secs),
        output_limit_bytes=_bounded(console, "console.output_limit_bytes", default.output_limit_bytes),
        ram_mb=_bounded(resources, "resources.ram_mb", default.ram_mb),
        cpu_pct=_bounded(resources, "resources.cpu_pct", default.cpu_pct),
        allowed_commands=_commands(console),
        arguments=_arguments(_table(document, "config", None)),
        hardware=_hardware(cog),
        behaviour=_optional_text(simulation, "simulation.behaviour"),
    )
    return Cog(_id(cog), _version(cog), limits, _packing(document))


def check_arguments(limits: CogLimits, arguments: Sequence[str]) -> None:
    """Place-time arguments (G 5.5): known flags, and known options each followed by its value.

    Raises `PackageFault` (`input-invalid`) naming the first one that is not allowed.
    """
    if len(arguments) > 32:
        raise input_invalid(f"{len(arguments)} arguments, at most 32 are allowed")
    known = {argument.name: argument.takes_value for argument in limits.arguments}
    rest = iter(arguments)
    for name in rest:
        if name in _MODE_ARGUMENTS:
            raise input_invalid(f"argument {name} is set by the run mode; ask for that mode instead")
        if name not in known:
            listed = ", ".join(sorted(known)) or "none"
            raise input_invalid(f"unknown argument {name[:64]!r}; cog.toml declares: {listed}")
        if not known[name]:
            continue
        value = next(rest, None)
        if value is None:
            raise input_invalid(f"argument {name} needs a value after it")
        if _VALUE.fullmatch(value) is None or (value.startswith("-") and _NUMBER.fullmatch(value) is None):
            raise input_invalid(
                f"value {value[:64]!r} of {name} is not 1 to 128 of letters, digits and ._:-+/ "
                "(a leading - only before a number)"
            )


def _table(document: dict[str, Any], name: str, members: Sequence[str] | None) -> dict[str, Any]:
    table = document.get(name, {})
    if not isinstance(table, dict):
        raise cog_invalid(f"{name} is not a table")
    for member in table:
        if members is not None and member not in members:
            raise cog_invalid(f"{name}.{member[:64]} is not known; known are {', '.join(members)}")
    return table


def _id(cog: dict[str, Any]) -> str:
    text = cog.get("id")
    if not isinstance(text, str) or not is_cog_id(text):
        raise cog_invalid("cog.id must be lower-case words joined by single hyphens, at most 64")
    return text


def _version(cog: dict[str, Any]) -> str:
    text = cog.get("version")
    if not isinstance(text, str) or not is_token(text, 64):
        raise cog_invalid("cog.version must be a token of at most 64 bytes, in quotes")
    return text


def _bounded(table: dict[str, Any], path: str, default: int) -> int:
    value = table.get(path.rpartition(".")[2], default)
    low, high = _BOUNDS[path]
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise cog_invalid(f"{path} must be an integer within {low}..{high}")
    return value


def _texts(table: dict[str, Any], path: str, limit: int) -> list[str]:
    value = table.get(path.rpartition(".")[2], [])
    if not isinstance(value, list) or len(value) > limit or not all(isinstance(text, str) for text in value):
        raise cog_invalid(f"{path} must be a list of at most {limit} texts")
    return value


def _optional_text(table: dict[str, Any], path: str) -> str | None:
    value = table.get(path.rpartition(".")[2])
    if value is not None and (not isinstance(value, str) or not is_token(value, 64)):
        raise cog_invalid(f"{path} must be a token of at most 64 bytes")
    return value


def _commands(console: dict[str, Any]) -> tuple[str, ...]:
    commands = _texts(console, "console.allowed_commands", 64)
    for command in commands:
        parts = command.split(" ")
        if has_control(command) or len(parts) > 32 or any(not 1 <= len(part.encode()) <= 128 for part in parts):
            raise cog_invalid(
                f"console.allowed_commands: {command[:64]!r} is not 1 to 32 parts of 1 to 128 bytes "
                "separated by one space, without control characters"
            )
    return tuple(commands)


def _arguments(config: dict[str, Any]) -> tuple[CogArgument, ...]:
    arguments: dict[str, CogArgument] = {}
    for name, entry in config.items():
        path = f"config.{name[:64]}"
        if not isinstance(entry, dict):
            raise cog_invalid(f"{path} is not a table")
        argument = entry.get("cli_arg")
        if argument is None:
            continue
        if not isinstance(argument, str) or len(argument) > 64 or _CLI_ARGUMENT.fullmatch(argument) is None:
            raise cog_invalid(f"{path}.cli_arg must be -- and lower-case letters, digits, hyphens, at most 64")
        if argument in arguments:
            raise cog_invalid(f"{path}.cli_arg: {argument} is declared twice")
        arguments[argument] = CogArgument(name=argument, takes_value=entry.get("type") != "boolean")
    return tuple(arguments.values())


def _hardware(cog: dict[str, Any]) -> tuple[str, ...]:
    """Capability ids; a plain word that is none becomes `x.hw.<word>`, which no node has unless it says so."""
    names = _texts(cog, "cog.hardware_requirement", 16)
    for name in names:
        if len(name) > 120 or _HARDWARE.fullmatch(name) is None:
            raise cog_invalid(f"cog.hardware_requirement: {name[:64]!r} is not a capability id such as feed.csi")
    return tuple(name if "." in name else f"x.hw.{name}" for name in names)


def _packing(document: dict[str, Any]) -> Packing:
    package = _table(document, "package", ("repo", "commit", "release_url", "binaries"))
    binaries = package.get("binaries", {})
    if not isinstance(binaries, dict):
        raise cog_invalid("package.binaries is not a table of architecture to file")
    payloads: dict[Arch, str] = {}
    for name, path in binaries.items():
        if name not in Arch.__members__.values() or not isinstance(path, str):
            raise cog_invalid(f"package.binaries.{name[:32]}: known architectures are {', '.join(Arch)}")
        payloads[Arch(name)] = path
    texts: dict[str, str] = {}
    for name in ("repo", "commit", "release_url"):
        if name in package:
            if not isinstance(package[name], str):
                raise cog_invalid(f"package.{name} must be text")
            texts[name] = package[name]
    return Packing(PackageOrigin(**texts) if texts else None, payloads)
