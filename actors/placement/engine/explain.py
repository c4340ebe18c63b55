"""The text of a decision (G 1.11): every node, every failed constraint, every component of every score.

Same decision, same bytes. Numbers have two decimals; control characters that a reason brought along are escaped, so
that no reason can pass for a line of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from messages.engine import Decision, Execution, NodeReport, Placement, Score, Tier

_TIER_LINE = "tier order (strict): " + " > ".join(Tier) + " (candidates rank by tier, then score)"
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_INDENT = " " * 7


def explain(decision: Decision, names: Mapping[str, str] | None = None) -> str:
    """The explanation, each line ended by LF. With `names` (node id to configured name) a node is `name (id)`."""
    return "".join(_printable(line) + "\n" for line in _lines(decision, names or {}))


def _lines(decision: Decision, names: Mapping[str, str]) -> Iterator[str]:
    yield f"workload {decision.name} (kind {decision.kind})"
    pin = "-" if decision.pin is None else _node(decision.pin, names)
    yield f"  allow_emulated: {_truth(decision.allow_emulated)}   pin: {pin}"
    yield "  " + _TIER_LINE
    if decision.placement is None:
        yield "decision: UNPLACEABLE (no eligible node)"
    else:
        yield _placed(decision.placement, names)
    yield "candidates:"
    for rank, report in enumerate(decision.candidates, start=1):
        yield from _candidate(rank, report, names)


def _placed(placement: Placement, names: Mapping[str, str]) -> str:
    emulated = _truth(placement.execution is Execution.EMULATED)
    line = (
        f"decision: PLACED on {_node(placement.node_id, names)} via {placement.variant} "
        f"(tier {placement.tier}, emulated {emulated}) score {placement.score.total:.2f}"
    )
    return line if placement.accelerator is None else f"{line}, accelerator {placement.accelerator}"


def _candidate(rank: int, report: NodeReport, names: Mapping[str, str]) -> Iterator[str]:
    node = _node(report.node_id, names)
    if report.score is None:
        yield f"  -  {node} rejected"
        for rejection in report.rejections:
            yield f"{_INDENT}{rejection.constraint}: {rejection.detail}"
        return
    flags = f" [{', '.join(report.flags)}]" if report.flags else ""
    yield f"  {rank}. {node} eligible via {report.variant} (tier {report.tier}) score {report.score.total:.2f}{flags}"
    yield _INDENT + _components(report.score)


def _components(score: Score) -> str:
    return " + ".join(f"{name} {getattr(score, name):.2f}" for name in Score.__struct_fields__)


def _node(node_id: str, names: Mapping[str, str]) -> str:
    name = names.get(node_id, node_id)
    return node_id if name == node_id else f"{name} ({node_id})"


def _truth(value: bool) -> str:
    return "true" if value else "false"


def _printable(line: str) -> str:
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), line)


__all__ = ["explain"]
