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
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import median, quantiles
from typing import TypeVar

from actors.actor import AskFailed
from messages.base import Address
from messages.control import CtlConfig, Interval, Method
from messages.placement import InstanceOrder, ListNodes, PlaceOrder
from messages.supervision import ShowChildren
from messages.system import GetState
from runtime.bench.machine import machine
from runtime.client import Client
from runtime.cluster.cluster import Cluster
from runtime.cluster.create import init_cluster
from runtime.cluster.settings import Restarts
from runtime.packages.directory import pack, sign
from runtime.up import all_running

A = TypeVar("A")

ROUNDS = 20
NODE = "shed"
LIMIT_S = 30.0
POLL_S = 0.002

ROOT, PROCESSES = Address("root/supervisor"), Address("root/processes")
PLANE = Address("controller/plane")

_COG = """\
[cog]
id = "idle"
version = "0.1.0"
description = "Waits for SIGTERM"
[resources]
ram_mb = 64
cpu_pct = 5
[console]
max_runtime_secs = 600
output_limit_bytes = 4096
[simulation]
behaviour = "hostwatch"
[package]
release_url = "urn:sennit:bench:idle"
binaries = { noarch = "idle.py" }
"""
_IDLE = "import signal\nsignal.sigwait({signal.SIGTERM})\n"


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
    with tempfile.TemporaryDirectory(prefix="sb-") as name, _cluster(Path(name)) as (cluster, client, instance):
        taken = [_round(cluster, client, instance) for _ in range(rounds + 1)][1:]  # the first fills caches
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
    _until("the killed node serves", lambda: client.ask(PLANE, order, 2.0))
    serving_ms = (time.monotonic() - killed) * 1000
    successor: int = client.ask(PROCESSES, GetState()).state[NODE]["pid"]
    processor_ms = (
        sum(int(one.read_text().split()[0]) for one in Path(f"/proc/{successor}/task").glob("*/schedstat")) / 1e6
    )
    noticed = _until("the root's line", lambda: root_log.time_of("child ended"))
    started = _until("the node's line", lambda: node_log.time_of("process starts"))
    ready = _until("the agent's line", lambda: node_log.time_of("node agent ready"))
    _until("the root sees it ready", lambda: all_running(client.ask(ROOT, ShowChildren())))
    return _Round(
        noticed_ms=max(0.0, noticed - killed_wall) * 1000,
        started_ms=(started - killed_wall) * 1000,
        ready_ms=(ready - killed_wall) * 1000,
        processor_ms=processor_ms,
        serving_ms=serving_ms,
        bare_ms=_bare_python_ms(),
    )


def _bare_python_ms() -> float:
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    return (time.monotonic() - began) * 1000


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


@contextmanager
def _cluster(folder: Path) -> Iterator[tuple[Cluster, Client, str]]:
    """A running cluster, a client, and the instance that runs on `NODE`."""
    first_s = Restarts().backoff_first_s
    cluster = init_cluster(
        folder / "c",
        ["attic", NODE, "loft"],
        name="bench",
        restarts=Restarts(intensity=1000, backoff_first_s=first_s, backoff_ceiling_s=first_s),
    )
    source, package = folder / "idle-source", folder / "idle"
    source.mkdir()
    (source / "cog.toml").write_text(_COG)
    (source / "idle.py").write_text(_IDLE)
    pack(source, package)
    sign(package, cluster.signer_key())
    command = [sys.executable, "-P", "-m", "runtime.up", str(cluster.path)]
    root = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        with Client.connect(cluster) as client:
            _until("the cluster is up", lambda: all_running(client.ask(ROOT, ShowChildren(), 2.0)))
            _until("every node beats", lambda: all(node.reachable for node in client.ask(PLANE, ListNodes()).nodes))
            order = PlaceOrder(package_dir=str(package), config=CtlConfig(mode=Interval(secs=1)), pin=NODE)
            placed = _until("the workload is placed", lambda: client.ask(PLANE, order, LIMIT_S).placed)
            try:
                yield cluster, client, placed.instance_id
            finally:
                for method in (Method.STOP, Method.UNLOAD):
                    client.ask(PLANE, InstanceOrder(method=method.value, instance=placed.instance_id), LIMIT_S)
    finally:
        root.terminate()
        root.wait(LIMIT_S)


def _until(what: str, attempt: Callable[[], A | None]) -> A:
    """The first true result. Raises `RuntimeError`."""
    deadline = time.monotonic() + LIMIT_S
    last = ""
    while time.monotonic() < deadline:
        try:
            found = attempt()
        except AskFailed as failed:
            last = f": {failed}"
        else:
            if found:
                return found
        time.sleep(POLL_S)
    raise RuntimeError(f"not within {LIMIT_S:g} s: {what}{last}")


def _p90(values: list[float]) -> float:
    return quantiles(values, n=10, method="inclusive")[-1] if len(values) > 1 else values[0]


def _ms(value: float) -> float:
    return round(value, 1)


__all__ = ["Restarted", "run"]
