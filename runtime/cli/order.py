"""`place` and `plan` share what an order is and how its report ends the verb (design 8, 11)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from runtime.cli.options import node_names
from runtime.cli.output import ExitCode, Failed, print_document, print_table

if TYPE_CHECKING:
    from messages.control import RunMode
    from messages.placement import PlaceOrder, PlaceReport
    from runtime.cluster import Cluster

PackageArgument = Annotated[Path, typer.Argument(metavar="PACKAGE", help="Signed package directory.")]
PinOption = Annotated[
    str | None, typer.Option("--pin", metavar="NODE", help="This node (name or id) or none.", show_default=False)
]
PreferOption = Annotated[list[str] | None, typer.Option("--prefer", metavar="NODE", help="Prefer a node; repeat it.")]
AvoidOption = Annotated[list[str] | None, typer.Option("--avoid", metavar="NODE", help="Avoid a node; repeat it.")]
OnceOption = Annotated[bool, typer.Option("--once", help="Run to its end (the default mode).")]
IntervalOption = Annotated[
    int | None, typer.Option("--interval", metavar="SECONDS", min=1, max=3600, help="Run again and again.")
]
ListenerOption = Annotated[
    int | None, typer.Option("--listener", metavar="PORT", min=1, max=65_535, help="Wait for the feed on a UDP port.")
]
ArgOption = Annotated[
    list[str] | None, typer.Option("--arg", metavar="ARG", help="An argument of the workload; repeat it.")
]
EmulatedOption = Annotated[bool, typer.Option("--allow-emulated", help="Let it run emulated where nothing better is.")]


def order_of(
    package: Path,
    *,
    pin: str | None,
    prefer: list[str] | None,
    avoid: list[str] | None,
    interval: int | None,
    listener: int | None,
    once: bool,
    args: list[str] | None,
    allow_emulated: bool,
    start: bool = True,
    dry_run: bool = False,
) -> PlaceOrder:
    """The order of one command line. Raises `Failed` (usage) for two modes, or a package that is no directory."""
    from messages.control import CtlConfig, Interval, Listener, Once
    from messages.placement import PlaceOrder

    if sum((once, interval is not None, listener is not None)) > 1:
        raise Failed(ExitCode.USAGE, "usage", "--once, --interval and --listener exclude each other")
    if not package.is_dir():
        raise Failed(
            ExitCode.USAGE, "no_package", f"{package} is not a package directory", "sennit package pack SOURCE PACKAGE"
        )
    mode: RunMode = Once()
    if interval is not None:
        mode = Interval(secs=interval)
    elif listener is not None:
        mode = Listener()
    port = {"csi_port": listener} if listener is not None else {}
    return PlaceOrder(
        package_dir=str(package.resolve()),
        config=CtlConfig(mode=mode, args=args or [], **port),
        pin=pin,
        prefer=prefer or [],
        avoid=avoid or [],
        allow_emulated=allow_emulated,
        start=start,
        dry_run=dry_run,
    )


def report_order(report: PlaceReport, cluster: Cluster, *, dry_run: bool, as_json: bool) -> ExitCode:
    """Print a report; returns how the verb ends."""
    exit_code = exit_code_of(report, dry_run=dry_run)
    names = node_names(cluster)
    if as_json:
        print_document(
            {
                "decision_id": report.decision_id,
                "dry_run": dry_run,
                "exit": int(exit_code),
                "placed": report.placed,
                "attempts": report.attempts,
                "decision": report.decision,
                "hardware_bound": report.hardware_bound,
                "names": names,
                "explain": report.explain,
            }
        )
        return exit_code
    _print_candidates(report, names)
    if report.attempts and (report.placed is None or len(report.attempts) > 1):
        print()
        print_table(
            ("attempt", "variant", "outcome", "code", "reason"),
            [
                (names.get(tried.node_id, tried.node_id), tried.variant, tried.outcome.value, tried.code, tried.reason)
                for tried in report.attempts
            ],
        )
    print()
    print(_sentence(report, names, dry_run))
    print(f"why: sennit explain {report.decision_id[:16]}")
    return exit_code


def exit_code_of(report: PlaceReport, *, dry_run: bool) -> ExitCode:
    """0 placed (or placeable), 2 no node fits, 3 unknown, 4 refused, 6 nobody could be reached."""
    from messages.placement import Outcome

    if report.placed is not None or (dry_run and report.decision.placement is not None):
        return ExitCode.DONE
    outcomes = {attempt.outcome for attempt in report.attempts}
    if Outcome.INDETERMINATE in outcomes:
        return ExitCode.INDETERMINATE
    if outcomes & {Outcome.REFUSED, Outcome.GATE_DENIED}:
        return ExitCode.REFUSED
    if Outcome.UNREACHABLE in outcomes:
        return ExitCode.NO_CLUSTER
    return ExitCode.UNPLACEABLE


def _print_candidates(report: PlaceReport, names: Mapping[str, str]) -> None:
    rows: list[tuple[object, ...]] = []
    chosen = report.decision.placement.node_id if report.decision.placement is not None else None
    for rank, candidate in enumerate(report.decision.candidates, start=1):
        name = names.get(candidate.node_id, candidate.node_id)
        if candidate.eligible and candidate.score is not None:
            flags = [flag.value for flag in candidate.flags]
            remarks = ", ".join(["chosen", *flags] if candidate.node_id == chosen else flags)
            rows.append((rank, name, candidate.variant, f"{candidate.score.total:.2f}", remarks))
        else:
            reasons = "; ".join(f"{no.constraint.value}: {no.detail}" for no in candidate.rejections)
            rows.append(("-", name, None, None, reasons))
    print_table(("rank", "node", "variant", "score", "remarks"), rows)


def _sentence(report: PlaceReport, names: Mapping[str, str], dry_run: bool) -> str:
    if report.placed is not None:
        placed = report.placed
        where = f"{names.get(placed.node_id, placed.node_id)} ({placed.node_id})"
        return f"placed {placed.workload} on {where} as {placed.instance_id}, epoch {placed.epoch}"
    chosen = report.decision.placement
    if dry_run and chosen is not None:
        where = f"{names.get(chosen.node_id, chosen.node_id)} ({chosen.node_id})"
        return f"{report.decision.name} would go to {where}; nothing was started"
    if not report.attempts:
        return f"no node fits {report.decision.name}: each says why above"
    last = report.attempts[-1]
    return f"{report.decision.name} was not placed: {last.outcome.value} ({last.code or '-'}: {last.reason or '-'})"
