"""Replay of edge traces through `EdgeEstablisher`: `sennit replay machine edge-establisher --semantics seed|strict`.

A trace is one line of JSON: `local_node_id` and `steps`. A step has the `event` observed, the `commands` and
`lifecycle` events it caused, both in the order emitted, and `records`: per edge id the snapshot after the step, `null`
where there is none. Under `strict` the key of a record is `ID/egress` or `ID/ingress`, a step may name the `direction`
that its event is about, and has `rejected`: why the event was turned away, or `null`. Blank lines are skipped. Lines
come from outside, so they are read strictly: unknown, missing and doubled members, wrong types and ids beyond 2^64-1
are refused, naming the line (design 5).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from actors.edges.establisher import EdgeEstablisher
from actors.edges.semantics import EventRejection, Semantics
from messages.base import Record, check_u64
from messages.edge import (
    EdgeCommand,
    EdgeEvent,
    EdgeId,
    EdgeLifecycleEvent,
    LocalEdgeRecord,
    NodeId,
    RingDirection,
)
from runtime.replay_result import ReplayResult

Records = dict[str, LocalEdgeRecord | None]

End = tuple[EdgeId, RingDirection | None]
"""What a record belongs to: under `seed` an edge, under `strict` one of its ends."""

_KEY = re.compile(r"(0|[1-9][0-9]{0,19})(?:/(egress|ingress))?", re.ASCII)


class RecordedStep(Record, frozen=True, kw_only=True):
    """One event and everything it caused. `rejected` is not compared where it is absent."""

    event: EdgeEvent
    direction: RingDirection | None = None
    commands: list[EdgeCommand]
    lifecycle: list[EdgeLifecycleEvent]
    records: Records
    rejected: EventRejection | UnsetType | None = UNSET


class RecordedTrace(Record, frozen=True, kw_only=True):
    """What one establisher, the one of `local_node_id`, observed and did from its birth."""

    local_node_id: NodeId
    steps: list[RecordedStep]


class OpenStep(Record, frozen=True, kw_only=True):
    """A step whose outcome is asked for; an outcome it already has, under whichever semantics, is computed anew."""

    event: EdgeEvent
    direction: RingDirection | None = None
    commands: list[EdgeCommand] = msgspec.field(default_factory=list)
    lifecycle: list[EdgeLifecycleEvent] = msgspec.field(default_factory=list)
    records: Records = msgspec.field(default_factory=dict)
    rejected: EventRejection | UnsetType | None = UNSET


class OpenTrace(Record, frozen=True, kw_only=True):
    """A trace to be completed."""

    local_node_id: NodeId
    steps: list[OpenStep]


def check(lines: Iterable[str], semantics: Semantics = Semantics.SEED) -> ReplayResult:
    """Replay recorded traces and compare every step. Stops at the first difference.

    Raises `ValueError` for a line that is not a recorded trace of these semantics, and if there is no step at all: a
    comparison of nothing is not a success.
    """
    traces = matched = 0
    for number, trace in _traces(lines, RecordedTrace):
        establisher = EdgeEstablisher(trace.local_node_id, semantics)
        for position, recorded in enumerate(trace.steps, start=1):
            ends = [_end(key) for key in recorded.records]
            wrong = next((end for end in ends if (end[1] is None) is not (semantics is Semantics.SEED)), None)
            if wrong is not None:
                form = "ID" if semantics is Semantics.SEED else "ID/egress or ID/ingress"
                raise ValueError(f"line {number}, step {position}: {_key(wrong)!r} is no key under {semantics}: {form}")
            difference = _difference(recorded, _take(establisher, semantics, recorded, ends))
            if difference is not None:
                place = f"line {number}, step {position}, after {_json(recorded.event)}"
                difference = f"{place}: {difference}"
                return ReplayResult(traces=traces, matched=matched, steps=matched + 1, difference=difference)
            matched += 1
        traces += 1
    if not matched:
        raise ValueError("there is nothing to check: no line holds a trace with a step; give one recorded trace a line")
    return ReplayResult(traces=traces, matched=matched, steps=matched)


def replay(lines: Iterable[str], semantics: Semantics = Semantics.SEED) -> Iterator[str]:
    """Complete traces of events alone, one line out for each trace in, without its line end.

    `records` of a completed step lists, in ascending order, every edge id that an event of the trace names, and those
    that the given step lists; under `strict` both ends of each. Raises `ValueError` for a line that is not such a
    trace.
    """
    directions = (None,) if semantics is Semantics.SEED else tuple(RingDirection)
    for _, trace in _traces(lines, OpenTrace):
        establisher = EdgeEstablisher(trace.local_node_id, semantics)
        named = {edge_id for step in trace.steps if (edge_id := getattr(step.event, "edge_id", None)) is not None}
        steps = []
        for step in trace.steps:
            edge_ids = sorted(named.union(_end(key)[0] for key in step.records))
            ends = [(edge_id, direction) for edge_id in edge_ids for direction in directions]
            steps.append(_take(establisher, semantics, step, ends))
        yield _json(RecordedTrace(local_node_id=trace.local_node_id, steps=steps))


def _take(
    establisher: EdgeEstablisher, semantics: Semantics, step: RecordedStep | OpenStep, ends: Iterable[End]
) -> RecordedStep:
    """Let the establisher observe the event of a step and record what it did."""
    rejected = establisher.observe(step.event, step.direction)
    return RecordedStep(
        event=step.event,
        direction=step.direction,
        commands=establisher.drain_commands(),
        lifecycle=establisher.drain_events(),
        records={_key(end): establisher.local_record(*end) for end in ends},
        rejected=UNSET if semantics is Semantics.SEED else rejected.reason if rejected is not None else None,
    )


def _difference(expected: RecordedStep, got: RecordedStep) -> str | None:
    """The first part of a step in which `got` differs: what was recorded and what the replay gives."""
    for part in ("commands", "lifecycle", "rejected"):
        wanted, found = getattr(expected, part), getattr(got, part)
        if wanted is not UNSET and wanted != (found := None if found is UNSET else found):
            return f"{part}: expected {_json(wanted)}, got {_json(found)}"
    for key, record in expected.records.items():
        if record != got.records[key]:
            return f"record of edge {key}: expected {_json(record)}, got {_json(got.records[key])}"
    return None


def _key(end: End) -> str:
    edge_id, direction = end
    return f"{edge_id}" if direction is None else f"{edge_id}/{direction}"


def _end(key: str) -> End:
    """What the key of a record names. Raises `ValueError`."""
    matched = _KEY.fullmatch(key)
    if matched is None:
        raise ValueError(f"{key!r} is neither an edge id nor an edge id with /egress or /ingress")
    edge_id = EdgeId(check_u64(int(matched[1]), "the edge id"))
    return edge_id, None if matched[2] is None else RingDirection(matched[2])


TraceT = TypeVar("TraceT", RecordedTrace, OpenTrace)


def _traces(lines: Iterable[str], form: type[TraceT]) -> Iterator[tuple[int, TraceT]]:
    """Every trace with the number of its line, counted from 1."""
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line, object_pairs_hook=_without_doubles)
            _check_numbers(value, "$")
            trace = msgspec.convert(value, form)
            for position, step in enumerate(trace.steps):
                _check_keys(step.records, f"$.steps[{position}].records")
        except RecursionError:
            raise ValueError(f"line {number}: nested too deeply for a trace") from None
        except ValueError as error:  # of JSON, of msgspec and of the two checks alike
            raise ValueError(f"line {number} is not a trace: {error}") from error
        yield number, trace


def _without_doubles(members: list[tuple[str, Any]]) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for name, member in members:
        if name in value:
            raise ValueError(f"member {name!r} appears twice in one object")
        value[name] = member
    return value


def _check_keys(records: Records, path: str) -> None:
    for key in records:
        try:
            _end(key)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None


def _check_numbers(value: Any, path: str) -> None:
    """Every whole number of a trace is an unsigned 64-bit one."""
    if isinstance(value, dict):
        for name, member in value.items():
            _check_numbers(member, f"{path}.{name}")
    elif isinstance(value, list):
        for position, member in enumerate(value):
            _check_numbers(member, f"{path}[{position}]")
    elif isinstance(value, int) and not isinstance(value, bool):
        check_u64(value, path)


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
