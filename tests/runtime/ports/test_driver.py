"""The live `driver` port: orders go in, reports come back to who gave them, and a dead thread is a crash."""

from __future__ import annotations

import queue

import pytest

from actors.actor import Actor
from messages.base import Address
from messages.edge import EdgeId, RingDirection, RingId
from messages.edge_ports import CloseStream, CutLink, DriverReport, HaltPump, PumpHalted
from messages.system import ExitKind, GetState
from runtime.cluster.keys import SecretSeed, transport_key
from runtime.edges.driver.ends import Ends
from runtime.edges.memory import NodeMemory
from runtime.kernel.envelope import Envelope, Kind, tag_of
from runtime.kernel.live import LiveWorld
from runtime.office.sockets import Keys
from runtime.ports.driver import DriverPort

DRIVER, EDGES = Address("shed.edges/driver"), Address("shed.edges/edges")
WAIT_S = 10
HALT = HaltPump(edge_id=EdgeId(1), direction=RingDirection.EGRESS, ring_id=RingId(3))


class Edges(Actor[DriverReport]):
    mailbox = DriverReport

    def __init__(self, reports):
        self.reports = reports

    def receive(self, message, ctx):
        self.reports.put((ctx.sender, message))


class Bench:
    def __init__(self, folder):
        self.reports, self.ends, self.logged = queue.Queue(), queue.Queue(), []
        seed = SecretSeed.generate()
        keys = Keys(public=transport_key(seed.public_key), secret=seed.transport_secret(), peers={})
        self.world = LiveWorld("shed.edges", lambda level, _, text, fields: self.logged.append((level, text, fields)))
        self.world.on_end = lambda *what: self.ends.put(what)
        self.memory = NodeMemory()
        self.world.spawn(EDGES, lambda: Edges(self.reports))
        self.world.spawn(
            DRIVER, lambda: DriverPort("shed.edges", self.memory, keys, listen=f"ipc://{folder}/edges", dial={})
        )

    def order(self, message):
        self.world.post(Envelope(Kind.TELL, DRIVER, EDGES, message, tag=tag_of(type(message))))

    def close(self):
        left = len(self.world.cells)
        self.world.close()
        for _ in range(left):
            self.ends.get(timeout=WAIT_S)
        self.memory.close()


@pytest.fixture
def bench(tmp_path):
    bench = Bench(tmp_path)
    yield bench
    bench.close()


def test_reports_are_told_to_who_gave_the_orders(bench):
    bench.order(HALT)
    told = PumpHalted(edge_id=HALT.edge_id, direction=HALT.direction, ring_id=HALT.ring_id)
    assert bench.reports.get(timeout=WAIT_S) == (DRIVER, told)


def test_what_was_ignored_is_counted_and_shown(bench):
    bench.order(CloseStream(edge_id=EdgeId(9), clean=True))
    bench.order(CutLink(peer="loft.edges"))
    bench.order(HALT)
    bench.reports.get(timeout=WAIT_S)
    state = bench.world.main.ask(DRIVER, GetState(), WAIT_S)
    assert state.state == {"counted": {"order_ignored": 1}}
    assert any("edge 9" in text for _, text, _ in bench.logged)


def test_a_dead_driver_crashes_the_port(bench, monkeypatch):
    def broken(self, order):
        raise OSError("out of luck")

    monkeypatch.setattr(Ends, "order", broken)
    bench.order(HALT)
    address, *what = bench.ends.get(timeout=WAIT_S)
    assert address == DRIVER
    assert ExitKind.CRASHED in what
    assert any("out of luck" in str(one) for one in what)


def test_an_endpoint_that_is_taken_is_a_crash_at_the_start_that_says_so(bench, tmp_path):
    other = Bench(tmp_path)
    address, *what = other.ends.get(timeout=WAIT_S)
    assert address == DRIVER
    assert any("in use" in str(one) for one in what)
    other.close()
