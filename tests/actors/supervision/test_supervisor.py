"""The actor around the rules: real decisions, simulated actors and processes."""

from __future__ import annotations

import pytest

from actors.actor import Actor
from actors.supervision.policy import Backoff, ChildSpec, Intensity
from actors.supervision.supervisor import ActorChild, ProcessChild, Supervisor
from messages.base import Address, Message, Request
from messages.ports import PortRefusal, ProcessesMessage, ProcessExited, ProcessStarted, SignalProcess, StartProcess
from messages.supervision import (
    ProcessBeat,
    ProcessReady,
    ShowChildren,
    Shutdown,
    Spent,
    StartChild,
    StopChild,
    Strategy,
    SupervisionRefusal,
)
from messages.system import Done, Suspend
from runtime.kernel.simulated import SimulatedWorld

SUPERVISOR = Address("node/supervisor")
ROOT = Address("test/root")
PROCESSES = Address("root/processes")
BACKOFF = Backoff(first_s=0.1, factor=2, ceiling_s=4, jitter=0)


class Work(Request[Done], frozen=True):
    pass


class Worker(Actor):
    mailbox = Work
    starts: list[str] = []

    def __init__(self, name: str, fail: bool = False) -> None:
        self._name, self._fail = name, fail

    def started(self, ctx):
        Worker.starts.append(self._name)
        if self._fail:
            raise RuntimeError("no such device")

    def stopped(self, ctx):
        Worker.starts.append("-" + self._name)

    def receive(self, message, ctx):
        ctx.reply(Done())


@pytest.fixture
def world():
    Worker.starts = []
    return SimulatedWorld(seed=3)


def address(name: str) -> Address:
    return Address(f"node/{name}")


def supervise(world, *names, failing=(), hung_after_s=None, **options):
    children = [
        ActorChild(ChildSpec(name=name), address(name), lambda name=name: Worker(name, name in failing), hung_after_s)
        for name in names
    ]
    options = {"backoff": BACKOFF, "intensity": Intensity(restarts=3, period_s=30)} | options
    world.spawn(SUPERVISOR, lambda: Supervisor("node", children, **options))
    world.run_idle()


def rows(world, supervisor=SUPERVISOR):
    return {row.name: row for row in world.ask(supervisor, ShowChildren()).children}


def states(world, supervisor=SUPERVISOR):
    return {name: row.state.value for name, row in rows(world, supervisor).items()}


def test_actors_are_started_and_a_crashed_one_comes_back_alone(world):
    supervise(world, "store", "agent")
    assert states(world) == {"store": "running", "agent": "running"}
    world.crash(address("store"))
    world.advance(0.05)
    assert states(world)["store"] == "waiting"
    world.advance(0.1)
    assert Worker.starts == ["store", "agent", "store"]
    row = rows(world)["store"]
    assert (row.state, row.incarnation, row.restarts, row.last_exit) == ("running", 2, 1, "killed by the test")


def test_rest_for_one_stops_the_later_ones_in_reverse_and_starts_them_in_order(world):
    supervise(world, "a", "b", "c", strategy=Strategy.REST_FOR_ONE)
    Worker.starts.clear()
    world.crash(address("a"))
    world.advance(1)
    assert Worker.starts == ["-c", "-b", "a", "b", "c"]


def test_an_actor_that_cannot_start_is_tried_with_backoff_and_spends_the_budget(world):
    supervise(world, "good", "bad", failing=("bad",))
    world.advance(0.65)  # 0.1, 0.2 and 0.4 s of back-off
    assert Worker.starts.count("bad") == 3
    world.advance(0.1)
    assert Worker.starts.count("bad") == 4
    assert SUPERVISOR not in world.cells, "its budget was spent"
    assert Worker.starts[-1] == "-good"


def test_a_supervisor_that_gives_up_names_the_child_and_its_last_failure(world):
    supervise(world, "bad", failing=("bad",), intensity=Intensity(restarts=0, period_s=30))
    world.advance(1)
    texts = " ".join(str((text, fields)) for _, _, text, fields in world.logs)
    assert "spent the budget of 0 restarts" in texts
    assert "no such device" in texts


def test_what_an_operator_stops_stays_stopped_until_started(world):
    supervise(world, "a", "b")
    done = world.ask(SUPERVISOR, StopChild(name="a"))
    assert done.child.state == "stopping"
    world.advance(60)
    assert states(world) == {"a": "stopped", "b": "running"}
    assert world.ask(SUPERVISOR, StartChild(name="a")).child.state == "starting"
    world.advance(1)
    assert states(world)["a"] == "running"
    refused = world.ask(SUPERVISOR, StopChild(name="x"))
    assert refused.refused is SupervisionRefusal.UNKNOWN_CHILD
    assert "children: a, b" in refused.detail


def test_shutdown_stops_in_reverse_order_and_then_the_supervisor_ends(world):
    supervise(world, "a", "b", "c")
    Worker.starts.clear()
    world.tell(SUPERVISOR, Shutdown(reason="asked by a test"))
    world.advance(1)
    assert Worker.starts == ["-c", "-b", "-a"]
    assert SUPERVISOR not in world.cells


def test_an_actor_that_hangs_takes_its_process_with_it(world):
    supervise(world, "a", hung_after_s=3)
    world.advance(10)
    assert SUPERVISOR in world.cells
    world.ask(address("a"), Suspend())
    world.advance(1)
    world.lose(lambda envelope: envelope.sender == address("a"), count=100)
    world.advance(10)
    assert SUPERVISOR not in world.cells


class FakeProcesses(Actor):
    """The port: a test says what processes do."""

    mailbox = ProcessesMessage

    def __init__(self) -> None:
        self.running: dict[str, tuple[StartProcess, Address]] = {}
        self.signals: list[tuple[str, int, bool]] = []
        self.started_names: list[str] = []
        self.refuse = False

    def receive(self, message, ctx):
        match message:
            case StartProcess():
                if self.refuse:
                    ctx.refuse(PortRefusal.IO_ERROR, "Resource temporarily unavailable")
                    return
                assert message.name not in self.running
                self.running[message.name] = (message, ctx.sender)
                self.started_names.append(message.name)
                ctx.reply(ProcessStarted(pid=100 + len(self.started_names)))
            case SignalProcess():
                self.signals.append((message.name, message.signal, message.group))


class Processes:
    """The world of process children, as their supervisor `root/supervisor` sees it."""

    supervisor = Address("root/supervisor")

    def __init__(self, world, *names, **options):
        self.world = world
        children = [
            ProcessChild(ChildSpec(name=name, start_timeout_s=5, shutdown_timeout_s=2), "role", 3.0) for name in names
        ]
        options = {"backoff": BACKOFF, "intensity": Intensity(restarts=2, period_s=30), "spent": Spent.PARK} | options
        options |= {"processes": PROCESSES, "port": FakeProcesses}
        world.spawn(self.supervisor, lambda: Supervisor("root", children, **options))
        world.run_idle()
        self.port = world.actor(PROCESSES)

    def life(self, name):
        return self.port.running[name][0].incarnation

    def ready(self, name, life=None, sender=None):
        message = ProcessReady(name=name, incarnation=life or self.life(name))
        self.world.tell(self.supervisor, message, sender=Address(sender or f"{name}/supervisor"))
        self.world.run_idle()

    def beat(self, name):
        message = ProcessBeat(name=name, incarnation=self.life(name), slowest_ms=1, mailbox=0)
        self.world.tell(self.supervisor, message, sender=Address(f"{name}/supervisor"))

    def end(self, name, code, stderr=""):
        order, owner = self.port.running.pop(name)
        message: Message = ProcessExited(name=name, incarnation=order.incarnation, pid=1, code=code, stderr_tail=stderr)
        self.world.tell(owner, message, sender=PROCESSES)
        self.world.run_idle()

    def states(self):
        return states(self.world, self.supervisor)


def test_a_process_is_running_when_its_own_supervisor_says_so(world):
    root = Processes(world, "chain", "gate")
    assert root.states() == {"chain": "starting", "gate": "starting"}
    root.ready("chain", sender="gate/supervisor")  # another process cannot speak for it
    root.ready("gate", life=7)  # nor another life
    assert root.states() == {"chain": "starting", "gate": "starting"}
    root.ready("chain")
    assert root.states() == {"chain": "running", "gate": "starting"}


def test_a_process_that_dies_before_it_is_ready_is_reported_with_its_last_words(world):
    root = Processes(world, "chain")
    root.end("chain", 78, "chain: no key in keys/chain\n")
    row = rows(world, root.supervisor)["chain"]
    assert row.state == "waiting"
    assert row.last_exit == "before it was ready: exit code 78: chain: no key in keys/chain"


def test_a_process_that_is_never_ready_is_killed_whole_and_started_again(world):
    root = Processes(world, "chain")
    world.advance(5.1)
    assert root.port.signals == [("chain", 9, True)]
    root.end("chain", -9)
    world.advance(0.2)
    assert root.life("chain") == 2


def test_a_running_process_that_falls_silent_is_killed(world):
    root = Processes(world, "chain")
    root.ready("chain")
    for _ in range(5):
        world.advance(1)
        root.beat("chain")
    assert root.port.signals == []
    world.advance(5)
    assert ("chain", 9, True) in root.port.signals


def test_what_could_not_be_heard_while_the_supervisor_itself_stood_still_is_no_silence(world):
    root = Processes(world, "chain")
    root.ready("chain")
    world.advance(1)
    world.now_s += 60  # it was stopped, and went on: its timer fires before what came meanwhile is taken
    root.beat("chain")
    world.advance(2)
    assert root.port.signals == []
    world.advance(3)
    assert root.port.signals == [("chain", 9, True)], "it is silent by now"


def test_a_system_that_cannot_start_a_process_is_asked_again_later(world):
    root = Processes(world, "chain")
    root.port.refuse = True
    root.end("chain", 1)
    world.advance(0.2)
    assert "Resource temporarily unavailable" in rows(world, root.supervisor)["chain"].last_exit
    root.port.refuse = False
    world.advance(1)
    root.ready("chain")
    assert root.states() == {"chain": "running"}


def test_a_process_whose_budget_is_spent_is_parked_and_its_siblings_stay(world):
    root = Processes(world, "chain", "gate")
    root.ready("gate")
    for _ in range(3):
        root.end("chain", 1)
        root.beat("gate")
        world.advance(0.3)
    assert root.states() == {"chain": "parked", "gate": "running"}
    for _ in range(4):
        world.advance(1)
        root.beat("gate")
    assert root.states()["chain"] == "starting"


def test_processes_are_stopped_one_after_the_other_in_reverse_and_killed_if_they_stay(world):
    root = Processes(world, "chain", "gate")
    for name in ("chain", "gate"):
        root.ready(name)
    world.tell(root.supervisor, Shutdown())
    world.run_idle()
    assert root.port.signals == [("gate", 15, False)]
    root.end("gate", 0)
    assert root.port.signals[1:] == [("chain", 15, False)]
    world.advance(2.1)
    assert root.port.signals[2:] == [("chain", 9, True)]
    root.end("chain", -9)
    assert root.supervisor not in world.cells


def test_a_supervisor_whose_processes_port_crashed_ends_with_the_reason(world):
    root = Processes(world, "chain", "gate")
    root.ready("chain")
    world.crash(PROCESSES)
    world.run_idle()
    assert root.supervisor not in world.cells
    assert "the port that starts processes and sees them end crashed: killed by the test" in str(world.logs)
