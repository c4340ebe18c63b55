"""The agent's side of a shim: start one, find a living one again, stop it, read what it left (design 6).

An instance directory holds `run/`, the shim's working directory (see `runtime.shim.loop`), and `data/`, the
workload's. Whether a shim lives is told by the lock that it holds, which no recycled pid can imitate; which process
it is by pidfd, boot id and start time. When it is gone without an exit record it was killed: `collect` then kills
what may be left of the workload before it says so.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.processes import proc
from runtime.processes.exits import Exit, ExitWatch
from runtime.processes.spawn import ProcessHandle, SpawnFailed, spawn
from runtime.shim.decisions import GRACE_MS
from runtime.shim.output import read_stream

SHIM = str(Path(__file__).resolve().with_name("shim.py"))
START_TIMEOUT_S = 10.0
REPLY_TIMEOUT_S = 2.0
SWEEP_TIMEOUT_S = 5.0


class ShimFailed(Exception):
    """The shim could not be started, does not answer or refused; the message says which and what to do.

    `errno`: the system's reason for a failed start, None when it was another.
    """

    def __init__(self, text: str, errno: int | None = None) -> None:
        super().__init__(text)
        self.errno = errno


class ShimLives(ShimFailed):
    """The instance has a living shim: nothing was started."""


class ShimRefused(ShimFailed):
    """The shim answered, and said no."""


@dataclass(frozen=True, kw_only=True)
class LaunchSpec:
    """What to run and within which limits. `environment` is all the workload gets, besides `SENNIT_SHIM_FD`.

    `ram_mb` address space; `cpu_s` processor seconds; `run_for_ms` wall time; `output_limit` bytes kept per stream;
    `deadline_ms` an absolute `CLOCK_BOOTTIME` time; `orphan_after_ms` the longest silence of the agent when there is
    no deadline. None: no such limit. `user`: uid and gid to run as.
    """

    instance_id: str
    epoch: str
    argv: Sequence[str]
    environment: Mapping[str, str]
    ram_mb: int
    output_limit: int
    cpu_s: int | None = None
    run_for_ms: int | None = None
    deadline_ms: int | None = None
    orphan_after_ms: int | None = None
    grace_ms: int = GRACE_MS
    user: tuple[int, int] | None = None


@dataclass(frozen=True, kw_only=True)
class ExitRecord:
    """How a run ended. `exit_code` or `signal`, both None when nobody saw it; `reason` is the shim's word for why."""

    instance_id: str
    epoch: str
    exit_code: int | None = None
    signal: int | None = None
    elapsed_ms: int = 0
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    truncated: bool = False
    killed: bool = False
    reason: str = "shim_lost"


class ShimHandle:
    """A living shim, started or adopted. `pid` and `start_ticks` are the workload's leader."""

    def __init__(self, run: Path, state: Mapping[str, Any], process: ProcessHandle | int) -> None:
        self.run = run
        self.instance_id: str = state["instance_id"]
        self.epoch: str = state["epoch"]
        self.shim_pid: int = state["shim_pid"]
        self.shim_start_ticks: int = state["shim_start_ticks"]
        self.pid: int = state["pid"]
        self.start_ticks: int = state["start_ticks"]
        self.orphan_after_ms: int | None = state["orphan_after_ms"]
        self._process = process

    def close(self) -> None:
        """Let go of an adopted shim that is not watched."""
        if isinstance(self._process, int):
            os.close(self._process)

    def watch(self, exits: ExitWatch, on_exit: Callable[[Exit], object]) -> None:
        """Be told once, on the watch's thread, when the shim is gone; then `collect` tells how the run ended."""
        if isinstance(self._process, ProcessHandle):
            exits.watch(self._process, on_exit)
        else:
            exits.watch_stranger(self.shim_pid, self._process, on_exit)

    def status(self) -> dict[str, Any]:
        """`phase` (running, stopping, killing, ended), `reason`, `elapsed_ms`, `deadline_ms`, `*_bytes`."""
        return self._ask("status")

    def stop(self, grace_ms: int) -> dict[str, Any]:
        """Begin to stop; answered at once. The shim ends when no process of the workload is left."""
        return self._ask(f"stop {grace_ms}")

    def renew(self, deadline_ms: int) -> dict[str, Any]:
        """Move the lease's end to `deadline_ms`. Raises `ShimFailed` when the right is over."""
        return self._ask(f"deadline {deadline_ms}")

    def pass_descriptors(self, text: str, fds: Sequence[int]) -> dict[str, Any]:
        """Hand `text` and descriptors to the workload."""
        return self._ask(f"pass {text}", fds)

    def gone(self) -> bool:
        """True when the shim has ended. Only while it is watched or was not yet reported."""
        stat = proc.stat(self.shim_pid)
        return stat is None or stat.state == "Z" or stat.start_ticks != self.shim_start_ticks

    def kill(self) -> None:
        """End a shim that does not answer; its leader dies with it, and `collect` sweeps the rest."""
        if isinstance(self._process, ProcessHandle):
            self._process.send_signal(signal.SIGKILL)
            return
        pidfd = proc.open_same(self.shim_pid, self.shim_start_ticks, proc.boot_id())
        if pidfd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            os.close(pidfd)

    def _ask(self, request: str, fds: Sequence[int] = ()) -> dict[str, Any]:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as control:
                control.settimeout(REPLY_TIMEOUT_S)
                _connect(control, self.run)
                socket.send_fds(control, [request.encode("ascii")], list(fds))
                reply = control.recv(8192)
        except OSError as error:
            raise ShimFailed(
                f"the shim of {self.instance_id} (pid {self.shim_pid}) does not answer: {error}"
            ) from error
        if not reply:
            raise ShimFailed(f"the shim of {self.instance_id} (pid {self.shim_pid}) hung up")
        answer: dict[str, Any] = json.loads(reply)
        if "error" in answer:
            raise ShimRefused(f"the shim of {self.instance_id} refused {request.partition(' ')[0]}: {answer['error']}")
        return answer


def start(directory: Path, spec: LaunchSpec) -> ShimHandle:
    """Run the workload of an instance directory under a new shim; what the last run left is removed.

    Returns when the program runs. Raises `ShimFailed`; then nothing runs.
    """
    run = directory / "run"
    lock = _hold_lock(directory)
    if lock is None:
        raise ShimLives(f"{spec.instance_id} has a living shim: stop it, or adopt it")
    ready_read, ready_write = os.pipe()
    try:
        if (run / "state.json").exists():
            collect(directory)  # a shim that was killed may have left processes: never two
        shutil.rmtree(run, ignore_errors=True)
        run.mkdir(mode=0o700)
        process = _spawn(run, directory / "data", spec, lock, ready_write)
    except BaseException as error:
        os.close(ready_read)
        if not isinstance(error, OSError | SpawnFailed):
            raise
        errno = error.errno if isinstance(error, OSError) else None
        raise ShimFailed(f"the shim of {spec.instance_id} cannot be started: {error}", errno) from error
    finally:
        os.close(ready_write)
        os.close(lock)  # the shim holds it now
    try:
        answer = _first_word(ready_read, process)
    except BaseException:
        _abandon(process)
        raise
    finally:
        os.close(ready_read)
    if "error" in answer:
        _abandon(process)
        (run / "control").unlink(missing_ok=True)
        raise ShimFailed(f"{spec.instance_id} cannot be started: {answer['error']}", answer["errno"])
    return ShimHandle(run, _state(run), process)


def adopt(directory: Path) -> ShimHandle | ExitRecord | None:
    """After a restart of the agent: the living shim, or how the last run ended, or None when there was none.

    A shim that was killed is swept and told as an `ExitRecord` without code. Raises `ShimFailed` when a shim holds
    the lock but cannot be identified: the instance then counts as running.
    """
    run = directory / "run"
    lock = _hold_lock(directory)
    if lock is not None:
        try:
            return collect(directory) if (run / "state.json").exists() else None
        finally:
            os.close(lock)
    deadline = time.monotonic() + REPLY_TIMEOUT_S
    while True:
        try:
            state = _state(run)
        except (OSError, ValueError):
            state = {}
        if state.get("pid"):
            pidfd = proc.open_same(state["shim_pid"], state["shim_start_ticks"], state["boot_id"])
            if pidfd is not None:
                return ShimHandle(run, state, pidfd)
        lock = _hold_lock(directory)  # it may have ended while we looked
        if lock is not None:
            os.close(lock)
            return adopt(directory)
        if time.monotonic() > deadline:
            raise ShimFailed(
                f"{directory} is locked by a shim that says nothing of itself: kill it, it counts as running"
            )
        select.select([], [], [], 0.01)  # it is about to write its state


def collect(directory: Path) -> ExitRecord:
    """How the run ended, the shim being gone. Without its record: kill what is left of the workload first.

    Raises `ShimFailed` when something is left that does not die; the instance then counts as running.
    """
    record = ended(directory)
    if record is None:
        run = directory / "run"
        state = _state(run)
        sweep(state)
        (run / "control").unlink(missing_ok=True)
        stdout, stderr = (read_stream(str(run), name, -1, 0)[1] for name in ("stdout", "stderr"))
        return ExitRecord(
            instance_id=state["instance_id"],
            epoch=state["epoch"],
            signal=signal.SIGKILL,
            stdout_bytes=stdout,
            stderr_bytes=stderr,
            killed=True,
        )
    return record


def ended(directory: Path) -> ExitRecord | None:
    """The exit record of the last run, None when there is none (yet)."""
    try:
        return ExitRecord(**json.loads((directory / "run/exit.json").read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


def sweep(state: Mapping[str, Any]) -> None:
    """Kill every process of a run whose shim is gone: by session, by group, by mark, and their descendants.

    Raises `ShimFailed` naming those that do not die.
    """
    if state["boot_id"] != proc.boot_id():
        return  # another boot: nothing of it can be left
    deadline = time.monotonic() + SWEEP_TIMEOUT_S
    while left := stragglers(state):
        pidfds = [fd for one in left if (fd := proc.open_same(one.pid, one.start_ticks, state["boot_id"])) is not None]
        for pidfd in pidfds:
            try:
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            except ProcessLookupError:
                continue
        for pidfd in pidfds:
            select.select([pidfd], [], [], 0.1)
            os.close(pidfd)
        if time.monotonic() > deadline:
            pids = ", ".join(str(one.pid) for one in left)
            raise ShimFailed(f"{state['instance_id']}: processes {pids} survive SIGKILL for {SWEEP_TIMEOUT_S:g} s")


def read_output(directory: Path, stream: str, offset: int, limit: int) -> tuple[bytes, int]:
    """See `runtime.shim.output.read_stream`; nothing ran: no bytes."""
    try:
        return read_stream(str(directory / "run"), stream, offset, limit)
    except FileNotFoundError:
        return b"", max(offset, 0)


def _spawn(run: Path, data: Path, spec: LaunchSpec, lock: int, ready: int) -> ProcessHandle:
    uid, gid = spec.user or (None, None)
    options = {
        "run": run.resolve(),
        "data": data.resolve(),
        "instance": spec.instance_id,
        "epoch": spec.epoch,
        "ram_mb": spec.ram_mb,
        "output_limit": spec.output_limit,
        "cpu_s": spec.cpu_s,
        "run_for_ms": spec.run_for_ms,
        "deadline_ms": spec.deadline_ms,
        "orphan_after_ms": spec.orphan_after_ms,
        "grace_ms": spec.grace_ms,
        "uid": uid,
        "gid": gid,
        "lock_fd": lock,
        "ready_fd": ready,
    }
    words = [f"{name}={value}" for name, value in options.items() if value is not None]
    argv = [sys.executable, "-I", "-S", SHIM, *words, "--", *spec.argv]
    return spawn(argv, spec.environment, pass_fds=(lock, ready))


def _first_word(ready: int, process: ProcessHandle) -> dict[str, Any]:
    """What the shim says when its workload runs or cannot: raced with its death."""
    deadline = time.monotonic() + START_TIMEOUT_S
    line = b""
    while not line.endswith(b"\n"):
        if not select.select([ready], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise ShimFailed(f"shim {process.pid} is silent for {START_TIMEOUT_S:g} s; it was killed")
        part = os.read(ready, 4096)
        if not part:
            said = _last_words(process)
            raise ShimFailed(f"shim {process.pid} died at its start: {said[-500:] or 'without a word'}")
        line += part
    answer: dict[str, Any] = json.loads(line)
    return answer


def _last_words(process: ProcessHandle) -> str:
    """What it wrote before it died; nothing when it, or a child of it, holds its end of the pipe still."""
    assert process.stderr_fd is not None
    try:
        return os.read(process.stderr_fd, 8192).decode(errors="replace").strip()
    except BlockingIOError:
        return ""


def _abandon(process: ProcessHandle) -> None:
    """End a shim that nobody watches yet."""
    process.signal_group(signal.SIGKILL)
    select.select([process.pidfd], [], [], SWEEP_TIMEOUT_S)
    process.reap()
    os.close(process.pidfd)
    if process.stderr_fd is not None:
        os.close(process.stderr_fd)


def _state(run: Path) -> dict[str, Any]:
    state: dict[str, Any] = json.loads((run / "state.json").read_bytes())
    return state


def _hold_lock(directory: Path) -> int | None:
    """The lock of the instance, or None when a shim holds it."""
    fd = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def _connect(control: socket.socket, run: Path) -> None:
    """Connect through a descriptor of the directory: a socket path has room for 107 bytes only."""
    folder = os.open(run, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        control.connect(f"/proc/self/fd/{folder}/control")
    finally:
        os.close(folder)


def stragglers(state: Mapping[str, Any]) -> list[proc.Stat]:
    everyone = proc.processes()
    now = {one.pid: one.start_ticks for one in everyone}
    # A number that a later process bears now says nothing about sessions and groups of that number
    session = (
        state["shim_pid"] if now.get(state["shim_pid"], state["shim_start_ticks"]) == state["shim_start_ticks"] else 0
    )
    group = state["pid"] if now.get(state["pid"], state["start_ticks"]) == state["start_ticks"] else 0
    mark = f"SENNIT_INSTANCE={state['instance_id']}".encode()
    found = {
        one.pid: one
        for one in everyone
        if one.state != "Z"
        and ((session and one.session == session) or (group and one.pgrp == group) or proc.has_mark(one.pid, mark))
    }
    for pid in list(found):
        found.update({one.pid: one for one in proc.descendants(pid, everyone) if one.state != "Z"})
    found.pop(os.getpid(), None)
    return list(found.values())


__all__ = [
    "ExitRecord", "LaunchSpec", "ShimFailed", "ShimHandle", "ShimLives", "ShimRefused", "adopt", "collect",
    "ended", "read_output", "start", "sweep",
]  # fmt: skip
