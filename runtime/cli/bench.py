"""`sennit bench`: measure messaging, the chain and restarts on this machine (design 11)."""

from __future__ import annotations

from dataclasses import asdict, is_dataclass
from importlib import import_module
from typing import Any

from runtime.cli.options import JsonOption, verbs
from runtime.cli.output import ExitCode, Failed, print_document, print_facts, print_table

app = verbs()


@app.callback()
def bench() -> None:
    """Measure messaging, the chain and restarts.

    \b
    Examples:
      sennit bench messaging
      sennit bench chain --json
    """


@app.command()
def messaging(as_json: JsonOption = False) -> None:
    """Questions and messages between two processes, beside raw sockets and, where installed, xoscar.

    \b
    Example:
      sennit bench messaging
    """
    measured = _run("messaging")
    if as_json:
        print_document([asdict(figures) for figures in measured])
        return
    print_table(
        ("", "ask p50", "ask p99", "tells/s, one by one", "tells/s, in bursts"),
        [
            (
                figures.name,
                f"{figures.ask_p50_us:.0f} us",
                f"{figures.ask_p99_us:.0f} us",
                f"{figures.single_per_s:,.0f}",
                f"{figures.burst_per_s:,.0f}",
            )
            for figures in measured
        ],
    )


@app.command()
def chain(as_json: JsonOption = False) -> None:
    """Durable appends and verification of the chain, beside what the disk and the database can do.

    \b
    Example:
      sennit bench chain
    """
    measured = _run("chain")
    if as_json:
        print_document(asdict(measured))
        return
    print_table(
        ("", "appends/s, singly", "appends/s, grouped", "group"),
        [
            (made.name, f"{made.single_per_s:,.0f}", f"{made.grouped_per_s:,.0f}", f"{made.batch:.0f}")
            for made in measured.appends
        ],
    )
    print()
    print_table(
        ("", "records", "verified/s"), [(read.name, read.records, f"{read.per_s:,.0f}") for read in measured.verified]
    )


@app.command()
def restart(as_json: JsonOption = False) -> None:
    """How long a killed process takes to serve again.

    \b
    Example:
      sennit bench restart
    """
    measured = _run("restart")
    plain = asdict(measured) if is_dataclass(measured) and not isinstance(measured, type) else dict(measured)
    if as_json:
        print_document(plain)
    else:
        print_facts([(name.replace("_", " "), value) for name, value in plain.items()])


def _run(name: str) -> Any:
    """What `runtime.bench.NAME` measures. Measurements are no part of a smaller installation."""
    try:
        module = import_module(f"runtime.bench.{name}")
    except ModuleNotFoundError as error:
        raise Failed(ExitCode.USAGE, "not_installed", f"bench {name} cannot run here: {error}") from None
    return module.run()
