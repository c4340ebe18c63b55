"""How much this user may have at once: descriptors, processes, shared memory (design 6)."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable, Iterator
from pathlib import Path

from runtime.doctor.finding import Finding, Subject, attention, note, ok
from runtime.leftovers import SHARED_MEMORY

NOFILE_LEAST = 1024
"""A node needs some 60 descriptors, and about 10 a workload with its edges."""

TASKS_LEAST = 300
"""A process of the cluster has about 15 threads; a workload has a shim and its own."""

PID_MAX_LEAST = 4096
SHM_LEAST_BYTES = 64 * 1024 * 1024
CGROUPS = Path("/sys/fs/cgroup")


def open_files(_: Subject) -> Iterable[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield judge_open_files(_finite(soft), _finite(hard))


def tasks(_: Subject) -> Iterable[Finding]:
    soft = _finite(resource.getrlimit(resource.RLIMIT_NPROC)[0])
    bounded = os.geteuid() != 0  # the kernel does not hold root to it
    yield judge_tasks(
        "processes (user)", soft if bounded else None, _own_tasks(), "ulimit -u, or LimitNPROC= of the unit"
    )
    for current, most in _cgroup_tasks(Path("/proc/self/cgroup"), CGROUPS):
        yield judge_tasks(
            "processes (cgroup)", most, current, "TasksMax= of the unit, or --pids-limit of the container"
        )


def pid_max(_: Subject) -> Iterable[Finding]:
    least = min(int(Path(f"/proc/sys/kernel/{name}").read_text()) for name in ("pid_max", "threads-max"))
    if least >= PID_MAX_LEAST:
        yield ok("process ids", f"{least} at most")
    else:
        yield attention(
            "process ids",
            f"this machine has {least} process ids, fewer than {PID_MAX_LEAST}: starts will fail",
            "sysctl -w kernel.pid_max=32768 kernel.threads-max=32768",
        )


def shared_memory(_: Subject) -> Iterable[Finding]:
    folder, check = SHARED_MEMORY, str(SHARED_MEMORY)
    if not folder.is_dir():
        yield note(check, "is not there; sennit's own arenas do not need it, workloads may")
        return
    status = os.statvfs(folder)
    free = status.f_bavail * status.f_frsize
    if free < SHM_LEAST_BYTES:
        yield note(check, f"{mib(free)} free: workloads that share memory there may fail", "mount it larger")
    else:
        yield ok(check, f"{mib(free)} free")


def judge_open_files(soft: int | None, hard: int | None) -> Finding:
    """None: no limit."""
    if soft is None or soft >= NOFILE_LEAST:
        return ok("open files", f"{'no limit' if soft is None else soft} a process")
    can = hard is None or hard >= NOFILE_LEAST
    remedy = f"ulimit -n {NOFILE_LEAST}" if can else f"raise the hard limit (now {hard}): LimitNOFILE= of the unit"
    return attention(
        "open files", f"{soft} a process, fewer than {NOFILE_LEAST}: a node with workloads runs out", remedy
    )


def judge_tasks(check: str, most: int | None, current: int, where: str) -> Finding:
    """Threads and processes count alike. None: no limit."""
    if most is None:
        return ok(check, f"no limit, {current} now")
    if most - current >= TASKS_LEAST:
        return ok(check, f"{current} of {most}")
    return attention(
        check,
        f"{current} of {most} taken, fewer than {TASKS_LEAST} are left: processes or threads will not start",
        f"raise {where}",
    )


def mib(size: float) -> str:
    return f"{size / 1024**3:.1f} GiB" if size >= 1024**3 else f"{size / 1024**2:.0f} MiB"


def _finite(value: int) -> int | None:
    return None if value == resource.RLIM_INFINITY else value


def _own_tasks() -> int:
    count, user = 0, os.getuid()
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if os.stat(f"/proc/{name}").st_uid == user:
                    count += len(os.listdir(f"/proc/{name}/task"))
            except OSError:  # it has just ended
                continue
    return count


def _cgroup_tasks(own: Path, mounted: Path) -> Iterator[tuple[int, int]]:
    """Current and most, of this process's control group and those above that have a bound (cgroup v2)."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return
    place = next((line.removeprefix("0::").lstrip("/") for line in lines if line.startswith("0::")), None)
    while place is not None:
        try:
            most = (mounted / place / "pids.max").read_text().strip()
            if most != "max":
                yield int((mounted / place / "pids.current").read_text()), int(most)
        except OSError:
            pass
        place = place.rpartition("/")[0] if place else None


__all__ = ["judge_open_files", "judge_tasks", "mib", "open_files", "pid_max", "shared_memory", "tasks"]
