"""What processes, shims and arenas ask of the kernel: each thing is tried, not looked up (design 6, 7)."""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import socket
import time
from collections.abc import Callable, Iterable

from runtime.doctor.finding import Finding, Subject, attention, ok
from runtime.shim.linux import BootTimer

_PR_GET_CHILD_SUBREAPER, _PR_GET_NO_NEW_PRIVS = 37, 39
_REMEDY = "run on Linux 5.4 or newer; in a container or sandbox, allow this system call in its seccomp profile"


def pidfd(_: Subject) -> Iterable[Finding]:
    def attempt() -> None:
        fd = os.pidfd_open(os.getpid())
        try:
            signal.pidfd_send_signal(fd, 0)
            os.waitid(os.P_PIDFD, fd, os.WEXITED | os.WNOHANG)
        except ChildProcessError:
            pass  # it is not our child: the call itself is known
        finally:
            os.close(fd)

    yield tried("pidfd", attempt, "exits of processes could not be seen")


def eventfd(_: Subject) -> Iterable[Finding]:
    def attempt() -> None:
        fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        try:
            os.eventfd_write(fd, 7)
            if os.eventfd_read(fd) != 7:
                raise OSError("it lost what was written to it")
        finally:
            os.close(fd)

    yield tried("eventfd", attempt, "edges could not wake their readers")


def memfd_seals(_: Subject) -> Iterable[Finding]:
    def attempt() -> None:
        fd = os.memfd_create("sennit-doctor", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, 4096)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
            try:
                os.ftruncate(fd, 0)
            except PermissionError:
                return
            raise OSError("a sealed memory could be made smaller")
        finally:
            os.close(fd)

    yield tried("memfd seals", attempt, "a workload could take an arena away under its node")


def subreaper(_: Subject) -> Iterable[Finding]:
    def attempt() -> None:
        value = ctypes.c_int()
        prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(value))
        prctl(_PR_GET_NO_NEW_PRIVS, 0)

    yield tried("subreaper", attempt, "a shim could not collect what its workload leaves")


def boottime(_: Subject) -> Iterable[Finding]:
    def attempt() -> None:
        time.clock_gettime(time.CLOCK_BOOTTIME)
        timer = BootTimer()
        timer.set(None)
        os.close(timer.fd)

    yield tried("CLOCK_BOOTTIME", attempt, "leases would not count the time that the machine sleeps")


def descriptors(_: Subject) -> Iterable[Finding]:
    def attempt() -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs:
            socket.send_fds(ours, [b"x"], [theirs.fileno()])
            _, fds, _, _ = socket.recv_fds(theirs, 1, 1)
            if len(fds) != 1:
                raise OSError("a descriptor that was passed did not arrive")
            os.close(fds[0])

    yield tried("SCM_RIGHTS", attempt, "workloads could not be given their arenas")


def tried(check: str, attempt: Callable[[], None], without: str) -> Finding:
    """The finding of an attempt; `without`: what would not work."""
    try:
        attempt()
    except (OSError, AttributeError) as error:
        return attention(check, f"does not work ({error}): {without}", _REMEDY)
    return ok(check, "works")


def prctl(option: int, argument: object) -> None:
    """Raises `OSError`."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, argument, 0, 0, 0) < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


__all__ = ["boottime", "descriptors", "eventfd", "memfd_seals", "pidfd", "subreaper", "tried"]
