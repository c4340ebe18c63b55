"""What inputs and outputs share: the rings of a port, how a call waits, how a ring comes and goes.

Two threads meet here: the workload's, in a call, and the one that serves the channel. The port's lock is held for a
step and never while waiting; whoever waits is woken by the rings' eventfds or by the port's own, which the serving
thread adds to when it has changed something. One thread at a time may call a port.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable
from math import ceil
from threading import Lock
from typing import Generic, TypeVar
from weakref import finalize

from runtime.workload.errors import PortClosed, PortTimeout
from runtime.workload.link import Link

L = TypeVar("L", bound=Link)
T = TypeVar("T")


class Port(Generic[L]):
    """A named port and the rings that are installed for it now, none to many.

    `faults` counts the lives of edges that ended since somebody broke the rules of the ring, `last_fault` says how
    the newest did; the node knows them too. The port goes on with the next life.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.faults = 0
        self.last_fault = ""
        self._lock = Lock()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        finalize(self, os.close, self._wake_fd).atexit = False  # when it is gone: a call may be about to wait for it
        self._links: list[L] = []
        self._retiring: list[L] = []
        self._over = ""
        """Why nothing is moved any more, once that is so."""
        self._lost = 0
        """Lives that ended before their stream did, and have no successor yet."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}, {len(self._links)} edges{', ' * bool(self._over)}{self._over}>"

    @property
    def connected(self) -> bool:
        """True while at least one edge is installed and sound."""
        return any(link.usable for link in self._links)

    def wait_connected(self, timeout_s: float | None = None) -> None:
        """Until an edge is installed. Raises `PortTimeout`, `PortClosed`."""
        self._await(self._is_connected, timeout_s, "no edge was installed")

    def _is_connected(self) -> bool:
        self._check_open()
        return self.connected

    # Waiting

    def _await(self, attempt: Callable[[], T | None], timeout_s: float | None, what: str) -> T:
        """Call `attempt`, under the lock, until it returns something true: at once, and whenever anything changed."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            with self._lock:
                result = attempt()
                if result:
                    return result
                waits_for = [fd for link in self._links if (fd := self._waits_for(link)) is not None]
            left_ms = None
            if deadline is not None:
                left_ms = ceil((deadline - time.monotonic()) * 1000)
                if left_ms <= 0:
                    raise PortTimeout(f"port {self.name}: {what} within {timeout_s:g} s; try again, or see {_WHERE}")
            poller = select.poll()
            poller.register(self._wake_fd, select.POLLIN)
            for fd in waits_for:
                poller.register(fd, select.POLLIN)
            for fd, _ in poller.poll(left_ms):
                if fd == self._wake_fd:
                    os.eventfd_read(fd)

    def _waits_for(self, link: L) -> int | None:
        """The eventfd of `link` that tells what a waiting call needs."""
        raise NotImplementedError

    def _check_open(self) -> None:
        """Raises `PortClosed`."""
        if self._over:
            raise PortClosed(f"port {self.name} is closed: {self._over}; nothing moves through it any more")

    # Links, under the lock

    def _admit(self, link: L) -> None:
        """Raises `Refusal` for what this port does not take."""

    def _prune(self) -> None:
        """Leave alone what has faulted."""
        for link in [link for link in self._links if not link.usable]:
            self._links.remove(link)
            self._lost += 1
            self.faults += 1
            self.last_fault = link.faulted

    def _let_go(self) -> None:
        """Unmap what is uninstalled, as far as nobody looks at it."""
        if self._retiring:
            self._retiring = [link for link in self._retiring if not link.let_go()]

    # Called by the thread that serves the channel

    def installed(self, link: L) -> None:
        """Use `link`. Raises `Refusal`; then it is the caller's to let go of."""
        with self._lock:
            self._admit(link)
            self._links = [*self._links, link]
            self._lost = max(0, self._lost - 1)
            link.channel.tell("installed", link.ring_id)
            if self._over:
                link.channel.tell("closed", link.ring_id)  # a later life of an edge whose stream is over
            self._changed()

    def uninstalled(self, link: L) -> None:
        with self._lock:
            if link in self._links:
                self._links = [other for other in self._links if other is not link]
                self._lost += 1
            if link.retired:
                return
            link.retire()
            if not link.let_go():
                self._retiring.append(link)
            self._changed()

    def let_go(self) -> bool:
        """Try again to unmap what is uninstalled; True when there is nothing left."""
        with self._lock:
            self._let_go()
            return not self._retiring

    def close(self) -> None:
        """Move nothing more. May be called again."""
        raise NotImplementedError

    def shut(self, why: str) -> None:
        """The process ends, or the ports do: everything that waits is told `why`."""
        with self._lock:
            self._over = self._over or why
            self._changed()

    def dispose(self) -> None:
        """After `shut` and the last `uninstalled`: whoever still holds a view unmaps its ring by dropping it."""
        with self._lock:
            for link in self._retiring:
                link.abandon()
            self._retiring = []

    def forked(self) -> list[object]:
        """In a fork: forget everything without a lock, whose holder may not exist here. See `Link.abandon`."""
        self._lock = Lock()
        self._over = "this process is a fork of the workload, and rings are not shared with forks"
        links, self._links, self._retiring = [*self._links, *self._retiring], [], []
        return [kept for link in links if (kept := link.abandon()) is not None]

    def _changed(self) -> None:
        os.eventfd_write(self._wake_fd, 1)


_WHERE = "`sennit edge ls` for the state of its edges"

__all__ = ["Port"]
