"""A node's edges live in a process of their own, from the first edge on, and go where their node goes (design 6, 7)."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

import msgspec

from messages.base import Address
from messages.edge import RingLayout
from messages.edge_end import ListEnds
from messages.edge_ports import FormatRing, RingRef
from messages.supervision import ChildState, ShowChildren, StartChild, SupervisionRefusal
from messages.system import GetProcess, GetState
from runtime.client import Client
from runtime.cluster import update_cluster
from runtime.cluster.directory import open_directory, sign_directory

NODE, EDGES = "attic", "attic.edges"
MIB = 1024 * 1024
RING = RingRef(
    arena="nobody",
    ring_id=1,
    generation=1,
    layout=RingLayout(
        start_offset=0, header_offset=0, data_offset=4096, end_offset=12288, data_bytes=8192, alignment=4096
    ),
)


class Child:
    """The edges process as its node's supervisor sees it."""

    def __init__(self, live, client: Client, node: str = NODE) -> None:
        self.live, self.client, self.node = live, client, node
        self.name = f"{node}.edges"

    def view(self):
        view = self.client.ask(Address(f"{self.node}/supervisor"), ShowChildren(), 2.0)
        return next(child for child in view.children if child.name == self.name)

    def pid(self) -> int:
        return self.client.ask(Address(f"{self.node}/processes"), GetState(), 2.0).state[self.name]["pid"]

    def ends(self):
        return self.client.ask(Address(f"{self.name}/edges"), ListEnds(), 5.0)

    def start(self):
        """Asked for, and until it answers."""
        done = self.client.ask(Address(f"{self.node}/supervisor"), StartChild(name=self.name), 5.0)
        assert done.refused is None, done
        self.live.until(lambda: self.view().state is ChildState.RUNNING, what="the edges process runs")
        assert self.ends().ends == []
        return done

    def stays(self, condition) -> None:
        self.live.until(lambda: condition(self.view()), what="the child is as expected")


def mappings_of(pid: int) -> str:
    return Path(f"/proc/{pid}/maps").read_text()


def test_the_edges_process_starts_on_demand_comes_back_and_never_outlives_its_node(shared):
    with Client.connect(shared.cluster, [NODE, EDGES, "controller"]) as client:
        child = Child(shared, client)
        assert child.view().state is ChildState.STOPPED
        child.start()
        links = client.ask(Address(f"{EDGES}/supervisor"), GetProcess(), 2.0).links
        assert {(link.process, link.plane) for link in links if link.up} >= {
            (NODE, "control"),
            ("controller", "control"),
        }
        assert all(link.plane == "control" for link in links), "an edges process fetches no packages"

        life = child.view().incarnation
        again = client.ask(Address(f"{NODE}/supervisor"), StartChild(name=EDGES), 5.0)
        assert (again.refused, again.child.state, again.child.incarnation) == (None, ChildState.RUNNING, life)

        node, first = shared.life(NODE), shared.life(child.pid())
        first.kill()
        assert first.wait_end()
        child.stays(lambda view: view.restarts == 1 and view.state is ChildState.RUNNING)
        assert child.ends().ends == []
        assert node.lives(), "its node stays"

        second = shared.life(child.pid())
        node.kill()
        assert node.wait_end()
        assert second.wait_end(5), "an edges process outlives its node"
        shared.wait_child(NODE, lambda child: child.state is ChildState.RUNNING)
        child.stays(lambda view: view.state is ChildState.STOPPED)
    shared.check_serves()


def test_ring_memory_ends_with_its_process_and_down_leaves_nothing(make_cluster):
    live = make_cluster(("shed",))
    file = live.cluster.path / "cluster.toml"
    file.write_text(file.read_text().replace('name = "shed"\n', 'name = "shed"\narena_mb = 3\n'))
    live.up()
    with Client.connect(live.cluster, ["shed", "shed.edges"]) as client:
        child = Child(live, client, "shed")
        child.start()
        arena = child.ends().arena
        assert (arena.capacity_bytes, arena.free_bytes) == (3 * MIB, 3 * MIB)
        memory = Address("shed.edges/memory")
        client.ask(memory, FormatRing(ring=RING, size_bytes=3 * MIB), 5.0)
        [row] = client.ask(memory, GetState(), 2.0).state
        assert (row["rings"], row["size_bytes"], row["resident_bytes"]) == ([1], 3 * MIB, 12288)
        first = live.life(child.pid())
        assert "memfd:sennit-nobody" in mappings_of(first.pid)
        first.kill()
        assert first.wait_end()
        child.stays(lambda view: view.restarts == 1 and view.state is ChildState.RUNNING)
        assert client.ask(memory, GetState(), 2.0).state == []
        assert "memfd:sennit" not in mappings_of(child.pid())
        client.ask(memory, FormatRing(ring=RING, size_bytes=3 * MIB), 5.0)
        edges = live.life(child.pid())
    assert {path.name for path in live.sockets()} >= {"shed.edges.data.sock", "shed.edges.sock", "shed.sock"}
    assert live.end() == 0, live.words()
    assert edges.wait_end()
    assert live.left() == []
    assert live.sockets() == []
    said = [
        (entry["time"], entry["process"])
        for name in ("shed", "shed.edges")
        for line in live.cluster.log_file(name).read_text().splitlines()
        if (entry := msgspec.json.decode(line))["text"] == "process ends"
    ]
    assert [name for _, name in sorted(said)] == ["shed.edges", "shed"], "in order"


def test_an_edges_process_that_cannot_listen_is_parked_says_why_and_its_node_works_on(make_cluster):
    live = make_cluster(("shed",))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        endpoint = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        with (live.cluster.path / "cluster.toml").open("a") as file:
            file.write(f'\n[endpoints.shed]\nedges = "{endpoint}"\n')
        live.cluster = update_cluster(live.cluster.path)
        live.up()
        check_parked(live, endpoint)


def check_parked(live, endpoint: str) -> None:
    with Client.connect(live.cluster, ["shed", "shed.edges"]) as client:
        child, node = Child(live, client, "shed"), live.life("shed")
        client.ask(Address("shed/supervisor"), StartChild(name="shed.edges"), 5.0)
        child.stays(lambda view: view.state is ChildState.PARKED)
        assert f"cannot listen on {endpoint}" in child.view().last_exit
        assert node.lives()
        refused = client.ask(Address("shed/supervisor"), StartChild(name="shed.edge"), 5.0)
        assert refused.refused is SupervisionRefusal.UNKNOWN_CHILD
    live.check_serves()


def test_a_directory_from_before_there_were_edges_is_told_with_the_remedy_and_starts_nothing(make_cluster):
    live = make_cluster(("shed",))
    cluster, operator = live.cluster, live.cluster.key("operator")
    file = cluster.path / "directory.json"
    directory = open_directory(file.read_bytes(), operator.public_key, str(file))
    older = tuple(msgspec.structs.replace(entry, edges=None) for entry in directory.processes)
    file.write_bytes(sign_directory(msgspec.structs.replace(directory, processes=older), operator))
    assert live.launch().wait(20) == 78
    assert "does not say where 'shed.edges' listens for edges" in live.words()
    assert f"sennit init {cluster.path} --update" in live.words()
    assert live.left() == []


def test_an_edges_process_whose_root_was_killed_is_gone_too(make_cluster):
    live = make_cluster(("shed",)).up()
    with Client.connect(live.cluster, ["shed", "shed.edges"]) as client:
        child = Child(live, client, "shed")
        child.start()
        edges = live.life(child.pid())
    live.end(signal.SIGKILL)
    assert edges.wait_end()
    live.until(lambda: live.left() == [], what="nothing is left")
