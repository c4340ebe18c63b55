"""The wall clock may jump: supervision and liveness count on the monotonic one (design 6)."""

from __future__ import annotations

import pytest

from actors.actor import Actor
from actors.supervision.policy import Backoff, ChildSpec
from actors.supervision.supervisor import ActorChild, ProcessChild, Supervisor
from messages.base import Address, Message
from messages.ports import ProcessesMessage, ProcessExited, ProcessStarted, SignalProcess, StartProcess
from messages.supervision import ProcessBeat, ProcessReady, ShowChildren
from messages.system import Ping
from runtime.kernel.simulated import SimulatedWorld

HOUR_MS = 3_600_000
JUMPS = {"back an hour": -HOUR_MS, "forward a year": 365 * 24 * HOUR_MS}
SUPERVISOR = Address("root/supervisor")
PROCESSES = Address("root/processes")


class JumpingWorld(SimulatedWorld):
    jump_ms = 0

    def wall(self) -> int:
        return super().wall() + self.jump_ms


class Worker(Actor[Ping]):
    mailbox = Ping


class Port(Actor):
    """Starts whatever it is asked to; remembers who is told of the ends."""

    mailbox = ProcessesMessage

    def __init__(self) -> None:
        self.orders: list[StartProcess] = []
        self.signals: list[SignalProcess] = []

    def receive(self, message, ctx):
        match message:
            case StartProcess():
                self.orders.append(message)
                ctx.reply(ProcessStarted(pid=100 + len(self.orders)))
            case SignalProcess():
                self.signals.append(message)


@pytest.fixture
def world():
    world = JumpingWorld(seed=1)
    children = [
        ProcessChild(ChildSpec(name="chain", start_timeout_s=5), "chain", 3.0),
        ActorChild(ChildSpec(name="store"), Address("root/store"), Worker, 3.0),
    ]
    backoff = Backoff(first_s=0.1, ceiling_s=1, jitter=0)
    world.spawn(
        SUPERVISOR, lambda: Supervisor("root", children, backoff=backoff, processes=PROCESSES, port=Port, beat_s=1.0)
    )
    world.run_idle()
    return world


def hear(world, message: Message, sender: str = "chain/supervisor") -> None:
    world.tell(SUPERVISOR, message, sender=Address(sender))
    world.run_idle()


def beat(world, life: int) -> None:
    hear(world, ProcessBeat(name="chain", incarnation=life, slowest_ms=1, mailbox=0))


def rows(world):
    return {row.name: row for row in world.ask(SUPERVISOR, ShowChildren()).children}


@pytest.mark.parametrize("jump", JUMPS)
def test_a_jump_of_the_wall_clock_restarts_nobody_and_an_exit_after_it_is_followed_by_a_restart(world, jump):
    port = world.actor(PROCESSES)
    hear(world, ProcessReady(name="chain", incarnation=1))
    for second in range(6):
        if second == 3:
            world.jump_ms = JUMPS[jump]
        world.advance(1)
        beat(world, 1)
    assert port.signals == []
    assert {name: (row.state, row.restarts, row.verdict) for name, row in rows(world).items()} == {
        "chain": ("running", 0, None),
        "store": ("running", 0, None),
    }

    hear(world, ProcessExited(name="chain", incarnation=1, pid=101, code=-9, stderr_tail=""), PROCESSES)
    world.crash(Address("root/store"))
    world.advance(0.2)
    assert [order.incarnation for order in port.orders] == [1, 2], "after the back-off, neither at once nor in a year"
    hear(world, ProcessReady(name="chain", incarnation=2))
    assert [row.state for row in rows(world).values()] == ["running", "running"]
