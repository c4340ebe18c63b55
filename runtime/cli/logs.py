"""`sennit logs`: what the processes of a cluster wrote, in order of time, for reading (design 12).

The files are JSON lines with one writer each (`runtime.log`); here they are read, also while the cluster is down.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from runtime.cli.options import ClusterOption, JsonOption, open_cluster, verbs
from runtime.cli.output import ExitCode, Failed, print_document

app = verbs()

LEVELS = ("debug", "info", "warning", "error")
_COLOURS = {"warning": "33", "error": "1;31", "debug": "2"}
_SHOWN = ("time", "level", "process", "source", "text", "exception")
_POLL_S = 0.2


@app.command()
def logs(
    processes: Annotated[list[str] | None, typer.Argument(metavar="[PROCESS]...", help="Only these.")] = None,
    *,
    count: Annotated[int, typer.Option("-n", "--count", metavar="N", min=1, max=100_000, help="Newest lines.")] = 50,
    level: Annotated[str, typer.Option("--level", metavar="LEVEL", help=f"From {', '.join(LEVELS)} on.")] = "debug",
    follow: Annotated[bool, typer.Option("--follow", help="Go on printing new lines until Ctrl-C.")] = False,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print what the processes logged, oldest first.

    \b
    Examples:
      sennit logs
      sennit logs root shed --level warning
      sennit logs -n 5 --follow
    """
    if level not in LEVELS:
        raise Failed(ExitCode.USAGE, "usage", f"--level {level!r} is none of {', '.join(LEVELS)}")
    if follow and as_json:
        raise Failed(ExitCode.USAGE, "usage", "--follow has no end, and --json is one document: use one of them")
    found = open_cluster(cluster)
    names = [found.process(name).name for name in processes or ()]
    files = [_File(found.log_file(name)) for name in names or found.processes]
    wanted = LEVELS[LEVELS.index(level) :]
    newest = _new(files, wanted)[-count:]
    if as_json:
        print_document(newest)
        return
    for entry in newest:
        print(line_of(entry, coloured=_coloured()))
    while follow:
        sys.stdout.flush()
        time.sleep(_POLL_S)
        for entry in _new(files, wanted):
            print(line_of(entry, coloured=_coloured()))


def _new(files: list[_File], levels: tuple[str, ...]) -> list[dict[str, Any]]:
    """What was written since the last look, in order of time."""
    entries = [entry for file in files for entry in file.new() if entry.get("level") in levels]
    return sorted(entries, key=lambda entry: str(entry.get("time", "")))


def line_of(entry: dict[str, Any], *, coloured: bool = False) -> str:
    """One entry on one line, an exception below it: time, level, source, text, then the fields as `name=value`."""
    level = str(entry.get("level", "?"))
    fields = " ".join(f"{name}={_text(value)}" for name, value in entry.items() if name not in _SHOWN)
    moment = str(entry.get("time", ""))[11:23]
    text = f"{moment}  {level:<7}  {entry.get('source', '?'):<24}  {_text(entry.get('text', ''))}  {fields}".rstrip()
    if coloured and level in _COLOURS:
        text = f"\x1b[{_COLOURS[level]}m{text}\x1b[0m"
    exception = str(entry.get("exception", "")).strip()
    return text + "".join(f"\n    {_text(line)}" for line in exception.splitlines())


def _text(value: object) -> str:
    """What a log says may come from a peer: nothing of it steers the terminal."""
    text = value if isinstance(value, str) else json.dumps(value)
    return "".join(sign if sign.isprintable() else f"\\x{ord(sign):02x}" for sign in text)


def _coloured() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


class _File:
    """The log of one process, read on from where the last look ended, across its rotation."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inode = 0
        self._offset = 0

    def new(self) -> Iterator[dict[str, Any]]:
        try:
            with self._path.open("rb") as file:
                status = os.fstat(file.fileno())
                if status.st_ino != self._inode or status.st_size < self._offset:
                    self._inode, self._offset = status.st_ino, 0
                file.seek(self._offset)
                for raw in file:
                    if not raw.endswith(b"\n"):
                        return  # it is being written
                    self._offset += len(raw)
                    yield _entry(raw)
        except FileNotFoundError:
            return


def _entry(raw: bytes) -> dict[str, Any]:
    try:
        entry = json.loads(raw)
    except ValueError:
        entry = None
    return entry if isinstance(entry, dict) else {"level": "error", "text": raw.decode(errors="replace").rstrip()}
