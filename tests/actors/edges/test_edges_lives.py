"""An edges process is as large after many lives of edges, however they ended, as after few."""

from collections.abc import Sized

from messages.base import Address
from messages.edge import RingDirection
from messages.edge_end import EdgeFaultCode as Code

EGRESS, INGRESS = RingDirection.EGRESS, RingDirection.INGRESS
KEPT = 8


def by_order(rig, number):
    rig.close(rig.shed, EGRESS, edge=number)
    rig.close(rig.loft, INGRESS, edge=number)


def by_fault_of_a_pump(rig, number):
    rig.fault_pump(rig.shed, EGRESS, Code.LINK_LOST, edge=number)


def by_fault_of_a_workload(rig, number):
    rig.fault_ring(rig.loft, "trend@loft", "in", Code.SEQUENCE_VIOLATION)


def by_crash_of_the_producer(rig, number):
    rig.crash_workload(rig.shed, "hostwatch@shed")
    rig.world.advance(1)


def by_crash_of_the_consumer(rig, number):
    rig.crash_workload(rig.loft, "trend@loft")


def by_force(rig, number):
    rig.ports[rig.loft].workloads.clinging.add("trend@loft")
    rig.close(rig.loft, INGRESS, edge=number)
    rig.world.advance(rig.deadlines.teardown_s)


def with_a_crash_of_its_actor(rig, number):
    actor = rig.end(rig.shed, EGRESS, edge=number).local_edge_actor
    rig.world.crash(Address(f"shed.edges/edge/{actor}"))
    rig.world.run_idle()


def refused(rig, number):
    rig.open(rig.order(EGRESS, edge=10_000 + number, run=10_000 + number, data=1 << 30, name="too large"))


ENDINGS = [
    by_order, by_fault_of_a_pump, by_fault_of_a_workload, by_crash_of_the_producer, by_crash_of_the_consumer,
    by_force, with_a_crash_of_its_actor, refused,
]  # fmt: skip


def live(rig, number):
    ENDINGS[number % len(ENDINGS)](rig, number)
    by_order(rig, number)
    for process in (rig.shed, rig.loft):
        rig.ports[process].workloads.over.clear()  # the next run has the same number here
    assert rig.is_whole(rig.shed)
    assert rig.is_whole(rig.loft)


def sizes(rig):
    """How much each table of both edges actors holds, and which actors there are."""
    found = {}
    for process in (rig.shed, rig.loft):
        cell = rig.world.cells[rig.edges_of(process)]
        edges = rig.world.actor(rig.edges_of(process))._edges
        establisher = edges._establisher
        parts = [edges, edges.table, edges.arena, edges.workers, establisher, establisher._lives]
        for part in (*parts, cell.timers, cell.procedures):
            for name, value in (*vars(part).items(), ("all of it", part)):
                if isinstance(value, Sized) and not isinstance(value, str):
                    found[process, type(part).__name__, name] = len(value)
    return found, sorted(rig.world.cells)


def test_nothing_is_kept_of_edges_that_were(make_rig):
    rig = make_rig(kept_ends=KEPT, beat_s=1_000_000)
    after_few = None
    for number in range(1, 321):
        rig.open_both(edge=number, run=number)
        live(rig, number)
        if number == 160:
            after_few = sizes(rig)
    found, cells = sizes(rig)
    assert (found, cells) == after_few
    assert found[rig.shed, "EndTable", "_ends"] == KEPT
    assert found[rig.shed, "Timers", "all of it"] == 1  # the beat
    assert not [address for address in cells if "/edge/" in address]
