"""`sennit tree`: supervisors and their children, as they are now (design 6, 11)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runtime.cli.options import ClusterOption, JsonOption, connected, edges_started, open_cluster, verbs
from runtime.cli.output import ExitCode, print_document, print_table, style_of

if TYPE_CHECKING:
    from rich.text import Text

    from messages.supervision import ChildView, SupervisorView
    from runtime.client import Client
    from runtime.cluster import Cluster

app = verbs()
_TIMEOUT_S = 3.0


@app.command()
def tree(
    *,
    lint: Annotated[
        bool, typer.Option("--lint", help="What it can cost to restart and to stop, told without starting anything.")
    ] = False,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> ExitCode:
    """The tree of supervisors: processes, and the actors inside each. With --lint, ends with 1 when there are findings.

    \b
    Examples:
      sennit tree
      sennit tree --lint
    """
    if lint:
        return _lint(open_cluster(cluster), as_json)
    from messages.base import Address
    from messages.supervision import ChildState, ShowChildren

    with connected(cluster) as (found, client):
        view = client.ask(Address("root/supervisor"), ShowChildren(), _TIMEOUT_S)
        edges = (child for child in edges_started(found, client).values() if child.state is ChildState.RUNNING)
        inside = {child.name: _inside(client, child.name) for child in (*view.children, *edges)}
    if as_json:
        print_document({"cluster": found.name, "root": view, "processes": inside})
    else:
        show_tree(found.name, view, inside)
    return ExitCode.DONE


def _lint(cluster: Cluster, as_json: bool) -> ExitCode:
    from messages.supervision import Spent
    from runtime.bounds import bounds_of

    bounds = bounds_of(cluster)
    findings = [f"{one.name}: {text}" for one in bounds for text in one.findings]
    if as_json:
        rows = [asdict(one) for one in bounds]
        whole = bounds[0].shutdown_s
        print_document({"cluster": cluster.name, "shutdown_s": whole, "findings": findings, "supervisors": rows})
        return ExitCode.DIFFERS if findings else ExitCode.DONE
    print_table(
        ("supervisor", "lives at most", "gives up after", "and then", "stops within"),
        [
            (
                "  " * one.depth + one.name,
                one.lives,
                _time(one.gives_up_s),
                "parks the child" if one.spent is Spent.PARK else "fails",
                f"{one.shutdown_s:g} s",
            )
            for one in bounds
        ],
    )
    print("\nAt worst: lives of one child until then when each fails at once, all stops slow and every kill needed.")
    print("\n".join(f"! {finding}" for finding in findings) or "nothing found")
    return ExitCode.DIFFERS if findings else ExitCode.DONE


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "never"
    return f"{seconds:.1f} s" if seconds else "the first failure"


def show_tree(cluster: str, view: SupervisorView, inside: dict[str, SupervisorView | str] | None = None) -> None:
    """Print a tree on standard output, with colours on a terminal."""
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    for text in styled(lines(cluster, view, inside)):
        console.print(text)


def styled(told: Iterable[tuple[str, str]]) -> list[Text]:
    """Lines of a tree with the colours of their states."""
    from rich.text import Text

    return [Text(text, style=style_of(state)) for text, state in told]


def lines(
    cluster: str, view: SupervisorView, inside: dict[str, SupervisorView | str] | None = None
) -> Iterator[tuple[str, str]]:
    """The lines of a tree, each with the state that colours it."""
    closing = f", closing: {view.closing}" if view.closing else ""
    yield f"{cluster} ({view.strategy.value}{closing})", ""
    yield from _branches(view, inside or {}, "", None)


def _branches(
    view: SupervisorView, inside: dict[str, SupervisorView | str], indent: str, process: str | None
) -> Iterator[tuple[str, str]]:
    """The children of the supervisor of `process`, None: of the root's. Actors may be called like processes."""
    from runtime.cluster.names import edges_of

    width = max((len(child.name) for child in view.children), default=0)
    for position, child in enumerate(view.children):
        last = position == len(view.children) - 1
        yield f"{indent}{'└─' if last else '├─'} {child.name.ljust(width)}  {_child(child)}", _colour(child)
        is_process = process is None or child.name == edges_of(process)
        under = inside.get(child.name) if is_process else None
        below = indent + ("   " if last else "│  ")
        if isinstance(under, str):
            yield f"{below}└─ no answer: {under}", "unreachable"
        elif under is not None:
            yield from _branches(under, inside, below, child.name)


def _colour(child: ChildView) -> str:
    return (child.verdict or child.state).value


def _child(child: ChildView) -> str:
    parts = [child.state.value]
    if child.verdict is not None:
        parts.append(child.verdict.value)
    if child.restarts:
        parts.append(f"{child.restarts} restart{'s' if child.restarts != 1 else ''}")
    if child.last_exit:
        parts.append(f"last exit {child.last_exit}")
    if child.next_attempt_s is not None:
        parts.append(f"next start in {child.next_attempt_s:.1f} s")
    return ", ".join(parts)


def _inside(client: Client, process: str) -> Any:
    from actors.actor import AskFailed
    from messages.base import Address
    from messages.supervision import ShowChildren

    try:
        return client.ask(Address(f"{process}/supervisor"), ShowChildren(), _TIMEOUT_S)
    except AskFailed as failed:
        return failed.failure.value
