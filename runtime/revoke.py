"""Who lost its place: what a process does with a directory that was signed anew while it runs (design 5)."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from actors.actor import AskFailed
from messages.base import Address, Request
from messages.ports import SignalProcess
from messages.system import GetState
from runtime.cluster.cluster import Cluster, load_cluster
from runtime.cluster.fault import ClusterFault, ClusterFaultCode

_ASK_S = 2.0

Ask = Callable[[Address, Request[Any], float], Any]


def newer(known: Cluster) -> Cluster | None:
    """The directory on disk, when its version is higher. Raises `ClusterFault` for what cannot be trusted."""
    found = load_cluster(known.path)
    if found.cluster_id != known.cluster_id:
        raise ClusterFault(
            ClusterFaultCode.SIGNATURE,
            f"{known.path} holds cluster {found.cluster_id} now, this process belongs to {known.cluster_id}: "
            "nothing was revoked; put its own cluster.toml and directory.json back",
        )
    return found if found.version > known.version else None


def revoked(before: Cluster, after: Cluster) -> list[str]:
    """Names that are gone, and those whose key is another."""
    left = {entry.name: entry.public_key for entry in after.processes.values()}
    return [str(entry.name) for entry in before.processes.values() if left.get(entry.name) != entry.public_key]


def pass_on(ask: Ask, processes: Address) -> None:
    """Have the processes started by the port at `processes` read the directory too."""
    with suppress(AskFailed):  # its port comes back without children, and those to come read the directory
        for name in ask(processes, GetState(), _ASK_S).state:
            with suppress(AskFailed):  # it has just ended; it reads the directory when it starts
                ask(processes, SignalProcess(name=name, signal=signal.SIGHUP), _ASK_S)
