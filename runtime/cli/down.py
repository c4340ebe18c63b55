"""`sennit down`: stop the cluster in order, then end what one that was killed has left (promise 6, design 6, 11)."""

from __future__ import annotations

import os
import select
import signal
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runtime.cli.options import ClusterOption, JsonOption, not_up, open_cluster, verbs
from runtime.cli.output import ExitCode, Failed, print_document, print_table

if TYPE_CHECKING:
    from runtime.cluster import Cluster
    from runtime.leftovers import Found

app = verbs()


@app.command()
def down(
    *,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=1, max=600, help="How long to wait for its end.")
    ] = 60.0,
    workloads: Annotated[
        bool, typer.Option("--workloads", help="Also stop the workloads, which go on under their shims otherwise.")
    ] = False,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> ExitCode:
    """Stop the cluster in order: nodes, controller, gate, chain. What a killed cluster left is found and ended too.

    Workloads go on until their lease or orphan_after_s is over, and a node that comes back before adopts them.

    \b
    Examples:
      sennit down
      sennit down --workloads
    """
    from runtime.cluster import cluster_holder

    found = open_cluster(cluster)
    up = cluster_holder(found) is not None
    pid = stop_root(found, timeout) if up else None
    left = clear(found, timeout, workloads=workloads)
    if pid is None and not left.anything:
        raise not_up(found)
    if as_json:
        print_document({"cluster": found.name, "stopped": pid, **left.document()})
    else:
        _tell(found, pid, left)
    return ExitCode.INDETERMINATE if left.stubborn or left.refused else ExitCode.DONE


@dataclass
class Left:
    """What was found of a cluster that is not up. `stubborn`: did not end. `refused`: why sockets stay."""

    ended: list[Found] = field(default_factory=list)
    going_on: list[Found] = field(default_factory=list)
    stubborn: list[Found] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    @property
    def anything(self) -> bool:
        return bool(self.ended or self.going_on or self.stubborn or self.removed or self.refused)

    def document(self) -> dict[str, Any]:
        def rows(found: list[Found]) -> list[dict[str, Any]]:
            return [{"kind": one.kind, "name": one.name, "pid": one.pid, "command": one.command} for one in found]

        return {
            "ended": rows(self.ended),
            "workloads": rows(self.going_on),
            "stubborn": rows(self.stubborn),
            "removed": self.removed,
            "refused": self.refused,
        }


def clear(cluster: Cluster, timeout_s: float, *, workloads: bool) -> Left:
    """End what is left of a cluster that is not up, in order: processes, workloads if wanted, sockets.

    Raises `ClusterFault` (`locked`) when somebody brings it up at the same time.
    """
    from runtime.cluster import lock_cluster
    from runtime.leftovers import end_processes, end_workloads, remove_sockets, workloads_of

    left = Left()
    with lock_cluster(cluster):
        left.ended, left.stubborn = end_processes(cluster, timeout_s)
        if workloads and not left.stubborn:  # a node that lives would start them again
            found, still = end_workloads(cluster)
            left.ended += [one for one in found if one not in still]
            left.stubborn += still
        else:
            left.going_on = workloads_of(cluster)
        if not left.stubborn:
            removed, left.refused = remove_sockets(cluster)
            left.removed = list(map(str, removed))
    left.ended = [one for one in left.ended if one not in left.stubborn]
    return left


def stop_root(cluster: Cluster, timeout_s: float) -> int:
    """Ask the root of this host's cluster to stop and wait for its end. Raises `Failed`."""
    from runtime.cluster import cluster_holder

    pid = cluster_holder(cluster)
    if pid is None:
        raise not_up(cluster)
    try:
        descriptor = os.pidfd_open(pid)
    except (ProcessLookupError, OverflowError, OSError):
        raise _gone(cluster) from None
    try:
        if (
            cluster_holder(cluster) != pid
        ):  # opened first, compared after: this is still the process that holds the lock
            raise _gone(cluster)
        signal.pidfd_send_signal(descriptor, signal.SIGTERM)
        ready, _, _ = select.select([descriptor], [], [], timeout_s)
    finally:
        os.close(descriptor)
    if not ready:
        raise Failed(
            ExitCode.INDETERMINATE,
            "still_stopping",
            f"process {pid} was asked to stop {cluster.name} and is still there after {timeout_s:g} s",
            f"sennit status --cluster {cluster.path}; if it hangs: kill -9 {pid}, then sennit down again",
        )
    return pid


def _tell(cluster: Cluster, pid: int | None, left: Left) -> None:
    if pid is not None:
        print(f"{cluster.name} is down (process {pid} has ended)")
    else:
        print(f"{cluster.name} was not up, but something of it was left")
    rows = [("ended", one) for one in left.ended] + [("does not end", one) for one in left.stubborn]
    rows += [("goes on", one) for one in left.going_on]
    if rows:
        print_table(("what", "kind", "name", "pid"), [(what, one.kind, one.name, one.pid) for what, one in rows])
    for path in left.removed:
        print(f"removed {path}")
    for why in left.refused:
        print(f"! {why}")
    if left.stubborn:
        pids = " ".join(str(one.pid) for one in left.stubborn)
        print(f"! still there after a SIGKILL: look at them with ps -o pid,stat,wchan,args -p {pids.replace(' ', ',')}")
    if left.going_on:
        print("what goes on ends by its own lease or silence; to end it now: " + _end_command(cluster))


def _end_command(cluster: Cluster) -> str:
    return f"sennit down --workloads --cluster {cluster.path}"


def _gone(cluster: Cluster) -> Failed:
    return Failed(
        ExitCode.DIFFERS, "changed", f"{cluster.name} went down or was started anew just now", "sennit status"
    )
