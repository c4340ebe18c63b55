"""The load of a soak: threads that place, look, stop, unload and append without pause, and a ledger of every ask."""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from threading import Event, Lock, Thread
from typing import Any

from actors.actor import AskFailed
from actors.chain.canonical import encode
from actors.packages.manifest import Manifest
from actors.placement.order import configuration_digest
from messages.base import Address, Request
from messages.chain import Append, Appended, Entry, GetHead, Tail
from messages.control import CtlConfig, Interval, Method, Once
from messages.placement import InstanceLine, InstanceOrder, ListInstances, ListNodes, PlaceOrder
from messages.supervision import ShowChildren
from messages.system import AskFailure, GetProcess, GetStatistics
from runtime.client import LINK_TIMEOUT_S, Client
from runtime.cluster import Cluster
from tests.soak.ground import Ground, SoakFailed

CHAIN = Address("chain/chain")
GATE = Address("gate/gate")
PLANE = Address("controller/plane")
ROOT = Address("root/supervisor")

PLACE_TIMEOUT_S, VERB_TIMEOUT_S, LOOK_TIMEOUT_S = 25.0, 15.0, 6.0
SLACK_S = 5.0
"""An ask may end this much after its deadline: the machine is busy, and the soak is part of the load."""

MOST_INSTANCES = 6
SOURCE = "soak"


@dataclass
class Ledger:
    """Every ask is answered, or fails in time with a reason. `broken` lists those that did neither."""

    answered: Counter[str] = field(default_factory=Counter)
    failed: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    slowest_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    broken: list[str] = field(default_factory=list)
    open: dict[int, tuple[float, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._lock = Lock()
        self._count = 0

    def ask(self, client: Client, to: Address, request: Request[Any], timeout_s: float) -> Any:
        """The answer. Raises `AskFailed`, and only that."""
        name = _name(request)
        began = time.monotonic()
        with self._lock:
            self._count += 1
            number = self._count
            self.open[number] = (began + timeout_s + LINK_TIMEOUT_S + SLACK_S, f"{name} to {to}")
        outcome = "answered"
        try:
            return client.ask(to, request, timeout_s)
        except AskFailed as failed:
            outcome = failed.failure.value + (f" {failed.code}" if failed.code else "")
            if failed.failure is AskFailure.REFUSED and not failed.code:
                self._break(f"{name} to {to} was refused without a code: {failed}")
            if not failed.reason:
                self._break(f"{name} to {to} failed without a reason: {failed}")
            raise
        except BaseException as error:
            outcome = "broken"
            self._break(f"{name} to {to} raised {error!r}")
            raise
        finally:
            took = time.monotonic() - began
            with self._lock:
                del self.open[number]
                self.slowest_s[name] = max(self.slowest_s[name], took)
                if outcome == "answered":
                    self.answered[name] += 1
                else:
                    self.failed[name][outcome] += 1
            if took > timeout_s + LINK_TIMEOUT_S + SLACK_S:
                self._break(f"{name} to {to} ended ({outcome}) after {took:.1f} s, its deadline was {timeout_s:g} s")

    def overdue(self) -> list[str]:
        now = time.monotonic()
        with self._lock:
            return [f"{what} hangs, {now - due:.1f} s over its time" for due, what in self.open.values() if now > due]

    def _break(self, what: str) -> None:
        with self._lock:
            self.broken.append(what)

    def lines(self) -> list[str]:
        """One a request: how often it was answered, and how it failed."""
        with self._lock:
            names = sorted({*self.answered, *self.failed})
            return [
                f"{name:16} {self.answered[name]:6} answered, slowest {self.slowest_s[name]:5.2f} s"
                + "".join(f"; {count} {how}" for how, count in sorted(self.failed[name].items()))
                for name in names
            ]


def _name(request: Request[Any]) -> str:
    if isinstance(request, InstanceOrder):
        return request.method.removeprefix("workload.")
    return type(request).__name__


class Configurations:
    """What the load places: a few configurations, so that their slots are held, freed and held again."""

    def __init__(self, manifest: Manifest) -> None:
        def labelled(mode: Interval | Once, label: str) -> CtlConfig:
            return CtlConfig(mode=mode, args=["--label", label])

        self._manifest = manifest
        self.free = [labelled(Interval(secs=1 + number % 3), f"free-{number}") for number in range(4)]
        self.pinned = [labelled(Interval(secs=1 + number % 3), f"pinned-{number}") for number in range(3)]
        self.once = [labelled(Once(), f"once-{number}") for number in range(2)]
        self.anchor = labelled(Interval(secs=2), "anchor")

    def digest(self, config: CtlConfig) -> str:
        manifest = self._manifest
        return configuration_digest(
            kind="cog",
            workload=manifest.body.id,
            version=manifest.body.version,
            package_id=manifest.package_id,
            config=config,
        )

    def pinned_digests(self) -> frozenset[str]:
        return frozenset(self.digest(config) for config in [*self.pinned, self.anchor])


class Load:
    """Worker threads, each with a stream of choices of its own. `keep`: instances that are left alone."""

    def __init__(self, ground: Ground, configurations: Configurations, ledger: Ledger, seed: int) -> None:
        self.cluster: Cluster = ground.cluster
        self._package = str(ground.package)
        self._configurations = configurations
        self._nodes = [str(entry.name) for entry in ground.cluster.node_entries]
        self.ledger = ledger
        self.keep: set[str] = set()
        self.appended: dict[str, Appended] = {}
        self.tried: set[str] = set()
        self.outcomes: Counter[str] = Counter()
        self.broken: list[str] = []
        self._run, self._end = Event(), Event()
        self._idle: dict[str, Event] = {}
        workers: dict[str, Callable[[Client, Random], None]] = {
            "placer-1": self._place_or_unload,
            "placer-2": self._place_or_unload,
            "looker": self._look,
            "appender": self._append,
        }
        self._threads = [
            Thread(target=self._work, args=(name, step, Random(f"{seed} {name}")), name=name, daemon=True)
            for name, step in workers.items()
        ]
        self._idle = {name: Event() for name in workers}

    def start(self) -> None:
        self._run.set()
        for thread in self._threads:
            thread.start()

    def pause(self) -> None:
        """Until every ask under way has ended. Raises `SoakFailed` when one does not."""
        self._run.clear()
        for name, idle in self._idle.items():
            if not idle.wait(PLACE_TIMEOUT_S + LINK_TIMEOUT_S + 2 * SLACK_S):
                raise SoakFailed(f"{name} does not come to rest: {self.ledger.overdue() or self.ledger.open}")

    def resume(self) -> None:
        for idle in self._idle.values():
            idle.clear()
        self._run.set()

    def close(self) -> None:
        self._end.set()
        self._run.set()
        for thread in self._threads:
            thread.join(PLACE_TIMEOUT_S + LINK_TIMEOUT_S + 2 * SLACK_S)
            if thread.is_alive():
                self.broken.append(f"{thread.name} hangs")

    def _work(self, name: str, step: Callable[[Client, Random], None], random: Random) -> None:
        """Each pass with a client of its own for a while, as the command line has: links come and go."""
        try:
            while not self._end.is_set():
                if not self._run.is_set():
                    self._idle[name].set()
                    self._run.wait()
                    continue
                with Client.connect(self.cluster) as client:
                    for _ in range(20):
                        if self._end.is_set() or not self._run.is_set():
                            break
                        try:
                            step(client, random)
                        except AskFailed:
                            self._end.wait(0.05)  # counted by the ledger
        except BaseException as error:
            self.broken.append(f"{name} ended by {error!r}")
            raise
        finally:
            self._idle[name].set()

    # steps

    def _place_or_unload(self, client: Client, random: Random) -> None:
        self._end.wait(random.uniform(0.05, 0.4))
        lines = self.ledger.ask(client, PLANE, ListInstances(), LOOK_TIMEOUT_S).instances
        ours = [line for line in lines if line.instance_id not in self.keep]
        if ours and (len(ours) >= MOST_INSTANCES or random.random() < 0.45):
            self._take_down(client, random, random.choice(ours))
        else:
            self._place(client, random)

    def _place(self, client: Client, random: Random) -> None:
        kind = random.choices(["free", "pinned", "once"], [5, 4, 1])[0]
        config = random.choice(getattr(self._configurations, kind))
        order = PlaceOrder(
            package_dir=self._package,
            config=config,
            pin=random.choice(self._nodes) if kind == "pinned" else None,
            prefer=random.sample(self._nodes, random.randint(0, 1)) if kind != "pinned" else [],
            start=random.random() < 0.9,
        )
        report = self.ledger.ask(client, PLANE, order, PLACE_TIMEOUT_S)
        if report.placed is not None:
            self.outcomes["placed"] += 1
        elif report.attempts:
            self.outcomes[f"not placed, last attempt {report.attempts[-1].outcome.value}"] += 1
        else:
            self.outcomes["no node fits"] += 1
            if not any(candidate.rejections for candidate in report.decision.candidates):
                self.broken.append(f"no node fits, and none says why: {report.explain}")

    def _take_down(self, client: Client, random: Random, line: InstanceLine) -> None:
        for method in random.choice([[Method.UNLOAD], [Method.STOP, Method.UNLOAD], [Method.STOP, Method.START]]):
            order = InstanceOrder(method=method.value, instance=line.instance_id, grace_ms=random.choice([0, 500]))
            self.ledger.ask(client, PLANE, order, VERB_TIMEOUT_S)

    def _look(self, client: Client, random: Random) -> None:
        self._end.wait(random.uniform(0.02, 0.2))
        where = random.choice(self._nodes)
        sights: list[tuple[Address, Request[Any]]] = [
            (PLANE, ListInstances()),
            (PLANE, ListNodes()),
            (ROOT, ShowChildren()),
            (ROOT, GetProcess()),
            (CHAIN, Tail(count=5)),
            (CHAIN, GetHead()),
            (GATE, GetStatistics()),
            (Address(f"{where}/agent"), GetStatistics()),
            (Address(f"{where}/agent"), GetProcess()),
        ]
        to, request = random.choice(sights)
        answer = self.ledger.ask(client, to, request, LOOK_TIMEOUT_S)
        if isinstance(request, ListInstances) and answer.instances:
            line = random.choice(answer.instances)
            method = random.choice([Method.STATUS, Method.LOGS])
            self.ledger.ask(
                client, PLANE, InstanceOrder(method=method.value, instance=line.instance_id), VERB_TIMEOUT_S
            )

    def _append(self, client: Client, random: Random) -> None:
        """The same record again and again until it is answered: it must be written once."""
        self._end.wait(random.uniform(0.02, 0.3))
        key = f"k{len(self.appended)}"
        self.tried.add(key)
        payload = encode({"number": len(self.appended)})
        entry = Entry(source=SOURCE, kind="soak.mark", payload=payload, idempotency_key=key)
        self.appended[key] = self.ledger.ask(client, CHAIN, Append(entry=entry), LOOK_TIMEOUT_S)


def payload_of(data: bytes) -> dict[str, Any]:
    told = json.loads(data)
    return told if isinstance(told, dict) else {}
