"""`sennit up`: the root of a cluster on this host. Supervises its processes until it is told to stop (design 6)."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress

from actors.actor import AskFailed
from actors.supervision.policy import Backoff, Intensity
from actors.supervision.supervisor import Supervisor
from messages.base import Address
from messages.supervision import ChildState, ShowChildren, Spent, SupervisorView
from runtime.cluster.cluster import Cluster
from runtime.cluster.lock import lock_cluster, lock_state
from runtime.cluster.names import Role
from runtime.ports.processes import Processes
from runtime.process import Process, Pulse, handle_signals, leave
from runtime.processes.spawn import check_child_signal
from runtime.roles import PROCESSES, process_child, process_command

ROOT = Role.ROOT.value
VIEW_EVERY_S = 0.25


def run(cluster: Cluster, on_tree: Callable[[SupervisorView], object] | None = None) -> int:
    """Bring the cluster up and stay until SIGTERM or Ctrl-C, then stop it in order. Returns an exit code.

    `on_tree` gets the tree whenever it was looked at (every `VIEW_EVERY_S`). Raises `ClusterFault` (another `up`
    holds the cluster, foreign state) and `ListenFault`, before anything is started.
    """
    check_child_signal()
    with lock_cluster(cluster), lock_state(cluster, ROOT):
        pulse = Pulse()
        # SIGHUP says that the terminal is gone; to a root without one, that the directory is to be read again
        handle_signals(pulse, signal.SIGTERM, signal.SIGINT, *([signal.SIGHUP] if _has_terminal() else []))
        root = Process(cluster, ROOT, pulse)
        root.open_offices()

        def look() -> float | None:
            if on_tree is None:
                return None
            with suppress(AskFailed):  # it is about to end
                on_tree(root.world.main.ask(root.supervisor, ShowChildren(), timeout_s=1.0))
            return VIEW_EVERY_S

        return root.run(lambda: root_supervisor(cluster), on_wait=look)


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def root_supervisor(cluster: Cluster) -> Supervisor:
    """The supervisor of the cluster's processes on this host, as `run` starts it."""
    times, restarts = cluster.times, cluster.restarts
    children = [process_child(cluster, entry) for entry in cluster.supervised]
    return Supervisor(
        ROOT,
        children,
        processes=Address(f"{ROOT}/{PROCESSES}"),
        port=lambda: Processes(process_command(cluster)),
        beat_s=times.beat_s,
        intensity=Intensity(restarts=restarts.intensity, period_s=restarts.period_s),
        backoff=Backoff(first_s=restarts.backoff_first_s, ceiling_s=restarts.backoff_ceiling_s),
        spent=Spent.PARK,
    )


def all_running(view: SupervisorView) -> bool:
    return bool(view.children) and all(child.state is ChildState.RUNNING for child in view.children)


def main() -> int:
    """`python -m runtime.up DIR`: the detached root of `sennit up --detach`."""
    from runtime.cluster.cluster import load_cluster
    from runtime.cluster.fault import ClusterFault
    from runtime.office.listen import ListenFault

    try:
        return run(load_cluster(sys.argv[1]))
    except (ClusterFault, ListenFault, RuntimeError) as fault:
        print(f"{ROOT}: {fault}", file=sys.stderr, flush=True)
        return 78


if __name__ == "__main__":
    leave(main)
