"""What the establisher knows: one record per life of an edge end, found by end, by request and by ring (E 2.2, 2.3).

How ends are keyed and whether dead records are found is one of the differences of `actors.edges.semantics.Rules`.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field
from enum import Enum, auto

from actors.edges.semantics import Rules
from messages.edge import (
    ActorAddress,
    EdgeId,
    EdgeProvisionState,
    LeaseRequestId,
    LocalEdgeRecord,
    ProvisionRx,
    ProvisionTx,
    RingDirection,
    RingId,
    RingLayout,
)

Provision = ProvisionTx | ProvisionRx


class Gate(Enum):
    """What has to be seen, while stopping, before a ring goes back (design 7)."""

    PUMP = auto()
    WORKER = auto()
    PROOF = auto()


@dataclass(frozen=True, slots=True)
class GrantedRing:
    """A granted ring: its id and where it lies."""

    ring_id: RingId
    layout: RingLayout


@dataclass(slots=True)
class EdgeLife:
    """One life of one edge end: what was provisioned and how far it has come.

    The seed's flags `worker_installed` and `driver_established` are not kept: both become true on the one step from
    `waiting_for_worker_ring` to `waiting_for_driver`, so the state tells them. `awaits`: while `stopping`, the gates
    that are still closed.
    """

    provision: Provision
    request_id: LeaseRequestId
    actor: ActorAddress
    state: EdgeProvisionState = EdgeProvisionState.WAITING_FOR_LEASE
    ring: GrantedRing | None = None
    awaits: set[Gate] = field(default_factory=set)

    @property
    def edge_id(self) -> EdgeId:
        return self.provision.edge_id

    @property
    def direction(self) -> RingDirection:
        return direction_of(self.provision)

    @property
    def live(self) -> bool:
        """Whether something may still come of it: it waits, moves data, or its ring is being taken down."""
        return self.state not in (EdgeProvisionState.STOPPED, EdgeProvisionState.FAILED)

    @property
    def granted(self) -> GrantedRing:
        """Its ring, in the states that have one."""
        assert self.ring is not None, f"edge {self.edge_id} is {self.state} without a ring"
        return self.ring

    def snapshot(self) -> LocalEdgeRecord:
        return LocalEdgeRecord(
            edge_id=self.edge_id,
            direction=self.direction,
            state=self.state,
            lease_request_id=self.request_id,
            ring_id=None if self.ring is None else self.ring.ring_id,
            peer_node_id=self.provision.consumer_node_id if isinstance(self.provision, ProvisionTx) else None,
            local_edge_actor=self.actor,
            remote_actor_address=None,
        )


def direction_of(provision: Provision) -> RingDirection:
    return RingDirection.EGRESS if isinstance(provision, ProvisionTx) else RingDirection.INGRESS


_Key = tuple[EdgeId, str]
"""Edge and direction; under `seed` the direction is empty."""


class EdgeLives:
    """The latest life of every edge end of one node, until it is forgotten."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._lives: dict[_Key, EdgeLife] = {}
        self._key_of_request: dict[LeaseRequestId, _Key] = {}
        self._keys_of_ring: dict[RingId, list[_Key]] = {}

    def add(self, life: EdgeLife) -> None:
        """Whatever had the same key is forgotten; of the seed's Q2 and Q3: in whichever state and direction."""
        key = self._key(life.edge_id, life.direction)
        if key in self._lives:
            self.forget(self._lives[key])
        self._lives[key] = life
        self._key_of_request[life.request_id] = key

    def grant(self, life: EdgeLife, ring: GrantedRing) -> None:
        life.ring = ring
        insort(self._keys_of_ring.setdefault(ring.ring_id, []), self._key(life.edge_id, life.direction))

    def bury(self, life: EdgeLife, state: EdgeProvisionState) -> None:
        """Nothing more comes of this life; it stays readable in its last state."""
        life.state = state
        if self._rules.only_live_ends_are_found:  # Q28
            self._unindex(life)

    def forget(self, life: EdgeLife) -> None:
        self._unindex(life)
        del self._lives[self._key(life.edge_id, life.direction)]

    def of_provision(self, provision: Provision) -> EdgeLife | None:
        """The record that this provision would replace."""
        return self._lives.get(self._key(provision.edge_id, direction_of(provision)))

    def of_edge(self, edge_id: EdgeId, direction: RingDirection | None = None) -> list[EdgeLife]:
        """The records of one end, or of both, egress first; dead ones included."""
        directions = RingDirection if direction is None else (direction,)
        keys = dict.fromkeys(self._key(edge_id, each) for each in directions)
        return [self._lives[key] for key in keys if key in self._lives]

    def of_request(self, request_id: LeaseRequestId) -> EdgeLife | None:
        """The only record with this request: each accepted provision takes a new number."""
        key = self._key_of_request.get(request_id)
        return None if key is None else self._lives[key]

    def of_ring(self, ring_id: RingId) -> EdgeLife | None:
        """The record with the lowest key among those granted this ring."""
        keys = self._keys_of_ring.get(ring_id)
        return self._lives[keys[0]] if keys else None

    def all(self) -> list[EdgeLife]:
        """In ascending edge id, egress before ingress."""
        return [self._lives[key] for key in sorted(self._lives)]

    def _key(self, edge_id: EdgeId, direction: RingDirection) -> _Key:
        return (edge_id, direction.value if self._rules.ends_are_keyed_by_direction else "")  # Q3, Q23

    def _unindex(self, life: EdgeLife) -> None:
        """Let neither request nor ring lead to this record any more; idempotent."""
        self._key_of_request.pop(life.request_id, None)
        key = self._key(life.edge_id, life.direction)
        keys = self._keys_of_ring.get(life.ring.ring_id, []) if life.ring is not None else []
        if life.ring is not None and key in keys:
            keys.remove(key)
            if not keys:
                del self._keys_of_ring[life.ring.ring_id]
