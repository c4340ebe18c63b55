"""The edges actors of two nodes while workloads, pumps, links, ports and the planner do what they like."""

from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from actors.actor import AskFailed
from messages.base import Address
from messages.edge import EdgeProvisionState as State
from messages.edge import RingDirection
from messages.edge_end import EdgeFaultCode as Code
from messages.edge_ports import DriverReport, WorkerReport
from messages.ports import PortRefusal

EGRESS, INGRESS = RingDirection.EGRESS, RingDirection.INGRESS
INSTANCES = {EGRESS: "hostwatch@shed", INGRESS: "trend@loft"}
EDGES = st.integers(1, 4)
REPORTS = (*DriverReport.__args__, *WorkerReport.__args__)
SIDES = st.sampled_from(list(RingDirection))
PAUSES = st.sampled_from([0.0, 0.1, 1.0, 6.0, 11.0, 31.0])

STEPS = st.one_of(
    st.tuples(st.just("open"), EDGES, st.booleans()),
    st.tuples(st.just("open"), EDGES, st.booleans()),
    st.tuples(st.just("close"), EDGES, SIDES),
    st.tuples(st.just("crash_workload"), SIDES),
    st.tuples(st.just("close_port"), SIDES),
    st.tuples(st.just("fault_ring"), SIDES, st.booleans()),
    st.tuples(st.just("fault_pump"), EDGES, SIDES),
    st.tuples(st.just("crash_actor"), st.integers(1, 4), SIDES),
    st.tuples(st.just("cling"), SIDES),
    st.tuples(st.just("silent"), SIDES, st.booleans()),
    st.tuples(st.just("deaf"), SIDES, st.booleans()),
    st.tuples(st.just("memory"), SIDES, st.sampled_from(["works", "works", "refuses", "silent"])),
    st.tuples(st.just("repeat"), SIDES, st.integers(0, 20)),
    st.tuples(st.just("repeat"), SIDES, st.integers(0, 20)),
    st.tuples(st.just("link"), st.booleans()),
    st.tuples(st.just("established"), EDGES),
    st.tuples(st.just("wait"), PAUSES),
    st.tuples(st.just("wait"), PAUSES),
)


class Chaos:
    """`stay`: both ends on one node. Edge ids and runs are new each time; `EDGES` numbers names."""

    def __init__(self, rig, one_node):
        self.rig = rig
        self.processes = {EGRESS: rig.shed, INGRESS: rig.shed if one_node else rig.loft}
        self.newest = {}
        self.ids = 0

    def do(self, step, *args):
        with suppress(AskFailed, KeyError):  # there is no such end, ring or pump: as good as nothing
            getattr(self, step)(*args)
        self.supervise()

    def supervise(self):
        """A process whose edges actor crashed starts anew, with new memory."""
        for process in set(self.processes.values()):
            if self.rig.edges_of(process) not in self.rig.world.cells:
                self.rig.world.crash_process(process)
                self.rig.world.seed += 1
                self.rig.start(process)
                self.rig.world.run_idle()

    def open(self, name, again):
        if not (again and name in self.newest):
            self.ids += 1
            self.newest[name] = self.ids
        number = self.newest[name]
        for direction in (INGRESS, EGRESS):
            self.rig.open(
                direction=direction, edge=number, run=number, name=f"edge {name}", data=12_288,
                producer=self.processes[EGRESS], consumer=self.processes[INGRESS],
            )  # fmt: skip

    def close(self, name, direction):
        self.rig.close(self.processes[direction], direction, edge=self.newest[name])

    def crash_workload(self, direction):
        self.rig.crash_workload(self.processes[direction], INSTANCES[direction])
        self.rig.ports[self.processes[direction]].workloads.over.clear()  # the next run has the same number here

    def close_port(self, direction):
        port = "out" if direction is EGRESS else "in"
        self.rig.close_port(self.processes[direction], INSTANCES[direction], port)

    def fault_ring(self, direction, holds):
        port = "out" if direction is EGRESS else "in"
        code = Code.RING_HEADER_CHANGED
        self.rig.fault_ring(self.processes[direction], INSTANCES[direction], port, code, holds=holds)

    def fault_pump(self, name, direction):
        number = self.newest[name]
        driver = self.rig.world.actor(Address(f"{self.processes[direction]}/driver"))
        if (number, direction) in driver._pumps:
            self.rig.fault_pump(self.processes[direction], direction, Code.LINK_LOST, edge=number)

    def crash_actor(self, number, direction):
        self.rig.world.crash(Address(f"{self.processes[direction]}/edge/{number}"))
        self.rig.world.run_idle()

    def cling(self, direction):
        self.rig.ports[self.processes[direction]].workloads.clinging.add(INSTANCES[direction])

    def silent(self, direction, silent):
        self.rig.ports[self.processes[direction]].workloads.silent = silent

    def deaf(self, direction, deaf):
        """The driver does not do what it is told."""
        self.rig.ports[self.processes[direction]].driving.silent = deaf

    def memory(self, direction, how):
        arenas = self.rig.ports[self.processes[direction]].arenas
        arenas.silent, arenas.refuse = how == "silent", PortRefusal.DISK_FULL if how == "refuses" else None

    def repeat(self, direction, pick):
        """A port says again what it said before, the last, the last but one, ..."""
        edges = self.rig.edges_of(self.processes[direction])
        said = [one for one in self.rig.world.sent if one.to == edges and isinstance(one.message, REPORTS)]
        if pick < len(said):
            self.rig.world.tell(edges, said[-1 - pick].message, sender=said[-1 - pick].sender)
            self.rig.world.run_idle()

    def link(self, up):
        if self.processes[EGRESS] != self.processes[INGRESS]:
            (self.rig.world.heal if up else self.rig.world.cut)(self.rig.shed, self.rig.loft)

    def established(self, name):
        self.rig.producer_established(self.newest[name], self.processes[INGRESS])

    def wait(self, seconds):
        self.rig.world.advance(seconds)

    # what holds

    def check(self):
        """Whatever is laid out, held by a workload or pumped is leased, and no two rings touch."""
        for process in set(self.processes.values()):
            edges = self.rig.world.actor(self.rig.edges_of(process))
            leased = {lease.ring_id for lease in edges._edges.arena.live_leases()}
            ports = self.rig.ports[process]
            pumps = self.rig.world.actor(Address(f"{process}/driver"))._pumps.values()
            assert set(ports.arenas.rings) <= leased
            assert set(ports.workloads.held) <= set(ports.arenas.rings)
            assert {pump.order.ring.ring_id for pump in pumps} <= set(ports.arenas.rings)

    def all_rests(self):
        """No more goes wrong: every wait ends, every end rests, and after a stop every byte is free."""
        rig, deadlines = self.rig, self.rig.deadlines
        rig.world.heal(rig.shed, rig.loft)
        for direction in RingDirection:
            self.deaf(direction, False)
            self.memory(direction, "works")
        for _ in range(2):  # what was said to a deaf driver ends in a restart
            rig.world.advance(deadlines.lease_s + deadlines.producer_s + 2 * deadlines.teardown_s + 60)
            self.supervise()
        for process in set(self.processes.values()):
            ends = rig.ends(process).ends
            assert {end.state for end in ends} <= {State.READY, State.STOPPED}
            assert all(end["waits_for"] is None for end in rig.state(process)["ends"])
            told = {(r.edge_id, r.direction): r for r in self.changes_of(process)}
            for end in ends:  # beats tell what an actor that crashed too often did not
                assert end in rig.beats(process)[-1].ends
                assert told[end.edge_id, end.direction].state in (end.state, State.READY)
            for end in ends:
                rig.close(process, end.direction, edge=end.edge_id)
        rig.world.advance(2 * deadlines.teardown_s)
        self.supervise()
        for process in set(self.processes.values()):
            assert rig.is_whole(process)
            assert not [address for address in rig.world.cells if address.startswith(f"{process}/edge/")]

    def changes_of(self, process):
        return [told.report for told in self.rig.told if hasattr(told, "report") and told.process == process]


@pytest.mark.parametrize("one_node", [False, True])
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(steps=st.lists(STEPS, max_size=25))
def test_whatever_happens_no_memory_in_use_goes_back_and_every_end_rests(make_rig, one_node, steps):
    chaos = Chaos(make_rig(budget_bytes=40_960, beat_s=30), one_node)
    for step in steps:
        chaos.do(*step)
        chaos.check()
    chaos.all_rests()
