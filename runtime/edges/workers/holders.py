"""Who has the memory of an arena mapped or open (promise 5).

A shim that was killed leaves no record, and a descendant that left its session and cleared its environment is found
by nobody then. If it has ring memory it is found by that. Processes that this one may not look into are not seen; to
have no descriptor left to look with is an error, and no proof that nobody is there.
"""

from __future__ import annotations

import errno
import os
import signal
from contextlib import suppress

from runtime.processes import proc

_NOT_SEEN = frozenset({errno.ENOENT, errno.ESRCH, errno.EACCES, errno.EPERM})
"""It has just ended, or is none of ours."""


def holders(arena_fd: int) -> list[proc.Stat]:
    """Every other process that maps the arena or has a descriptor of it; it looks at all processes there are.

    Raises `OSError` when it cannot look, for want of descriptors or memory.
    """
    arena = os.fstat(arena_fd)
    mapped = f" {os.major(arena.st_dev):02x}:{os.minor(arena.st_dev):02x} {arena.st_ino} ".encode()
    return [one for one in proc.processes() if one.pid != os.getpid() and _holds(one.pid, arena, mapped)]


def kill(processes: list[proc.Stat]) -> None:
    """SIGKILL, to exactly these."""
    boot = proc.boot_id() if processes else ""
    for one in processes:
        pidfd = proc.open_same(one.pid, one.start_ticks, boot)
        if pidfd is not None:
            with suppress(ProcessLookupError, PermissionError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            os.close(pidfd)


def _holds(pid: int, arena: os.stat_result, mapped: bytes) -> bool:
    """Threads share both; but of a process whose first thread has ended only the others tell."""
    try:
        thread = max(os.listdir(f"/proc/{pid}/task"), key=int)
        if mapped in proc.read_file(f"/proc/{pid}/task/{thread}/maps"):
            return True
        names = os.listdir(f"/proc/{pid}/task/{thread}/fd")
    except ValueError:
        return False  # it has just ended
    except OSError as error:
        if error.errno not in _NOT_SEEN:
            raise
        return False
    return any(_is(f"/proc/{pid}/task/{thread}/fd/{name}", arena) for name in names)


def _is(path: str, arena: os.stat_result) -> bool:
    try:
        return os.readlink(path).startswith("/memfd:") and os.path.samestat(os.stat(path), arena)
    except OSError as error:
        if error.errno not in _NOT_SEEN:
            raise
        return False


__all__ = ["holders", "kill"]
