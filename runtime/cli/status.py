"""`sennit status`: is it up, is everything well, and what is not (promise 7, design 11)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from runtime.cli.edge_view import phases, remarks
from runtime.cli.options import (
    ClusterOption,
    JsonOption,
    connected,
    edges_started,
    lasting,
    not_up,
    open_cluster,
    verbs,
)
from runtime.cli.output import ExitCode, print_document, print_facts
from runtime.cli.tree import show_tree

if TYPE_CHECKING:
    from messages.base import Request
    from messages.supervision import ChildView
    from runtime.client import Client
    from runtime.cluster import Cluster

app = verbs()
_TIMEOUT_S = 5.0


@app.command()
def status(cluster: ClusterOption = None, as_json: JsonOption = False) -> ExitCode:
    """Is it up, is everything well, and what is not. Ends with 1 when something is not well, with 6 when it is down.

    \b
    Examples:
      sennit status
      sennit status --json
    """
    from runtime.cluster import cluster_holder

    found = open_cluster(cluster)
    holder = cluster_holder(found)
    if holder is None:
        raise not_up(found)
    with connected(cluster) as (_, client):
        seen, problems = look(found, client)
    if as_json:
        print_document({"cluster": found.name, "root_pid": holder, "well": not problems, "problems": problems, **seen})
        return ExitCode.DIFFERS if problems else ExitCode.DONE
    head = seen.get("chain")
    nodes = seen.get("nodes", [])
    print_facts(
        [
            ("cluster", f"{found.name} ({found.cluster_id}), root process {holder}"),
            ("chain", f"{head.count} records, head {head.hash[:16]}" if head else "no answer"),
            ("nodes", f"{sum(line.reachable for line in nodes)} of {len(found.nodes)} reachable"),
            ("instances", len(seen["instances"]) if "instances" in seen else "no answer"),
            ("edges", phases(seen["edges"]) if "edges" in seen else "no answer"),
        ]
    )
    print()
    if "tree" in seen:
        show_tree(found.name, seen["tree"])
    print()
    for problem in problems:
        print(f"! {problem}")
    if not problems:
        print("all is well")
    for name, report in seen["processes"].items():
        counted = ", ".join(f"{count} {reason}" for reason, count in report.dead_letters.items() if count)
        if counted:
            print(f"  {name} counted messages it could not deliver since it started: {counted}")
    return ExitCode.DIFFERS if problems else ExitCode.DONE


def look(cluster: Cluster, client: Client) -> tuple[dict[str, Any], list[str]]:
    """What the parts answered, and every problem as a sentence."""
    from messages.chain import GetHead
    from messages.edge_plan import EdgePhase, ListEdges
    from messages.placement import ListInstances, ListNodes
    from messages.supervision import ShowChildren
    from messages.system import GetProcess, GetState

    problems: list[str] = []
    seen: dict[str, Any] = {}

    def ask(name: str, address: str, request: Request[Any]) -> Any:
        answer, problem = _ask(client, address, request)
        if problem:
            problems.append(problem)
        else:
            seen[name] = answer
        return answer

    view = ask("tree", "root/supervisor", ShowChildren())
    if view is not None:
        problems.extend(_unwell(child) for child in view.children if not _is_well(child))
    ask("chain", "chain/chain", GetHead())
    nodes = ask("nodes", "controller/plane", ListNodes())
    if nodes is not None:
        seen["nodes"] = nodes.nodes
        problems.extend(
            f"node {line.name} is {line.liveness} and not reachable" for line in nodes.nodes if not line.reachable
        )
    instances = ask("instances", "controller/plane", ListInstances())
    if instances is not None:
        seen["instances"], seen["unsettled"] = instances.instances, instances.unsettled
        problems.extend(
            f"decision {line.decision_id[:16]} for {line.slot} on {line.node} is not settled"
            for line in instances.unsettled
        )
    edges = ask("edges", "controller/edges", ListEdges())
    if edges is not None:
        seen["edges"] = edges.edges
        problems.extend(
            f"edge {line.name} faulted and waits: {remarks(line)}"
            for line in edges.edges
            if line.phase is EdgePhase.WAITING and line.fault is not None
        )
    plane, problem = _ask(client, "controller/plane", GetState())
    if not problem and (blocked := plane.state.get("blocked")):
        problems.append(f"the controller places nothing: {blocked}")
    started = edges_started(cluster, client)
    problems.extend(_unwell(child) for child in started.values() if not _is_well(child))
    reports = {}
    for name in (*(peer.name for peer in lasting(cluster)), *(name for name in started if _is_well(started[name]))):
        report, problem = _ask(client, f"{name}/supervisor", GetProcess())
        if problem:
            problems.append(problem)
            continue
        reports[name] = report
    seen["processes"] = reports
    return seen, problems


def _is_well(child: ChildView) -> bool:
    from messages.supervision import ChildState

    return child.state is ChildState.RUNNING and child.verdict is None


def _unwell(child: ChildView) -> str:
    return f"process {child.name} is {(child.verdict or child.state).value} ({child.last_exit or 'no exit seen'})"


def _ask(client: Client, address: str, request: Request[Any]) -> tuple[Any, str]:
    from actors.actor import AskFailed
    from messages.base import Address

    try:
        return client.ask(Address(address), request, _TIMEOUT_S), ""
    except AskFailed as failed:
        return None, f"{address} does not answer: {failed.failure.value} {failed.reason}".rstrip()
