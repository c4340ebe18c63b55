"""`sennit edge`: join the ports of placed workloads, and see what flows between them (design 7, 11)."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from runtime.cli.edge_view import draw_edge, draw_edges, print_edge, print_edges, sentence
from runtime.cli.options import ClusterOption, JsonOption, connected, require_up, verbs
from runtime.cli.output import ExitCode, Failed, print_document
from runtime.cli.screen import is_screen, watch
from runtime.cli.sizes import parse_size

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console, RenderableType

    from messages.base import Address
    from messages.edge_plan import EdgeLine, EdgeLines
    from runtime.client import Client
    from runtime.cluster import Cluster

app = verbs()
_LOOK_S = 5.0
_ORDER_S = 60.0

EdgeArgument = Annotated[
    list[str],
    typer.Argument(metavar="EDGE", help="SOURCE TARGET, the same with -> in quotes, its id, or its one port."),
]
WatchOption = Annotated[bool, typer.Option("--watch", "-w", help="Look again and again; q or Ctrl-C ends it.")]
IntervalOption = Annotated[
    float, typer.Option("--interval", "-i", metavar="SECONDS", min=0.2, max=60, help="Time between two looks.")
]


@app.callback()
def edge() -> None:
    """Edges carry objects from a port of one workload to a port of another.

    What states, remarks and faults mean, and what to do: docs/operations.md.

    \b
    Examples:
      sennit edge add hostwatch.out trend.in
      sennit edge ls --watch
      sennit edge show hostwatch.out trend.in
      sennit edge stop hostwatch.out trend.in
    """


@app.command()
def add(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="WORKLOAD.PORT or WORKLOAD@NODE.PORT that sends.")],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="WORKLOAD.PORT or WORKLOAD@NODE.PORT that receives.")],
    *,
    max_object: Annotated[
        int | None,
        typer.Option(
            "--max-object",
            metavar="SIZE",
            parser=parse_size,
            help="Largest object, such as 1MiB; 64KiB if not said, at most 256MiB.",
        ),
    ] = None,
    ring: Annotated[
        int | None,
        typer.Option(
            "--ring",
            metavar="SIZE",
            parser=parse_size,
            help="Memory at each end, two objects at least; eight if not said.",
        ),
    ] = None,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Join two ports for good. Bytes flow whenever both workloads run; until then the edge waits.

    \b
    Examples:
      sennit edge add hostwatch.out trend.in
      sennit edge add source@attic.out sink@loft.in --max-object 1MiB --ring 8MiB
    """
    from messages.edge_plan import AddEdge

    limit = {} if max_object is None else {"max_extent_bytes": max_object}
    with connected(cluster, "controller") as (_, client), _refusals_told():
        line = client.ask(_planner(), AddEdge(source=source, target=target, ring_bytes=ring, **limit), _ORDER_S).edge
    if as_json:
        print_document(line)
        return
    print(sentence(line))
    print(f"see it: sennit edge show {line.source} {line.target} --watch")


@app.command("ls")
def list_edges(
    *, watching: WatchOption = False, interval: IntervalOption = 1.0, cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Every edge, what flows, and each node's ring memory.

    In a pipe a row has everything; on a terminal, as many columns as fit.

    \b
    Examples:
      sennit edge ls
      sennit edge ls --watch
    """
    _show(None, watching, interval, cluster, as_json)


@app.command()
def show(
    edge: EdgeArgument,
    *,
    watching: WatchOption = False,
    interval: IntervalOption = 1.0,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """One edge whole: both ends, their rings, the memory of both nodes.

    \b
    Examples:
      sennit edge show hostwatch.out trend.in
      sennit edge show 'hostwatch.out->trend.in' --watch
    """
    _show(_asked(edge), watching, interval, cluster, as_json)


@app.command()
def stop(edge: EdgeArgument, cluster: ClusterOption = None, as_json: JsonOption = False) -> None:
    """End an edge and forget it: done when both ends are stopped. The workloads go on.

    \b
    Example:
      sennit edge stop hostwatch.out trend.in
    """
    from messages.edge_plan import RemoveEdge

    with connected(cluster, "controller") as (_, client), _refusals_told():
        line = find(list_all(client), _asked(edge))
        client.ask(_planner(), RemoveEdge(edge=line.name), _ORDER_S)
    if as_json:
        print_document({"stopped": line.name, "epoch": line.run_id, "lives": line.lives})
        return
    print(f"stopped: {line.name}")


def list_all(client: Client) -> EdgeLines:
    from messages.edge_plan import ListEdges

    return client.ask(_planner(), ListEdges(), _LOOK_S)


def find(lines: EdgeLines, wanted: str) -> EdgeLine:
    """The edge named by its name, its id, or by one of its ports where that names one. Raises `Failed` (usage)."""
    found = [
        line
        for line in lines.edges
        if wanted in (_squeezed(line.name), f"{line.source}->{line.target}", str(line.edge_id))
    ]
    found = found or [line for line in lines.edges if wanted in (line.source, line.target)]
    if len(found) == 1:
        return found[0]
    if found:
        raise Failed(
            ExitCode.USAGE, "ambiguous", f"{len(found)} edges answer to {wanted!r}: "
            f"{', '.join(line.name for line in found)}", f"sennit edge show {found[0].source} {found[0].target}",
        )  # fmt: skip
    known = ", ".join(line.name for line in lines.edges) or "none at all"
    quoted = "; a shell takes > for itself: leave it out, or quote it" if wanted.endswith("-") else ""
    raise Failed(
        ExitCode.USAGE, "unknown", f"there is no edge {wanted!r}{quoted}; there are: {known}", "sennit edge ls"
    )


def _show(wanted: str | None, watching: bool, interval_s: float, given: Path | None, as_json: bool) -> None:
    """One edge, or with None all of them; once, or again and again."""
    if watching and as_json:
        raise Failed(ExitCode.USAGE, "usage", "--watch has no end, and --json is one document: use one of them")
    with connected(given, "controller") as (found, client):
        if watching:
            _watch(found, client, wanted, interval_s)
            return
        lines = list_all(client)
    line = None if wanted is None else find(lines, wanted)
    if as_json:
        nodes = [] if line is None else [node for node in lines.nodes if node.process in _processes(line)]
        print_document(lines if line is None else {"edge": line, "nodes": nodes})
    elif line is None:
        print_edges(lines)
    else:
        print_edge(line, lines.nodes)


def _watch(found: Cluster, client: Client, wanted: str | None, interval_s: float) -> None:
    """Redraw a terminal, or print a block for each look into a pipe. Ends when the one edge is gone."""
    lines = list_all(client)
    name = None if wanted is None else find(lines, wanted).name
    silence = ""
    gone = False

    def look() -> None:
        nonlocal lines, silence, gone
        from actors.actor import AskFailed

        try:
            lines, silence = list_all(client), ""
        except AskFailed as failed:
            require_up(found)
            silence = f"no answer: {failed}"
        gone = name is not None and all(line.name != name for line in lines.edges)

    def draw(console: Console) -> RenderableType | None:
        look()
        if gone:
            return None
        if name is None:
            return draw_edges(found.name, lines, silence, console)
        return draw_edge(found.name, find(lines, _squeezed(name)), lines.nodes, silence, console)

    if is_screen():
        watch(draw, interval_s)
    else:
        try:
            while not gone:
                if silence:
                    print(silence)
                elif name is None:
                    print_edges(lines)
                else:
                    print_edge(find(lines, _squeezed(name)), lines.nodes)
                print(flush=True)
                time.sleep(interval_s)
                look()
        except KeyboardInterrupt:
            return
    if gone:
        print(f"{name} was stopped", file=sys.stderr)


@contextmanager
def _refusals_told() -> Iterator[None]:
    """What the planner refuses, with the command that helps; other refusals are told as everywhere."""
    from actors.actor import AskFailed
    from messages.system import AskFailure

    try:
        yield
    except AskFailed as failed:
        if failed.failure is not AskFailure.REFUSED or failed.code not in _REFUSALS:
            raise
        exit_code, remedy = _REFUSALS[failed.code]
        raise Failed(exit_code, failed.code, failed.reason, remedy) from None


_REFUSALS = {
    "invalid": (ExitCode.USAGE, "sennit edge add --help"),
    "unknown": (ExitCode.USAGE, "sennit instance ls, sennit edge ls"),
    "ambiguous": (ExitCode.USAGE, "name the node, WORKLOAD@NODE.PORT; sennit instance ls shows where they run"),
    "stopping": (ExitCode.DIFFERS, "sennit edge ls --watch"),
    "exists": (ExitCode.REFUSED, "sennit edge ls, then sennit edge stop SOURCE TARGET to make it anew"),
}


def _asked(words: list[str]) -> str:
    """`a.out b.in`, `a.out->b.in` and `a.out -> b.in` are the same edge."""
    bare = len(words) == 2 and not any("->" in word for word in words)
    return _squeezed(("->" if bare else "").join(words))


def _squeezed(name: str) -> str:
    return "".join(name.split())


def _processes(line: EdgeLine) -> set[str]:
    from runtime.cluster.names import edges_of

    return {edges_of(node) for node in (line.producer_node, line.consumer_node) if node is not None}


def _planner() -> Address:
    from messages.base import Address

    return Address("controller/edges")
