"""`sennit down`: stop the cluster in order and wait until it has gone (design 6, 11)."""

from __future__ import annotations

import os
import select
import signal
from typing import TYPE_CHECKING, Annotated

import typer

from runtime.cli.options import ClusterOption, JsonOption, not_up, open_cluster, verbs
from runtime.cli.output import ExitCode, Failed, print_document

if TYPE_CHECKING:
    from runtime.cluster import Cluster

app = verbs()


@app.command()
def down(
    *,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=1, max=600, help="How long to wait for its end.")
    ] = 60.0,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Stop the cluster in order: nodes, controller, gate, chain. Workloads with a lease end with it.

    \b
    Examples:
      sennit down
      sennit down --timeout 10
    """
    found = open_cluster(cluster)
    pid = stop_root(found, timeout)
    if as_json:
        print_document({"cluster": found.name, "stopped": pid})
    else:
        print(f"{found.name} is down (process {pid} has ended)")


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
            f"sennit status --cluster {cluster.path}, or kill -9 {pid} if it hangs",
        )
    return pid


def _gone(cluster: Cluster) -> Failed:
    return Failed(
        ExitCode.DIFFERS, "changed", f"{cluster.name} went down or was started anew just now", "sennit status"
    )
