"""`sennit instance`: placed instances (design 8, 11)."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runtime.cli.options import ClusterOption, JsonOption, connected, require_up, verbs
from runtime.cli.output import ExitCode, Failed, print_document, print_facts, print_table

if TYPE_CHECKING:
    from messages.placement import InstanceLine, InstanceLines, InstanceResult
    from runtime.client import Client
    from runtime.cluster import Cluster

app = verbs()
_TIMEOUT_S = 60.0
_FOLLOW_S = 0.5
_OUTAGE_S = 60.0
_UNLOADED = ("unknown", "unknown_instance")
_PASSING = ("no_such_actor", "call_unreachable", "call_indeterminate")
_ENDED = ("stopped", "finished", "failed", "unloaded", "exited")

InstanceArgument = Annotated[
    str, typer.Argument(metavar="INSTANCE", help="Instance id, its beginning, or WORKLOAD@NODE.")
]


@app.callback()
def instance() -> None:
    """Placed instances: list, logs, start, stop, unload.

    \b
    Examples:
      sennit instance ls
      sennit instance logs hostwatch@shed --follow
      sennit instance stop hostwatch@shed
    """


@app.command("ls")
def list_instances(cluster: ClusterOption = None, as_json: JsonOption = False) -> ExitCode:
    """Every instance and every decision that is not settled. What can be settled is settled first.

    Ends with 3 while something is unsettled.

    \b
    Example:
      sennit instance ls
    """
    with connected(cluster, "controller") as (_, client):
        lines = list_all(client)
    if as_json:
        print_document(lines)
        return ExitCode.INDETERMINATE if lines.unsettled else ExitCode.DONE
    if lines.instances or not lines.unsettled:
        print_table(
            ("instance", "workload", "node", "variant", "state", "pid", "epoch", "restarts"),
            [
                (
                    line.instance_id,
                    line.workload,
                    line.node,
                    line.variant,
                    line.state.value if line.reachable else f"{line.state.value} (node unreachable)",
                    line.pid,
                    line.epoch,
                    line.restarts,
                )
                for line in lines.instances
            ],
        )
    if lines.unsettled:
        print("\nnot settled: their slots are not placed again until it is known what became of them")
        print_table(
            ("decision", "slot", "node"), [(line.decision_id[:16], line.slot, line.node) for line in lines.unsettled]
        )
        return ExitCode.INDETERMINATE
    return ExitCode.DONE


@app.command()
def show(instance: InstanceArgument, cluster: ClusterOption = None, as_json: JsonOption = False) -> None:
    """One instance: where it is, its epoch, its state on the node.

    \b
    Example:
      sennit instance show hostwatch@shed
    """
    with connected(cluster, "controller") as (_, client):
        line = find(list_all(client), instance)
    if as_json:
        print_document(line)
        return
    print_facts([(name, _text(getattr(line, name))) for name in line.__struct_fields__])


@app.command()
def start(instance: InstanceArgument, cluster: ClusterOption = None, as_json: JsonOption = False) -> None:
    """Start a loaded or stopped instance.

    \b
    Example:
      sennit instance start hostwatch@shed
    """
    _order("workload.start", instance, cluster, as_json)


@app.command()
def stop(
    instance: InstanceArgument,
    *,
    grace: Annotated[
        float | None,
        typer.Option("--grace", metavar="SECONDS", min=0, max=60, help="From the polite signal to the kill."),
    ] = None,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Stop an instance: done when no process of it is left.

    \b
    Examples:
      sennit instance stop hostwatch@shed
      sennit instance stop hostwatch@shed --grace 1
    """
    _order("workload.stop", instance, cluster, as_json, grace_ms=None if grace is None else int(grace * 1000))


@app.command()
def unload(instance: InstanceArgument, cluster: ClusterOption = None, as_json: JsonOption = False) -> None:
    """Stop an instance and remove it from its node.

    \b
    Example:
      sennit instance unload hostwatch@shed
    """
    _order("workload.unload", instance, cluster, as_json)


@app.command()
def logs(
    instance: InstanceArgument,
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until it ends, or Ctrl-C.")] = False,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """What an instance wrote: its standard output here, its standard error on standard error.

    \b
    Examples:
      sennit instance logs hostwatch@shed
      sennit instance logs hostwatch@shed --follow
    """
    if follow and as_json:
        raise Failed(ExitCode.USAGE, "usage", "--follow has no end, and --json is one document: use one of them")
    with connected(cluster, "controller") as (found, client):
        target = find(list_all(client), instance).instance_id
        offsets: dict[str, Any] = {}
        while True:
            answer = _again(found, client, target, offsets) if follow else ask(client, "workload.logs", target)
            if answer is None:
                print(f"{target} was unloaded", file=sys.stderr)
                return
            result = plain(answer)
            if as_json:
                print_document({"instance_id": answer.instance_id, "node_id": answer.node_id, **result})
                return
            sys.stdout.write(result["stdout"])
            sys.stdout.flush()
            sys.stderr.write(result["stderr"])
            sys.stderr.flush()
            if not follow or not result["running"]:
                return
            offsets = {"stdout_offset": result["stdout_next"], "stderr_offset": result["stderr_next"]}
            time.sleep(_FOLLOW_S)


def _again(cluster: Cluster, client: Client, target: str, offsets: dict[str, Any]) -> InstanceResult | None:
    """The next piece of a log; None when its instance was unloaded meanwhile. A controller or node that restarts is
    waited for, up to `_OUTAGE_S`.
    """
    from actors.actor import AskFailed
    from messages.system import AskFailure

    patience = time.monotonic() + _OUTAGE_S
    while True:
        try:
            return ask(client, "workload.logs", target, **offsets)
        except AskFailed as failed:
            if offsets and failed.code in _UNLOADED:
                return None
            passing = failed.failure is not AskFailure.REFUSED or failed.code in _PASSING
            if not passing or time.monotonic() > patience:
                raise
        require_up(cluster)
        time.sleep(_FOLLOW_S)


def list_all(client: Client) -> InstanceLines:
    from messages.base import Address
    from messages.placement import ListInstances

    return client.ask(Address("controller/plane"), ListInstances(), _TIMEOUT_S)


def find(lines: InstanceLines, wanted: str) -> InstanceLine:
    """The instance named by its id, the beginning of it (6 or more characters), or `workload@node`."""
    found = [line for line in lines.instances if wanted in (line.instance_id, f"{line.workload}@{line.node}")]
    if not found and len(wanted) >= 6:
        found = [line for line in lines.instances if line.instance_id.startswith(wanted)]
    if len(found) != 1:
        if found:
            raise Failed(
                ExitCode.USAGE, "ambiguous_instance", f"{len(found)} instances answer to {wanted!r}: name one by its "
                f"id, or the beginning of it: {', '.join(line.instance_id for line in found)}",
            )  # fmt: skip
        known = ", ".join(f"{line.workload}@{line.node}" for line in lines.instances) or "none at all"
        raise Failed(
            ExitCode.USAGE, "unknown_instance", f"there is no instance {wanted!r}; there are: {known}",
            "sennit instance ls",
        )  # fmt: skip
    return found[0]


def ask(client: Client, method: str, instance_id: str, **members: Any) -> InstanceResult:
    from messages.base import Address
    from messages.placement import InstanceOrder

    order = InstanceOrder(method=method, instance=instance_id, **members)
    return client.ask(Address("controller/plane"), order, _TIMEOUT_S)


def plain(answer: InstanceResult) -> dict[str, Any]:
    """The node's result as plain data."""
    import msgspec

    result = msgspec.to_builtins(answer.result)
    return result if isinstance(result, dict) else {"result": result}


def _order(method: str, instance: str, cluster: Path | None, as_json: bool, **members: Any) -> None:
    with connected(cluster, "controller") as (found, client):
        target = find(list_all(client), instance)
        answer = ask(client, method, target.instance_id, **members)
    result = plain(answer)
    if as_json:
        print_document({"instance_id": answer.instance_id, "node_id": answer.node_id, "result": result})
        return
    entry = found.by_node_id(answer.node_id)
    details = ", ".join(f"{name} {_text(value)}" for name, value in result.items() if value is not None)
    print(
        f"{method.removeprefix('workload.')}: {target.workload} on {entry.name if entry else answer.node_id}: {details}"
    )


def _text(value: object) -> object:
    return getattr(value, "value", value)
