"""`sennit place`: a signed package onto the node that fits (design 8, 11)."""

from __future__ import annotations

from typing import Annotated

import typer

from runtime.cli.options import ClusterOption, JsonOption, connected, verbs
from runtime.cli.order import (
    ArgOption,
    AvoidOption,
    EmulatedOption,
    IntervalOption,
    ListenerOption,
    OnceOption,
    PackageArgument,
    PinOption,
    PreferOption,
    order_of,
    report_order,
)
from runtime.cli.output import ExitCode

app = verbs()


@app.command()
def place(
    package: PackageArgument,
    *,
    pin: PinOption = None,
    prefer: PreferOption = None,
    avoid: AvoidOption = None,
    once: OnceOption = False,
    interval: IntervalOption = None,
    listener: ListenerOption = None,
    arg: ArgOption = None,
    allow_emulated: EmulatedOption = False,
    no_start: Annotated[bool, typer.Option("--no-start", help="Load it, do not start it.")] = False,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> ExitCode:
    """Place a signed package on the node that fits.

    \b
    Examples:
      sennit place hostwatch.pkg/ --interval 5
      sennit place hostwatch.pkg/ --pin shed --once
    """
    from messages.base import Address

    order = order_of(
        package, pin=pin, prefer=prefer, avoid=avoid, interval=interval, listener=listener, once=once, args=arg,
        allow_emulated=allow_emulated, start=not no_start,
    )  # fmt: skip
    with connected(cluster, "controller") as (found, client):
        report = client.ask(Address("controller/plane"), order, found.times.place_timeout_s)
    return report_order(report, found, dry_run=False, as_json=as_json)
