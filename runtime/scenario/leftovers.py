"""What a cluster leaves behind on this host: processes, socket files, shared memory (promise 6).

A process belongs to a cluster when its command line, its environment or its working directory names the cluster's
folder; so a workload that lost its parent is found too.
"""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where the kernel keeps it
_PREFIX = "sennit"


@dataclass(frozen=True, slots=True)
class Found:
    """A process of the cluster: its number and its command line."""

    pid: int
    command: tuple[str, ...]


def processes_of(folder: Path) -> list[Found]:
    """Every living process of the cluster in `folder`, this one excepted."""
    return [found for found in _all_processes() if _belongs(found, os.fsencode(folder))]


def process_named(folder: Path, name: str) -> int | None:
    """The process id of a process of the cluster, started as `-m runtime.process NAME --cluster DIR`."""
    for found in _all_processes():
        command = found.command
        if "runtime.process" in command and str(folder) in command:
            after = command[command.index("runtime.process") + 1 :]
            if after and after[0] == name:
                return found.pid
    return None


def kill_all(folder: Path) -> list[Found]:
    """Kill what is left of the cluster; returns what was found."""
    found = processes_of(folder)
    for process in found:
        try:
            os.kill(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    return found


def sockets_in(folder: Path) -> list[Path]:
    """Every socket file below `folder`."""
    return [path for path in folder.rglob("*") if stat.S_ISSOCK(path.lstat().st_mode)]


def shared_memory() -> set[str]:
    """Names of shared memory that processes of sennit made."""
    if not SHARED_MEMORY.is_dir():
        return set()
    return {entry.name for entry in SHARED_MEMORY.iterdir() if entry.name.startswith(_PREFIX)}


def _belongs(found: Found, mark: bytes) -> bool:
    root = Path("/proc") / str(found.pid)
    try:
        if mark in (root / "cmdline").read_bytes() or mark in (root / "environ").read_bytes():
            return True
        return os.fsencode(os.readlink(root / "cwd")).startswith(mark)
    except OSError:  # it ended, or belongs to somebody else
        return False


def _all_processes() -> Iterator[Found]:
    own = os.getpid()
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == own:
            continue
        try:
            command = Path("/proc", name, "cmdline").read_bytes()
        except OSError:
            continue
        if command:  # kernel threads and zombies have none
            yield Found(int(name), tuple(os.fsdecode(part) for part in command.rstrip(b"\0").split(b"\0")))
