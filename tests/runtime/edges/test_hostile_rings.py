"""A workload that abuses the descriptors and the memory of its rings harms its own edges, and no thread of its node."""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import signal
import threading

import pytest

from actors.edges.records import RecordTracker
from messages.edge import RingDirection
from messages.edge_end import EdgeFaultCode
from messages.edge_ports import PumpFaulted
from runtime.edges.driver import overdue
from runtime.edges.ring import RingFault

EGRESS, INGRESS = RingDirection.EGRESS, RingDirection.INGRESS
EDGE, OTHER = 7001, 7002
Code = EdgeFaultCode
FULL = 2**64 - 2


class Pair:
    """An edge with a hostile workload at one end, and another between the same processes."""

    def __init__(self, net, where):
        self.a = net.process("a")
        self.b = self.a if where == "local" else net.process("b")
        self.tx, self.rx = self.a.send(EDGE, self.b.name), self.b.receive(EDGE, self.a.name)
        self.other = self.a.send(OTHER, self.b.name), self.b.receive(OTHER, self.a.name)
        for edge in (EDGE, OTHER):
            self.a.wait_ready(edge, EGRESS)
            self.b.wait_ready(edge, INGRESS)

    def wait_fault(self):
        both = (self.a, self.b)
        for process in both:
            with process.changed:
                process.changed.wait_for(lambda: any(one.told(PumpFaulted, EDGE) for one in both), 10)
        return next(fault for one in both for fault in one.told(PumpFaulted, EDGE))

    def check_other(self, transfer, make_records):
        flow = transfer.add(*self.other, make_records(5, [100, 70_000, 3]))
        transfer.run()
        flow.check()
        assert not self.a.told(PumpFaulted, OTHER) + self.b.told(PumpFaulted, OTHER)


@pytest.fixture(autouse=True)
def interrupts():
    """As in every process of a cluster (`runtime.process.handle_signals`)."""
    former = signal.signal(overdue.SIGNAL, lambda *_: None)
    yield
    signal.signal(overdue.SIGNAL, former)


@pytest.fixture(params=["local", "remote"])
def pair(request, net):
    return Pair(net, request.param)


def fill(fd):
    os.set_blocking(fd, True)
    os.eventfd_write(fd, FULL)


@pytest.mark.parametrize("side", ["data", "space"])
def test_an_eventfd_that_blocks_and_is_full_holds_up_its_own_edge_only(pair, transfer, make_records, side):
    fill(pair.rx.data_fd if side == "data" else pair.tx.space_fd)
    stream = make_records(1, [100])
    pair.tx.write(0, stream)
    pair.tx.commit(len(stream))
    assert pair.wait_fault().code is Code.CURSOR_BEYOND_CAPACITY
    pair.check_other(transfer, make_records)


@pytest.mark.parametrize("side", ["data", "space"])
def test_a_thief_of_sums_harms_its_own_edge_only(pair, transfer, make_records, side):
    """It makes its eventfd block and reads the sums that are for its node, a moment before the node does."""
    fd = pair.tx.data_fd if side == "data" else pair.rx.space_fd
    os.set_blocking(fd, True)
    stolen, over = [], threading.Event()

    def steal():
        while not over.is_set():
            stolen.append(os.eventfd_read(fd))

    thieves = [threading.Thread(target=steal, daemon=True) for _ in range(2)]
    for thief in thieves:
        thief.start()
    stream = make_records(1, [1000] * 20)
    for at in range(0, len(stream), 400):
        part = stream[at : at + 400]
        if pair.tx.known_free >= len(part):
            pair.tx.write(0, part)
            pair.tx.commit(len(part))
        if side == "space":
            with contextlib.suppress(RingFault):
                pair.rx.consume(pair.rx.readable())
    pair.check_other(transfer, make_records)
    over.set()
    for thief in thieves:
        while thief.is_alive():
            os.eventfd_write(fd, 1)
            thief.join(0.01)


def test_bytes_that_change_after_they_were_sent_reach_no_consumer_unchecked(pair, transfer, make_records, monkeypatch):
    """What is followed is what arrives, and not what lay in the producer's ring a moment before or after."""
    seen = []
    follow = RecordTracker.follow

    def follow_while_it_changes(tracker, chunk):
        if not seen and bytes(chunk[:4]) == b"MO01":
            seen.append(chunk)
            follow(tracker, chunk)
            pair.a.memory.ring(1).data[:4] = b"EVIL"
        else:
            follow(tracker, chunk)

    monkeypatch.setattr(RecordTracker, "follow", follow_while_it_changes)
    stream = make_records(1, [100])
    pair.tx.write(0, stream)
    pair.tx.commit(len(stream))
    arrived = wait_readable(pair)
    assert arrived in (b"", stream)
    if not arrived:
        assert pair.wait_fault().code is Code.UNSUPPORTED_MAGIC
    pair.check_other(transfer, make_records)


def wait_readable(pair):
    """What has arrived at the consumer, or nothing when the edge has ended."""
    poll = select.poll()
    poll.register(pair.rx.data_fd, select.POLLIN)
    for _ in range(1000):
        if poll.poll(10):
            return b"".join(bytes(span) for span in pair.rx.spans(0, pair.rx.readable()))
        if pair.a.told(PumpFaulted, EDGE) or pair.b.told(PumpFaulted, EDGE):
            return b""
    raise AssertionError("nothing arrived and nothing was told")


def punch(ring, at, length):
    """As a workload does with its own mapping: the bytes become zeros, the pages go."""
    with mmap.mmap(ring.arena_fd, ring.layout.end_offset) as own:
        own.madvise(mmap.MADV_REMOVE, at, length)


@pytest.mark.parametrize("whose", ["producer", "consumer"])
def test_a_hole_in_place_of_the_ring_s_header_ends_the_edge(pair, transfer, make_records, whose):
    ring = pair.a.memory.ring(1) if whose == "producer" else pair.b.memory.ring(2 if pair.a is pair.b else 1)
    punch(ring, ring.layout.header_offset, mmap.PAGESIZE)
    stream = make_records(1, [100])
    pair.tx.write(0, stream)
    pair.tx.commit(len(stream))
    fault = pair.wait_fault()
    assert fault.code is Code.RING_HEADER_CHANGED
    assert "magic" in fault.text
    pair.check_other(transfer, make_records)


def test_a_hole_in_place_of_committed_records_ends_the_edge(pair, transfer, make_records):
    ring = pair.a.memory.ring(1)
    stream = make_records(1, [100])
    pair.tx.write(0, stream)
    punch(ring, ring.layout.data_offset, mmap.PAGESIZE)
    pair.tx.commit(len(stream))
    assert pair.wait_fault().code is Code.UNSUPPORTED_MAGIC
    pair.check_other(transfer, make_records)


@pytest.mark.parametrize("lie", ["header", "record"])
def test_who_lies_about_having_let_go_harms_its_own_next_ring_only(net, transfer, make_records, lie):
    """The range is leased again, to the same workload: what it writes there is found like any other change."""
    process = net.process("a")
    former = process.ring(1 << 16, 1)
    kept = mmap.mmap(process.memory.ring(former.ring_id).arena_fd, former.layout.end_offset)
    process.memory.erase_ring(former.ring_id)
    process.offset = 0
    tx, rx = process.send(EDGE, "a"), process.receive(EDGE, "a")
    other = process.send(OTHER, "a"), process.receive(OTHER, "a")
    for edge in (EDGE, OTHER):
        process.wait_ready(edge, EGRESS)
        process.wait_ready(edge, INGRESS)
    assert process.memory.ring(former.ring_id + 1).layout == former.layout
    tx.write(0, make_records(1, [100]))
    at = former.layout.header_offset if lie == "header" else former.layout.data_offset
    kept[at : at + 4] = b"EVIL"
    tx.commit(140)
    code = Code.RING_HEADER_CHANGED if lie == "header" else Code.UNSUPPORTED_MAGIC
    assert process.wait_fault(EDGE, EGRESS).code is code
    assert rx.readable() == 0
    flow = transfer.add(*other, make_records(5, [100, 70_000, 3]))
    transfer.run()
    flow.check()
    kept.close()
