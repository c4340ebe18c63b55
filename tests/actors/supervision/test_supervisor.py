"""The supervisor as an actor, on the virtual clock, with actors and with processes behind a scripted port."""

from __future__ import annotations

import pytest

from actors.actor import Actor, Context, Procedure
from actors.supervision.policy import Backoff, ChildSpec, Intensity
from actors.supervision.supervisor import ActorChild, ProcessChild, Supervisor
from messages.base import Address, Message, Request
from messages.ports import ProcessExited, ProcessStarted, SignalProcess, StartProcess
from messages.supervision import ProcessBeat, ProcessReady, ShowChildren, Shutdown, Spent, StartChild, StopChild
from messages.system import Done
from runtime.kernel.simulated import SimulatedWorld

ROOT, PORT, A, B = Address("root/supervisor"), Address("root/processes"), Address("one/a"), Address("one/b")


class Fall(Message, frozen=True):
    pass


class Hello(Request[Done], frozen=True):
    pass


class Worker(Actor[Fall | Hello]):
    mailbox = Fall | Hello

    def receive(self, message, ctx: Context) -> Procedure | None:
        if isinstance(message, Fall):
            raise ValueError("fell")
        ctx.reply(Done())
        return None


class Broken(Worker):
    def started(self, ctx):
        raise OSError("no good")


class Processes(Actor[StartProcess | SignalProcess]):
    """Starts what it is told; `ready` decides whether the process says so."""

    mailbox = StartProcess | SignalProcess

    def __init__(self) -> None:
        self.started_lives: list[tuple[str, int]] = []
        self.signals: list[tuple[str, int]] = []
        self.silent: set[str] = set()

    def receive(self, message, ctx: Context):
        if isinstance(message, StartProcess):
            self.started_lives.append((message.name, message.incarnation))
            ctx.reply(ProcessStarted(pid=100 + len(self.started_lives)))
        else:
            self.signals.append((message.name, message.signal))
            life = max(life for name, life in self.started_lives if name == message.name)
            ctx.tell(ROOT, _exit(message.name, life, -message.signal))


def _exit(name: str, life: int, code: int) -> ProcessExited:
    return ProcessExited(name=name, incarnation=life, pid=1, code=code, stderr_tail="")


def _states(world: SimulatedWorld) -> dict[str, str]:
    return {row.name: row.state.value for row in world.ask(ROOT, ShowChildren()).children}


def _actors(world: SimulatedWorld, *factories, **rules) -> None:
    children = [
        ActorChild(ChildSpec(name=address[-1]), address, factory, hung_after_s=3.0)
        for address, factory in zip((A, B), factories, strict=False)
    ]
    world.spawn(ROOT, lambda: Supervisor("one", children, **rules))
    world.run_idle()


def test_actors_start_are_ready_and_come_back_alone():
    world = SimulatedWorld(1)
    _actors(world, Worker, Worker)
    assert _states(world) == {"a": "running", "b": "running"}
    other = world.actor(B)
    world.tell(A, Fall())
    world.run_idle()
    assert _states(world)["a"] == "waiting"
    world.advance(0.1)
    assert _states(world)["a"] == "running"
    assert world.actor(B) is other
    assert world.ask(A, Hello()) == Done()


def test_an_actor_that_cannot_start_uses_the_budget_up_and_the_supervisor_fails():
    world = SimulatedWorld(1)
    _actors(world, Broken, intensity=Intensity(restarts=2, period_s=60))
    world.advance(30)
    assert ROOT not in world.cells
    assert any("spent the budget" in str(line) for line in world.logs)


def test_shutdown_stops_everything_and_ends():
    world = SimulatedWorld(1)
    _actors(world, Worker, Worker)
    world.tell(ROOT, Shutdown())
    world.run_idle()
    assert not world.cells


def _processes(world: SimulatedWorld, *names: str, **rules) -> Processes:
    world.spawn(PORT, Processes)
    spec = {"start_timeout_s": 2.0, "shutdown_timeout_s": 1.0}
    children = [ProcessChild(ChildSpec(name=name, **spec), "node", hung_after_s=3.0) for name in names]
    world.spawn(ROOT, lambda: Supervisor("root", children, processes=PORT, **rules))
    world.run_idle()
    return world.actor(PORT)


def _ready(world: SimulatedWorld, name: str, life: int, sender: str | None = None) -> None:
    world.tell(ROOT, ProcessReady(name=name, incarnation=life), Address(sender or f"{name}/supervisor"))
    world.run_idle()


def _beat(world: SimulatedWorld, name: str, life: int) -> None:
    beat = ProcessBeat(name=name, incarnation=life, slowest_ms=0, mailbox=0)
    world.tell(ROOT, beat, Address(f"{name}/supervisor"))
    world.run_idle()


def test_a_process_is_ready_when_it_says_so_itself():
    world = SimulatedWorld(1)
    _processes(world, "shed")
    assert _states(world) == {"shed": "starting"}
    _ready(world, "shed", 1, sender="loft/supervisor")
    assert _states(world) == {"shed": "starting"}, "nobody says it for another"
    _ready(world, "shed", 1)
    assert _states(world) == {"shed": "running"}


def test_a_killed_process_is_started_again_and_its_siblings_stay():
    world = SimulatedWorld(1)
    port = _processes(world, "shed", "loft")
    for name in ("shed", "loft"):
        _ready(world, name, 1)
    world.tell(ROOT, _exit("shed", 1, -9))
    world.advance(0.1)
    assert port.started_lives == [("shed", 1), ("loft", 1), ("shed", 2)]
    _ready(world, "shed", 2)
    row = world.ask(ROOT, ShowChildren()).children[0]
    assert (row.restarts, row.last_exit) == (1, "killed by signal 9")


def test_a_late_exit_of_an_earlier_life_changes_nothing():
    world = SimulatedWorld(1)
    _processes(world, "shed")
    _ready(world, "shed", 1)
    world.tell(ROOT, _exit("shed", 1, -9))
    world.advance(0.1)
    world.tell(ROOT, _exit("shed", 1, -9))
    world.run_idle()
    _ready(world, "shed", 2)
    assert _states(world) == {"shed": "running"}


def test_a_process_that_is_never_ready_is_killed_and_tried_again():
    world = SimulatedWorld(1)
    port = _processes(world, "shed")
    world.advance(2.3)
    assert ("shed", 9) in port.signals
    assert ("shed", 2) in port.started_lives


def test_a_process_that_stops_beating_is_killed_and_restarted_and_one_that_beats_is_not():
    world = SimulatedWorld(1)
    port = _processes(world, "shed", "loft")
    for name in ("shed", "loft"):
        _ready(world, name, 1)
    for _ in range(6):
        _beat(world, "loft", 1)
        world.advance(1)
    assert port.signals == [("shed", 9)]
    assert ("shed", 2) in port.started_lives


def test_a_spent_budget_parks_the_process_and_leaves_its_siblings():
    world = SimulatedWorld(1)
    backoff = Backoff(first_s=0.05, ceiling_s=5.0)
    port = _processes(
        world, "shed", "loft", spent=Spent.PARK, intensity=Intensity(restarts=2, period_s=60), backoff=backoff
    )
    _ready(world, "loft", 1)
    for life in (1, 2, 3):
        world.tell(ROOT, _exit("shed", life, 1))
        _beat(world, "loft", 1)
        world.advance(1)
    assert _states(world) == {"shed": "parked", "loft": "running"}
    assert ROOT in world.cells
    for _ in range(6):
        _beat(world, "loft", 1)
        world.advance(1)
    assert ("shed", 4) in port.started_lives, "tried again at the ceiling"


def test_what_an_operator_stopped_stays_stopped_until_started():
    world = SimulatedWorld(1)
    port = _processes(world, "shed")
    _ready(world, "shed", 1)
    assert world.ask(ROOT, StopChild(name="shed")).refused is None
    world.advance(10)
    assert _states(world) == {"shed": "stopped"}
    assert port.signals == [("shed", 15)]
    world.ask(ROOT, StartChild(name="shed"))
    world.run_idle()
    assert port.started_lives[-1] == ("shed", 2)
    assert world.ask(ROOT, StopChild(name="nobody")).refused == "unknown_child"


@pytest.mark.parametrize("stubborn", [True, False])
def test_shutdown_kills_what_does_not_go(stubborn):
    class Stubborn(Processes):
        def receive(self, message, ctx):
            if isinstance(message, SignalProcess) and message.signal == 15 and stubborn:
                self.signals.append((message.name, 15))
            else:
                super().receive(message, ctx)

    world = SimulatedWorld(1)
    world.spawn(PORT, Stubborn)
    spec = ChildSpec(name="shed", shutdown_timeout_s=1.0)
    world.spawn(ROOT, lambda: Supervisor("root", [ProcessChild(spec, "node", 3.0)], processes=PORT))
    world.run_idle()
    _ready(world, "shed", 1)
    port = world.actor(PORT)
    world.tell(ROOT, Shutdown())
    world.advance(1.5)
    assert ROOT not in world.cells
    assert port.signals == ([("shed", 15), ("shed", 9)] if stubborn else [("shed", 15)])
