"""Who can read and write what belongs to a cluster, and as whom things run (design 5, 11)."""

from __future__ import annotations

import os
import pwd
import signal
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from runtime.cluster.cluster import MAX_IPC_PATH_BYTES
from runtime.doctor.finding import Finding, Subject, attention, note, ok

_TIGHT_BYTES = 8
_OPEN = stat.S_IWGRP | stat.S_IWOTH


def cluster_directory(subject: Subject) -> Iterable[Finding]:
    """What every process trusts: only its owner may write there."""
    if subject.folder is None or not subject.folder.is_dir():
        return
    found = list(_writable_by_others(subject.folder))
    if found:
        paths = " ".join(map(str, found))
        yield attention(
            "cluster directory", f"others can write {paths}: they could change what is trusted", f"chmod go-w {paths}"
        )
    else:
        yield ok("cluster directory", "only its owner can write it")


def keys(subject: Subject) -> Iterable[Finding]:
    folder = None if subject.folder is None else subject.folder / "keys"
    if folder is None:
        return
    if not folder.is_dir():
        yield note("keys", f"{folder} is not there: no process can run here")
        return
    problems = [*_private(folder), *(one for file in sorted(folder.glob("*.key")) for one in _private(file))]
    for path, what, remedy in problems:
        yield attention("keys", f"{path} {what}", remedy)
    if not problems:
        yield ok("keys", f"{len(list(folder.glob('*.key')))} keys, readable by their owner only")


def run_directory(subject: Subject) -> Iterable[Finding]:
    if subject.cluster is None or not subject.cluster.run_dir.exists():
        return
    problems = list(_private(subject.cluster.run_dir))
    for path, what, remedy in problems:
        yield attention("run directory", f"{path} {what}: others could take its sockets", remedy)
    if not problems:
        yield ok("run directory", f"{subject.cluster.run_dir}, its owner's only")


def socket_paths(subject: Subject) -> Iterable[Finding]:
    """A path that is too long was refused when the cluster was read."""
    files = () if subject.cluster is None else subject.cluster.socket_files()
    if not files:
        return
    longest = max(files, key=lambda file: len(os.fsencode(file)))
    size = len(os.fsencode(longest))
    if size > MAX_IPC_PATH_BYTES - _TIGHT_BYTES:
        yield note(
            "socket paths",
            f"{longest} has {size} of {MAX_IPC_PATH_BYTES} bytes: a node with a longer name may not fit",
            "set run_dir in cluster.toml to a shorter folder",
        )
    else:
        yield ok("socket paths", f"{size} of {MAX_IPC_PATH_BYTES} bytes at most")


def child_signal(_: Subject) -> Iterable[Finding]:
    if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
        yield attention(
            "SIGCHLD",
            "is ignored here, as whoever started this shell left it: exits of children would be lost, and up refuses",
            "trap - CHLD, then start again from that shell",
        )
    else:
        yield ok("SIGCHLD", "as it should be")


def accounts(subject: Subject) -> Iterable[Finding]:
    """As whom the workloads of each node run."""
    if subject.cluster is None:
        return
    for name, node in subject.cluster.nodes.items():
        yield judge_account(name, node.run_as, os.geteuid(), _user_of(node.run_as))


def judge_account(node: str, run_as: str | None, own: int, user: int | None) -> Finding:
    """`own`: the user id of the node's process; `user`: that of the account `run_as`, None when there is none."""
    check = f"account ({node})"
    where = f"run_as of node {node} in cluster.toml"
    if run_as is None:
        if own == 0:
            return attention(
                check,
                "workloads would run as root, so every one is refused",
                f"set {where} to an account, or run the cluster as another user",
            )
        return ok(check, "workloads run as this user")
    if user is None:
        return attention(check, f"there is no account {run_as!r} here", f"useradd --system {run_as}, or change {where}")
    if own not in (0, user):
        return attention(
            check,
            f"workloads are to run as {run_as!r}, and only root can start them as somebody else",
            f"run the node as root or as {run_as}, or take away {where}",
        )
    if user == 0:
        return note(check, "workloads run as root, as cluster.toml allows", f"set {where} to an account without rights")
    return ok(check, f"workloads run as {run_as}")


def _private(path: Path) -> Iterator[tuple[Path, str, str]]:
    status = path.lstat()
    mode = "700" if stat.S_ISDIR(status.st_mode) else "600"
    if stat.S_ISLNK(status.st_mode):
        yield path, "is a link", f"replace it by what it points to: rm {path}"
    elif status.st_uid != os.geteuid():
        yield path, f"belongs to user {status.st_uid}, not to {os.geteuid()} who asks", f"chown {os.geteuid()} {path}"
    elif status.st_mode & 0o077:
        yield path, f"has mode {stat.S_IMODE(status.st_mode):04o}, not 0{mode}", f"chmod {mode} {path}"


def _writable_by_others(folder: Path) -> Iterator[Path]:
    names = ("", "cluster.toml", "directory.json", "policy.toml", "trust.json", "state", "logs")
    for path in (folder / name for name in names):
        if path.exists() and path.stat().st_mode & _OPEN:
            yield path


def _user_of(account: str | None) -> int | None:
    try:
        return None if account is None else pwd.getpwnam(account).pw_uid
    except KeyError:
        return None


__all__ = [
    "accounts", "child_signal", "cluster_directory", "judge_account", "keys", "run_directory", "socket_paths",
]  # fmt: skip
