"""What a cluster left that is not up, and what runs beside one that is (promise 6)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from runtime.cluster import Cluster, cluster_holder
from runtime.doctor.finding import Finding, Subject, attention, note, ok
from runtime.leftovers import Found, Kind, processes_of, stale_sockets
from runtime.processes import proc


def remains(subject: Subject) -> Iterable[Finding]:
    cluster = subject.cluster
    if cluster is None:
        return
    holder = cluster_holder(cluster)
    found = processes_of(cluster.path)
    if holder is not None:
        below = {holder, *(one.pid for one in proc.descendants(holder))}
        strangers = [one for one in found if one.kind is Kind.PROCESS and one.pid not in below]
        yield _processes(cluster, strangers, f"the root (process {holder}) did not start")
        return
    yield _processes(cluster, [one for one in found if one.kind is Kind.PROCESS], "outlived their root")
    workloads = [one for one in found if one.kind is Kind.WORKLOAD]
    if workloads:
        yield note(
            "workloads",
            f"{_names(workloads)} go on under their shims though the cluster is not up",
            f"sennit down --workloads --cluster {cluster.path} ends them; sennit up adopts them",
        )
    yield from _sockets(cluster, found)


def _processes(cluster: Cluster, found: Sequence[Found], what: str) -> Finding:
    if not found:
        return ok("processes", "none is left over")
    return attention("processes", f"{_names(found)}: processes that {what}", f"sennit down --cluster {cluster.path}")


def _sockets(cluster: Cluster, found: Sequence[Found]) -> Iterable[Finding]:
    stale = [] if any(one.kind is Kind.PROCESS for one in found) else stale_sockets(cluster)
    if stale:
        yield attention(
            "sockets",
            f"{len(stale)} files of a cluster that is not up, {stale[0]} among them",
            f"sennit down --cluster {cluster.path}",
        )
    else:
        yield ok("sockets", "none is left over")


def _names(found: Sequence[Found]) -> str:
    return ", ".join(f"{one.name} ({one.pid})" for one in found)


__all__ = ["remains"]
