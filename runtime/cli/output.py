"""What a verb prints and how it ends (design 11).

With `--json` a verb prints one document on standard output and nothing else there. Without it, tables: fitted to the
terminal, never shortened in a pipe, coloured only where colours are wanted (`NO_COLOR`).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from enum import Enum, IntEnum
from typing import Any

_LEAST = 24
"""Columns of a terminal below which a last cell that is cut tells nothing."""


class ExitCode(IntEnum):
    """How every verb ends."""

    DONE = 0
    DIFFERS = 1
    UNPLACEABLE = 2
    INDETERMINATE = 3
    REFUSED = 4
    DAMAGED = 5
    NO_CLUSTER = 6
    USAGE = 64


class Failed(Exception):
    """A verb that did not do what was asked: what and why (`text`), and the command that helps (`remedy`)."""

    def __init__(self, exit_code: ExitCode, code: str, text: str, remedy: str = "") -> None:
        super().__init__(text)
        self.exit_code = exit_code
        self.code = code
        self.text = text
        self.remedy = remedy


def print_document(document: Any) -> None:
    """The one document of `--json`. Structs, enums and bytes (as hexadecimal digits) are taken as they are."""
    print_json(_plain(document))


def print_json(value: Any) -> None:
    """Readable where the stream can carry it, escaped as JSON spells it where not."""
    unicode = (sys.stdout.encoding or "").lower().startswith("utf")
    print(json.dumps(value, indent=2, ensure_ascii=not unicode))


def print_failure(failure: Failed, as_json: bool) -> None:
    """One document with `--json`, else lines on standard error."""
    if as_json:
        error = {"code": failure.code, "exit": int(failure.exit_code), "text": failure.text}
        if failure.remedy:
            error["try"] = failure.remedy
        print_document({"error": error})
        return
    print(f"{_styled('sennit:', 'error')} {failure.text}", file=sys.stderr)
    if failure.remedy:
        print(f"{_styled('   try:', 'hint')} {failure.remedy}", file=sys.stderr)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], shorten: bool = False) -> None:
    """Rows under their headings; on a terminal long cells are folded, in a pipe nothing is shortened.

    `shorten`: on a terminal the last column is cut to what is left of its line, or of a line of its own.
    """
    headings = [heading.upper() for heading in columns]
    cells = [[_cell(value) for value in row] for row in rows]
    if not sys.stdout.isatty():
        for line in _aligned([headings, *cells]):
            print(line)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=shorten)
    if shorten:
        for line in _aligned([headings, *cells], console.width):
            console.print(Text(line))
        return
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in cells:
        table.add_row(*(Text(text, style=style_of(text)) for text in row))
    console.print(table)


def _aligned(rows: Sequence[Sequence[str]], width: int | None = None) -> Iterator[str]:
    """Rows as lines of aligned cells. None is longer than `width`: the last cell is cut, or moved down."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    left = sum(widths[:-1]) + 2 * (len(widths) - 1)
    for row in rows:
        head = "  ".join(text.ljust(size) for text, size in zip(row[:-1], widths, strict=False))
        if width is None or left + min(_LEAST, widths[-1]) <= width:
            yield _cut(f"{head}  {row[-1]}".rstrip(), width)
            continue
        yield _cut(head.rstrip(), width)
        yield _cut(f"    {row[-1]}", width)


def _cut(text: str, width: int | None) -> str:
    return text if width is None or len(text) <= width else text[: width - 1] + "…"


def print_facts(pairs: Sequence[tuple[str, object]]) -> None:
    """`name  value` lines, one a pair."""
    width = max(len(name) for name, _ in pairs)
    for name, value in pairs:
        print(f"{name.ljust(width)}  {_cell(value)}".rstrip())


def style_of(text: str) -> str:
    """The colour of a word that names a state or an outcome; none for other text."""
    return _STYLES.get(text, "")


_WORDS = {
    "green": "running alive placed permit up available pass valid ready finished",
    "yellow": "starting waiting stopping restarting indeterminate late defer overloaded opening closing",
    "red": "parked failed dead hung partitioned lost refused deny denied unreachable down revoked",
}
_STYLES = {word: style for style, words in _WORDS.items() for word in words.split()}


def _cell(value: object) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:g}"
        case list() | tuple():
            return ", ".join(map(_cell, value)) or "-"
        case _:
            pass
    return " ".join(str(value).splitlines()) if value != "" else "-"


def _styled(text: str, kind: str) -> str:
    if not sys.stderr.isatty() or os.environ.get("NO_COLOR"):
        return text
    return f"\x1b[{'1;31' if kind == 'error' else '2'}m{text}\x1b[0m"


def _plain(value: Any) -> Any:
    """Plain data for JSON: bytes become hexadecimal digits, structs their members, enums their value."""
    if isinstance(value, dict):
        return {str(_plain(key)): _plain(member) for key, member in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(member) for member in value]
    if isinstance(value, bytes):
        return value.hex()
    if hasattr(value, "__struct_fields__"):
        return {name: _plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value)
