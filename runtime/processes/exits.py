"""The one place that sees processes end and reaps them (design 6).

A thread waits on pidfds, so an exit is noticed when it happens, without SIGCHLD, polling or a second owner. It also
keeps the last bytes each child wrote to standard error: they say why a child died before it could say so itself.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from runtime.processes import proc
from runtime.processes.spawn import STDERR_TAIL_BYTES, ProcessHandle

ORPHANS_EVERY_S = 1.0


@dataclass(frozen=True)
class Exit:
    """`code`: exit code, minus the signal, or None for a process that was not our child."""

    pid: int
    code: int | None
    stderr_tail: str = ""


def describe(code: int | None) -> str:
    """The exit in words."""
    if code is None:
        return "gone"
    return f"killed by signal {-code}" if code < 0 else f"exit code {code}"


class ExitWatch:
    """Call back once per watched process, on the watch's own thread, after it is reaped.

    A callback that raises does not stop the watch: the error goes to `on_error`. As process 1 of a container the
    watch also collects the orphans of others, who become children of that process without being started by it.
    """

    def __init__(self, on_error: Callable[[BaseException], object], *, collect_orphans: bool | None = None) -> None:
        self._on_error = on_error
        self._collects = os.getpid() == 1 if collect_orphans is None else collect_orphans
        self._started: set[int] = set()
        self._zombies: set[int] = set()
        self._looked_s = time.monotonic()
        self._epoll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll.register(self._wake, select.EPOLLIN)
        self._lock = threading.Lock()
        self._ready: dict[int, Callable[[], None]] = {}  # descriptor -> what to do when it is readable
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="exits", daemon=True)
        self._thread.start()

    def watch(self, handle: ProcessHandle, on_exit: Callable[[Exit], object]) -> None:
        """Report the end of a child, which is reaped here."""
        self._started.add(handle.pid)
        tail = None if handle.stderr_fd is None else _Tail(handle.stderr_fd, self._close)
        if tail is not None:
            self._add(tail.fd, tail.drain)

        def ended() -> None:
            code = handle.reap()
            if code is None:
                return
            self._started.discard(handle.pid)
            self._close(handle.pidfd)
            text = ""
            try:
                text = tail.finish() if tail is not None else ""
            except BaseException as error:  # its last words are lost, its end is told all the same
                self._on_error(error)
            on_exit(Exit(handle.pid, code, text))

        self._add(handle.pidfd, ended)

    def watch_stranger(self, pid: int, pidfd: int, on_exit: Callable[[Exit], object]) -> None:
        """Report the end of a process that is not our child. Takes over `pidfd`."""

        readable = select.poll()
        readable.register(pidfd, select.POLLIN)

        def ended() -> None:
            if not readable.poll(0):
                return  # the event was about an earlier descriptor of this number
            self._close(pidfd)
            on_exit(Exit(pid, None))

        self._add(pidfd, ended)

    def close(self) -> None:
        """Stop watching; children that live stay unreaped."""
        self._stopping = True
        os.eventfd_write(self._wake, 1)
        self._thread.join(5)
        self._epoll.close()
        os.close(self._wake)

    def _run(self) -> None:
        while not self._stopping:
            for fd, _ in self._epoll.poll(ORPHANS_EVERY_S if self._collects else None):
                with self._lock:
                    action = self._ready.get(fd)
                if action is None:
                    continue  # the wake-up, or dropped in this round
                try:
                    action()
                except BaseException as error:  # one exit's trouble is not another's
                    self._on_error(error)

            if self._collects:
                self._collect_orphans()

    def _collect_orphans(self) -> None:
        """Reap dead children that nobody watches and that were there a round ago: those just started are not."""
        now_s = time.monotonic()
        if now_s - self._looked_s < ORPHANS_EVERY_S:
            return
        self._looked_s = now_s
        found = {
            one.pid
            for one in proc.processes()
            if one.ppid == os.getpid() and one.state == "Z" and one.pid not in self._started
        }
        for pid in found & self._zombies:
            os.waitpid(pid, os.WNOHANG)
        self._zombies = found

    def _add(self, fd: int, action: Callable[[], None]) -> None:
        with self._lock:
            self._ready[fd] = action
        self._epoll.register(fd, select.EPOLLIN)

    def _drop(self, fd: int) -> None:
        with self._lock:
            known = self._ready.pop(fd, None)
        if known is not None:
            # A closed descriptor left epoll by itself
            try:
                self._epoll.unregister(fd)
            except (OSError, ValueError):
                return

    def _close(self, fd: int) -> None:
        with self._lock:
            known = fd in self._ready
        if known:
            self._drop(fd)
            os.close(fd)


class _Tail:
    """The end of what a child wrote to standard error."""

    def __init__(self, fd: int, close: Callable[[int], None]) -> None:
        self.fd = fd
        self._close = close
        self._open = True
        self._bytes = bytearray()

    def drain(self) -> None:
        """Read what is there and keep the end of it."""
        try:
            self._drain()
        except BaseException:
            self._end()  # or the same would happen again at once
            raise

    def _drain(self) -> None:
        for _ in range(16):  # a child that floods must not keep others from being seen
            if not self._open:
                return
            try:
                part = os.read(self.fd, 65536)
            except BlockingIOError:
                return
            if part:
                self._bytes += part
                del self._bytes[:-STDERR_TAIL_BYTES]
            else:
                self._end()

    def finish(self) -> str:
        """Read the rest, even if a process elsewhere holds the other end, and close."""
        self.drain()
        self._end()
        return self._bytes.decode("utf-8", "replace")

    def _end(self) -> None:
        if self._open:
            self._open = False
            self._close(self.fd)


__all__ = ["Exit", "ExitWatch", "describe"]
