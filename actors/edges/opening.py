"""Whether an order to open an edge end can be obeyed at all, whatever is open already (design 7, E 2.5 Q27).

The planner is trusted to mean well and not to be free of mistakes: what is asked of memory and workers is checked
before anything is done.
"""

from __future__ import annotations

import re

from actors.edges.records import HEADER_BYTES as RECORD_HEADER_BYTES
from messages.base import NodeName
from messages.edge import NodeId, ObjectSpec, ProvisionRx, ProvisionTx, RingDirection, RingSpec
from messages.edge_end import EdgeParty, EndRefusal, OpenEdge
from messages.system import KernelRefusal

RING_HEADER_BYTES = 128
SIZE_END = 2**63
"""Sizes and offsets stay below: they have to fit what maps and counts them."""

MAX_NAME = 255
MAX_INSTANCE_ID = 255

_PORT = re.compile(r"[a-z0-9-]{1,63}", re.ASCII)
_NODE_ID = re.compile(r"n-([0-9a-f]{16})", re.ASCII)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class Refusal(Exception):
    """The order is refused; nothing was done. `reason` says what is wrong and what to do."""

    def __init__(self, code: EndRefusal | KernelRefusal, reason: str) -> None:
        super().__init__(f"{code.value}: {reason}")
        self.code = code
        self.reason = reason


def own_party(order: OpenEdge) -> EdgeParty:
    """Who is at the end that is to be opened."""
    return order.producer if order.direction is RingDirection.EGRESS else order.consumer


def far_party(order: OpenEdge) -> EdgeParty:
    return order.consumer if order.direction is RingDirection.EGRESS else order.producer


def node_number(node_id: str) -> NodeId:
    """The number of a node id, `n-` and 16 hexadecimal digits. Raises `Refusal`."""
    found = _NODE_ID.fullmatch(node_id)
    if found is None:
        raise Refusal(EndRefusal.INVALID, f"{node_id[:64]!r} is no node id: n- and 16 hexadecimal digits")
    return NodeId(int(found[1], 16))


def provision_of(order: OpenEdge) -> ProvisionTx | ProvisionRx:
    """The seed's event for an order that was checked."""
    if order.direction is RingDirection.EGRESS:
        return ProvisionTx(
            run_id=order.run_id,
            edge_id=order.edge_id,
            local_node_id=node_number(order.producer.node_id),
            consumer_node_id=node_number(order.consumer.node_id),
            object_spec=order.object_spec,
            ring_spec=order.ring_spec,
        )
    return ProvisionRx(
        run_id=order.run_id,
        edge_id=order.edge_id,
        local_node_id=node_number(order.consumer.node_id),
        object_spec=order.object_spec,
        ring_spec=order.ring_spec,
    )


def check_order(order: OpenEdge, *, process: NodeName, node: NodeId) -> None:
    """Raises `Refusal`: `not_here` for an end of another node, `invalid` for what no edge can be."""
    _check_text("the name", order.name, MAX_NAME)
    for what, number in (("run_id", order.run_id), ("edge_id", order.edge_id)):
        if number < 1:
            raise Refusal(EndRefusal.INVALID, f"{what} is {number}: they count from 1")
    for party in (order.producer, order.consumer):
        _check_party(party)
    own = own_party(order)
    if own.process != process or node_number(own.node_id) != node:
        reason = (
            f"the {order.direction.value} end of {order.name} is at {own.process} ({own.node_id}), "
            f"this is {process} (n-{node:016x}): send it there"
        )
        raise Refusal(EndRefusal.NOT_HERE, reason)
    _check_specs(order.object_spec, order.ring_spec)


def _check_party(party: EdgeParty) -> None:
    node_number(party.node_id)
    _check_text("the instance id", party.instance_id, MAX_INSTANCE_ID)
    if _PORT.fullmatch(party.port) is None:
        reason = f"{party.port[:64]!r} is no port: 1 to 63 of a-z, 0-9 and hyphens"
        raise Refusal(EndRefusal.INVALID, reason)


def _check_text(what: str, text: str, limit: int) -> None:
    if not 0 < len(text) <= limit or _CONTROL.search(text):
        raise Refusal(EndRefusal.INVALID, f"{what} must have 1 to {limit} characters and no control character")


def _check_specs(objects: ObjectSpec, ring: RingSpec) -> None:
    def invalid(reason: str) -> Refusal:
        return Refusal(EndRefusal.INVALID, reason)

    if objects.max_extent_bytes < 1:
        raise invalid("max_extent_bytes is 0: an object must be allowed at least one byte")
    if ring.header_bytes != RING_HEADER_BYTES:
        raise invalid(f"header_bytes is {ring.header_bytes}: a ring has a header of {RING_HEADER_BYTES} bytes")
    if ring.alignment < 1 or ring.alignment & (ring.alignment - 1):
        raise invalid(f"alignment is {ring.alignment}: it must be a power of two")
    largest = objects.max_extent_bytes + RECORD_HEADER_BYTES
    if ring.data_bytes < 2 * largest:
        raise invalid(
            f"data_bytes is {ring.data_bytes}: a ring holds at least two of its largest records, {2 * largest} bytes"
        )
    if ring.header_bytes + ring.data_bytes + 2 * ring.alignment >= SIZE_END:
        raise invalid(f"a ring of {ring.data_bytes} bytes aligned to {ring.alignment} ends beyond 2^63")
