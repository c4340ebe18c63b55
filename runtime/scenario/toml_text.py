"""A policy back as the text of a `policy.toml`."""

from __future__ import annotations

from typing import Any

import msgspec

from actors.gate.policy import Policy
from runtime.cluster.settings import quote


def policy_toml(policy: Policy) -> str:
    """The text that `actors.gate.policy.parse_policy` reads as `policy`."""
    document = msgspec.to_builtins(policy)
    permits = document.pop("permit", ())
    lines = [f"{name} = {_value(value)}" for name, value in document.items()]
    if not permits:
        lines.append("permit = []")
    for permit in permits:
        lines += ["", "[[permit]]", *(f"{name} = {_value(value)}" for name, value in permit.items())]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return quote(value)
        case list() | tuple():
            return f"[{', '.join(map(_value, value))}]"
        case _:
            return str(value)
