"""Replay of placement decisions: `sennit replay machine placement-engine` (G 1, design 11).

A line is one JSON object: `request`, `facts` (a list) and `cluster`, in the JSON names of `messages.engine`. It is
answered by `decision` and `explain`, or by `error` and `constraints` when there is nothing to decide. A recorded line
holds its answer beside its question. Blank lines are skipped. Lines come from outside, so they are read strictly:
unknown, missing and doubled members, wrong types, NaN and numbers out of range are refused, naming the line.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

import msgspec

from actors.placement.engine import PlacementError, explain, place
from messages.base import Record
from messages.engine import ClusterState, PlacementFacts, PlacementRequest
from runtime.replay_result import ReplayResult

ANSWER_MEMBERS = ("decision", "explain", "error", "constraints")


class Question(Record, frozen=True, kw_only=True):
    """One decision to be made."""

    request: PlacementRequest
    facts: tuple[PlacementFacts, ...]
    cluster: ClusterState


def replay(lines: Iterable[str]) -> Iterator[str]:
    """The answer to each question, one line each, without its line end; a recorded answer is ignored.

    Raises `ValueError` for a line that is no question.
    """
    for _, question, _ in _questions(lines):
        yield msgspec.json.encode(_answer(question)).decode()


def check(lines: Iterable[str]) -> ReplayResult:
    """Compare recorded answers with computed ones. Stops at the first difference.

    Raises `ValueError` for a line without question or answer, and if there is no line at all: a comparison of nothing
    is not a success.
    """
    matched = 0
    for number, question, recorded in _questions(lines):
        if "decision" not in recorded and "error" not in recorded:
            raise ValueError(
                f"line {number} has no answer to check: it needs `decision` or `error` beside its question"
            )
        computed = json.loads(msgspec.json.encode(_answer(question)))
        if (difference := _difference(recorded, computed, "answer")) is not None:
            return ReplayResult(
                traces=matched, matched=matched, steps=matched + 1, difference=f"line {number}, {difference}"
            )
        matched += 1
    if not matched:
        raise ValueError("there is nothing to check: give one question with its recorded answer a line")
    return ReplayResult(traces=matched, matched=matched, steps=matched)


def _answer(question: Question) -> dict[str, object]:
    try:
        decision = place(question.request, question.facts, question.cluster)
    except PlacementError as error:
        return {"error": str(error), "constraints": error.constraints()}
    return {"decision": decision, "explain": explain(decision)}


def _questions(lines: Iterable[str]) -> Iterator[tuple[int, Question, dict[str, Any]]]:
    """Number of the line (from 1), question and recorded answer, which may be empty."""
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line, object_pairs_hook=_without_doubles, parse_constant=_not_finite)
            if not isinstance(value, dict):
                raise ValueError("it is not a JSON object")
            recorded = {name: value.pop(name) for name in ANSWER_MEMBERS if name in value}
            question = msgspec.convert(value, Question)
            question.cluster.check()
            for facts in question.facts:
                facts.check()
        except RecursionError:
            raise ValueError(f"line {number}: nested too deeply for a placement question") from None
        except ValueError as error:  # of JSON, of msgspec and of the checks alike
            raise ValueError(f"line {number} is not a placement question: {error}") from error
        yield number, question, recorded


def _without_doubles(members: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(members)
    if len(value) != len(members):
        names = [name for name, _ in members]
        raise ValueError(
            f"member {next(name for name in names if names.count(name) > 1)!r} appears twice in one object"
        )
    return value


def _not_finite(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number of JSON")


def _difference(expected: Any, got: Any, path: str) -> str | None:
    """The first place in which `got` differs from `expected`, or None. `2` and `2.0` are one number, `true` is none."""
    if isinstance(expected, dict) and isinstance(got, dict):
        for name in [*expected, *(name for name in got if name not in expected)]:
            if name not in got:
                return f"{path}.{name}: expected {_short(expected[name])}, got none"
            if name not in expected:
                return f"{path}.{name}: expected none, got {_short(got[name])}"
            if (found := _difference(expected[name], got[name], f"{path}.{name}")) is not None:
                return found
        return None
    if isinstance(expected, list) and isinstance(got, list) and len(expected) == len(got):
        pairs = enumerate(zip(expected, got, strict=True))
        return next((found for i, (e, g) in pairs if (found := _difference(e, g, f"{path}[{i}]")) is not None), None)
    if isinstance(expected, bool) is isinstance(got, bool) and expected == got:
        return None
    return f"{path}: expected {_short(expected)}, got {_short(got)}"


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 200 else text[:200] + "..."


__all__ = ["ANSWER_MEMBERS", "Question", "check", "replay"]
