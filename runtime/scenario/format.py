"""The format of a scenario: header, cluster, packages, steps, checks, verdict (design 10, docs/formats.md)."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import msgspec

from actors.gate.policy import Policy
from messages.control import Interval, LifeState, Listener, Once, RunMode
from messages.edge_end import EdgeFaultCode
from messages.edge_plan import EdgePhase
from runtime.cluster.settings import NodeSettings, Restarts, Settings, Times

FORMAT = 1
DEFAULT_WITHIN_S = 10.0
ORPHAN_AFTER_S = 30.0
"""What a player that was killed leaves running ends by itself; a scenario that sets times says how soon."""

Seconds = Annotated[float, msgspec.Meta(ge=0, le=3_600)]
AtLeast = Annotated[int, msgspec.Meta(ge=0)]
Size = Annotated[int, msgspec.Meta(ge=1)]


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


class ArenaCheck(StrEnum):
    """`whole`: no ring is leased or waited for, and all of the memory is free, on every edges process."""

    WHOLE = "whole"


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


class Edge(Part, frozen=True):
    """Join `source` to `target` (`from` and `to` in the file; `WORKLOAD.PORT` or `WORKLOAD@NODE.PORT`), or end the
    edge `stop` (`SOURCE->TARGET`). `max_object`, `ring`: bytes.
    """

    source: str | None = msgspec.field(default=None, name="from")
    target: str | None = msgspec.field(default=None, name="to")
    max_object: Size | None = None
    ring: Size | None = None
    stop: str | None = None
    ends: Ending = Ending.DONE
    code: str | None = None
    says: str | None = None


class OnProcess(Part, frozen=True):
    """Crash (SIGKILL), hang (SIGSTOP) or resume (SIGCONT) a process of the cluster, also a node's edges process while
    there is one (`shed.edges`), or the leader of an instance's processes.
    """

    process: str | None = None
    instance: str | None = None


class Bounce(Part, frozen=True):
    """Cut the connection over which the first edges process sends to the second, once."""

    link: tuple[str, str]


class Expect(Part, frozen=True):
    """What must come true within the step's deadline. All members given must hold at once.

    `same_pid`: the workload's leader is the process it was when last seen before this step. `output`: texts that what
    the instance wrote must contain; `show`: print that many of its lines. `restarts`: of the process, at least.
    `same_epoch`: the edge is in the life that it was in when last seen before this step. `fault`: a life of it ended so
    since the last crash, hang or bounce. Of an edge at least: `lives`, `faults`, `objects` of this life that left it,
    how often its stream was `resumed` after a lost connection.
    """

    instance: str | None = None
    state: LifeState | None = None
    same_pid: bool | None = None
    output: tuple[str, ...] = ()
    show: Annotated[int, msgspec.Meta(ge=0, le=100)] | None = None
    process: str | None = None
    running: bool | None = None
    restarts: AtLeast | None = None
    node: str | None = None
    reachable: bool | None = None
    edge: str | None = None
    phase: EdgePhase | None = None
    same_epoch: bool | None = None
    lives: AtLeast | None = None
    faults: AtLeast | None = None
    fault: EdgeFaultCode | None = None
    objects: AtLeast | None = None
    resumed: AtLeast | None = None


class Check(Part, frozen=True):
    """What is counted or verified. In `[[finally]]` it is done after the cluster went down, `arenas` just before."""

    chain: ChainCheck | None = None
    arenas: ArenaCheck | None = None
    processes: Annotated[int, msgspec.Meta(ge=0)] | None = None
    sockets: Annotated[int, msgspec.Meta(ge=0)] | None = None
    shared_memory: Annotated[int, msgspec.Meta(ge=0)] | None = None


class Barrier(Part, frozen=True):
    """Wait until every process runs and has its links, every node is reachable and no decision is unsettled."""


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
    edge: Edge | None = None
    crash: OnProcess | None = None
    hang: OnProcess | None = None
    resume: OnProcess | None = None
    bounce: Bounce | None = None
    expect: Expect | None = None
    check: Check | None = None
    barrier: Barrier | None = None

    @property
    def verb(self) -> tuple[str, Any]:
        """The name of the verb and its table."""
        return next((name, getattr(self, name)) for name in VERBS if getattr(self, name) is not None)


VERBS = (
    "place", "plan", "start", "stop", "unload", "edge", "crash", "hang", "resume", "bounce", "expect", "check",
    "barrier",
)  # fmt: skip


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
