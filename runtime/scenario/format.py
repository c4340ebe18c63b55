"""The format of a scenario: header, cluster, packages, steps, checks, verdict (design 10, docs/formats.md).

A scenario is read strictly: what is not known is refused with file, line and key path, before anything starts.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import msgspec

from actors.gate.policy import Policy, PolicyFault
from messages.control import Interval, LifeState, Listener, Once, RunMode
from runtime.cluster.fault import ClusterFault
from runtime.cluster.names import Role, check_name, check_node_name
from runtime.cluster.settings import NodeSettings, Restarts, Settings, Times
from runtime.cluster.toml import KeyPath, fault_at, parse_toml, read_text

FORMAT = 1
DEFAULT_WITHIN_S = 10.0
ORPHAN_AFTER_S = 30.0
"""What a player that was killed leaves running ends by itself; a scenario that sets times says how soon."""

Seconds = Annotated[float, msgspec.Meta(ge=0, le=3_600)]


class World(StrEnum):
    """Where a scenario can be played."""

    LIVE = "live"
    SIM = "sim"


class Verdict(StrEnum):
    """What the player must find. `must_fail`: an invariant or a check has to catch what the scenario does."""

    PASS = "pass"  # noqa: S105 - a verdict
    MUST_FAIL = "must_fail"


class SignedBy(StrEnum):
    """Whose key signs a package: the cluster's signer, a key nobody trusts, or none."""

    SIGNER = "signer"
    STRANGER = "stranger"
    NOBODY = "nobody"


class Ending(StrEnum):
    """How an order ends. `refused`: by name, with a code; `unplaceable`: no node fits."""

    DONE = "done"
    REFUSED = "refused"
    UNPLACEABLE = "unplaceable"
    INDETERMINATE = "indeterminate"


class Invariant(StrEnum):
    """What must hold all the time (promises 2 and 3) or of the whole chain."""

    NEVER_TWO = "never_two"
    NO_RECORD_NO_ACT = "no_record_no_act"


class ChainCheck(StrEnum):
    VERIFIES = "verifies"


class Part(Settings, frozen=True):
    """A table of a scenario. Unknown keys are refused."""


class ClusterPart(Part, frozen=True):
    """The cluster that the scenario needs. `policy` is a whole policy.toml as a table."""

    nodes: tuple[NodeSettings, ...]
    policy: Policy | None = None
    times: Times = Times(orphan_after_s=ORPHAN_AFTER_S)
    restarts: Restarts = Restarts()


class PackagePart(Part, frozen=True):
    """A package made from `dir` (beside the scenario), signed, and then, if asked, tampered with.

    `tamper`: a file of the package in which one byte is changed after signing.
    """

    name: str
    dir: str
    signed_by: SignedBy = SignedBy.SIGNER
    tamper: str | None = None


class ModePart(Part, frozen=True):
    """One of: `once = true`, `interval = SECONDS`, `listener = PORT`."""

    once: bool = False
    interval: Annotated[int, msgspec.Meta(ge=1, le=3_600)] | None = None
    listener: Annotated[int, msgspec.Meta(ge=1, le=65_535)] | None = None

    def run_mode(self) -> RunMode:
        if self.interval is not None:
            return Interval(secs=self.interval)
        return Listener() if self.listener is not None else Once()

    @property
    def is_single(self) -> bool:
        return sum((self.once, self.interval is not None, self.listener is not None)) == 1


class Place(Part, frozen=True):
    """Place a package, or with the verb `plan` only decide. `on`: the node that must be chosen."""

    package: str
    pin: str | None = None
    prefer: tuple[str, ...] = ()
    avoid: tuple[str, ...] = ()
    mode: ModePart = ModePart(once=True)
    args: tuple[str, ...] = ()
    start: bool = True
    allow_emulated: bool = False
    on: str | None = None
    ends: Ending = Ending.DONE
    code: str | None = None
    says: str | None = None


class Act(Part, frozen=True):
    """Start, stop or unload an instance, named `workload@node`."""

    instance: str
    grace_s: Annotated[float, msgspec.Meta(ge=0, le=60)] | None = None
    ends: Ending = Ending.DONE
    code: str | None = None
    says: str | None = None


class OnProcess(Part, frozen=True):
    """Crash (SIGKILL), hang (SIGSTOP) or resume (SIGCONT) a process of the cluster."""

    process: str


class Expect(Part, frozen=True):
    """What must come true within the step's deadline. All members given must hold at once.

    `same_pid`: the workload's leader is the process it was when last seen before this step. `output`: texts that what
    the instance wrote must contain; `show`: print that many of its lines. `restarts`: of the process, at least.
    """

    instance: str | None = None
    state: LifeState | None = None
    same_pid: bool | None = None
    output: tuple[str, ...] = ()
    show: Annotated[int, msgspec.Meta(ge=0, le=100)] = 0
    process: str | None = None
    running: bool | None = None
    restarts: Annotated[int, msgspec.Meta(ge=0)] | None = None
    node: str | None = None
    reachable: bool | None = None


class Check(Part, frozen=True):
    """What is counted or verified. In `[[finally]]` it is done after the cluster went down."""

    chain: ChainCheck | None = None
    processes: Annotated[int, msgspec.Meta(ge=0)] | None = None
    sockets: Annotated[int, msgspec.Meta(ge=0)] | None = None
    shared_memory: Annotated[int, msgspec.Meta(ge=0)] | None = None


class Barrier(Part, frozen=True):
    """Wait until every process runs, every node is reachable and no decision is unsettled."""


class Step(Part, frozen=True):
    """Exactly one verb. `at`: seconds after the cluster is up. `after`: an event not yet waited for.

    `within`: seconds until what is expected, or awaited, must have come. `say`: a line for the story.
    """

    at: Seconds | None = None
    after: str | None = None
    within: Annotated[float, msgspec.Meta(gt=0, le=3_600)] = DEFAULT_WITHIN_S
    say: str = ""
    place: Place | None = None
    plan: Place | None = None
    start: Act | None = None
    stop: Act | None = None
    unload: Act | None = None
    crash: OnProcess | None = None
    hang: OnProcess | None = None
    resume: OnProcess | None = None
    expect: Expect | None = None
    check: Check | None = None
    barrier: Barrier | None = None

    @property
    def verb(self) -> tuple[str, Any]:
        """The name of the verb and its table."""
        return next((name, getattr(self, name)) for name in VERBS if getattr(self, name) is not None)


VERBS = ("place", "plan", "start", "stop", "unload", "crash", "hang", "resume", "expect", "check", "barrier")


class Always(Part, frozen=True):
    invariant: Invariant


class Finally(Part, frozen=True):
    check: Check


class Expected(Part, frozen=True):
    """`says`: a text that a failure must contain, when the verdict is `must_fail`."""

    verdict: Verdict = Verdict.PASS
    says: str | None = None


class Scenario(Part, frozen=True, kw_only=True):
    """The whole file. `seed` seeds whatever a world decides by chance."""

    title: str
    format: int
    seed: Annotated[int, msgspec.Meta(ge=0)] = 0
    worlds: tuple[World, ...] = (World.LIVE,)
    cluster: ClusterPart
    package: tuple[PackagePart, ...] = ()
    step: tuple[Step, ...]
    always: tuple[Always, ...] = ()
    final: tuple[Finally, ...] = msgspec.field(default=(), name="finally")
    expect: Expected = Expected()


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
        self._processes = self._nodes | {Role.CHAIN.value, Role.GATE.value, Role.CONTROLLER.value}

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
            case OnProcess():
                self._known(path, "process", table.process, self._processes)
            case Expect():
                self._check_expect(path, table)
            case Check():
                self._check_check(path, table)
            case _:
                pass

    def _check_ending(self, path: KeyPath, order: Place | Act) -> None:
        if order.ends is Ending.DONE and (order.code is not None or order.says is not None):
            raise self._fault((*path, "code" if order.code else "says"), 'goes with ends = "refused" or "unplaceable"')

    def _check_expect(self, path: KeyPath, expect: Expect) -> None:
        needs = {
            "instance": ("state", "same_pid", "output", "show"),
            "process": ("running", "restarts"),
            "node": ("reachable",),
        }
        for subject, members in needs.items():
            given = [member for member in members if getattr(expect, member) not in (None, (), 0)]
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
