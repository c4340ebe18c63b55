"""Names of processes and nodes: one strict pattern, refused and never rewritten (messages/base.py, `NodeName`).

A name becomes a folder, a socket file and the first part of an address, so two names that look or fold alike, or that
hide a path, must not exist.
"""

from __future__ import annotations

import re
from enum import StrEnum

from messages.base import NodeName
from runtime.cluster.fault import invalid

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)


class Role(StrEnum):
    """What a process of the directory is. An operator's key has no process: it signs and dials.

    `edges` is a node's child process (design 6): `shed.edges` belongs to `shed`.
    """

    ROOT = "root"
    CHAIN = "chain"
    GATE = "gate"
    CONTROLLER = "controller"
    NODE = "node"
    EDGES = "edges"
    OPERATOR = "operator"


SIGNER = "signer"
"""File name of the key that signs packages; it belongs to no process."""

EDGES_SUFFIX = f".{Role.EDGES.value}"

RESERVED = frozenset({*(role.value for role in Role), SIGNER})


def edges_of(node: str) -> NodeName:
    """The process that holds a node's edges."""
    return NodeName(node + EDGES_SUFFIX)


def node_of(edges: str) -> NodeName:
    """The node that a process of role `edges` belongs to."""
    return NodeName(edges.removesuffix(EDGES_SUFFIX))


def check_name(text: str, what: str) -> NodeName:
    """`text` as a name. Raises `ClusterFault` (`invalid`) naming `what`; nothing is folded or trimmed."""
    if _NAME.fullmatch(text) is None:
        raise invalid(
            f"{what} {text[:80]!r} is not a name: 1 to 63 lower-case letters, digits and hyphens, with a letter or "
            "digit at both ends"
        )
    return NodeName(text)


def check_node_name(text: str) -> NodeName:
    """A name that a node may have: not one that the cluster's own processes and keys use."""
    name = check_name(text, "node name")
    if name in RESERVED:
        raise invalid(f"node name {text!r} is taken by the cluster itself (reserved: {', '.join(sorted(RESERVED))})")
    return name
