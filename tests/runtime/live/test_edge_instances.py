"""An edge and the runs of its instances: stopped, started, killed (design 7)."""

from __future__ import annotations

import json
import os
import signal

import pytest

from messages.base import Address
from messages.chain import Tail
from messages.control import CtlConfig, Interval, Method
from messages.edge_end import EdgeFaultCode
from messages.edge_plan import AddEdge, EdgePhase, ListEdges
from messages.placement import PlaceOrder
from messages.system import GetProcess
from runtime.client import Client
from runtime.packages.directory import pack, sign

PLANNER, PLANE, CHAIN = Address("controller/edges"), Address("controller/plane"), Address("chain/chain")
EDGES = Address("shed.edges/edges")


class Joined:
    """hostwatch and trend on shed, joined."""

    def __init__(self, live, package) -> None:
        self.live = live
        self.producer = live.place("shed").instance_id
        trend = live.folder / "trend"
        pack(package, trend)
        sign(trend, live.cluster.signer_key())
        order = PlaceOrder(package_dir=str(trend), config=CtlConfig(mode=Interval(secs=1), args=[]), pin="shed")
        self.consumer = live.wait_instance(live.ask(PLANE, order, 30.0).placed.instance_id).instance_id
        self.added = live.ask(PLANNER, AddEdge(source="hostwatch.out", target="trend.in"), 10.0).edge

    def line(self):
        [edge] = self.live.ask(PLANNER, ListEdges()).edges
        return edge

    def until(self, phase, life, reason=""):
        def seen():
            line = self.line()
            return line if (line.phase, line.run_id, line.reason) == (phase, life, reason) else None

        return self.live.until(seen, what=f"{phase} in life {life}")

    def ready(self, life):
        return self.until(EdgePhase.READY, life)

    def story(self):
        records = self.live.ask(CHAIN, Tail(count=1_000, after=-1)).records
        told = [json.loads(record.payload) for record in records if record.kind == "edge.life"]
        return [f"{one['phase']} {one['epoch']}" for one in told]


@pytest.fixture
def joined(make_cluster, hostwatch_dir):
    return Joined(make_cluster(("shed",)).up(), hostwatch_dir.with_name("trend"))


def test_an_edge_follows_the_runs_of_its_instances_and_spends_no_life_on_one_that_does_not_run(joined):
    live = joined.live
    assert joined.added.reason, "an edge that waits says why, from the start"
    joined.ready(1)

    live.order(Method.STOP, joined.consumer)
    joined.until(EdgePhase.WAITING, 1, "trend@shed does not run: stopped by order")
    live.order(Method.START, joined.consumer)
    line = joined.ready(2)
    assert (line.faults, line.fault) == (0, None)

    live.order(Method.STOP, joined.producer)
    joined.until(EdgePhase.FINISHED, 2, "its producer closed the port and all has arrived")
    live.order(Method.START, joined.producer)
    assert joined.ready(3).faults == 0

    os.kill(live.wait_instance(joined.producer).pid, signal.SIGKILL)
    line = joined.ready(4)
    assert (line.faults, line.fault) == (1, EdgeFaultCode.WORKER_CRASHED)

    with Client.connect(live.cluster, ["shed.edges"]) as client:
        assert client.ask(EDGES, GetProcess(), 2.0).dead_letters == {}
    assert joined.story() == [
        "opening 1", "ready 1", "closed 1", "opening 2", "ready 2", "finished 2", "closed 2",
        "opening 3", "ready 3", "faulted 3", "closed 3", "opening 4", "ready 4",
    ]  # fmt: skip
