"""`sennit`: one verb, one module, imported when it is called (design 11).

The help of the whole is written from the table below, so it answers at once and imports nothing that runs a cluster.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.metadata import version
from io import TextIOWrapper
from typing import Any

import typer
from typer.core import TyperGroup

from runtime.cli.faults import failure_of
from runtime.cli.output import ExitCode, Failed, print_failure

VERBS: dict[str, dict[str, str]] = {
    "Cluster": {
        "init": "Make a cluster directory: settings, keys, policy.",
        "up": "Start the cluster and show its tree of processes.",
        "down": "Stop the cluster in order.",
        "status": "Is it up, is everything well, and what is not.",
        "top": "A live screen: processes, links, dead letters, actors.",
        "tree": "The tree of supervisors, live; --lint: what it can cost.",
        "logs": "What the processes logged, also while the cluster is down.",
        "node": "Nodes and what they can do.",
    },
    "Workloads": {
        "package": "Make keys; pack, sign, verify and show packages.",
        "plan": "Where would it go? Nothing is started.",
        "place": "Place a signed package on the node that fits.",
        "explain": "Why a decision came out as it did.",
        "instance": "Placed instances: list, logs, start, stop, unload.",
        "edge": "Edges that carry data from workload to workload.",
    },
    "Governance": {
        "gate": "The policy in force, and what it says to an act.",
        "chain": "The audit chain: read it, verify it.",
    },
    "Tools": {
        "doctor": "What this machine and this cluster need, and how to get it.",
        "scenario": "Run or check a scripted scenario.",
        "replay": "Replay recorded traces through a machine.",
        "actor": "Look into running actors.",
        "bench": "Measure messaging and restarts.",
    },
}

EPILOG = (
    "Exit codes: 0 done, 1 differs or pending, 2 cannot be placed, 3 indeterminate, 4 refused, 5 damaged or stale "
    "state, 6 no cluster answers, 64 usage."
)


_USAGE_ERROR: Any = typer.BadParameter.__mro__[1]
"""The base of every error of usage; Typer does not export its name."""


class VerbGroup(TyperGroup):
    """The verbs of the table; each is imported when it is asked for by name."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        return [verb for group in VERBS.values() for verb in group]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.list_commands(ctx):
            return None
        command: Any = typer.main.get_command(import_module(f"runtime.cli.{cmd_name}").app)
        command.name = cmd_name
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        names: Any = dict.fromkeys(self.list_commands(ctx))  # for suggestions: the commands themselves are not here
        self.commands = names
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        for heading, verbs in VERBS.items():
            with formatter.section(heading):
                formatter.write_dl([(verb.ljust(9), text) for verb, text in verbs.items()])


def main() -> None:
    """The command `sennit`."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # the name of a file may be no Unicode text
    code = run(sys.argv[1:])
    try:
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if code == ExitCode.DONE and not isinstance(error, BrokenPipeError):  # that is a reader who left
            print(f"sennit: standard output: {error.strerror}", file=sys.stderr)
            code = ExitCode.REFUSED
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """Run one command line; returns the exit code. Output goes to standard output and error."""
    as_json = "--json" in arguments
    if arguments[:1] == ["--version"]:
        print(f"sennit {version('sennit')}")
        return ExitCode.DONE
    group = VerbGroup(
        name="sennit",
        help="A governed cluster of actors on a few unlike machines: signed workloads, explained placement, an audit "
        "chain.\n\n\b\nStart here:\n  sennit init reef\n  sennit up --cluster reef\n  sennit status --cluster reef",
        epilog=EPILOG,
        rich_markup_mode=None,
        subcommand_metavar="VERB ...",
        options_metavar="",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    try:
        result = group.main(arguments or ["--help"], prog_name="sennit", standalone_mode=False)
        return int(result) if isinstance(result, int) else ExitCode.DONE
    except _USAGE_ERROR as error:
        return _usage(error, as_json)
    except typer.Abort:
        return 130
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return ExitCode.DONE
    except Exception as error:
        failure = failure_of(error)
        if failure is None:
            raise
        print_failure(failure, as_json)
        return failure.exit_code


def _usage(error: Any, as_json: bool) -> int:
    """A command line that cannot be understood, or a group named without its verb, which asks for help."""
    context = error.ctx
    if type(error).__name__ == "NoArgsIsHelpError":
        print(context.get_help())
        return ExitCode.DONE
    command = context.command_path if context is not None else "sennit"
    print_failure(Failed(ExitCode.USAGE, "usage", error.format_message(), f"{command} --help"), as_json)
    return ExitCode.USAGE
