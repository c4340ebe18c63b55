"""Which actors each process of a cluster is made of (design 6): one function a role, importing only what it needs."""

from __future__ import annotations

import pwd
import sys
import traceback
from collections.abc import Callable
from threading import Lock
from typing import Any, Generic, TypeVar

from actors.actor import Actor
from actors.supervision.policy import Backoff, ChildSpec
from actors.supervision.supervisor import ActorChild, ProcessChild
from messages.base import Address
from messages.ports import StartProcess
from messages.supervision import Spent
from runtime.cluster.cluster import Cluster, ProcessEntry
from runtime.cluster.names import Role, edges_of, node_of

Factory = Callable[[], Actor[Any]]
Child = ActorChild | ProcessChild

PROCESSES = "processes"
"""The port of whoever supervises processes."""

MIB = 1024 * 1024

Part = TypeVar("Part")


class Once(Generic[Part]):
    """A part that several actors share: made by the first of them that starts, whichever thread that is."""

    def __init__(self, make: Callable[[], Part]) -> None:
        self._make = make
        self._lock = Lock()
        self._made: list[Part] = []

    def __call__(self) -> Part:
        with self._lock:
            if not self._made:
                self._made.append(self._make())
            return self._made[0]


def children_of(cluster: Cluster, entry: ProcessEntry) -> list[Child]:
    """The actors of `entry`, in start order: ports first, then who uses them. Nothing is made before it starts."""
    return _ROLES[entry.role](cluster, entry)


def _actor(cluster: Cluster, entry: ProcessEntry, name: str, factory: Factory) -> ActorChild:
    return ActorChild(_spec(cluster, name), Address(f"{entry.name}/{name}"), factory, cluster.times.hung_after_s)


def _port(cluster: Cluster, entry: ProcessEntry, name: str, factory: Factory) -> ActorChild:
    """A port waits for disks and processes, so its beats do not judge it."""
    return ActorChild(_spec(cluster, name), Address(f"{entry.name}/{name}"), factory)


def _spec(cluster: Cluster, name: str) -> ChildSpec:
    return ChildSpec(name=name, start_timeout_s=cluster.times.start_timeout_s, shutdown_timeout_s=2.0)


def _chain(cluster: Cluster, entry: ProcessEntry) -> list[Child]:
    from actors.chain.chain import Chain
    from runtime.ports.chain_store import SqliteChainStore

    return [
        _port(cluster, entry, "store", lambda: SqliteChainStore(cluster.state_dir(entry.name))),
        _actor(cluster, entry, "chain", lambda: Chain(cluster.cluster_id, Address(f"{entry.name}/store"))),
    ]


def _gate_child(cluster: Cluster, entry: ProcessEntry) -> ActorChild:
    from actors.gate.gate import Gate
    from runtime.policy import load_policy

    file = cluster.policy_file
    return _actor(cluster, entry, "gate", lambda: Gate(load_policy(file), Address("chain/chain"), str(file)))


def _gate(cluster: Cluster, entry: ProcessEntry) -> list[Child]:
    return [_gate_child(cluster, entry)]


def _controller(cluster: Cluster, entry: ProcessEntry) -> list[Child]:
    from actors.edges.planning.planner import EdgePlanner, PlannerSettings
    from actors.packages.server import PackageServer
    from actors.placement.core import PlaneSettings
    from actors.placement.plane import PlacementControlPlane
    from messages.identity import Identity
    from runtime.packages.blobs import ContentStore
    from runtime.packages.directory import read_trust
    from runtime.ports.blobs import Blobs
    from runtime.ports.store import FileStore

    state, times = cluster.state_dir(entry.name), cluster.times
    content = Once(lambda: ContentStore(state / "blobs"))
    blobs = Address(f"{entry.name}/blobs")

    nodes = [
        Identity(name=node.name, role=node.role.value, public_key=node.public_key, tier=(node.tier or "paired"))
        for node in cluster.node_entries
    ]

    def plane() -> PlacementControlPlane:
        settings = PlaneSettings(
            place_timeout_s=times.fetch_timeout_s + times.call_timeout_s,
            read_timeout_s=times.call_timeout_s,
            gate_timeout_s=times.gate_timeout_s,
            dead_after_s=times.dead_after_s,
        )
        return PlacementControlPlane(
            seed=cluster.key(entry.name).reveal(),
            nodes=nodes,
            anchors=read_trust(cluster.trust_file),
            settings=settings,
        )

    def planner() -> EdgePlanner:
        return EdgePlanner(
            agent_id=cluster.process(entry.name).node_id,
            nodes=nodes,
            settings=PlannerSettings(
                gate_timeout_s=times.gate_timeout_s,
                start_timeout_s=times.start_timeout_s,
                arena_bytes=max(node.arena_mb for node in cluster.nodes.values()) * 2**20,
            ),
        )

    return [
        _port(cluster, entry, "store", lambda: FileStore(state / "documents", cluster.cluster_id, entry.name)),
        _port(cluster, entry, "blobs", lambda: Blobs(content())),
        _actor(cluster, entry, "packages", lambda: PackageServer(blobs, read_trust(cluster.trust_file))),
        _actor(cluster, entry, "plane", plane),
        _actor(cluster, entry, "edges", planner),
    ]


def _node(cluster: Cluster, entry: ProcessEntry) -> list[Child]:
    from actors.node.agent import NodeAgent
    from actors.node.settings import AgentSettings
    from messages.engine import TrustTier
    from runtime.packages.blobs import ContentStore
    from runtime.packages.directory import read_trust
    from runtime.ports.blobs import Blobs
    from runtime.ports.launcher import Launcher
    from runtime.ports.probe import MachineProbe
    from runtime.ports.processes import Processes
    from runtime.ports.store import FileStore
    from runtime.processes.exits import ExitWatch

    state, times = cluster.state_dir(entry.name), cluster.times
    exits = Once(lambda: ExitWatch(traceback.print_exception))
    content = Once(lambda: ContentStore(state / "blobs"))  # a second would clear what the first is writing

    def agent() -> NodeAgent:
        settings = AgentSettings(
            beat_s=times.beat_s,
            gate_timeout_s=times.gate_timeout_s,
            fetch_timeout_s=times.fetch_timeout_s,
            stop_grace_ms=round(times.stop_grace_s * 1000),
            orphan_after_s=times.orphan_after_s,
        )
        return NodeAgent(
            name=entry.name,
            seed=cluster.key(entry.name).reveal(),
            controller_key=cluster.process("controller").public_key,
            anchors=read_trust(cluster.trust_file),
            tier=entry.tier or TrustTier.PAIRED,
            claimed=cluster.nodes[entry.name].facts,
            settings=settings,
        )

    def launcher() -> Launcher:
        account = cluster.nodes[entry.name].run_as
        if account is None or account == "root":
            return Launcher(state / "instances", content().materialise, exits(), root_allowed=account == "root")
        user = pwd.getpwnam(account)
        return Launcher(state / "instances", content().materialise, exits(), user=(user.pw_uid, user.pw_gid))

    return [
        _port(cluster, entry, "store", lambda: FileStore(state / "documents", cluster.cluster_id, entry.name)),
        _port(cluster, entry, "blobs", lambda: Blobs(content())),
        _port(cluster, entry, "launcher", launcher),
        _port(cluster, entry, "probe", MachineProbe),
        _gate_child(cluster, entry),
        _actor(cluster, entry, "agent", agent),
        _port(cluster, entry, PROCESSES, lambda: Processes(process_command(cluster))),
        process_child(cluster, cluster.process(edges_of(entry.name)), on_demand=True),
    ]


def _edges(cluster: Cluster, entry: ProcessEntry) -> list[Child]:
    from actors.edges.edges import Edges
    from actors.edges.settings import EdgeSettings
    from messages.edge import NodeId
    from messages.identity import node_number
    from runtime.client import keys_of
    from runtime.edges.memory import NodeMemory
    from runtime.ports.driver import DriverPort
    from runtime.ports.memory import Memory
    from runtime.ports.workers import Workers
    from runtime.processes.exits import ExitWatch

    node = cluster.process(node_of(entry.name))
    budget_bytes = cluster.nodes[node.name].arena_mb * MIB
    memory = Once(NodeMemory)

    def workers() -> Workers:
        # The shims are children of the node's process: here they are watched, and there they are reaped
        return Workers(memory(), cluster.state_dir(node.name) / "instances", ExitWatch(traceback.print_exception))

    def driver() -> DriverPort:
        others = [one for one in cluster.processes.values() if one.role is Role.EDGES and one.name != entry.name]
        keys = keys_of(cluster, entry.name, others)
        dial = {str(one.name): one.edges for one in others if one.edges is not None}
        assert entry.edges is not None, "a directory that lacks it is out of date and not loaded"
        return DriverPort(entry.name, memory(), keys, listen=entry.edges, dial=dial)

    def edges() -> Edges:
        settings = EdgeSettings(beat_s=cluster.times.beat_s)
        return Edges(entry.name, NodeId(node_number(node.public_key)), budget_bytes=budget_bytes, settings=settings)

    return [
        _port(cluster, entry, "memory", lambda: Memory(memory())),
        _port(cluster, entry, "workers", workers),
        _port(cluster, entry, "driver", driver),
        _actor(cluster, entry, "edges", edges),
    ]


def process_command(cluster: Cluster) -> Callable[[StartProcess], list[str]]:
    """How a process of the cluster is started."""

    def command(order: StartProcess) -> list[str]:
        return [
            sys.executable, "-P", "-m", "runtime.process", order.name,
            "--cluster", str(cluster.path), "--life", str(order.incarnation),
        ]  # fmt: skip

    return command


def process_child(cluster: Cluster, entry: ProcessEntry, *, on_demand: bool = False) -> ProcessChild:
    """A process as its supervisor sees it: parked when its budget is spent, whatever becomes of its siblings."""
    times, restarts = cluster.times, cluster.restarts
    turns = 3 if entry.role is Role.NODE else 1  # a node stops its actors and then its edges process, or kills it
    spec = ChildSpec(
        name=entry.name,
        start_timeout_s=times.start_timeout_s,
        shutdown_timeout_s=turns * times.stop_timeout_s,
        on_demand=on_demand,
        backoff=Backoff(first_s=restarts.backoff_first_s, ceiling_s=restarts.backoff_ceiling_s),
        spent=Spent.PARK,
    )
    return ProcessChild(spec, entry.role.value, times.hung_after_s)


_ROLES: dict[Role, Callable[[Cluster, ProcessEntry], list[Child]]] = {
    Role.CHAIN: _chain,
    Role.GATE: _gate,
    Role.CONTROLLER: _controller,
    Role.NODE: _node,
    Role.EDGES: _edges,
}
