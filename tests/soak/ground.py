"""A cluster of its own for a soak: its folder, its packages, its root process, and what can be killed in it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from runtime.cluster import Cluster, cluster_holder, init_cluster, load_cluster
from runtime.cluster.settings import Restarts, Times, parse_settings, render_settings
from runtime.leftovers import kill_all, processes_of, shared_memory, sockets_in
from runtime.packages.directory import pack, sign
from runtime.processes.alive_pipe import PARENT_FD, AlivePipe

REPOSITORY = Path(__file__).resolve().parents[2]
HOSTWATCH = REPOSITORY / "scenarios" / "packages" / "hostwatch"
STOP_LIMIT_S = 40.0

TIMES = Times(beat_s=0.5, dead_after_s=3.0, stop_grace_s=1.0, call_timeout_s=5.0, fetch_timeout_s=15.0)
LARGE = Restarts(intensity=1000, backoff_first_s=0.05, backoff_ceiling_s=0.4)
"""A budget that no soak spends: what is looked for is behind the restarts."""

SMALL = Restarts(intensity=2, period_s=60.0, backoff_first_s=0.05, backoff_ceiling_s=3.0)
"""A budget that three kills spend."""


class SoakFailed(Exception):
    """A promise did not hold; the text says which, and what was seen."""


def until(condition: Callable[[], object], limit_s: float, what: str, every_s: float = 0.03) -> float:
    """Seconds until the condition holds. It says what it sees by returning a text; None or "" is good.

    Raises `SoakFailed` with the last text.
    """
    began = time.monotonic()
    while seen := condition():
        if time.monotonic() - began > limit_s:
            raise SoakFailed(f"not within {limit_s:g} s: {what}; last seen: {seen}")
        time.sleep(every_s)
    return time.monotonic() - began


class Ground:
    """The folder of one soak. `close` kills and removes whatever is left."""

    def __init__(self) -> None:
        # a short path: that of a socket has at most 107 bytes
        self.folder = Path(tempfile.mkdtemp(prefix="sennit-soak-")).resolve()
        self.cluster: Cluster = init_cluster(self.folder / "c", name="soak", times=TIMES, restarts=LARGE)
        self.package = self.folder / "hostwatch"
        self.manifest = pack(HOSTWATCH, self.package)
        self.manifest = sign(self.package, self.cluster.signer_key())
        self._alive = AlivePipe()
        self._memory_before = shared_memory()
        self._root: subprocess.Popen[bytes] | None = None

    @property
    def root_pid(self) -> int | None:
        return None if self._root is None else self._root.pid

    def launch(self) -> None:
        """Start the root; whether all is up is asked of it afterwards."""
        environment = {**os.environ, PARENT_FD: str(self._alive.read_fd)}  # it leaves when the soak is gone
        with (self.folder / "up.err").open("ab") as log:
            self._root = subprocess.Popen(
                [sys.executable, "-P", "-m", "runtime.up", str(self.cluster.path)],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=environment,
                pass_fds=(self._alive.read_fd,),
            )

    def check_root(self) -> None:
        """Raises `SoakFailed` when the root ended by itself."""
        if self._root is not None and self._root.poll() is not None:
            raise SoakFailed(f"the root ended with code {self._root.returncode}: {self.words()}")

    def words(self) -> str:
        return (self.folder / "up.err").read_text(errors="replace")[-2000:]

    def kill_root(self) -> None:
        assert self._root is not None
        root, self._root = self._root, None
        root.kill()
        root.wait(STOP_LIMIT_S)

    def down(self) -> float:
        """Stop in order; seconds that it took. Raises `SoakFailed` when it does not end well or leaves processes."""
        assert self._root is not None
        began = time.monotonic()
        self._root.send_signal(signal.SIGTERM)
        try:
            code = self._root.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            raise SoakFailed(f"the root does not stop within {STOP_LIMIT_S:g} s: {self.words()}") from None
        self._root = None
        if code != 0:
            raise SoakFailed(f"the root ended with code {code} when asked to stop: {self.words()}")
        left = [found for found in processes_of(self.folder) if "runtime.process" in found.command]
        if left:
            raise SoakFailed(f"processes outlive an ordered stop: {left}")
        return time.monotonic() - began

    def configure(self, restarts: Restarts) -> None:
        """Other restart budgets from the next start on."""
        file = self.cluster.path / "cluster.toml"
        settings = parse_settings(file.read_text(), str(file))
        file.write_text(render_settings(msgspec.structs.replace(settings, restarts=restarts)))
        self.cluster = load_cluster(self.cluster.path)

    def crashes(self) -> list[str]:
        """What the logs tell of actors that failed: nothing here makes one fail."""
        logs = [file.read_text(errors="replace").splitlines() for file in (self.cluster.path / "logs").glob("*.jsonl")]
        return [line[:1000] for lines in logs for line in lines if '"the actor crashed"' in line]

    def leftovers(self) -> list[str]:
        """What a cluster that is down and holds no instance must not leave: processes, sockets, half-written files."""
        left = [f"process {found.pid}: {' '.join(found.command)[:120]}" for found in processes_of(self.folder)]
        left += [f"socket {path}" for path in sockets_in(self.folder)]
        left += [f"shared memory {name}" for name in shared_memory() - self._memory_before]
        if (holder := cluster_holder(self.cluster)) is not None:
            left.append(f"the lock of the cluster is held by {holder}")
        state = self.cluster.path / "state"
        for path in sorted(state.rglob("*")):
            name = str(path.relative_to(state))
            if path.suffix in (".new", ".old", ".tmp", ".part"):
                left.append(f"half-written {name}")
            if path.parent.name in ("instances", "quarantine"):
                left.append(f"left in {path.parent.name}: {name}")
        return left

    def close(self, *, keep: bool) -> None:
        if self._root is not None:
            self._root.kill()
            self._root.wait(STOP_LIMIT_S)
            self._root = None
        self._alive.close()
        deadline = time.monotonic() + 10.0
        while kill_all(self.folder) and time.monotonic() < deadline:
            time.sleep(0.05)
        if not keep:
            shutil.rmtree(self.folder, ignore_errors=True)
