"""How `sennit edge` shows edges: rows, facts and the live screen; nothing here asks anybody (design 11)."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from runtime.cli.output import print_facts, print_table
from runtime.cli.screen import Section, fitted, one_line, title
from runtime.cli.sizes import size_text

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

    from messages.edge_end import EndReport, Progress
    from messages.edge_plan import EdgeLine, EdgeLines, EdgeNode

COLUMNS = (
    "edge", "state", "rate", "objects", "bytes", "in flight", "stalls", "faults", "epoch", "nodes", "remarks",
)  # fmt: skip
ARENAS = ("arena", "state", "ends", "used", "free", "of", "leases", "waiting", "failures")
_NONE = "no edges: sennit edge add SOURCE TARGET"
_AWAITED = {
    "waiting_for_lease": "waits for ring memory",
    "waiting_for_worker_ring": "waits for the workload to take its ring",
    "waiting_for_driver": "waits for the other end",
}


def sentence(line: EdgeLine) -> str:
    """What became of an order: the edge, its state, its sizes."""
    why = remarks(line)
    state = line.phase.value if why or line.lives else "added"  # and not looked at yet
    return (
        f"{line.name}: {state}{f' ({why})' if why else ''}, objects of at most "
        f"{size_text(line.max_extent_bytes)}, {size_text(line.ring_bytes)} of memory at each end"
    )


def remarks(line: EdgeLine) -> str:
    """Why it waits or is not ready yet, and what ended the newest of its lives that faulted."""
    why, last = line.reason or _awaited(line), _last_fault(line)
    if line.fault_text and line.fault_text in why:
        return why.replace(line.fault_text, last, 1)
    return "; ".join(part for part in (why, last and f"last fault {last}") if part)


def _last_fault(line: EdgeLine) -> str:
    """`code: text`, as far as there are."""
    return ": ".join(part for part in (line.fault and line.fault.value, line.fault_text) if part)


def _awaited(line: EdgeLine) -> str:
    """What the ends of a life that opens wait for, and where."""
    found: dict[str, list[str]] = {}
    for end, node in ((line.producer, line.producer_node), (line.consumer, line.consumer_node)):
        if line.phase.value == "opening" and end is not None and end.state.value in _AWAITED:
            found.setdefault(_AWAITED[end.state.value], []).append(node or "-")
    return "; ".join(f"{what} on {' and '.join(dict.fromkeys(nodes))}" for what, nodes in found.items())


def phases(edges: Sequence[EdgeLine]) -> str:
    """`1 waiting, 3 ready`, in the order of a life; `none` without edges."""
    from messages.edge_plan import EdgePhase

    counted = Counter(line.phase for line in edges)
    return ", ".join(f"{counted[phase]} {phase.value}" for phase in EdgePhase if counted[phase]) or "none"


def edge_row(line: EdgeLine) -> tuple[str, ...]:
    """One row under `COLUMNS`. Rate, objects and bytes of this life as they left the edge, `-` where nobody told;
    in flight: sent and not yet taken.
    """
    ends = [end.progress for end in (line.producer, line.consumer) if end is not None]
    arrived = line.consumer.progress if line.consumer is not None else None
    return (
        line.name,
        line.phase.value,
        "-" if arrived is None else _rate(arrived),
        "-" if arrived is None else str(arrived.objects),
        "-" if arrived is None else size_text(arrived.bytes),
        size_text(sum(end.in_flight_bytes for end in ends)) if ends else "-",
        str(sum(end.stalls for end in ends)) + (" now" if any(end.stalled for end in ends) else "") if ends else "-",
        str(line.faults),
        str(line.run_id),
        f"{line.producer_node or '-'} > {line.consumer_node or '-'}",
        remarks(line) or "-",
    )


def arena_row(node: EdgeNode) -> tuple[str, ...]:
    """One row under `ARENAS`: ring memory of an edges process, as it told last."""
    heard = "up" if node.reachable else "unreachable"
    arena = node.arena
    if arena is None:
        return (node.process, heard, str(node.ends), *["-"] * 6)
    return (
        node.process,
        heard,
        str(node.ends),
        size_text(arena.live_bytes),
        size_text(arena.free_bytes),
        size_text(arena.capacity_bytes),
        str(arena.active_leases),
        str(arena.pending_leases),
        str(arena.allocation_failures_total + arena.release_failures_total),
    )


def edge_facts(line: EdgeLine) -> list[tuple[str, object]]:
    """What is said of an edge as a whole."""
    return [
        ("edge", line.name),
        ("state", line.phase.value),
        ("reason", line.reason or _awaited(line) or None),
        ("epoch", line.run_id),
        ("edge id", line.edge_id),
        ("lives", line.lives),
        ("faults", line.faults),
        ("last fault", _last_fault(line) or None),
        ("nodes", f"{line.producer_node or '-'} > {line.consumer_node or '-'}"),
        ("largest object", size_text(line.max_extent_bytes)),
        ("ring", f"{size_text(line.ring_bytes)} at each end"),
        ("since", _clock(line.since_ms)),
    ]


def end_rows(line: EdgeLine, nodes: Sequence[EdgeNode], *, ids: bool = True) -> list[tuple[str, ...]]:
    """Both ends side by side, each with the memory of its node. `ids`: with those of the instances, which are long."""
    told = [_end(line.producer), _end(line.consumer)]
    told[0] |= _memory(line.producer_node, nodes)
    told[1] |= _memory(line.consumer_node, nodes)
    names = [name for name in dict.fromkeys((*told[0], *told[1])) if ids or name != "instance"]
    return [(name, told[0].get(name, "-"), told[1].get(name, "-")) for name in names]


def print_edges(lines: EdgeLines) -> None:
    """Every edge, then the memory of every edges process. In a pipe whole rows; on a terminal what fits its width."""
    if sys.stdout.isatty():
        from rich.console import Console, Group

        console = Console(highlight=False)
        console.print(Group(*_edges(lines, len(lines.edges) * 2 + len(lines.nodes) + 6, console, fold=True)))
        return
    if not lines.edges:
        print(_NONE)
    else:
        print_table(COLUMNS, [edge_row(line) for line in lines.edges])
    if lines.nodes:
        print()
        print_table(ARENAS, [arena_row(node) for node in lines.nodes])


def print_edge(line: EdgeLine, nodes: Sequence[EdgeNode]) -> None:
    print_facts(edge_facts(line))
    if rows := end_rows(line, nodes):
        print()
        print_table(("end", "producer", "consumer"), rows)


def draw_edges(cluster: str, lines: EdgeLines, silence: str, console: Console) -> RenderableType:
    """The screen of `edge ls --watch`."""
    from rich.console import Group

    total = sum(line.consumer.progress.bytes_per_s for line in lines.edges if line.consumer is not None)
    summary = silence or f"edges: {phases(lines.edges)}; {size_text(total)}/s"
    return Group(title(cluster, summary), *_edges(lines, console.height - 1, console))


def _edges(lines: EdgeLines, room: int, console: Console, *, fold: bool = False) -> list[RenderableType]:
    """Edges, then arenas, then why edges wait or faulted, in at most `room` lines; `fold`: the last in more."""
    from rich.text import Text

    parts: list[RenderableType] = []
    if lines.edges:
        shown = max(1, min(len(lines.edges), room - 1))
        parts.append(fitted(Section(COLUMNS, [edge_row(line) for line in lines.edges]), shown, console.width))
        room -= shown + 1
    else:
        parts.append(Text(_NONE, no_wrap=True, overflow="ellipsis"))
        room -= 1
    if lines.nodes and room >= 3:
        shown = min(len(lines.nodes), room - 2)
        parts += [Text(""), fitted(Section(ARENAS, [arena_row(node) for node in lines.nodes]), shown, console.width)]
        room -= shown + 2
    told = [(line.name, remarks(line)) for line in lines.edges if remarks(line)]
    if told and room >= 2:
        rows = [(name, text, "yellow") for name, text in told[: room - 1]]
        parts += [Text(""), *_lines(rows, len(told) * 100 if fold else room - 1, console)[0]]
    return parts


def _lines(rows: Sequence[tuple[str, str, str]], room: int, console: Console) -> tuple[list[Text], int]:
    """Headings with what is told and its style, whole if that takes at most `room` lines, else each cut to one; and how
    many lines they take."""
    folded = [one_line(*row, fold=True) for row in rows]
    height = sum(len(line.wrap(console, console.width)) for line in folded)
    return (folded, height) if height <= room else ([one_line(*row) for row in rows], len(rows))


def draw_edge(
    cluster: str, line: EdgeLine, nodes: Sequence[EdgeNode], silence: str, console: Console
) -> RenderableType:
    """The screen of `edge show --watch`."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [title(cluster, silence or f"{line.name}: {line.phase.value}")]
    facts = [(name, value) for name, value in edge_facts(line)[2:] if value not in (None, "")]
    room = console.height - 1
    first = facts[: max(1, min(len(facts), room - 6))]
    rows = [(name.ljust(14), str(value), "yellow" if "fault" in name else "") for name, value in first]
    told, height = _lines(rows, room - 6, console)
    parts += told
    room -= height + 2
    ends = Section(("end", "producer", "consumer"), end_rows(line, nodes, ids=False))
    if room >= 1 and ends.rows:
        parts += [Text(""), fitted(ends, min(room, len(ends.rows)), console.width)]
    return Group(*parts)


def _end(end: EndReport | None) -> dict[str, str]:
    if end is None:
        return {}
    moved = end.progress
    return {
        "state": end.state.value,
        "rate": _rate(moved),
        "objects": str(moved.objects),
        "bytes": size_text(moved.bytes),
        "in flight": size_text(moved.in_flight_bytes),
        "ring": size_text(moved.ring_bytes),
        "stalls": str(moved.stalls) + (" now" if moved.stalled else ""),
        "last object": _number(moved.last_object_id),
        "last sequence": _number(moved.last_sequence),
        "duplicates": str(moved.duplicates_dropped),
        "resumed": str(moved.resumed),
        "fault": "-" if end.fault is None else f"{end.fault.value}: {end.fault_text}",
        "complete": "yes" if end.ended else "no",
        "port": end.port,
        "instance": end.instance_id,
        "ring id": _number(end.ring_id),
        "actor": f"edge/{end.local_edge_actor}",
        "peer": end.peer,
    }


def _memory(node: str | None, nodes: Sequence[EdgeNode]) -> dict[str, str]:
    from runtime.cluster.names import edges_of

    found = next((one for one in nodes if node is not None and one.process == edges_of(node)), None)
    if found is None:
        return {}
    heard = {"process": found.process + ("" if found.reachable else " (unreachable)")}
    arena = found.arena
    if arena is None:
        return heard
    return heard | {
        "arena": size_text(arena.capacity_bytes),
        "arena used": size_text(arena.live_bytes),
        "arena free": size_text(arena.free_bytes),
        "largest range": size_text(arena.largest_free_range_bytes),
        "leases": f"{arena.active_leases}, {arena.pending_leases} waiting",
        "failures": f"{arena.allocation_failures_total} to lease, {arena.release_failures_total} to release",
    }


def _rate(moved: Progress) -> str:
    return f"{size_text(moved.bytes_per_s)}/s"


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)


def _clock(unix_ms: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(unix_ms / 1000))


__all__ = [
    "ARENAS", "COLUMNS", "arena_row", "draw_edge", "draw_edges", "edge_facts", "edge_row", "end_rows", "phases",
    "print_edge", "print_edges", "remarks", "sentence",
]  # fmt: skip
