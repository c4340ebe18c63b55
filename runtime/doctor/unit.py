"""The systemd unit of a node on a host of its own (design 6)."""

from __future__ import annotations

import getpass
import math
import sys
from collections.abc import Sequence

from runtime.bounds import bounds_of
from runtime.cluster import Cluster, ClusterFault, ClusterFaultCode, Role

SPARE_S = 5


def unit_of(cluster: Cluster, node: str) -> str:
    """The text of the unit, for the user who asks. Raises `ClusterFault` when there is no such node."""
    entry = cluster.process(node)
    if entry.role is not Role.NODE:
        known = ", ".join(cluster.nodes)
        raise ClusterFault(ClusterFaultCode.NOT_FOUND, f"{node!r} is no node of {cluster.name}; it has {known}")
    stop_s = next(bounds.shutdown_s for bounds in bounds_of(cluster) if bounds.name == node)
    command = [sys.executable, "-P", "-m", "runtime.process", node, "--cluster", str(cluster.path), "--life", "0"]
    return _UNIT.format(
        node=node,
        cluster=cluster.name,
        user=getpass.getuser(),
        command=quoted(command),
        stop_s=math.ceil(stop_s) + SPARE_S,
    )


def quoted(words: Sequence[str]) -> str:
    """A command line as systemd reads it: its specifiers, variables and quotes taken literally."""
    return " ".join(_quoted(word) for word in words)


def _quoted(word: str) -> str:
    text = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return text if text == word and word and not any(sign.isspace() or sign in "';" for sign in word) else f'"{text}"'


_UNIT = """\
# Node {node} of cluster {cluster}. As /etc/systemd/system/sennit-{node}.service:
#   systemctl daemon-reload && systemctl enable --now sennit-{node}
[Unit]
Description=sennit node {node} of cluster {cluster}
Wants=network-online.target
After=network-online.target
# Its restarts are not given up
StartLimitIntervalSec=0

[Service]
Type=exec
User={user}
ExecStart={command}
Restart=always
RestartSec=1
# The node's process alone is signalled: workloads go on under their shims, and the next life adopts them. With
# control-group or mixed, every restart of the node would kill them
KillMode=process
# The longest that an ordered stop may take (sennit tree --lint), and a little
TimeoutStopSec={stop_s}
# A workload that runs out of memory is that workload's end, not the node's
OOMPolicy=continue
TasksMax=infinity
LimitNOFILE=65536
UMask=0077

[Install]
WantedBy=multi-user.target
"""

__all__ = ["quoted", "unit_of"]
