"""`make soak`: kill everything that can be killed, at random moments, under load, and see that the promises hold.

    python -m tests.soak.soak [--rounds 300] [--seed N] [--keep] [--verbose]

Each round picks a victim (chain, gate, controller, a node, a shim, a workload, two at once, the root) and how it goes
(SIGKILL, or SIGSTOP for a while), and waits until the cluster serves again. All the time: no slot runs twice, no
process lives without its parent, every ask ends in time with an answer or a reason. Every few rounds the load rests:
the chain must verify, what runs must be what is listed, and nothing may have grown. At the end nothing is left.
The choices follow from the seed; the moments are the machine's, so a seed makes a failure likely, not certain.
"""

from __future__ import annotations

import argparse
import re
import secrets
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from random import Random
from statistics import median

from actors.actor import AskFailed
from actors.chain.canonical import encode
from messages.chain import Append, Entry, Verify
from messages.control import LifeState, Method
from messages.placement import InstanceLine, InstanceOrder, ListInstances, ListNodes, PlaceOrder
from messages.supervision import ChildState, ChildView, ShowChildren
from runtime.client import Client
from runtime.ports.chain_store import read_chain, verify_file
from tests.soak.ground import LARGE, SMALL, Ground, SoakFailed, until
from tests.soak.kills import Kills
from tests.soak.load import CHAIN, MOST_INSTANCES, PLANE, ROOT, SOURCE, Configurations, Ledger, Load
from tests.soak.story import problems_of
from tests.soak.watch import Usage, Watch, growth, most, usage_of

SERVE_LIMIT_S = 30.0
REST_EVERY = 25
CALM_S = 8.0
ROOT_LIVES_FOR = 2 / 3
"""Until then the root is not killed: it must not grow. From then on it is."""


class Soak:
    def __init__(self, seed: int, rounds: int, tell: Callable[[str], object], *, verbose: bool = False) -> None:
        self.seed, self.rounds, self.tell, self.verbose = seed, rounds, tell, verbose
        self.random = Random(seed)
        self.ground = Ground()
        self.nodes = [str(entry.name) for entry in self.ground.cluster.node_entries]
        self.configurations = Configurations(self.ground.manifest)
        self.ledger = Ledger()
        self.load = Load(self.ground, self.configurations, self.ledger, seed)
        self.watch = Watch(self.ground.folder, self.configurations.pinned_digests(), root=lambda: self.ground.root_pid)
        self.client = Client.connect(self.ground.cluster)
        self.kills = Kills(self.ground, self.watch, self.ledger, self.client, self.random)
        self.anchors: dict[str, int] = {}
        self.recoveries: dict[str, list[float]] = defaultdict(list)
        self.rests: list[dict[str, Usage]] = []
        self.exits: set[tuple[str, int, str]] = set()
        self.marks = 0
        self.began = time.monotonic()

    def run(self, *, park: bool = True) -> None:
        """The whole soak. Raises `SoakFailed`."""
        self.watch.start()
        self.ground.launch()
        self._note("up", self._serve())
        self._anchor()
        self.load.start()
        if self.rounds >= REST_EVERY:
            self._calm()
        root_from = int(self.rounds * ROOT_LIVES_FOR)
        for number in range(1, self.rounds + 1):
            self._round(number, root=number > root_from)
            if number % REST_EVERY == 0 or number in (root_from, self.rounds):
                self._rest(number)
        self.load.pause()
        self.tell(f"{self._at()} down, and {'up with a small budget' if park else 'up'} again")
        self._note("down", self.ground.down())
        if park:
            self._park()
            self._note("down", self.ground.down())
        self.ground.configure(LARGE)
        self.ground.launch()
        self._note("up", self._serve())
        self._finish()

    def _calm(self) -> None:
        """Under load and without a kill: what a process holds then is what its life costs."""
        held: list[dict[str, Usage]] = []
        for _ in range(2):
            time.sleep(CALM_S)
            self.load.pause()
            seen = [one for one in self.watch.look() if one.kind == "process"]
            held.append({one.name: usage for one in seen if (usage := usage_of(one.pid)) is not None})
            self.load.resume()
        grown = {name: self._growth(name, held[0][name], held[1][name]) for name in held[0]}
        if told := [f"{name}: {what}" for name, what in grown.items() if what]:
            raise SoakFailed(f"something grows in {CALM_S:g} s without a kill: {'; '.join(told)}")
        self.tell(f"{self._at()} calm for {2 * CALM_S:g} s: nothing grows")

    def _growth(self, name: str, first: Usage, last: Usage) -> str:
        return growth(first, last, fds=4 + 2 * MOST_INSTANCES) if name in self.nodes else growth(first, last)

    # a round

    def _round(self, number: int, *, root: bool) -> None:
        kind = self.kills.pick_kind(root=root)
        time.sleep(self.random.uniform(0.0, 0.4))
        told = "(was to come)"
        try:
            told = self.kills.one(kind)
            took = self._serve()
            self._check()
        except SoakFailed as failed:
            raise SoakFailed(f"round {number}, {kind} {told}: {failed}") from None
        self._note(kind, took)
        if self.verbose:
            self.tell(f"{self._at()} {number:4} {kind:10} {told}; serves after {took:.2f} s")

    # looking

    def _serve(self) -> float:
        """Seconds until all runs, every node is alive, nothing is unsettled, and the chain writes."""
        return until(self._not_serving, SERVE_LIMIT_S, "the cluster serves", every_s=0.06)

    def _not_serving(self) -> str:
        self.ground.check_root()
        if living := [one for one in self.kills.killed if one.lives()]:
            return f"killed, and it lives: {living}"
        try:
            tree = self.ledger.ask(self.client, ROOT, ShowChildren(), 2.0)
            self.exits.update((child.name, child.incarnation, child.last_exit) for child in tree.children)
            if waiting := [child for child in tree.children if child.state is not ChildState.RUNNING]:
                return "; ".join(f"{child.name} is {child.state.value} ({child.last_exit})" for child in waiting)
            if absent := [
                one.name for one in self.kills.killed if one.kind == "process" and not self.watch.process(one.name)
            ]:
                return f"said to run, and no process: {absent}"  # its end was not seen yet
            nodes = self.ledger.ask(self.client, PLANE, ListNodes(), 2.0).nodes
            if silent := [node for node in nodes if node.liveness != "alive" or not node.reachable]:
                return "; ".join(f"{node.name} is {node.liveness}" for node in silent)
            lines = self.ledger.ask(self.client, PLANE, ListInstances(), 6.0)
            if lines.unsettled:
                return f"unsettled: {lines.unsettled}"
            if lost := [line.instance_id for line in lines.instances if not line.reachable]:
                return f"not reachable: {lost}"
            self.marks += 1
            entry = Entry(source=SOURCE, kind="soak.round", payload=encode({"mark": self.marks}))
            self.ledger.ask(self.client, CHAIN, Append(entry=entry), 6.0)
        except AskFailed as failed:
            return str(failed)
        return ""

    def _check(self) -> None:
        own = [f"{name} ended by itself: {last}" for name, _, last in self.exits if not _EXPECTED_END.fullmatch(last)]
        broken = [*own, *self.watch.broken, *self.ledger.broken, *self.load.broken, *self.ledger.overdue()]
        if broken:
            raise SoakFailed("; ".join(broken))

    def _rest(self, number: int) -> None:
        """With the load at rest: what runs is what is listed, the anchors are what they were, the chain verifies."""
        self.load.pause()
        self._serve()
        until(self._listing_differs, 20.0, "what runs is what is listed", every_s=0.1)
        self._check_anchors()
        verdict = self.ledger.ask(self.client, CHAIN, Verify(), 60.0)
        if not verdict.valid:
            raise SoakFailed(f"the chain does not verify: record {verdict.first_bad}: {verdict.problem}")
        usages = {"root": usage_of(self.ground.root_pid or 0)}
        shims = [one for one in self.watch.look() if one.kind == "shim" and one.name in self.anchors]
        usages |= {f"shim of {shim.name}": usage_of(shim.pid) for shim in shims}
        self.rests.append({name: usage for name, usage in usages.items() if usage is not None})
        if crashes := self.ground.crashes():
            raise SoakFailed(f"actors crashed: {crashes}")
        self._check()
        rate = (time.monotonic() - self.began) / number
        self.tell(
            f"{self._at()} {number:4} rounds ({rate:.2f} s each), {verdict.count} records verify, "
            f"{self.watch.samples} samples, root {self.rests[-1].get('root')}"
        )
        if number == int(self.rounds * ROOT_LIVES_FOR) or number == self.rounds:
            self._check_growth()
            self.rests.clear()
        self.load.resume()

    def _lines(self) -> list[InstanceLine]:
        lines: list[InstanceLine] = self.ledger.ask(self.client, PLANE, ListInstances(), 6.0).instances
        return lines

    def _listing_differs(self) -> str:
        """How the controller's list and the processes of the host disagree."""
        lines = self._lines()
        listed = {line.instance_id: line.pid for line in lines if line.state is LifeState.RUNNING}
        moving = [f"{line.instance_id} is {line.state.value}" for line in lines if line.state in _MOVING]
        running = {one.name: one.pid for one in self.watch.look() if one.kind == "workload"}
        shims = {one.name for one in self.watch.look() if one.kind == "shim"}
        differences = [f"{name}: listed {listed.get(name)}, runs {running.get(name)}"
                       for name in {*listed, *running} if listed.get(name) != running.get(name)]  # fmt: skip
        differences += [f"a shim of {name} without a workload" for name in shims - {*running}]
        return "; ".join([*moving, *differences])

    def _anchor(self) -> None:
        """One instance on every node that nobody kills or unloads: it must be the same process at the end."""
        for node in self.nodes:
            order = PlaceOrder(package_dir=str(self.ground.package), config=self.configurations.anchor, pin=node)
            placed = self.ledger.ask(self.client, PLANE, order, 25.0).placed
            if placed is None:
                raise SoakFailed(f"the anchor of {node} was not placed")
            self.load.keep.add(placed.instance_id)
        self.anchors = {line.instance_id: line.pid or 0 for line in self._lines()}
        self.kills.spared = self.anchors.keys()

    def _check_anchors(self) -> None:
        now = {line.instance_id: line.pid for line in self._lines() if line.instance_id in self.anchors}
        if now != self.anchors:
            raise SoakFailed(f"the instances that nobody touched are not what they were: {self.anchors}, now {now}")

    def _check_growth(self) -> None:
        """The root and the shims of the anchors since the first rest; each process's early lives and its late ones.

        A node holds two descriptors for each instance, so that many more are no growth.
        """
        grown = []
        if len(self.rests) > 1:
            first, last = self.rests[0], self.rests[-1]
            grown += [(name, self._growth(name, first[name], last[name])) for name in first if name in last]
        for name, usages in self.watch.usages.items():
            if (half := len(usages) // 2) >= 4:
                grown.append((name, self._growth(name, most(usages[:half]), most(usages[half:]))))
        if told := [f"{name}: {what}" for name, what in grown if what]:
            raise SoakFailed(f"something grows: {'; '.join(told)}")

    # the phases at the end

    def _park(self) -> None:
        """Spend the budget of a process: it is parked alone, tried at the ceiling, and the cluster serves again."""
        self.ground.configure(SMALL)
        self.ground.launch()
        self._serve()
        name = self.kills.pick_process()
        before = {one.name: one.pid for one in self.watch.look() if one.kind == "process" and one.name != name}
        for _ in range(SMALL.intensity + 1):
            until(lambda: self.watch.process(name) is None and "not there", 10.0, f"{name} is there to be killed")
            killed = self._child(name).restarts
            self.kills.by_name(name)
            self._wait_restart(name, after=killed)
        self.kills.killed.clear()
        child = self._child(name)
        if child.state is not ChildState.PARKED or child.budget_left != 0:
            raise SoakFailed(f"{name} was killed {SMALL.intensity + 1} times and is not parked: {child}")
        began = time.monotonic()
        self._serve()
        took = time.monotonic() - began
        after = {one.name: one.pid for one in self.watch.look() if one.kind == "process" and one.name != name}
        if after != before:
            raise SoakFailed(f"{name} was parked, and others went with it: {before}, then {after}")
        self.tell(f"{self._at()} {name} was parked, its siblings stayed, it served again after {took:.1f} s")

    def _wait_restart(self, name: str, *, after: int) -> None:
        until(lambda: self._child(name).restarts <= after and "not seen", 10.0, f"the end of {name} is seen")

    def _child(self, name: str) -> ChildView:
        children = self.ledger.ask(self.client, ROOT, ShowChildren(), 5.0).children
        found: ChildView = next(child for child in children if child.name == name)
        return found

    def _finish(self) -> None:
        """Take everything down; then nothing is left, and the chain tells all of it."""
        self.load.close()
        self._check_anchors()
        until(self._not_unloaded, 60.0, "everything is unloaded", every_s=0.1)
        until(self._listing_differs, 20.0, "nothing runs")
        self._check()
        self._note("down", self.ground.down())
        self.client.close()
        self.watch.close()
        broken = [
            *self.ground.leftovers(),
            *self.ground.crashes(),
            *self.load.broken,
            *self.watch.broken,
            *self.ledger.broken,
        ]
        state = self.ground.cluster.state_dir("chain")
        verdict = verify_file(state)
        if not verdict.valid or verdict.torn_tail:
            broken.append(f"the chain's file: {verdict}")
        broken += problems_of(read_chain(state), self.load.appended, set())
        if broken:
            raise SoakFailed("; ".join(broken))
        self.tell(f"{self._at()} down; nothing is left; {verdict.count} records verify and tell all of it")

    def _not_unloaded(self) -> str:
        try:
            lines = self.ledger.ask(self.client, PLANE, ListInstances(), 6.0)
            for line in lines.instances:
                order = InstanceOrder(method=Method.UNLOAD.value, instance=line.instance_id)
                self.ledger.ask(self.client, PLANE, order, 15.0)
        except AskFailed as failed:
            return str(failed)
        return ", ".join(line.instance_id for line in [*lines.instances]) + ", ".join(map(str, lines.unsettled))

    # telling

    def report(self) -> list[str]:
        broken = len(self.ledger.broken) + len(self.ledger.overdue())
        lines = [f"asks, and how they ended ({broken} otherwise than in time with an answer or a reason):"]
        lines += [f"  {line}" for line in self.ledger.lines()]
        lines += [f"placements: {', '.join(f'{n} {what}' for what, n in sorted(self.load.outcomes.items()))}"]
        lines += ["until it serves again, seconds (median, longest):"]
        lines += [
            f"  {kind:10} {len(took):4}  {median(took):5.2f} {max(took):6.2f}"
            for kind, took in sorted(self.recoveries.items())
        ]
        lines += ["lives at the same age, the most of the early and of the late half:"]
        for name, usages in sorted(self.watch.usages.items()):
            if half := len(usages) // 2:
                lines.append(f"  {name:10} {len(usages):3}  {most(usages[:half])}  ->  {most(usages[half:])}")
        seen = f"{self.watch.samples} samples of /proc, at most {self.watch.most_workloads} workloads at once"
        return [*lines, f"{seen}: {len(self.watch.broken)} times two, or an orphan"]

    def close(self, *, keep: bool) -> None:
        self.load.ledger = self.ledger
        self.load._end.set()
        self.load._run.set()
        self.watch.close()
        self.client.close()
        self.ground.close(keep=keep)

    def _note(self, kind: str, took: float) -> None:
        self.recoveries[kind].append(took)

    def _at(self) -> str:
        return f"{time.monotonic() - self.began:6.1f}"


_EXPECTED_END = re.compile(
    "(before it was ready: )?(|killed by signal (9|15)|exit code 0|exit code 78: .*)",
    re.DOTALL,
)
"""Who is killed ends by the signal; who finds a process of the former root at its place gives way to it."""

_MOVING = (LifeState.UNHEALTHY, LifeState.RESTARTING, LifeState.STOPPING)


def soak(
    seed: int,
    rounds: int,
    tell: Callable[[str], object] = print,
    *,
    park: bool = True,
    keep: bool = False,
    verbose: bool = False,
) -> list[str]:
    """What did not hold; nothing when all did."""  # fmt: skip
    one = Soak(seed, rounds, tell, verbose=verbose)
    failed = ""
    try:
        one.run(park=park)
    except (SoakFailed, AskFailed) as failure:
        failed = str(failure)
    finally:
        for line in one.report():
            tell(line)
        one.close(keep=keep)
    if keep:
        tell(f"kept: {one.ground.folder}")
    return [failed] if failed else []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--keep", action="store_true", help="leave the cluster's folder")
    parser.add_argument("--verbose", action="store_true", help="a line for every round")
    chosen = parser.parse_args()
    seed = secrets.randbelow(1_000_000) if chosen.seed is None else chosen.seed
    print(f"soak: seed {seed}, {chosen.rounds} rounds", flush=True)
    began = time.monotonic()
    failures = soak(seed, chosen.rounds, lambda line: print(line, flush=True), keep=chosen.keep, verbose=chosen.verbose)
    for failure in failures:
        print(f"FAILED: {failure}")
    again = f"make soak SEED={seed} ROUNDS={chosen.rounds}"
    print(f"{'failed' if failures else 'passed'} in {time.monotonic() - began:.0f} s: {again}", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
