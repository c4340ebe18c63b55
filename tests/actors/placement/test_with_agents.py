"""The plane and real node agents, over real packages, gates and chain: what each promises the other holds."""

from __future__ import annotations

from hashlib import sha256
from random import Random

import msgspec
import pytest

from actors.gate.gate import Gate
from actors.gate.policy import Policy
from actors.node.agent import NodeAgent
from actors.placement.signed import Signer
from messages.base import Address, NodeName
from messages.control import ControlAnswer, ControlCall, CtlConfig, Interval, Method, Once
from messages.packages import Arch
from messages.placement import InstanceOrder
from messages.ports import PortRefusal
from messages.workload_spec import TrustTier
from runtime.simulated.blobs import SimulatedBlobs, SimulatedShelf
from runtime.simulated.launcher import Behaviour, SimulatedHost, SimulatedLauncher
from runtime.simulated.probe import SimulatedMachine, SimulatedProbe
from runtime.simulated.store import SimulatedDisk, SimulatedStore


@pytest.fixture
def joint(kit):
    class Joint(kit.cluster):
        """Nodes `attic` and `shed` as they are: agent, gate and simulated ports."""

        def __init__(self, names=("attic", "shed"), permits=None, **settings):
            self.hosts = {name: SimulatedHost() for name in names}
            self.disks = {name: SimulatedDisk() for name in names}
            self.node_permits = dict.fromkeys(names, (kit.permit,)) if permits is None else permits
            super().__init__(*(kit.node(name) for name in names), **settings)
            self.world.advance(1)

        def add_package(self, directory=kit.directory, *, cog_toml=kit.cog_toml, arches=(Arch.NOARCH,)):
            super().add_package(directory, cog_toml=cog_toml, arches=arches)

        def start_agent(self, node):
            name, world = node.name, self.world
            policy = Policy(threshold=0.95, permits=self.node_permits[name])
            ports = {
                "store": lambda: SimulatedStore(self.disks[name]),
                "blobs": lambda: SimulatedBlobs(SimulatedShelf()),
                "probe": lambda: SimulatedProbe(SimulatedMachine(name=name)),
                "launcher": lambda: SimulatedLauncher(self.hosts[name]),
                "gate": lambda: Gate(policy, Address("chain/chain")),
            }
            for port, factory in ports.items():
                if Address(f"{name}/{port}") not in world.cells:
                    world.spawn(Address(f"{name}/{port}"), factory)
            world.spawn(Address(f"{name}/agent"), lambda: self.make_agent(name))

        def make_agent(self, name):
            return NodeAgent(
                name=NodeName(name),
                seed=name.encode().ljust(32, b"-"),
                controller_key=kit.controller.public_key,
                anchors=self.anchors,
                tier=TrustTier.PAIRED,
            )

        def running(self):
            return sorted(
                instance
                for host in self.hosts.values()
                for instance, row in host.instances.items()
                if row.run is not None
            )

        def lose_answers(self, name, method, count=1):
            """Lose the agent's answers to calls of `method`, by the correlation of what was asked."""
            asked = set()

            def matches(envelope):
                if envelope.to == f"{name}/agent" and getattr(envelope.message, "method", "") == method:
                    asked.add(envelope.correlation)
                answers = envelope.sender == f"{name}/agent" and envelope.to == "controller/plane"
                return answers and envelope.correlation in asked

            self.world.lose(matches, count)

        def first(self):
            return min(self.nodes.values(), key=lambda node: node.id)

    return Joint


def test_a_workload_is_placed_run_stopped_started_and_unloaded(joint):
    cluster = joint()
    report = cluster.place()
    assert report.placed is not None, report.explain
    instance = report.placed.instance_id
    assert cluster.running() == [instance]
    assert cluster.verb("status", instance).result["lifecycle"] == "running"
    assert cluster.verb("stop", instance).result["stopped"] == instance
    assert cluster.running() == []
    assert cluster.verb("start", instance).result["started"] == instance
    assert cluster.verb("logs", instance).result["instance_id"] == instance
    assert cluster.verb("unload", instance).result == {"unloaded": instance}
    assert (cluster.running(), cluster.instances().instances) == ([], [])
    assert cluster.place().placed.epoch > report.placed.epoch


def test_a_lost_answer_ends_with_exactly_one_running_instance(joint):
    cluster = joint(place_timeout_s=10.0)
    first = cluster.first()
    cluster.lose_answers(first.name, Method.PLACE)
    report = cluster.place()
    assert [attempt.outcome for attempt in report.attempts] == ["indeterminate", "placed"]
    assert "reconciled: unloaded 1 instance" in report.attempts[0].reason
    assert cluster.running() == [report.placed.instance_id]
    assert cluster.world.actor(f"{first.name}/agent").state()["marks"][report.placed.slot]["floor"]["number"] == 2


def test_a_start_that_the_node_forbids_is_rolled_back_and_the_next_node_runs_it(joint, kit):
    narrow = msgspec.structs.replace(kit.permit, actions=("workload.load", "workload.unload", "workload.stop"))
    cluster = joint(permits={name: (narrow,) if name == lowest() else (kit.permit,) for name in ("attic", "shed")})
    report = cluster.place()
    refused = report.attempts[0]
    assert (refused.outcome, refused.code) == ("refused", "governance")
    assert "start failed" in refused.reason
    assert "unloaded" in refused.reason
    assert cluster.running() == [report.placed.instance_id]
    assert cluster.hosts[lowest()].instances == {}


def lowest():
    return min(("attic", "shed"), key=lambda name: Signer(name.encode().ljust(32, b"-")).node_id)


def test_an_agent_that_dies_with_the_answer_keeps_its_instance_and_is_adopted(joint):
    cluster = joint(place_timeout_s=10.0, read_timeout_s=2.0)
    first = cluster.first()
    cluster.lose_answers(first.name, Method.PLACE)
    pending = cluster.world.start_ask("controller/plane", cluster.order(), timeout_s=100)
    cluster.world.run_until(lambda: bool(cluster.running()))
    cluster.world.run_idle()
    cluster.world.crash(f"{first.name}/agent")
    cluster.world.run_until(lambda: pending.done, limit_s=100)
    assert pending.result().placed is None
    assert cluster.place_code()[0] == "unsettled"
    cluster.start_agent(first)
    cluster.world.advance(10)
    listing = cluster.instances()
    assert (listing.unsettled, [line.instance_id for line in listing.instances]) == ([], cluster.running())
    assert cluster.place_code()[0] == "slot_held"


def test_a_node_without_room_on_its_disk_refuses_and_the_next_places(joint):
    cluster = joint()
    cluster.hosts[cluster.first().name].refuse = PortRefusal.DISK_FULL
    report = cluster.place()
    assert [attempt.outcome for attempt in report.attempts] == ["refused", "placed"]
    assert cluster.running() == [report.placed.instance_id]


@pytest.mark.parametrize("fault", ["nothing", "answer lost"])
def test_the_plane_may_die_at_any_step_and_at_most_one_runs(joint, fault):
    seen = set()
    for steps in range(0, 900, 11):
        cluster = joint(place_timeout_s=4.0, read_timeout_s=2.0)
        if fault == "answer lost":
            cluster.lose_answers(cluster.first().name, Method.PLACE)
        pending = cluster.world.start_ask("controller/plane", cluster.order(), timeout_s=100)
        for _ in range(steps):
            if not pending.done:
                while not cluster.world._step():
                    cluster.world.now_s = cluster.world._alarms[0][0]
        if pending.done:
            break
        cluster.restart_plane()
        cluster.world.advance(12)
        running = cluster.running()
        assert len(running) <= 1
        listing = cluster.instances()
        assert (listing.unsettled, [line.instance_id for line in listing.instances]) == ([], running)
        seen.add(len(running))
    else:
        raise AssertionError("a placement takes more steps than expected")
    assert seen == {0, 1}


def test_a_run_that_ends_by_itself_is_listed_as_finished(joint, kit):
    cluster = joint(names=("attic",))
    program = cluster.shelf.directories[kit.directory]["noarch/cog-hostwatch"]
    cluster.hosts["attic"].behaviours = {sha256(program).hexdigest(): Behaviour(output=b"done", exit_after_s=2.0)}
    cluster.place(config=CtlConfig(mode=Once()))
    cluster.world.advance(5)
    assert [line.state for line in cluster.instances().instances] == ["finished"]


def disturb(cluster, random):
    """Lose, delay or pass whatever goes between the plane and the agents."""
    again = {}

    def matches(envelope):
        ends = {envelope.sender, envelope.to}
        if "controller/plane" not in ends or not any(end.endswith("/agent") for end in ends):
            return False
        if not isinstance(envelope.message, ControlCall | ControlAnswer) or id(envelope) in again:
            return False
        fate = random.random()
        if fate < 0.1:
            return True
        if fate < 0.25:
            again[id(envelope)] = envelope
            cluster.world._alarm(cluster.world.now_s + random.uniform(0.1, 30.0), lambda: cluster.world.post(envelope))
            return True
        return False

    cluster.world.lose(matches, 1_000_000)


@pytest.mark.parametrize("seed", range(24))
def test_under_random_faults_no_slot_ever_runs_twice_and_all_settles(joint, seed):
    """Lost and late messages, cut links, dying planes and agents; then peace, and state, chain and nodes agree."""
    random = Random(seed)
    cluster = joint(names=("attic", "shed", "loft"), place_timeout_s=5.0, read_timeout_s=2.0)
    world = cluster.world

    def never_two():
        running = cluster.running()
        names = [instance.rpartition("-n-")[0] for instance in running]
        assert len(names) == len(set(names)), f"twice: {running}"

    def act():
        name = random.choice(list(cluster.nodes))
        match random.choice(["place", "place", "unload", "cut", "heal", "crash plane", "crash agent", "wait"]):
            case "place":
                config = CtlConfig(mode=Interval(secs=random.choice([1, 2])))
                world.start_ask("controller/plane", cluster.order(config=config), timeout_s=60)
            case "unload":
                if cluster.running():
                    order = InstanceOrder(method="unload", instance=random.choice(cluster.running()))
                    world.start_ask("controller/plane", order, timeout_s=60)
            case "cut":
                world.cut("controller", name)
            case "heal":
                world.heal("controller", name)
            case "crash plane":
                cluster.restart_plane()
            case "crash agent":
                world.crash(f"{name}/agent")
                cluster.start_agent(cluster.nodes[name])

    disturb(cluster, random)
    for _ in range(30):
        act()
        for _ in range(random.randrange(1, 6)):
            world.advance(random.uniform(0.05, 1.5))
            never_two()
    world._losses.clear()
    for name in cluster.nodes:
        world.heal("controller", name)
    world.advance(60)
    never_two()
    listing = cluster.instances()
    assert listing.unsettled == []
    assert [line.instance_id for line in listing.instances] == cluster.running()
    told = [r for r in cluster.told() if r["phase"] in ("placed", "adopted") or r["kind"] == "workload.lifecycle"]
    placed = set()
    for record in told:
        (placed.discard if record["kind"] == "workload.lifecycle" else placed.add)(record["instance_id"])
    assert sorted(placed) == cluster.running()
