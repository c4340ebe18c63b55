"""The life of an edge's end on one node: lease a ring, install it at the worker, start the pump, tear all of it down.

`EdgeEstablisher` takes `EdgeEvent` and emits `EdgeCommand` and `EdgeLifecycleEvent`. It is the seed's machine
(`edge_establisher.rs`, design 7), its table is E 2.3: every event has one method here, every state that reacts to it
one `case`, and what no `case` names is ignored there. An ignored event changes nothing, emits nothing and consumes no
id. What the seed does wrongly is done here too under `seed`; what `strict` does instead is one field of
`actors.edges.semantics.Rules`, read at one place here, marked with its number in E 2.5.
"""

from __future__ import annotations

from typing import assert_never

from actors.edges.edge_lives import EdgeLife, EdgeLives, Gate, GrantedRing
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


class EdgeEstablisher:
    """Every edge end of the node `local_node_id`. Holds no bytes, does no I/O, owns no timer.

    `observe` takes one event; what it caused waits in two logs, each in the order emitted, until `drain_commands` and
    `drain_events` take it out. Requests and edge actors are numbered from 1, one of each per accepted provision.

    Under `strict` a stopped end stays readable until a `Stopped` says that the arena has its ring back, or until it is
    provisioned anew: whoever drives the establisher owes it that `Stopped`, and a failed end a `StopEdge` before.
    """

    def __init__(self, local_node_id: NodeId, semantics: Semantics = Semantics.SEED) -> None:
        self._local_node_id = local_node_id
        self._rules = rules_of(semantics)
        self._lives = EdgeLives(self._rules)
        self._provisions_accepted = 0
        self._rings_given_back = IdSpans()
        self._commands: list[EdgeCommand] = []
        self._events: list[tuple[ActorAddress, EdgeLifecycleEvent]] = []

    def observe(self, event: EdgeEvent, direction: RingDirection | None = None) -> EventRejected | None:
        """Take one step of the table; returns why the event was turned away, if it was (`strict` only).

        `direction` is the end of `event.edge_id` that is meant, as events do not say it. Under `strict`, `StopEdge`
        and `Stopped` without one go to both ends; other events need one only if neither their ring nor what is live
        tells the end. `seed` never looks at it.
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
                self._quiescent(event.ring_id, Gate.WORKER)
            case QuiescenceProven():
                self._quiescent(event.ring_id, Gate.PROOF)
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
        """As `drain_events`, each beside the number of the edge actor it is for: an event names no direction."""
        events, self._events = self._events, []
        return events

    def local_record(self, edge_id: EdgeId, direction: RingDirection | None = None) -> LocalEdgeRecord | None:
        """A snapshot of the latest life of this end; `None` if it had none, or it is forgotten.

        Raises `ValueError` if both ends of the edge are here (`strict` only) and `direction` does not say which.
        """
        lives = self._lives.of_edge(edge_id, direction)
        if len(lives) > 1:
            raise ValueError(_both_ends(edge_id))
        return lives[0].snapshot() if lives else None

    def local_records(self) -> list[LocalEdgeRecord]:
        """A snapshot of every end that is not forgotten, in ascending edge id, egress before ingress."""
        return [life.snapshot() for life in self._lives.all()]

    # --- one method per event ---

    def _provision(self, event: ProvisionTx | ProvisionRx) -> EventRejected | None:
        if event.local_node_id != self._local_node_id:
            return self._reject(EventRejection.WRONG_NODE, f"node {event.local_node_id} is meant: send it there")
        current = self._lives.of_provision(event)
        in_the_way = current if current is not None and current.live and self._rules.live_end_is_not_replaced else None
        if in_the_way is not None and in_the_way.provision == event:  # Q2
            return None
        rejected = self._objection(event, in_the_way)
        if rejected is not None:
            return rejected
        self._provisions_accepted += 1
        life = EdgeLife(
            provision=event,
            request_id=LeaseRequestId(self._provisions_accepted),
            actor=ActorAddress(self._provisions_accepted),
        )
        self._lives.add(life)
        self._commands.append(
            LeaseRing(
                request_id=life.request_id,
                edge_id=event.edge_id,
                direction=life.direction,
                ring_spec=event.ring_spec,
            )
        )
        return None

    def _ring_leased(self, event: RingLeased) -> None:
        life = self._lives.of_request(event.request_id)
        wanted = life is not None and life.state is State.WAITING_FOR_LEASE
        if self._is_repeated_grant(event.ring_id, wanted):
            return
        if life is None:
            if self._rules.unclaimed_grant_is_released:  # Q4
                self._release(event.ring_id)
            return
        match life.state:
            case State.WAITING_FOR_LEASE:
                self._lives.grant(life, GrantedRing(event.ring_id, event.layout))
                self._rings_given_back.discard(event.ring_id)
                life.state = State.WAITING_FOR_WORKER_RING
                self._commands.append(
                    InstallWorkerRing(
                        edge_id=life.edge_id,
                        ring_id=event.ring_id,
                        direction=life.direction,
                        layout=event.layout,
                        object_spec=life.provision.object_spec,
                        ring_spec=life.provision.ring_spec,
                    )
                )
            case _:  # too late or a second one; nothing was ever told of its ring (Q6)
                self._release(event.ring_id)

    def _ring_lease_rejected(self, event: RingLeaseRejected) -> None:
        life = self._lives.of_request(event.request_id)
        if life is None:
            return
        match life.state:
            case State.WAITING_FOR_LEASE:
                self._tell_fault(life, EdgeRingLeaseRejectedReason(reason=event.reason))
                self._lives.bury(life, State.FAILED)
            case _:
                pass

    def _ring_installed(self, event: RingInstalled, direction: RingDirection | None) -> None:
        life = self._end_with_ring(event.edge_id, event.ring_id, direction)
        if life is None:
            return
        match life.state:
            case State.WAITING_FOR_WORKER_RING:
                life.state = State.WAITING_FOR_DRIVER
                self._commands.append(_establish(life))
            case _:  # of the seed's Q12: after a stop the worker keeps the ring
                pass

    def _driver_edge_ready(self, event: DriverEdgeReady, direction: RingDirection | None) -> EventRejected | None:
        ends = self._live_ends(event.edge_id, direction)
        if len(ends) > 1:
            return self._reject(EventRejection.DIRECTION_NEEDED, _both_ends(event.edge_id))
        for life in ends:
            match life.state:
                case State.WAITING_FOR_DRIVER:
                    life.state = State.READY
                    self._tell(life, EdgeReady(edge_id=event.edge_id, local_edge_actor=life.actor))
                case _:
                    pass
        return None

    def _stream_fault(self, event: StreamFault, direction: RingDirection | None) -> EventRejected | None:
        ends = self._live_ends(event.edge_id, direction)
        if len(ends) > 1:
            return self._reject(EventRejection.DIRECTION_NEEDED, _both_ends(event.edge_id))
        for life in ends:
            match life.state:
                case State.WAITING_FOR_LEASE | State.WAITING_FOR_WORKER_RING if self._rules.fault_needs_a_stream:
                    pass  # Q18
                case _:
                    self._fault_and_stop(life, EdgeStreamFaultReason(reason=event.reason))
        return None

    def _ring_fault(self, event: RingFault, direction: RingDirection | None) -> None:
        life = self._end_with_ring(event.edge_id, event.ring_id, direction)
        if life is None:
            return
        self._fault_and_stop(life, EdgeRingFaultReason(reason=event.reason))
        if event.reason is RingFaultReason.WORKER_CRASHED and self._rules.crashed_worker_is_quiescent:
            self._open(life, Gate.WORKER)  # Q16, Q17

    def _stop_edge(self, event: StopEdge, direction: RingDirection | None) -> EventRejected | None:
        ends = self._lives.of_edge(event.edge_id, direction)
        if not ends:
            return self._reject(EventRejection.UNKNOWN_EDGE, f"edge {event.edge_id} has no such end: nothing to stop")
        for life in ends:
            self._stop(life)
        return None

    def _pump_stopped(self, event: PumpStopped, direction: RingDirection | None) -> None:
        life = self._end_with_ring(event.edge_id, event.ring_id, direction)
        if life is not None:
            self._open(life, Gate.PUMP)

    def _quiescent(self, ring_id: RingId, gate: Gate) -> None:
        life = self._lives.of_ring(ring_id)
        if life is not None:
            self._open(life, gate)

    def _stopped(self, event: Stopped, direction: RingDirection | None) -> None:
        for life in self._lives.of_edge(event.edge_id, direction):
            if not self._rules.stopped_acts_on_stopped_end_alone:  # Q21: from every state, nothing is torn down
                life.state = State.STOPPED
            elif life.state is State.STOPPED:
                self._lives.forget(life)

    # --- steps shared by several events ---

    def _fault_and_stop(self, life: EdgeLife, reason: EdgeFaultReason) -> None:
        match life.state:
            case State.STOPPING | State.STOPPED | State.FAILED:  # only the first fault is told
                pass
            case _:
                self._tell_fault(life, reason)
                self._stop(life)

    def _stop(self, life: EdgeLife) -> None:
        """Undo what was asked for; what the worker and the driver may touch is given back later (Q15)."""
        match life.state:
            case State.STOPPING | State.STOPPED:
                return
            case State.WAITING_FOR_LEASE | State.FAILED:
                self._cancel_lease(life)
                self._end(life)
            case State.WAITING_FOR_WORKER_RING:
                self._cancel_lease(life)
                if self._rules.stop_uninstalls_ring_being_installed:  # Q11, Q12, Q33
                    self._uninstall(life, {Gate.WORKER, Gate.PROOF})
                else:
                    self._release(life.granted.ring_id)
                    self._end(life)
            case State.WAITING_FOR_DRIVER | State.READY:  # Q10: whether or not the driver has answered
                self._cancel_lease(life)
                self._commands.append(StopPump(edge_id=life.edge_id, ring_id=life.granted.ring_id))
                self._uninstall(life, set(Gate))

    def _cancel_lease(self, life: EdgeLife) -> None:
        if life.state is State.WAITING_FOR_LEASE or not self._rules.only_queued_request_is_cancelled:  # Q8, Q9
            self._commands.append(CancelQueuedLease(request_id=life.request_id, edge_id=life.edge_id))

    def _uninstall(self, life: EdgeLife, awaits: set[Gate]) -> None:
        self._commands.append(UninstallWorkerRing(edge_id=life.edge_id, ring_id=life.granted.ring_id))
        life.awaits = awaits
        life.state = State.STOPPING

    def _open(self, life: EdgeLife, gate: Gate) -> None:
        """Note what was seen of a ring; the last of what has to be seen gives it back."""
        match life.state:
            case State.STOPPING:
                life.awaits.discard(gate)
                every = self._rules.release_waits_for_every_gate  # Q13, Q14
                if not life.awaits if every else gate is not Gate.PUMP:
                    self._release(life.granted.ring_id)
                    self._end(life)
            case _:  # of Q16: what was seen before the stop may be touched again
                pass

    def _release(self, ring_id: RingId) -> None:
        self._rings_given_back.add(ring_id)
        self._commands.append(ReleaseArenaLease(ring_id=ring_id, proof=VERIFIED))

    def _end(self, life: EdgeLife) -> None:
        """Of Q22: told when the release is asked for, not when it is done."""
        self._lives.bury(life, State.STOPPED)
        self._tell(life, EdgeStopped(edge_id=life.edge_id))

    def _tell_fault(self, life: EdgeLife, reason: EdgeFaultReason) -> None:
        self._tell(life, EdgeFaulted(edge_id=life.edge_id, reason=reason))

    def _tell(self, life: EdgeLife, event: EdgeLifecycleEvent) -> None:
        self._events.append((life.actor, event))

    # --- what is turned away, what was told before, and which end is meant ---

    def _reject(self, reason: EventRejection, text: str) -> EventRejected | None:
        return EventRejected(reason, text) if self._rules.sender_hears_of_rejection else None  # Q1, Q24

    def _objection(self, event: ProvisionTx | ProvisionRx, in_the_way: EdgeLife | None) -> EventRejected | None:
        """Why a provision for this node makes no record, if it does not."""
        edge_id = event.edge_id
        if self._rules.specs_are_validated:  # Q27
            fault = fault_of_specs(event.object_spec, event.ring_spec)
            if fault is not None:
                return self._reject(EventRejection.INVALID_SPEC, f"edge {edge_id}: {fault}")
        if self._rules.lower_run_is_fenced:  # Q26
            newest = max((life.provision.run_id for life in self._lives.of_edge(edge_id)), default=event.run_id)
            if event.run_id < newest:
                text = f"edge {edge_id}: run {event.run_id} is older than run {newest}, which is known here: give it up"
                return self._reject(EventRejection.STALE_RUN, text)
        if in_the_way is not None:
            text = (
                f"edge {edge_id}: its {in_the_way.direction} end is {in_the_way.state}: stop it first or take a new id"
            )
            return self._reject(EventRejection.EDGE_LIVE, text)
        return None

    def _is_repeated_grant(self, ring_id: RingId, wanted: bool) -> bool:
        """Whether the ring is in use, or nobody wants it and it went back before: it may be another's by now."""
        if not self._rules.repeated_grant_is_ignored:  # Q5
            return False
        return self._lives.of_ring(ring_id) is not None or (not wanted and ring_id in self._rings_given_back)

    def _live_ends(self, edge_id: EdgeId, direction: RingDirection | None) -> list[EdgeLife]:
        return [life for life in self._lives.of_edge(edge_id, direction) if life.live]

    def _end_with_ring(self, edge_id: EdgeId, ring_id: RingId, direction: RingDirection | None) -> EdgeLife | None:
        """The live end of this edge that holds this ring."""
        ends = self._live_ends(edge_id, direction)
        return next((life for life in ends if life.ring is not None and life.ring.ring_id == ring_id), None)


def _both_ends(edge_id: EdgeId) -> str:
    return f"edge {edge_id} has both ends on this node: say which direction is meant"


def _establish(life: EdgeLife) -> EdgeCommand:
    provision, layout = life.provision, life.granted.layout
    if isinstance(provision, ProvisionTx):
        return EstablishSend(edge_id=life.edge_id, consumer_node_id=provision.consumer_node_id, layout=layout)
    return EstablishRecv(edge_id=life.edge_id, layout=layout)
