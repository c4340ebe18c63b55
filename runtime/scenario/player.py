"""The live player: runs the steps of a scenario against a cluster that is up (design 10).

Every wait has a deadline, and looks at the invariants while it lasts.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable

from actors.actor import AskFailed
from messages.control import CtlConfig
from messages.edge import RunId
from messages.placement import InstanceOrder, PlaceOrder, PlaceReport
from messages.supervision import ChildState
from runtime.client import Client
from runtime.scenario import edges
from runtime.scenario.endings import Ended, Order, ending_of_failure, ending_of_report, wanted
from runtime.scenario.format import (
    Act,
    Barrier,
    Bounce,
    Check,
    Edge,
    Ending,
    Expect,
    OnProcess,
    Place,
    Scenario,
    Step,
)
from runtime.scenario.observer import PLANE, Observer, squeezed
from runtime.scenario.stage import POLL_S, Stage
from runtime.scenario.story import Story, Tone

ACT_LIMIT_S = 60.0
ARENAS_LIMIT_S = 20.0


class StepFailed(Exception):
    """What was expected did not come."""


class Player:
    """Runs the steps against a cluster that is up."""

    def __init__(self, scenario: Scenario, stage: Stage, client: Client, story: Story) -> None:
        self._scenario = scenario
        self._stage = stage
        self._observer = Observer(client)
        self._client = client
        self._story = story
        self._waited: Counter[str] = Counter()
        self._pids: dict[str, int] = {}
        self._epochs: dict[str, RunId] = {}
        self._mark = 0
        """So many events of the chain are older than the last crash, hang or bounce."""
        self._up_at = time.monotonic()

    def wait_ready(self, limit_s: float) -> None:
        """Until every process runs and has its links, and every node is reachable."""
        self._until(self._not_ready, limit_s)
        self._up_at = time.monotonic()
        children = self._observer.children()
        self._story.tell("up", f"{', '.join(children)}: {len(children)} processes under root {self._stage.root_pid}")

    def play(self) -> None:
        for step in self._scenario.step:
            if step.say:
                self._story.say(step.say)
            self._wait_for_turn(step)
            verb, table = step.verb
            match table:
                case Place():
                    self._place(table, dry_run=verb == "plan")
                case Act():
                    self._act(verb, table)
                case Edge():
                    self._edge(table)
                case Bounce():
                    self._set_mark()
                    edges.bounce(self._stage.cluster, table)
                    self._story.tell(verb, f"{table.link[0]} to {table.link[1]}: connection cut", Tone.BAD)
                case OnProcess():
                    self._signal(verb, table)
                case Expect():
                    self._expect(table, step.within)
                case Check():
                    self._check(table, step.within)
                case Barrier():
                    self._until(self._unsettled, step.within)
                    self._story.tell("barrier", "everything runs and is linked, nothing is unsettled")
                case _:
                    raise AssertionError(f"no such verb: {verb}")
            self._check_invariants()
        for always in self._scenario.always:
            self._story.tell("always", f"{always.invariant.value} held", Tone.GOOD)

    def stop_instances(self) -> list[str]:
        """Stop what runs, so that nothing outlives the cluster; returns what went wrong."""
        problems = []
        lines = self._observer.instances()
        for row in lines.instances if lines is not None else ():
            if row.pid is None:
                continue
            order = InstanceOrder(method="workload.stop", instance=row.instance_id, grace_ms=1_000)
            try:
                self._client.ask(PLANE, order, ACT_LIMIT_S)
                self._story.tell("stop", f"{row.workload}@{row.node}: stopped")
            except AskFailed as failed:
                problems.append(f"{row.workload}@{row.node} did not stop: {failed}")
        return problems

    def check_arenas(self) -> str:
        """Once nothing runs any more: where ring memory is still held; empty when every arena is whole."""
        try:
            self._until(lambda: edges.not_whole(self._observer), ARENAS_LIMIT_S)
        except StepFailed as failed:
            return f"the arenas are not whole: {failed}"
        self._story.tell("finally", "every arena is whole", Tone.GOOD)
        return ""

    # waiting

    def _wait_for_turn(self, step: Step) -> None:
        if step.at is not None:
            time.sleep(max(0.0, self._up_at + step.at - time.monotonic()))
        if step.after is None:
            return
        name = step.after
        wanted = self._waited[name] + 1

        def missing() -> str:
            self._observer.read_chain()
            seen = sum(event.is_called(name) for event in self._observer.events)
            return "" if seen >= wanted else f"event {name} came {seen} times, not {wanted}"

        self._until(missing, step.within)
        self._waited[name] = wanted
        found = [event for event in self._observer.events if event.is_called(name)][wanted - 1]
        self._story.tell("after", f"{name} (record {found.record.sequence})", Tone.QUIET)

    def _until(self, missing: Callable[[], str], limit_s: float) -> None:
        """Ask again and again what is missing, until nothing is. Raises `StepFailed` when the time is over."""
        deadline = time.monotonic() + limit_s
        while why := missing():
            self._stage.check_root()
            if time.monotonic() >= deadline:
                raise StepFailed(f"not within {limit_s:g} s: {why}")
            time.sleep(POLL_S)

    def _not_ready(self) -> str:
        children = self._observer.children()
        supervised = [entry.name for entry in self._stage.cluster.supervised]
        missing = [
            name for name in supervised if name not in children or children[name].state is not ChildState.RUNNING
        ]
        if missing:
            return f"{', '.join(missing)} not running"
        nodes = self._observer.nodes()
        absent = [name for name in self._stage.cluster.nodes if name not in nodes or not nodes[name].reachable]
        return f"{', '.join(absent)} not reachable" if absent else self._observer.unlinked(self._stage.cluster)

    def _unsettled(self) -> str:
        if why := self._not_ready():
            return why
        lines = self._observer.instances()
        if lines is None:
            return "the controller does not list instances"
        return "; ".join(f"decision {line.decision_id[:16]} on {line.node} is unsettled" for line in lines.unsettled)

    def _check_invariants(self) -> None:
        for always in self._scenario.always:
            if why := self._observer.broken(always.invariant):
                raise StepFailed(f"invariant {always.invariant.value} is broken: {why}")

    # verbs

    def _place(self, place: Place, *, dry_run: bool) -> None:
        order = PlaceOrder(
            package_dir=str(self._stage.packages[place.package]),
            config=CtlConfig(
                mode=place.mode.run_mode(),
                args=list(place.args),
                **({"csi_port": place.mode.listener} if place.mode.listener is not None else {}),
            ),
            pin=place.pin,
            prefer=list(place.prefer),
            avoid=list(place.avoid),
            allow_emulated=place.allow_emulated,
            start=place.start,
            dry_run=dry_run,
        )
        verb = "plan" if dry_run else "place"
        pin = f" pinned to {place.pin}" if place.pin else ""
        report: PlaceReport | None = None
        try:
            report = self._client.ask(PLANE, order, self._stage.cluster.times.place_timeout_s)
        except AskFailed as failed:
            ended = ending_of_failure(failed)
        else:
            ended = ending_of_report(report, dry_run=dry_run)
        self._settle_ending(verb, f"{place.package}{pin}", place, ended)
        if report is None or ended.ending is not Ending.DONE:
            return
        chosen = report.placed.node_id if report.placed is not None else None
        if chosen is None and report.decision.placement is not None:
            chosen = report.decision.placement.node_id
        entry = self._stage.cluster.by_node_id(chosen or "")
        where = entry.name if entry is not None else str(chosen)
        if place.on is not None and where != place.on:
            raise StepFailed(f"{verb} {place.package}: chose {where}, not {place.on}\n{report.explain}")
        if report.placed is not None:
            placed = report.placed
            self._story.tell(verb, f"{place.package}{pin} -> {where} as {placed.instance_id}, epoch {placed.epoch}")
            self._remember()
        else:
            self._story.tell(verb, f"{place.package}{pin} -> would go to {where}; nothing was started")
            self._story.add(report.explain)

    def _act(self, verb: str, act: Act) -> None:
        line = self._observer.instance(act.instance)
        if line is None:
            raise StepFailed(f"{verb} {act.instance}: there is no such instance")
        grace_ms = None if act.grace_s is None else int(act.grace_s * 1000)
        order = InstanceOrder(method=f"workload.{verb}", instance=line.instance_id, grace_ms=grace_ms)
        try:
            self._client.ask(PLANE, order, ACT_LIMIT_S)
            ended = Ended(Ending.DONE)
        except AskFailed as failed:
            ended = ending_of_failure(failed)
        self._settle_ending(verb, act.instance, act, ended)
        if ended.ending is Ending.DONE:
            self._story.tell(verb, f"{act.instance}: done")

    def _edge(self, edge: Edge) -> None:
        name = edges.name_of(edge)
        ended, line = edges.order(self._client, edge)
        self._settle_ending("edge", name, edge, ended)
        if line is not None:
            self._story.tell("edge", f"{line.name} is {line.phase.value}" + (f": {line.reason}" if line.reason else ""))
        elif ended.ending is Ending.DONE:
            self._story.tell("edge", f"{name} is stopped and forgotten")

    def _settle_ending(self, verb: str, what: str, order: Order, ended: Ended) -> None:
        """Compare how an order ended with how it should have. Raises `StepFailed`."""
        if not ended.meets(order):
            raise StepFailed(f"{verb} {what}: {ended}; expected {wanted(order)}")
        if ended.ending is not Ending.DONE:
            code = f" ({ended.code})" if ended.code else ""
            self._story.tell(verb, f"{what} -> {ended.ending.value}{code}", Tone.GOOD)
            self._story.add(ended.text)

    def _signal(self, verb: str, target: OnProcess) -> None:
        self._set_mark()
        number = {"crash": signal.SIGKILL, "hang": signal.SIGSTOP, "resume": signal.SIGCONT}[verb]
        if target.process is not None:
            name, pid = target.process, self._stage.signal(target.process, number)
        else:
            name = str(target.instance)
            line = self._observer.instance(name)
            if line is None or line.pid is None:
                raise StepFailed(
                    f"{verb} {name}: {'there is no such instance' if line is None else 'it has no process'}"
                )
            pid = line.pid
            os.kill(pid, number)
        self._story.tell(verb, f"{name}: {number.name} to process {pid}", Tone.BAD if verb == "crash" else Tone.PLAIN)

    def _set_mark(self) -> None:
        self._observer.read_chain()
        self._mark = len(self._observer.events)

    def _expect(self, expect: Expect, within_s: float) -> None:
        seen: dict[str, str] = {}

        def missing() -> str:
            self._check_invariants()
            return self._missing(expect, seen)

        began = time.monotonic()
        self._until(missing, within_s)
        waited = time.monotonic() - began
        self._story.tell(
            "expect", "; ".join(seen.values()) + (f" (after {waited:.1f} s)" if waited >= 1 else ""), Tone.GOOD
        )
        if expect.instance is not None and expect.show:
            line = self._observer.instance(expect.instance)
            output = self._observer.output(line.instance_id) if line is not None else ""
            self._story.add("\n".join(output.splitlines()[-expect.show :]))
        self._remember()

    def _missing(self, expect: Expect, seen: dict[str, str]) -> str:
        """What of the expectation does not hold now; `seen` collects what does."""
        if expect.process is not None:
            child = self._observer.child(expect.process)
            if child is None:
                return f"its supervisor does not show process {expect.process}"
            if expect.running is not None and (child.state is ChildState.RUNNING) != expect.running:
                return f"process {expect.process} is {child.state.value}"
            if expect.restarts is not None and child.restarts < expect.restarts:
                return f"process {expect.process} was restarted {child.restarts} times"
            times = f", {child.restarts} restart{'s' if child.restarts != 1 else ''}" if child.restarts else ""
            seen["process"] = f"process {expect.process} is {child.state.value}{times}"
        if expect.node is not None:
            node = self._observer.nodes().get(expect.node)
            if node is None or node.reachable != expect.reachable:
                return f"node {expect.node} is {'unknown' if node is None else node.liveness}"
            seen["node"] = f"node {expect.node} is {node.liveness}"
        if expect.edge is not None:
            before = self._epochs.get(squeezed(expect.edge))
            if why := edges.missing(self._observer, expect, before, self._mark, seen):
                return why
        return self._missing_of_instance(expect, seen) if expect.instance is not None else ""

    def _missing_of_instance(self, expect: Expect, seen: dict[str, str]) -> str:
        name = str(expect.instance)
        line = self._observer.instance(name)
        if line is None:
            return f"there is no instance {name}"
        if expect.state is not None and (line.state is not expect.state or not line.reachable):
            return f"{name} is {line.state.value}{'' if line.reachable else ', its node unreachable'}"
        if expect.same_pid is not None:
            before = self._pids.get(name)
            if line.pid is None or before is None or (line.pid == before) != expect.same_pid:
                return f"{name} is process {line.pid}, it was {before}"
        told = f"{name} is {line.state.value}" + (f", process {line.pid}" if line.pid is not None else "")
        seen["instance"] = told + (", the same as before" if expect.same_pid else "")
        if expect.output:
            output = self._observer.output(line.instance_id)
            absent = [text for text in expect.output if text not in output]
            if absent:
                return f"{name} did not write {absent[0]!r}"
        return ""

    def _check(self, check: Check, within_s: float) -> None:
        if check.arenas is not None:
            self._until(lambda: edges.not_whole(self._observer), within_s)
            self._story.tell("check", "every arena is whole", Tone.GOOD)
        if check.chain is not None:
            verdict = self._observer.verify()
            if not verdict.valid:
                raise StepFailed(f"the chain does not verify: record {verdict.first_bad}: {verdict.problem}")
            self._story.tell(
                "check", f"the chain verifies: {verdict.count} records, head {verdict.head_hash[:16]}", Tone.GOOD
            )
        if problems := self._stage.problems(check):
            raise StepFailed("; ".join(problems))

    def _remember(self) -> None:
        self._epochs.update(self._observer.epochs())
        lines = self._observer.instances()
        for row in lines.instances if lines is not None else ():
            if row.pid is not None and row.reachable:
                self._pids[f"{row.workload}@{row.node}"] = row.pid
