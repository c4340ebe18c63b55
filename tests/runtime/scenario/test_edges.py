"""What a scenario expects of edges: when it holds, when not, and what is told of it."""

from __future__ import annotations

from typing import Any

import pytest

from messages.base import NodeName
from messages.edge import ActorAddress, EdgeId, EdgeProvisionState, RingDirection, RunId
from messages.edge_end import ArenaSample, EdgeFaultCode, EndReport, Progress
from messages.edge_plan import EdgeLine, EdgeLines, EdgeNode, EdgePhase
from runtime.scenario import edges
from runtime.scenario.format import Expect
from runtime.scenario.observer import Observer

NAME = "source.out->sink.in"


def end(direction: RingDirection, **progress: Any) -> EndReport:
    return EndReport(
        name=NAME, edge_id=EdgeId(1), run_id=RunId(2), direction=direction, state=EdgeProvisionState.READY,
        instance_id="i", port="p", local_edge_actor=ActorAddress(1), peer=NodeName("x"), progress=Progress(**progress),
    )  # fmt: skip


def line(**fields: Any) -> EdgeLine:
    return EdgeLine(**{
        "name": "source.out -> sink.in", "source": "source.out", "target": "sink.in", "phase": EdgePhase.READY,
        "run_id": RunId(2), "lives": 2, "faults": 1, "fault": EdgeFaultCode.WORKER_CRASHED, "fault_text": "it is gone",
        "producer": end(RingDirection.EGRESS, objects=900, resumed=1),
        "consumer": end(RingDirection.INGRESS, objects=700), "max_extent_bytes": 4096, "ring_bytes": 8272,
        "since_ms": 0, **fields,
    })  # fmt: skip


def node(process: str, **fields: Any) -> EdgeNode:
    arena = {
        "capacity_bytes": 1000, "live_bytes": 0, "free_bytes": 1000, "active_leases": 0, "pending_leases": 0,
        "largest_free_range_bytes": 1000, "allocation_failures_total": 0, "release_failures_total": 0,
    }  # fmt: skip
    sample = ArenaSample(**{**arena, **fields})
    return EdgeNode(process=NodeName(process), reachable=True, incarnation=1, ends=0, arena=sample)


FAULTED = ["edges_restarted", "worker_crashed", "worker_not_running"]


class Seen(Observer):
    """The chain tells three lives that faulted, the first before the mark."""

    def __init__(self, lines: EdgeLines | None) -> None:
        self.lines = lines

    def faults(self, edge: str, mark: int) -> list[str]:
        return FAULTED[mark:]

    def edges(self) -> EdgeLines | None:
        return self.lines


def missing(told: EdgeLine | None, **expected: Any) -> tuple[str, dict[str, str]]:
    seen: dict[str, str] = {}
    observer = Seen(EdgeLines(edges=[] if told is None else [told], nodes=[]))
    return edges.missing(observer, Expect(edge=NAME, **expected), RunId(2), 1, seen), seen


@pytest.mark.parametrize(
    "expected",
    [
        {"phase": EdgePhase.READY},
        {"lives": 2, "faults": 1, "fault": EdgeFaultCode.WORKER_CRASHED},
        {"objects": 700, "same_epoch": True},
        {"fault": EdgeFaultCode.WORKER_NOT_RUNNING},
        {"resumed": 1},
    ],
)
def test_what_holds_is_told(expected) -> None:
    why, seen = missing(line(), **expected)
    assert why == ""
    assert seen["edge"].startswith("edge source.out -> sink.in is ready, epoch 2")


@pytest.mark.parametrize(
    ("expected", "fields", "told"),
    [
        (
            {"phase": EdgePhase.READY},
            {"phase": EdgePhase.WAITING, "reason": "no sink"},
            "is waiting in epoch 2 (no sink); last fault worker_crashed: it is gone",
        ),
        ({"lives": 3}, {}, "2 lives, not 3"),
        ({"same_epoch": False}, {}, "is ready in epoch 2, it was in epoch 2"),
        ({"same_epoch": True}, {"run_id": RunId(3)}, "is ready in epoch 3, it was in epoch 2"),
        ({"faults": 2}, {}, "1 faults, not 2"),
        ({"fault": EdgeFaultCode.EDGES_RESTARTED}, {}, "with worker_crashed, worker_not_running, not edges_restarted"),
        ({"objects": 701}, {}, "700 objects, not 701"),
        ({"objects": 1}, {"consumer": None}, "0 objects, not 1"),
        ({"resumed": 2}, {}, "1 resumed, not 2"),
    ],
)
def test_what_does_not_hold_says_what_there_is_instead(expected, fields, told) -> None:
    why, seen = missing(line(**fields), **expected)
    assert told in why
    assert seen == {}


def test_an_edge_that_is_not_there_is_missing() -> None:
    assert missing(None, lives=0)[0] == f"there is no edge {NAME}"


def test_arenas_are_whole_when_nothing_is_leased_and_all_is_free() -> None:
    assert edges.not_whole(Seen(EdgeLines(edges=[line()], nodes=[node("a.edges"), node("b.edges")]))) == ""


@pytest.mark.parametrize(
    ("nodes", "told"),
    [
        ([], "no edges process"),
        ([node("a.edges"), node("b.edges", active_leases=1)], "b.edges has 1 leases"),
        ([node("a.edges", pending_leases=1)], "1 waiting"),
        ([node("a.edges", free_bytes=999)], "999 of 1000 bytes free"),
        ([EdgeNode(process=NodeName("a.edges"), reachable=True, incarnation=1, ends=0, arena=None)], "is not heard"),
        ([EdgeNode(process=NodeName("a.edges"), reachable=False, incarnation=1, ends=0, arena=node("x").arena)],
         "is not heard"),
    ],
)  # fmt: skip
def test_an_arena_that_is_not_whole_or_not_heard_is_named(nodes, told) -> None:
    assert told in edges.not_whole(Seen(EdgeLines(edges=[], nodes=nodes)))


def test_a_planner_that_does_not_answer_is_no_whole_arena() -> None:
    assert "does not list" in edges.not_whole(Seen(None))
