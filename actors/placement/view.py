"""What the controller knows of its nodes: verified facts, liveness, routes; and what the engine may see of it (P 9).

Facts count only if signed by the key that the directory names, and while they are fresh only newer ones replace them.
Trust is never what a node says: its tier comes from the operator, in the directory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from actors.placement.order import PlaneRefusal, is_node_id
from actors.placement.signed import Rejected, Signer, open_signed, parse_signed
from actors.placement.state import Held, PlaneState
from messages.base import Address, NodeName
from messages.capabilities import Capability, MemoryDemand
from messages.control import SignedObject
from messages.engine import ClusterState, InstanceRecord, Liveness, PlacementFacts
from messages.facts import FactsError, NodeFacts
from messages.identity import Identity, node_id
from messages.node import FACTS_DOMAIN, NodeBeat
from messages.placement import NodeLine, PlaneError
from messages.workload_spec import TrustTier, WorkloadRef

NODE_ROLE = "node"
MAX_FACTS_BYTES = 262_144

_encode = msgspec.msgpack.Encoder().encode


class FactsRefused(Exception):
    """Facts that are not taken; the text says why."""


def sign_facts(signer: Signer, facts: NodeFacts) -> SignedObject:
    """The signed object of P 9.1: MessagePack bytes of `facts` under the facts domain. Raises `FactsError`."""
    facts.check()
    return signer.sign(FACTS_DOMAIN, _encode(facts))


def open_facts(signed: SignedObject, key: bytes, now_s: int) -> NodeFacts:
    """Facts signed by `key`, well formed and within their time (Unix seconds). Raises `FactsRefused`."""
    try:
        signer = open_signed(signed, FACTS_DOMAIN, MAX_FACTS_BYTES)
        if signer != key:
            raise FactsRefused(f"signed by {node_id(signer)}, not by the key of {node_id(key)}")
        facts = parse_signed(signed.payload, NodeFacts, "node facts")
        if facts.node_id != node_id(key):
            raise FactsRefused(f"they speak of {facts.node_id[:64]}, the key is that of {node_id(key)}")
        facts.check()
        facts.check_window(now_s)
    except Rejected as rejected:
        raise FactsRefused(rejected.refusal.reason) from None
    except FactsError as error:
        raise FactsRefused(str(error)) from None
    return facts


@dataclass(slots=True)
class Node:
    """One node of the directory and what was heard from it. Times: `ctx.now` seconds, unless named otherwise."""

    identity: Identity
    link_up: bool | None = None
    link_incarnation: int = 0
    linked_at: float = 0.0
    beat: NodeBeat | None = None
    beat_at: float = 0.0
    facts: NodeFacts | None = None
    payload: bytes = b""
    describing: bool = False

    @property
    def agent(self) -> Address:
        return Address(f"{self.identity.name}/agent")

    @property
    def tier(self) -> TrustTier:
        return TrustTier(self.identity.tier)

    def liveness(self, now: float, dead_after_s: float) -> Liveness:
        """Alive: it beats, its link is up, its inventory is complete and its facts are known."""
        if self.beat is None:
            return Liveness.UNKNOWN
        if self.link_up is False or now - self.beat_at > dead_after_s:
            return Liveness.SUSPECT
        if self.beat.adopting or self.facts is None:
            return Liveness.UNKNOWN
        return Liveness.ALIVE

    def is_reachable(self, now: float, dead_after_s: float) -> bool:
        """Worth asking: its link is up and it is not silent; of a node never heard nothing is known, so it is asked."""
        silent_for_s = now - max(self.beat_at, self.linked_at)
        return self.link_up is not False and (self.beat is None or silent_for_s <= dead_after_s)

    def is_known(self, now_s: int) -> bool:
        """It was heard, its inventory is complete and its facts are fresh."""
        return self.beat is not None and not self.beat.adopting and self.has_fresh_facts(now_s)

    def has_fresh_facts(self, now_s: int) -> bool:
        return self.facts is not None and self.facts.is_fresh(now_s)

    def accept(self, signed: SignedObject, now_s: int) -> bool:
        """Take signed facts; False when they are the held ones. Raises `FactsRefused`."""
        facts = open_facts(signed, self.identity.public_key, now_s)
        if self.facts is not None and self.facts.is_fresh(now_s):
            if signed.payload == self.payload:
                return False
            if facts.seq <= self.facts.seq:
                raise FactsRefused(f"stale: seq {facts.seq} does not follow the held {self.facts.seq}")
        self.facts, self.payload = facts, signed.payload
        return True

    def capabilities(self) -> tuple[Capability, ...]:
        """What it offers, without runtimes whose adapter its agent does not have (P 9.4)."""
        if self.facts is None:
            return ()
        routes = frozenset(self.beat.routes if self.beat is not None else ())
        return tuple(capability for capability in self.facts.capabilities if _has_route(capability.id, routes))


def _has_route(capability_id: str, routes: frozenset[str]) -> bool:
    if capability_id.startswith("runtime.native"):
        return "native" in routes
    if capability_id.startswith("runtime.container"):
        return not routes.isdisjoint({"container", "emulated"})
    return True


class View:
    """The nodes of the directory, by id. Raises `ValueError` for two nodes of one name or one key."""

    def __init__(self, identities: Iterable[Identity], dead_after_s: float) -> None:
        self.dead_after_s = dead_after_s
        self.nodes: dict[str, Node] = {}
        self._by_name: dict[str, Node] = {}
        for identity in identities:
            if identity.role != NODE_ROLE:
                continue
            if identity.node_id in self.nodes or identity.name in self._by_name:
                raise ValueError(f"the directory lists node {identity.name} ({identity.node_id}) twice")
            self.nodes[identity.node_id] = self._by_name[identity.name] = Node(identity)

    @property
    def names(self) -> dict[str, str]:
        return {node.identity.node_id: node.identity.name for node in self.nodes.values()}

    def name_of(self, node: str) -> str:
        known = self.nodes.get(node)
        return node if known is None else known.identity.name

    def label(self, node: str) -> str:
        """`name (id)`, or the id alone for a node that the directory does not list."""
        known = self.nodes.get(node)
        return node if known is None else f"{known.identity.name} ({node})"

    def find(self, text: str) -> Node | None:
        """By node id or configured name."""
        return self.nodes.get(text) or self._by_name.get(text)

    def resolve(self, text: str, what: str) -> str:
        """The node id meant by an id or a name. Raises `PlaneRefusal`: a mistyped name must not be passed over."""
        node = self.find(text)
        if node is not None:
            return node.identity.node_id
        if is_node_id(text):
            return text
        listed = ", ".join(sorted(self._by_name)) or "none"
        raise PlaneRefusal(PlaneError.INVALID, f"{what} {text[:64]!r} is no node id and no configured name ({listed})")

    def heard(self, beat: NodeBeat, sender: Address | None, now: float) -> Node:
        """Take a beat. Raises `FactsRefused` when it does not come from the process it speaks for."""
        node = self.nodes.get(beat.node_id)
        if node is None:
            raise FactsRefused(f"{beat.node_id[:64]} is not in the directory")
        if beat.name != node.identity.name or sender is None or sender.partition("/")[0] != node.identity.name:
            raise FactsRefused(f"{beat.node_id} is {node.identity.name}, not {beat.name[:64]} (from {sender})")
        if node.beat is not None and node.beat.incarnation != beat.incarnation:
            node.facts, node.payload = None, b""  # a restarted agent counts its facts anew
        node.beat, node.beat_at = msgspec.structs.replace(beat, facts=None), now
        return node

    def is_reachable(self, node_id: str, now: float) -> bool:
        node = self.nodes.get(node_id)
        return node is not None and node.is_reachable(now, self.dead_after_s)

    def link(self, process: NodeName, incarnation: int, now: float, *, up: bool) -> None:
        """The end of an older link says nothing about the newer one. Incarnations are random: equal or not."""
        node = self._by_name.get(process)
        if node is None:
            return
        if up:
            node.link_up, node.link_incarnation, node.linked_at = True, incarnation, now
        elif incarnation == node.link_incarnation:
            node.link_up = False

    def snapshot(self, now: float) -> tuple[PlacementFacts, ...]:
        """Every node as the engine may see it, frozen; those that cannot be used say why by liveness or expiry."""
        return tuple(self._facts(node, now) for _, node in sorted(self.nodes.items()))

    def _facts(self, node: Node, now: float) -> PlacementFacts:
        facts = node.facts
        return PlacementFacts(
            node_id=node.identity.node_id,
            capabilities=node.capabilities(),
            liveness=node.liveness(now, self.dead_after_s),
            trust_tier=node.tier,
            facts_expire_at_ms=None if facts is None else facts.expires_at * 1000,
            load=None if facts is None else facts.load().fraction,
        )

    def cluster(self, state: PlaneState, now_ms: int) -> ClusterState:
        """Placements and dispatches under way, with the memory that a node's facts cannot show yet."""
        rows = [self._instance(held) for held in state.placements.values()]
        rows += [self._instance(dispatch.held) for dispatch in state.dispatches.values()]
        return ClusterState(now_ms=now_ms, instances=tuple(rows))

    def _instance(self, held: Held) -> InstanceRecord:
        record = held.record
        node = self.nodes.get(record.node_id)
        facts = None if node is None else node.facts
        shown = bool(record.instance_id) and facts is not None and facts.issued_at * 1000 > held.placed_ms
        return InstanceRecord(
            node_id=record.node_id,
            workload=WorkloadRef(kind=record.kind, name=record.workload),
            labels=held.labels,
            excludes=held.excludes,
            pending=MemoryDemand() if shown else held.memory,
        )

    def lines(self, now: float, now_ms: int) -> list[NodeLine]:
        """One line per node, by name."""
        return [self._line(node, now, now_ms) for _, node in sorted(self._by_name.items())]

    def _line(self, node: Node, now: float, now_ms: int) -> NodeLine:
        beat, facts = node.beat, node.facts
        liveness = node.liveness(now, self.dead_after_s)
        return NodeLine(
            node_id=node.identity.node_id,
            name=NodeName(node.identity.name),
            tier=node.tier,
            liveness=liveness.value,
            reachable=beat is not None and node.is_reachable(now, self.dead_after_s),
            incarnation=0 if beat is None else beat.incarnation,
            instances=0 if beat is None else beat.instances,
            beat_age_ms=None if beat is None else round((now - node.beat_at) * 1000),
            facts_age_ms=None if facts is None else max(0, now_ms - facts.issued_at * 1000),
            capabilities=[
                {"id": capability.id, "attrs": msgspec.to_builtins(capability.attrs), "state": capability.state.value}
                for capability in node.capabilities()
            ],
        )


__all__ = ["FactsRefused", "Node", "View", "open_facts", "sign_facts"]
