"""The life of an edge's end on one node: lease a ring, install it at the worker, start the pump, tear all of it down.

`EdgeEstablisher` takes `EdgeEvent` and emits `EdgeCommand` and `EdgeLifecycleEvent`. It is the seed's machine
(`edge_establisher.rs`, design 7), its table is E 2.3: every event has one method here, every state that reacts to it
one `case`, and what no `case` names is ignored there. An ignored event changes nothing, emits nothing and consumes no
id. What the seed does wrongly is done here too under `seed`; what `strict` does instead is one field of
`actors.edges.semantics.Rules`, read at one place here, marked with its number in E 2.5.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import assert_never

from actors.edges.id_spans import IdSpans
from actors.edges.semantics import EventRejected, EventRejection, Semantics, fault_of_specs, rules_of
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
    RingFaultReason,
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


class _Gate(Enum):
    """What has to be seen, while stopping, before the ring goes back (design 7)."""

    PUMP = auto()
    WORKER = auto()
    PROOF = auto()


_Key = tuple[EdgeId, str]
"""Edge and direction; the seed has one record per edge, whose direction is no part of its key (E 2.5 Q3)."""


@dataclass(slots=True)
class _EdgeRecord:
    """One life of one edge end: what was provisioned and how far it has come (E 2.2).

    The seed's flags `worker_installed` and `driver_established` are not kept: both become true on the one step from
    `waiting_for_worker_ring` to `waiting_for_driver`, so the state tells them. `awaits`: while `stopping`, the gates
    that are still closed.
    """

    provision: ProvisionTx | ProvisionRx
    request_id: LeaseRequestId
    actor: ActorAddress
    state: EdgeProvisionState = State.WAITING_FOR_LEASE
    ring: _Ring | None = None
    awaits: set[_Gate] = field(default_factory=set)

    @property
    def direction(self) -> RingDirection:
        return _direction(self.provision)

    @property
    def live(self) -> bool:
        """Whether something may still come of it: it waits, moves data, or holds a ring."""
        return self.state not in (State.STOPPED, State.FAILED)

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

    `observe` takes one event; what it caused waits in two logs, each in the order emitted, until `drain_commands` and
    `drain_events` take it out. Requests and edge actors are numbered from 1, one of each per accepted provision.

    Under `strict` a record that ended stays readable until a `Stopped` of its end says that the arena has the ring
    back, or until the end is provisioned anew: whoever drives the establisher owes it that `Stopped`.
    """

    def __init__(self, local_node_id: NodeId, semantics: Semantics = Semantics.SEED) -> None:
        self._local_node_id = local_node_id
        self._rules = rules_of(semantics)
        self._provisions_accepted = 0
        self._records: dict[_Key, _EdgeRecord] = {}
        self._key_of_request: dict[LeaseRequestId, _Key] = {}
        self._keys_of_ring: dict[RingId, list[_Key]] = {}
        self._given_back = IdSpans()
        self._commands: list[EdgeCommand] = []
        self._events: list[tuple[ActorAddress, EdgeLifecycleEvent]] = []

    def observe(self, event: EdgeEvent, direction: RingDirection | None = None) -> EventRejected | None:
        """Take one step of the table.

        `direction`: which end of `event.edge_id` is meant, as events do not say it; under `strict`, `StopEdge` and
        `Stopped` without one go to both ends, and an event whose ring tells the end, or that has one live end to go
        to, needs none. `seed` never looks at it. Returns why the event was turned away (`strict` only).
        """
        match event:
            case ProvisionTx() | ProvisionRx():
                return self._provision(event)
            case RingLeased():
                self._ring_leased(event)
            case RingLeaseRejected():
                self._ring_lease_rejected(event)
            case RingInstalled():
                self._ring_installed(event, direction)
            case DriverEdgeReady():
                return self._driver_edge_ready(event, direction)
            case StreamFault():
                return self._stream_fault(event, direction)
            case RingFault():
                self._ring_fault(event, direction)
            case StopEdge():
                return self._stop_edge(event, direction)
            case PumpStopped():
                self._pump_stopped(event, direction)
            case RingQuiesced():
                self._quiescent(event.ring_id, _Gate.WORKER)
            case QuiescenceProven():
                self._quiescent(event.ring_id, _Gate.PROOF)
            case Stopped():
                self._stopped(event, direction)
            case _:
                assert_never(event)
        return None

    def drain_commands(self) -> list[EdgeCommand]:
        """The commands emitted since the last call, oldest first."""
        commands, self._commands = self._commands, []
        return commands

    def drain_events(self) -> list[EdgeLifecycleEvent]:
        """The life-cycle events emitted since the last call, oldest first."""
        return [event for _, event in self.drain_addressed_events()]

    def drain_addressed_events(self) -> list[tuple[ActorAddress, EdgeLifecycleEvent]]:
        """As `drain_events`, each with the number of the edge actor it is for: events do not say of which end they
        are."""
        events, self._events = self._events, []
        return events

    def local_record(self, edge_id: EdgeId, direction: RingDirection | None = None) -> LocalEdgeRecord | None:
        """A snapshot of the latest life of this end; `None` if it had none, or it was forgotten.

        Raises `ValueError` if both ends of the edge are here (`strict` only) and `direction` does not say which.
        """
        records = self._ends(edge_id, direction)
        if len(records) > 1:
            raise ValueError(f"edge {edge_id} has both ends on this node: say which direction is meant")
        return records[0].snapshot() if records else None

    def local_records(self) -> list[LocalEdgeRecord]:
        """A snapshot of every record, in ascending edge id, egress before ingress."""
        return [self._records[key].snapshot() for key in sorted(self._records)]

    def record_of_ring(self, ring_id: RingId) -> LocalEdgeRecord | None:
        """A snapshot of the end that holds this ring: under `strict` a live one."""
        record = self._record_of_ring(ring_id)
        return None if record is None else record.snapshot()

    # --- one method per event ---

    def _provision(self, event: ProvisionTx | ProvisionRx) -> EventRejected | None:
        if event.local_node_id != self._local_node_id:
            return self._reject(
                EventRejection.WRONG_NODE, f"the provision is for node {event.local_node_id}: send it there"
            )
        key = self._key_of(event)
        current = self._records.get(key)
        in_the_way = current if current is not None and current.live and self._rules.live_edge_is_not_replaced else None
        if in_the_way is not None and in_the_way.provision == event:  # Q2
            return None
        rejected = self._objection(event, in_the_way)
        if rejected is not None:
            return rejected
        self._forget(key)  # of the seed's Q2, Q3: whatever lived under this id, in whichever state and direction
        self._provisions_accepted += 1
        record = _EdgeRecord(
            provision=event,
            request_id=LeaseRequestId(self._provisions_accepted),
            actor=ActorAddress(self._provisions_accepted),
        )
        self._records[key] = record
        self._key_of_request[record.request_id] = key
        self._commands.append(
            LeaseRing(
                request_id=record.request_id,
                edge_id=event.edge_id,
                direction=record.direction,
                ring_spec=event.ring_spec,
            )
        )
        return None

    def _ring_leased(self, event: RingLeased) -> None:
        record = self._record_of_request(event.request_id)
        wanted = record is not None and record.state is State.WAITING_FOR_LEASE
        if self._is_repeated_grant(event.ring_id, wanted):
            return
        if record is None:
            if self._rules.unclaimed_grant_is_released:  # Q4
                self._release(event.ring_id)
            return
        match record.state:
            case State.WAITING_FOR_LEASE:
                key = self._key_of(record.provision)
                record.ring = _Ring(event.ring_id, event.layout)
                record.state = State.WAITING_FOR_WORKER_RING
                self._given_back.discard(event.ring_id)
                insort(self._keys_of_ring.setdefault(event.ring_id, []), key)
                self._commands.append(
                    InstallWorkerRing(
                        edge_id=record.provision.edge_id,
                        ring_id=event.ring_id,
                        direction=record.direction,
                        layout=event.layout,
                        object_spec=record.provision.object_spec,
                        ring_spec=record.provision.ring_spec,
                    )
                )
            case _:  # too late or a second one; nothing was ever told of its ring (Q6)
                self._release(event.ring_id)

    def _ring_lease_rejected(self, event: RingLeaseRejected) -> None:
        record = self._record_of_request(event.request_id)
        if record is None:
            return
        match record.state:
            case State.WAITING_FOR_LEASE:
                self._tell_fault(record, EdgeRingLeaseRejectedReason(reason=event.reason))
                self._settle(record, State.FAILED)
            case _:
                pass

    def _ring_installed(self, event: RingInstalled, direction: RingDirection | None) -> None:
        record = self._end_with_ring(event.edge_id, event.ring_id, direction)
        if record is None or record.ring is None:
            return
        match record.state:
            case State.WAITING_FOR_WORKER_RING:
                record.state = State.WAITING_FOR_DRIVER
                self._commands.append(_establish(record.provision, record.ring.layout))
            case _:  # of the seed's Q12: after a stop the worker keeps the ring
                pass

    def _driver_edge_ready(self, event: DriverEdgeReady, direction: RingDirection | None) -> EventRejected | None:
        record = self._end_meant(event.edge_id, direction)
        if isinstance(record, EventRejected):
            return record
        if record is None:
            return None
        match record.state:
            case State.WAITING_FOR_DRIVER:
                record.state = State.READY
                self._tell(record, EdgeReady(edge_id=event.edge_id, local_edge_actor=record.actor))
            case _:
                pass
        return None

    def _stream_fault(self, event: StreamFault, direction: RingDirection | None) -> EventRejected | None:
        record = self._end_meant(event.edge_id, direction)
        if isinstance(record, EventRejected):
            return record
        if record is None:
            return None
        match record.state:
            case State.WAITING_FOR_LEASE | State.WAITING_FOR_WORKER_RING if self._rules.fault_needs_a_stream:
                pass  # Q18
            case _:
                self._fault_and_stop(record, EdgeStreamFaultReason(reason=event.reason))
        return None

    def _ring_fault(self, event: RingFault, direction: RingDirection | None) -> None:
        record = self._end_with_ring(event.edge_id, event.ring_id, direction)
        if record is None:
            return
        self._fault_and_stop(record, EdgeRingFaultReason(reason=event.reason))
        if event.reason is RingFaultReason.WORKER_CRASHED and self._rules.crashed_worker_is_quiescent:
            self._open(record, _Gate.WORKER)  # Q16, Q17

    def _stop_edge(self, event: StopEdge, direction: RingDirection | None) -> EventRejected | None:
        records = self._ends(event.edge_id, direction)
        if not records:
            return self._reject(
                EventRejection.UNKNOWN_EDGE, f"edge {event.edge_id} has no such end here: nothing is left to stop"
            )
        for record in records:
            self._stop(record)
        return None

    def _pump_stopped(self, event: PumpStopped, direction: RingDirection | None) -> None:
        record = self._end_with_ring(event.edge_id, event.ring_id, direction)
        if record is not None:
            self._open(record, _Gate.PUMP)

    def _quiescent(self, ring_id: RingId, gate: _Gate) -> None:
        record = self._record_of_ring(ring_id)
        if record is not None:
            self._open(record, gate)

    def _stopped(self, event: Stopped, direction: RingDirection | None) -> None:
        for record in self._ends(event.edge_id, direction):
            if not self._rules.stopped_acts_on_stopped_edge_alone:  # Q21: from every state, nothing is torn down
                record.state = State.STOPPED
            elif record.state is State.STOPPED:
                self._forget(self._key_of(record.provision))

    # --- steps shared by several events ---

    def _fault_and_stop(self, record: _EdgeRecord, reason: EdgeFaultReason) -> None:
        match record.state:
            case State.STOPPING | State.STOPPED | State.FAILED:  # only the first fault is told
                pass
            case _:
                self._tell_fault(record, reason)
                self._stop(record)

    def _stop(self, record: _EdgeRecord) -> None:
        """Undo what was asked for; what the worker and the driver may touch is given back later (Q15)."""
        match record.state:
            case State.STOPPING | State.STOPPED:
                return
            case State.WAITING_FOR_LEASE | State.FAILED:
                self._cancel_lease(record)
                self._end(record)
            case State.WAITING_FOR_WORKER_RING:
                self._cancel_lease(record)
                if self._rules.stop_uninstalls_ring_being_installed:  # Q11, Q12, Q33
                    self._uninstall(record, {_Gate.WORKER, _Gate.PROOF})
                else:
                    self._release(_granted(record).ring_id)
                    self._end(record)
            case State.WAITING_FOR_DRIVER | State.READY:  # Q10: whether or not the driver has answered
                self._cancel_lease(record)
                self._commands.append(StopPump(edge_id=record.provision.edge_id, ring_id=_granted(record).ring_id))
                self._uninstall(record, set(_Gate))

    def _uninstall(self, record: _EdgeRecord, awaits: set[_Gate]) -> None:
        ring_id = _granted(record).ring_id
        self._commands.append(UninstallWorkerRing(edge_id=record.provision.edge_id, ring_id=ring_id))
        record.awaits = awaits
        record.state = State.STOPPING

    def _open(self, record: _EdgeRecord, gate: _Gate) -> None:
        """Note what was seen of a ring; the last of what has to be seen gives it back."""
        match record.state:
            case State.STOPPING:
                record.awaits.discard(gate)
                every = self._rules.release_waits_for_every_gate  # Q13, Q14
                if not record.awaits if every else gate is not _Gate.PUMP:
                    self._release(_granted(record).ring_id)
                    self._end(record)
            case _:  # of Q16: what was seen before the stop may be touched again
                pass

    def _cancel_lease(self, record: _EdgeRecord) -> None:
        if record.state is State.WAITING_FOR_LEASE or not self._rules.only_a_queued_request_is_cancelled:  # Q8, Q9
            self._commands.append(CancelQueuedLease(request_id=record.request_id, edge_id=record.provision.edge_id))

    def _release(self, ring_id: RingId) -> None:
        self._given_back.add(ring_id)
        self._commands.append(ReleaseArenaLease(ring_id=ring_id, proof=VERIFIED))

    def _tell(self, record: _EdgeRecord, event: EdgeLifecycleEvent) -> None:
        self._events.append((record.actor, event))

    def _tell_fault(self, record: _EdgeRecord, reason: EdgeFaultReason) -> None:
        self._tell(record, EdgeFaulted(edge_id=record.provision.edge_id, reason=reason))

    def _end(self, record: _EdgeRecord) -> None:
        """Of Q22: told when the release is asked for, not when it is done."""
        self._settle(record, State.STOPPED)
        self._tell(record, EdgeStopped(edge_id=record.provision.edge_id))

    def _settle(self, record: _EdgeRecord, state: EdgeProvisionState) -> None:
        """Nothing more comes of this life."""
        record.state = state
        if self._rules.only_live_ends_are_found:  # Q28
            self._unindex(record)

    # --- what is turned away or was told before ---

    def _reject(self, reason: EventRejection, text: str) -> EventRejected | None:
        return EventRejected(reason, text) if self._rules.sender_hears_of_rejection else None  # Q1, Q24

    def _objection(self, event: ProvisionTx | ProvisionRx, in_the_way: _EdgeRecord | None) -> EventRejected | None:
        """Why a provision for this node makes no record, if it does not."""
        edge_id = event.edge_id
        if self._rules.specs_are_validated:  # Q27
            fault = fault_of_specs(event.object_spec, event.ring_spec)
            if fault is not None:
                return self._reject(EventRejection.INVALID_SPEC, f"edge {edge_id}: {fault}")
        if self._rules.lower_run_is_fenced:  # Q26
            newest = max((record.provision.run_id for record in self._ends(edge_id)), default=event.run_id)
            if event.run_id < newest:
                text = (
                    f"edge {edge_id}: run {event.run_id} is older than run {newest}, which this node knows: give it up"
                )
                return self._reject(EventRejection.STALE_RUN, text)
        if in_the_way is not None:
            text = (
                f"edge {edge_id}: its {in_the_way.direction} end is {in_the_way.state}: stop it first or use a new id"
            )
            return self._reject(EventRejection.EDGE_LIVE, text)
        return None

    def _is_repeated_grant(self, ring_id: RingId, wanted: bool) -> bool:
        """Whether the ring is in use, or nobody wants it and it went back before: it may be another's by now."""
        if not self._rules.repeated_grant_is_ignored:  # Q5
            return False
        return ring_id in self._keys_of_ring or (not wanted and ring_id in self._given_back)

    # --- records by what events name them with ---

    def _key(self, edge_id: EdgeId, direction: RingDirection) -> _Key:
        return (edge_id, direction.value if self._rules.ends_are_keyed_by_direction else "")  # Q3, Q23

    def _key_of(self, provision: ProvisionTx | ProvisionRx) -> _Key:
        return self._key(provision.edge_id, _direction(provision))

    def _ends(self, edge_id: EdgeId, direction: RingDirection | None = None) -> list[_EdgeRecord]:
        """The records of one end, or of both, egress first; dead ones included."""
        directions = RingDirection if direction is None else (direction,)
        keys = dict.fromkeys(self._key(edge_id, each) for each in directions)
        return [self._records[key] for key in keys if key in self._records]

    def _end_meant(self, edge_id: EdgeId, direction: RingDirection | None) -> _EdgeRecord | EventRejected | None:
        """The live end that an event without a ring is about; rejected if it could be either."""
        live = [record for record in self._ends(edge_id, direction) if record.live]
        if len(live) > 1:
            text = f"edge {edge_id} has both ends on this node: say which direction is meant"
            return self._reject(EventRejection.DIRECTION_NEEDED, text)
        return live[0] if live else None

    def _end_with_ring(self, edge_id: EdgeId, ring_id: RingId, direction: RingDirection | None) -> _EdgeRecord | None:
        """The live end of this edge that holds this ring."""
        ends = self._ends(edge_id, direction)
        return next((record for record in ends if record.live and record.holds(ring_id)), None)

    def _record_of_request(self, request_id: LeaseRequestId) -> _EdgeRecord | None:
        """The only record with this request: each accepted provision takes a new number."""
        key = self._key_of_request.get(request_id)
        return None if key is None else self._records[key]

    def _record_of_ring(self, ring_id: RingId) -> _EdgeRecord | None:
        """The record with the lowest key among those granted this ring."""
        keys = self._keys_of_ring.get(ring_id)
        return self._records[keys[0]] if keys else None

    def _forget(self, key: _Key) -> None:
        """Drop a record, if there is one, and its places in both indexes."""
        record = self._records.get(key)
        if record is not None:
            self._unindex(record)
            del self._records[key]

    def _unindex(self, record: _EdgeRecord) -> None:
        """Let neither request nor ring lead to this record any more; idempotent."""
        key = self._key_of(record.provision)
        self._key_of_request.pop(record.request_id, None)
        keys = self._keys_of_ring.get(record.ring.ring_id, []) if record.ring is not None else []
        if record.ring is not None and key in keys:
            keys.remove(key)
            if not keys:
                del self._keys_of_ring[record.ring.ring_id]


def _direction(provision: ProvisionTx | ProvisionRx) -> RingDirection:
    return RingDirection.EGRESS if isinstance(provision, ProvisionTx) else RingDirection.INGRESS


def _establish(provision: ProvisionTx | ProvisionRx, layout: RingLayout) -> EdgeCommand:
    if isinstance(provision, ProvisionTx):
        return EstablishSend(edge_id=provision.edge_id, consumer_node_id=provision.consumer_node_id, layout=layout)
    return EstablishRecv(edge_id=provision.edge_id, layout=layout)


def _granted(record: _EdgeRecord) -> _Ring:
    assert record.ring is not None, f"edge {record.provision.edge_id} is {record.state} without a ring"
    return record.ring
