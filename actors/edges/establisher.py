"""The life of an edge's end on one node: lease a ring, install it at the worker, start the pump, tear all of it down.

`EdgeEstablisher` takes `EdgeEvent` and emits `EdgeCommand` and `EdgeLifecycleEvent`. It is the seed's machine
(`edge_establisher.rs`, design 7), its table is E 2.3: every event has one method here, every state that reacts to it
one `case`, and what no `case` names is ignored there. An ignored event changes nothing, emits nothing and consumes no
id. What the seed does wrongly (E 2.5) is done here too and marked with its number; the differences of other
semantics belong at those marks.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass
from typing import assert_never

from messages.edge import (
    ActorAddress,
    CancelQueuedLease,
    DriverEdgeReady,
    EdgeCommand,
    EdgeEvent,
    EdgeFaulted,
    EdgeFaultReason,
    EdgeId,
    EdgeLifecycleEvent,
    EdgeProvisionState,
    EdgeReady,
    EdgeRingFaultReason,
    EdgeRingLeaseRejectedReason,
    EdgeStopped,
    EdgeStreamFaultReason,
    EstablishRecv,
    EstablishSend,
    InstallWorkerRing,
    LeaseRequestId,
    LeaseRing,
    LocalEdgeRecord,
    NodeId,
    ProvisionRx,
    ProvisionTx,
    PumpStopped,
    QuiescenceProof,
    QuiescenceProven,
    ReleaseArenaLease,
    RingDirection,
    RingFault,
    RingId,
    RingInstalled,
    RingLayout,
    RingLeased,
    RingLeaseRejected,
    RingQuiesced,
    StopEdge,
    Stopped,
    StopPump,
    StreamFault,
    UninstallWorkerRing,
)

State = EdgeProvisionState

VERIFIED = QuiescenceProof(verified=True)
"""The only proof an establisher can make (E 2.1)."""


@dataclass(frozen=True, slots=True)
class _Ring:
    """A granted ring: its id and where it lies."""

    ring_id: RingId
    layout: RingLayout


@dataclass(slots=True)
class _EdgeRecord:
    """One life of one edge id: what was provisioned and how far it has come (E 2.2).

    The seed's flags `worker_installed` and `driver_established` are not kept: both become true on the one step from
    `waiting_for_worker_ring` to `waiting_for_driver`, so the state tells them.
    """

    provision: ProvisionTx | ProvisionRx
    request_id: LeaseRequestId
    actor: ActorAddress
    state: EdgeProvisionState = State.WAITING_FOR_LEASE
    ring: _Ring | None = None

    @property
    def direction(self) -> RingDirection:
        return RingDirection.EGRESS if isinstance(self.provision, ProvisionTx) else RingDirection.INGRESS

    def holds(self, ring_id: RingId) -> bool:
        """Whether `ring_id` is the ring that was granted to this life."""
        return self.ring is not None and self.ring.ring_id == ring_id

    def snapshot(self) -> LocalEdgeRecord:
        return LocalEdgeRecord(
            edge_id=self.provision.edge_id,
            direction=self.direction,
            state=self.state,
            lease_request_id=self.request_id,
            ring_id=None if self.ring is None else self.ring.ring_id,
            peer_node_id=self.provision.consumer_node_id if isinstance(self.provision, ProvisionTx) else None,
            local_edge_actor=self.actor,
            remote_actor_address=None,
        )


class EdgeEstablisher:
    """Every edge end of the node `local_node_id`. Holds no bytes, does no I/O, owns no timer.

    `observe` takes one event and never refuses it; what it caused waits in two logs, each in the order emitted, until
    `drain_commands` and `drain_events` take it out. Requests and edge actors are numbered from 1, one of each per
    accepted provision.
    """

    def __init__(self, local_node_id: NodeId) -> None:
        self._local_node_id = local_node_id
        self._provisions_accepted = 0
        self._records: dict[EdgeId, _EdgeRecord] = {}
        self._edge_of_request: dict[LeaseRequestId, EdgeId] = {}
        self._edges_of_ring: dict[RingId, list[EdgeId]] = {}
        self._commands: list[EdgeCommand] = []
        self._events: list[EdgeLifecycleEvent] = []

    def observe(self, event: EdgeEvent) -> None:
        """Take one step of the table."""
        match event:
            case ProvisionTx() | ProvisionRx():
                self._provision(event)
            case RingLeased():
                self._ring_leased(event)
            case RingLeaseRejected():
                self._ring_lease_rejected(event)
            case RingInstalled():
                self._ring_installed(event)
            case DriverEdgeReady():
                self._driver_edge_ready(event)
            case StreamFault():
                self._stream_fault(event)
            case RingFault():
                self._ring_fault(event)
            case StopEdge():
                self._stop_edge(event)
            case PumpStopped():
                pass  # E 2.5 Q13: the seed sets a flag that nothing reads
            case RingQuiesced() | QuiescenceProven():
                self._quiescent(event)
            case Stopped():
                self._stopped(event)
            case _:
                assert_never(event)

    def drain_commands(self) -> list[EdgeCommand]:
        """The commands emitted since the last call, oldest first."""
        commands, self._commands = self._commands, []
        return commands

    def drain_events(self) -> list[EdgeLifecycleEvent]:
        """The life-cycle events emitted since the last call, oldest first."""
        events, self._events = self._events, []
        return events

    def local_record(self, edge_id: EdgeId) -> LocalEdgeRecord | None:
        """A snapshot of the latest life of `edge_id` on this node; `None` if it had none."""
        record = self._records.get(edge_id)
        return None if record is None else record.snapshot()

    def local_records(self) -> list[LocalEdgeRecord]:
        """A snapshot of every edge this node has or had an end of, in ascending edge id."""
        return [self._records[edge_id].snapshot() for edge_id in sorted(self._records)]

    # --- one method per event ---

    def _provision(self, event: ProvisionTx | ProvisionRx) -> None:
        if event.local_node_id != self._local_node_id:  # Q1: the sender never learns
            return
        self._forget(event.edge_id)  # Q2, Q3: whatever lived under this id, in whichever state and direction
        self._provisions_accepted += 1
        record = _EdgeRecord(
            provision=event,
            request_id=LeaseRequestId(self._provisions_accepted),
            actor=ActorAddress(self._provisions_accepted),
        )
        self._records[event.edge_id] = record
        self._edge_of_request[record.request_id] = event.edge_id
        self._commands.append(
            LeaseRing(
                request_id=record.request_id,
                edge_id=event.edge_id,
                direction=record.direction,
                ring_spec=event.ring_spec,
            )
        )

    def _ring_leased(self, event: RingLeased) -> None:
        record = self._record_of_request(event.request_id)
        if record is None:  # Q4: a grant nobody claims is not given back
            return
        match record.state:
            case State.WAITING_FOR_LEASE:
                edge_id = record.provision.edge_id
                record.ring = _Ring(event.ring_id, event.layout)
                record.state = State.WAITING_FOR_WORKER_RING
                insort(self._edges_of_ring.setdefault(event.ring_id, []), edge_id)
                self._commands.append(
                    InstallWorkerRing(
                        edge_id=edge_id,
                        ring_id=event.ring_id,
                        direction=record.direction,
                        layout=event.layout,
                        object_spec=record.provision.object_spec,
                        ring_spec=record.provision.ring_spec,
                    )
                )
            case _:  # too late, given back at once; Q5: also if it is the ring in use
                self._release(event.ring_id)

    def _ring_lease_rejected(self, event: RingLeaseRejected) -> None:
        record = self._record_of_request(event.request_id)
        if record is None:
            return
        match record.state:
            case State.WAITING_FOR_LEASE:
                record.state = State.FAILED
                self._fault(record, EdgeRingLeaseRejectedReason(reason=event.reason))
            case _:
                pass

    def _ring_installed(self, event: RingInstalled) -> None:
        record = self._records.get(event.edge_id)
        if record is None or record.ring is None or not record.holds(event.ring_id):
            return
        match record.state:
            case State.WAITING_FOR_WORKER_RING:
                record.state = State.WAITING_FOR_DRIVER
                self._commands.append(_establish(record.provision, record.ring.layout))
            case _:  # Q12: after a stop the worker keeps the ring
                pass

    def _driver_edge_ready(self, event: DriverEdgeReady) -> None:
        record = self._records.get(event.edge_id)
        if record is None:
            return
        match record.state:
            case State.WAITING_FOR_DRIVER:
                record.state = State.READY
                self._events.append(EdgeReady(edge_id=event.edge_id, local_edge_actor=record.actor))
            case _:
                pass

    def _stream_fault(self, event: StreamFault) -> None:
        record = self._records.get(event.edge_id)
        if record is not None:
            self._fault_and_stop(record, EdgeStreamFaultReason(reason=event.reason))

    def _ring_fault(self, event: RingFault) -> None:
        record = self._records.get(event.edge_id)
        if record is not None and record.holds(event.ring_id):
            self._fault_and_stop(record, EdgeRingFaultReason(reason=event.reason))

    def _stop_edge(self, event: StopEdge) -> None:
        record = self._records.get(event.edge_id)
        if record is not None:  # Q24: nobody answers for an edge this node does not know
            self._stop(record)

    def _quiescent(self, event: RingQuiesced | QuiescenceProven) -> None:
        record = self._record_of_ring(event.ring_id)
        if record is None:
            return
        match record.state:
            case State.STOPPING:  # Q14: one of the two is enough, whatever the pump does
                self._release(event.ring_id)
                self._end(record)
            case _:  # Q16: quiescence before the stop is not remembered
                pass

    def _stopped(self, event: Stopped) -> None:
        record = self._records.get(event.edge_id)
        if record is not None:  # Q21: from every state, and nothing is torn down
            record.state = State.STOPPED

    # --- steps shared by several events ---

    def _fault_and_stop(self, record: _EdgeRecord, reason: EdgeFaultReason) -> None:
        match record.state:
            case State.STOPPING | State.STOPPED | State.FAILED:  # Q17: only the first fault is told
                pass
            case _:
                self._fault(record, reason)
                self._stop(record)

    def _stop(self, record: _EdgeRecord) -> None:
        """Undo what was asked for; what the worker and the driver may touch is given back later (Q15)."""
        edge_id = record.provision.edge_id
        match record.state:
            case State.STOPPING | State.STOPPED:
                return
            case State.WAITING_FOR_LEASE | State.FAILED:
                self._cancel_lease(record)  # Q8: also if it was refused
                self._end(record)
            case State.WAITING_FOR_WORKER_RING:  # Q11: although the install may be under way
                self._cancel_lease(record)
                self._release(_granted(record).ring_id)
                self._end(record)
            case State.WAITING_FOR_DRIVER | State.READY:
                ring_id = _granted(record).ring_id
                self._cancel_lease(record)
                self._commands.append(StopPump(edge_id=edge_id, ring_id=ring_id))
                self._commands.append(UninstallWorkerRing(edge_id=edge_id, ring_id=ring_id))
                record.state = State.STOPPING

    def _cancel_lease(self, record: _EdgeRecord) -> None:
        """Q9: on every stop; the arena ignores it for a request that is not queued."""
        self._commands.append(CancelQueuedLease(request_id=record.request_id, edge_id=record.provision.edge_id))

    def _release(self, ring_id: RingId) -> None:
        self._commands.append(ReleaseArenaLease(ring_id=ring_id, proof=VERIFIED))

    def _fault(self, record: _EdgeRecord, reason: EdgeFaultReason) -> None:
        self._events.append(EdgeFaulted(edge_id=record.provision.edge_id, reason=reason))

    def _end(self, record: _EdgeRecord) -> None:
        """Q22: told when the release is asked for, not when it is done."""
        record.state = State.STOPPED
        self._events.append(EdgeStopped(edge_id=record.provision.edge_id))

    # --- records by what events name them with ---

    def _record_of_request(self, request_id: LeaseRequestId) -> _EdgeRecord | None:
        """The only record with this request: each accepted provision takes a new number. Dead records count."""
        edge_id = self._edge_of_request.get(request_id)
        return None if edge_id is None else self._records[edge_id]

    def _record_of_ring(self, ring_id: RingId) -> _EdgeRecord | None:
        """The record with the lowest edge id among those granted this ring, dead ones included (Q28)."""
        edge_ids = self._edges_of_ring.get(ring_id)
        return self._records[edge_ids[0]] if edge_ids else None

    def _forget(self, edge_id: EdgeId) -> None:
        """Drop the record of an edge, if there is one, and its places in both indexes."""
        record = self._records.pop(edge_id, None)
        if record is None:
            return
        del self._edge_of_request[record.request_id]
        if record.ring is not None:
            edge_ids = self._edges_of_ring[record.ring.ring_id]
            edge_ids.remove(edge_id)
            if not edge_ids:
                del self._edges_of_ring[record.ring.ring_id]


def _establish(provision: ProvisionTx | ProvisionRx, layout: RingLayout) -> EdgeCommand:
    if isinstance(provision, ProvisionTx):
        return EstablishSend(edge_id=provision.edge_id, consumer_node_id=provision.consumer_node_id, layout=layout)
    return EstablishRecv(edge_id=provision.edge_id, layout=layout)


def _granted(record: _EdgeRecord) -> _Ring:
    assert record.ring is not None, f"edge {record.provision.edge_id} is {record.state} without a ring"
    return record.ring
