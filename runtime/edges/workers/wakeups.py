"""One thread that tells an actor that descriptors of its want attention, never more than one message at a time.

The actor does all reading and writing itself, so its state needs no lock and a flood fills no mailbox: a descriptor
rings once, and rings again only when the actor has armed it again.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable

AGAIN_S = 0.1
"""When the mailbox was full the actor is told again after this long."""


class Wakeups:
    """`tell` is called on the thread of the wake-ups; False: the actor did not get it. Then `take` names the keys."""

    def __init__(self, tell: Callable[[], bool]) -> None:
        self._tell = tell
        self._lock = threading.Lock()
        self._keys: dict[int, int] = {}
        self._due: dict[int, None] = {}
        self._told = False
        self._closing = False
        self._epoll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll.register(self._wake, select.EPOLLIN)
        self._thread = threading.Thread(target=self._run, name="wakeups", daemon=True)
        self._thread.start()

    def arm(self, fd: int, key: int, *, writing: bool = False) -> None:
        """Ring `key` once when `fd` is readable or at its end, or, when `writing`, has room."""
        events = select.EPOLLIN | select.EPOLLONESHOT | (select.EPOLLOUT if writing else 0)
        with self._lock:
            known = fd in self._keys
            self._keys[fd] = key
        if known:
            self._epoll.modify(fd, events)
        else:
            self._epoll.register(fd, events)

    def drop(self, fd: int) -> None:
        """Forget it, before it is closed. What rang already may still be taken."""
        with self._lock:
            known = self._keys.pop(fd, None) is not None
        if known:
            self._epoll.unregister(fd)

    def ring(self, key: int) -> None:
        """Ring `key` now; from any thread, even when all is closed."""
        with self._lock:
            if not self._closing:
                self._due[key] = None
                os.eventfd_write(self._wake, 1)

    def take(self) -> list[int]:
        """What rang since the last time."""
        with self._lock:
            due = list(self._due)
            self._due.clear()
            self._told = False
        return due

    def close(self) -> None:
        with self._lock:
            self._closing = True
            os.eventfd_write(self._wake, 1)
        self._thread.join(5)
        self._epoll.close()
        os.close(self._wake)

    def _run(self) -> None:
        untold = False
        while not self._closing:
            events = self._epoll.poll(AGAIN_S if untold else None)
            with self._lock:
                for fd, _ in events:
                    if fd == self._wake:
                        os.eventfd_read(self._wake)
                    elif fd in self._keys:
                        self._due[self._keys[fd]] = None
                telling = bool(self._due) and not self._told
                self._told |= telling
            untold = telling and not self._tell()
            if untold:
                with self._lock:
                    self._told = False


__all__ = ["Wakeups"]
