"""`sennit actor`: look into running actors (design 3, 11)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from runtime.cli.options import ClusterOption, JsonOption, connected, edges_started, lasting, process_of, verbs
from runtime.cli.output import ExitCode, Failed, print_document, print_facts, print_table

if TYPE_CHECKING:
    from messages.base import Address, Request
    from runtime.client import Client

app = verbs()
_TIMEOUT_S = 5.0

A = TypeVar("A")

AddressArgument = Annotated[str, typer.Argument(metavar="ADDRESS", help="For example controller/plane.")]


@app.callback()
def actor() -> None:
    """Look into running actors.

    \b
    Examples:
      sennit actor ls controller
      sennit actor state controller/plane
      sennit actor trace chain/chain --count 10
    """


@app.command("ls")
def list_actors(
    process: Annotated[str | None, typer.Argument(metavar="PROCESS", help="One process; without it, all.")] = None,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> ExitCode:
    """Every actor: mailbox length, messages taken. Ends with 1 when a process does not answer.

    \b
    Examples:
      sennit actor ls
      sennit actor ls shed
    """
    from actors.actor import AskFailed
    from messages.base import Address, NodeName
    from messages.system import ActorRow, ListActors

    rows: list[ActorRow] = []
    silent: dict[str, str] = {}
    with connected(cluster) as (found, client):
        if process:
            names = [process_of(found, process).name]
        else:
            names = [*(peer.name for peer in lasting(found)), *map(NodeName, edges_started(found, client))]
        for name in names:
            try:
                rows += client.ask(Address(f"{name}/supervisor"), ListActors(), _TIMEOUT_S).actors
            except AskFailed as failed:
                silent[name] = str(failed)
    if as_json:
        print_document({"actors": rows, "silent": silent})
    else:
        print_table(
            ("actor", "kind", "mailbox", "received", "suspended"),
            [(row.address, row.kind, row.mailbox, row.received, row.suspended) for row in rows],
        )
        for silent_name, why in silent.items():
            print(f"{silent_name} does not answer: {why}")
    return ExitCode.DIFFERS if silent else ExitCode.DONE


@app.command()
def state(address: AddressArgument, cluster: ClusterOption = None, as_json: JsonOption = False) -> None:
    """An actor's own account of its state, and its counters.

    \b
    Example:
      sennit actor state controller/plane
    """
    from messages.system import GetState, GetStatistics

    target = _address(address)
    with connected(cluster, target.partition("/")[0]) as (_, client):
        report = _ask(client, target, GetState(), _TIMEOUT_S)
        counters = _ask(client, target, GetStatistics(), _TIMEOUT_S)
    if as_json:
        print_document({"address": report.address, "state": report.state, "statistics": counters})
        return
    from pprint import pformat

    names = [name for name in counters.__struct_fields__ if name != "address"]
    print_facts([(name.replace("_", " "), getattr(counters, name)) for name in names])
    print(f"\n{pformat(report.state, width=100, sort_dicts=False)}")


@app.command()
def trace(
    address: AddressArgument,
    *,
    count: Annotated[int, typer.Option("--count", "-n", metavar="N", min=1, max=1000, help="Messages to see.")] = 10,
    seconds: Annotated[
        float, typer.Option("--seconds", metavar="SECONDS", min=0.1, max=300.0, help="Stop waiting after this time.")
    ] = 5.0,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """The next messages that an actor takes.

    \b
    Example:
      sennit actor trace controller/plane --count 5 --seconds 10
    """
    from messages.system import Trace

    target = _address(address)
    with connected(cluster, target.partition("/")[0]) as (_, client):
        report = _ask(client, target, Trace(count=count, seconds=seconds), seconds + _TIMEOUT_S)
    if as_json:
        print_document(report)
        return
    print_table(
        ("at", "from", "message", "took"),
        [(f"{line.at_s:.3f}", line.sender, line.message, f"{line.handled_us} us") for line in report.lines],
    )


def _ask(client: Client, target: Address, request: Request[A], timeout_s: float) -> A:
    from actors.actor import AskFailed

    try:
        return client.ask(target, request, timeout_s)
    except AskFailed as failed:
        if failed.code != "no_such_actor":
            raise
        listed = f"sennit actor ls {target.partition('/')[0]}"
        raise Failed(ExitCode.USAGE, "no_such_actor", f"there is no actor {target} now", listed) from None


def _address(text: str) -> Address:
    from messages.base import Address

    if "/" not in text:
        raise Failed(
            ExitCode.USAGE, "usage", f"{text!r} is not an address: PROCESS/ACTOR, for example {text}/supervisor",
            "sennit actor ls",
        )  # fmt: skip
    return Address(text)
