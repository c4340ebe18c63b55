"""Every kind of process and every fault: who notices, what is told, who comes back, and that nobody else does.

One row a case. In each of them two asks are open at the actor when the fault comes, and both are answered. What the
table leaves to others: workloads across faults (`test_kills`), what an operator broke (`test_budget`, `test_refusals`),
a killed root (`test_root`), a killed edges process (`test_edges`), each verdict by itself (`test_verdicts`), and a shim
that cannot start (`test_shim`).
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from actors.actor import AskFailed
from messages.base import Address, Request
from messages.chain import GetHead
from messages.control import Method
from messages.gate import GetPolicy
from messages.node import GetInstances
from messages.placement import ListNodes
from messages.ports import SignalProcess
from messages.supervision import ChildState, ChildView, ShowChildren, StartChild, Verdict
from messages.system import GetState, GetStatistics, Resume, Suspend
from runtime.cluster.settings import Restarts, Times
from runtime.process import FAILED_EXIT

FAULTS = Path(__file__).with_name("faults")
SUPERVISOR = Address("root/supervisor")
TIMES = Times(beat_s=0.3, hung_after_s=1.6, stop_grace_s=1.0)
RESTARTS = Restarts(intensity=2, backoff_first_s=0.1, backoff_ceiling_s=0.5)
ASK_S = 10.0
"""Longer than any fault takes to be noticed: an ask that ends with it was not answered."""

BROKEN = "a fault of the test"
LOST = {"died", "unreachable"}

ACTORS: dict[str, tuple[str, Request[Any]]] = {
    "chain": ("chain", GetHead()),
    "gate": ("gate", GetPolicy()),
    "controller": ("plane", ListNodes()),
    "shed": ("agent", GetInstances()),
}


class Then(Enum):
    ON = "nothing is restarted"
    ACTOR = "the actor is restarted, and its process stays"
    PROCESS = "the process is restarted"
    PARKED = "the process is parked, and comes back at the ceiling once it can"


HANGS = "hangs: no beat for"


@dataclass(frozen=True)
class Row:
    """`fault`: a signal, or what the request or the start after it meets. `says`: what is told of the end, or ways of
    telling it (`|` between them)."""

    name: str
    process: str
    fault: signal.Signals | str
    then: Then
    says: str = ""
    seen: Verdict | None = None

    def __str__(self) -> str:
        return f"{self.process}-{self.name}"


def rows() -> Iterator[Row]:
    for process in ACTORS:
        # After a failed write nobody knows what the disk holds: the chain's actors come back with their process only
        actor = Then.PROCESS if process == "chain" else Then.ACTOR
        yield Row("killed", process, signal.SIGKILL, Then.PROCESS, "killed by signal 9")
        yield Row("stopped_for_long", process, signal.SIGSTOP, Then.PROCESS, "killed by signal 9", Verdict.HUNG)
        yield Row("stopped_for_a_moment", process, signal.SIGCONT, Then.ON)
        yield Row("exit_in_handler", process, "request exit", actor, f"SystemExit: {BROKEN}")
        yield Row("error_in_handler", process, "request raise", actor, f"ValueError: {BROKEN}")
        yield Row("error_in_procedure", process, "request procedure", actor, f"ValueError: {BROKEN}")
        yield Row("error_in_start", process, "start raise", actor, f"ready: ValueError: {BROKEN}")
        yield Row("exit_in_start", process, "start exit", actor, f"ready: SystemExit: {BROKEN}")
        # The process that sees an actor of its own hang ends itself; the root that hears nothing kills it
        yield Row("blocked", process, "request block", Then.PROCESS, f"{HANGS}|killed by signal 9", Verdict.HUNG)
        yield Row("error_in_every_start", process, "every raise", Then.PARKED, f"ValueError: {BROKEN}", Verdict.DEAD)


class Matrix:
    """A cluster whose actors meet faults on order, at rest before each row."""

    def __init__(self, live: Any, pool: ThreadPoolExecutor) -> None:
        self.live = live
        self._pool = pool
        self.faults = live.folder / "faults"
        self.faults.mkdir()
        self.environment = {
            "PYTHONPATH": str(FAULTS),
            "SENNIT_TEST_FAULTS": str(self.faults),
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def up(self) -> Matrix:
        self.live.up(**self.environment)
        return self

    def rest(self, process: str) -> None:
        """Everything runs, and the budgets outlast the next fault."""
        for file in self.faults.iterdir():
            file.unlink()
        live = self.live
        live.wait_running()
        live.ask(SUPERVISOR, StartChild(name=process))  # forgives
        row = live.until(lambda: self.rows_of(process), what="its own supervisor answers")[ACTORS[process][0]]
        if process != "chain" and row.budget_left < 2:
            before = live.child(process)
            live.life(process).kill()
            live.wait_child(process, lambda now: running(now, before))
            live.ask(SUPERVISOR, StartChild(name=process))

    def order(self, address: str, message: str, fault: str, count: int = 1) -> None:
        file = self.faults / f"{address.replace('/', ':')}.{message}"
        file.write_text(f"{fault} {count}")

    def start_ask(self, to: Address, request: Request[Any]) -> Future[Any]:
        return self._pool.submit(self.live.ask, to, request, ASK_S)

    def rows_of(self, process: str) -> dict[str, ChildView]:
        view = self.live.ask(Address(f"{process}/supervisor"), ShowChildren(), 2.0)
        return {row.name: row for row in view.children}


def outcome(ask: Future[Any]) -> str:
    try:
        ask.result(ASK_S + 5)
    except AskFailed as failed:
        return failed.failure.value
    return "answered"


@pytest.fixture(scope="module")
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


@pytest.fixture(scope="module")
def matrix(make_module_cluster, pool) -> Matrix:
    return Matrix(make_module_cluster(("attic", "shed"), times=TIMES, restarts=RESTARTS), pool).up()


@pytest.mark.parametrize("row", list(rows()), ids=str)
def test_fault(matrix, row):
    live, process = matrix.live, row.process
    matrix.rest(process)
    name, request = ACTORS[process]
    actor = Address(f"{process}/{name}")
    pids, life = live.pids(), live.life(process)
    before, child = matrix.rows_of(process), live.child(process)

    # two asks are open when the fault comes
    live.ask(actor, Suspend())
    waiting = live.ask(actor, GetStatistics()).mailbox
    asks = [matrix.start_ask(actor, request) for _ in range(2)]
    live.until(lambda: live.ask(actor, GetStatistics()).mailbox >= waiting + 2, what="the asks are in the mailbox")

    verdicts: set[Verdict | None] = set()

    def watched(condition):
        def seen():
            now = live.child(process)
            verdicts.add(now.verdict)
            return now if condition(now) else None

        return live.until(seen, what=str(row))

    match row.fault:
        case signal.SIGCONT:
            life.kill(signal.SIGSTOP)
            watched(lambda now: now.verdict is not None)
            life.kill(signal.SIGCONT)
            live.ask(actor, Resume())
        case signal.Signals():
            life.kill(row.fault)
        case "every raise":
            matrix.order(f"{process}/supervisor", "started", "raise", 1000)
            life.kill()
        case str():
            when, fault = row.fault.split()
            if when == "start":
                matrix.order(actor, "started", fault)
            matrix.order(actor, type(request).__name__, fault if when == "request" else "raise")
            with suppress(AskFailed):  # it may end before it can say that it goes on
                live.ask(actor, Resume())

    match row.then:
        case Then.ON:
            assert [outcome(ask) for ask in asks] == ["answered"] * 2
            after = watched(lambda now: now.verdict is None)
            assert (after.restarts, after.incarnation) == (child.restarts, child.incarnation)
            assert verdicts - {None} <= {Verdict.OVERLOADED, Verdict.HUNG}
        case Then.ACTOR:
            now = live.until(lambda: running(matrix.rows_of(process)[name], before[name]), what=str(row))
            assert row.says in now.last_exit
            others = {other: row.restarts for other, row in matrix.rows_of(process).items() if other != name}
            assert others == {other: before[other].restarts for other in others}
            assert live.child(process).restarts == child.restarts
        case Then.PROCESS:
            now = watched(lambda now: running(now, child))
            assert any(words in now.last_exit for words in row.says.split("|"))
            assert row.seen is None or row.seen in verdicts or HANGS in now.last_exit
            with pytest.raises(ProcessLookupError):
                life.kill(signal.SIGCONT)  # too late, and its number's next owner does not meet it
        case Then.PARKED:
            parked = watched(lambda now: now.state is ChildState.PARKED)
            assert row.says in parked.last_exit
            assert parked.verdict is row.seen
            assert 0 <= parked.next_attempt_s <= RESTARTS.backoff_ceiling_s
            (matrix.faults / f"{process}:supervisor.started").unlink()
            watched(lambda now: now.state is ChildState.RUNNING)

    if row.then is not Then.ON:
        outcomes = {outcome(ask) for ask in asks}
        assert outcomes & LOST
        # A procedure that fails lets the actor take what comes before that
        assert outcomes <= (LOST | {"answered"} if row.name == "error_in_procedure" else LOST)
    changed = {other for other, pid in live.pids().items() if pid != pids[other]}
    assert changed == (set() if row.then in (Then.ON, Then.ACTOR) else {process})
    assert live.until(lambda: live.ask(actor, request), what="it serves")
    if row.fault in (signal.SIGKILL, signal.SIGSTOP):
        live.check_serves()


def running(now, before):
    """It runs, in a later life than `before`."""
    return now if now.state is ChildState.RUNNING and now.incarnation > before.incarnation else None


# The root has nobody above it: what it cannot go on from ends the whole cluster at once, with the reason.

ROOT_ROWS = {
    "exit_in_handler": ("root/supervisor", "exit", "SystemExit"),
    "error_in_handler": ("root/supervisor", "raise", "ValueError"),
    "error_in_procedure": ("root/supervisor", "procedure", "ValueError"),
    "exit_in_port": ("root/processes", "exit", "SystemExit"),
    "error_in_port": ("root/processes", "raise", "ValueError"),
}


@pytest.fixture
def rooted(make_cluster, pool) -> Matrix:
    return Matrix(make_cluster(times=TIMES, restarts=RESTARTS), pool)


@pytest.mark.parametrize("row", ROOT_ROWS)
def test_a_root_that_fails_ends_with_its_reason_and_nobody_outlives_it(rooted, row):
    actor, fault, says = ROOT_ROWS[row]
    live = rooted.up().live
    lives = [live.life(found.pid) for found in live.left()]
    request = SignalProcess(name="chain", signal=0) if actor == "root/processes" else ShowChildren()
    rooted.order(actor, type(request).__name__, fault)
    with pytest.raises(AskFailed) as failed:
        live.ask(Address(actor), request, ASK_S)
    assert failed.value.failure.value in LOST
    live.hang_up()
    assert live.wait_root() == FAILED_EXIT
    assert f"{says}: {BROKEN}" in live.words()
    assert all(life.wait_end(2.0) for life in lives)
    assert live.left() == []


@pytest.mark.parametrize("actor", ["root/supervisor", "root/processes"])
def test_a_root_whose_actor_cannot_start_ends_with_its_reason(rooted, actor):
    rooted.order(actor, "started", "raise", 1000)
    live = rooted.live
    live.root = live.launch(**rooted.environment)
    assert live.wait_root() == FAILED_EXIT
    assert f"ValueError: {BROKEN}" in live.words()
    assert live.left() == []


def test_a_root_that_is_stopped_for_long_goes_on_and_restarts_nobody(rooted):
    live = rooted.up().live
    before, root = live.pids(), live.life(live.root.pid)
    root.kill(signal.SIGSTOP)
    with pytest.raises(AskFailed) as failed:
        live.ask(SUPERVISOR, ShowChildren(), TIMES.hung_after_s + 2 * TIMES.beat_s)
    assert failed.value.failure.value in {"timeout", *LOST}
    assert live.ask(Address("gate/gate"), GetPolicy()), "the others serve on"
    root.kill(signal.SIGCONT)
    live.wait_running()
    assert live.pids() == before
    assert [child.restarts for child in live.tree().children] == [0] * len(before)


def test_a_root_whose_mailbox_is_blocked_answers_nothing_and_takes_nobody_with_it_until_it_is_killed(rooted):
    live = rooted.up().live
    lives = [live.life(found.pid) for found in live.left()]
    rooted.order("root/supervisor", "ShowChildren", "block")
    with pytest.raises(AskFailed) as failed:
        live.ask(SUPERVISOR, ShowChildren(), TIMES.hung_after_s)
    assert failed.value.failure.value == "timeout"
    assert live.ask(Address("gate/gate"), GetPolicy()), "the others serve on"
    assert live.end(signal.SIGKILL) == -signal.SIGKILL
    assert all(life.wait_end(2.0) for life in lives)


def test_a_node_whose_processes_port_fails_ends_whole_and_comes_back(matrix):
    """The new port would not know what the old one started."""
    matrix.rest("shed")
    live = matrix.live
    before, child = live.pids(), live.child("shed")
    supervisor, port = (Address(f"shed/{one}") for one in ("supervisor", "processes"))
    live.ask(supervisor, StartChild(name="shed.edges"))
    live.until(lambda: matrix.rows_of("shed")["shed.edges"].state is ChildState.RUNNING, what="the edges process runs")
    edges = live.life(live.ask(port, GetState()).state["shed.edges"]["pid"])
    matrix.order(port, "SignalProcess", "raise")
    with pytest.raises(AskFailed) as failed:
        live.ask(port, SignalProcess(name="shed.edges", signal=0), ASK_S)
    assert failed.value.failure.value in LOST
    now = live.wait_child("shed", lambda now: running(now, child))
    assert f"ValueError: {BROKEN}" in now.last_exit
    assert edges.wait_end(2.0)
    assert {name for name, pid in live.pids().items() if pid != before[name]} == {"shed"}


# A shim is no actor and loads no code but its own: it meets signals only.


def test_a_workload_whose_shim_is_stopped_for_a_moment_goes_on(matrix):
    live = matrix.live
    line = live.place()
    shim = live.shim_of(line.pid)
    shim.kill(signal.SIGSTOP)
    assert live.order(Method.STATUS, line.instance_id)["status"]["pid"] == line.pid
    shim.kill(signal.SIGCONT)
    assert live.wait_instance(line.instance_id).pid == line.pid
    live.unload(line.instance_id)


def test_a_stop_of_a_workload_whose_shim_stands_still_kills_the_shim_and_is_answered(matrix):
    live = matrix.live
    line = live.place()
    workload, shim = live.life(line.pid), live.shim_of(line.pid)
    shim.kill(signal.SIGSTOP)
    live.order(Method.STOP, line.instance_id)
    assert shim.wait_end(0)
    assert workload.wait_end(0), "stopped means that no process is left"
    live.order(Method.UNLOAD, line.instance_id)
