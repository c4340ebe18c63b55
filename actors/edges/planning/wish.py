"""What an operator may write about an edge: port names and sizes, and the specifications of them (design 7, E 2.5).

A port is `workload.port`, or `workload@node.port` where the workload runs on several nodes; an instance id may stand in
the workload's place. The last dot separates the port. An edge is called `source -> target`.
"""

from __future__ import annotations

import re

from actors.edges.records import HEADER_BYTES as RECORD_HEADER_BYTES
from messages.base import U64_MAX, Record
from messages.edge import DType, ObjectKind, ObjectSpec, RingSpec
from messages.edge_plan import AddEdge, EdgePlanRefusal

MIB = 1024 * 1024
MAX_EXTENT_BYTES = 256 * MIB
RING_HEADER_BYTES = 128
PAGE_BYTES = 4_096
"""Rings begin at pages and are whole pages, so that a worker maps each alone."""

RECORDS_IN_FLIGHT = 8
SMALL_RING_BYTES = 256 * 1024
RINGS_AT_LEAST = 64
"""A ring that nobody sized holds 8 of the largest records and at least 256 KiB, which hides the time a wake-up takes;
but no more than a 64th of a node's ring memory, unless the two records that it must hold are larger."""

_WORKLOAD = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*", re.ASCII)
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
MAX_WORKLOAD = 128
MAX_EDGE_NAME = 255
SHOWN = 80


class PlanRefused(Exception):
    """An order that is refused; the asker gets code and reason."""

    def __init__(self, code: EdgePlanRefusal, reason: str) -> None:
        super().__init__(f"{code.value}: {reason}")
        self.code = code
        self.reason = reason


class PortName(Record, frozen=True):
    """One end as it was named; `node` is a configured name or None."""

    workload: str
    node: str | None
    port: str

    def __str__(self) -> str:
        where = "" if self.node is None else f"@{self.node}"
        return f"{self.workload}{where}.{self.port}"


def parse_port(text: str, what: str) -> PortName:
    """A port out of `workload.port` or `workload@node.port`. Raises `PlanRefused` (`invalid`) saying what to write."""
    instance, dot, port = text.rpartition(".")
    if not dot:
        raise _invalid(f"{what} {text[:SHOWN]!r} names no port: write WORKLOAD.PORT, for example hostwatch.out")
    workload, at, node = instance.partition("@")
    if _WORKLOAD.fullmatch(workload) is None or len(workload) > MAX_WORKLOAD:
        raise _invalid(
            f"{what} {text[:SHOWN]!r}: {workload[:SHOWN]!r} is no name of a workload; write WORKLOAD.PORT or "
            "WORKLOAD@NODE.PORT"
        )
    for name, kind in ((node, "node"), (port, "port")):
        if (kind == "port" or at) and _NAME.fullmatch(name) is None:
            raise _invalid(
                f"{what} {text[:SHOWN]!r}: {name[:SHOWN]!r} is no name of a {kind}: 1 to 63 lower-case letters, digits "
                "and hyphens, with a letter or digit at both ends"
            )
    return PortName(workload=workload, node=node if at else None, port=port)


def edge_name(source: str, target: str) -> str:
    """Raises `PlanRefused` (`invalid`) when it is longer than an edges process takes."""
    name = f"{source} -> {target}"
    if len(name) > MAX_EDGE_NAME:
        raise _invalid(f"the name {name[:SHOWN]!r}... has {len(name)} characters, at most {MAX_EDGE_NAME} are allowed")
    return name


def spelled(text: str) -> str:
    """An edge's name however it was spaced: `a.out->b.in` is `a.out -> b.in`."""
    return " -> ".join(part.strip() for part in text.split("->", 1))


class Sizes(Record, frozen=True):
    """Bytes: the largest payload of one object, and the data area of each end's ring."""

    max_extent_bytes: int
    ring_bytes: int

    @property
    def object_spec(self) -> ObjectSpec:
        return ObjectSpec(kind=ObjectKind.ACTIVATION, dtype=DType.F16, max_extent_bytes=self.max_extent_bytes)

    @property
    def ring_spec(self) -> RingSpec:
        return RingSpec(header_bytes=RING_HEADER_BYTES, data_bytes=self.ring_bytes, alignment=PAGE_BYTES)


def sizes_of(order: AddEdge, arena_bytes: int) -> Sizes:
    """The sizes that an order means; rings are rounded up to whole pages.

    `arena_bytes`: ring memory of the largest node. Raises `PlanRefused` (`invalid`) with the numbers.
    """
    extent = order.max_extent_bytes
    if not 1 <= extent <= MAX_EXTENT_BYTES:
        raise _invalid(f"max_extent_bytes is {extent}: an object holds 1 to {MAX_EXTENT_BYTES} bytes (256 MiB)")
    record = RECORD_HEADER_BYTES + extent
    least = 2 * record
    if order.ring_bytes is None:
        wanted = max(least, min(max(RECORDS_IN_FLIGHT * record, SMALL_RING_BYTES), arena_bytes // RINGS_AT_LEAST))
    else:
        wanted = order.ring_bytes
        if wanted < least:
            raise _invalid(
                f"ring_bytes is {wanted}: a ring holds two of its largest records, so at least {least} bytes for "
                f"objects of {extent} bytes ({RECORD_HEADER_BYTES} bytes of header each)"
            )
    ring = -(-wanted // PAGE_BYTES) * PAGE_BYTES
    needed = PAGE_BYTES + ring  # its header takes a page
    if needed > arena_bytes or needed > U64_MAX:
        raise _invalid(
            f"a ring of {ring} bytes needs {needed} bytes of a node's ring memory, which is {arena_bytes} bytes at "
            "most: ask for smaller objects or a smaller ring, or give the nodes more"
        )
    return Sizes(max_extent_bytes=extent, ring_bytes=ring)


def _invalid(reason: str) -> PlanRefused:
    return PlanRefused(EdgePlanRefusal.INVALID, reason)


__all__ = ["MAX_EXTENT_BYTES", "PlanRefused", "PortName", "Sizes", "edge_name", "parse_port", "sizes_of", "spelled"]
