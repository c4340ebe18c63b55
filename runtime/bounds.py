"""What stopping and restarting a cluster can cost, told before it runs (design 6): `sennit tree --lint`."""

from __future__ import annotations

import math
from dataclasses import replace

from actors.supervision.lint import Bounds, Tree, lint
from messages.base import NodeName
from runtime.cluster import Cluster, Role
from runtime.cluster.names import edges_of
from runtime.process import process_supervisor
from runtime.roles import process_child
from runtime.up import root_supervisor

SYSTEMD_STOP_S = 90.0
"""After this long systemd kills a service that it stops, unless its unit says otherwise."""


def tree_of(cluster: Cluster) -> Tree:
    """The supervisors of `sennit up`, built from the tables that start them; nothing is started."""
    below = {str(entry.name): _process(cluster, entry.name) for entry in cluster.supervised}
    return root_supervisor(cluster).plan(below)


def bounds_of(cluster: Cluster) -> list[Bounds]:
    """Bounds of every supervisor, the root's first, with what is probably not meant."""
    root, *others = lint(tree_of(cluster))
    if root.shutdown_s > SYSTEMD_STOP_S:
        finding = (
            f"an ordered stop may take {root.shutdown_s:g} s and systemd kills after {SYSTEMD_STOP_S:g} s: "
            f"set TimeoutStopSec={math.ceil(root.shutdown_s)} in its unit, or lower times.stop_timeout_s"
        )
        root = replace(root, findings=(*root.findings, finding))
    return [root, *others]


def _process(cluster: Cluster, name: NodeName) -> Tree:
    entry = cluster.process(name)
    edges = edges_of(name)
    below = {str(edges): _process(cluster, edges)} if entry.role is Role.NODE else {}
    return process_supervisor(cluster, name).plan(below, process_child(cluster, entry).spec)


__all__ = ["SYSTEMD_STOP_S", "bounds_of", "tree_of"]
