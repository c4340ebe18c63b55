"""What an edges process and a workload say to each other over their channel: one JSON object a packet (design 7).

    to the workload     {"do":"install","ring":R,"edge":E,"port":P,"direction":"egress"|"ingress","offset":...,
                         "header":...,"data":...,"end":...,"capacity":C,"generation":G,"max_extent":M,"alignment":A}
                        {"do":"uninstall","ring":R,"reason":T}
                        {"do":"end","ring":R}
    from the workload   {"did":"installed","ring":R}
                        {"did":"refused","ring":R,"code":C,"text":T}
                        {"did":"quiesced","ring":R}
                        {"did":"fault","ring":R,"code":C,"text":T}
                        {"did":"closed","ring":R}

UTF-8, at most 4096 bytes. Each install is answered `installed` or `refused`, each uninstall `quiesced`, also that of a
ring the workload does not have. `fault` and `closed` come when they happen, once for each ring; so does `quiesced` of a
ring that the workload lets go of unasked. The descriptors of the arena and of the two eventfds, `data` then `space`,
travel beside an `install`. Offsets, capacity and extents are bytes, offsets counted from the start of the arena. What a
workload says is checked and bounded: it may be broken or hostile.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from messages.base import U64_MAX
from messages.edge import DType, RingId
from messages.edge_end import EdgeFaultCode
from messages.edge_ports import InstallRing

PACKET_BYTES = 4096
TEXT_CHARACTERS = 400
"""Of what a workload says, and of what it is told, this much is passed on."""

ELEMENT_BYTES = {DType.F16: 2}
"""An object is a whole number of elements."""

TOLD_BY_WORKLOADS = frozenset(
    {
        EdgeFaultCode.WORKER_REFUSED,
        EdgeFaultCode.RING_HEADER_CHANGED,
        EdgeFaultCode.CURSOR_BEYOND_CAPACITY,
        EdgeFaultCode.UNSUPPORTED_MAGIC,
        EdgeFaultCode.UNSUPPORTED_VERSION,
        EdgeFaultCode.MALFORMED_HEADER_LENGTH,
        EdgeFaultCode.MALFORMED_HEADER,
        EdgeFaultCode.EXTENT_EXCEEDS_MAX,
        EdgeFaultCode.EXTENT_ALIGNMENT_VIOLATION,
        EdgeFaultCode.SEQUENCE_VIOLATION,
        EdgeFaultCode.EOF_BEFORE_FULL_PAYLOAD,
    }
)
"""What a workload can know. Any other code it names becomes `worker_refused`, the name kept in the text."""


class _Reply(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="did"):
    ring: int


class Installed(_Reply, frozen=True, tag="installed"):
    """The ring is mapped and its header is right."""


class Refused(_Reply, frozen=True, tag="refused"):
    """The ring is not mapped."""

    code: str = ""
    text: str = ""


class Quiesced(_Reply, frozen=True, tag="quiesced"):
    """The ring is unmapped: no view of it is left."""


class Fault(_Reply, frozen=True, tag="fault"):
    """The ring or a record in it is bad; it is mapped still."""

    code: str = ""
    text: str = ""


class Closed(_Reply, frozen=True, tag="closed"):
    """The port is closed: nothing more is committed, or all was read up to the stream's end."""


Reply = Installed | Refused | Quiesced | Fault | Closed

_decoder = msgspec.json.Decoder(Reply)


class MalformedReply(Exception):
    """What a workload said is no packet of this protocol."""


def parse_reply(packet: bytes) -> Reply:
    """Raises `MalformedReply`."""
    if len(packet) > PACKET_BYTES:
        raise MalformedReply(f"a packet of more than {PACKET_BYTES} bytes")
    try:
        reply: Reply = _decoder.decode(packet)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise MalformedReply(f"{shown(str(error))}, in {shown(packet[:80].decode(errors='replace'))!r}") from None
    if not 0 <= reply.ring <= U64_MAX:
        raise MalformedReply(f"ring {str(reply.ring)[:40]} is no unsigned 64-bit number")
    return reply


def fault_of(reply: Refused | Fault) -> tuple[EdgeFaultCode, str]:
    """The code and text of a complaint, fit for an operator's screen."""
    text = shown(reply.text) or "the workload says no more"
    try:
        code = EdgeFaultCode(reply.code)
    except ValueError:
        code = None
    if code is None or code not in TOLD_BY_WORKLOADS:
        return EdgeFaultCode.WORKER_REFUSED, f"{shown(reply.code[:64]) or 'no code'}: {text}"
    return code, text


def shown(text: str) -> str:
    """At most 400 characters, none of which moves a cursor or rings a bell."""
    return "".join(one if one.isprintable() else " " for one in text[:TEXT_CHARACTERS])


def install_packet(order: InstallRing) -> bytes:
    layout, spec = order.ring.layout, order.object_spec
    return _packet(
        do="install",
        ring=order.ring.ring_id,
        edge=order.edge_id,
        port=order.port,
        direction=order.direction.value,
        offset=layout.start_offset,
        header=layout.header_offset,
        data=layout.data_offset,
        end=layout.end_offset,
        capacity=layout.data_bytes,
        generation=order.ring.generation,
        max_extent=spec.max_extent_bytes,
        alignment=ELEMENT_BYTES[spec.dtype],
    )


def uninstall_packet(ring: RingId, reason: str) -> bytes:
    return _packet(do="uninstall", ring=ring, reason=shown(reason))


def end_packet(ring: RingId) -> bytes:
    return _packet(do="end", ring=ring)


def _packet(**fields: Any) -> bytes:
    packet = json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()
    assert len(packet) <= PACKET_BYTES, "ports and reasons are bounded"
    return packet


__all__ = [
    "PACKET_BYTES", "Closed", "Fault", "Installed", "MalformedReply", "Quiesced", "Refused", "Reply", "end_packet",
    "fault_of", "install_packet", "parse_reply", "shown", "uninstall_packet",
]  # fmt: skip
