"""What verbs share: their options, the Typer behind each, and the cluster they speak of."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from runtime.cli.output import ExitCode, Failed

if TYPE_CHECKING:
    from messages.supervision import ChildView
    from runtime.client import Client
    from runtime.cluster import Cluster, ProcessEntry

CLUSTER_VARIABLE = "SENNIT_CLUSTER"
EDGES_PATIENCE_S = 2.0

ClusterOption = Annotated[
    Path | None,
    typer.Option(
        "--cluster",
        metavar="DIR",
        envvar=CLUSTER_VARIABLE,
        show_default=False,
        help="Cluster directory; without it, the current folder if it holds a cluster.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
TimeoutOption = Annotated[
    float, typer.Option("--timeout", metavar="SECONDS", min=0.1, max=3600.0, help="How long to wait for the answer.")
]


def verbs() -> typer.Typer:
    """The Typer of one verb, or of one group of verbs."""
    return typer.Typer(
        rich_markup_mode=None,
        add_completion=False,
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def cluster_path(given: Path | None) -> Path:
    """The cluster directory a verb is about. Raises `Failed` (usage) when none is named."""
    if given is not None:
        return given
    here = Path.cwd()
    if (here / "cluster.toml").is_file():
        return here
    raise Failed(
        ExitCode.USAGE,
        "no_cluster_named",
        f"which cluster? {here} holds none, and neither --cluster nor {CLUSTER_VARIABLE} names one",
        f"sennit init DIR, then sennit up --cluster DIR or export {CLUSTER_VARIABLE}=DIR",
    )


def process_of(cluster: Cluster, name: str) -> ProcessEntry:
    """The process called `name`. Raises `Failed` (usage) naming those that can be asked."""
    entry = cluster.processes.get(name)
    if entry is None or entry.control is None:
        known = ", ".join(one.name for one in cluster.processes.values() if one.control is not None)
        raise Failed(
            ExitCode.USAGE, "unknown_process", f"cluster {cluster.name} has no process {name!r}; it has {known}",
            "sennit actor ls",
        )  # fmt: skip
    return entry


def open_cluster(given: Path | None) -> Cluster:
    """Read and verify the cluster directory."""
    from runtime.cluster import load_cluster

    return load_cluster(cluster_path(given))


@contextmanager
def connected(given: Path | None, *processes: str) -> Iterator[tuple[Cluster, Client]]:
    """The cluster and a client that dials `processes`, or all of them. Raises `Failed` (6) when it is not up."""
    from runtime.client import Client

    cluster = open_cluster(given)
    for name in processes:
        process_of(cluster, name)
    require_up(cluster)
    with Client.connect(cluster, processes or None) as client:
        yield cluster, client


def node_names(cluster: Cluster) -> dict[str, str]:
    """Node id to configured name."""
    return {entry.node_id: entry.name for entry in cluster.node_entries}


def lasting(cluster: Cluster) -> list[ProcessEntry]:
    """The processes that run as long as the cluster does; a node starts its edges process only when it has edges."""
    from runtime.cluster import Role

    return [entry for entry in cluster.dials(Role.OPERATOR.value) if entry.role is not Role.EDGES]


def edges_started(cluster: Cluster, client: Client) -> dict[str, ChildView]:
    """The edges processes that were started, by name, as the supervisors of their nodes see them."""
    from actors.actor import AskFailed
    from messages.base import Address
    from messages.supervision import ChildState, ShowChildren
    from runtime.cluster.names import edges_of

    found: dict[str, ChildView] = {}
    for node in cluster.node_entries:
        try:
            children = client.ask(Address(f"{node.name}/supervisor"), ShowChildren(), EDGES_PATIENCE_S).children
        except AskFailed:  # a node that does not answer is told as that
            continue
        wanted = edges_of(node.name)
        found.update({one.name: one for one in children if one.name == wanted and one.state is not ChildState.STOPPED})
    return found


def require_up(cluster: Cluster) -> None:
    """Raises `Failed` (6) where a cluster of this host has no root."""
    from runtime.cluster import cluster_holder

    local = any(entry.control is not None and entry.control.startswith("ipc") for entry in cluster.processes.values())
    if local and cluster_holder(cluster) is None:
        raise not_up(cluster)


def not_up(cluster: Cluster) -> Failed:
    return Failed(
        ExitCode.NO_CLUSTER,
        "not_up",
        f"cluster {cluster.name} in {cluster.path} is not up: nobody answers",
        up_command(cluster.path),
    )


def up_command(path: Path) -> str:
    """The command that starts this cluster, as short as the environment allows."""
    named = os.environ.get(CLUSTER_VARIABLE)
    if named is not None and Path(named).resolve() == path.resolve():
        return "sennit up"
    return f"sennit up --cluster {path}"
