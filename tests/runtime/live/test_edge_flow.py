"""Bytes from one node's workload to another's, and who may send them (design 5, 7)."""

from __future__ import annotations

import signal

import msgspec
import pytest

from messages.base import Address
from messages.control import CtlConfig, Once
from messages.edge import EdgeProvisionState
from messages.edge_end import EdgeFaultCode, ListEnds
from messages.edge_plan import AddEdge, EdgePhase, ListEdges
from messages.placement import PlaceOrder
from runtime.cluster import update_cluster
from runtime.cluster.settings import parse_settings, render_settings
from runtime.packages.directory import pack, sign

PLANNER, PLANE = Address("controller/edges"), Address("controller/plane")


@pytest.fixture
def flowing(make_cluster, hostwatch_dir):
    """hostwatch on attic, trend on shed, and an edge that has carried something."""
    live = make_cluster(("attic", "shed")).up()
    live.place("attic")
    trend = live.folder / "trend"
    pack(hostwatch_dir.with_name("trend"), trend)
    sign(trend, live.cluster.signer_key())
    order = PlaceOrder(package_dir=str(trend), config=CtlConfig(mode=Once(), args=[]), pin="shed")
    live.wait_instance(live.ask(PLANE, order, 30.0).placed.instance_id)
    live.ask(PLANNER, AddEdge(source="hostwatch.out", target="trend.in"), 10.0)

    def carried() -> bool:
        [edge] = live.ask(PLANNER, ListEdges()).edges
        return edge.phase is EdgePhase.READY and edge.consumer is not None and edge.consumer.progress.objects > 0

    live.until(carried, what="an object has arrived")
    return live


def end_on_shed(live):
    [*_, newest] = live.ask(Address("shed.edges/edges"), ListEnds()).ends
    return newest


def test_an_edges_process_taken_off_the_directory_is_not_heard_any_more(flowing):
    live = flowing
    assert end_on_shed(live).state is EdgeProvisionState.READY
    file = live.cluster.path / "cluster.toml"
    settings = parse_settings(file.read_text(), str(file))
    kept = tuple(node for node in settings.node if node.name != "attic")
    file.write_text(render_settings(msgspec.structs.replace(settings, node=kept)))
    update_cluster(live.cluster.path)
    live.root.send_signal(signal.SIGHUP)
    live.until(lambda: end_on_shed(live).fault is not None, what="the stream is cut")
    end = end_on_shed(live)
    assert end.fault is EdgeFaultCode.LINK_LOST
    assert "attic.edges was revoked" in end.fault_text
    assert live.end() == 0
