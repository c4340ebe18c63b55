"""`sennit top`: processes, links, dead letters and actors of a running cluster, live (promise 7, design 11)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runtime.cli.edge_view import phases
from runtime.cli.options import ClusterOption, JsonOption, connected, verbs
from runtime.cli.output import ExitCode, print_document, print_table
from runtime.cli.screen import Section, fitted, is_screen, one_line, title, watch
from runtime.cli.sizes import size_text

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from runtime.sight import ActorSight, Frame, ProcessSight

app = verbs()

ACTORS_AT_LEAST = 3


@app.command()
def top(
    *,
    once: Annotated[bool, typer.Option("--once", help="Print one frame and end; so it does in a pipe.")] = False,
    interval: Annotated[
        float, typer.Option("--interval", "-i", metavar="SECONDS", min=0.2, max=60, help="Time between two looks.")
    ] = 1.0,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> ExitCode:
    """A live screen of processes, links, dead letters and actors; q or Ctrl-C ends it.

    \b
    Examples:
      sennit top
      sennit top --once
      sennit top --json
    """
    from runtime.cluster import cluster_holder
    from runtime.sight import look

    with connected(cluster) as (found, client):

        def see(before: Frame | None) -> Frame:
            return look(client, root_pid=cluster_holder(found), before=before)

        frame: Frame | None = None

        def draw(console: Console) -> RenderableType:
            nonlocal frame
            frame = see(frame)
            return render(found.name, frame, console)

        if not (once or as_json) and is_screen():
            watch(draw, interval)
            return ExitCode.DONE
        first = see(None)
        time.sleep(interval)
        frame = see(first)
    if as_json:
        print_document(document(found.name, frame))
    else:
        _print(found.name, frame)
    return ExitCode.DONE


def sections(frame: Frame) -> tuple[Section, Section, Section]:
    """Processes, links by process, actors (the busiest first)."""
    processes: list[tuple[str, ...]] = [
        (
            one.name,
            one.state,
            one.verdict or "-",
            "-" if one.pid is None else str(one.pid),
            "-" if one.child is None else str(one.child.restarts),
            "-" if one.child is None else str(one.child.budget_left),
            _last_words(one),
        )
        for one in frame.processes
    ]
    links = [_links(one) for one in frame.processes if one.links]
    actors = sorted((actor for one in frame.processes for actor in one.actors), key=_prominence)
    return (
        Section(("process", "state", "verdict", "pid", "restarts", "left", "last exit"), processes),
        Section(
            ("links of", "up", "sent/s", "got/s", "unacked", "duplicates", "gaps", "unconfirmed", "sent", "got"), links
        ),
        Section(
            ("actor", "mailbox", "high", "msgs/s", "busy", "msgs", "refused", "procedures", "kind"),
            [_actor(one) for one in actors],
        ),
    )


def dead_letters(frame: Frame) -> str:
    """By reason, then by process; counted since each process started."""
    reasons: dict[str, list[tuple[str, int]]] = {}
    for one in frame.processes:
        for reason, count in one.dead_letters.items():
            if count:
                reasons.setdefault(reason, []).append((one.name, count))
    told = [
        f"{sum(count for _, count in counts)} {reason} ({', '.join(f'{name} {count}' for name, count in counts)})"
        for reason, counts in sorted(reasons.items())
    ]
    return "; ".join(told) or "none"


def edges_of(frame: Frame) -> str:
    """How many edges are in which phase, and what all of them move."""
    if frame.edges is None:
        return "no answer"
    moving = sum(line.consumer.progress.bytes_per_s for line in frame.edges if line.consumer is not None)
    return phases(frame.edges) + (f"; {size_text(moving)}/s" if frame.edges else "")


def document(cluster: str, frame: Frame) -> dict[str, Any]:
    """The one document of `--json`."""
    return {
        "cluster": cluster,
        "edges": frame.edges,
        "processes": [
            {
                "name": one.name,
                "state": one.state,
                "verdict": one.verdict or None,
                "pid": one.pid,
                "silent": one.silent or None,
                "child": one.child,
                "dead_letters": one.dead_letters,
                "links": one.links,
                "sent_per_s": one.sent_per_s,
                "received_per_s": one.received_per_s,
                "actors": [
                    {
                        "address": actor.row.address,
                        "kind": actor.row.kind,
                        "received_per_s": actor.per_s,
                        "busy": actor.busy,
                        "statistics": actor.statistics,
                    }
                    for actor in one.actors
                ],
            }
            for one in frame.processes
        ],
    }


def fit(height: int, processes: int, links: int, actors: int) -> tuple[int, int, int]:
    """How many rows of each table a screen of `height` lines holds; a table that shows no row has no heading.

    Processes come first, then a few actors, then links, then more actors. The title, the line of dead letters and
    the blank lines between are counted.
    """
    room = height - 4  # title, blank, dead letters, and the heading of the processes
    shown = max(1, min(processes, room))
    room -= shown
    few = min(actors, ACTORS_AT_LEAST, max(0, room - 2))
    room -= few + 2 if few else 0
    linked = min(links, max(0, room - 2))
    room -= linked + 2 if linked else 0
    return shown, linked, min(actors, few + max(0, room)) if few else 0


def render(cluster: str, frame: Frame, console: Console) -> RenderableType:
    """The whole screen."""
    from rich.console import Group
    from rich.text import Text

    processes, links, actors = sections(frame)
    room = console.height - (1 if frame.edges else 0)
    shown, linked, busy = fit(room, len(processes.rows), len(links.rows), len(actors.rows))
    if shown < len(processes.rows):  # those with something wrong must be seen
        processes.rows.sort(key=lambda row: (row[2] == "-", row[1] == "running"))
    running = sum(one.state == "running" for one in frame.processes)
    total = sum(one.received_per_s or 0 for one in frame.processes)
    summary = f"{running} of {len(frame.processes)} running, {total:.0f} messages/s between processes"
    letters = dead_letters(frame)
    told = one_line("DEAD LETTERS", letters, "" if letters == "none" else "yellow")
    parts: list[RenderableType] = [title(cluster, summary), fitted(processes, shown, console.width), Text(""), told]
    if frame.edges:
        parts.append(one_line("EDGES", edges_of(frame)))
    for section, rows in ((links, linked), (actors, busy)):
        if rows:
            parts += [Text(""), fitted(section, rows, console.width)]
    return Group(*parts)


def _print(cluster: str, frame: Frame) -> None:
    print(f"{cluster}\n")
    processes, links, actors = sections(frame)
    print_table(processes.columns, processes.rows)
    print(f"\nDEAD LETTERS  {dead_letters(frame)}")
    print(f"EDGES  {edges_of(frame)}")
    for section in (links, actors):
        print()
        print_table(section.columns, section.rows)


def _links(one: ProcessSight) -> tuple[str, ...]:
    def total(what: str) -> str:
        return str(sum(getattr(link, what) for link in one.links))

    return (
        one.name,
        f"{sum(link.up for link in one.links)} of {len(one.links)}",
        _rate(one.sent_per_s),
        _rate(one.received_per_s),
        *(total(what) for what in ("unacknowledged", "duplicates", "gaps", "unconfirmed", "sent", "received")),
    )


def _actor(one: ActorSight) -> tuple[str, ...]:
    counted = one.statistics
    return (
        str(one.row.address),
        str(one.row.mailbox) + (" suspended" if one.row.suspended else ""),
        "-" if counted is None else str(counted.mailbox_high),
        _rate(one.per_s),
        "-" if one.busy is None else f"{one.busy:.0%}",
        str(one.row.received),
        "-" if counted is None else str(counted.refused),
        "-" if counted is None else str(counted.procedures),
        one.row.kind,
    )


def _prominence(one: ActorSight) -> tuple[Any, ...]:
    """Long mailboxes, busy actors, much mail; supervisors last, whose mail is mostly ours. Steady from look to look."""
    watched = one.row.kind == "Supervisor"
    return -one.row.mailbox, -round((one.busy or 0) * 100), watched, -round(one.per_s or 0), one.row.address


def _last_words(one: ProcessSight) -> str:
    if one.silent:
        return f"no answer: {one.silent}"
    if one.child is None:
        return "-"
    again = "" if one.child.next_attempt_s is None else f"next start in {one.child.next_attempt_s:.1f} s; "
    return again + " ".join(one.child.last_exit.split()) if again or one.child.last_exit else "-"


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}" if value < 10 else f"{value:.0f}"


__all__: Sequence[str] = ("app", "dead_letters", "document", "edges_of", "fit", "render", "sections")
