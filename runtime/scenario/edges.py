"""What a scenario does with edges and sees of them (design 7, 10)."""

from __future__ import annotations

from typing import NamedTuple

from actors.actor import AskFailed
from messages.base import Address, NodeName
from messages.edge import RunId
from messages.edge_end import BounceLink
from messages.edge_plan import AddEdge, EdgeLine, RemoveEdge
from runtime.client import Client
from runtime.cluster import Cluster
from runtime.scenario.endings import Ended, ending_of_failure
from runtime.scenario.format import Bounce, Edge, Ending, Expect
from runtime.scenario.observer import EDGES, Observer

ORDER_LIMIT_S = 60.0
_BOUNCE_LIMIT_S = 10.0


class Ordered(NamedTuple):
    """How an order ended; `line`: the edge as it was answered, None when it was stopped or refused."""

    ended: Ended
    line: EdgeLine | None = None


def name_of(edge: Edge) -> str:
    return edge.stop if edge.stop is not None else f"{edge.source} -> {edge.target}"


def order(client: Client, edge: Edge) -> Ordered:
    """Join two ports, or end an edge."""
    try:
        if edge.stop is not None:
            client.ask(EDGES, RemoveEdge(edge=edge.stop), ORDER_LIMIT_S)
            return Ordered(Ended(Ending.DONE))
        limit = {} if edge.max_object is None else {"max_extent_bytes": edge.max_object}
        add = AddEdge(source=edge.source or "", target=edge.target or "", ring_bytes=edge.ring, **limit)
        return Ordered(Ended(Ending.DONE), client.ask(EDGES, add, ORDER_LIMIT_S).edge)
    except AskFailed as failed:
        return Ordered(ending_of_failure(failed))


def bounce(cluster: Cluster, link: Bounce) -> None:
    """Raises `AskFailed`. The sending process is dialled for this alone: it is there only while its node has edges."""
    sender, receiver = link.link
    with Client.connect(cluster, [sender]) as client:
        client.ask(Address(f"{sender}/edges"), BounceLink(peer=NodeName(receiver)), _BOUNCE_LIMIT_S)


def missing(observer: Observer, expect: Expect, before: RunId | None, mark: int, seen: dict[str, str]) -> str:
    """What of the expectation of an edge does not hold now; `seen` collects what does.

    `before`: its epoch when it was last seen; `mark`: how many events of the chain are older than the last crash.
    """
    name = str(expect.edge)
    line = observer.edge(name)
    if line is None:
        return f"there is no edge {name}"
    ends = [end.progress for end in (line.producer, line.consumer) if end is not None]
    objects = line.consumer.progress.objects if line.consumer is not None else 0
    resumed = max((end.resumed for end in ends), default=0)
    stands = f"edge {name} is {line.phase.value} in epoch {line.run_id}{f' ({line.reason})' if line.reason else ''}"
    faults = [] if expect.fault is None else observer.faults(line.name, mark)
    if expect.fault is not None and expect.fault.value not in faults:
        return (
            f"edge {name} faulted since then with {', '.join(faults) or 'nothing'}, not {expect.fault.value}; {stands}"
        )
    if expect.phase is not None and line.phase is not expect.phase:
        last = f"; last fault {line.fault.value}: {line.fault_text}" if line.fault is not None else ""
        return f"{stands}{last}"
    if expect.same_epoch is not None and (line.run_id == before) != expect.same_epoch:
        return f"{stands}, it was in epoch {before}"
    counted = {"lives": line.lives, "faults": line.faults, "objects": objects, "resumed": resumed}
    for what, count in counted.items():
        least = getattr(expect, what)
        if least is not None and count < least:
            return f"edge {name} has {count} {what}, not {least}; {stands}"
    told = [f"{count} {what}" for what, count in counted.items() if getattr(expect, what) is not None]
    told += [f"faulted with {', '.join(faults)}"] if faults else []
    seen["edge"] = ", ".join([f"edge {line.name} is {line.phase.value}", f"epoch {line.run_id}", *told])
    return ""


def not_whole(observer: Observer) -> str:
    """Where ring memory is leased, waited for or missing; empty when every arena is whole."""
    lines = observer.edges()
    if lines is None:
        return "the edge planner does not list edges"
    if not lines.nodes:
        return "no edges process has told of its memory"
    problems = []
    for node in lines.nodes:
        arena = node.arena
        if arena is None or not node.reachable:
            problems.append(f"{node.process} is not heard")
        elif arena.active_leases or arena.pending_leases or arena.free_bytes != arena.capacity_bytes:
            problems.append(
                f"{node.process} has {arena.active_leases} leases, {arena.pending_leases} waiting, "
                f"{arena.free_bytes} of {arena.capacity_bytes} bytes free"
            )
    return "; ".join(problems)


__all__ = ["Ordered", "bounce", "missing", "name_of", "not_whole", "order"]
