"""The edge ends of one node as the edges actor keeps them: what was ordered, how each stands, what is over.

The establisher knows states and rings; here is what it has no room for: parties, ports, faults with their code,
progress, the wait under way. An end that is over stays for reports until newer ones push it out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from actors.edges.opening import Refusal, far_party, own_party
from messages.base import U64
from messages.edge import (
    ActorAddress,
    EdgeId,
    EdgeProvisionState,
    LeaseRequestId,
    RingDirection,
    RingId,
)
from messages.edge_end import EdgeFaultCode, EndRefusal, EndReport, OpenEdge, Progress
from messages.edge_ports import RingRef

State = EdgeProvisionState

EndKey = tuple[EdgeId, RingDirection]

TERMINAL = frozenset({State.STOPPED, State.FAILED})
STREAMING = frozenset({State.WAITING_FOR_DRIVER, State.READY})
"""The driver has been asked for a pump, which may touch the ring."""


class WaitKind(StrEnum):
    """What an end waits for with a deadline."""

    LEASE = "lease"
    INSTALL = "install"
    DRIVER = "driver"
    PRODUCER = "producer"
    DRAIN = "drain"
    TEARDOWN = "teardown"
    LAST_TEARDOWN = "last_teardown"


@dataclass(frozen=True, slots=True)
class Wait:
    """`serial` tells this wait from earlier ones of the same end; `timer` is the context's."""

    kind: WaitKind
    serial: U64
    timer: int


@dataclass(slots=True)
class End:
    """One side of one life of an edge here. `order` is exactly what was asked.

    `port_closed`: the workload closed its port (egress), so all there is was committed. `stream_ended`: ingress: the
    producer's stream is complete in the ring. `ended`: every object has passed this end. `crash`: why it faults once
    what the crashed producer left is drained. `pump_asked`, `pump_halted`: the driver may touch the ring, and no more.
    `given_back`: the arena has the ring again.
    """

    order: OpenEdge
    actor: ActorAddress
    request_id: LeaseRequestId
    state: EdgeProvisionState = State.WAITING_FOR_LEASE
    ring_id: RingId | None = None
    ring: RingRef | None = None
    fault: EdgeFaultCode | None = None
    fault_text: str = ""
    close_reason: str = ""
    progress: Progress = field(default_factory=Progress)
    producer_established: bool = False
    port_closed: bool = False
    stream_ended: bool = False
    ended: bool = False
    crash: str | None = None
    pump_asked: bool = False
    pump_halted: bool = False
    given_back: bool = False
    fault_told: bool = False
    wait: Wait | None = None
    actor_lives: int = 0

    @property
    def key(self) -> EndKey:
        return (self.order.edge_id, self.order.direction)

    @property
    def live(self) -> bool:
        """Whether something may still come of it."""
        return self.state not in TERMINAL

    @property
    def flowing(self) -> bool:
        """Live, and not being torn down."""
        return self.live and self.state is not State.STOPPING

    def report(self) -> EndReport:
        own, order = own_party(self.order), self.order
        return EndReport(
            name=order.name,
            edge_id=order.edge_id,
            run_id=order.run_id,
            direction=order.direction,
            state=self.state,
            instance_id=own.instance_id,
            port=own.port,
            local_edge_actor=self.actor,
            ring_id=self.ring_id,
            peer=far_party(order).process,
            fault=self.fault,
            fault_text=self.fault_text,
            ended=self.ended,
            progress=self.progress,
        )


class EndTable:
    """Every end by key, request, ring and actor, and the highest run seen of each edge name.

    At most `kept` ends that are over stay; `surplus` names those to give up, oldest first.
    """

    def __init__(self, kept: int) -> None:
        self._kept = kept
        self._ends: dict[EndKey, End] = {}
        self._by_ring: dict[RingId, EndKey] = {}
        self._by_actor: dict[ActorAddress, EndKey] = {}
        self._by_request: dict[LeaseRequestId, EndKey] = {}
        self._over: dict[EndKey, None] = {}
        self._highest: dict[tuple[str, RingDirection], int] = {}

    def get(self, edge_id: EdgeId, direction: RingDirection) -> End | None:
        return self._ends.get((edge_id, direction))

    def of_ring(self, ring_id: RingId) -> End | None:
        key = self._by_ring.get(ring_id)
        return None if key is None else self._ends[key]

    def of_actor(self, actor: ActorAddress) -> End | None:
        key = self._by_actor.get(actor)
        return None if key is None else self._ends[key]

    def of_request(self, request_id: LeaseRequestId) -> End | None:
        key = self._by_request.get(request_id)
        return None if key is None else self._ends[key]

    def of_edge(self, edge_id: EdgeId) -> list[End]:
        """Its ends here, egress first."""
        keys = [(edge_id, direction) for direction in RingDirection]
        return [self._ends[key] for key in keys if key in self._ends]

    def all(self) -> list[End]:
        """In ascending edge id, egress before ingress."""
        return [self._ends[key] for key in sorted(self._ends)]

    def known(self, order: OpenEdge) -> End | None:
        """The end that this order made before. Raises `Refusal`: `conflict` when another order made an end of that
        edge id, `stale_epoch` for a run of this edge that is over."""
        same = self.get(order.edge_id, order.direction)
        for end in self.of_edge(order.edge_id):
            if not _same_life(end.order, order) or (end is same and end.order != order):
                reason = (
                    f"edge id {order.edge_id} is run {end.order.run_id} of {end.order.name} here, otherwise ordered: "
                    "an edge id names one life of one edge, take a new one"
                )
                raise Refusal(EndRefusal.CONFLICT, reason)
        if same is not None:
            return same
        highest = self._highest.get((order.name, order.direction), 0)
        if order.run_id <= highest:
            reason = f"run {order.run_id} of {order.name} is over, this node has seen run {highest}: take a higher one"
            raise Refusal(EndRefusal.STALE_EPOCH, reason)
        return None

    def add(self, end: End) -> list[End]:
        """Take a new end in. Returns the ends of earlier runs of the same edge that are not yet being torn down."""
        order = end.order
        older = [
            other
            for other in self._ends.values()
            if other.flowing and (other.order.name, other.order.direction) == (order.name, order.direction)
        ]
        self._ends[end.key] = end
        self._by_actor[end.actor] = end.key
        self._by_request[end.request_id] = end.key
        self._highest[(order.name, order.direction)] = order.run_id
        return older

    def granted(self, end: End, ring_id: RingId) -> None:
        end.ring_id = ring_id
        self._by_ring[ring_id] = end.key

    def over(self, end: End) -> None:
        """It is stopped."""
        self._over[end.key] = None

    def surplus(self) -> list[End]:
        return [self._ends[key] for key in list(self._over)[: max(0, len(self._over) - self._kept)]]

    def forget(self, end: End) -> None:
        del self._ends[end.key]
        del self._over[end.key]
        del self._by_actor[end.actor]
        del self._by_request[end.request_id]
        if end.ring_id is not None:
            del self._by_ring[end.ring_id]


def _same_life(one: OpenEdge, other: OpenEdge) -> bool:
    """Whether both may be the two ends of one life of one edge."""
    return (one.name, one.run_id, one.producer, one.consumer, one.object_spec) == (
        other.name,
        other.run_id,
        other.producer,
        other.consumer,
        other.object_spec,
    )
