"""Bytes from one node's workload to another's, and who may send them (design 5, 7)."""

from __future__ import annotations

import signal
import socket

import msgspec
import pytest

from messages.base import Address
from messages.control import CtlConfig, Once
from messages.edge import EdgeProvisionState
from messages.edge_end import EdgeFaultCode, ListEnds
from messages.edge_plan import AddEdge, EdgePhase, ListEdges
from messages.placement import ListInstances, PlaceOrder
from runtime.cluster import update_cluster
from runtime.cluster.settings import parse_settings, render_settings
from runtime.leftovers import Kind
from runtime.packages.directory import pack, sign

PLANNER, PLANE = Address("controller/edges"), Address("controller/plane")


@pytest.fixture
def flowing(make_cluster, hostwatch_dir):
    """hostwatch on attic, trend on shed, and an edge by TCP that has carried something."""
    live = make_cluster(("attic", "shed"))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with (live.cluster.path / "cluster.toml").open("a") as file:
        file.write(f'\n[endpoints.shed]\nedges = "tcp://127.0.0.1:{port}"\n')
    live.cluster = update_cluster(live.cluster.path)
    live.up()
    live.place("attic")
    trend = live.folder / "trend"
    pack(hostwatch_dir.with_name("trend"), trend)
    sign(trend, live.cluster.signer_key())
    order = PlaceOrder(package_dir=str(trend), config=CtlConfig(mode=Once(), args=[]), pin="shed")
    live.wait_instance(live.ask(PLANE, order, 30.0).placed.instance_id)
    live.ask(PLANNER, AddEdge(source="hostwatch.out", target="trend.in"), 10.0)
    wait_carried(live, life=1)
    return live


def wait_carried(live, life: int) -> None:
    def carried() -> bool:
        [edge] = live.ask(PLANNER, ListEdges()).edges
        moved = edge.consumer is not None and edge.consumer.progress.objects > 0
        return edge.phase is EdgePhase.READY and edge.run_id == life and moved

    live.until(carried, what=f"an object has arrived in life {life}")


def end_on_shed(live):
    [*_, newest] = live.ask(Address("shed.edges/edges"), ListEnds()).ends
    return newest


def test_an_edge_comes_back_with_its_cluster_while_its_workloads_went_on(flowing):
    live = flowing
    before = {line.instance_id: line.pid for line in live.ask(PLANE, ListInstances()).instances}
    assert live.end() == 0
    assert not [one for one in live.left() if one.kind is Kind.PROCESS]
    live.up()
    wait_carried(live, life=2)
    assert {line.instance_id: line.pid for line in live.ask(PLANE, ListInstances()).instances} == before


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
