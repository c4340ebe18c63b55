"""The table of checks, in the order in which they are told (design 11)."""

from __future__ import annotations

from collections.abc import Iterator

from runtime.doctor import access, clocks, disk, kernel, limits, remains, versions
from runtime.doctor.finding import Check, Finding, Subject, note

CHECKS: dict[str, tuple[Check, ...]] = {
    "kernel": (
        kernel.pidfd, kernel.eventfd, kernel.memfd_seals, kernel.subreaper, kernel.boottime, kernel.descriptors,
        access.child_signal,
    ),
    "limits": (limits.open_files, limits.tasks, limits.pid_max, limits.shared_memory),
    "clocks": (clocks.boot_id, clocks.wall, clocks.rates, clocks.sleep, clocks.synchronised),
    "versions": (versions.python, versions.packages, versions.zmq_features, versions.sqlite),
    "disk": (disk.filesystem, disk.room, disk.durable_writes),
    "access": (
        access.cluster_directory, access.keys, access.run_directory, access.socket_paths, access.accounts,
    ),
    "left over": (remains.remains,),
}  # fmt: skip


def examine(subject: Subject) -> Iterator[tuple[str, Finding]]:
    """Every finding with its group. What cannot be read here is told as such, and the rest is checked all the same."""
    for group, checks in CHECKS.items():
        for check in checks:
            try:
                findings = list(check(subject))
            except OSError as error:
                findings = [note(check.__name__.replace("_", " "), f"cannot be read here: {error}")]
            for finding in findings:
                yield group, finding


__all__ = ["CHECKS", "examine"]
