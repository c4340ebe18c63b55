"""`sennit bench place`: how long a decision takes, alone and with all that surrounds it.

* engine: the pure decision over synthetic fleets of GPU machines, nothing else.
* simulated: an order through the real plane, gate, chain, package server and agents on the simulated world, one thread,
  every message encoded: the processor time of all of them together, without disks, sockets and processes. Beside it the
  engine alone on as many machines.
* live: an order to a cluster of processes on this machine, from the ask to its answer: a dry run (package, gate,
  decision, chain), and a placement up to a running workload (a Python script), unloaded in between. Beside it what the
  actors of each kind were busy for an order, as they count it themselves, and a bare `python -c pass`: the shim of a
  workload and the workload's interpreter take that much each, whatever starts them.
"""

from __future__ import annotations

import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from statistics import median

from actors.placement.engine import place as decide
from messages.base import Address
from messages.engine import ClusterState
from messages.placement import PlaceOrder
from messages.system import GetStatistics, ListActors
from runtime.bench.cluster import CONFIG, LIMIT_S, PLANE, bare_python_s, place, running, unload
from runtime.bench.fleet import SimulatedFleet, engine_fleet, engine_request
from runtime.bench.machine import machine
from runtime.client import Client

ENGINE_NODES = (100, 1_000, 2_000)
SIMULATED_NODES = (3, 30, 100)
LIVE_NODES = ("attic", "shed", "loft")
ROUNDS = 10


@dataclass(frozen=True)
class EngineFigures:
    """Medians; `eligible` nodes were scored, the others refused with their reasons."""

    nodes: int
    eligible: int
    decision_ms: float
    decisions_per_s: float


@dataclass(frozen=True)
class SimulatedFigures:
    """Medians in milliseconds of one thread's time."""

    nodes: int
    dry_run_ms: float
    place_ms: float
    engine_ms: float


@dataclass(frozen=True)
class LiveFigures:
    """Medians in milliseconds; `busy_ms`: what the actors of a kind were busy for one order, on average."""

    nodes: int
    dry_run_ms: float
    place_ms: float
    bare_python_ms: float
    dry_run_busy_ms: dict[str, float]
    place_busy_ms: dict[str, float]


@dataclass(frozen=True)
class PlaceFigures:
    machine: str
    engine: list[EngineFigures]
    simulated: list[SimulatedFigures]
    live: LiveFigures | None


def run(
    rounds: int = ROUNDS,
    engine_nodes: tuple[int, ...] = ENGINE_NODES,
    simulated_nodes: tuple[int, ...] = SIMULATED_NODES,
    live_nodes: tuple[str, ...] = LIVE_NODES,
) -> PlaceFigures:
    """Raises `RuntimeError` when a cluster does not come up or an order places nothing."""
    return PlaceFigures(
        machine=machine(),
        engine=[engine(count, rounds) for count in engine_nodes],
        simulated=[simulated(count, rounds) for count in simulated_nodes],
        live=live(live_nodes, rounds) if live_nodes else None,
    )


def engine(nodes: int, rounds: int) -> EngineFigures:
    fleet, request, state = engine_fleet(nodes), engine_request(), ClusterState(now_ms=0, instances=())
    decision = decide(request, fleet, state)
    eligible = sum(report.eligible for report in decision.candidates)
    took_ms = _median_ms(lambda: decide(request, fleet, state), rounds)
    return EngineFigures(nodes, eligible, took_ms, round(1000 / took_ms, 1))


def simulated(nodes: int, rounds: int) -> SimulatedFigures:
    fleet = SimulatedFleet(nodes)
    instances: list[str] = []

    def order() -> None:
        placed = fleet.place(dry_run=False).placed
        assert placed is not None
        instances.append(placed.instance_id)

    def unload_all() -> None:
        while instances:
            fleet.unload(instances.pop())
        fleet.beat(1.0)

    return SimulatedFigures(
        nodes=nodes,
        dry_run_ms=_median_ms(lambda: fleet.place(dry_run=True), rounds, unload_all),
        place_ms=_median_ms(order, rounds, unload_all),
        engine_ms=engine(nodes, rounds).decision_ms,
    )


def live(names: tuple[str, ...], rounds: int) -> LiveFigures:
    with tempfile.TemporaryDirectory(prefix="sb-") as where, running(Path(where), names) as (_, client, package):
        instances = [place(client, package)]  # links, caches, and the package on its node

        def unload_all() -> None:
            while instances:
                unload(client, instances.pop())

        def order(*, dry_run: bool) -> None:
            report = client.ask(PLANE, PlaceOrder(package_dir=str(package), config=CONFIG, dry_run=dry_run), LIMIT_S)
            if report.placed is not None:
                instances.append(report.placed.instance_id)
            elif not dry_run:
                raise RuntimeError(f"nothing was placed: {report.explain}")

        unload_all()
        dry_run, place_order = Busy(client, names), Busy(client, names)
        return LiveFigures(
            nodes=len(names),
            bare_python_ms=_median_ms(bare_python_s, rounds),
            dry_run_ms=_median_ms(lambda: order(dry_run=True), rounds, around=dry_run),
            place_ms=_median_ms(lambda: order(dry_run=False), rounds, unload_all, around=place_order),
            dry_run_busy_ms=dry_run.per_order_ms(),
            place_busy_ms=place_order.per_order_ms(),
        )


class Busy:
    """Adds up, over the orders it is entered around, how long each kind of actor was at work: its thread was in a step,
    which for a port includes waiting for the disk and for processes."""

    def __init__(self, client: Client, nodes: Sequence[str]) -> None:
        self._client = client
        self._nodes = frozenset(nodes)
        self._orders = 0
        self._busy_s: defaultdict[str, float] = defaultdict(float)
        self._actors = [
            row.address
            for process in ("chain", "gate", "controller", *nodes)
            for row in client.ask(Address(f"{process}/supervisor"), ListActors()).actors
        ]

    def __enter__(self) -> None:
        self._orders += 1
        self._add(-1)

    def __exit__(self, *_: object) -> None:
        self._add(1)

    def per_order_ms(self) -> dict[str, float]:
        """The ten that were busiest, by process and actor; what nodes did is added up."""
        busiest = sorted(self._busy_s.items(), key=itemgetter(1), reverse=True)[:10]
        return {kind: round(busy_s / self._orders * 1000, 2) for kind, busy_s in busiest}

    def _add(self, sign: int) -> None:
        for address in self._actors:
            process, _, actor = address.partition("/")
            kind = f"{'node' if process in self._nodes else process}/{actor}"
            self._busy_s[kind] += sign * self._client.ask(address, GetStatistics()).busy_s


def _median_ms(
    work: Callable[[], object],
    rounds: int,
    after: Callable[[], object] = lambda: None,
    around: AbstractContextManager[None] | None = None,
) -> float:
    taken = []
    for _ in range(rounds):
        with around or nullcontext():
            began = time.perf_counter()
            work()
            taken.append(time.perf_counter() - began)
        after()
    return round(median(taken) * 1000, 3)
