"""What is wrong with a child, as its supervisor sees it: one case for each verdict, on the simulated world."""

from __future__ import annotations

import pytest

from actors.actor import Actor
from actors.supervision.policy import Backoff, ChildSpec, Intensity
from actors.supervision.supervisor import LONG_MAILBOX, ActorChild, ProcessChild, Supervisor
from messages.base import Address, Request
from messages.ports import ProcessesMessage, ProcessExited, ProcessStarted, SignalProcess, StartProcess
from messages.supervision import ProcessBeat, ProcessReady, ShowChildren, Spent, Verdict
from messages.system import Done, GetStatistics
from runtime.kernel.mailbox import MAX_MESSAGES
from runtime.kernel.simulated import SimulatedWorld

ROOT, PROCESSES = Address("root/supervisor"), Address("root/processes")
CHAIN = Address("chain/supervisor")


class Port(Actor):
    mailbox = ProcessesMessage

    def __init__(self):
        self.killed = 0

    def receive(self, message, ctx):
        match message:
            case StartProcess():
                ctx.reply(ProcessStarted(pid=7))
            case SignalProcess(signal=9):
                self.killed += 1


class Work(Request[Done], frozen=True):
    pass


class Peer(Actor):
    """Stands for the process at the other end of the link."""

    mailbox = Work

    def receive(self, message, ctx):
        ctx.reply(Done())


class Root:
    """A root with the process `chain`, which runs and whose link is up."""

    def __init__(self, *, hung_after_s=3.0, restarts=2):
        self.world = SimulatedWorld(seed=5)
        self.world.spawn(PROCESSES, Port)
        self.world.run_idle()
        children = [ProcessChild(ChildSpec(name="chain", start_timeout_s=5), "chain", hung_after_s)]
        self.world.spawn(
            ROOT,
            lambda: Supervisor(
                "root",
                children,
                processes=PROCESSES,
                spent=Spent.PARK,
                intensity=Intensity(restarts=restarts),
                backoff=Backoff(ceiling_s=4, jitter=0),
            ),
        )
        self.world.run_idle()
        self.world.spawn(CHAIN, Peer)
        self.world.run_idle()
        self.ready()

    @property
    def row(self):
        return self.world.ask(ROOT, ShowChildren()).children[0]

    def ready(self):
        self.world.tell(ROOT, ProcessReady(name="chain", incarnation=self.row.incarnation), sender=CHAIN)
        self.world.run_idle()

    def beat(self, slowest_ms=1, mailbox=0):
        beat = ProcessBeat(name="chain", incarnation=self.row.incarnation, slowest_ms=slowest_ms, mailbox=mailbox)
        self.world.tell(ROOT, beat, sender=CHAIN)
        self.world.run_idle()

    def exit(self):
        told = ProcessExited(name="chain", incarnation=self.row.incarnation, pid=7, code=-9, stderr_tail="")
        self.world.tell(ROOT, told, sender=PROCESSES)
        self.world.run_idle()

    def seconds(self, count, **beat):
        for _ in range(count):
            self.world.advance(1)
            self.beat(**beat)


def test_a_process_that_beats_has_no_verdict():
    root = Root()
    root.seconds(5)
    assert root.row.verdict is None


def test_an_exit_makes_it_dead_until_it_is_started_again():
    root = Root(restarts=0)
    root.exit()
    assert (root.row.state, root.row.verdict) == ("parked", Verdict.DEAD)
    root.world.advance(4.1)
    assert (root.row.state, root.row.verdict) == ("starting", None)


def test_silence_over_a_living_link_is_first_late_then_hung_and_it_is_killed():
    root = Root(hung_after_s=6)
    seen = []
    for _ in range(14):
        root.world.advance(0.5)
        seen.append(root.row.verdict)
    assert seen[:4] == [None] * 4
    assert seen[4:6] == [Verdict.OVERLOADED] * 2
    assert set(seen[6:]) == {Verdict.HUNG}
    root.world.advance(1)
    assert root.world.actor(PROCESSES).killed == 1
    assert root.row.verdict is Verdict.HUNG, "its exit was not seen yet"
    root.exit()
    assert root.row.verdict is Verdict.DEAD


def test_the_next_life_of_a_hung_process_starts_without_its_verdict():
    root = Root()
    root.world.advance(5)
    root.exit()
    root.world.advance(1)
    root.ready()
    assert (root.row.state, root.row.verdict) == ("running", None)


@pytest.mark.parametrize(
    ("beat", "verdict"),
    [
        ({"slowest_ms": 1000}, None),
        ({"slowest_ms": 1001}, Verdict.OVERLOADED),
        ({"mailbox": LONG_MAILBOX - 1}, None),
        ({"mailbox": LONG_MAILBOX}, Verdict.OVERLOADED),
    ],
)
def test_slow_answers_and_long_mailboxes_make_it_overloaded(beat, verdict):
    root = Root()
    root.seconds(2, **beat)
    assert root.row.verdict is verdict
    root.seconds(1)
    assert root.row.verdict is None, "a good beat clears it"


def test_half_a_mailbox_is_long():
    assert LONG_MAILBOX == MAX_MESSAGES // 2


def test_a_lost_link_without_an_exit_is_a_partition_until_it_heals():
    root = Root(hung_after_s=60)
    root.seconds(1)
    root.world.cut("root", "chain")
    root.world.advance(0.1)
    assert root.row.verdict is Verdict.PARTITIONED
    root.world.advance(10)
    assert root.row.verdict is Verdict.PARTITIONED, "and not hung, though it is silent"
    root.world.heal("root", "chain")
    root.beat()
    assert root.row.verdict is None


def test_a_lost_link_and_an_exit_are_a_death():
    root = Root()
    root.world.stop(CHAIN)
    root.world.run_idle()
    assert root.row.verdict is Verdict.PARTITIONED
    root.exit()
    assert root.row.verdict is Verdict.DEAD
    root.world.advance(0.2)
    root.world.spawn(CHAIN, Peer)
    root.world.run_idle()
    root.ready()
    assert root.row.verdict is None


class Slow(Actor):
    """Answers its beats late in the mailbox's eyes: as full as the test says."""

    mailbox = Work

    def receive(self, message, ctx):
        return None


def test_an_actor_with_a_long_mailbox_is_overloaded_and_a_crashed_one_dead():
    world = SimulatedWorld(seed=5)
    address = Address("node/agent")
    children = [ActorChild(ChildSpec(name="agent"), address, Slow, 60.0)]
    world.spawn(Address("node/supervisor"), lambda: Supervisor("node", children, backoff=Backoff(jitter=0)))
    world.run_idle()

    def verdict():
        return world.ask(Address("node/supervisor"), ShowChildren()).children[0].verdict

    world.advance(1.5)
    assert verdict() is None
    mailbox = world.cells[address].mailbox
    mailbox.suspended = True
    for _ in range(LONG_MAILBOX):
        world.tell(address, Work(), sender=Address("test/probe"))
    world.run_idle()
    assert world.ask(address, GetStatistics()).mailbox == LONG_MAILBOX
    world.advance(1)
    assert verdict() is Verdict.OVERLOADED
    world.crash(address)
    world.run_idle()
    assert verdict() is Verdict.DEAD
    world.advance(2.5)
    assert verdict() is None
