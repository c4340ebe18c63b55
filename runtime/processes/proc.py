"""What `/proc` says about processes: who is whose child, and whether a pid still means the same process.

A pid alone names nothing: it is given again after the process is gone, and at once in a small container. Boot id,
pid and start time together name one process (design 6). The shim imports this module too: keep it small.
"""

from __future__ import annotations

import errno
import os


class Stat:
    """A line of `/proc/PID/stat`. `start_ticks`: clock ticks after boot. A zombie's `state` is `Z`.

    The kernel says `Z` also of a process whose first thread has ended while others run on; that one lives.
    """

    __slots__ = ("pgrp", "pid", "ppid", "session", "start_ticks", "state")

    def __init__(self, pid: int, fields: list[bytes]) -> None:
        self.pid = pid
        threads = int(fields[17])
        self.state = "S" if fields[0] == b"Z" and threads > 1 else fields[0].decode()
        self.ppid, self.pgrp, self.session = int(fields[1]), int(fields[2]), int(fields[3])
        self.start_ticks = int(fields[19])


def read_file(path: str) -> bytes:
    """A small file of `/proc`, whole. Raises `OSError`."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = []
        while part := os.read(fd, 65536):
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(fd)


def boot_id() -> str:
    """The id of this boot of the kernel."""
    return read_file("/proc/sys/kernel/random/boot_id").decode().strip()


def stat(pid: int) -> Stat | None:
    """The process now, or None when there is none."""
    try:
        line = read_file(f"/proc/{pid}/stat")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return Stat(pid, line[line.rindex(b")") + 2 :].split())


def processes() -> list[Stat]:
    """All processes that can be seen, in no order and of no single moment."""
    return [one for name in os.listdir("/proc") if name.isdigit() and (one := stat(int(name))) is not None]


def descendants(root: int, among: list[Stat] | None = None) -> list[Stat]:
    """Children of `root`, their children and so on, parents first; `root` is not among them."""
    children: dict[int, list[Stat]] = {}
    for one in processes() if among is None else among:
        children.setdefault(one.ppid, []).append(one)
    found = list(children.get(root, ()))
    for one in found:  # grows while it is walked
        found += children.get(one.pid, ())
    return found


def has_mark(pid: int, mark: bytes) -> bool:
    """True when `mark` (`NAME=value`) is in the environment the process was started with, False when nobody may look.

    Raises `OSError` when it cannot look for want of descriptors: that is no answer.
    """
    try:
        try:
            environment = read_file(f"/proc/{pid}/environ")
        except ProcessLookupError:  # its first thread has ended, others may run on
            thread = max(os.listdir(f"/proc/{pid}/task"), key=int)
            environment = read_file(f"/proc/{pid}/task/{thread}/environ")
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise
        return False
    return mark in environment.split(b"\0")


def open_same(pid: int, start_ticks: int, boot: str) -> int | None:
    """A pidfd of exactly that process, or None when it is gone or the pid means another one now.

    The pidfd is opened first and the identity compared after: the other order leaves a gap in which the pid can
    change its owner. The caller closes the descriptor.
    """
    if boot != boot_id():
        return None
    try:
        pidfd = os.pidfd_open(pid)
    except (ProcessLookupError, OverflowError, OSError):
        return None
    found = stat(pid)
    if found is not None and found.start_ticks == start_ticks:
        return pidfd
    os.close(pidfd)
    return None


__all__ = ["Stat", "boot_id", "descendants", "has_mark", "open_same", "processes", "read_file", "stat"]
