"""`sennit up`: start the cluster and show its tree (design 6, 11)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from runtime.cli.options import ClusterOption, JsonOption, open_cluster, verbs
from runtime.cli.output import ExitCode

if TYPE_CHECKING:
    from runtime.cluster import Cluster

app = verbs()


@app.command()
def up(
    *,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Return when everything runs; stop with sennit down.")
    ] = False,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> ExitCode:
    """Start the cluster and show its tree of processes until Ctrl-C, which stops it in order.

    \b
    Examples:
      sennit up --cluster reef
      sennit up --cluster reef --detach
    """
    found = open_cluster(cluster)
    del detach, as_json
    return _foreground(found)


def _foreground(cluster: Cluster) -> ExitCode:
    raise NotImplementedError(cluster)
