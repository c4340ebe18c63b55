"""What a running cluster says of itself at one moment, and what changed since another (promise 7): `sennit top`.

Processes are asked side by side and briefly: one that hangs costs the others nothing, and is told as silent.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

from actors.actor import AskFailed
from messages.base import Address, Request
from messages.edge_plan import EdgeLine, ListEdges
from messages.supervision import ChildState, ChildView, ShowChildren, SupervisorView
from messages.system import (
    ActorRow,
    GetProcess,
    GetState,
    GetStatistics,
    LinkRow,
    ListActors,
    ProcessReport,
    Statistics,
)
from runtime.cluster import Role
from runtime.cluster.names import edges_of
from runtime.roles import PROCESSES

A = TypeVar("A")

ROOT = Role.ROOT.value
_PLANNER = Address("controller/edges")
PATIENCE_S = 0.5
"""For each answer: a process that is well takes a millisecond."""

FIRST_LINK_S = 1.5
"""For links to come up, at the first look."""


class Asks(Protocol):
    """What is needed of `runtime.client.Client`."""

    def wait_link(self, process: str, timeout_s: float) -> bool: ...
    def ask(self, to: Address, request: Request[A], timeout_s: float) -> A: ...


@dataclass(frozen=True, kw_only=True)
class ActorSight:
    """`statistics` None: it did not answer. `per_s`: messages taken a second; `busy`: share of the time, 0 to 1."""

    row: ActorRow
    statistics: Statistics | None = None
    per_s: float | None = None
    busy: float | None = None


@dataclass(frozen=True, kw_only=True)
class ProcessSight:
    """`child` None for the root. `silent`: why it did not answer, empty when it did, or was not asked."""

    name: str
    child: ChildView | None = None
    pid: int | None = None
    silent: str = ""
    dead_letters: Mapping[str, int] = field(default_factory=dict)
    links: tuple[LinkRow, ...] = ()
    actors: tuple[ActorSight, ...] = ()
    sent_per_s: float | None = None
    received_per_s: float | None = None

    @property
    def state(self) -> str:
        if self.child is not None:
            return self.child.state.value
        return "unreachable" if self.silent else "running"

    @property
    def verdict(self) -> str:
        return self.child.verdict.value if self.child is not None and self.child.verdict is not None else ""

    @property
    def sent(self) -> int:
        return sum(link.sent for link in self.links)

    @property
    def received(self) -> int:
        return sum(link.received for link in self.links)


@dataclass(frozen=True, kw_only=True)
class Frame:
    """One look at the whole, at `at_s` (monotonic). Rates come with the second look. `edges` None: nobody told them."""

    at_s: float
    processes: tuple[ProcessSight, ...]
    edges: tuple[EdgeLine, ...] | None = None


def look(client: Asks, *, root_pid: int | None = None, before: Frame | None = None) -> Frame:
    """Ask everyone now. Raises nothing: who does not answer is told as silent."""
    link_s = FIRST_LINK_S if before is None else 0.0
    root, view, pids = _look_at(client, ProcessSight(name=ROOT, pid=root_pid), link_s)
    children = [ProcessSight(name=child.name, child=child, pid=pids.get(child.name)) for child in view]
    found = [root]
    with ThreadPoolExecutor(max_workers=max(1, len(children))) as pool:
        for seen in pool.map(lambda child: _look_below(client, child, link_s), children):
            found += seen
    heard = any(sight.name == _PLANNER.partition("/")[0] and not sight.silent for sight in found)
    edges = _edges(client) if heard else None
    frame = Frame(at_s=time.monotonic(), processes=tuple(found), edges=edges)
    return frame if before is None else with_rates(frame, before)


def with_rates(now: Frame, before: Frame) -> Frame:
    """`now` with what happened a second since `before`. A counter that went back began anew: no rate."""
    seconds = now.at_s - before.at_s
    older = {process.name: process for process in before.processes}

    def rate(new: float, old: float) -> float | None:
        return (new - old) / seconds if seconds > 0 and new >= old else None

    def of_actor(actor: ActorSight, known: Mapping[str, ActorSight]) -> ActorSight:
        old = known.get(actor.row.address)
        if old is None:
            return actor
        per_s = rate(actor.row.received, old.row.received)
        if actor.statistics is None or old.statistics is None:
            return replace(actor, per_s=per_s)
        return replace(actor, per_s=per_s, busy=rate(actor.statistics.busy_s, old.statistics.busy_s))

    def of_process(process: ProcessSight) -> ProcessSight:
        old = older.get(process.name)
        if old is None or old.pid != process.pid or process.silent or old.silent:
            return process
        known = {str(actor.row.address): actor for actor in old.actors}
        return replace(
            process,
            actors=tuple(of_actor(actor, known) for actor in process.actors),
            sent_per_s=rate(process.sent, old.sent),
            received_per_s=rate(process.received, old.received),
        )

    return replace(now, processes=tuple(map(of_process, now.processes)))


def _look_below(client: Asks, sight: ProcessSight, link_s: float) -> list[ProcessSight]:
    """The process, and with it the one that it started itself, for its edges, unless that is not needed yet."""
    seen, inner, pids = _look_at(client, sight, link_s)
    found = [seen]
    for child in inner:
        if child.name == edges_of(sight.name) and child.state is not ChildState.STOPPED:
            edges = ProcessSight(name=child.name, child=child, pid=pids.get(child.name))
            found.append(_look_at(client, edges, link_s)[0])
    return found


def _look_at(
    client: Asks, sight: ProcessSight, link_s: float
) -> tuple[ProcessSight, tuple[ChildView, ...], Mapping[str, int]]:
    """The process, its supervisor's children, and the process ids of those that are processes."""
    if sight.child is not None and sight.child.state is not ChildState.RUNNING:
        return sight, (), {}
    if not client.wait_link(sight.name, link_s):
        return replace(sight, silent="no link to it"), (), {}
    supervisor = Address(f"{sight.name}/supervisor")
    try:
        view: SupervisorView = client.ask(supervisor, ShowChildren(), PATIENCE_S)
        report: ProcessReport = client.ask(supervisor, GetProcess(), PATIENCE_S)
        rows = client.ask(supervisor, ListActors(), PATIENCE_S).actors
    except AskFailed as failed:
        return replace(sight, silent=f"{failed.failure.value} {failed.reason}".strip()), (), {}
    supervises = any(row.address == f"{sight.name}/{PROCESSES}" for row in rows)
    pids = _pids(client, sight.name) if supervises else {}
    actors = tuple(ActorSight(row=row, statistics=_statistics(client, row.address)) for row in rows)
    seen = replace(sight, dead_letters=report.dead_letters, links=tuple(report.links), actors=actors)
    return seen, view.children, pids


def _statistics(client: Asks, address: Address) -> Statistics | None:
    try:
        return client.ask(address, GetStatistics(), PATIENCE_S)
    except AskFailed:
        return None


def _edges(client: Asks) -> tuple[EdgeLine, ...] | None:
    try:
        return tuple(client.ask(_PLANNER, ListEdges(), PATIENCE_S).edges)
    except AskFailed:
        return None


def _pids(client: Asks, process: str) -> Mapping[str, int]:
    try:
        state = client.ask(Address(f"{process}/{PROCESSES}"), GetState(), PATIENCE_S).state
        return {str(name): int(row["pid"]) for name, row in state.items()}
    except AskFailed:
        return {}


__all__ = ["ActorSight", "Asks", "Frame", "ProcessSight", "look", "with_rates"]
