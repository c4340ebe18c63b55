"""What a player tells while it plays: one line a thing, with the time since the start."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
import time
from dataclasses import dataclass, field
from enum import StrEnum


class Tone(StrEnum):
    """How a line is coloured on a terminal."""

    PLAIN = ""
    TITLE = "1"
    SAID = "36"
    GOOD = "32"
    BAD = "31"
    QUIET = "2"


@dataclass(frozen=True, slots=True)
class Line:
    """`at_s`: seconds since the start; None for what belongs to the line above."""

    at_s: float | None
    what: str
    text: str


@dataclass
class Story:
    """Printed as it happens unless `quiet`; kept whole for `--json`."""

    quiet: bool = False
    lines: list[Line] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    def title(self, text: str) -> None:
        self._print(text, Tone.TITLE)

    def say(self, text: str) -> None:
        """A line of the scenario's own."""
        self.lines.append(Line(self._now(), "say", text))
        self._print(f"\n{text}", Tone.SAID)

    def tell(self, what: str, text: str, tone: Tone = Tone.PLAIN) -> None:
        """Something happened just now."""
        now = self._now()
        self.lines.append(Line(now, what, text))
        self._print(f"{now:8.2f}  {what:<9} {text}", tone, hang=21)

    def add(self, text: str, tone: Tone = Tone.QUIET) -> None:
        """More about the line above; may have several lines."""
        for line in text.splitlines():
            self.lines.append(Line(None, "", line))
            inside = len(line) - len(line.lstrip())
            self._print(f"{'':21}{line}", tone, hang=21 + inside)

    def _now(self) -> float:
        return time.monotonic() - self.began

    def _print(self, text: str, tone: Tone, *, hang: int = 0) -> None:
        """Print; on a terminal fitted to its width, what does not fit below it at column `hang`."""
        if self.quiet:
            return
        if not sys.stdout.isatty():
            print(text, flush=True)
            return
        width = max(shutil.get_terminal_size().columns, hang + 20)
        lead, body = text[: len(text) - len(text.lstrip("\n"))], text.lstrip("\n")
        fitted = textwrap.fill(
            body, width, subsequent_indent=" " * hang, replace_whitespace=False, drop_whitespace=True,
            break_on_hyphens=False,
        )  # fmt: skip
        if tone is not Tone.PLAIN and not os.environ.get("NO_COLOR"):
            fitted = f"\x1b[{tone.value}m{fitted}\x1b[0m"
        print(lead + fitted, flush=True)
