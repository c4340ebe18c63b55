"""Start an OS process of the cluster, and end it with all it started (design 6).

A child is the leader of a session of its own, so the terminal's Ctrl-C reaches only the supervisor; it inherits the
descriptors named and no other; it is never a fork of a running thread but a fresh program. Its handle keeps the
pidfd, which names this process and no later one of the same number.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from runtime.processes import proc
from runtime.processes.alive_pipe import PARENT_FD, AlivePipe

STDERR_TAIL_BYTES = 8192


class SpawnFailed(Exception):
    """The process could not be started; to be tried again later, nothing was left behind."""


@dataclass
class ProcessHandle:
    """A started child that is not reaped yet. `stderr_fd`: read end of its standard error, None when not captured.

    Only `runtime.processes.exits.ExitWatch` reaps it; `lock` keeps a signal from meeting a pid that was just freed.
    """

    pid: int
    pidfd: int
    start_ticks: int
    boot_id: str
    stderr_fd: int | None
    reaped: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def send_signal(self, number: int) -> bool:
        """Signal the process alone. False when it is gone."""
        with self.lock:
            if self.reaped:
                return False
            signal.pidfd_send_signal(self.pidfd, number)
            return True

    def signal_group(self, number: int) -> bool:
        """Signal the process and all that stayed in its group. False when it is gone."""
        with self.lock:
            if self.reaped:
                return False
            try:
                os.killpg(self.pid, number)
            except ProcessLookupError:
                return False
            return True

    def reap(self) -> int | None:
        """Collect the exit: code, or minus the signal. None while it runs. Its group is killed before.

        The group's number cannot be given to others as long as the leader is not reaped, so the kill hits nobody
        else. The caller closes `pidfd`.
        """
        with self.lock:
            assert not self.reaped, f"pid {self.pid} is reaped once"
            ended = os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None:
                return None
            os.killpg(self.pid, signal.SIGKILL)  # the zombie leader is in it still
            os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED)
            self.reaped = True
            return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status


def check_child_signal() -> None:
    """Refuse to supervise while SIGCHLD is ignored: the kernel then reaps children and their exit codes are lost.

    Raises `RuntimeError`. The disposition is inherited, usually from a shell's `trap '' CHLD`.
    """
    if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
        raise RuntimeError(
            "SIGCHLD is ignored, so exits of children cannot be seen: start with its default (trap - CHLD)"
        )


def spawn(
    argv: Sequence[str],
    environment: Mapping[str, str],
    *,
    alive: AlivePipe | None = None,
    directory: Path | None = None,
    pass_fds: Sequence[int] = (),
    capture_stderr: bool = True,
) -> ProcessHandle:
    """Start `argv` with exactly `environment` (and the number of the parent-alive pipe, when `alive` is given).

    Raises `SpawnFailed` when the program is missing or the system is out of processes, memory or descriptors.
    """
    variables = dict(environment)
    fds = list(pass_fds)
    if alive is not None:
        variables[PARENT_FD] = str(alive.read_fd)
        fds.append(alive.read_fd)
    try:
        popen = subprocess.Popen(
            list(argv),
            env=variables,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE if capture_stderr else subprocess.DEVNULL,
            pass_fds=fds,
            start_new_session=True,
        )
    except OSError as error:
        raise SpawnFailed(f"cannot start {argv[0]}: {error.strerror}") from error
    popen.returncode = 0  # it only started the process: as it is, it would reap behind our back when it is collected
    held: list[int] = []
    try:
        stderr_fd = None
        if popen.stderr is not None:
            with popen.stderr:
                held.append(stderr_fd := os.dup(popen.stderr.fileno()))
            os.set_blocking(stderr_fd, False)
        held.append(pidfd := os.pidfd_open(popen.pid))  # not reaped, so the number is still its own
        found, boot = proc.stat(popen.pid), proc.boot_id()
    except OSError as error:  # out of descriptors: nobody would see how it ends
        os.killpg(popen.pid, signal.SIGKILL)
        os.waitpid(popen.pid, 0)
        for fd in held:
            os.close(fd)
        raise SpawnFailed(f"cannot hold {argv[0]}: {error.strerror}") from error
    assert found is not None
    return ProcessHandle(popen.pid, pidfd, found.start_ticks, boot, stderr_fd)


__all__ = ["STDERR_TAIL_BYTES", "ProcessHandle", "SpawnFailed", "check_child_signal", "spawn"]
