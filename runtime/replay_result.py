"""What a check of recorded answers against a machine's computed ones ended with (design 11, `sennit replay`)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayResult:
    """`matched` of the `steps` read agree; `difference` names the first that does not, with its line, or is None."""

    matched: int
    steps: int
    difference: str | None = None


__all__ = ["ReplayResult"]
