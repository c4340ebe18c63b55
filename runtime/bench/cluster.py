"""A cluster of processes for a benchmark, started as `sennit up` starts it, with a workload that does nothing."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from actors.actor import AskFailed
from messages.base import Address
from messages.control import CtlConfig, Interval, Method
from messages.placement import InstanceOrder, ListNodes, PlaceOrder
from messages.supervision import ShowChildren
from runtime.client import Client
from runtime.cluster.cluster import Cluster
from runtime.cluster.create import init_cluster, update_cluster
from runtime.cluster.settings import FILE_NAME, Restarts
from runtime.leftovers import kill_all
from runtime.packages.directory import pack, sign
from runtime.up import all_running

A = TypeVar("A")

LIMIT_S = 30.0
POLL_S = 0.002
ROOT, PLANE = Address("root/supervisor"), Address("controller/plane")
CONFIG = CtlConfig(mode=Interval(secs=1))

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


@contextmanager
def running(
    folder: Path, nodes: Sequence[str], *, edges_by_tcp: bool = False
) -> Iterator[tuple[Cluster, Client, Path]]:
    """A cluster whose nodes all beat, a client, and the directory of a signed package. Raises `RuntimeError`.

    Its restarts are never spent, and come as soon as a first one does. `edges_by_tcp`: bytes of edges between nodes
    go through the loopback device instead of sockets in the file system.
    """
    first_s = Restarts().backoff_first_s
    restarts = Restarts(intensity=1000, backoff_first_s=first_s, backoff_ceiling_s=first_s)
    cluster = init_cluster(folder / "c", list(nodes), name="bench", restarts=restarts)
    if edges_by_tcp:
        with (cluster.path / FILE_NAME).open("a") as settings:
            for node in nodes:
                settings.write(f'[endpoints.{node}]\nedges = "tcp://127.0.0.1:{free_port()}"\n')
        cluster = update_cluster(cluster.path)
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
            until("the cluster is up", lambda: all_running(client.ask(ROOT, ShowChildren(), 2.0)))
            until("every node beats", lambda: all(node.reachable for node in client.ask(PLANE, ListNodes()).nodes))
            yield cluster, client, package
    finally:
        root.terminate()
        try:
            root.wait(LIMIT_S)
        finally:
            kill_all(folder)  # workloads outlive a cluster


def place(client: Client, package: Path, pin: str | None = None) -> str:
    """Place the package, as soon as the cluster takes orders; the instance."""
    order = PlaceOrder(package_dir=str(package), config=CONFIG, pin=pin)
    placed = until("the workload is placed", lambda: client.ask(PLANE, order, LIMIT_S).placed)
    return placed.instance_id


def unload(client: Client, instance: str) -> None:
    for method in (Method.STOP, Method.UNLOAD):
        client.ask(PLANE, InstanceOrder(method=method.value, instance=instance), LIMIT_S)


def free_port() -> int:
    """A port of the loopback device that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def bare_python_s() -> float:
    """How long a Python that does nothing takes: that much no program in this language can save."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    return time.monotonic() - began


def until(what: str, attempt: Callable[[], A | None]) -> A:
    """The first true result; what is asked for and fails is not there yet. Raises `RuntimeError` after `LIMIT_S`."""
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


__all__ = ["CONFIG", "LIMIT_S", "PLANE", "ROOT", "bare_python_s", "free_port", "place", "running", "unload", "until"]
