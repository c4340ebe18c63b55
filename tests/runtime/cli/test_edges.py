"""`sennit edge`: what it asks of the planner, what it shows in any terminal, and how it ends."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from actors.actor import AskFailed
from messages.base import Address, NodeName
from messages.edge import ActorAddress, EdgeId, EdgeProvisionState, RingDirection, RingId, RunId
from messages.edge_end import ArenaSample, EdgeFaultCode, EndReport, Progress
from messages.edge_plan import AddEdge, EdgeAdded, EdgeLine, EdgeLines, EdgeNode, EdgePhase, ListEdges, RemoveEdge
from messages.system import AskFailure, Done
from runtime.cli import edge as verb
from runtime.cli.edge_view import draw_edge, draw_edges, phases, remarks, sentence
from runtime.cli.output import ExitCode, Failed
from runtime.cli.sizes import parse_size, size_text

PLANNER = Address("controller/edges")
NAME = "hostwatch.out -> trend.in"


def end(direction: RingDirection, peer: str, **progress: Any) -> EndReport:
    return EndReport(
        name=NAME, edge_id=EdgeId(41), run_id=RunId(3), direction=direction, state=EdgeProvisionState.READY,
        instance_id=f"work-bd8f15d4fd7f4e8e-n-413d012b177a2282-{direction}", port=direction, ring_id=RingId(7001),
        local_edge_actor=ActorAddress(5), peer=NodeName(peer),
        progress=Progress(ring_bytes=262_144, **progress),
    )  # fmt: skip


def ready(name: str = NAME, **fields: Any) -> EdgeLine:
    source, _, target = name.partition(" -> ")
    producer = end(RingDirection.EGRESS, "shed", objects=1300, bytes=2_097_152, in_flight_bytes=65_576, stalls=2)
    consumer = end(
        RingDirection.INGRESS, "attic", objects=1234, bytes=1_572_864, bytes_per_s=1_258_291.2, in_flight_bytes=40,
        stalls=1, stalled=True, last_object_id=9, last_sequence=1233, duplicates_dropped=6, resumed=1,
    )  # fmt: skip
    return EdgeLine(**{
        "name": name, "source": source, "target": target, "phase": EdgePhase.READY, "run_id": RunId(3),
        "edge_id": EdgeId(41), "lives": 3, "faults": 2, "fault": EdgeFaultCode.WORKER_CRASHED,
        "fault_text": "no process of trend is left", "producer_node": NodeName("attic"),
        "consumer_node": NodeName("shed"), "producer": producer, "consumer": consumer, "max_extent_bytes": 65_536,
        "ring_bytes": 262_144, "since_ms": 1_700_000_000_000, **fields,
    })  # fmt: skip


def waiting(name: str = "hostwatch.out -> sink@loft.in", **fields: Any) -> EdgeLine:
    source, _, target = name.partition(" -> ")
    return EdgeLine(**{
        "name": name, "source": source, "target": target, "phase": EdgePhase.WAITING, "run_id": RunId(0),
        "reason": "no running instance of sink", "max_extent_bytes": 4096, "ring_bytes": 8272, "since_ms": 0, **fields,
    })  # fmt: skip


def node(process: str, **fields: Any) -> EdgeNode:
    arena = ArenaSample(
        capacity_bytes=67_108_864, live_bytes=266_240, free_bytes=66_842_624, active_leases=1, pending_leases=0,
        largest_free_range_bytes=66_842_624, allocation_failures_total=3, release_failures_total=0,
    )  # fmt: skip
    return EdgeNode(**{
        "process": NodeName(process), "reachable": True, "incarnation": 1, "ends": 1, "arena": arena, **fields,
    })  # fmt: skip


class Planner:
    """Answers as `controller/edges` would; `ends` replaces an answer by a failure, once each."""

    def __init__(self) -> None:
        self.edges = [ready(), waiting()]
        self.nodes = [node("attic.edges"), node("shed.edges", reachable=False), node("loft.edges", arena=None)]
        self.asked: list[Any] = []
        self.failures: list[AskFailed] = []

    def ask(self, to: Address, request: Any, timeout_s: float) -> Any:
        assert to == PLANNER
        assert timeout_s > 0
        self.asked.append(request)
        if self.failures:
            raise self.failures.pop(0)
        match request:
            case ListEdges():
                return EdgeLines(edges=list(self.edges), nodes=self.nodes)
            case AddEdge():
                line = waiting(f"{request.source} -> {request.target}", max_extent_bytes=request.max_extent_bytes)
                self.edges.append(line)
                return EdgeAdded(edge=line)
            case RemoveEdge():
                self.edges = [line for line in self.edges if line.name != request.edge]
                return Done()
        raise AssertionError(request)

    def refuses(self, code: str, reason: str = "because") -> None:
        self.failures.append(AskFailed(AskFailure.REFUSED, PLANNER, code, reason))


@pytest.fixture
def planner(monkeypatch: pytest.MonkeyPatch) -> Planner:
    planner = Planner()

    @contextmanager
    def connected(_: object, *processes: str) -> Any:
        assert processes == ("controller",)
        yield SimpleNamespace(name="reef"), planner

    monkeypatch.setattr(verb, "connected", connected)
    monkeypatch.setattr(verb, "require_up", lambda _: None)
    return planner


# orders


def test_an_edge_is_added_with_the_sizes_given(sennit, planner) -> None:
    ended = sennit("edge", "add", "hostwatch.out", "trend.in", "--max-object", "1MiB", "--ring", "4096")
    assert ended.code == 0, ended
    assert planner.asked == [
        AddEdge(source="hostwatch.out", target="trend.in", max_extent_bytes=1_048_576, ring_bytes=4096)
    ]
    assert "hostwatch.out -> trend.in: waiting (no running instance of sink)" in ended.out
    assert "sennit edge show hostwatch.out trend.in --watch" in ended.out


def test_without_sizes_the_planner_chooses(sennit, planner) -> None:
    told = sennit("edge", "add", "a.out", "b.in", "--json")
    assert planner.asked == [AddEdge(source="a.out", target="b.in")]
    assert (told.code, told.document["name"], told.document["phase"]) == (0, "a.out -> b.in", "waiting")


@pytest.mark.parametrize("size", ["0", "0KiB", "64KB", "1.5MiB", "-1", "", "KiB", "many", "99999999999GiB"])
def test_what_is_no_size_is_refused_before_anybody_is_asked(sennit, planner, size) -> None:
    ended = sennit("edge", "add", "a.out", "b.in", f"--ring={size}")
    assert ended.code == ExitCode.USAGE
    assert "--ring" in ended.err
    assert planner.asked == []


@pytest.mark.parametrize(
    ("code", "exit_code", "helps"),
    [
        ("invalid", ExitCode.USAGE, "edge add --help"),
        ("unknown", ExitCode.USAGE, "instance ls"),
        ("ambiguous", ExitCode.USAGE, "WORKLOAD@NODE.PORT"),
        ("exists", ExitCode.REFUSED, "edge stop"),
        ("stopping", ExitCode.DIFFERS, "edge ls --watch"),
        ("governance", ExitCode.REFUSED, "gate policy"),
        ("no_record", ExitCode.REFUSED, "chain"),
        ("stale_state", ExitCode.DAMAGED, ""),
    ],
)
def test_each_refusal_ends_as_documented_and_names_what_helps(sennit, planner, code, exit_code, helps) -> None:
    planner.refuses(code)
    planner.refuses(code)
    ended = sennit("edge", "add", "a.out", "b.in")
    assert (ended.code, ended.out) == (exit_code, "")
    assert "because" in ended.err
    assert helps in ended.err
    error = sennit("edge", "add", "a.out", "b.in", "--json").document["error"]
    assert (error["code"], error["exit"]) == (code, exit_code)


def test_a_planner_that_gives_no_answer_leaves_it_indeterminate(sennit, planner) -> None:
    planner.failures.append(AskFailed(AskFailure.TIMEOUT, PLANNER, "", "no answer within 60 s"))
    assert sennit("edge", "add", "a.out", "b.in").code == ExitCode.INDETERMINATE
    planner.failures.append(AskFailed(AskFailure.UNREACHABLE, PLANNER, "", "no link"))
    assert sennit("edge", "ls").code == ExitCode.NO_CLUSTER


@pytest.mark.parametrize("words", [("hostwatch.out", "trend.in"), ("hostwatch.out->trend.in",), (NAME,), ("41",)])
def test_an_edge_is_stopped_by_any_of_its_names(sennit, planner, words) -> None:
    ended = sennit("edge", "stop", *words)
    assert (ended.code, ended.out) == (0, f"stopped: {NAME}\n")
    assert planner.asked == [ListEdges(), RemoveEdge(edge=NAME)]
    assert sennit("edge", "stop", *words).code == ExitCode.USAGE


def test_a_port_names_its_edge_while_it_has_one(sennit, planner) -> None:
    assert sennit("edge", "show", "trend.in", "--json").document["edge"]["name"] == NAME
    ended = sennit("edge", "stop", "hostwatch.out")
    assert ended.code == ExitCode.USAGE
    assert "2 edges answer to 'hostwatch.out'" in ended.err
    assert "sink@loft.in" in ended.err
    assert RemoveEdge not in map(type, planner.asked)


def test_a_name_that_a_shell_has_cut_says_so(sennit, planner) -> None:
    ended = sennit("edge", "show", "hostwatch.out-")
    assert ended.code == ExitCode.USAGE
    assert "a shell takes > for itself" in ended.err
    assert NAME in ended.err


def test_an_unknown_edge_names_those_there_are(sennit, planner) -> None:
    planner.edges = []
    ended = sennit("edge", "stop", "a.out", "b.in")
    assert (ended.code, ended.out) == (ExitCode.USAGE, "")
    assert "there are: none at all" in ended.err


# looking


def test_in_a_pipe_a_row_is_a_line_and_nothing_is_shortened(sennit, planner) -> None:
    lines = sennit("edge", "ls").out.splitlines()
    assert lines[0].split() == [
        "EDGE", "STATE", "RATE", "OBJECTS", "BYTES", "IN", "FLIGHT", "STALLS", "FAULTS", "EPOCH", "NODES", "REMARKS"
    ]  # fmt: skip
    for cell in (
        NAME, "ready", "1.2 MiB/s", "1234", "1.5 MiB", "64.1 KiB", "3 now", "attic > shed",
        "last fault worker_crashed: no process of trend is left",
    ):  # fmt: skip
        assert cell in lines[1]
    assert "no running instance of sink" in lines[2]
    assert lines[4].split() == ["ARENA", "STATE", "ENDS", "USED", "FREE", "OF", "LEASES", "WAITING", "FAILURES"]
    assert "260.0 KiB  63.7 MiB  64.0 MiB  1" in " ".join(lines[5:6])
    assert "unreachable" in lines[6]
    assert lines[7].split() == ["loft.edges", "up", "1", *"------"]


def test_the_document_of_all_edges_has_everything_that_the_planner_told(sennit, planner) -> None:
    told = sennit("edge", "ls", "--json").document
    assert [line["name"] for line in told["edges"]] == [NAME, "hostwatch.out -> sink@loft.in"]
    consumer = told["edges"][0]["consumer"]
    assert (consumer["ring_id"], consumer["progress"]["resumed"], consumer["progress"]["stalled"]) == (7001, 1, True)
    assert told["edges"][1]["consumer"] is None
    assert [one["process"] for one in told["nodes"]] == ["attic.edges", "shed.edges", "loft.edges"]
    assert told["nodes"][2]["arena"] is None


def test_the_document_of_one_edge_has_the_memory_of_its_nodes(sennit, planner) -> None:
    told = sennit("edge", "show", "hostwatch.out", "trend.in", "--json").document
    assert told["edge"]["fault"] == "worker_crashed"
    assert [one["process"] for one in told["nodes"]] == ["attic.edges", "shed.edges"]


def test_one_edge_is_told_whole(sennit, planner) -> None:
    out = sennit("edge", "show", "hostwatch.out", "trend.in").out
    rows = {line.split("  ")[0].strip(): " ".join(line.split()) for line in out.splitlines()}
    assert rows["epoch"] == "epoch 3"
    assert rows["last fault"] == "last fault worker_crashed: no process of trend is left"
    assert rows["ring id"] == "ring id 7001 7001"
    assert rows["in flight"] == "in flight 64.0 KiB 40 B"
    assert rows["duplicates"] == "duplicates 0 6"
    assert rows["process"] == "process attic.edges shed.edges (unreachable)"
    assert rows["arena free"] == "arena free 63.7 MiB 63.7 MiB"
    assert rows["instance"].endswith("egress work-bd8f15d4fd7f4e8e-n-413d012b177a2282-ingress")


def test_an_edge_that_never_lived_is_told_too(sennit, planner) -> None:
    out = sennit("edge", "show", "hostwatch.out", "sink@loft.in").out
    assert "no running instance of sink" in out
    assert "PRODUCER" not in out


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({}, ""),
        ({"reason": "no instance of b is placed"}, "no instance of b is placed"),
        ({"fault": EdgeFaultCode.LINK_LOST, "fault_text": "silence"}, "last fault link_lost: silence"),
        ({"fault": EdgeFaultCode.LINK_LOST, "fault_text": ""}, "last fault link_lost"),
        ({"fault_text": "not ready in time"}, "last fault not ready in time"),
        (
            {"reason": "no instance of b is placed", "fault": EdgeFaultCode.LINK_LOST, "fault_text": "silence"},
            "no instance of b is placed; last fault link_lost: silence",
        ),
        (
            {"reason": "its last life faulted: silence", "fault": EdgeFaultCode.LINK_LOST, "fault_text": "silence"},
            "its last life faulted: link_lost: silence",
        ),
    ],
)
def test_a_remark_tells_each_reason_once(fields, told) -> None:
    assert remarks(waiting(**{"reason": "", **fields})) == told


@pytest.mark.parametrize(
    ("producer", "consumer", "told"),
    [
        ("waiting_for_lease", "waiting_for_lease", "waits for ring memory on attic and shed"),
        ("waiting_for_lease", "ready", "waits for ring memory on attic"),
        (
            "waiting_for_driver", "waiting_for_worker_ring",
            "waits for the other end on attic; waits for the workload to take its ring on shed",
        ),
        ("ready", "ready", ""),
    ],
)  # fmt: skip
def test_an_edge_that_opens_says_what_it_waits_for(sennit, planner, producer, consumer, told) -> None:
    def at(end: EndReport | None, state: str) -> EndReport:
        assert end is not None
        return msgspec.structs.replace(end, state=EdgeProvisionState(state))

    line = ready(phase=EdgePhase.OPENING, fault=None, fault_text="")
    planner.edges = [
        msgspec.structs.replace(line, producer=at(line.producer, producer), consumer=at(line.consumer, consumer))
    ]
    assert remarks(planner.edges[0]) == told
    assert remarks(msgspec.structs.replace(planner.edges[0], phase=EdgePhase.CLOSING)) == ""
    assert f"reason          {told or '-'}\n" in sennit("edge", "show", "41").out


def test_what_was_just_added_is_not_said_to_wait_for_nothing(sennit, planner) -> None:
    line = waiting("a.out -> b.in", reason="")
    assert sentence(line).startswith("a.out -> b.in: added, objects of at most 4.0 KiB")
    assert sentence(msgspec.structs.replace(line, lives=1)).startswith("a.out -> b.in: waiting, ")


def test_without_edges_the_list_says_how_to_add_one(sennit, planner) -> None:
    planner.edges, planner.nodes = [], []
    assert sennit("edge", "ls").out == "no edges: sennit edge add SOURCE TARGET\n"
    assert sennit("edge", "ls", "--json").document == {"edges": [], "nodes": []}


@pytest.mark.parametrize("width", [40, 80, 200])
def test_on_a_terminal_the_list_has_whole_columns_and_every_remark(sennit, planner, monkeypatch, width) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(width))
    out = re.sub(r"\x1b\[[0-9;]*m", "", sennit("edge", "ls").out)
    assert max(map(len, out.splitlines())) <= width
    told = " ".join(out.split())
    for text in (NAME, "ready", "attic.edges", "no running instance of sink", "no process of trend is left"):
        assert text in told
    assert ("EPOCH" in told) == (width == 200)


# watching


def test_watching_and_one_document_exclude_each_other(sennit, planner) -> None:
    ended = sennit("edge", "ls", "--watch", "--json")
    assert (ended.code, ended.document["error"]["code"]) == (ExitCode.USAGE, "usage")
    assert planner.asked == []


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What happens between two looks of a watch in a pipe; after the last, Ctrl-C."""
    steps: list[Any] = []

    def pause(_: float) -> None:
        if not steps:
            raise KeyboardInterrupt
        steps.pop(0)()

    monkeypatch.setattr(verb, "time", SimpleNamespace(sleep=pause))
    return steps


def test_into_a_pipe_each_look_is_a_block_until_ctrl_c(sennit, planner, looks) -> None:
    looks += [lambda: None, planner.edges.pop]
    ended = sennit("edge", "ls", "--watch")
    assert (ended.code, ended.err) == (0, "")
    blocks = [block for block in ended.out.split("\n\n") if block.startswith("EDGE")]
    assert [block.count("hostwatch.out") for block in blocks] == [2, 2, 1]
    assert "\x1b" not in ended.out


def test_watching_goes_on_while_the_controller_is_away_and_ends_with_the_edge(sennit, planner, looks) -> None:
    away = AskFailed(AskFailure.UNREACHABLE, PLANNER, "", "no link")
    looks += [lambda: planner.failures.append(away), lambda: planner.edges.pop(0)]
    ended = sennit("edge", "show", "hostwatch.out", "trend.in", "--watch")
    assert ended.code == 0
    assert "no answer: " in ended.out
    assert "no link" in ended.out
    assert ended.err == f"{NAME} was stopped\n"


def test_watching_ends_with_6_when_the_cluster_goes_down(sennit, planner, looks, monkeypatch) -> None:
    def down(_: object) -> None:
        raise Failed(ExitCode.NO_CLUSTER, "not_up", "it is down")

    monkeypatch.setattr(verb, "require_up", down)
    looks.append(lambda: planner.failures.append(AskFailed(AskFailure.UNREACHABLE, PLANNER, "", "no link")))
    assert sennit("edge", "ls", "--watch").code == ExitCode.NO_CLUSTER


def drawn(draw: Any, width: int, height: int) -> list[str]:
    out = io.StringIO()
    console = Console(file=out, width=width, height=height, highlight=False, force_terminal=True, color_system=None)
    console.print(draw(console))
    return out.getvalue().splitlines()


SCREENS = [(80, 24), (120, 40), (40, 12), (20, 6), (200, 5)]


@pytest.mark.parametrize(("width", "height"), SCREENS)
@pytest.mark.parametrize("count", [0, 1, 30])
def test_the_screen_of_all_edges_never_exceeds_the_terminal(width, height, count) -> None:
    lines = EdgeLines(edges=[ready(f"a{number}.out -> b.in") for number in range(count)], nodes=[node("attic.edges")])
    screen = drawn(lambda console: draw_edges("reef", lines, "", console), width, height)
    assert len(screen) <= height
    assert max(map(len, screen)) <= width
    if width >= 80:
        assert screen[0].startswith(f"reef  edges: {f'{count} ready' if count else 'none'};")
        assert screen[0].rstrip().endswith("q ends")
        assert count == 0 or "a0.out -> b.in" in screen[2]


@pytest.mark.parametrize(("width", "height"), SCREENS)
@pytest.mark.parametrize("line", [ready(), waiting()], ids=["ready", "waiting"])
def test_the_screen_of_one_edge_never_exceeds_the_terminal(width, height, line) -> None:
    screen = drawn(lambda console: draw_edge("reef", line, [node("attic.edges")], "", console), width, height)
    assert len(screen) <= height
    assert max(map(len, screen)) <= width
    assert "reason" in screen[1] or "epoch" in screen[1]


def test_80_columns_show_what_flows_and_why_not() -> None:
    lines = EdgeLines(edges=[ready(), waiting()], nodes=[])
    text = "\n".join(drawn(lambda console: draw_edges("reef", lines, "", console), 80, 24))
    for told in ("EDGE", "STATE", "RATE", "OBJECTS", "1 waiting, 1 ready; 1.2 MiB/s", "no running instance of sink"):
        assert told in text
    assert "last fault worker_crashed: no process of" in text


LONG = "the gate does not permit workload.edge: " + " ".join(f"word{number}" for number in range(30)) + " THE END"


@pytest.mark.parametrize(("height", "whole"), [(40, True), (10, False)])
def test_a_long_reason_is_whole_where_the_screen_has_room(height, whole) -> None:
    line = waiting(reason=LONG)
    lines = EdgeLines(edges=[line], nodes=[])
    for draw in (
        lambda console: draw_edges("reef", lines, "", console),
        lambda console: draw_edge("reef", line, [], "", console),
    ):
        screen = drawn(draw, 40, height)
        assert len(screen) <= height
        assert max(map(len, screen)) <= 40
        assert ("THE END" in " ".join(" ".join(screen).split())) == whole


def test_a_silent_controller_is_told_above_what_was_known() -> None:
    lines = EdgeLines(edges=[ready()], nodes=[])
    screen = drawn(lambda console: draw_edges("reef", lines, "no answer: no link", console), 80, 24)
    assert "no answer: no link" in screen[0]
    assert NAME in screen[2]


def test_phases_are_counted_in_the_order_of_a_life() -> None:
    edges = [ready(), waiting(), ready(phase=EdgePhase.FINISHED), ready()]
    assert phases(edges) == "1 waiting, 2 ready, 1 finished"
    assert phases([]) == "none"


SCREEN = """
import fcntl, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from contextlib import contextmanager
from types import SimpleNamespace
import msgspec
from messages.edge_plan import EdgeLines
from runtime.cli import edge
from runtime.cli.main import run
lines = msgspec.json.decode(sys.argv[1], type=EdgeLines)
client = SimpleNamespace(ask=lambda to, request, timeout_s: lines)
@contextmanager
def connected(*_):
    yield SimpleNamespace(name="reef"), client
edge.connected = connected
print("over", run(["edge", *sys.argv[2:], "--watch", "--interval", "30"]))
"""


@pytest.mark.parametrize(("ending", "words"), [("q", ("ls",)), ("ctrl-c", ("show", "41")), ("sigterm", ("ls",))])
def test_on_a_terminal_it_redraws_in_place_and_leaves_the_terminal_as_it_was(ending, words) -> None:
    lines = EdgeLines(edges=[ready(), waiting()], nodes=[node("attic.edges")])
    with ExitStack() as stack:
        master, slave = pty.openpty()
        stack.callback(os.close, master)
        stack.callback(os.close, slave)
        termios.tcsetwinsize(slave, (24, 80))
        before = termios.tcgetattr(slave)
        child = subprocess.Popen(
            [sys.executable, "-c", SCREEN, msgspec.json.encode(lines).decode(), *words],
            stdin=slave, stdout=slave, stderr=slave, start_new_session=True, env={**os.environ, "TERM": "xterm"},
        )  # fmt: skip
        stack.enter_context(child)
        stack.callback(child.kill)

        def read_until(wanted: bytes) -> bytes:
            seen, deadline = b"", time.monotonic() + 20
            while wanted not in seen:
                assert select.select([master], [], [], deadline - time.monotonic())[0], seen
                seen += os.read(master, 65_536)
            return seen

        assert b"\x1b[?1049h" in read_until(b"q ends")
        match ending:
            case "q":
                os.write(master, b"xq")
            case "ctrl-c":
                os.write(master, b"\x03")
            case "sigterm":
                child.send_signal(signal.SIGTERM)
        assert b"\x1b[?1049l" in read_until(b"over 0")
        assert child.wait(10) == 0
        assert termios.tcgetattr(slave) == before


# sizes


@pytest.mark.parametrize(
    ("text", "size"),
    [("1", 1), ("4096", 4096), ("64KiB", 65_536), ("64 kib", 65_536), ("1MiB", 2**20), ("2GiB", 2**31), ("7B", 7)],
)
def test_sizes_are_read_as_people_write_them(text, size) -> None:
    assert parse_size(text) == size


@given(st.integers(1, 2**63 - 1))
def test_a_size_is_told_in_few_characters_and_close_to_what_it_is(size) -> None:
    text = size_text(size)
    number, unit = text.split()
    assert len(text) <= 9 or unit == "GiB"
    factor = {"B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}[unit]
    assert abs(float(number) * factor - size) <= 0.051 * factor


@given(st.text(max_size=12))
def test_any_text_is_a_size_or_refused_by_name(text) -> None:
    try:
        size = parse_size(text)
    except typer.BadParameter as refused:
        told = str(refused)
        assert repr(text) in told
    else:
        assert size >= 1


def test_json_carries_numbers_up_to_64_bits(sennit, planner) -> None:
    planner.edges = [ready(edge_id=EdgeId(2**64 - 1))]
    assert json.loads(sennit("edge", "show", str(2**64 - 1), "--json").out)["edge"]["edge_id"] == 2**64 - 1
