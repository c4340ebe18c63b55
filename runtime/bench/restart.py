"""`sennit bench restart`: how soon the death of a process is noticed, and how soon its successor serves.

A cluster of its own, started as `sennit up` starts it, with one workload on the node that is killed. A round kills
that node with SIGKILL and takes these times from just before the kill, each where it happens:

* noticed: the root's supervisor has handled the exit, as the line it logs then says (so to the millisecond);
* started: the new process is through with its imports and its keys, ready: its agent has adopted the workload, by the
  lines that these two log;
* serving: the benchmark's order for the workload's status, sent through the control plane, was answered by the new
  process. Orders that find no link are refused at once and sent again.

The processor time that the new process has used by then does not depend on who else uses the machine.

The back-off before each start is that after a first failure. A bare `python -c pass` is timed between the rounds: that
much of a restart no program in this language can save, and it tells how busy the machine was.
"""

from __future__ import annotations

import json
import os
import select
import signal
import tempfile
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import median, quantiles

from messages.base import Address
from messages.control import Method
from messages.placement import InstanceOrder
from messages.supervision import ShowChildren
from messages.system import GetState
from runtime.bench.cluster import LIMIT_S, PLANE, ROOT, bare_python_s, place, running, unload, until
from runtime.bench.machine import machine
from runtime.client import Client
from runtime.cluster.cluster import Cluster
from runtime.up import all_running

ROUNDS = 20
NODE = "shed"
PROCESSES = Address("root/processes")


@dataclass(frozen=True)
class Restarted:
    """Milliseconds after the kill, over all rounds."""

    rounds: int
    noticed_median_ms: float
    noticed_p90_ms: float
    started_median_ms: float
    ready_median_ms: float
    processor_median_ms: float
    serving_median_ms: float
    serving_p90_ms: float
    back_off_ms: float
    bare_python_median_ms: float
    machine: str


@dataclass(frozen=True)
class _Round:
    noticed_ms: float
    started_ms: float
    ready_ms: float
    processor_ms: float
    serving_ms: float
    bare_ms: float


def run(rounds: int = ROUNDS) -> Restarted:
    """Raises `RuntimeError` when the cluster does not come up or back."""
    with (
        tempfile.TemporaryDirectory(prefix="sb-") as name,
        running(Path(name), ["attic", NODE, "loft"]) as (cluster, client, package),
    ):
        instance = place(client, package, NODE)
        taken = [_round(cluster, client, instance) for _ in range(rounds + 1)][1:]  # the first fills caches
        unload(client, instance)
        noticed = [one.noticed_ms for one in taken]
        serving = [one.serving_ms for one in taken]
        return Restarted(
            rounds=rounds,
            noticed_median_ms=_ms(median(noticed)),
            noticed_p90_ms=_ms(_p90(noticed)),
            started_median_ms=_ms(median(one.started_ms for one in taken)),
            ready_median_ms=_ms(median(one.ready_ms for one in taken)),
            processor_median_ms=_ms(median(one.processor_ms for one in taken)),
            serving_median_ms=_ms(median(serving)),
            serving_p90_ms=_ms(_p90(serving)),
            back_off_ms=_ms(cluster.restarts.backoff_first_s * 1000),
            bare_python_median_ms=_ms(median(one.bare_ms for one in taken)),
            machine=machine(),
        )


def _round(cluster: Cluster, client: Client, instance: str) -> _Round:
    pid: int = client.ask(PROCESSES, GetState()).state[NODE]["pid"]
    root_log, node_log = _Tail(cluster.log_file("root")), _Tail(cluster.log_file(NODE))
    order = InstanceOrder(method=Method.STATUS.value, instance=instance)
    pidfd = os.pidfd_open(pid)
    try:
        killed, killed_wall = time.monotonic(), time.time()
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        select.select([pidfd], [], [], LIMIT_S)  # from here on no answer can be the old process's
    finally:
        os.close(pidfd)
    until("the killed node serves", lambda: client.ask(PLANE, order, 2.0))
    serving_ms = (time.monotonic() - killed) * 1000
    successor: int = client.ask(PROCESSES, GetState()).state[NODE]["pid"]
    processor_ms = (
        sum(int(one.read_text().split()[0]) for one in Path(f"/proc/{successor}/task").glob("*/schedstat")) / 1e6
    )
    noticed = until("the root's line", lambda: root_log.time_of("child ended"))
    started = until("the node's line", lambda: node_log.time_of("process starts"))
    ready = until("the agent's line", lambda: node_log.time_of("node agent ready"))
    until("the root sees it ready", lambda: all_running(client.ask(ROOT, ShowChildren())))
    return _Round(
        noticed_ms=max(0.0, noticed - killed_wall) * 1000,
        started_ms=(started - killed_wall) * 1000,
        ready_ms=(ready - killed_wall) * 1000,
        processor_ms=processor_ms,
        serving_ms=serving_ms,
        bare_ms=bare_python_s() * 1000,
    )


class _Tail:
    """The lines of a process's log that come after now."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._from = file.stat().st_size if file.exists() else 0

    def time_of(self, text: str) -> float | None:
        """Unix seconds of the first such line."""
        with self._file.open("rb") as lines:
            lines.seek(self._from)
            for line in lines:
                if line.endswith(b"\n") and (entry := json.loads(line))["text"] == text:
                    return datetime.fromisoformat(entry["time"]).timestamp()
        return None


def _p90(values: list[float]) -> float:
    return quantiles(values, n=10, method="inclusive")[-1] if len(values) > 1 else values[0]


def _ms(value: float) -> float:
    return round(value, 1)


__all__ = ["Restarted", "run"]
