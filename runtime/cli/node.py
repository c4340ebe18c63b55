"""`sennit node`: the nodes as the controller sees them (design 11)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from runtime.cli.options import ClusterOption, JsonOption, connected, verbs
from runtime.cli.output import ExitCode, Failed, print_document, print_facts, print_table

if TYPE_CHECKING:
    from pathlib import Path

    from messages.placement import NodeLine

app = verbs()
_TIMEOUT_S = 10.0


@app.callback()
def node() -> None:
    """Nodes and what they can do.

    \b
    Examples:
      sennit node ls
      sennit node show shed
    """


@app.command("ls")
def list_nodes(cluster: ClusterOption = None, as_json: JsonOption = False) -> None:
    """Every node: tier, liveness, instances, age of its beat and of its facts, how many capabilities it offers.

    \b
    Example:
      sennit node ls
    """
    nodes = _nodes(cluster)
    if as_json:
        print_document(nodes)
        return
    print_table(
        ("node", "id", "tier", "liveness", "instances", "beat", "facts", "offers"),
        [
            (
                line.name,
                line.node_id,
                line.tier.value,
                line.liveness if line.reachable else "unreachable",
                line.instances,
                _age(line.beat_age_ms),
                _age(line.facts_age_ms),
                len(line.capabilities),
            )
            for line in nodes
        ],
    )


@app.command()
def show(
    name: Annotated[str, typer.Argument(metavar="NODE", help="Name or id of the node.")],
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """One node and its capabilities.

    \b
    Example:
      sennit node show shed
    """
    nodes = _nodes(cluster)
    line = next((line for line in nodes if name in (line.name, line.node_id)), None)
    if line is None:
        known = ", ".join(line.name for line in nodes)
        raise Failed(ExitCode.USAGE, "unknown_node", f"there is no node {name!r}; there are {known}", "sennit node ls")
    if as_json:
        print_document(line)
        return
    print_facts(
        [
            ("node", f"{line.name} ({line.node_id})"),
            ("tier", line.tier.value),
            ("liveness", line.liveness),
            ("reachable", line.reachable),
            ("incarnation", line.incarnation),
            ("instances", line.instances),
            ("beat", _age(line.beat_age_ms)),
            ("facts", _age(line.facts_age_ms)),
        ]
    )
    if line.capabilities:
        print()
        rows = [
            (
                capability.get("id"),
                capability.get("state", "available"),
                ", ".join(f"{key}={value}" for key, value in (capability.get("attrs") or {}).items()),
            )
            for capability in line.capabilities
        ]
        print_table(("capability", "state", "attributes"), rows)


def _nodes(cluster: Path | None) -> list[NodeLine]:
    from messages.base import Address
    from messages.placement import ListNodes

    with connected(cluster, "controller") as (_, client):
        return client.ask(Address("controller/plane"), ListNodes(), _TIMEOUT_S).nodes


def _age(milliseconds: int | None) -> str:
    return "-" if milliseconds is None else f"{milliseconds / 1000:.1f} s"
