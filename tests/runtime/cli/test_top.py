"""`sennit top`: what it asks, what it shows, and that it leaves the terminal as it was."""

from __future__ import annotations

import io
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from actors.actor import AskFailed
from messages.base import Address, NodeName
from messages.edge_plan import EdgeLine, EdgeLines, EdgePhase, ListEdges
from messages.supervision import ChildState, ChildView, Restart, ShowChildren, Strategy, SupervisorView, Verdict
from messages.system import (
    ActorList,
    ActorRow,
    AskFailure,
    GetProcess,
    GetState,
    GetStatistics,
    LinkRow,
    ListActors,
    ProcessReport,
    StateReport,
    Statistics,
)
from runtime.cli.top import ACTORS_AT_LEAST, dead_letters, document, edges_of, fit, render, sections
from runtime.sight import Frame, look, with_rates

PIDS = {"root": {"chain": {"pid": 11, "life": 1}, "shed": {"pid": 12, "life": 1}}, "shed": {"shed.edges": {"pid": 13}}}


def child(name, state=ChildState.RUNNING, **fields):
    return ChildView(name=name, state=state, restart=Restart.PERMANENT, budget_left=5, **fields)


class Cluster:
    """Answers as a cluster of root, chain and shed would. `silent`: linked, but without an answer."""

    def __init__(self):
        self.children = {
            "root": [child("chain"), child("shed")],
            "chain": [child("store")],
            "shed": [child("agent"), child("shed.edges")],
            "shed.edges": [child("edges")],
        }
        self.received = 100
        self.edges = []
        self.silent: set[str] = set()
        self.unlinked: set[str] = set()
        self.asked: list[str] = []

    def wait_link(self, process, timeout_s):
        return process not in self.unlinked

    def ask(self, to, request, timeout_s):
        process = to.partition("/")[0]
        self.asked.append(process)
        if process in self.silent:
            raise AskFailed(AskFailure.TIMEOUT, to, "", "no answer within 0.5 s")
        match request:
            case ShowChildren():
                return SupervisorView(strategy=Strategy.ONE_FOR_ONE, children=tuple(self.children[process]))
            case GetProcess():
                link = LinkRow(
                    process=NodeName("peer"), plane="control", up=True, incarnation=1, sent=self.received,
                    received=2 * self.received, unacknowledged=1, duplicates=2, gaps=3, unconfirmed=4,
                )  # fmt: skip
                letters = {"unreachable": 2, "overloaded": 0} if process == "chain" else {"unreachable": 1}
                return ProcessReport(process=NodeName(process), dead_letters=letters, links=[link])
            case ListActors():
                names = ["supervisor", "processes"] if process in PIDS else ["supervisor"]
                return ActorList(
                    actors=[
                        ActorRow(address=Address(f"{process}/{name}"), kind="K", mailbox=0,
                                 received=self.received, suspended=False)
                        for name in names
                    ]
                )  # fmt: skip
            case GetState():
                return StateReport(address=to, state=PIDS[process])
            case ListEdges():
                return EdgeLines(edges=list(self.edges), nodes=[])
            case GetStatistics():
                return Statistics(
                    address=to, received=self.received, answered=0, refused=0, crashed=False, mailbox=0,
                    mailbox_high=9, procedures=0, waiting_asks=0, timers=0, suspended=False, busy_s=self.received / 400,
                )  # fmt: skip
        raise AssertionError(request)


@pytest.fixture
def cluster():
    return Cluster()


def rows(frame):
    return {row[0]: row for row in sections(frame)[0].rows}


def test_every_process_is_told_with_pid_and_state_that_of_a_node_s_edges_too(cluster):
    frame = look(cluster, root_pid=10)
    assert [(one.name, one.pid, one.state) for one in frame.processes] == [
        ("root", 10, "running"), ("chain", 11, "running"), ("shed", 12, "running"), ("shed.edges", 13, "running")
    ]  # fmt: skip
    assert dead_letters(frame) == "5 unreachable (root 1, chain 2, shed 1, shed.edges 1)"


def test_a_process_that_does_not_run_is_not_asked_and_told_with_its_verdict(cluster):
    cluster.children["root"][0] = child(
        "chain", ChildState.PARKED, restarts=6, last_exit="exit code 70: no\nkey", next_attempt_s=2.5,
        verdict=Verdict.DEAD,
    )  # fmt: skip
    frame = look(cluster)
    assert "chain" not in cluster.asked
    assert rows(frame)["chain"][1:4] == ("parked", "dead", "11")
    assert rows(frame)["chain"][6] == "next start in 2.5 s; exit code 70: no key"


def test_the_process_for_a_node_s_edges_is_told_from_its_first_edge_on_and_then_whatever_its_state(cluster):
    cluster.children["shed"][1] = child("shed.edges", ChildState.STOPPED)
    assert "shed.edges" not in rows(look(cluster))
    cluster.children["shed"][1] = child("shed.edges", ChildState.PARKED, restarts=6, last_exit="exit code 78")
    assert rows(look(cluster))["shed.edges"][1] == "parked"
    assert "shed.edges" not in cluster.asked


def test_one_that_hangs_or_has_no_link_costs_the_others_nothing(cluster):
    cluster.silent.add("chain")
    cluster.unlinked.add("shed")
    frame = look(cluster)
    assert rows(frame)["chain"][6] == "no answer: timeout no answer within 0.5 s"
    assert rows(frame)["shed"][6] == "no answer: no link to it"
    assert cluster.asked.count("chain") == 1, "after the first silence it is left alone"
    assert [row[0] for row in sections(frame)[1].rows] == ["root"]


def test_a_cluster_that_is_gone_is_an_unreachable_root(cluster):
    cluster.unlinked.add("root")
    (root,) = look(cluster).processes
    assert (root.state, root.silent) == ("unreachable", "no link to it")


def test_rates_are_differences_over_the_time_between_two_looks(cluster):
    before = look(cluster)
    cluster.received = 300
    now = look(cluster)
    rated = with_rates(now, Frame(at_s=now.at_s - 2, processes=before.processes))
    chain = rated.processes[1]
    assert (chain.sent_per_s, chain.received_per_s) == (100, 200)
    assert (chain.actors[0].per_s, chain.actors[0].busy) == (100, 0.25)
    links = sections(rated)[1].rows[1]
    assert links == ("chain", "1 of 1", "100", "200", "1", "2", "3", "4", "300", "600")


def test_counters_that_began_anew_have_no_rate(cluster):
    before = look(cluster)
    cluster.received = 1
    now = look(cluster)
    rated = with_rates(now, Frame(at_s=now.at_s - 1, processes=before.processes))
    assert rated.processes[1].sent_per_s is None
    assert rated.processes[1].actors[0].busy is None


@given(height=st.integers(1, 80), counts=st.tuples(st.integers(1, 40), st.integers(0, 40), st.integers(0, 400)))
def test_the_tables_fit_the_screen_and_use_it(height, counts):
    processes, links, actors = fit(height, *counts)
    used = 4 + processes + (links + 2 if links else 0) + (actors + 2 if actors else 0)
    assert used <= max(height, 5)
    assert 1 <= processes <= counts[0]
    if counts[2] and height >= 4 + counts[0] + 2 + ACTORS_AT_LEAST:
        assert processes == counts[0]
        assert actors >= min(ACTORS_AT_LEAST, counts[2])
    if (processes, links, actors) != counts and height > 8 and processes == counts[0]:
        assert used >= height - 2, "room was left while rows were cut"


def drawn(frame, width, height, **options):
    out = io.StringIO()
    console = Console(file=out, width=width, height=height, highlight=False, force_terminal=True, **options)
    console.print(render("reef", frame, console))
    return out.getvalue().splitlines()


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (40, 12), (200, 10)])
def test_a_screen_is_never_larger_than_the_terminal(cluster, width, height):
    lines = drawn(look(cluster), width, height, color_system=None)
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert text.startswith("reef  4 of 4 running")
    assert "root" in text
    assert "DEAD LETTERS" in text


def test_the_counters_that_tell_of_losses_fit_80_columns(cluster):
    text = "\n".join(drawn(look(cluster), 80, 24, color_system=None))
    for heading in ("UNACKED", "DUPLICATES", "GAPS", "UNCONFIRMED", "MAILBOX", "HIGH", "LAST EXIT"):
        assert heading in text


def test_when_rows_are_cut_those_with_something_wrong_stay(cluster):
    cluster.children["root"] = [
        *(child(f"n{number}") for number in range(30)),
        child("bad", ChildState.WAITING, verdict=Verdict.DEAD),
    ]
    cluster.unlinked |= {f"n{number}" for number in range(30)}
    lines = drawn(look(cluster), 80, 14, color_system=None)
    assert "bad" in "\n".join(lines)
    assert any(line.startswith("... 2") and line.rstrip().endswith("more") for line in lines)


def test_colours_name_states_and_go_with_no_color(cluster, monkeypatch):
    cluster.children["root"][0] = child("chain", ChildState.PARKED, verdict=Verdict.DEAD)
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[31mparked" in "\n".join(drawn(look(cluster), 80, 24, color_system="standard"))
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[31m" not in "\n".join(drawn(look(cluster), 80, 24, color_system="standard"))


def edge(name, phase):
    return EdgeLine(
        name=name, source="a.out", target="b.in", phase=phase, run_id=1, max_extent_bytes=1, ring_bytes=4096, since_ms=0
    )


def with_controller(cluster):
    cluster.children["root"].append(child("controller"))
    cluster.children["controller"] = []
    cluster.edges = [edge("a", EdgePhase.READY), edge("b", EdgePhase.WAITING), edge("c", EdgePhase.READY)]
    return look(cluster)


def test_edges_are_one_line_that_counts_them_by_phase(cluster):
    frame = with_controller(cluster)
    lines = drawn(frame, 80, 24, color_system=None)
    assert "EDGES  1 waiting, 2 ready; 0 B/s" in [line.rstrip() for line in lines]
    assert len(document("reef", frame)["edges"]) == 3
    assert len(drawn(frame, 80, 9, color_system=None)) <= 9


def test_without_edges_the_screen_has_no_line_for_them(cluster):
    assert not any(line.startswith("EDGES") for line in drawn(look(cluster), 80, 24, color_system=None))


def test_a_planner_that_does_not_answer_costs_the_rest_nothing(cluster):
    cluster.silent.add("controller")
    frame = with_controller(cluster)
    assert (frame.edges, edges_of(frame)) == (None, "no answer")
    assert document("reef", frame)["edges"] is None


def test_the_document_has_every_link_and_actor(cluster):
    told = document("reef", look(cluster, root_pid=10))
    shed = told["processes"][2]
    assert (shed["name"], shed["pid"], shed["silent"]) == ("shed", 12, None)
    assert shed["links"][0].gaps == 3
    assert [actor["address"] for actor in shed["actors"]] == ["shed/supervisor", "shed/processes"]


SCREEN = """
import fcntl, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from runtime.cli.screen import watch
from runtime.cli.top import render
from runtime.sight import Frame, ProcessSight
frame = Frame(at_s=0.0, processes=(ProcessSight(name="root", pid=1),))
watch(lambda console: render("reef", frame, console), 30.0)
print("over")
"""


class Terminal:
    def __init__(self, stack: ExitStack) -> None:
        self.master, slave = pty.openpty()
        self.slave = slave
        stack.callback(os.close, self.master)
        stack.callback(os.close, slave)
        termios.tcsetwinsize(slave, (24, 80))
        self.before = termios.tcgetattr(slave)
        self.child = subprocess.Popen(
            [sys.executable, "-c", SCREEN], stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
            env={**os.environ, "TERM": "xterm"},
        )  # fmt: skip
        stack.enter_context(self.child)
        stack.callback(self.child.kill)

    def read_until(self, wanted: bytes) -> bytes:
        seen, deadline = b"", time.monotonic() + 20
        while wanted not in seen:
            assert select.select([self.master], [], [], deadline - time.monotonic())[0], seen
            seen += os.read(self.master, 65536)
        return seen


@pytest.mark.parametrize("ending", ["q", "ctrl-c", "sigterm"])
def test_the_screen_ends_at_once_and_the_terminal_is_as_before(ending):
    with ExitStack() as stack:
        terminal = Terminal(stack)
        terminal.read_until(b"q ends")
        match ending:
            case "q":
                os.write(terminal.master, b"xq")
            case "ctrl-c":
                os.write(terminal.master, b"\x03")
            case "sigterm":
                terminal.child.send_signal(signal.SIGTERM)
        seen = terminal.read_until(b"over")
        assert b"\x1b[?1049l" in seen, "the alternate screen is left"
        assert terminal.child.wait(10) == 0
        assert termios.tcgetattr(terminal.slave) == terminal.before
