"""`sennit top`: processes, links, dead letters and actors of a running cluster, live (promise 7, design 11)."""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from runtime.cli.options import ClusterOption, JsonOption, connected, verbs
from runtime.cli.output import ExitCode, print_document, print_table, style_of

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

    from runtime.sight import ActorSight, Frame, ProcessSight

app = verbs()

ACTORS_AT_LEAST = 3
_LEFT_ALIGNED = ("process", "state", "verdict", "last exit", "links of", "up", "actor", "kind")
_BAD_UNLESS_ZERO = ("restarts", "duplicates", "gaps", "unconfirmed", "refused")


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

        if not (once or as_json) and _is_screen():
            _watch(found.name, see, interval)
            return ExitCode.DONE
        first = see(None)
        time.sleep(interval)
        frame = see(first)
    if as_json:
        print_document(document(found.name, frame))
    else:
        _print(found.name, frame)
    return ExitCode.DONE


class Section(NamedTuple):
    """A table: its headings, its rows in the order in which they are shown."""

    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]


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


def document(cluster: str, frame: Frame) -> dict[str, Any]:
    """The one document of `--json`."""
    return {
        "cluster": cluster,
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
    from rich.table import Table
    from rich.text import Text

    processes, links, actors = sections(frame)
    shown, linked, busy = fit(console.height, len(processes.rows), len(links.rows), len(actors.rows))
    if shown < len(processes.rows):  # those with something wrong must be seen
        processes.rows.sort(key=lambda row: (row[2] == "-", row[1] == "running"))
    running = sum(one.state == "running" for one in frame.processes)
    total = sum(one.received_per_s or 0 for one in frame.processes)
    title = Table.grid(expand=True)
    title.add_column(no_wrap=True, ratio=1, overflow="ellipsis")
    title.add_column(no_wrap=True, justify="right")
    summary = f"  {running} of {len(frame.processes)} running, {total:.0f} messages/s between processes"
    title.add_row(Text.assemble((cluster, "bold"), summary), f"  {time.strftime('%H:%M:%S')}  q ends")
    letters = dead_letters(frame)
    told = Text.assemble(("DEAD LETTERS  ", "bold"), (letters, "" if letters == "none" else "yellow"))
    told.no_wrap, told.overflow = True, "ellipsis"
    parts: list[RenderableType] = [title, _table(processes, shown, console.width), Text(""), told]
    for section, rows in ((links, linked), (actors, busy)):
        if rows:
            parts += [Text(""), _table(section, rows, console.width)]
    return Group(*parts)


def _table(section: Section, rows: int, width: int) -> RenderableType:
    from rich.table import Table

    kept = _columns_that_fit(section, width)
    wide = section.columns[kept[-1]] in _LEFT_ALIGNED
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold", expand=wide)
    for position in kept:
        heading = section.columns[position]
        left = heading in _LEFT_ALIGNED
        table.add_column(
            heading.upper(),
            no_wrap=True,
            overflow="ellipsis",
            justify="left" if left else "right",
            ratio=1 if wide and position == kept[-1] else None,
        )
    shown = section.rows[:rows]
    cut = len(section.rows) - rows
    for number, row in enumerate(shown):
        if cut and number == rows - 1:
            table.add_row(f"... {cut + 1} more")
        else:
            table.add_row(*(_styled(section.columns[position], row[position]) for position in kept))
    return table


def _columns_that_fit(section: Section, width: int) -> list[int]:
    """Columns from the left, as long as there is room; what has no room at all is left out, never squeezed."""
    kept: list[int] = []
    used = 0
    for position, heading in enumerate(section.columns):
        wide = max(len(heading), *(len(row[position]) for row in section.rows), 0)
        least = min(wide, 12) if heading in ("last exit", "kind") else wide
        if used + least > width and kept:
            break
        kept.append(position)
        used += wide + 2
    return kept


def _styled(heading: str, text: str) -> Text:
    from rich.text import Text

    if heading in ("state", "verdict"):
        return Text(text, style=style_of(text))
    return Text(text, style="yellow" if heading in _BAD_UNLESS_ZERO and text not in ("0", "-") else "")


def _watch(cluster: str, see: Callable[[Frame | None], Frame], interval: float) -> None:
    """Draw until q, Ctrl-C or SIGTERM; the terminal is as it was afterwards."""
    from rich.console import Console
    from rich.live import Live

    console = Console(highlight=False)
    with _keys() as ended, Live(console=console, screen=True, auto_refresh=False) as live:
        frame = None
        try:
            while True:
                frame = see(frame)
                live.update(render(cluster, frame, console), refresh=True)
                if _asked_to_end(interval, ended):
                    return
        except KeyboardInterrupt:
            return


@contextmanager
def _keys() -> Iterator[int]:
    """Keys come at once and unseen; a suspension, which would leave the screen as it is, does not come at all.

    Yields a descriptor that is readable once Ctrl-C or SIGTERM came: what a handler raises is lost where Python was
    cleaning up behind an object at that moment.
    """
    ended, tell = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def interrupt(*_: object) -> None:
        os.write(tell, b"x")
        raise KeyboardInterrupt

    former = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGINT)}
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd) if sys.stdin.isatty() else None
    try:
        if before is not None:
            changed = termios.tcgetattr(fd)
            changed[3] &= ~(termios.ICANON | termios.ECHO)
            changed[6][termios.VSUSP] = b"\0"
            termios.tcsetattr(fd, termios.TCSADRAIN, changed)
        yield ended
    finally:
        if before is not None:
            termios.tcsetattr(fd, termios.TCSAFLUSH, before)
        for number, handler in former.items():
            signal.signal(number, handler)
        os.close(ended)
        os.close(tell)


def _asked_to_end(interval: float, ended: int) -> bool:
    """Wait for the next look; True when q was pressed meanwhile, or a signal came."""
    deadline = time.monotonic() + interval
    sources: list[Any] = [ended, sys.stdin] if sys.stdin.isatty() else [ended]
    while (left := deadline - time.monotonic()) > 0:
        readable = select.select(sources, [], [], left)[0]
        if not readable:
            break
        if ended in readable:
            return True
        typed = os.read(sys.stdin.fileno(), 64)
        if not typed or b"q" in typed.lower():
            return True
    return False


def _is_screen() -> bool:
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def _print(cluster: str, frame: Frame) -> None:
    print(f"{cluster}\n")
    processes, links, actors = sections(frame)
    print_table(processes.columns, processes.rows)
    print(f"\nDEAD LETTERS  {dead_letters(frame)}")
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


__all__: Sequence[str] = ("app", "dead_letters", "document", "fit", "render", "sections")
