"""`sennit up`: start the cluster and show its tree (design 6, 11)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from runtime.cli.options import CLUSTER_VARIABLE, ClusterOption, JsonOption, open_cluster, verbs
from runtime.cli.output import ExitCode, Failed, print_document
from runtime.cli.tree import lines, show_tree
from runtime.cli.tree import styled as styled_lines

if TYPE_CHECKING:
    from messages.supervision import SupervisorView
    from runtime.cluster import Cluster

app = verbs()
_START_LIMIT_S = 60.0
_POLL_S = 0.1
_ORPHAN_GRACE_S = 20.0
_LOG_TAIL = 10


@app.command()
def up(
    *,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Return when every process runs; sennit down stops it.")
    ] = False,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> ExitCode:
    """Start the cluster and show its tree of processes until Ctrl-C, which stops it in order.

    \b
    Examples:
      sennit up --cluster reef
      sennit up --cluster reef --detach
    """
    found = open_cluster(cluster)
    return _detached(found, as_json) if detach else _foreground(found, as_json)


def _foreground(cluster: Cluster, as_json: bool) -> ExitCode:
    """The root is this process; the tree is drawn whenever it was looked at. A parent that gave a pipe ends it."""
    from runtime.processes.alive_pipe import watch_parent
    from runtime.processes.spawn import check_child_signal
    from runtime.up import run

    try:
        check_child_signal()
    except RuntimeError as error:
        raise Failed(ExitCode.REFUSED, "child_signal", str(error), "trap - CHLD; sennit up") from None
    watch_parent(os.environ, lambda: os.kill(os.getpid(), signal.SIGTERM), grace_s=_ORPHAN_GRACE_S)
    if as_json:
        code = run(cluster, _document_once(cluster, os.getpid()))
    elif sys.stdout.isatty():
        code = _live(cluster)
    else:
        code = run(cluster, _changes())
    if not as_json:
        print(f"{cluster.name} is down", flush=True)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(ExitCode.DONE if code == 0 else ExitCode.DAMAGED)  # a thread that hangs does not keep the process


def _live(cluster: Cluster) -> int:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from runtime.up import run

    console = Console(highlight=False)
    console.print(f"cluster {cluster.name} in {cluster.path}; Ctrl-C stops it in order")
    with Live(console=console, auto_refresh=False) as live:

        def draw(view: SupervisorView) -> None:
            text = Text("\n").join(styled_lines(lines(cluster.name, view)))
            text.truncate(console.width * (console.height - 2))
            live.update(text, refresh=True)

        code = run(cluster, draw)
        live.transient = code == 0  # the last tree was drawn before the last process ended: of one that failed it tells
        return code


def _changes() -> Callable[[SupervisorView], None]:
    """Where there is no terminal: one line for each change of a process."""
    seen: dict[str, tuple[str, int]] = {}

    def tell(view: SupervisorView) -> None:
        for child in view.children:
            now = (child.state.value, child.restarts)
            if seen.get(child.name) != now:
                seen[child.name] = now
                restarts = f", {child.restarts} restarts" if child.restarts else ""
                last = f", last exit {child.last_exit}" if child.last_exit else ""
                print(f"{child.name}: {child.state.value}{restarts}{last}", flush=True)

    return tell


def _document_once(cluster: Cluster, pid: int) -> Callable[[SupervisorView], None]:
    """One document, when every process runs."""
    told: list[bool] = []

    def tell(view: SupervisorView) -> None:
        from runtime.up import all_running

        if not told and all_running(view):
            told.append(True)
            print_document({"cluster": cluster.name, "path": str(cluster.path), "root_pid": pid, "tree": view})
            sys.stdout.flush()

    return tell


def _detached(cluster: Cluster, as_json: bool) -> ExitCode:
    """The root is a process of its own; return when every process runs."""
    from messages.supervision import ChildState
    from runtime.cluster import cluster_holder
    from runtime.up import all_running

    cluster.prepare()
    holder = cluster_holder(cluster)
    if holder is not None:
        raise _up_already(cluster, holder)
    log = cluster.path / "logs" / "up.log"
    with log.open("wb") as out:
        root = subprocess.Popen(
            [sys.executable, "-P", "-m", "runtime.up", str(cluster.path)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    view = _wait_running(cluster, root)
    if view is None or not all_running(view):
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-_LOG_TAIL:])
        if root.poll() is not None:
            if (holder := cluster_holder(cluster)) is not None:  # another up was faster
                raise _up_already(cluster, holder)
            raise Failed(ExitCode.DAMAGED, "ended", f"the root ended with code {root.returncode}:\n{tail}")
        root.returncode = 0  # it goes on without us
        reasons = [] if view is None else [
            f"\n  {child.name} is {child.state.value}: {child.last_exit or 'no exit seen'}"
            for child in view.children if child.state is not ChildState.RUNNING
        ]  # fmt: skip
        raise Failed(
            ExitCode.DIFFERS,
            "pending",
            f"not every process of {cluster.name} runs; the root (process {root.pid}) goes on trying"
            + "".join(reasons or ["; its supervisor does not answer"]),
            f"put that right and see sennit status --cluster {cluster.path}, or sennit down --cluster {cluster.path}",
        )
    root.returncode = 0  # it goes on without us
    if as_json:
        print_document({"cluster": cluster.name, "path": str(cluster.path), "root_pid": root.pid, "tree": view})
        return ExitCode.DONE
    show_tree(cluster.name, view)
    option = "" if os.environ.get(CLUSTER_VARIABLE) else f" --cluster {cluster.path}"
    print(f"\nup, root process {root.pid}. Next: sennit node ls{option}; stop it with sennit down{option}")
    return ExitCode.DONE


def _up_already(cluster: Cluster, holder: int) -> Failed:
    return Failed(
        ExitCode.REFUSED, "locked", f"cluster {cluster.name} in {cluster.path} is up already (process {holder})",
        "sennit status, or sennit down",
    )  # fmt: skip


def _wait_running(cluster: Cluster, root: subprocess.Popen[bytes]) -> SupervisorView | None:
    """The tree when every process runs, or when one was given up for now or the time is over; None without a tree."""
    from actors.actor import AskFailed
    from messages.base import Address
    from messages.supervision import ChildState, ShowChildren
    from runtime.client import Client
    from runtime.up import all_running

    view = None
    deadline = time.monotonic() + _START_LIMIT_S
    with Client.connect(cluster, ["root"]) as client:
        while time.monotonic() < deadline and root.poll() is None:
            try:
                view = client.ask(Address("root/supervisor"), ShowChildren(), 1.0)
            except AskFailed:
                continue
            if all_running(view) or any(child.state is ChildState.PARKED for child in view.children):
                return view
            time.sleep(_POLL_S)
    return view
