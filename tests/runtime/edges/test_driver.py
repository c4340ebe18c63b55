"""Two drivers, real rings and sockets: every byte once and in order, whatever the two ends and the link do."""

from __future__ import annotations

import random

import pytest

from messages.edge import RingDirection

EGRESS, INGRESS = RingDirection.EGRESS, RingDirection.INGRESS
EDGE = 7001


@pytest.mark.parametrize("first", ["producer", "consumer"])
@pytest.mark.parametrize("transport", ["ipc", "tcp"])
def test_ends_may_be_started_in_either_order(net, transfer, make_records, first, transport):
    if transport == "tcp":
        net.tcp()
    if first == "producer":
        a = net.process("a")
        tx = a.send(EDGE, "b")
        b = net.process("b")
        rx = b.receive(EDGE, "a")
    else:
        b = net.process("b")
        rx = b.receive(EDGE, "a")
        a = net.process("a")
        tx = a.send(EDGE, "b")
    a.wait_ready(EDGE, EGRESS)
    b.wait_ready(EDGE, INGRESS)
    flow = transfer.add(tx, rx, make_records(1, [0, 1, 100, 5000, 65536 - 40, 200_000, 3]))
    transfer.run()
    flow.check()
