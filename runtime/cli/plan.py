"""`sennit plan`: the decision of a placement, and nothing else (design 8, 11)."""

from __future__ import annotations

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
def plan(
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
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> ExitCode:
    """Where would it go? The decision is made and written on the chain; nothing is started.

    \b
    Examples:
      sennit plan hostwatch.pkg/
      sennit plan hostwatch.pkg/ --avoid attic --json
    """
    from messages.base import Address

    order = order_of(
        package, pin=pin, prefer=prefer, avoid=avoid, interval=interval, listener=listener, once=once, args=arg,
        allow_emulated=allow_emulated, dry_run=True,
    )  # fmt: skip
    with connected(cluster, "controller") as (found, client):
        report = client.ask(Address("controller/plane"), order, found.times.place_timeout_s)
    return report_order(report, found, dry_run=True, as_json=as_json)
