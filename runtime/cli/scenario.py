"""`sennit scenario`: play a script of a cluster's life, or only check it (design 10, 11)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from runtime.cli.options import JsonOption, verbs
from runtime.cli.output import ExitCode, Failed, print_document

if TYPE_CHECKING:
    from runtime.scenario.format import Scenario

app = verbs()

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="Scenario, a TOML file.")]


@app.callback()
def scenario() -> None:
    """Run or check a scripted scenario.

    \b
    Examples:
      sennit scenario check scenarios/first-light.toml
      sennit scenario run scenarios/first-light.toml
    """


@app.command()
def check(file: FileArgument, as_json: JsonOption = False) -> None:
    """Read a scenario strictly, and start nothing.

    \b
    Example:
      sennit scenario check scenarios/first-light.toml
    """
    found = _load(file)
    if as_json:
        worlds = [world.value for world in found.worlds]
        verdict = found.expect.verdict.value
        print_document({"title": found.title, "worlds": worlds, "steps": len(found.step), "expect": verdict})
        return
    print(f"{file}: {len(found.step)} steps, worlds {', '.join(found.worlds)}; it is well formed")


@app.command()
def run(
    file: FileArgument,
    *,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the cluster directory behind, to be looked at.")] = False,
    as_json: JsonOption = False,
) -> ExitCode:
    """Play a scenario on real processes. Ends with 0 only if the verdict is the one that the scenario expects.

    \b
    Examples:
      sennit scenario run scenarios/first-light.toml
      sennit scenario run scenarios/first-light.toml --keep
    """
    from runtime.scenario.format import World
    from runtime.scenario.play import play
    from runtime.scenario.story import Story

    found = _load(file)
    if World.LIVE not in found.worlds:
        raise Failed(ExitCode.USAGE, "no_world", f"{file} is not for the world live", f"sennit scenario check {file}")
    story = Story(quiet=as_json)
    result = play(found, file.parent, story, keep=keep)
    if as_json:
        print_document(result.as_document(story))
    return ExitCode.DONE if result.as_expected else ExitCode.DIFFERS


def _load(file: Path) -> Scenario:
    from runtime.scenario.reading import load_scenario

    if not file.is_file():
        raise Failed(ExitCode.USAGE, "no_scenario", f"{file} is no file", "ls scenarios")
    return load_scenario(file)
