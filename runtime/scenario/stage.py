"""The live stage of a scenario: a cluster directory, its packages, its processes (design 10)."""

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
from typing import TYPE_CHECKING

from runtime.cluster import Cluster, SecretSeed, init_cluster
from runtime.leftovers import Found, kill_all, process_named, processes_of, shared_memory, sockets_in
from runtime.packages.directory import pack, sign
from runtime.processes.alive_pipe import PARENT_FD, AlivePipe
from runtime.scenario.format import Check, PackagePart, Scenario, SignedBy
from runtime.scenario.toml_text import policy_toml

if TYPE_CHECKING:
    from actors.packages.manifest import Manifest

POLL_S = 0.1
START_LIMIT_S = 30.0
STOP_LIMIT_S = 30.0
SETTLE_LIMIT_S = 5.0


class StageFault(Exception):
    """The cluster of the scenario could not be brought up or down."""


class Stage:
    """A cluster of its own for one play; `close` leaves nothing of it behind."""

    def __init__(self, scenario: Scenario) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="sennit-")).resolve()
        self._root: subprocess.Popen[bytes] | None = None
        self._alive = AlivePipe()
        self._shared_before = shared_memory()
        self.packages: dict[str, Path] = {}
        part = scenario.cluster
        try:
            self.cluster: Cluster = init_cluster(
                self.folder / "cluster",
                part.nodes,
                name="scenario",
                times=part.times,
                restarts=part.restarts,
                policy=None if part.policy is None else policy_toml(part.policy),
            )
        except BaseException:
            self.close(keep=False)
            raise

    def make_package(self, part: PackagePart, base: Path) -> Manifest:
        """Pack, sign and, if the scenario says so, tamper with a package. Raises `PackageFault`."""
        out = self.folder / "packages" / part.name
        manifest = pack(base / part.dir, out)
        match part.signed_by:
            case SignedBy.SIGNER:
                manifest = sign(out, self.cluster.signer_key())
            case SignedBy.STRANGER:
                manifest = sign(out, SecretSeed.generate())
            case SignedBy.NOBODY:
                pass
        if part.tamper is not None:
            file = out / part.tamper
            data = bytearray(file.read_bytes())
            data[len(data) // 2] ^= 1
            file.write_bytes(data)
        self.packages[part.name] = out
        return manifest

    def start(self) -> None:
        """Start the root as its own process; whether all is up is asked of it afterwards."""
        command = [sys.executable, "-P", "-m", "runtime.cli", "up", "--cluster", str(self.cluster.path)]
        environment = {**os.environ, PARENT_FD: str(self._alive.read_fd)}  # it leaves when this process is gone
        with (self.folder / "up.log").open("wb") as log:
            self._root = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=environment,
                pass_fds=(self._alive.read_fd,),
            )

    @property
    def root_pid(self) -> int:
        assert self._root is not None, "the cluster was started"
        return self._root.pid

    def check_root(self) -> None:
        """Raises `StageFault` with its last words when the root has ended."""
        if self._root is not None and self._root.poll() is not None:
            raise StageFault(f"the cluster ended with code {self._root.returncode}:\n{self.last_words()}")

    def last_words(self) -> str:
        """The end of what the root wrote."""
        log = self.folder / "up.log"
        return "\n".join(log.read_text(errors="replace").splitlines()[-20:]) if log.exists() else ""

    def pid_of(self, process: str) -> int:
        """The process id of a process of the cluster. Raises `StageFault` when it does not run."""
        pid = process_named(self.cluster.path, process)
        if pid is None:
            raise StageFault(f"process {process} does not run")
        return pid

    def signal(self, process: str, number: int) -> int:
        """Send a signal to a process of the cluster; returns its process id."""
        pid = self.pid_of(process)
        os.kill(pid, number)
        return pid

    def stop(self) -> None:
        """Stop the cluster in order and wait. Raises `StageFault` when it had to be killed."""
        if self._root is None:
            return
        if self._root.poll() is None:
            self._root.send_signal(signal.SIGTERM)
        try:
            code = self._root.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._root.kill()
            self._root.wait(STOP_LIMIT_S)
            raise StageFault(f"the cluster did not stop within {STOP_LIMIT_S:g} s:\n{self.last_words()}") from None
        finally:
            self._root = None
        if code != 0:
            raise StageFault(f"the cluster ended with code {code}:\n{self.last_words()}")

    def processes(self) -> list[Found]:
        return processes_of(self.folder)

    def sockets(self) -> list[Path]:
        return sockets_in(self.folder)

    def shared_memory(self) -> set[str]:
        """What came since the play began."""
        return shared_memory() - self._shared_before

    def problems(self, check: Check) -> list[str]:
        """What is counted otherwise than the check says."""
        problems = []
        if check.processes is not None and len(found := self.processes()) != check.processes:
            names = ", ".join(f"{process.pid} ({' '.join(process.command)[:80]})" for process in found)
            problems.append(f"{len(found)} processes, not {check.processes}: {names}")
        if check.sockets is not None and len(sockets := self.sockets()) != check.sockets:
            problems.append(f"{len(sockets)} socket files, not {check.sockets}: {', '.join(map(str, sockets))}")
        if check.shared_memory is not None and len(memory := self.shared_memory()) != check.shared_memory:
            problems.append(
                f"{len(memory)} pieces of shared memory, not {check.shared_memory}: {', '.join(sorted(memory))}"
            )
        return problems

    def close(self, *, keep: bool) -> list[Found]:
        """Kill what is left, remove the folder unless `keep`; returns what had to be killed."""
        if self._root is not None:
            self._root.kill()
            self._root.wait(STOP_LIMIT_S)
            self._root = None
        self._alive.close()
        killed = kill_all(self.folder)
        wait_until(lambda: not self.processes(), SETTLE_LIMIT_S)
        if not keep:
            shutil.rmtree(self.folder, ignore_errors=True)
        return killed


def wait_until(condition: Callable[[], bool], limit_s: float) -> bool:
    """Poll until the condition holds; False when the time is over."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_S)
    return True


__all__ = ["Stage", "StageFault", "wait_until"]
