"""A node's edges live in a process of their own, from the first edge on, and go where their node goes (design 6)."""

from __future__ import annotations

from messages.base import Address
from messages.edge import EdgeId, GetLocalRecord
from messages.supervision import ChildState, ShowChildren, StartChild
from messages.system import GetState
from runtime.client import Client

NODE, EDGES = "attic", "attic.edges"
ESTABLISHER = Address(f"{EDGES}/establisher")


def _edges_child(client: Client):
    view = client.ask(Address(f"{NODE}/supervisor"), ShowChildren(), 2.0)
    return next(child for child in view.children if child.name == EDGES)


def test_the_edges_process_starts_on_demand_comes_back_and_never_outlives_its_node(shared):

    with Client.connect(shared.cluster, [NODE, EDGES]) as client:
        assert _edges_child(client).state is ChildState.STOPPED
        assert client.ask(Address(f"{NODE}/supervisor"), StartChild(name=EDGES), 5.0).refused is None
        shared.until(lambda: _edges_child(client).state is ChildState.RUNNING, what="the edges process runs")
        assert client.ask(ESTABLISHER, GetLocalRecord(edge_id=EdgeId(1)), 5.0).record is None

        def pid() -> int:
            return client.ask(Address(f"{NODE}/processes"), GetState(), 2.0).state[EDGES]["pid"]

        first = shared.life(pid())
        first.kill()
        assert first.wait_end()
        shared.until(lambda: _edges_child(client).restarts == 1 and _edges_child(client).state is ChildState.RUNNING)
        assert client.ask(ESTABLISHER, GetLocalRecord(edge_id=EdgeId(1)), 5.0).record is None

        second, node = shared.life(pid()), shared.life(NODE)
        node.kill()
        assert node.wait_end()
        assert second.wait_end(5), "an edges process outlives its node"
        shared.wait_child(NODE, lambda child: child.state is ChildState.RUNNING)
        shared.until(lambda: _edges_child(client).state is ChildState.STOPPED, what="no edges process without an edge")
    shared.check_serves()
