"""What a check of recorded answers against a machine's computed ones ended with (design 11, `sennit replay`)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayResult:
    """`matched` of the `steps` read agree; `difference` names the first that does not, with its line, or is None.

    `traces` are the lines that agree as a whole; a line of the placement engine is a trace of one step.
    """

    traces: int
    matched: int
    steps: int
    difference: str | None = None
