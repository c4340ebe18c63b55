"""Replay of edge traces through `EdgeEstablisher`: `sennit replay machine edge-establisher --semantics seed`.

A trace is one line of JSON: `local_node_id` and `steps`. A step has the `event` observed, the `commands` and
`lifecycle` events it caused, both in the order emitted, and `records`: per edge id the snapshot after the step, `null`
where there is none. Blank lines are skipped. Lines come from outside, so they are read strictly: unknown, missing and
doubled members, wrong types and ids beyond 2^64-1 are refused, naming the line (design 5).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import msgspec

from actors.edges.establisher import EdgeEstablisher
from messages.base import Record, check_u64
from messages.edge import EdgeCommand, EdgeEvent, EdgeId, EdgeLifecycleEvent, LocalEdgeRecord, NodeId
from runtime.replay_result import ReplayResult

Records = dict[EdgeId, LocalEdgeRecord | None]


class RecordedStep(Record, frozen=True, kw_only=True):
    """One event and everything it caused."""

    event: EdgeEvent
    commands: list[EdgeCommand]
    lifecycle: list[EdgeLifecycleEvent]
    records: Records


class RecordedTrace(Record, frozen=True, kw_only=True):
    """What one establisher, the one of `local_node_id`, observed and did from its birth."""

    local_node_id: NodeId
    steps: list[RecordedStep]


class OpenStep(Record, frozen=True, kw_only=True):
    """A step whose outcome is asked for; an outcome it already has is computed anew."""

    event: EdgeEvent
    commands: list[EdgeCommand] = msgspec.field(default_factory=list)
    lifecycle: list[EdgeLifecycleEvent] = msgspec.field(default_factory=list)
    records: Records = msgspec.field(default_factory=dict)


class OpenTrace(Record, frozen=True, kw_only=True):
    """A trace to be completed."""

    local_node_id: NodeId
    steps: list[OpenStep]


def check(lines: Iterable[str]) -> ReplayResult:
    """Replay recorded traces and compare every step. Stops at the first difference.

    Raises `ValueError` for a line that is not a recorded trace, and if there is no step at all: a comparison of
    nothing is not a success.
    """
    traces = matched = 0
    for number, trace in _traces(lines, RecordedTrace):
        establisher = EdgeEstablisher(trace.local_node_id)
        for position, recorded in enumerate(trace.steps, start=1):
            replayed = _take(establisher, recorded.event, recorded.records)
            if replayed != recorded:
                place = f"line {number}, step {position}, after {_json(recorded.event)}"
                difference = f"{place}: {_difference(recorded, replayed)}"
                return ReplayResult(traces=traces, matched=matched, steps=matched + 1, difference=difference)
            matched += 1
        traces += 1
    if not matched:
        raise ValueError("there is nothing to check: no line holds a trace with a step; give one recorded trace a line")
    return ReplayResult(traces=traces, matched=matched, steps=matched)


def replay(lines: Iterable[str]) -> Iterator[str]:
    """Complete traces of events alone, one line out for each trace in, without its line end.

    `records` of a completed step lists, in ascending order, every edge id that an event of the trace names, and those
    that the given step lists. Raises `ValueError` for a line that is not such a trace.
    """
    for _, trace in _traces(lines, OpenTrace):
        establisher = EdgeEstablisher(trace.local_node_id)
        named = {edge_id for step in trace.steps if (edge_id := getattr(step.event, "edge_id", None)) is not None}
        steps = [_take(establisher, step.event, named.union(step.records)) for step in trace.steps]
        yield _json(RecordedTrace(local_node_id=trace.local_node_id, steps=steps))


def _take(establisher: EdgeEstablisher, event: EdgeEvent, edge_ids: Iterable[EdgeId]) -> RecordedStep:
    """Let the establisher observe one event and record what it did."""
    establisher.observe(event)
    return RecordedStep(
        event=event,
        commands=establisher.drain_commands(),
        lifecycle=establisher.drain_events(),
        records={edge_id: establisher.local_record(edge_id) for edge_id in sorted(edge_ids)},
    )


def _difference(expected: RecordedStep, got: RecordedStep) -> str:
    """The first part of a step in which `got` differs: what was recorded and what the replay gives."""
    for part in ("commands", "lifecycle"):
        if getattr(expected, part) != getattr(got, part):
            return f"{part}: expected {_json(getattr(expected, part))}, got {_json(getattr(got, part))}"
    for edge_id, record in expected.records.items():
        if record != got.records[edge_id]:
            return f"record of edge {edge_id}: expected {_json(record)}, got {_json(got.records[edge_id])}"
    raise AssertionError("the steps are equal")


TraceT = TypeVar("TraceT", RecordedTrace, OpenTrace)


def _traces(lines: Iterable[str], form: type[TraceT]) -> Iterator[tuple[int, TraceT]]:
    """Every trace with the number of its line, counted from 1."""
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line, object_pairs_hook=_without_doubles)
            _check_numbers(value, "$")
            trace = msgspec.convert(value, form, str_keys=True)
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


def _check_numbers(value: Any, path: str) -> None:
    """Every whole number of a trace is an unsigned 64-bit one, and so are the keys of `records`."""
    if isinstance(value, dict):
        for name, member in value.items():
            if name.isdecimal() and name.isascii():
                check_u64(int(name), f"{path}.{name}")
            _check_numbers(member, f"{path}.{name}")
    elif isinstance(value, list):
        for position, member in enumerate(value):
            _check_numbers(member, f"{path}[{position}]")
    elif isinstance(value, int) and not isinstance(value, bool):
        check_u64(value, path)


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
