"""Reading a scenario strictly: what is not known is refused with file, line and key path, before anything starts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from actors.gate.policy import PolicyFault
from runtime.cluster.fault import ClusterFault
from runtime.cluster.names import Role, check_name, check_node_name, edges_of
from runtime.cluster.toml import KeyPath, fault_at, parse_toml, read_text
from runtime.scenario.format import (
    FORMAT,
    VERBS,
    Act,
    Bounce,
    Check,
    Edge,
    Ending,
    Expect,
    OnProcess,
    Place,
    Scenario,
    Step,
    Verdict,
    World,
)

_PORT = re.compile(r"[a-z0-9-]{1,64}(?:@(?P<node>[a-z0-9-]{1,63}))?\.[a-z0-9-]{1,63}", re.ASCII)


def load_scenario(path: Path) -> Scenario:
    """The scenario of a file, checked. Raises `ClusterFault`; package folders must exist."""
    text = read_text(path)
    scenario = parse_scenario(text, str(path))
    for position, package in enumerate(scenario.package):
        if not (path.parent / package.dir / "cog.toml").is_file():
            raise fault_at(
                text, str(path), ("package", position, "dir"), f"{path.parent / package.dir} holds no cog.toml"
            )
    return scenario


def parse_scenario(text: str, file: str) -> Scenario:
    """The scenario of a text. Raises `ClusterFault` with file, line and key path."""
    scenario = parse_toml(text, Scenario, file)
    _Checker(scenario, text, file).check()
    return scenario


class _Checker:
    """What types cannot say: names that refer to something, exactly one verb, verbs that fit together."""

    def __init__(self, scenario: Scenario, text: str, file: str) -> None:
        self._scenario = scenario
        self._text = text
        self._file = file
        self._nodes = {node.name for node in scenario.cluster.nodes}
        self._packages = {package.name for package in scenario.package}
        self._edges = {str(edges_of(node)) for node in self._nodes}
        self._processes = self._nodes | self._edges | {Role.CHAIN.value, Role.GATE.value, Role.CONTROLLER.value}

    def check(self) -> None:
        scenario = self._scenario
        if scenario.format != FORMAT:
            raise self._fault(("format",), f"this sennit plays format {FORMAT}, not {scenario.format}")
        if not scenario.title.strip():
            raise self._fault(("title",), "a scenario needs a title")
        if not scenario.worlds:
            raise self._fault(("worlds",), "name at least one world: live or sim")
        if not scenario.step:
            raise self._fault(("step",), "a scenario needs at least one step")
        self._check_cluster()
        for position, step in enumerate(scenario.step):
            self._check_step(("step", position), step)
        for position, final in enumerate(scenario.final):
            self._check_check(("finally", position, "check"), final.check)
        if scenario.expect.says is not None and scenario.expect.verdict is Verdict.PASS:
            raise self._fault(("expect", "says"), "a scenario that passes has no failure to say anything")

    def _check_cluster(self) -> None:
        cluster = self._scenario.cluster
        if not cluster.nodes:
            raise self._fault(("cluster", "nodes"), "a cluster needs at least one node")
        if len(self._nodes) != len(cluster.nodes):
            raise self._fault(("cluster", "nodes"), "two nodes have the same name")
        for position, node in enumerate(cluster.nodes):
            self._named(("cluster", "nodes", position, "name"), check_node_name, node.name)
        if cluster.policy is not None:
            try:
                cluster.policy.check()
            except PolicyFault as fault:
                raise self._fault(("cluster", "policy"), str(fault)) from None
        if len(self._packages) != len(self._scenario.package):
            raise self._fault(("package",), "two packages have the same name")
        for position, package in enumerate(self._scenario.package):
            self._named(("package", position, "name"), lambda name: check_name(name, "package name"), package.name)

    def _check_step(self, path: KeyPath, step: Step) -> None:
        verbs = [name for name in VERBS if getattr(step, name) is not None]
        if len(verbs) != 1:
            found = "none" if not verbs else " and ".join(verbs)
            raise self._fault(path, f"a step has exactly one verb of {', '.join(VERBS)}; this one has {found}")
        if step.at is not None and step.after is not None:
            raise self._fault((*path, "at"), "at and after exclude each other")
        if step.after is not None and ":" in step.after and World.LIVE in self._scenario.worlds:
            raise self._fault(
                (*path, "after"), "address:Message can be seen in the world sim only; name a chain kind, or kind/phase"
            )
        verb, table = step.verb
        path = (*path, verb)
        match table:
            case Place():
                self._known(path, "package", table.package, self._packages)
                for member in ("pin", "on"):
                    self._known(path, member, getattr(table, member), self._nodes)
                for member in ("prefer", "avoid"):
                    for node in getattr(table, member):
                        self._known(path, member, node, self._nodes)
                if not table.mode.is_single:
                    raise self._fault((*path, "mode"), "give one of once = true, interval = SECONDS, listener = PORT")
                self._check_ending(path, table)
            case Act():
                self._check_instance(path, table.instance)
                self._check_ending(path, table)
            case Edge():
                self._check_edge(path, table)
                self._check_ending(path, table)
            case OnProcess():
                if (table.process is None) == (table.instance is None):
                    raise self._fault(path, "of what? Either process or instance")
                self._known(path, "process", table.process, self._processes)
                if table.instance is not None:
                    self._check_instance(path, table.instance)
            case Bounce():
                for process in table.link:
                    self._known(path, "link", process, self._edges)
                if table.link[0] == table.link[1]:
                    raise self._fault((*path, "link"), "within one process no connection carries an edge")
            case Expect():
                self._check_expect(path, table)
            case Check():
                self._check_check(path, table)
            case _:
                pass

    def _check_edge(self, path: KeyPath, edge: Edge) -> None:
        if edge.stop is not None:
            given = [name for name in ("source", "target", "max_object", "ring") if getattr(edge, name) is not None]
            if given:
                raise self._fault((*path, "stop"), "an edge that ends takes no from, to, max_object or ring")
            self._check_edge_name((*path, "stop"), edge.stop)
            return
        for member, port in (("from", edge.source), ("to", edge.target)):
            if port is None:
                raise self._fault(path, "give from and to, or stop")
            self._check_port((*path, member), port)

    def _check_edge_name(self, path: KeyPath, name: str) -> None:
        source, arrow, target = name.partition("->")
        if not arrow:
            raise self._fault(path, f"{name!r} is not SOURCE->TARGET")
        for port in (source.strip(), target.strip()):
            self._check_port(path, port)

    def _check_port(self, path: KeyPath, port: str) -> None:
        match = _PORT.fullmatch(port)
        if match is None:
            raise self._fault(path, f"{port!r} is neither WORKLOAD.PORT nor WORKLOAD@NODE.PORT")
        self._known(path[:-1], str(path[-1]), match["node"], self._nodes)

    def _check_ending(self, path: KeyPath, order: Place | Act | Edge) -> None:
        if order.ends is Ending.DONE and (order.code is not None or order.says is not None):
            raise self._fault((*path, "code" if order.code else "says"), 'goes with ends = "refused" or "unplaceable"')

    def _check_expect(self, path: KeyPath, expect: Expect) -> None:
        needs = {
            "instance": ("state", "same_pid", "output", "show"),
            "process": ("running", "restarts"),
            "node": ("reachable",),
            "edge": ("phase", "same_epoch", "lives", "faults", "fault", "objects", "resumed"),
        }
        for subject, members in needs.items():
            given = [member for member in members if getattr(expect, member) not in (None, ())]
            if getattr(expect, subject) is None and given:
                raise self._fault((*path, given[0]), f"is expected of which {subject}?")
            if getattr(expect, subject) is not None and not given:
                raise self._fault((*path, subject), f"what is expected of it? One of {', '.join(members)}")
        if all(getattr(expect, subject) is None for subject in needs):
            raise self._fault(path, f"of what? One of {', '.join(needs)}")
        if expect.instance is not None:
            self._check_instance(path, expect.instance)
        self._known(path, "process", expect.process, self._processes)
        self._known(path, "node", expect.node, self._nodes)
        if expect.edge is not None:
            self._check_edge_name((*path, "edge"), expect.edge)

    def _check_check(self, path: KeyPath, check: Check) -> None:
        if all(getattr(check, name) is None for name in check.__struct_fields__):
            raise self._fault(path, f"what is checked? One of {', '.join(check.__struct_fields__)}")

    def _check_instance(self, path: KeyPath, instance: str) -> None:
        workload, at, node = instance.partition("@")
        if not (workload and at):
            raise self._fault((*path, "instance"), f"{instance!r} is not WORKLOAD@NODE")
        self._known(path, "instance", node, self._nodes)

    def _known(self, path: KeyPath, member: str, name: str | None, known: set[str]) -> None:
        if name is not None and name not in known:
            there_are = ", ".join(sorted(known)) or "none"
            raise self._fault((*path, member), f"{name!r} is not known here; there are: {there_are}")

    def _named(self, path: KeyPath, check: Any, name: str) -> None:
        try:
            check(name)
        except ClusterFault as fault:
            raise self._fault(path, fault.text) from None

    def _fault(self, path: KeyPath, what: str) -> ClusterFault:
        return fault_at(self._text, self._file, path, what)
