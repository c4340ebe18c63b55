"""Mailboxes of the ports of an edges process: `memory`, `driver`, `workers` (design 3 and 7, E 3, 5 and 6).

Orders and reports name rings and offsets; bytes and descriptors stay inside the process. What a port reports is told
to `NODE.edges/edges`, which sent the order.
"""

from __future__ import annotations

from messages.base import Message, NodeName, Record, Request
from messages.control import Epoch
from messages.edge import EdgeId, ObjectSpec, RingDirection, RingId, RingLayout, RunId
from messages.edge_end import EdgeFaultCode, FindRun, Progress
from messages.system import Done


class RingRef(Record, frozen=True, kw_only=True):
    """A leased ring: `arena` is the instance id of the workload whose memory it lies in, `generation` the run id."""

    arena: str
    ring_id: RingId
    generation: RunId
    layout: RingLayout


# memory: one sealed memfd per workload


class FormatRing(Request[Done], frozen=True, kw_only=True):
    """Make the arena if there is none (`size_bytes`, sparse), write the ring's header, make its two eventfds.

    Refused with a `PortRefusal`: nothing was made. `data_bytes` of the layout is the capacity.
    """

    ring: RingRef
    size_bytes: int


class EraseRing(Request[Done], frozen=True, kw_only=True):
    """The ring is released: its pages go back to the system, its descriptors are closed. Unknown rings: nothing.

    Only sent with a proof that nothing touches the ring.
    """

    ring_id: RingId


class DropArena(Request[Done], frozen=True, kw_only=True):
    """No ring is left in it and none will come: unmap and close."""

    arena: str


MemoryMessage = FormatRing | EraseRing | DropArena


# driver: the pumps


class StartSend(Message, frozen=True, kw_only=True):
    """Pump what the worker commits to `ring` to the edges process `consumer`; the own process: through memory only."""

    edge_id: EdgeId
    run_id: RunId
    ring: RingRef
    object_spec: ObjectSpec
    consumer: NodeName


class StartReceive(Message, frozen=True, kw_only=True):
    """Pump the stream of this edge, from the edges process `producer` and nobody else, into `ring`."""

    edge_id: EdgeId
    run_id: RunId
    ring: RingRef
    object_spec: ObjectSpec
    producer: NodeName


class HaltPump(Message, frozen=True, kw_only=True):
    """Touch the ring no more, then tell `PumpHalted`; told also when there is no such pump (E 2.5 Q10)."""

    edge_id: EdgeId
    direction: RingDirection
    ring_id: RingId


class CloseStream(Message, frozen=True, kw_only=True):
    """Egress: nothing is committed any more; when all of it is acknowledged, tell `StreamEnded`.

    `clean`: the producer closed its port, so the far end is told that the stream is complete; else it was killed.
    """

    edge_id: EdgeId
    clean: bool


class CutLink(Message, frozen=True, kw_only=True):
    """End the connection to `peer` and dial again: streams resume from what was acknowledged."""

    peer: NodeName


class RevokePeer(Message, frozen=True, kw_only=True):
    """The key of the edges process `peer` is not listed any more: nothing that it says is heard from now on.

    Told by the process that read the directory again.
    """

    peer: NodeName


DriverMessage = StartSend | StartReceive | HaltPump | CloseStream | CutLink


class PumpReady(Message, frozen=True, kw_only=True):
    """Egress: the far end took the stream, or waits on this node; ingress: the producer's stream is here."""

    edge_id: EdgeId
    direction: RingDirection


class PumpFaulted(Message, frozen=True, kw_only=True):
    """The pump moves nothing more; it still has to be halted. Told once."""

    edge_id: EdgeId
    direction: RingDirection
    code: EdgeFaultCode
    text: str


class PumpHalted(Message, frozen=True, kw_only=True):
    """No socket, thread or view of the driver can touch the ring any more."""

    edge_id: EdgeId
    direction: RingDirection
    ring_id: RingId


class StreamEnded(Message, frozen=True, kw_only=True):
    """Egress: all is acknowledged after `CloseStream`. Ingress: the producer closed cleanly, all is in the ring."""

    edge_id: EdgeId
    direction: RingDirection


class Moved(Record, frozen=True, kw_only=True):
    edge_id: EdgeId
    direction: RingDirection
    progress: Progress


class PumpsMoved(Message, frozen=True, kw_only=True):
    """Totals of every pump that moved or stalled since the last such report, about once a second."""

    pumps: list[Moved]


DriverReport = PumpReady | PumpFaulted | PumpHalted | StreamEnded | PumpsMoved


# workers: the workloads of this node, reached through their shims


class InstallRing(Message, frozen=True, kw_only=True):
    """Hand the ring to the running workload `instance_id` of that epoch, as `port`, over a channel made when needed."""

    instance_id: str
    epoch: Epoch
    edge_id: EdgeId
    ring: RingRef
    port: str
    direction: RingDirection
    object_spec: ObjectSpec


class UninstallRing(Message, frozen=True, kw_only=True):
    """Have the workload let go of the ring; answered with `WorkerQuiesced` when it has, or `WorkerGone`."""

    instance_id: str
    ring_id: RingId
    reason: str


class EndStream(Message, frozen=True, kw_only=True):
    """Ingress: after what is in the ring nothing more comes; the workload's port ends when it has read it."""

    instance_id: str
    ring_id: RingId


class KillWorker(Message, frozen=True, kw_only=True):
    """End every process of the run that holds the ring, and of no other run: it does not let go of it.

    Answered with `WorkerGone`, or with `WorkerQuiesced` when no run holds the ring (any more).
    """

    instance_id: str
    ring_id: RingId
    reason: str


WorkersMessage = InstallRing | UninstallRing | EndStream | KillWorker | FindRun


class WorkerInstalled(Message, frozen=True, kw_only=True):
    instance_id: str
    ring_id: RingId


class WorkerFaulted(Message, frozen=True, kw_only=True):
    """The workload refused the ring, found it or a record bad, or cannot be reached. It may still have it mapped,
    unless `holds` is false."""

    instance_id: str
    ring_id: RingId
    code: EdgeFaultCode
    text: str
    holds: bool = True


class WorkerQuiesced(Message, frozen=True, kw_only=True):
    """The workload has unmapped the ring: no view of it is left. Told only when it was asked for."""

    instance_id: str
    ring_id: RingId


class WorkerClosed(Message, frozen=True, kw_only=True):
    """Egress: the workload closed the port: nothing more is committed. Ingress: it read all up to the stream's end."""

    instance_id: str
    ring_id: RingId


class WorkerGone(Message, frozen=True, kw_only=True):
    """No process of that run of the workload is left; so nothing of it can touch any of these rings."""

    instance_id: str
    ring_ids: list[RingId]


WorkerReport = WorkerInstalled | WorkerFaulted | WorkerQuiesced | WorkerClosed | WorkerGone
