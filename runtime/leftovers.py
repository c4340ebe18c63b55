"""What a cluster has on this host: processes, shims, workloads, sockets; and how to end what it left (promise 6).

A process is told by what it was started with: its command names a folder of the cluster, or its environment does
(`SENNIT_DATA_DIR`, which every workload gets). An editor, a shell or a log viewer in the folder is none of it, nor is
another cluster whose path begins alike, nor one of the same path in another container. What a workload started
without its environment is found below its shim, or by the session and group that its shim wrote down.

Lock files are not left over: a lock ends with its process. The one exception lies beside a socket, and goes with it.
"""

from __future__ import annotations

import json
import os
import select
import signal
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import Any

from runtime.cluster import Cluster
from runtime.office.listen import IpcClaim, ListenFault
from runtime.processes import proc
from runtime.shim import client
from runtime.shim.client import ShimFailed, ShimHandle

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where the kernel keeps it
GRACE_S = 5.0
"""From the polite signal until the kill."""

KILL_S = 5.0
"""A killed process is gone by then, or is told as left."""

_SHARED_PREFIX = "sennit"
_ROOT = "root"
_DATA_DIR, _INSTANCE = "SENNIT_DATA_DIR", "SENNIT_INSTANCE"
_SHIM = "runtime/shim/shim.py"
_TOLD_LATER = (ShimFailed, OSError, ValueError)
"""What may keep one instance from being ended: its processes are then among those still there."""


class Kind(StrEnum):
    PROCESS = "process"
    SHIM = "shim"
    WORKLOAD = "workload"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A living process. `name`: of the process in its cluster, or the instance that a shim or workload belongs to."""

    kind: Kind
    name: str
    pid: int
    start_ticks: int
    command: tuple[str, ...]


def processes_of(folder: Path) -> list[Found]:
    """Every living process of the clusters at or below `folder`, this one excepted: processes, shims, workloads."""
    everyone = {one.pid: one for one in proc.processes() if one.state != "Z" and one.pid != os.getpid()}
    found = {pid: one for pid, stat_ in everyone.items() if (one := _told_by_start(stat_, folder)) is not None}
    for shim in [one for one in found.values() if one.kind is Kind.SHIM]:
        below = {one.pid for one in proc.descendants(shim.pid, list(everyone.values()))}
        below |= {one.pid for one in everyone.values() if one.session == shim.pid}
        _add(found, everyone, below, shim.name)
    for state in _run_states(folder):
        _add(found, everyone, {one.pid for one in client.stragglers(state)}, str(state["instance_id"]))
    return sorted(found.values(), key=lambda one: (list(Kind).index(one.kind), one.name, one.pid))


def process_named(folder: Path, name: str) -> int | None:
    """The process id of a process of the cluster in `folder`."""
    return next((one.pid for one in processes_of(folder) if one.kind is Kind.PROCESS and one.name == name), None)


def kill_all(folder: Path) -> list[Found]:
    """Kill what is left of the clusters at or below `folder` at once; returns what was found."""
    found = processes_of(folder)
    for one in found:
        _signal(one, signal.SIGKILL)
    return found


def sockets_in(folder: Path) -> list[Path]:
    """Every socket file below `folder`."""
    return [path for path in folder.rglob("*") if _is_socket(path)]


def shared_memory() -> set[str]:
    """Names of shared memory that processes of sennit made."""
    if not SHARED_MEMORY.is_dir():
        return set()
    return {entry.name for entry in SHARED_MEMORY.iterdir() if entry.name.startswith(_SHARED_PREFIX)}


# Ending what a cluster left that is not up. The caller holds the lock of the cluster, so nobody brings it up meanwhile.


def end_processes(cluster: Cluster, timeout_s: float) -> tuple[list[Found], list[Found]]:
    """End its processes in reverse start order, politely and then not. Returns those found and those still there."""
    order = {str(name): position for position, name in enumerate(cluster.processes)}
    found = [one for one in processes_of(cluster.path) if one.kind is Kind.PROCESS]
    found.sort(key=lambda one: order.get(one.name, len(order)), reverse=True)
    deadline = time.monotonic() + timeout_s
    for one in found:
        _signal(one, signal.SIGTERM)
        _signal(one, signal.SIGCONT)  # a stopped process hears nothing else
        if not _wait_gone(one, min(GRACE_S, deadline - time.monotonic())):
            _signal(one, signal.SIGKILL)
            _wait_gone(one, KILL_S)
    return found, [one for one in found if _lives(one)]


def workloads_of(cluster: Cluster) -> list[Found]:
    """Shims and workloads that live, of every node of this host."""
    return [one for one in processes_of(cluster.path) if one.kind is not Kind.PROCESS]


def end_workloads(cluster: Cluster) -> tuple[list[Found], list[Found]]:
    """Stop every workload by its shim, sweep what has none. Returns those found and those still there.

    How a run ended stays beside it, and the node reads it when it comes back.
    """
    found = workloads_of(cluster)
    stopping: list[tuple[Path, ShimHandle]] = []
    for directory in _instances(cluster.path):
        with suppress(*_TOLD_LATER):
            if not _is_strangers(directory):
                handle = client.adopt(directory)  # sweeps where there is no shim
                if isinstance(handle, ShimHandle):
                    stopping.append((directory, handle))
                    _stop(handle)
    _wait(lambda: all(handle.gone() for _, handle in stopping), GRACE_S + KILL_S)
    for directory, handle in stopping:
        handle.kill()
        _wait(handle.gone, KILL_S)
        handle.close()
        with suppress(*_TOLD_LATER):
            client.collect(directory)
    for one in found:
        _signal(one, signal.SIGKILL)
    _wait(lambda: not any(_lives(one) for one in found), KILL_S)
    return found, workloads_of(cluster)


def stale_sockets(cluster: Cluster) -> list[Path]:
    """Socket files and their locks in the run directory. They are stale when no process of the cluster lives."""
    beside = (path for file in cluster.socket_files() for path in (file, Path(f"{file}.lock")))
    return [path for path in beside if os.path.lexists(path)]


def remove_sockets(cluster: Cluster) -> tuple[list[Path], list[str]]:
    """Remove dead socket files. Returns those removed and, as sentences, why others were not."""
    before = stale_sockets(cluster)
    refused = []
    for file in cluster.socket_files():
        if file in before or Path(f"{file}.lock") in before:
            try:
                IpcClaim(str(file)).release()
            except ListenFault as fault:
                refused.append(str(fault))
    return [path for path in before if not os.path.lexists(path)], refused


def _stop(handle: ShimHandle) -> None:
    try:
        handle.stop(round(GRACE_S * 1000))
    except ShimFailed:  # it does not answer
        handle.kill()


def _is_strangers(directory: Path) -> bool:
    """Whether its run was written down elsewhere and copied here with the folder: those processes are not its own."""
    with suppress(OSError, ValueError, KeyError):
        return _strangers(json.loads((directory / "run/state.json").read_bytes()), directory)
    return False


def _strangers(state: Mapping[str, Any], directory: Path) -> bool:
    """Whether a process of the run says that it belongs to another folder."""
    if state["boot_id"] != proc.boot_id():
        return False
    for one in client.stragglers(state):
        with suppress(OSError):
            place = _environment(one.pid).get(_DATA_DIR)
            if place is not None and os.path.realpath(place) != os.path.realpath(directory / "data"):
                return True
    return False


def _told_by_start(process: proc.Stat, folder: Path) -> Found | None:
    pid = process.pid
    try:
        command = _words(pid, "cmdline")
        kind, name, place = _by_command(command)
        if kind is None:
            environment = _environment(pid)
            kind, name, place = Kind.WORKLOAD, environment.get(_INSTANCE, ""), environment.get(_DATA_DIR, "")
    except OSError:  # it ended, or belongs to somebody else
        return None
    if not place or not _within(place, folder) or not _same_place(pid, place):
        return None
    return Found(kind=kind, name=name, pid=pid, start_ticks=process.start_ticks, command=command)


def _words(pid: int, file: str) -> tuple[str, ...]:
    return tuple(os.fsdecode(part) for part in proc.read_file(f"/proc/{pid}/{file}").rstrip(b"\0").split(b"\0"))


def _environment(pid: int) -> dict[str, str]:
    return dict(word.split("=", 1) for word in _words(pid, "environ") if "=" in word)


def _by_command(command: tuple[str, ...]) -> tuple[Kind | None, str, str]:
    """What the command line says it is, its name, and the folder it names."""
    modules = dict(pairwise(command))
    match modules.get("-m"):
        case "runtime.process":
            return Kind.PROCESS, modules.get("runtime.process", ""), modules.get("--cluster", "")
        case "runtime.up":
            return Kind.PROCESS, _ROOT, modules.get("runtime.up", "")
        case "runtime.cli" if modules.get("runtime.cli") == "up":
            return Kind.PROCESS, _ROOT, modules.get("--cluster", "")
        case _:
            pass
    if any(word.endswith(_SHIM) for word in command[:4]):
        own = command[: command.index("--")] if "--" in command else command  # after that come the workload's words
        options = dict(word.split("=", 1) for word in own if "=" in word)
        return Kind.SHIM, options.get("instance", ""), options.get("run", "")
    return None, "", ""


def _within(place: str, folder: Path) -> bool:
    return Path(os.path.realpath(place)).is_relative_to(os.path.realpath(folder))


def _same_place(pid: int, place: str) -> bool:
    """Whether the path means to that process what it means here: in another container it is another folder."""
    seen = f"/proc/{pid}/root"
    try:
        try:
            return os.path.samestat(os.stat(seen + os.path.abspath(place)), os.stat(place))
        except FileNotFoundError:
            return os.path.samestat(os.stat(seen), os.stat("/"))
    except OSError:
        return False


def _add(found: dict[int, Found], everyone: dict[int, proc.Stat], pids: Iterable[int], instance: str) -> None:
    for pid in pids:
        if pid not in found and pid in everyone:
            ticks = everyone[pid].start_ticks
            with suppress(OSError):
                command = _words(pid, "cmdline")
                found[pid] = Found(kind=Kind.WORKLOAD, name=instance, pid=pid, start_ticks=ticks, command=command)


def _instances(folder: Path) -> Iterator[Path]:
    for above in ("", "*/"):
        for lock in sorted(folder.glob(f"{above}state/*/instances/*/lock")):
            yield lock.parent


def _run_states(folder: Path) -> Iterator[Mapping[str, Any]]:
    """What the shims of this boot wrote down of runs that did not end by themselves."""
    for directory in _instances(folder):
        with suppress(OSError, ValueError, KeyError):
            state = json.loads((directory / "run/state.json").read_bytes())
            current = state["boot_id"] == proc.boot_id() and client.ended(directory) is None
            if current and not _strangers(state, directory):
                yield state


def _signal(one: Found, number: int) -> None:
    pidfd = proc.open_same(one.pid, one.start_ticks, proc.boot_id())
    if pidfd is not None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, number)
        os.close(pidfd)


def _lives(one: Found) -> bool:
    now = proc.stat(one.pid)
    return now is not None and now.start_ticks == one.start_ticks and now.state != "Z"


def _wait_gone(one: Found, limit_s: float) -> bool:
    pidfd = proc.open_same(one.pid, one.start_ticks, proc.boot_id())
    if pidfd is None:
        return True
    try:
        return bool(select.select([pidfd], [], [], max(0.0, limit_s))[0])
    finally:
        os.close(pidfd)


def _wait(condition: Callable[[], bool], limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while not condition() and time.monotonic() < deadline:
        select.select([], [], [], 0.02)


def _is_socket(path: Path) -> bool:
    try:
        return stat.S_ISSOCK(path.lstat().st_mode)
    except FileNotFoundError:
        return False


__all__ = [
    "SHARED_MEMORY", "Found", "Kind", "end_processes", "end_workloads", "kill_all", "process_named", "processes_of",
    "remove_sockets", "shared_memory", "sockets_in", "stale_sockets", "workloads_of",
]  # fmt: skip
