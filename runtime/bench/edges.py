"""`sennit bench edges`: how fast objects move from the memory of one workload to the memory of another.

Clusters of processes on this machine, with workloads placed, governed and joined as anybody's are:

* one node: source and sink on one node, so through shared memory only. Its limit is one thread that copies between two
  regions as large as the rings.
* ipc, tcp: source and sink on two nodes, whose edges processes are joined by ZeroMQ with CURVE. Their limit is a bare
  pair of the same sockets that sends messages as large as the objects.

Limit and edge are measured in turns, medians are told. Latencies are one way, from before `send` to the record in the
sink's hands, at a low rate, beside two bare wake-ups of a process. Then a slow sink: what waits for it is bounded by
rings and credit. At last 24 busy edges on one node, and how long its agent takes to answer meanwhile.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from actors.edges.records import HEADER_BYTES
from messages.base import Address
from messages.control import CtlConfig, Interval
from messages.edge_plan import AddEdge, EdgeLine, EdgePhase, ListEdges, RemoveEdge
from messages.node import GetInstances
from messages.placement import PlaceOrder
from runtime.bench import cluster as bench
from runtime.bench import edge_flow
from runtime.bench.edge_limits import bare_per_s, copied_per_s, woken_us
from runtime.bench.machine import machine
from runtime.client import Client
from runtime.cluster.cluster import Cluster
from runtime.leftovers import Found, processes_of
from runtime.packages.directory import pack, sign
from runtime.scenario.observer import Observer

KIB, MIB = 1024, 1024 * 1024
RINGS = {4 * KIB: MIB, 64 * KIB: 4 * MIB, MIB: 8 * MIB, 16 * MIB: 48 * MIB}
"""Size of the objects, and of the rings at both ends of their edge."""

SECONDS = 0.6
ROUNDS = 3
SOURCES, SINKS = 4, 6
FAN_RING = 512 * KIB
ASKS = 400
LOOK_S = 0.1
PLANNER = Address("controller/edges")
LATENCY, STALL = 8, edge_flow.FAN_OBJECT

_COG = """\
[cog]
id = "{name}"
version = "0.1.0"
description = "Sends or receives objects for a benchmark"
[resources]
ram_mb = 512
cpu_pct = 50
[console]
max_runtime_secs = 600
output_limit_bytes = 65536
[config.role]
cli_arg = "--role"
type = "string"
[config.sizes]
cli_arg = "--sizes"
type = "string"
[config.seconds]
cli_arg = "--seconds"
type = "string"
[simulation]
behaviour = "hostwatch"
[package]
release_url = "urn:sennit:bench:{name}"
binaries = {{ noarch = "flow.py" }}
"""


@dataclass(frozen=True)
class Flow:
    """Objects of one size on one path. Medians over the rounds; shares of the limit that was measured beside them.

    `objects_per_s`, `bytes_per_s`, `share`: the source copies each object into its ring (`send`); `made_*`: it makes
    it there (`reserve`), 40 bytes smaller so that none wraps, and the edge alone is at work.
    """

    path: str
    object_bytes: int
    ring_bytes: int
    objects_per_s: float
    bytes_per_s: float
    share: float
    made_objects_per_s: float
    made_bytes_per_s: float
    made_share: float
    limit_bytes_per_s: float


@dataclass(frozen=True)
class Latency:
    """One way, microseconds; of the last round. `woken_*`: two bare wake-ups, measured beside it."""

    path: str
    p50_us: float
    p99_us: float
    woken_p50_us: float
    woken_p99_us: float


@dataclass(frozen=True)
class Bounded:
    """Behind a slow sink. `waiting_bytes`: most that was in both rings and between; `bound_bytes`: both rings."""

    path: str
    waiting_bytes: int
    bound_bytes: int
    grown_bytes: int


@dataclass(frozen=True)
class Beside:
    """Asks to a node's agent, milliseconds, without and with busy edges on that node."""

    edges: int
    idle_p99_ms: float
    busy_p50_ms: float
    busy_p99_ms: float
    bytes_per_s: float


@dataclass(frozen=True)
class EdgesFigures:
    machine: str
    flows: list[Flow]
    latencies: list[Latency]
    bounded: list[Bounded]
    beside: Beside | None


def run(
    *,
    rounds: int = ROUNDS,
    seconds: float = SECONDS,
    sizes: Sequence[int] = tuple(RINGS),
    paths: Sequence[str] = ("one node", "ipc", "tcp"),
    sources: int = SOURCES,
    sinks: int = SINKS,
) -> EdgesFigures:
    """Raises `RuntimeError` when a cluster does not come up or no objects come through."""
    found = EdgesFigures(machine(), [], [], [], None)
    for path in paths:
        with cluster_for(path) as stage:
            _measure(stage, path, found, rounds=rounds, seconds=seconds, sizes=sizes)
    if not sources:
        return found
    with cluster_for("one node") as stage:
        return EdgesFigures(
            found.machine, found.flows, found.latencies, found.bounded, _beside(stage, sources, sinks, seconds)
        )


class Stage:
    """A cluster, and packages of the one workload under as many names as there are instances."""

    def __init__(self, folder: Path, cluster: Cluster, client: Client) -> None:
        self._folder = folder
        self._cluster = cluster
        self._observer = Observer(client)
        self.client = client

    def place(self, name: str, node: str, role: str, sizes: Sequence[int] = (), seconds: float = 0.0) -> str:
        """The instance."""
        package = self._folder / name
        if not package.exists():
            source = self._folder / f"{name}-source"
            source.mkdir()
            (source / "cog.toml").write_text(_COG.format(name=name))
            (source / "flow.py").write_text(Path(edge_flow.__file__).read_text())
            pack(source, package)
            sign(package, self._cluster.signer_key())
        listed = "+".join(map(str, sizes)) or "none"
        args = ["--role", role, "--sizes", listed, "--seconds", str(seconds)]
        order = PlaceOrder(package_dir=str(package), config=CtlConfig(mode=Interval(secs=1), args=args), pin=node)
        report = bench.until("an order is taken", lambda: self.client.ask(bench.PLANE, order, bench.LIMIT_S))
        if report.placed is None:
            raise RuntimeError(f"{name} was not placed:\n{report.explain}")
        return report.placed.instance_id

    def unload(self, instance: str) -> None:
        bench.unload(self.client, instance)

    def add(self, source: str, target: str, object_bytes: int, ring_bytes: int) -> str:
        order = AddEdge(source=source, target=target, max_extent_bytes=object_bytes, ring_bytes=ring_bytes)
        return self.client.ask(PLANNER, order, bench.LIMIT_S).edge.name

    def remove(self, edge: str) -> None:
        self.client.ask(PLANNER, RemoveEdge(edge=edge), bench.LIMIT_S)

    def edges(self) -> list[EdgeLine]:
        return self.client.ask(PLANNER, ListEdges(), bench.LIMIT_S).edges

    def said(self, instance: str) -> dict[str, dict[str, float]]:
        """What a sink printed, by port."""
        lines = (json.loads(line) for line in self._observer.output(instance).splitlines() if line.startswith("{"))
        return {line["port"]: line for line in lines}

    def place_fan(self, sources: int, sinks: int) -> None:
        """Workloads on `shed` for `join_fan`."""
        for number in range(sinks):
            self.place(f"sink-{number}", "shed", "sink")
        for number in range(sources):
            self.place(f"source-{number}", "shed", "fan")

    def join_fan(self, sources: int, sinks: int) -> None:
        """Every source with every sink, all of them busy without end; returns when all edges are ready."""
        for one in range(sources):
            for other in range(sinks):
                self.add(f"source-{one}.fan", f"sink-{other}.fan", edge_flow.FAN_OBJECT, FAN_RING)

        def ready() -> bool:
            return sum(edge.phase is EdgePhase.READY for edge in self.edges()) == sources * sinks

        bench.until("every edge is ready", ready)

    def memory_bytes(self) -> int:
        """Proportional set size of every process of the cluster, workloads included."""
        return sum(_pss(found.pid) for found in self.processes())

    def processes(self) -> list[Found]:
        """Every process of the cluster, shims and workloads included."""
        return processes_of(self._cluster.path)


@contextmanager
def cluster_for(path: str) -> Iterator[Stage]:
    nodes = ["shed"] if path == "one node" else ["attic", "shed"]
    with (
        tempfile.TemporaryDirectory(prefix="sb-") as where,
        bench.running(Path(where), nodes, edges_by_tcp=path == "tcp") as (cluster, client, _),
    ):
        yield Stage(Path(where), cluster, client)


def _measure(
    stage: Stage, path: str, found: EdgesFigures, *, rounds: int, seconds: float, sizes: Sequence[int]
) -> None:
    limits: dict[int, list[float]] = {size: [] for size in sizes}
    rates: dict[str, list[float]] = {f"{how}{size}": [] for how in "sr" for size in sizes}
    for _ in range(rounds):
        for size in sizes:
            limits[size].append(_limit(path, size, seconds))
        said, bounded = _once(stage, path, sizes, seconds)
        for port, measured in rates.items():
            measured.append(said[port]["objects"] / said[port]["seconds"])
    for size in sizes:
        limit = statistics.median(limits[size])
        sent, made = (statistics.median(rates[f"{how}{size}"]) for how in "sr")
        found.flows.append(
            Flow(
                path,
                size,
                RINGS[size],
                objects_per_s=sent,
                bytes_per_s=sent * size,
                share=sent * (size + HEADER_BYTES) / limit,
                made_objects_per_s=made,
                made_bytes_per_s=made * size,
                made_share=made * size / limit,
                limit_bytes_per_s=limit,
            )
        )
    woken = woken_us(round(seconds / edge_flow.LATENCY_PERIOD_S), edge_flow.LATENCY_PERIOD_S)
    found.latencies.append(Latency(path, said["latency"]["p50_us"], said["latency"]["p99_us"], *woken))
    found.bounded.append(bounded)


def _limit(path: str, size: int, seconds: float) -> float:
    if path == "one node":
        return copied_per_s(size, RINGS[size], seconds)
    with tempfile.TemporaryDirectory(prefix="sb-") as where:
        endpoint = f"ipc://{where}/bare" if path == "ipc" else f"tcp://127.0.0.1:{bench.free_port()}"
        return bare_per_s(endpoint, size, seconds, 1)


def _once(stage: Stage, path: str, sizes: Sequence[int], seconds: float) -> tuple[dict[str, dict[str, float]], Bounded]:
    """One source and one sink, every size, latency and the slow sink in turn."""
    there = "shed" if path == "one node" else "attic"
    sink = stage.place("sink", "shed", "sink", sizes)
    before = stage.memory_bytes()
    joined = [(f"{how}{size}", size, RINGS[size]) for how in "sr" for size in sizes]
    joined += [("latency", LATENCY, 64 * KIB), ("stall", STALL, MIB)]
    edges = [stage.add(f"source.{port}", f"sink.{port}", size, ring) for port, size, ring in joined]
    source = stage.place("source", there, "source", sizes, seconds)
    most, grown = 0, 0

    def over() -> bool:
        nonlocal most, grown
        time.sleep(LOOK_S)  # looking takes processor time from what is measured
        said = stage.said(sink)
        if f"r{sizes[-1]}" in said and "stall" not in said:
            line = next(line for line in stage.edges() if ".stall " in line.name)
            most = max(most, sum(end.progress.in_flight_bytes for end in (line.producer, line.consumer) if end))
            grown = max(grown, stage.memory_bytes() - before)
        return "stall" in said

    bench.until("every object came through", over)
    said = stage.said(sink)
    for edge in edges:
        stage.remove(edge)
    for instance in (source, sink):
        stage.unload(instance)
    return said, Bounded(path, most, 2 * MIB, grown)


def _beside(stage: Stage, sources: int, sinks: int, seconds: float) -> Beside:
    agent = Address("shed/agent")

    def asks() -> list[float]:
        taken = []
        for _ in range(ASKS):
            began = time.perf_counter()
            stage.client.ask(agent, GetInstances(), bench.LIMIT_S)
            taken.append((time.perf_counter() - began) * 1000)
        return sorted(taken)

    stage.place_fan(sources, sinks)
    idle = asks()
    stage.join_fan(sources, sinks)
    before, began = moved(stage.edges()), time.monotonic()
    busy = asks()
    _wait(lambda: moved(stage.edges()) > before, seconds)
    rate = (moved(stage.edges()) - before) / (time.monotonic() - began)
    return Beside(sources * sinks, _p99(idle), busy[len(busy) // 2], _p99(busy), rate)


def moved(edges: list[EdgeLine]) -> int:
    return sum(edge.consumer.progress.bytes for edge in edges if edge.consumer is not None)


def _wait(condition: Callable[[], bool], least_s: float) -> None:
    """At least so long, and until the condition holds."""
    time.sleep(least_s + 1.0)  # ends tell what they moved once a second
    bench.until("objects move", condition)


def _p99(ordered: list[float]) -> float:
    return ordered[int(len(ordered) * 0.99)]


def _pss(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * KIB for line in lines if line.startswith("Pss:")), 0)
