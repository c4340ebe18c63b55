"""How a soak kills: who, by what, and at which moment."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Set
from contextlib import suppress
from random import Random
from typing import Any

from actors.actor import AskFailed
from messages.chain import GetHead, Tail
from runtime.client import Client
from tests.soak.ground import Ground, SoakFailed, until
from tests.soak.load import CHAIN, Ledger, payload_of
from tests.soak.story import PLACEMENT
from tests.soak.watch import Seen, Watch

PROCESSES = ("chain", "gate", "controller")
KINDS = {
    "chain": 10, "gate": 8, "controller": 16, "node": 22, "shim": 8, "workload": 8,
    "term": 4, "two": 8, "aimed": 14, "again": 10, "pause": 8, "hang": 1, "freeze": 1, "root": 4, "all": 2,
}  # fmt: skip
"""How often each is picked, relative to the others."""


class Kills:
    """`killed`: what the last kill was aimed at. `spared`: instances that are left alone."""

    def __init__(self, ground: Ground, watch: Watch, ledger: Ledger, client: Client, random: Random) -> None:
        self._ground, self._watch, self._ledger, self._client = ground, watch, ledger, client
        self._random = random
        self._nodes = [str(entry.name) for entry in ground.cluster.node_entries]
        self.killed: list[Seen] = []
        self.spared: Set[str] = frozenset()

    def pick_kind(self, *, root: bool) -> str:
        """`root`: the root may be picked too."""
        kinds = [kind for kind in KINDS if root or kind not in ("root", "all")]
        return self._random.choices(kinds, [KINDS[kind] for kind in kinds])[0]

    def pick_process(self) -> str:
        return self._random.choice([*PROCESSES, *self._nodes])

    def one(self, kind: str) -> str:
        """Kill something of this kind; returns what, for people."""
        self.killed.clear()
        told: str = getattr(self, f"_kill_{kind}", self._kill_process)(kind)
        return told

    def by_name(self, name: str, number: int = signal.SIGKILL) -> str:
        found = self._watch.process(name)
        if found is None:
            return f"{name} is not there"
        self._kill(found, number)
        return f"{name} ({found.pid}, {found.age_s:.1f} s old)"

    def _kill_process(self, kind: str) -> str:
        name = self._random.choice(self._nodes) if kind == "node" else kind
        return self.by_name(name)

    def _kill_term(self, _: str) -> str:
        """Ask a process to end, as an operator might: it ends in order, and comes back all the same."""
        return self.by_name(self.pick_process(), signal.SIGTERM)

    def _kill_two(self, _: str) -> str:
        names = self._random.sample([*PROCESSES, *self._nodes], 2)
        return " and ".join(self.by_name(name) for name in names)

    def _kill_aimed(self, _: str) -> str:
        """Kill while a placement is on its way: a moment after its dispatch was written."""
        try:
            order = self._next_dispatch(within_s=3.0)
        except AskFailed as failed:
            return f"nothing was dispatched: {failed}"
        node = None if order is None else self._ground.cluster.by_node_id(str(order["node"]))
        name = self._random.choice(["controller", "chain", *([] if node is None else [str(node.name)] * 2)])
        self._sleep(0.0, 0.15)
        return f"{'after a dispatch: ' if order else ''}{self.by_name(name)}"

    def _next_dispatch(self, within_s: float) -> dict[str, Any] | None:
        until_s = time.monotonic() + within_s
        last = self._ledger.ask(self._client, CHAIN, GetHead(), 3.0).sequence
        while time.monotonic() < until_s:
            for record in self._ledger.ask(self._client, CHAIN, Tail(count=20, after=last), 3.0).records:
                last = record.sequence
                told = payload_of(record.payload)
                if record.source == PLACEMENT and told.get("phase") == "dispatching":
                    return told
            time.sleep(0.005)
        return None

    def _kill_again(self, _: str) -> str:
        """Kill it, and the next life while it starts."""
        name = self.pick_process()
        first = self.by_name(name)
        self._sleep(0.05, 1.0)
        return f"{first}, then {self.by_name(name)}"

    def _kill_pause(self, _: str) -> str:
        """Stop it for less than a hang, or a shim for longer than its agent waits for it."""
        name = self._random.choice([*PROCESSES, *self._nodes, "root", "shim"])
        found = self._pick(name)
        if found is None:
            return f"{name} is not there"
        for_s = self._random.uniform(0.1, 2.0)
        with suppress(ProcessLookupError):
            os.kill(found.pid, signal.SIGSTOP)
            time.sleep(for_s)
            if found.lives():
                os.kill(found.pid, signal.SIGCONT)
        return f"{found.name} ({found.pid}) stood still for {for_s:.1f} s"

    def _kill_hang(self, _: str) -> str:
        """Stop a process until the root finds that it hangs."""
        name = self.pick_process()
        found = self._watch.process(name)
        if found is None:
            return f"{name} is not there"
        with suppress(ProcessLookupError):
            os.kill(found.pid, signal.SIGSTOP)
        took = until(lambda: found.lives() and "it lives", 20.0, f"{name} hangs and is killed")
        return f"{name} ({found.pid}) stopped, killed after {took:.1f} s"

    def _kill_freeze(self, _: str) -> str:
        """Stop the root for longer than a hang, as Ctrl-Z does: its children are not to blame."""
        pid = self._ground.root_pid
        assert pid is not None
        before = self._children_of_root()
        for_s = self._random.uniform(3.5, 5.0)
        os.kill(pid, signal.SIGSTOP)
        time.sleep(for_s)
        os.kill(pid, signal.SIGCONT)
        time.sleep(1.0)  # it would judge them by then
        if (after := self._children_of_root()) != before:
            raise SoakFailed(f"the root stood still, and not the same processes run: {before}, then {after}")
        return f"root ({pid}) stood still for {for_s:.1f} s"

    def _children_of_root(self) -> dict[str, int]:
        found = [one for one in self._watch.look() if one.kind == "process" and one.ppid == self._ground.root_pid]
        return {one.name: one.pid for one in found}

    def _kill_root(self, _: str) -> str:
        """Kill the root; a new one comes at once, as a service's would, or when its children have left."""
        old = self._ground.root_pid
        self._ground.kill_root()
        at_once = self._random.random() < 0.5
        if not at_once:
            until(self._processes_left, 8.0, "the children leave after their root")
        self._ground.launch()
        return f"root ({old}), the next {'at once' if at_once else 'when all had left'}"

    def _kill_all(self, _: str) -> str:
        """Kill the root and its children at one time: no pipe tells anybody anything."""
        found = [one for one in self._watch.look() if one.kind == "process"]
        for one in found:
            with suppress(ProcessLookupError):
                os.kill(one.pid, signal.SIGKILL)
        self._ground.kill_root()
        self._ground.launch()
        return f"the root and {len(found)} processes"

    def _kill_shim(self, kind: str) -> str:
        found = self._pick(kind)
        if found is None:
            return f"no {kind} to kill"
        self._kill(found)
        return f"{kind} of {found.name} ({found.pid})"

    _kill_workload = _kill_shim

    def _kill(self, found: Seen, number: int = signal.SIGKILL) -> None:
        with suppress(ProcessLookupError):
            os.kill(found.pid, number)
        self.killed.append(found)

    def _pick(self, what: str) -> Seen | None:
        """A process by name, or any shim or workload but those of the anchors."""
        if what == "root":
            return next((one for one in self._watch.look() if one.pid == self._ground.root_pid), None)
        if what not in ("shim", "workload"):
            return self._watch.process(what)
        found = [one for one in self._watch.look() if one.kind == what and one.name not in self.spared]
        return self._random.choice(sorted(found, key=lambda one: one.name)) if found else None

    def _processes_left(self) -> str:
        return ", ".join(f"{one.name} ({one.pid})" for one in self._watch.look() if one.kind == "process")

    def _sleep(self, least_s: float, most_s: float) -> None:
        time.sleep(self._random.uniform(least_s, most_s))
