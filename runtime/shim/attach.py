"""A run of a workload, seen by a process that neither started nor collects it (design 6, design 7).

Looking changes nothing: no lock is taken, nothing is killed, no folder is cleaned; the agent's launcher alone does
that. A run is one shim from its start to its end. It is held by its pidfd and by its run directory's descriptor, so
the next run of the same instance, in a new directory of the same name, is never mistaken for it.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from runtime.processes import proc
from runtime.shim import client
from runtime.shim.client import ShimFailed, ShimRefused

STATE_BYTES = 8192
_MEMBERS: tuple[tuple[type, tuple[str, ...]], ...] = (
    (str, ("instance_id", "epoch", "boot_id")),
    (int, ("pid", "start_ticks", "shim_pid", "shim_start_ticks")),
)


class AttachedRun:
    """A run that was alive when it was found. Methods never wait. `run` is no other run's."""

    def __init__(self, folder: int, state: dict[str, Any], pidfd: int) -> None:
        self.instance_id: str = state["instance_id"]
        self.epoch: str = state["epoch"]
        self.shim_pid: int = state["shim_pid"]
        self.run = f"{state['boot_id']}/{self.shim_pid}/{state['shim_start_ticks']}"
        self._state = state
        self._folder = folder
        self._pidfd = pidfd

    def pidfd(self) -> int:
        """A copy of the shim's pidfd, readable when the shim has ended; the caller closes it."""
        return os.dup(self._pidfd)

    def shim_lives(self) -> bool:
        """False once the shim has ended, reaped or not, whoever has its number now."""
        ended = select.poll()
        ended.register(self._pidfd, select.POLLIN)
        return not ended.poll(0)

    def gone(self) -> bool:
        """True when no process of this run is left: it has its exit record, or was collected, or nobody is found.

        A shim that was killed leaves no record; what it left behind is found by session, group and mark, and is the
        agent's to kill.
        """
        if self.shim_lives():
            return False
        if self.recorded() or not self._has("state.json"):
            return True  # a launcher removes a run only after it has collected it
        return not client.stragglers(self._state)

    def recorded(self) -> bool:
        """The shim has left its exit record: no descendant of it was left, however it hid."""
        return self._has("exit.json")

    def ask(self, request: str, fds: Sequence[int] = ()) -> socket.socket:
        """Send a request to the shim; when the socket is readable, `answer` takes the reply. Raises `ShimFailed`."""
        control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            control.setblocking(False)
            control.connect(f"/proc/self/fd/{self._folder}/control")
            socket.send_fds(control, [request.encode("ascii")], list(fds))
        except OSError as error:
            control.close()
            raise ShimFailed(
                f"the shim of {self.instance_id} (pid {self.shim_pid}) cannot be asked: {error}"
            ) from error
        return control

    def answer(self, control: socket.socket) -> dict[str, Any]:
        """The reply. Raises `ShimRefused` when the shim said no, `ShimFailed` when it hung up or talks nonsense."""
        try:
            reply = control.recv(STATE_BYTES)
        except OSError as error:
            raise ShimFailed(
                f"the shim of {self.instance_id} (pid {self.shim_pid}) does not answer: {error}"
            ) from error
        if not reply:
            raise ShimFailed(f"the shim of {self.instance_id} (pid {self.shim_pid}) hung up")
        try:
            answer = _object(reply)
        except ValueError as error:
            raise ShimFailed(f"the shim of {self.instance_id} talks nonsense, {reply[:80]!r}: {error}") from error
        if "error" in answer:
            raise ShimRefused(f"the shim of {self.instance_id} refused: {answer['error']}")
        return answer

    def kill(self) -> None:
        """End a shim that does not answer; its leader dies with it, and the agent sweeps the rest."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def close(self) -> None:
        """A later `ask` fails; it does not reach whoever has the descriptor's number then."""
        folder, self._folder = self._folder, -1
        os.close(self._pidfd)
        os.close(folder)

    def _has(self, name: str) -> bool:
        try:
            os.stat(name, dir_fd=self._folder)
        except FileNotFoundError:
            return False
        return True


def attach(directory: Path) -> AttachedRun | None:
    """The living run of an instance directory, or None when none is alive.

    Raises `ShimFailed` when what the directory says of its run cannot be read or understood.
    """
    try:
        folder = os.open(directory / "run", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ShimFailed(f"{directory}/run cannot be read: {error}") from error
    found = None
    try:
        found = _identify(folder, directory)
    finally:
        if found is None:
            os.close(folder)
    return found


def _identify(folder: int, directory: Path) -> AttachedRun | None:
    try:
        fd = os.open("state.json", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        with open(fd, "rb") as file:
            state = _object(file.read(STATE_BYTES))
        if not state["pid"]:
            return None  # its program does not run yet
        for kind, names in _MEMBERS:
            if not all(isinstance(state[name], kind) for name in names):
                raise TypeError(f"{' or '.join(names)} is no {kind.__name__}")
        pidfd = proc.open_same(state["shim_pid"], state["shim_start_ticks"], state["boot_id"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ShimFailed(f"what {directory}/run/state.json says of its shim cannot be used: {error!r}") from error
    if pidfd is None:
        return None
    run = AttachedRun(folder, state, pidfd)
    if run.shim_lives():
        return run
    os.close(pidfd)
    return None


def _object(data: bytes) -> dict[str, Any]:
    """Raises `ValueError` for what is no JSON object."""
    try:
        found = json.loads(data)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(found, dict):
        raise ValueError("no JSON object")
    return found


__all__ = ["AttachedRun", "attach"]
