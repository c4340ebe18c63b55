"""Clocks that leases and records rely on (design 8): their rates, the boot they count from, who sets the wall clock."""

from __future__ import annotations

import ctypes
import os
import re
import time
from collections.abc import Iterable

from runtime.doctor.finding import Finding, Subject, attention, note, ok
from runtime.processes import proc

EARLIEST_S = 1_735_689_600
"""2025-01-01: a clock before that was never set."""

LOOK_S = 0.1
RATE_LIMIT = 0.05
ATTEMPTS = 3
_UNSYNC = 0x40
_BOOT_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def boot_id(_: Subject) -> Iterable[Finding]:
    found = proc.boot_id()
    if _BOOT_ID.fullmatch(found):
        yield ok("boot id", found)
    else:
        yield attention(
            "boot id",
            f"{found!r} names no boot: a lease could be counted from another one, and no shim can be adopted",
            "give the container the host's /proc/sys/kernel/random/boot_id",
        )


def wall(_: Subject) -> Iterable[Finding]:
    yield judge_wall(time.time())


def rates(_: Subject) -> Iterable[Finding]:
    seen = [_progress() for _ in range(ATTEMPTS)]
    yield judge_rates(min(seen, key=lambda one: abs(one[0] - one[1])))


def sleep(_: Subject) -> Iterable[Finding]:
    asleep_s = time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)
    if asleep_s > 1:
        yield note("sleep", f"this machine slept {asleep_s:.0f} s since its boot; leases go on meanwhile")
    else:
        yield ok("sleep", "not since the boot")


def synchronised(_: Subject) -> Iterable[Finding]:
    yield judge_synchronised(_status())


def judge_wall(now_s: float) -> Finding:
    if now_s >= EARLIEST_S:
        return ok("wall clock", time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now_s)))
    return attention(
        "wall clock",
        f"says {time.strftime('%Y-%m-%d', time.gmtime(now_s))}: it was never set, and records would carry that time",
        "timedatectl set-ntp true, or date --set",
    )


def judge_rates(progress: tuple[float, float]) -> Finding:
    """`progress`: seconds that wall and monotonic clock advanced between the same two looks."""
    of_wall, of_monotonic = progress
    if of_monotonic > 0 and abs(of_wall - of_monotonic) <= RATE_LIMIT * of_monotonic:
        return ok("clock rates", "wall and monotonic clock go alike")
    return attention(
        "clock rates",
        f"the wall clock went {of_wall * 1000:.1f} ms in {of_monotonic * 1000:.1f} ms: something sets it over and "
        "over, or this machine is paused and resumed",
        "one service that sets the clock, not two; no snapshots of a machine that runs workloads with leases",
    )


def judge_synchronised(status: int | None) -> Finding:
    """`status` of adjtimex, None when it cannot be read."""
    if status is None:
        return note("time service", "whether the wall clock is synchronised cannot be read here")
    if status & _UNSYNC:
        return note(
            "time service",
            "the wall clock is not synchronised: leases do not need it, but records of two machines will not line up",
            "timedatectl set-ntp true (in a container: on its host)",
        )
    return ok("time service", "the wall clock is synchronised")


def _progress() -> tuple[float, float]:
    wall_s, monotonic_s = time.time(), time.monotonic()
    time.sleep(LOOK_S)
    return time.time() - wall_s, time.monotonic() - monotonic_s


def _status() -> int | None:
    class Timex(ctypes.Structure):
        """`struct timex` up to `status`, and room for the rest."""

        _fields_ = [
            ("modes", ctypes.c_uint),
            ("offset", ctypes.c_long),
            ("freq", ctypes.c_long),
            ("maxerror", ctypes.c_long),
            ("esterror", ctypes.c_long),
            ("status", ctypes.c_int),
            ("rest", ctypes.c_byte * 256),
        ]

    found = Timex()
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.adjtimex(ctypes.byref(found)) < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    except (OSError, AttributeError):
        return None
    return int(found.status)


__all__ = [
    "boot_id", "judge_rates", "judge_synchronised", "judge_wall", "rates", "sleep", "synchronised", "wall",
]  # fmt: skip
