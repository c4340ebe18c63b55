"""`sennit replay machine`: recorded traces through a pure machine (design 7, 8, 11)."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from actors.edges.semantics import Semantics
from runtime.cli.options import JsonOption, verbs
from runtime.cli.output import ExitCode, Failed, print_document

if TYPE_CHECKING:
    from runtime.replay_result import ReplayResult

app = verbs()


class Machine(StrEnum):
    """Machines whose traces can be replayed."""

    EDGE_ESTABLISHER = "edge-establisher"
    PLACEMENT_ENGINE = "placement-engine"


@app.callback()
def replay() -> None:
    """Replay recorded traces through a machine.

    \b
    Examples:
      sennit replay machine edge-establisher --check tests/golden/edge-traces.jsonl
      sennit replay machine edge-establisher < events.jsonl > traces.jsonl
    """


@app.command()
def machine(
    machine: Annotated[Machine, typer.Argument(metavar="MACHINE", help="edge-establisher or placement-engine.")],
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="Lines of JSON; - or none is standard input.")
    ] = None,
    check: Annotated[
        bool,
        typer.Option("--check", help="Compare recorded outcomes with computed ones; exit 1 at the first difference."),
    ] = False,
    semantics: Annotated[
        Semantics,
        typer.Option(
            "--semantics",
            metavar="NAME",
            help="Rules of the edge establisher: seed (as recorded) or strict (as nodes run it).",
        ),
    ] = Semantics.SEED,
    as_json: JsonOption = False,
) -> ExitCode:
    """Complete recorded inputs with the outcomes of a machine, or check recorded outcomes.

    Without --check every line in gives one line out, and with --json all of them are one list.

    \b
    Examples:
      sennit replay machine edge-establisher --check tests/golden/edge-traces.jsonl
      sennit replay machine edge-establisher --semantics strict events.jsonl
      sennit replay machine placement-engine requests.jsonl
    """
    checker, completer = _functions(machine, semantics)
    with _lines(file) as lines:
        try:
            if not check:
                if as_json:
                    print_document([json.loads(line) for line in completer(lines)])
                    return ExitCode.DONE
                for line in completer(lines):
                    print(line)
                return ExitCode.DONE
            result = checker(lines)
        except ValueError as error:
            name = str(file) if file is not None else "standard input"
            raise Failed(ExitCode.USAGE, "not_a_trace", f"{name}: {error}", "see docs/formats.md, traces") from None
    return _report(result, as_json)


def _report(result: ReplayResult, as_json: bool) -> ExitCode:
    if as_json:
        print_document(asdict(result))
    elif result.difference is None:
        print(f"{result.traces} traces and {result.matched} steps match")
    else:
        print(f"{result.traces} traces and {result.matched} steps match, then: {result.difference}")
    return ExitCode.DONE if result.difference is None else ExitCode.DIFFERS


def _functions(
    machine: Machine, semantics: Semantics
) -> tuple[Callable[[Iterable[str]], ReplayResult], Callable[[Iterable[str]], Iterator[str]]]:
    """Check and replay of a machine under these semantics."""
    match machine:
        case Machine.EDGE_ESTABLISHER:
            from runtime import replay_edge

            return partial(replay_edge.check, semantics=semantics), partial(replay_edge.replay, semantics=semantics)
        case Machine.PLACEMENT_ENGINE if semantics is not Semantics.SEED:
            text = f"the placement engine has no {semantics} semantics"
            raise Failed(ExitCode.USAGE, "no_such_semantics", text, "leave --semantics out")
        case Machine.PLACEMENT_ENGINE:
            from runtime import replay_engine

            return replay_engine.check, replay_engine.replay


@contextmanager
def _lines(file: Path | None) -> Iterator[Iterable[str]]:
    if file is None or str(file) == "-":
        yield sys.stdin
        return
    try:
        opened = file.open(encoding="utf-8")
    except OSError as error:
        raise Failed(ExitCode.USAGE, "unreadable", f"{file} cannot be read: {error.strerror}") from None
    with opened as lines:
        yield lines
