from __future__ import annotations

import json
import resource
import shlex
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from runtime.cli.main import VERBS, VerbGroup

HEAVY = ("zmq", "pykka", "nacl", "loguru", "msgspec", "rich", "sqlite3")


def commands() -> Iterator[tuple[str, Any]]:
    """Every verb and every command of a group, with its path."""
    group = VerbGroup(name="sennit", rich_markup_mode=None)
    for verb in (verb for verbs in VERBS.values() for verb in verbs):
        command = group.get_command(None, verb)
        yield verb, command
        for name, inner in getattr(command, "commands", {}).items():
            yield f"{verb} {name}", inner


COMMANDS = dict(commands())


def test_help_is_quick_and_imports_nothing_that_runs_a_cluster() -> None:
    code = (
        "import json, sys; from runtime.cli.main import run; run(['--help']); "
        f"print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))"
    )
    best = 9.0
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        out = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30
        ).stdout
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        best = min(best, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert json.loads(out.splitlines()[-1]) == []
    assert best < 0.25


def test_sennit_alone_prints_help(sennit) -> None:
    ended = sennit()
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == sennit("--help").out
    for verb in (verb for verbs in VERBS.values() for verb in verbs):
        assert f"\n  {verb} " in ended.out


def test_a_group_alone_prints_its_help(sennit) -> None:
    ended = sennit("package")
    assert (ended.code, ended.err) == (0, "")
    assert "Commands:" in ended.out


@pytest.mark.parametrize("path", COMMANDS)
def test_every_command_has_help_with_an_example_and_takes_json(sennit, path: str) -> None:
    ended = sennit(*path.split(), "--help")
    assert ended.code == 0
    assert f"  sennit {path.split(maxsplit=1)[0]}" in ended.out
    if not hasattr(COMMANDS[path], "commands"):
        assert "--json" in ended.out


@pytest.mark.parametrize("path", COMMANDS)
def test_every_example_in_the_help_is_a_command_that_exists(path: str) -> None:
    examples = [line.strip() for line in (COMMANDS[path].help or "").splitlines() if "sennit " in line.split("Run")[0]]
    for example in [line for line in examples if line.startswith(("sennit ", "echo "))]:
        words = shlex.split(example.rpartition("| ")[2].partition(" < ")[0].partition(" > ")[0])[1:]
        name = " ".join(words[:2]) if " ".join(words[:2]) in COMMANDS else words[0]
        assert name in COMMANDS, example
        COMMANDS[name].make_context(name, words[len(name.split()) :])  # parses, runs nothing


def test_no_module_of_ours_imports_click() -> None:
    from pathlib import Path

    for file in (Path(__file__).parents[3] / "runtime").rglob("*.py"):
        assert "import click" not in file.read_text(), file


def test_version(sennit) -> None:
    assert sennit("--version").out.startswith("sennit ")


def test_typer_is_the_only_parser() -> None:
    assert issubclass(typer.BadParameter.__mro__[1], Exception)
    assert typer.BadParameter.__mro__[1].__name__ == "UsageError"
