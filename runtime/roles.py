"""Which actors each process of a cluster is made of (design 6): one function a role, importing only what it needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from actors.actor import Actor
from actors.supervision.policy import ChildSpec
from actors.supervision.supervisor import ActorChild
from messages.base import Address
from runtime.cluster.cluster import Cluster, ProcessEntry
from runtime.cluster.names import Role

Factory = Callable[[], Actor[Any]]


def children_of(cluster: Cluster, entry: ProcessEntry) -> list[ActorChild]:
    """The actors of `entry`, in start order: ports first, then who uses them."""
    return _ROLES[entry.role](cluster, entry)


def _actor(cluster: Cluster, entry: ProcessEntry, name: str, factory: Factory) -> ActorChild:
    return ActorChild(_spec(cluster, name), Address(f"{entry.name}/{name}"), factory, cluster.times.hung_after_s)


def _port(cluster: Cluster, entry: ProcessEntry, name: str, factory: Factory) -> ActorChild:
    """A port waits for disks and processes, so its beats do not judge it."""
    return ActorChild(_spec(cluster, name), Address(f"{entry.name}/{name}"), factory)


def _spec(cluster: Cluster, name: str) -> ChildSpec:
    return ChildSpec(name=name, start_timeout_s=cluster.times.start_timeout_s, shutdown_timeout_s=2.0)


def _chain(cluster: Cluster, entry: ProcessEntry) -> list[ActorChild]:
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


def _gate(cluster: Cluster, entry: ProcessEntry) -> list[ActorChild]:
    return [_gate_child(cluster, entry)]


_ROLES: dict[Role, Callable[[Cluster, ProcessEntry], list[ActorChild]]] = {
    Role.CHAIN: _chain,
    Role.GATE: _gate,
}
