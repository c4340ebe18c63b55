"""What runs here beside sennit: interpreter, libraries and what they were built with (design 12)."""

from __future__ import annotations

import re
import sqlite3
import sys
from collections.abc import Iterable, Mapping
from importlib import metadata

from runtime.doctor.finding import Finding, Subject, attention, ok

PYTHON = (3, 11)
LIBZMQ = (4, 3)
SQLITE = (3, 35)
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)\s*>=\s*([0-9.]+)\s*$")
_REINSTALL = "install sennit again in an environment of its own: python -m pip install --upgrade sennit"


def python(_: Subject) -> Iterable[Finding]:
    found = sys.version.split()[0]
    if sys.version_info >= PYTHON:
        yield ok("python", f"{found}, {sys.executable}")
    else:
        yield attention("python", f"{found} is too old", f"use Python {numbers(PYTHON)} or newer")


def packages(_: Subject) -> Iterable[Finding]:
    try:
        wanted = required(metadata.requires("sennit") or [])
    except metadata.PackageNotFoundError:
        yield attention("packages", "sennit itself is not installed in this environment", _REINSTALL)
        return
    yield from judge_packages(wanted, {name: _installed(name) for name in wanted})


def zmq_features(_: Subject) -> Iterable[Finding]:
    import zmq

    yield judge_zmq(zmq.zmq_version_info()[:2], {name: bool(zmq.has(name)) for name in ("curve", "ipc")})


def sqlite(_: Subject) -> Iterable[Finding]:
    yield judge_sqlite(sqlite3.sqlite_version_info[:2])


def required(requirements: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """Name and least version of what is always needed; extras have a marker and are left out."""
    found = (_REQUIREMENT.fullmatch(one) for one in requirements if ";" not in one)
    return {match[1]: version(match[2]) for match in found if match is not None}


def version(text: str) -> tuple[int, ...]:
    """The leading numbers of a version: `4.4.1rc1` is (4, 4, 1)."""
    match = re.match(r"\d+(\.\d+)*", text)
    return tuple(map(int, match[0].split("."))) if match else ()


def numbers(parts: Iterable[int]) -> str:
    return ".".join(map(str, parts))


def judge_packages(wanted: Mapping[str, tuple[int, ...]], found: Mapping[str, str | None]) -> Iterable[Finding]:
    for name, least in wanted.items():
        have = found[name]
        if have is None:
            yield attention(name, "is not installed", _REINSTALL)
        elif version(have) < least:
            yield attention(name, f"{have} is older than {numbers(least)}", _REINSTALL)
        else:
            yield ok(name, have)


def judge_zmq(found: tuple[int, ...], has: Mapping[str, bool]) -> Finding:
    missing = [name for name, there in has.items() if not there]
    if found >= LIBZMQ and not missing:
        return ok("libzmq", f"{numbers(found)} with {', '.join(has)}")
    what = f"has no {' and no '.join(missing)}" if missing else f"is older than {numbers(LIBZMQ)}"
    return attention(
        "libzmq",
        f"{numbers(found)} {what}: no process could speak to another",
        "install the binary wheel: python -m pip install --force-reinstall --only-binary :all: pyzmq",
    )


def judge_sqlite(found: tuple[int, ...]) -> Finding:
    if found >= SQLITE:
        return ok("sqlite", numbers(found))
    return attention("sqlite", f"{numbers(found)} is older than {numbers(SQLITE)}", "use a Python with a newer SQLite")


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


__all__ = [
    "judge_packages", "judge_sqlite", "judge_zmq", "packages", "python", "required", "sqlite", "version",
    "zmq_features",
]  # fmt: skip
