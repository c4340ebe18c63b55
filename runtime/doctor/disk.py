"""The disk under the state of a cluster: room, speed, and whether it keeps what it says it has (design 9)."""

from __future__ import annotations

import os
import re
import statistics
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from runtime.doctor.finding import Finding, Subject, attention, note, ok
from runtime.doctor.limits import mib

ROOM_BYTES = 256 * 1024 * 1024
ROOM_INODES = 1_000
FSYNCS = 5
SLOW_S = 0.1
"""A placement waits for about five of them, one after the other."""

VOLATILE = ("tmpfs", "ramfs")
REMOTE = re.compile(r"nfs\d?|cifs|smb\d?|smbfs|9p|ceph|glusterfs|afs|lustre|fuse\.(sshfs|s3fs|rclone|glusterfs|ceph).*")
_ESCAPE = re.compile(r"\\([0-7]{3})")


def filesystem(subject: Subject) -> Iterable[Finding]:
    folder = state_folder(subject)
    if folder is not None:
        yield judge_filesystem(filesystem_of(folder, Path("/proc/self/mountinfo").read_text()), folder)


def room(subject: Subject) -> Iterable[Finding]:
    folder = state_folder(subject)
    if folder is not None:
        status = os.statvfs(folder)
        yield judge_room(folder, status.f_bavail * status.f_frsize)
        yield judge_inodes(folder, status.f_favail if status.f_files else None)


def durable_writes(subject: Subject) -> Iterable[Finding]:
    folder = state_folder(subject)
    if folder is None:
        return
    try:
        yield judge_writes(folder, statistics.median(_fsync_s(folder)))
    except OSError as error:
        yield attention(
            "durable writes",
            f"{folder} cannot be written: {error.strerror}",
            f"look at its mount and owner: ls -ld {folder}",
        )


def state_folder(subject: Subject) -> Path | None:
    """Where state is, or will be. None without a cluster directory."""
    if subject.folder is None or not subject.folder.is_dir():
        return None
    state = subject.folder / "state"
    return state if state.is_dir() else subject.folder


def filesystem_of(path: Path, mountinfo: str) -> str:
    """The type of the filesystem that holds `path`, of the text of /proc/self/mountinfo; empty when unknown."""
    real, best, found = Path(os.path.realpath(path)), -1, ""
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, kinds = before.split(), after.split()
        if len(fields) < 5 or not kinds:
            continue
        mounted = Path(_ESCAPE.sub(lambda match: chr(int(match[1], 8)), fields[4]))
        if real.is_relative_to(mounted) and len(mounted.parts) >= best:  # a later mount hides an earlier one
            best, found = len(mounted.parts), kinds[0]
    return found


def judge_filesystem(kind: str, folder: Path) -> Finding:
    check = "filesystem"
    if kind in VOLATILE:
        return attention(
            check,
            f"{folder} is on {kind}: chain, placements and instances are gone at the next boot",
            "move the cluster directory to a disk",
        )
    if REMOTE.fullmatch(kind):
        return attention(
            check,
            f"{folder} is on {kind}, over a network: locks and durable writes may not hold what they promise",
            "move the cluster directory to a local disk",
        )
    if kind == "overlay":
        return note(check, f"{folder} is on {kind}: it goes with its container, unless a volume is mounted there")
    return ok(check, kind or "of a type that cannot be told")


def judge_room(folder: Path, free_bytes: int) -> Finding:
    if free_bytes >= ROOM_BYTES:
        return ok("disk space", f"{mib(free_bytes)} free")
    return attention(
        "disk space",
        f"{mib(free_bytes)} free under {folder}: a chain that cannot write stops new acts",
        f"make room on it: df -h {folder}",
    )


def judge_inodes(folder: Path, free: int | None) -> Finding:
    if free is None:
        return ok("inodes", "not counted by this filesystem")
    if free >= ROOM_INODES:
        return ok("inodes", f"{free} free")
    return attention(
        "inodes", f"{free} free under {folder}: files cannot be made", f"remove files on it: df -i {folder}"
    )


def judge_writes(folder: Path, median_s: float) -> Finding:
    told = f"{median_s * 1000:.1f} ms, median of {FSYNCS}"
    if median_s <= SLOW_S:
        return ok("durable writes", told)
    return attention(
        "durable writes",
        f"{told}: nothing is done before its record is durable, so every act waits for several of them",
        f"move {folder} to a faster disk, or find who else writes to this one",
    )


def _fsync_s(folder: Path) -> list[float]:
    took = []
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(FSYNCS):
            file.write(b"x" * 4096)
            began = time.perf_counter()
            file.flush()
            os.fsync(file.fileno())
            took.append(time.perf_counter() - began)
    return took


__all__ = [
    "durable_writes", "filesystem", "filesystem_of", "judge_filesystem", "judge_inodes", "judge_room", "judge_writes",
    "room", "state_folder",
]  # fmt: skip
