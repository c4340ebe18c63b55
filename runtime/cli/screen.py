"""A screen that a verb redraws in place until q, Ctrl-C or SIGTERM; and tables that never exceed it (design 11)."""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from runtime.cli.output import style_of

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

_WORDS = (
    "process", "state", "verdict", "last exit", "links of", "up", "actor", "kind", "edge", "nodes", "remarks", "arena",
    "end", "producer", "consumer",
)  # fmt: skip
"""Headings of columns of words; all others hold numbers, and are aligned so."""

_ELASTIC = ("last exit", "kind", "remarks", "consumer")
"""What may be cut down to `_ELASTIC_LEAST` where it is the last column."""
_ELASTIC_LEAST = 12
_ENDING = frozenset({signal.SIGTERM, signal.SIGINT})
_BAD_UNLESS_ZERO = ("restarts", "duplicates", "gaps", "unconfirmed", "refused", "faults", "failures")


class Section(NamedTuple):
    """A table: its headings, its rows in the order in which they are shown."""

    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]


def is_screen() -> bool:
    """Whether standard output is a terminal that can be redrawn."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def watch(draw: Callable[[Console], RenderableType | None], interval_s: float) -> None:
    """Draw again and again until q, Ctrl-C, SIGTERM, or `draw` returns None; the terminal is as it was afterwards."""
    from rich.console import Console
    from rich.live import Live

    console = Console(highlight=False)
    with _keys() as ended, Live(console=console, screen=True, auto_refresh=False) as live:
        try:
            while (drawn := draw(console)) is not None:
                live.update(drawn, refresh=True)
                if _asked_to_end(interval_s, ended):
                    return
        except KeyboardInterrupt:
            return


def title(name: str, summary: str) -> RenderableType:
    """The first line: whose screen it is, what it says at a glance, when, and how it ends."""
    from rich.table import Table
    from rich.text import Text

    line = Table.grid(expand=True)
    line.add_column(no_wrap=True, ratio=1, overflow="ellipsis")
    line.add_column(no_wrap=True, justify="right")
    line.add_row(Text.assemble((name, "bold"), f"  {summary}"), f"  {time.strftime('%H:%M:%S')}  q ends")
    return line


def one_line(heading: str, told: str, style: str = "", *, fold: bool = False) -> Text:
    """A line that is cut at the edge of the screen, or folded."""
    from rich.text import Text

    line = Text.assemble((f"{heading}  ", "bold"), (told, style))
    line.no_wrap, line.overflow = not fold, "fold" if fold else "ellipsis"
    return line


def fitted(section: Section, rows: int, width: int) -> RenderableType:
    """The first `rows` rows; columns from the left as long as there is room; how many rows are not shown."""
    from rich.table import Table

    kept = _columns_that_fit(section, width)
    wide = section.columns[kept[-1]] in _WORDS
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold", expand=wide)
    for position in kept:
        heading = section.columns[position]
        left = heading in _WORDS
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
        if cut > 0 and number == rows - 1:
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
        least = min(wide, _ELASTIC_LEAST) if heading in _ELASTIC else wide
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


@contextmanager
def _keys() -> Iterator[int]:
    """Keys come at once and unseen; a suspension, which would leave the screen as it is, does not come at all.

    Yields a descriptor that is readable once Ctrl-C or SIGTERM came: what a handler raises is lost where Python was
    cleaning up behind an object at that moment.
    """
    ended, tell = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    woken = signal.set_wakeup_fd(tell, warn_on_full_buffer=False)  # a handler runs late if a wait is about to begin
    former = {number: signal.signal(number, interrupt) for number in _ENDING}
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
        signal.set_wakeup_fd(woken)
        os.close(ended)
        os.close(tell)


def _asked_to_end(interval_s: float, ended: int) -> bool:
    """Wait for the next look; True when q was pressed meanwhile, or a signal came."""
    deadline = time.monotonic() + interval_s
    sources: list[Any] = [ended, sys.stdin] if sys.stdin.isatty() else [ended]
    while (left := deadline - time.monotonic()) > 0:
        readable = select.select(sources, [], [], left)[0]
        if not readable:
            break
        if ended in readable:
            if _ENDING.intersection(os.read(ended, 64)):
                return True
            continue
        typed = os.read(sys.stdin.fileno(), 64)
        if not typed or b"q" in typed.lower():
            return True
    return False


__all__ = ["Section", "fitted", "is_screen", "one_line", "title", "watch"]
