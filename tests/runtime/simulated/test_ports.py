"""The simulated ports keep the promises of `messages.ports`, so what is tested on them holds on the live ones."""

from hashlib import sha256

import pytest

from actors.actor import Actor, AskFailed
from messages.base import Address
from messages.ports import (
    AdoptInstances,
    InstanceEnded,
    LoadDocument,
    PortRefusal,
    ProbeMachine,
    ReadBlob,
    ReadClock,
    ReadOutput,
    RemoveInstance,
    RunLimits,
    SaveDocument,
    SealBlob,
    StageInstance,
    StartInstance,
    StatBlob,
    StopInstance,
    WriteBlob,
)
from runtime.kernel.simulated import SimulatedWorld
from runtime.simulated.blobs import SimulatedBlobs, SimulatedShelf
from runtime.simulated.launcher import Behaviour, EndInstance, SimulatedHost, SimulatedLauncher, WriteOutput
from runtime.simulated.probe import SimulatedMachine, SimulatedProbe
from runtime.simulated.store import SimulatedDisk, SimulatedStore

STORE, BLOBS = Address("shed/store"), Address("shed/blobs")
PROBE, LAUNCHER, OWNER = Address("shed/probe"), Address("shed/launcher"), Address("shed/owner")


def refused(world, to, request):
    with pytest.raises(AskFailed) as caught:
        world.ask(to, request, timeout_s=5)
    return caught.value.code


def test_documents_outlive_the_store_and_a_full_disk_keeps_the_old_content():
    world, disk = SimulatedWorld(), SimulatedDisk()
    world.spawn(STORE, lambda: SimulatedStore(disk))
    assert world.ask(STORE, LoadDocument(name="agent"), timeout_s=5).data is None
    world.ask(STORE, SaveDocument(name="agent", data=b"old"), timeout_s=5)
    disk.full = True
    assert refused(world, STORE, SaveDocument(name="agent", data=b"new")) == PortRefusal.DISK_FULL
    world.crash(STORE)
    world.run_idle()
    world.spawn(STORE, lambda: SimulatedStore(disk))
    assert world.ask(STORE, LoadDocument(name="agent"), timeout_s=5).data == b"old"
    disk.damaged.add("agent")
    assert refused(world, STORE, LoadDocument(name="agent")) == PortRefusal.DAMAGED


def test_a_blob_appears_only_when_hash_and_size_agree():
    world, shelf = SimulatedWorld(), SimulatedShelf()
    world.spawn(BLOBS, lambda: SimulatedBlobs(shelf))
    digest = sha256(b"abcdef").hexdigest()
    world.ask(BLOBS, WriteBlob(sha256=digest, offset=0, data=b"abc"), timeout_s=5)
    assert refused(world, BLOBS, WriteBlob(sha256=digest, offset=2, data=b"x")) == PortRefusal.INVALID
    assert refused(world, BLOBS, SealBlob(sha256=digest, size=3)) == PortRefusal.MISMATCH
    assert refused(world, BLOBS, SealBlob(sha256=digest, size=6)) == PortRefusal.NOT_FOUND
    assert world.ask(BLOBS, StatBlob(sha256=digest), timeout_s=5).size is None
    for offset, data in ((0, b"abc"), (3, b"def")):
        world.ask(BLOBS, WriteBlob(sha256=digest, offset=offset, data=data), timeout_s=5)
    world.ask(BLOBS, SealBlob(sha256=digest, size=6), timeout_s=5)
    assert world.ask(BLOBS, ReadBlob(sha256=digest, offset=4, length=9), timeout_s=5).data == b"ef"


def test_the_clock_of_a_machine_moves_with_the_world():
    world, machine = SimulatedWorld(), SimulatedMachine()
    world.spawn(PROBE, lambda: SimulatedProbe(machine))
    before = world.ask(PROBE, ReadClock(), timeout_s=5)
    world.advance(3.0)
    after = world.ask(PROBE, ReadClock(), timeout_s=5)
    assert (after.boot_id, after.boottime_ms - before.boottime_ms) == (before.boot_id, 3000)
    assert any(told.id == "runtime.native" for told in world.ask(PROBE, ProbeMachine(), timeout_s=5).capabilities)


class Owner(Actor[InstanceEnded]):
    """Starts what it is told to and keeps what it hears."""

    mailbox = InstanceEnded | StartInstance | AdoptInstances

    def __init__(self):
        self.ended = []

    def receive(self, message, ctx):
        if isinstance(message, InstanceEnded):
            self.ended.append(message.evidence)
            return None
        return self.forward(message, ctx)

    async def forward(self, message, ctx):
        ctx.reply(await ctx.ask(LAUNCHER, message, timeout_s=5))


@pytest.fixture
def world():
    world = SimulatedWorld()
    world.host = SimulatedHost(behaviours={"quick": Behaviour(output=b"hello", exit_code=3)})
    world.spawn(LAUNCHER, lambda: SimulatedLauncher(world.host))
    world.spawn(OWNER, Owner)
    world.run_idle()
    return world


def stage(world, instance_id, program="any"):
    limits = RunLimits(ram_mb=64, max_runtime_s=15, output_limit_bytes=1024)
    order = StageInstance(
        instance_id=instance_id, sha256=program, arch="noarch", interpreter="/usr/bin/python3",
        program_name="run.py", limits=limits,
    )  # fmt: skip
    world.ask(LAUNCHER, order, timeout_s=5)


def start(world, instance_id, once=False, deadline=None):
    order = StartInstance(
        instance_id=instance_id, arguments=[], environment={}, once=once, epoch="1.1", deadline_boottime_ms=deadline
    )
    return world.ask(OWNER, order, timeout_s=5)


def test_an_end_by_itself_is_told_to_who_started_it(world):
    stage(world, "watch")
    started = start(world, "watch")
    assert world.host.running() == {"watch": started.pid}
    world.ask(LAUNCHER, EndInstance(instance_id="watch", exit_code=1), timeout_s=5)
    world.run_idle()
    assert [evidence.exit_code for evidence in world.actor(OWNER).ended] == [1]
    assert start(world, "watch").pid != started.pid


def test_a_one_shot_runs_to_its_end_and_leaves_its_output(world):
    stage(world, "shot", "quick")
    start(world, "shot", once=True)
    world.run_idle()
    assert [evidence.exit_code for evidence in world.actor(OWNER).ended] == [3]
    world.ask(LAUNCHER, WriteOutput(instance_id="shot", data=b" world"), timeout_s=5)
    read = world.ask(LAUNCHER, ReadOutput(instance_id="shot", stdout_offset=3, stderr_offset=0, limit=4), timeout_s=5)
    assert (read.stdout, read.stdout_next, read.running) == (b"lo w", 7, False)
    tail = world.ask(LAUNCHER, ReadOutput(instance_id="shot", stdout_offset=-1, stderr_offset=-1, limit=3), timeout_s=5)
    assert (tail.stdout, tail.stdout_next) == (b"rld", 11)


@pytest.mark.parametrize(("stop_s", "grace_ms", "signal"), [(1.0, 2000, 15), (60.0, 2000, 9)])
def test_a_stop_is_answered_when_nothing_is_left(world, stop_s, grace_ms, signal):
    world.host.behaviours = {"slow": Behaviour(stop_s=stop_s)}
    stage(world, "watch", "slow")
    start(world, "watch")
    pending = world.start_ask(LAUNCHER, StopInstance(instance_id="watch", grace_ms=grace_ms), timeout_s=30)
    world.run_idle()
    assert not pending.done
    world.advance(min(stop_s, grace_ms / 1000))
    assert pending.result().signal == signal
    assert world.host.running() == {}


def test_what_runs_outlives_the_launcher_and_is_adopted_with_its_pid(world):
    stage(world, "watch")
    stage(world, "idle")
    pid = start(world, "watch").pid
    world.crash(LAUNCHER)
    world.run_idle()
    world.spawn(LAUNCHER, lambda: SimulatedLauncher(world.host))
    rows = world.ask(OWNER, AdoptInstances(), timeout_s=5).rows
    assert {row.instance_id: row.running and row.running.pid for row in rows} == {"watch": pid, "idle": None}
    world.ask(LAUNCHER, EndInstance(instance_id="watch", signal=9), timeout_s=5)
    world.run_idle()
    assert [evidence.signal for evidence in world.actor(OWNER).ended] == [9]


def test_a_lease_ends_a_run_at_its_deadline(world):
    stage(world, "watch")
    start(world, "watch", deadline=5000)
    world.advance(4.9)
    assert world.host.running()
    world.advance(0.2)
    assert not world.host.running()
    assert world.actor(OWNER).ended[0].killed


def test_refusals_name_the_state(world):
    stage(world, "watch")
    duplicate = world.host.instances["watch"].staged
    assert refused(world, LAUNCHER, duplicate) == PortRefusal.EXISTS
    assert refused(world, LAUNCHER, StopInstance(instance_id="watch", grace_ms=0)) == PortRefusal.INVALID_STATE
    assert refused(world, LAUNCHER, StopInstance(instance_id="none", grace_ms=0)) == PortRefusal.NOT_FOUND
    start(world, "watch")
    assert refused(world, LAUNCHER, RemoveInstance(instance_id="watch")) == PortRefusal.INVALID_STATE
    world.ask(LAUNCHER, StopInstance(instance_id="watch", grace_ms=0), timeout_s=5)
    world.ask(LAUNCHER, RemoveInstance(instance_id="watch"), timeout_s=5)
    assert world.host.instances == {}
