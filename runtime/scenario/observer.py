"""What the player sees of a running cluster: the chain as it grows, instances, processes, nodes.

A failed ask is an answer too: nothing was seen. Every ask has a deadline.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, TypeVar

from actors.actor import AskFailed
from messages.base import Address, Request
from messages.chain import ChainRecord, Tail, Verdict, Verify
from messages.control import LifeState
from messages.edge import RunId
from messages.edge_plan import EdgeLine, EdgeLines, ListEdges
from messages.placement import InstanceLine, InstanceLines, InstanceOrder, ListInstances, ListNodes, NodeLine
from messages.supervision import ChildView, ShowChildren
from messages.system import GetProcess
from runtime.client import Client
from runtime.cluster import Cluster
from runtime.cluster.names import EDGES_SUFFIX, node_of
from runtime.scenario.format import Invariant

A = TypeVar("A")

ASK_LIMIT_S = 5.0
PAGE = 1000

CHAIN = Address("chain/chain")
PLANE = Address("controller/plane")
EDGES = Address("controller/edges")
ROOT = Address("root/supervisor")

_NODE_SOURCE = "workload.host"
_HOLDS = frozenset({LifeState.RUNNING, LifeState.UNHEALTHY, LifeState.RESTARTING, LifeState.STOPPING, LifeState.LOADED})


@dataclass(frozen=True, slots=True)
class Event:
    """A record of the chain as scenarios name it: `kind` or `kind/phase`."""

    record: ChainRecord
    payload: dict[str, Any]

    @property
    def name(self) -> str:
        phase = self.payload.get("phase")
        return f"{self.record.kind}/{phase}" if phase else self.record.kind

    def is_called(self, name: str) -> bool:
        """Whether `name` means this event; a node's own account of what the controller tells too does not count."""
        return self.record.source != _NODE_SOURCE and name in (self.name, self.record.kind)


def squeezed(name: str) -> str:
    """`source->target`, however it was spaced."""
    return name.replace(" ", "")


class Observer:
    """Reads; never changes anything."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.events: list[Event] = []

    def ask(self, to: Address, request: Request[A], limit_s: float = ASK_LIMIT_S) -> A:
        """Raises `AskFailed`."""
        return self._client.ask(to, request, limit_s)

    def try_ask(self, to: Address, request: Request[A], limit_s: float = ASK_LIMIT_S) -> A | None:
        try:
            return self.ask(to, request, limit_s)
        except AskFailed:
            return None

    def read_chain(self) -> None:
        """Take the records that came since."""
        while True:
            after = self.events[-1].record.sequence if self.events else -1
            answer = self.try_ask(CHAIN, Tail(count=PAGE, after=after))
            if answer is None or not answer.records:
                return
            for record in answer.records:
                payload = json.loads(record.payload)
                self.events.append(Event(record, payload if isinstance(payload, dict) else {}))

    def verify(self) -> Verdict:
        return self.ask(CHAIN, Verify(), 60.0)

    def instances(self) -> InstanceLines | None:
        return self.try_ask(PLANE, ListInstances())

    def instance(self, name: str) -> InstanceLine | None:
        """The instance `workload@node`."""
        lines = self.instances()
        rows = lines.instances if lines is not None else []
        return next((row for row in rows if f"{row.workload}@{row.node}" == name), None)

    def output(self, instance_id: str) -> str:
        """What the instance wrote on standard output, the newest part; empty when nobody answers."""
        answer = self.try_ask(PLANE, InstanceOrder(method="workload.logs", instance=instance_id, stdout_offset=0))
        result = answer.result if answer is not None else None
        return str(result.get("stdout", "")) if isinstance(result, dict) else str(getattr(result, "stdout", ""))

    def children(self, supervisor: Address = ROOT) -> dict[str, ChildView]:
        view = self.try_ask(supervisor, ShowChildren())
        return {child.name: child for child in view.children} if view is not None else {}

    def child(self, process: str) -> ChildView | None:
        """A process as its supervisor sees it: the root, or for an edges process its node."""
        edges = process.endswith(EDGES_SUFFIX)
        return self.children(Address(f"{node_of(process)}/supervisor") if edges else ROOT).get(process)

    def edges(self) -> EdgeLines | None:
        return self.try_ask(EDGES, ListEdges())

    def edge(self, name: str) -> EdgeLine | None:
        """The edge `source->target`; spaces do not count."""
        lines = self.edges()
        found = (
            (line for line in lines.edges if squeezed(line.name) == squeezed(name)) if lines is not None else iter(())
        )
        return next(found, None)

    def nodes(self) -> dict[str, NodeLine]:
        answer = self.try_ask(PLANE, ListNodes())
        return {line.name: line for line in answer.nodes} if answer is not None else {}

    def faults(self, edge: str, mark: int) -> list[str]:
        """Why lives of the edge called so faulted, by the chain's events from number `mark` on."""
        self.read_chain()
        told = [event.payload for event in self.events[mark:] if event.name == "edge.life/faulted"]
        return [str(payload.get("fault")) for payload in told if payload.get("edge") == edge]

    def epochs(self) -> dict[str, RunId]:
        """Of every edge by name, without spaces."""
        lines = self.edges()
        return {squeezed(line.name): line.run_id for line in lines.edges} if lines is not None else {}

    def unlinked(self, cluster: Cluster) -> str:
        """Which process that the root starts has no link to one that it dials; empty when all have theirs."""
        for entry in cluster.supervised:
            report = self.try_ask(Address(f"{entry.name}/supervisor"), GetProcess())
            links = report.links if report is not None else []
            up = {link.process for link in links if link.up and link.plane == "control"}
            if missing := [peer.name for peer in cluster.dials(entry.name) if peer.name not in up]:
                return f"{entry.name} has no link to {missing[0]}"
        return ""

    def broken(self, invariant: Invariant) -> str:
        """How the invariant is broken now; empty while it holds, or when nobody answers."""
        match invariant:
            case Invariant.NEVER_TWO:
                return self._two()
            case Invariant.NO_RECORD_NO_ACT:
                return self._unrecorded()

    def _two(self) -> str:
        lines = self.instances()
        holders: dict[str, str] = {}
        for row in lines.instances if lines is not None else ():
            if row.state not in _HOLDS:
                continue
            if row.slot in holders:
                return f"slot {row.slot} is held on {holders[row.slot]} and on {row.node}"
            holders[row.slot] = row.node
        return ""

    def _unrecorded(self) -> str:
        """Every placing names a decision that stands earlier on the chain, and every instance one that stands on it."""
        self.read_chain()
        decided: set[str] = set()
        for event in self.events:
            if event.name == "workload.place/decision" and not event.payload.get("dry_run"):
                decided.add(event.record.hash)
            elif event.name in ("workload.place/placed", "workload.place/adopted"):
                decision = event.payload.get("decision_id")
                if decision not in decided:
                    return f"record {event.record.sequence} places by decision {decision}, which is not before it"
        lines = self.instances()
        self.read_chain()
        decided |= {event.record.hash for event in self.events if event.name == "workload.place/decision"}
        for row in lines.instances if lines is not None else ():
            if row.decision_id not in decided:
                return f"{row.workload}@{row.node} runs by decision {row.decision_id}, which the chain does not hold"
        return ""
