"""Establisher, arena and worker control against models of pump, worker and memory port, and all that goes wrong.

Messages between them are delayed, doubled and overtake each other; workers crash and start again, pumps fault, edges
processes restart, and a clock that runs as fast as it likes ends any wait. Whatever happens, ranges are disjoint, none
goes back while something may touch it, and when it is quiet every end is ready, stopped or faulted. The same machine
finds that the origin's semantics give memory back that is in use.

The models know what may touch a ring. Each takes a ring once: ids are never used again, so an order that comes late for
a ring that was let go means nothing.

Two of the `Rules` could be absent here without a difference, since what is around the establisher closes the same gap:
`crashed_worker_is_quiescent` (worker control tells quiescence and proof of a ring whose run is gone) and
`only_live_ends_are_found` (neither arena nor establisher uses an id twice). `test_establisher_quirks.py` shows them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import pairwise

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from actors.edges import establisher as module
from actors.edges.arena import ArenaManager, RingReleased
from actors.edges.establisher import EdgeEstablisher
from actors.edges.faults import seed_event
from actors.edges.semantics import STRICT, EventRejection, Rules, Semantics
from actors.edges.worker_control import Told, WorkerControl, WorkerRun
from messages.control import Epoch
from messages.edge import (
    CancelQueuedLease,
    DriverEdgeReady,
    DType,
    EdgeFaulted,
    EdgeReady,
    EdgeStopped,
    EstablishRecv,
    EstablishSend,
    InstallWorkerRing,
    LeaseRing,
    ObjectKind,
    ObjectSpec,
    ProvisionRx,
    ProvisionTx,
    PumpStopped,
    ReleaseArenaLease,
    RingDirection,
    RingLeased,
    RingLeaseRejected,
    RingSpec,
    StopEdge,
    Stopped,
    StopPump,
    StreamFault,
    StreamFaultReason,
    UninstallWorkerRing,
)
from messages.edge import EdgeProvisionState as State
from messages.edge_end import EdgeFaultCode as Code
from messages.edge_ports import (
    InstallRing,
    KillWorker,
    UninstallRing,
    WorkerFaulted,
    WorkerGone,
    WorkerInstalled,
    WorkerQuiesced,
)

EGRESS, INGRESS = RingDirection.EGRESS, RingDirection.INGRESS
OBJECTS = ObjectSpec(kind=ObjectKind.ACTIVATION, dtype=DType.F16, max_extent_bytes=64)
RING = RingSpec(header_bytes=128, data_bytes=512, alignment=64)
BUDGET = 2 * 640 + 64
"""Two rings fit: a third waits in the queue."""
OVER = (State.STOPPED, State.FAILED)
SLOW = ("driver_starts", "driver_halts", "worker_takes", "hears", "formatted", "arena_does", "release", "observe")
LIMIT = 10_000


class ReleasedInUse(AssertionError):
    """A range went back to the arena while something could touch it."""


@dataclass
class Worker:
    """One workload of a node. `holds`: rings it has mapped; `offered`: all it ever got in this run."""

    instance: str
    number: int = 1
    alive: bool = True
    clinging: bool = False
    holds: set[int] = field(default_factory=set)
    offered: set[int] = field(default_factory=set)
    let_go: set[int] = field(default_factory=set)

    def crash(self):
        gone = WorkerGone(instance_id=self.instance, ring_ids=sorted(self.offered))
        self.alive, self.clinging = False, False
        self.holds, self.offered = set(), set()
        return gone

    def start(self):
        self.alive, self.number = True, self.number + 1


@dataclass
class Pump:
    edge: int
    direction: RingDirection
    ring: int
    told_ready: bool = False


class Node:
    """One edges process: the real machines, and models of what they order. `post(work)` delivers some time later."""

    def __init__(self, number, semantics, machine):
        self.number = number
        self.machine = machine
        self.workers = {EGRESS: Worker(f"producer@{number}"), INGRESS: Worker(f"consumer@{number}")}
        self.life = 0
        self.semantics = semantics
        self.start()

    def start(self):
        """A fresh process with fresh memory; what was under way to the old one is lost, workers drop their rings."""
        self.life += 1
        self.establisher = EdgeEstablisher(self.number, self.semantics)
        self.arena = ArenaManager(BUDGET, 64)
        self.control = WorkerControl()
        self.pumps = {}
        self.halted = set()
        self.formatting = set()
        self.ring_of = {}
        self.told = {}
        self.answered = set()
        self.memory_refuses = self.arena_repeats = False
        for worker in self.workers.values():
            worker.holds, worker.offered, worker.let_go = set(), set(), set()

    def post(self, work, *args):
        self.machine.bag.append((self.number, self.life, partial(work, *args)))

    @property
    def strict(self):
        return self.semantics is Semantics.STRICT

    def touched(self):
        """Rings that a pump, a worker or the memory port may touch now."""
        held = set().union(*(worker.holds for worker in self.workers.values()))
        return {pump.ring for pump in self.pumps.values()} | held | self.formatting

    # the edges actor

    def observe(self, event, direction=None):
        if isinstance(event, RingLeased | RingLeaseRejected):
            self.answered.add(event.request_id)
        rejected = self.establisher.observe(event, direction)
        for command in self.establisher.drain_commands():
            self.execute(command)
        for actor, told in self.establisher.drain_addressed_events():
            self.told.setdefault(actor, []).append(type(told))
        self.drain_control()
        return rejected

    def drain_control(self):
        for order in self.control.drain_orders():
            self.post(self.worker_takes, order)
        for notice in self.control.drain_notices():
            assert isinstance(notice, Told)
            self.observe(notice.event, notice.direction)

    def execute(self, command):
        match command:
            case LeaseRing():
                instance = self.workers[command.direction].instance
                self.post(self.arena_does, self.arena.lease, command.request_id, instance, command.ring_spec)
            case CancelQueuedLease():
                assert not self.strict or command.request_id not in self.answered, "nothing is queued any more"
                self.post(self.arena_does, self.arena.cancel, command.request_id)
            case ReleaseArenaLease():
                self.post(self.release, command)
            case InstallWorkerRing():
                worker = self.workers[command.direction]
                run = WorkerRun(worker.instance, Epoch(term=1, number=worker.number), "port", 1)
                self.control.install(command, run)
                self.ring_of[command.edge_id, command.direction] = command.ring_id
                self.formatting.add(command.ring_id)
                self.post(self.formatted, command.ring_id)
            case UninstallWorkerRing():
                self.control.uninstall(command, "stopped")
            case EstablishSend(edge_id=edge):
                self.post(self.driver_starts, edge, EGRESS, self.ring_of[edge, EGRESS])
            case EstablishRecv(edge_id=edge):
                self.post(self.driver_starts, edge, INGRESS, self.ring_of[edge, INGRESS])
            case StopPump(edge_id=edge, ring_id=ring):
                direction = next(each for (_, each), held in self.ring_of.items() if held == ring)
                self.post(self.driver_halts, edge, direction, ring)

    # arena and memory port

    def arena_does(self, request, *args):
        for outcome in request(*args):
            if isinstance(outcome, RingLeased | RingLeaseRejected):
                for _ in range(1 + self.arena_repeats):
                    self.post(self.observe, outcome)

    def release(self, command):
        """Doubled it finds no lease the second time; what counts is what touches a ring that had one."""
        ring = command.ring_id
        if self.arena.lease_of(ring) is not None and ring in self.touched():
            raise ReleasedInUse(f"ring {ring} of node {self.number}")
        for outcome in self.arena.release(ring, command.proof):
            if isinstance(outcome, RingReleased) and self.strict:
                for (edge, direction), held in self.ring_of.items():
                    if held == ring:
                        self.post(self.observe, Stopped(edge_id=edge), direction)
            elif isinstance(outcome, RingLeased):
                self.post(self.observe, outcome)

    def formatted(self, ring):
        if ring in self.formatting:  # the answer to a question comes once
            self.formatting.discard(ring)
            if self.memory_refuses:
                self.control.format_refused(ring, "no memory")
            else:
                self.control.formatted(ring)
            self.drain_control()

    # the driver

    def driver_starts(self, edge, direction, ring):
        if ring not in self.halted and (edge, direction) not in self.pumps:
            self.pumps[edge, direction] = Pump(edge, direction, ring)
            self.machine.meet(edge)

    def driver_halts(self, edge, direction, ring):
        pump = self.pumps.get((edge, direction))
        if pump is not None and pump.ring == ring:
            del self.pumps[edge, direction]
        self.halted.add(ring)
        self.post(self.observe, PumpStopped(edge_id=edge, ring_id=ring), direction)

    # the workers

    def worker_takes(self, order):
        worker = next(each for each in self.workers.values() if each.instance == order.instance_id)
        match order:
            case InstallRing(ring=ring):
                self.install(worker, order, ring.ring_id)
            case UninstallRing(ring_id=ring) if not worker.clinging or ring not in worker.holds:
                worker.holds.discard(ring)
                worker.let_go.add(ring)
                self.reports(WorkerQuiesced(instance_id=worker.instance, ring_id=ring))
            case KillWorker(ring_id=ring) if ring in worker.holds:
                self.reports(worker.crash())
            case KillWorker(ring_id=ring):
                self.reports(WorkerQuiesced(instance_id=worker.instance, ring_id=ring))

    def install(self, worker, order, ring):
        if worker.alive and order.epoch.number == worker.number and ring not in worker.let_go:
            worker.holds.add(ring)
            worker.offered.add(ring)
            self.reports(WorkerInstalled(instance_id=worker.instance, ring_id=ring))
        elif ring not in worker.holds:
            worker.let_go.add(ring)
            code = Code.WORKER_NOT_RUNNING
            self.reports(WorkerFaulted(instance_id=worker.instance, ring_id=ring, code=code, text="", holds=False))

    def reports(self, report):
        self.post(self.hears, report)

    def hears(self, report):
        self.control.observe(report)
        self.drain_control()

    # deadlines

    def waits_over(self, edge, direction):
        """What the end of patience is in the state that the end is in (`actors.edges.waits`)."""
        record = self.establisher.local_record(edge, direction)
        if record is None:
            return
        code = {
            State.WAITING_FOR_LEASE: Code.LEASE_TIMEOUT,
            State.WAITING_FOR_WORKER_RING: Code.INSTALL_TIMEOUT,
            State.WAITING_FOR_DRIVER: Code.DRIVER_TIMEOUT,
        }.get(record.state)
        if code is not None:
            self.observe(
                seed_event(code, edge_id=edge, direction=record.direction, ring_id=record.ring_id), record.direction
            )
        elif record.state is State.STOPPING and self.control.kill(record.ring_id, "too long"):
            self.drain_control()


class WholeMachine(RuleBasedStateMachine):
    semantics = Semantics.STRICT

    def __init__(self):
        super().__init__()
        self.bag = []
        self.nodes = []
        self.edges = {}
        self.opened = set()

    @initialize(on_one_node=st.booleans())
    def begin(self, on_one_node):
        self.nodes = [Node(number, self.semantics, self) for number in range(1 if on_one_node else 2)]

    # what the planner, the ports and chance do

    @precondition(lambda self: len(self.edges) < 6)
    @rule(producer=st.integers(0, 1), consumer=st.integers(0, 1), quiet=st.booleans())
    def plan(self, producer, consumer, quiet):
        """A new edge; when it is quiet both ends are opened and come to be before anything else happens."""
        number = len(self.nodes)
        edge = len(self.edges) + 1
        self.edges[edge] = {EGRESS: self.nodes[producer % number], INGRESS: self.nodes[consumer % number]}
        if quiet:
            for direction in RingDirection:
                self.provision(edge, direction)
            self.deliver_all()

    @precondition(lambda self: self.edges)
    @rule(pick=st.integers(0, 11))
    def open_end(self, pick):
        """Again for an end that is there, too: the planner repeats an order whose answer it missed."""
        edge, direction, _ = self.pick_end(pick)
        if (edge, direction) not in self.opened or not self.over(edge, direction):  # an edge id is new for each life
            self.provision(edge, direction)

    @precondition(lambda self: self.bag)
    @rule(pick=st.integers(0, 60))
    def deliver(self, pick):
        self.hand_over(self.bag.pop(pick % len(self.bag)))

    @precondition(lambda self: self.bag)
    @rule(count=st.integers(1, 20))
    def deliver_in_order(self, count):
        for _ in range(min(count, len(self.bag))):
            self.hand_over(self.bag.pop(0))

    @precondition(lambda self: self.bag)
    @rule(slow=st.sampled_from(SLOW))
    def deliver_all_but_those_of_one_that_is_slow(self, slow):
        kept = []
        for _ in range(LIMIT):
            if not self.bag:
                break
            posted = self.bag.pop(0)
            if posted[2].func.__name__ == slow:
                kept.append(posted)
            else:
                self.hand_over(posted)
        self.bag = kept

    @precondition(lambda self: 0 < len(self.bag) < 60)
    @rule(pick=st.integers(0, 60), everything=st.booleans())
    def double(self, pick, everything):
        self.bag += self.bag if everything else [self.bag[pick % len(self.bag)]]

    @precondition(lambda self: self.opened)
    @rule(pick=st.integers(0, 11), both=st.booleans())
    def stop(self, pick, both):
        edge, direction, node = self.pick_end(pick)
        node.observe(StopEdge(edge_id=edge), None if both else direction)

    @precondition(lambda self: self.opened)
    @rule(pick=st.integers(0, 11))
    def wait_is_over(self, pick):
        edge, direction, node = self.pick_end(pick)
        node.waits_over(edge, direction)

    @precondition(lambda self: any(node.pumps for node in self.nodes))
    @rule(pick=st.integers(0, 11))
    def fault_a_pump(self, pick):
        pumps = [(node, pump) for node in self.nodes for pump in node.pumps.values()]
        node, pump = pumps[pick % len(pumps)]
        fault = StreamFault(edge_id=pump.edge, reason=StreamFaultReason.READ_ERROR)
        node.post(node.observe, fault, pump.direction)

    @rule(pick=st.integers(0, 3), what=st.sampled_from(["crash", "start", "start", "cling"]))
    def worker(self, pick, what):
        workers = [(node, worker) for node in self.nodes for worker in node.workers.values()]
        node, worker = workers[pick % len(workers)]
        if what == "crash" and worker.alive:
            node.reports(worker.crash())
        elif what == "start" and not worker.alive:
            worker.start()
        elif what == "cling" and worker.alive:
            worker.clinging = True

    @precondition(lambda self: any(worker.holds for node in self.nodes for worker in node.workers.values()))
    @rule(pick=st.integers(0, 11), lets_go=st.booleans())
    def a_worker_finds_fault(self, pick, lets_go):
        held = [(node, w, ring) for node in self.nodes for w in node.workers.values() for ring in sorted(w.holds)]
        node, worker, ring = held[pick % len(held)]
        if lets_go:
            worker.holds.discard(ring)
            worker.let_go.add(ring)
        code = Code.SEQUENCE_VIOLATION
        fault = WorkerFaulted(instance_id=worker.instance, ring_id=ring, code=code, text="", holds=not lets_go)
        node.reports(fault)

    @rule(pick=st.integers(0, 1), refuses=st.booleans(), repeats=st.booleans())
    def memory(self, pick, refuses, repeats):
        node = self.nodes[pick % len(self.nodes)]
        node.memory_refuses, node.arena_repeats = refuses, repeats

    @precondition(lambda self: self.opened and self.semantics is Semantics.STRICT)
    @rule(pick=st.integers(0, 11))
    def wrong_orders(self, pick):
        """Something else is ordered of an end that is live: the sender hears why, and nothing else happens."""
        edge, direction, node = self.pick_end(pick)
        if self.over(edge, direction):
            return
        order, before = self.order(edge, direction), node.establisher.local_records()
        changed = partial(msgspec.structs.replace, order)
        for wrong, reason in (
            (changed(run_id=0), EventRejection.STALE_RUN),
            (changed(ring_spec=msgspec.structs.replace(RING, data_bytes=256)), EventRejection.EDGE_LIVE),
            (changed(ring_spec=msgspec.structs.replace(RING, data_bytes=0)), EventRejection.INVALID_SPEC),
            (changed(local_node_id=99), EventRejection.WRONG_NODE),
            (StopEdge(edge_id=99), EventRejection.UNKNOWN_EDGE),
        ):
            rejected = node.observe(wrong, direction)
            assert rejected is not None
            assert rejected.reason is reason
            assert node.establisher.local_records() == before

    @precondition(lambda self: self.opened and self.semantics is Semantics.STRICT)
    @rule()
    def words_of_another_life(self):
        """What driver or arena say of ends that have no pump yet, and no ring that could have gone back, is not of
        them."""
        for edge, direction in sorted(self.opened):
            record, node = self.record(edge, direction), self.edges[edge][direction]
            if record is not None and record.state in (State.WAITING_FOR_LEASE, State.WAITING_FOR_WORKER_RING):
                node.observe(DriverEdgeReady(edge_id=edge), direction)
                node.observe(StreamFault(edge_id=edge, reason=StreamFaultReason.READ_ERROR), direction)
                node.observe(Stopped(edge_id=edge), direction)
                assert self.record(edge, direction) == record

    @rule(pick=st.integers(0, 15))
    def restart_an_edges_process(self, pick):
        if pick >= len(self.nodes):
            return
        node = self.nodes[pick]
        lost = list(node.pumps.values())
        node.start()
        for pump in lost:  # the far pump sees another incarnation
            for each in self.nodes:
                for far in each.pumps.values():
                    if far.edge == pump.edge:
                        fault = StreamFault(edge_id=far.edge, reason=StreamFaultReason.PROTOCOL_ERROR)
                        each.post(each.observe, fault, far.direction)

    # what always holds

    @invariant()
    def ranges_are_disjoint_and_within_the_budget(self):
        for node in self.nodes:
            leases = node.arena.live_leases()
            assert sum(lease.size_bytes for lease in leases) <= BUDGET
            for arena in {lease.arena for lease in leases}:
                ranges = sorted(
                    (lease.layout.start_offset, lease.layout.end_offset) for lease in leases if lease.arena == arena
                )
                assert all(one[1] <= other[0] for one, other in pairwise(ranges))

    @invariant()
    def nothing_touches_a_ring_that_is_not_leased(self):
        for node in self.nodes:
            leased = {lease.ring_id for lease in node.arena.live_leases()}
            if not node.touched() <= leased:
                raise ReleasedInUse(f"node {node.number}: {node.touched() - leased}")

    @invariant()
    def each_end_is_told_ready_faulted_and_stopped_once_and_nothing_after(self):
        if self.semantics is Semantics.STRICT:
            for node in self.nodes:
                for told in node.told.values():
                    assert max(Counter(told).values()) == 1
                    assert EdgeStopped not in told[:-1]
                    assert EdgeReady not in told[told.index(EdgeFaulted) :] if EdgeFaulted in told else True

    def teardown(self):
        if self.semantics is Semantics.STRICT and self.nodes:
            self.everything_settles()

    def everything_settles(self):
        """When no more goes wrong: each end comes to rest, and after a stop every byte is free."""
        self.settle()
        for edge, direction in self.opened:
            record = self.record(edge, direction)
            assert record is None or record.state in (State.READY, *OVER), record
        for node in self.nodes:
            held = {record.ring_id for record in node.establisher.local_records() if record.state is State.READY}
            assert {lease.ring_id for lease in node.arena.live_leases()} == held
        for edge, direction in self.opened:
            self.edges[edge][direction].observe(StopEdge(edge_id=edge), direction)
        self.settle()
        for node in self.nodes:
            sample = node.arena.sample()
            assert (sample.active_leases, sample.pending_leases, sample.free_bytes) == (0, 0, BUDGET)
            assert not node.touched()
            assert not node.control.rows()
            assert not node.establisher.local_records() or {
                record.ring_id for record in node.establisher.local_records()
            } == {None}

    # steps

    def pick_end(self, pick):
        edge = 1 + pick // 2 % len(self.edges)
        direction = EGRESS if pick % 2 else INGRESS
        return edge, direction, self.edges[edge][direction]

    def provision(self, edge, direction):
        self.opened.add((edge, direction))
        rejected = self.edges[edge][direction].observe(self.order(edge, direction), direction)
        assert rejected is None

    def order(self, edge, direction):
        common = {
            "run_id": 1, "edge_id": edge, "local_node_id": self.edges[edge][direction].number,
            "object_spec": OBJECTS, "ring_spec": RING,
        }  # fmt: skip
        if direction is EGRESS:
            return ProvisionTx(consumer_node_id=self.edges[edge][INGRESS].number, **common)
        return ProvisionRx(**common)

    def record(self, edge, direction):
        return self.edges[edge][direction].establisher.local_record(edge, direction)

    def over(self, edge, direction):
        record = self.record(edge, direction)
        return record is None or record.state in OVER

    def meet(self, edge):
        """A stream is established when both of its pumps are there."""
        nodes = self.edges[edge]
        pumps = [nodes[direction].pumps.get((edge, direction)) for direction in RingDirection]
        if None not in pumps:
            for pump in pumps:
                if not pump.told_ready:
                    pump.told_ready = True
                    node = nodes[pump.direction]
                    node.post(node.observe, DriverEdgeReady(edge_id=edge), pump.direction)

    def hand_over(self, posted):
        number, life, work = posted
        if self.nodes[number].life == life:
            work()

    def deliver_all(self):
        for _ in range(LIMIT):
            if not self.bag:
                return
            self.hand_over(self.bag.pop(0))
        raise AssertionError("the messages do not come to an end")

    def settle(self):
        """Everything arrives, and every wait that is still on is over."""
        for _ in range(8):
            self.deliver_all()
            for edge, direction in self.opened:
                self.edges[edge][direction].waits_over(edge, direction)
            if not self.bag:
                return
        raise AssertionError("the ends do not come to rest")


class SeedMachine(WholeMachine):
    semantics = Semantics.SEED


def test_memory_is_never_released_in_use_and_every_end_comes_to_rest():
    run_state_machine_as_test(
        WholeMachine,
        settings=settings(
            max_examples=120, stateful_step_count=60, deadline=None, suppress_health_check=[HealthCheck.too_slow]
        ),
    )


FINDING = settings(
    max_examples=500, stateful_step_count=60, deadline=None, derandomize=True, database=None, phases=[Phase.generate],
    suppress_health_check=list(HealthCheck), report_multiple_bugs=False,
)  # fmt: skip


def test_the_same_machine_finds_that_the_seed_releases_memory_in_use():
    with pytest.raises(ReleasedInUse):
        run_state_machine_as_test(SeedMachine, settings=FINDING)


CLOSED_AROUND = {"crashed_worker_is_quiescent", "only_live_ends_are_found"}


@pytest.mark.parametrize("rule", [field.name for field in fields(Rules) if field.name not in CLOSED_AROUND])
def test_the_same_machine_finds_any_rule_that_is_missing(rule, monkeypatch):
    monkeypatch.setattr(module, "rules_of", lambda _: replace(STRICT, **{rule: False}))
    with pytest.raises(AssertionError):
        run_state_machine_as_test(WholeMachine, settings=FINDING)
