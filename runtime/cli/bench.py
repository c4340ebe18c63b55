"""`sennit bench`: measure messaging and restarts on this machine (design 11)."""

from __future__ import annotations

from runtime.cli.options import JsonOption, verbs
from runtime.cli.output import print_document, print_facts, print_table

app = verbs()


@app.callback()
def bench() -> None:
    """Measure messaging and restarts.

    \b
    Examples:
      sennit bench messaging
      sennit bench restart --json
    """


@app.command()
def messaging(as_json: JsonOption = False) -> None:
    """Questions and messages between two processes, beside raw sockets and, where installed, xoscar.

    \b
    Example:
      sennit bench messaging
    """
    from runtime.bench.messaging import run

    measured = run()
    if as_json:
        print_document([vars(figures) for figures in measured])
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
def restart(as_json: JsonOption = False) -> None:
    """How long a killed process takes to serve again.

    \b
    Example:
      sennit bench restart
    """
    from runtime.bench.restart import run

    _report(run(), as_json)


def _report(result: dict[str, object], as_json: bool) -> None:
    if as_json:
        print_document(result)
    else:
        print_facts(list(result.items()))
