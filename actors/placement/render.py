"""The explanation of a placement: the engine's text, the decision id, then every attempt (G 1.12, P 6.7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from actors.placement.engine import explain
from messages.engine import Decision
from messages.placement import Attempt

INGEST_DISABLED = "     placed with ingest disabled: the cog has no token and its vectors go nowhere\n"


def render(decision: Decision, decision_id: str, attempts: Sequence[Attempt], names: Mapping[str, str]) -> str:
    """Plain text, each line ended by LF; nodes are `name (id)` where `names` knows them."""
    text = explain(decision, names) + f"decision_id: {decision_id}\n"
    if attempts:
        text += "dispatch:\n"
    for number, attempt in enumerate(attempts, start=1):
        name = names.get(attempt.node_id)
        node = attempt.node_id if name is None else f"{name} ({attempt.node_id})"
        text += f"  {number}. {node} via {attempt.variant}: {attempt.outcome.value}{_because(attempt)}\n"
        if attempt.ingest == "disabled":
            text += INGEST_DISABLED
    return text


def _because(attempt: Attempt) -> str:
    if attempt.reason is None:
        return ""
    code = "" if attempt.code is None else f"{attempt.code}: "
    reason = " ".join(attempt.reason.splitlines())
    return f" ({code}{reason})"


__all__ = ["render"]
