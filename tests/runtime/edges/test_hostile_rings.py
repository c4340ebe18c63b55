"""A workload that abuses the descriptors and the memory of its rings harms its own edges, and no thread of its node."""

from __future__ import annotations

import contextlib
import os
import signal
import threading

import pytest

from messages.edge import RingDirection
from messages.edge_end import EdgeFaultCode
from messages.edge_ports import PumpFaulted
from runtime.edges import overdue
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
