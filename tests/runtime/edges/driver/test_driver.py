"""Two drivers, real rings and sockets: every byte once and in order, whatever the two ends and the link do."""

from __future__ import annotations

import os
import random

import pytest

from messages.edge import RingDirection
from messages.edge_end import EdgeFaultCode
from messages.edge_ports import CloseStream, PumpFaulted, PumpHalted, PumpReady, StreamEnded
from runtime.edges.driver.pumps import CHUNK_BYTES
from runtime.edges.memory import MemoryFault

EGRESS, INGRESS = RingDirection.EGRESS, RingDirection.INGRESS
EDGE = 7001


class Pair:
    """One edge between two processes, or within one."""

    def __init__(self, net, *, local=False, tx_capacity=1 << 16, rx_capacity=1 << 16, **how):
        self.net = net
        self.a = net.process("a")
        self.b = self.a if local else net.process("b")
        self.tx = self.a.send(EDGE, self.b.name, tx_capacity, **how)
        self.rx = self.b.receive(EDGE, self.a.name, rx_capacity, **how)
        self.a.wait_ready(EDGE, EGRESS)
        self.b.wait_ready(EDGE, INGRESS)


def sizes(seed: int, total: int, largest: int) -> list[int]:
    source = random.Random(seed)
    found = []
    while total > 0:
        found.append(min(source.choice([0, 1, 39, 40, 41, source.randrange(largest)]), largest))
        total -= found[-1] + 40
    return found


@pytest.mark.parametrize("first", ["producer", "consumer"])
@pytest.mark.parametrize("where", ["ipc", "tcp", "local"])
def test_ends_may_be_started_in_either_order(net, transfer, make_records, first, where):
    if where == "tcp":
        net.tcp()
    far = "a" if where == "local" else "b"
    if first == "producer":
        a = net.process("a")
        tx = a.send(EDGE, far)
        b = a if where == "local" else net.process("b")
        rx = b.receive(EDGE, "a")
    else:
        b = net.process(far)
        rx = b.receive(EDGE, "a")
        a = b if where == "local" else net.process("a")
        tx = a.send(EDGE, far)
    a.wait_ready(EDGE, EGRESS)
    b.wait_ready(EDGE, INGRESS)
    flow = transfer.add(tx, rx, make_records(1, [0, 1, 100, 5000, 65536 - 40, 200_000, 3]))
    transfer.run()
    flow.check()


@pytest.mark.parametrize("local", [True, False], ids=["local", "remote"])
@pytest.mark.parametrize(
    "shape",
    [
        (1 << 20, 1 << 20, 600_000),  # larger than a chunk
        (4096, 4096, 4096 - 40),  # exactly filling
        (977, 5003, 3000),  # wraps everywhere, larger than the ring
        (200_000, 64, 500),  # far ring tiny
        (41, 200_000, 300),  # own ring tiny
    ],
)
def test_objects_of_any_size_arrive_byte_for_byte(net, transfer, make_records, local, shape):
    """`shape`: the capacity of either ring, and the largest payload."""
    tx_capacity, rx_capacity, largest = shape
    assert CHUNK_BYTES < 600_000
    pair = Pair(net, local=local, tx_capacity=tx_capacity, rx_capacity=rx_capacity)
    total = min(3_000_000, 300 * min(tx_capacity, rx_capacity))
    stream = make_records(3, [tx_capacity - 40 if tx_capacity >= 40 else 0, *sizes(3, total, largest)])
    flow = transfer.add(pair.tx, pair.rx, stream)
    transfer.run()
    flow.check()
    assert pair.rx.committed == len(stream)


@pytest.mark.parametrize("local", [True, False], ids=["local", "remote"])
def test_a_slow_consumer_stalls_the_producer_within_the_two_rings(net, transfer, make_records, local):
    pair = Pair(net, local=local, tx_capacity=10_000, rx_capacity=6_000)
    flow = transfer.add(pair.tx, pair.rx, make_records(5, sizes(5, 60_000, 3000)), bite=0)
    transfer.run(until=lambda: pair.tx.committed == 16_000 and pair.rx.readable() == 6_000)
    assert flow.write() == 0
    moved = pair.a.wait(lambda: (found := pair.a.progress(EDGE, EGRESS)) and found.stalled and found)
    assert moved.in_flight_bytes == 10_000
    assert moved.stalls >= 1
    flow.bite = 7
    transfer.run()
    flow.check()


@pytest.mark.parametrize("local", [True, False], ids=["local", "remote"])
def test_a_workload_that_makes_its_eventfds_block_holds_nobody_up(net, transfer, make_records, local):
    pair = Pair(net, local=local, tx_capacity=5000, rx_capacity=5000)
    for fd in (pair.tx.data_fd, pair.tx.space_fd, pair.rx.data_fd, pair.rx.space_fd):
        os.set_blocking(fd, True)
    flow = transfer.add(pair.tx, pair.rx, make_records(5, sizes(5, 100_000, 3000)))
    transfer.run()
    flow.check()
    pair.a.close_stream(EDGE)
    pair.a.wait_ended(EDGE, EGRESS)


def test_a_stalled_edge_stalls_no_other(net, transfer, make_records):
    a, b = net.process("a"), net.process("b")
    stalled = [transfer.add(a.send(edge, "b"), b.receive(edge, "a"), make_records(edge, [60_000] * 20), bite=0)
               for edge in (1, 2)]  # fmt: skip
    stalled.append(transfer.add(a.send(3, "a"), a.receive(3, "a"), make_records(3, [60_000] * 20), bite=0))
    live = [transfer.add(a.send(edge, "b"), b.receive(edge, "a"), make_records(edge, [60_000] * 40)) for edge in (4, 5)]
    live.append(transfer.add(a.send(6, "a"), a.receive(6, "a"), make_records(6, [60_000] * 40)))
    transfer.run(until=lambda: all(flow.complete for flow in live))
    for flow in live:
        flow.check()
    assert [len(flow.arrived) for flow in stalled] == [0, 0, 0]


def test_24_edges_at_once_each_arrive_whole(net, transfer, make_records):
    a, b = net.process("a"), net.process("b")
    flows = []
    for edge in range(1, 25):
        near, far = [(a, b), (b, a), (a, a)][edge % 3]
        tx, rx = near.send(edge, far.name, 20_000), far.receive(edge, near.name, 30_000)
        flows.append(transfer.add(tx, rx, make_records(edge, sizes(edge, 200_000, 30_000))))
    transfer.run()
    for flow in flows:
        flow.check()
    assert not a.told(PumpFaulted) + b.told(PumpFaulted)


@pytest.mark.parametrize("cutter", ["producer", "consumer"])
@pytest.mark.parametrize("transport", ["ipc", "tcp"])
def test_a_cut_link_costs_no_byte_and_doubles_none(net, transfer, make_records, cutter, transport):
    if transport == "tcp":
        net.tcp()
    pair = Pair(net, tx_capacity=300_000, rx_capacity=200_000)
    flow = transfer.add(pair.tx, pair.rx, make_records(9, sizes(9, 6_000_000, 100_000)), bite=30_000)
    cuts = [1_000_000, 2_000_000, 3_500_000, 3_600_000]

    def cut() -> None:
        if cuts and len(flow.arrived) > cuts[0]:
            cuts.pop(0)
            if cutter == "producer":
                pair.a.cut("b")
            else:
                pair.b.cut("a")

    transfer.run(during=cut)
    flow.check()
    assert not cuts
    pair.a.close_stream(EDGE)
    pair.a.wait_ended(EDGE)
    assert pair.a.progress(EDGE, EGRESS).resumed >= 1
    assert not pair.a.told(PumpFaulted) + pair.b.told(PumpFaulted)


@pytest.mark.parametrize("local", [True, False], ids=["local", "remote"])
def test_a_clean_close_ends_the_stream_at_both_ends(net, transfer, make_records, local):
    pair = Pair(net, local=local)
    flow = transfer.add(pair.tx, pair.rx, make_records(2, [5, 60_000, 7]), bite=0)
    transfer.run(until=lambda: flow.written == len(flow.stream))
    pair.a.close_stream(EDGE)
    pair.b.wait_ended(EDGE, INGRESS)
    pair.a.wait_ended(EDGE, EGRESS)
    assert pair.rx.readable() == len(flow.stream)  # it ends when all is in the ring, whoever reads it when
    told = pair.b.progress(EDGE, INGRESS)
    assert (told.objects, told.bytes, told.last_sequence, told.last_object_id) == (3, len(flow.stream), 2, 9002)
    told = pair.a.progress(EDGE, EGRESS)
    assert (told.objects, told.bytes, told.in_flight_bytes) == (3, len(flow.stream), 0)


@pytest.mark.parametrize("local", [True, False], ids=["local", "remote"])
def test_a_stream_of_nothing_ends_too(net, local):
    pair = Pair(net, local=local)
    pair.a.close_stream(EDGE)
    pair.a.wait_ended(EDGE, EGRESS)
    pair.b.wait_ended(EDGE, INGRESS)


@pytest.mark.parametrize("local", [True, False], ids=["local", "remote"])
def test_the_end_of_a_killed_producer_is_not_told_to_the_consumer(net, transfer, make_records, local):
    pair = Pair(net, local=local)
    stream = make_records(2, [5, 60_000])[:-10]
    flow = transfer.add(pair.tx, pair.rx, stream)
    transfer.run()
    pair.a.close_stream(EDGE, clean=False)
    pair.a.wait_ended(EDGE, EGRESS)
    pair.b.halt(EDGE, INGRESS, pair.b.rings)
    pair.b.wait_halted(EDGE, INGRESS)
    assert not [one for one in pair.b.told(StreamEnded) if one.direction is INGRESS]
    assert not pair.a.told(PumpFaulted) + pair.b.told(PumpFaulted)
    assert flow.complete


def test_a_stream_closed_before_the_consumer_came_is_delivered_all_the_same(net, transfer, make_records):
    a = net.process("a")
    tx = a.send(EDGE, "b")
    stream = make_records(2, [5, 6])
    tx.write(0, stream)
    tx.commit(len(stream))
    a.close_stream(EDGE)
    b = net.process("b")
    rx = b.receive(EDGE, "a")
    a.wait_ended(EDGE)
    b.wait_ended(EDGE)
    assert bytes(rx.spans(0, rx.readable())[0]) == stream


@pytest.mark.parametrize("local", [True, False], ids=["local", "remote"])
def test_a_halted_pump_touches_nothing_so_its_ring_can_be_erased(net, transfer, make_records, local):
    """Python closes a mapping only when no view of it is left."""
    pair = Pair(net, local=local)
    flow = transfer.add(pair.tx, pair.rx, make_records(4, [3000] * 2000))
    transfer.run(until=lambda: len(flow.arrived) > 500_000)
    tx_ring, rx_ring = 1, pair.b.rings
    for side in (pair.tx, pair.rx):
        side.release()
    pair.a.held.clear()
    pair.b.held.clear()
    with pytest.raises(MemoryFault, match="looked at still"):
        pair.a.memory.erase_ring(tx_ring)
    pair.a.halt(EDGE, EGRESS, tx_ring)
    pair.a.wait_halted(EDGE, EGRESS)
    pair.a.memory.erase_ring(tx_ring)
    with pytest.raises(MemoryFault, match="looked at still"):
        pair.b.memory.erase_ring(rx_ring)
    pair.b.halt(EDGE, INGRESS, rx_ring)
    pair.b.wait_halted(EDGE, INGRESS)
    pair.b.memory.erase_ring(rx_ring)
    assert not pair.a.told(PumpFaulted) + pair.b.told(PumpFaulted)


def test_a_faulted_pump_can_be_halted_too(net):
    pair = Pair(net)
    pair.tx.write(0, b"x" * 40)
    pair.tx.commit(40)
    pair.a.wait_fault(EDGE, EGRESS)
    pair.a.halt(EDGE, EGRESS, 1)
    pair.a.wait_halted(EDGE, EGRESS)
    pair.a.held.clear()
    pair.tx.release()
    pair.a.memory.erase_ring(1)


def test_halting_what_is_not_there_is_told_and_harmless(net, transfer, make_records):
    pair = Pair(net)
    for edge, direction, ring in [(99, EGRESS, 5), (EDGE, INGRESS, 1), (EDGE, EGRESS, 77)]:
        pair.a.halt(edge, direction, ring)
        told = pair.a.wait(
            lambda want=(edge, direction, ring): [
                one for one in pair.a.told(PumpHalted) if (one.edge_id, one.direction, one.ring_id) == want
            ]
        )
        assert len(told) == 1
    flow = transfer.add(pair.tx, pair.rx, make_records(1, [100]))
    transfer.run()
    flow.check()


def test_orders_that_cannot_be_are_told(net):
    a = net.process("a")
    a.send(EDGE, "nobody")
    assert a.wait_fault(EDGE).code is EdgeFaultCode.LINK_LOST
    a.send(2, "b")
    a.send(2, "b")
    a.wait_counted("order_ignored", 1)
    a.close_stream(99)
    a.wait_counted("order_ignored", 2)
    for spoil in (a.memory.erase_ring, lambda ring: a.memory.ring(ring).header.__setitem__(8, 1)):
        ref = a.ring(4096, 1)
        spoil(ref.ring_id)
        a.order_send(ref.ring_id + 100, "b", ref)
    assert a.wait_fault(ref.ring_id + 99).code is EdgeFaultCode.ARENA_FAILED
    assert a.wait_fault(ref.ring_id + 100).code is EdgeFaultCode.RING_HEADER_CHANGED


def test_reports_that_are_not_taken_are_told_later_in_order(net):
    a = net.process("a")
    a.deaf = True
    for ring in range(1, 6):
        a.halt(ring, EGRESS, ring)
    a.driver.order(CloseStream(edge_id=1, clean=True))
    a.wait_counted("order_ignored")
    assert not a.reports
    a.deaf = False
    a.wait_halted(5)
    assert [one.ring_id for one in a.told(PumpHalted)] == [1, 2, 3, 4, 5]


def test_progress_is_told_about_once_a_second_and_only_when_something_moved(net, transfer, make_records):
    pair = Pair(net)
    flow = transfer.add(pair.tx, pair.rx, make_records(1, [100, 200]))
    transfer.run()
    told = pair.a.wait(lambda: (one := pair.a.progress(EDGE, EGRESS)) and one.objects == 2 and one)
    assert (told.bytes, told.ring_bytes, told.last_sequence) == (len(flow.stream), 1 << 16, 1)
    told = pair.b.wait(lambda: (one := pair.b.progress(EDGE, INGRESS)) and one.in_flight_bytes == 0 and one)
    assert told.bytes == len(flow.stream)
    assert len(pair.a.told(PumpReady)) == 1
