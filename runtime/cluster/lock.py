"""Locks and marks of a cluster directory: one `sennit up` at a time, and no state of a stranger (design 5, 8).

A lock is `flock` on a file that also holds the process id of its holder, for people; it ends with the process.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from runtime.cluster.cluster import Cluster
from runtime.cluster.fault import ClusterFault, ClusterFaultCode

_UP = "up.lock"
_STATE = "lock"
_MARK = "owner.json"


@contextmanager
def lock_cluster(cluster: Cluster) -> Iterator[None]:
    """Held by the root while the cluster is up. Raises `ClusterFault` (`locked`) naming the holder's process id."""
    cluster.prepare()
    with _locked(cluster.path / "state" / _UP) as holder:
        if holder is not None:
            raise ClusterFault(
                ClusterFaultCode.LOCKED,
                f"cluster {cluster.name} in {cluster.path} is up already (process {holder}): see sennit status, or "
                "stop it with sennit down",
            )
        yield


def cluster_holder(cluster: Cluster) -> int | None:
    """The process id of the root that holds the cluster; None when it is not up."""
    path = cluster.path / "state" / _UP
    if not path.exists():
        return None
    with _locked(path, shared=True) as holder:
        return holder


@contextmanager
def lock_state(cluster: Cluster, name: str) -> Iterator[Path]:
    """The state folder of a process, made if need be and locked: its predecessor is gone, and the state is its own.

    Raises `ClusterFault`: `locked` by a living process, or `foreign_state` of another cluster, process or key.
    """
    folder = cluster.state_dir(name)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _locked(folder / _STATE) as holder:
        if holder is not None:
            raise ClusterFault(
                ClusterFaultCode.LOCKED,
                f"the state of {name!r} in {folder} is in use by process {holder}: stop that one first",
            )
        _check_mark(cluster, name, folder)
        yield folder


def _check_mark(cluster: Cluster, name: str, folder: Path) -> None:
    mark = {
        "cluster_id": cluster.cluster_id,
        "cluster": cluster.name,
        "process": name,
        "public_key": cluster.process(name).public_key.hex(),
    }
    path = folder / _MARK
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        staged = folder / f"{_MARK}.new"
        with staged.open("wb") as file:
            file.write(json.dumps(mark).encode())
            file.flush()
            os.fsync(file.fileno())
        staged.rename(path)
        return
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ClusterFault(
            ClusterFaultCode.FOREIGN_STATE,
            f"{path} is damaged, so nobody can tell whose state this is: restore the folder, or move it away to start "
            "without a past",
        )
    if found != mark:
        raise ClusterFault(
            ClusterFaultCode.FOREIGN_STATE,
            f"{folder} holds the state of {found.get('process')!r} of cluster {found.get('cluster')!r} "
            f"({found.get('cluster_id')}, key {str(found.get('public_key'))[:16]}), not of {name!r} of "
            f"{cluster.name!r} ({cluster.cluster_id}): move it away, or use its own cluster directory",
        )


@contextmanager
def _locked(path: Path, *, shared: bool = False) -> Iterator[int | None]:
    """Lock the file until the end of the block; yields the holder's process id (0 unknown) when another has it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            text = os.pread(descriptor, 20, 0).strip()
            yield int(text) if text.isdigit() else 0
            return
        if not shared:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield None
    finally:
        os.close(descriptor)
