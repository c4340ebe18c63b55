"""`sennit doctor`: what this machine and a cluster directory need, and how to get it (design 11)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from runtime.cli.options import ClusterOption, JsonOption, cluster_path, open_cluster, verbs
from runtime.cli.output import ExitCode, print_document

if TYPE_CHECKING:
    from runtime.doctor.finding import Finding, Subject

app = verbs()
_STYLES = {"ok": "green", "note": "yellow", "attention": "bold red"}


@app.command()
def doctor(
    *,
    unit: Annotated[
        str | None, typer.Option("--unit", metavar="NODE", help="Print the systemd unit of a node on its own host.")
    ] = None,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> ExitCode:
    """Check kernel, limits, clocks, disk, versions, access and leftovers. Ends with 1 when something needs attention.

    Without a cluster directory only the machine is looked at.

    \b
    Examples:
      sennit doctor
      sennit doctor --cluster reef
      sennit doctor --unit shed > sennit-shed.service
    """
    if unit is not None:
        return _unit(cluster, unit, as_json)
    from runtime.doctor.checks import examine
    from runtime.doctor.finding import Level

    subject, faults = _subject(cluster)
    findings = [*faults, *examine(subject)]
    bad = sum(finding.level is Level.ATTENTION for _, finding in findings)
    if as_json:
        rows = [
            {"group": group, "check": one.check, "level": one.level, "text": one.text, "remedy": one.remedy or None}
            for group, one in findings
        ]
        named = None if subject.folder is None else str(subject.folder)
        print_document({"cluster": named, "well": not bad, "findings": rows})
    else:
        _tell(findings)
        if subject.folder is None:
            print("\nno cluster directory was looked at: sennit doctor --cluster DIR")
        print(f"\n{bad} of {len(findings)} need attention" if bad else "\nnothing needs attention")
    return ExitCode.DIFFERS if bad else ExitCode.DONE


def _subject(given: Path | None) -> tuple[Subject, list[tuple[str, Finding]]]:
    """What to look at. A directory that cannot be read as a cluster is a finding, and what can be is checked."""
    from runtime.cluster import ClusterFault, load_cluster
    from runtime.doctor.finding import Subject, attention, ok

    if given is None and not (Path.cwd() / "cluster.toml").is_file():
        return Subject(), []
    folder = cluster_path(given).absolute()
    try:
        cluster = load_cluster(folder)
    except ClusterFault as fault:
        found = attention(
            "cluster", f"{fault.code.value}: {fault.text}", f"sennit init {folder} --update, or another --cluster"
        )
        return Subject(folder=folder), [("cluster", found)]
    return Subject(folder=folder, cluster=cluster), [("cluster", ok("cluster", f"{cluster.name} in {folder}"))]


def _unit(given: Path | None, node: str, as_json: bool) -> ExitCode:
    from runtime.doctor.unit import unit_of

    cluster = open_cluster(given)
    text = unit_of(cluster, node)
    if as_json:
        print_document({"cluster": cluster.name, "node": node, "unit": text})
    else:
        print(text, end="")
    return ExitCode.DONE


def _tell(findings: list[tuple[str, Finding]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    findings = sorted(findings, key=lambda one: list(_STYLES).index(one[1].level.value))  # what matters is read last
    width = max(len(finding.check) for _, finding in findings)
    if not sys.stdout.isatty():
        for _, one in findings:
            print(f"{one.level.value.ljust(9)}  {one.check.ljust(width)}  {one.text}")
            if one.remedy:
                print(f"{'':9}  {'':{width}}  try: {one.remedy}")
        return
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    for wrapped in (False, False, True):
        table.add_column(no_wrap=not wrapped, overflow="fold")
    for _, one in findings:
        table.add_row(Text(one.level.value, style=_STYLES[one.level.value]), Text(one.check), Text(one.text))
        if one.remedy:
            table.add_row("", "", Text(f"try: {one.remedy}", style="dim"))
    Console(highlight=False).print(table)
