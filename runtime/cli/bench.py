"""`sennit bench`: measure messaging and restarts on this machine (design 11)."""

from __future__ import annotations

from runtime.cli.options import JsonOption, verbs
from runtime.cli.output import print_document, print_facts

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
    """Messages a second and the time of a question, within a process and between two.

    \b
    Example:
      sennit bench messaging
    """
    from runtime.bench.messaging import run

    _report(run(), as_json)


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
