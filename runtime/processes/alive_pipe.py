"""How a child knows that its parent lives: a pipe whose write end only the parent holds (design 6).

The kernel closes that end however the parent ends, so the child's read returns even after a SIGKILL, and at once when
the parent was gone before the child looked. `PDEATHSIG` would not do: it fires when the *thread* that spawned ends.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping

PARENT_FD = "SENNIT_PARENT_FD"
"""The environment variable that names the inherited descriptor."""

ORPHANED_EXIT = 71
"""Exit code of a process that left because its parent was gone."""


class AlivePipe:
    """The parent's side: one pipe for all children. Children inherit `read_fd`; nobody inherits the other end."""

    def __init__(self) -> None:
        self.read_fd, self._write_fd = os.pipe()

    def close(self) -> None:
        """Tell all children that the parent is gone."""
        os.close(self.read_fd)
        os.close(self._write_fd)


def watch_parent(
    environment: Mapping[str, str], on_death: Callable[[], object], *, grace_s: float = 0.8
) -> threading.Thread | None:
    """Call `on_death` when the parent is gone, and leave hard `grace_s` seconds later if it did not end the process.

    To be called first thing in a child. Returns None when the process was not given a pipe: it has no parent to
    outlive. Raises `ValueError` when the variable does not name a descriptor.
    """
    text = environment.get(PARENT_FD)
    if text is None:
        return None
    try:
        fd = int(text)
        os.set_inheritable(fd, False)
    except (ValueError, OSError) as error:
        raise ValueError(
            f"{PARENT_FD}={text!r} is no open descriptor ({error}): start this process by its parent"
        ) from error

    def wait() -> None:
        while os.read(fd, 1):
            pass
        leave = threading.Timer(grace_s, os._exit, (ORPHANED_EXIT,))
        leave.daemon = True
        leave.start()
        on_death()

    thread = threading.Thread(target=wait, name="parent", daemon=True)
    thread.start()
    return thread


__all__ = ["ORPHANED_EXIT", "PARENT_FD", "AlivePipe", "watch_parent"]
