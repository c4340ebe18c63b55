"""The three system calls a shim needs that Python 3.11 does not offer."""

from __future__ import annotations

import ctypes
import os

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_CLOCK_BOOTTIME = 7
_TFD_TIMER_ABSTIME = 1
_TFD_FLAGS = os.O_CLOEXEC | os.O_NONBLOCK

_libc = ctypes.CDLL(None, use_errno=True)
_LONG = ctypes.c_ulong


def _check(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def _prctl(option: int, value: int, what: str) -> None:
    _check(_libc.prctl(option, _LONG(value), _LONG(0), _LONG(0), _LONG(0)), what)


def become_subreaper() -> None:
    """Orphans among our descendants become our children."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1, "PR_SET_CHILD_SUBREAPER")


def die_with_parent(signal: int) -> None:
    """Be sent `signal` when the thread that forked us ends. Cleared by a change of user: call it after that."""
    _prctl(_PR_SET_PDEATHSIG, signal, "PR_SET_PDEATHSIG")


def give_up_new_privileges() -> None:
    """No program run from here on gains rights, or loses the signal of `die_with_parent`, by a set-user-id bit."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1, "PR_SET_NO_NEW_PRIVS")


class BootTimer:
    """A descriptor that is readable at a time of `CLOCK_BOOTTIME`, also when the machine slept through it."""

    def __init__(self) -> None:
        self.fd = _check(_libc.timerfd_create(_CLOCK_BOOTTIME, _TFD_FLAGS), "timerfd_create")
        self._spec = (ctypes.c_int64 * 4)()  # struct itimerspec: interval, value, as seconds and nanoseconds

    def set(self, at_ms: int | None) -> None:
        """Fire once at `at_ms`, at once if that is over; None: never."""
        at_ms = 0 if at_ms is None else max(at_ms, 1)
        self._spec[2], self._spec[3] = at_ms // 1000, at_ms % 1000 * 1_000_000
        _check(_libc.timerfd_settime(self.fd, _TFD_TIMER_ABSTIME, self._spec, None), "timerfd_settime")

    def clear(self) -> None:
        """Take note of the firing."""
        try:
            os.read(self.fd, 8)
        except BlockingIOError:
            return


__all__ = ["BootTimer", "become_subreaper", "die_with_parent", "give_up_new_privileges"]
