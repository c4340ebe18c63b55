"""`sennit init DIR`: a new cluster directory, or its directory signed anew (design 11)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from runtime.cli.options import JsonOption, up_command, verbs
from runtime.cli.output import ExitCode, Failed, print_document, print_facts

app = verbs()


@app.command()
def init(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the cluster; made if it is not there.")],
    *,
    node: Annotated[
        list[str] | None,
        typer.Option("--node", metavar="NAME", help="A node; repeat it. Without it: attic, shed, loft."),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="Name of the cluster; without it, that of the folder.")
    ] = None,
    run_dir: Annotated[
        str | None, typer.Option("--run-dir", metavar="PATH", help="Where sockets live, if DIR has a long path.")
    ] = None,
    update: Annotated[
        bool, typer.Option("--update", help="Sign directory.json anew after a change of nodes or endpoints.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Make a cluster directory: settings, keys, directory of processes, policy.

    \b
    Examples:
      sennit init reef
      sennit init reef --node attic --node shed
      sennit init reef --update
    """
    from runtime.cluster import DEFAULT_NODES, init_cluster, update_cluster

    if update:
        if node or name is not None or run_dir is not None:
            raise Failed(ExitCode.USAGE, "usage", "--update takes what cluster.toml says: edit that file instead")
        cluster = update_cluster(directory)
    else:
        cluster = init_cluster(directory, node or DEFAULT_NODES, name=name, run_dir=run_dir)
    command = up_command(cluster.path)
    if as_json:
        print_document(
            {
                "cluster": cluster.name,
                "cluster_id": cluster.cluster_id,
                "path": str(cluster.path),
                "version": cluster.version,
                "nodes": {entry.name: entry.node_id for entry in cluster.node_entries},
                "signer": cluster.signer_key().public_key.hex(),
                "next": command,
            }
        )
        return
    print_facts(
        [
            ("cluster", f"{cluster.name} ({cluster.cluster_id}), directory version {cluster.version}"),
            ("settings", cluster.path / "cluster.toml"),
            ("keys", f"{cluster.keys_dir} (the signer's key signs packages: keep it safe)"),
            ("policy", cluster.policy_file),
            *((f"node {entry.name}", f"{entry.node_id} ({entry.tier})") for entry in cluster.node_entries),
        ]
    )
    print(f"\nNext: {command}")
