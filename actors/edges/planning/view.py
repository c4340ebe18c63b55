"""What the edge planner knows in memory: what is placed, what each edges process tells, and where each edge stands.

Nothing of it survives a restart; it is asked for again. An edges process is believed about its own ends only, and in
one life after the other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from actors.actor import Context
from actors.edges.planning.ends import LifeView
from actors.edges.planning.situation import TERMINAL, EndSight, Situation, node_of, party_of
from actors.edges.planning.state import DesiredEdge, Life, Pair
from actors.edges.planning.wish import PortName, parse_port
from messages.base import NodeName
from messages.control import Epoch
from messages.edge import EdgeId, RingDirection
from messages.edge_end import ArenaSample, EdgeParty, EndReport
from messages.edge_plan import EdgePhase
from messages.placement import PlacedInstance

EDGES_SUFFIX = ".edges"
"""The edges process of `shed` is `shed.edges`."""

PAST_LIVES = 16
"""Of one edges process: what it said is on its way for a moment only."""

QUIET_S = 2.0
"""An edges process beats each second."""

RUNNING_S = 1.0
"""That an instance runs is believed so long, before it is asked again."""

RunKey = tuple[str, Epoch]
"""Instance id and epoch."""

EndKey = tuple[EdgeId, RingDirection]


@dataclass(slots=True)
class ProcessView:
    """One edges process. `heard_at`: `ctx.now` seconds; `incarnation` of its newest life that was heard, 0 for none;
    `past`: of those before, of which nothing is taken any more.

    `link`: the incarnation of its link, None while there is none; `speaking`: it told something since the link is up.
    `strays`: ends that no edge here has, and when they were last told to close.
    """

    name: NodeName
    heard_at: float
    link: int | None = None
    speaking: bool = False
    incarnation: int = 0
    past: tuple[int, ...] = ()
    ends: int = 0
    arena: ArenaSample | None = None
    started_at: float | None = None
    strays: dict[EndKey, float | None] = field(default_factory=dict)

    @property
    def is_linked(self) -> bool:
        return self.link is not None and self.speaking

    def lives_as(self, incarnation: int) -> bool:
        """Whether that life of it may say something; a new one makes the one before past."""
        if incarnation in self.past:
            return False
        if self.incarnation not in (0, incarnation):
            self.past = (*self.past, self.incarnation)[-PAST_LIVES:]
        self.incarnation = incarnation
        return True

    def is_quiet(self, now: float) -> bool:
        """It is not heard as often as it should be."""
        return not self.is_linked or now - self.heard_at > QUIET_S

    @property
    def node(self) -> str:
        return self.name.removesuffix(EDGES_SUFFIX)


@dataclass(slots=True)
class Hold:
    """Nothing more is tried before `until`. `pair`: it concerns that pair alone; `denied`: by the gate; `process`: one
    is waited for; `absent`: an instance is, to run, unless it is the run `unless`."""

    until: float
    reason: str
    pair: Pair | None = None
    denied: bool = False
    process: bool = False
    absent: RunKey | None = None
    unless: str | None = None


@dataclass(frozen=True, slots=True)
class RunningPair:
    """Both instances of `pair` run, as was told at `at`; `producer_run`: which run of the producer it is."""

    pair: Pair
    producer_run: str
    at: float


@dataclass(frozen=True, slots=True)
class Rest:
    """There is nothing to do for an edge while these stay: what is placed (as counted), and its hold."""

    placements: int
    hold: Hold | None


@dataclass(slots=True)
class EdgeWork:
    """One edge that shall be, as it is being worked on. `strikes`: lives in a row that faulted; `rest`: how it was when
    it last came to rest, None while something is done for it."""

    name: str
    source: PortName
    target: PortName
    since_ms: int
    life: LifeView | None = None
    hold: Hold | None = None
    granted: Pair | None = None
    running: RunningPair | None = None
    strikes: int = 0
    phase: EdgePhase = EdgePhase.WAITING
    reason: str = ""
    driving: bool = False
    rest: Rest | None = None


def resolve(name: PortName, found: list[PlacedInstance], used: str | None) -> PlacedInstance | str:
    """The instance that a port's name means, of those that it may mean; or why there is none. `used`: the instance that
    it meant before, which stays if it can."""
    if not found:
        where = "" if name.node is None else f" on {name.node}"
        return f"no instance of {name.workload} is placed{where}"
    for row in found:
        if row.record.instance_id == used:
            return row
    return ambiguity(name, found) if len(found) > 1 else found[0]


def ambiguity(name: PortName, found: list[PlacedInstance]) -> str:
    """What to write instead."""
    nodes = sorted(row.node for row in found)
    if len(set(nodes)) == len(nodes):
        writes = ", ".join(f"{name.workload}@{node}.{name.port}" for node in nodes)
    else:
        writes = ", ".join(sorted(f"{row.record.instance_id}.{name.port}" for row in found))
    return f"{name} may be any of {len(found)} placed instances: write one of {writes}"


def party(row: PlacedInstance, port: str) -> EdgeParty:
    record = row.record
    return EdgeParty(
        node_id=record.node_id,
        process=NodeName(row.node + EDGES_SUFFIX),
        instance_id=record.instance_id,
        epoch=record.epoch,
        port=port,
    )


def _runs(work: EdgeWork, pair: Pair | None, now: float) -> bool:
    return work.running is not None and work.running.pair == pair and now - work.running.at <= RUNNING_S


class PlanView:
    """Placements, edges processes and edges in memory. `placements` counts how often what is placed has changed."""

    def __init__(self) -> None:
        self.rows: dict[str, PlacedInstance] = {}
        self._by_workload: dict[str, list[PlacedInstance]] = {}
        self.placements_known = False
        self.placements = 0
        self.processes: dict[NodeName, ProcessView] = {}
        self.works: dict[str, EdgeWork] = {}
        self.serial = 0

    def place(self, rows: Iterable[PlacedInstance], *, known: bool) -> None:
        """What is placed now, instead of what was; unless it is not `known`."""
        placed = {row.record.instance_id: row for row in rows} if known else self.rows
        if placed == self.rows and known == self.placements_known:
            return
        self.placements += 1
        self.rows, self.placements_known = placed, known
        self._by_workload = {}
        for row in self.rows.values():
            self._by_workload.setdefault(row.record.workload, []).append(row)

    def candidates(self, name: PortName) -> list[PlacedInstance]:
        """The placed instances that a port's name may mean, by workload or instance id, but none that is to go."""
        named = self.rows.get(name.workload)
        found = self._by_workload.get(name.workload, []) if named is None else [named]
        return [row for row in found if name.node in (None, row.node) and not row.unloading]

    def process(self, name: NodeName, now: float) -> ProcessView:
        """That edges process; one never heard of counts as silent from now on."""
        return self.processes.setdefault(name, ProcessView(name, heard_at=now))

    def label(self, owner: EdgeParty) -> str:
        """That instance as an operator writes it, `trend@shed`."""
        row = self.rows.get(owner.instance_id)
        return f"{owner.instance_id if row is None else row.record.workload}@{node_of(owner)}"

    def work_on(self, edge: DesiredEdge, ctx: Context) -> EdgeWork:
        """Begin to look after an edge; its life, if it has one, was begun by an earlier planner."""
        source, target = parse_port(edge.source, "source"), parse_port(edge.target, "target")
        life = None if edge.life is None else LifeView.found(edge.life, ctx.now())
        work = EdgeWork(name=edge.name, source=source, target=target, since_ms=ctx.wall(), life=life)
        self.works[edge.name] = work
        return work

    def next_serial(self) -> int:
        """Of the order that is about to be given."""
        self.serial += 1
        return self.serial

    def rest(self, work: EdgeWork) -> None:
        """Nothing more is to be done for that edge now."""
        work.rest = Rest(self.placements, work.hold)

    def may_rest(self, work: EdgeWork, edge: DesiredEdge, now: float) -> bool:
        """Whether it is at rest and nothing can have changed that was not told."""
        rest, hold = work.rest, work.hold
        if rest is None or rest.placements != self.placements or rest.hold is not hold:
            return False
        if hold is not None and now >= hold.until:
            return False
        if work.life is None or edge.life is None:
            return True
        is_ready = edge.life.ready and edge.life.closing is None
        return is_ready and not any(self.process(name, now).is_quiet(now) for name in work.life.processes.values())

    def take_listing(
        self, process: ProcessView, incarnation: int, ends: list[EndReport], asked: int | None
    ) -> list[EdgeWork]:
        """Everything that one edges process has, told unasked or `asked` at that serial. Returns whom it is news
        for."""
        if not process.lives_as(incarnation):
            return []
        told = {(report.edge_id, report.direction): report for report in ends}
        process.ends = sum(report.state not in TERMINAL for report in ends)
        concerned: list[EdgeWork] = []
        for work in self.works.values():
            life = work.life
            if life is None:
                continue
            for way, name in life.processes.items():
                if name != process.name:
                    continue
                report, end = told.pop((life.edge_id, way), None), life.ends[way]
                news = end.missing(incarnation, asked) if report is None else end.take(report, incarnation)
                if news and (not concerned or concerned[-1] is not work):
                    concerned.append(work)
        process.strays = {key: process.strays.get(key) for key, report in told.items() if report.state not in TERMINAL}
        return concerned

    def take_report(self, process: ProcessView, incarnation: int, report: EndReport) -> EdgeWork | None:
        """What one end tells of itself. Returns the edge it belongs to, None for a stray."""
        if not process.lives_as(incarnation):
            return None
        for work in self.works.values():
            life = work.life
            if life is None or life.edge_id != report.edge_id:
                continue
            if life.processes[report.direction] == process.name:
                life.ends[report.direction].take(report, incarnation)
                return work
        return None

    def pair_of(self, work: EdgeWork, edge: DesiredEdge) -> Pair | str:
        """Whom the edge would join now, or why nobody."""
        used = edge.permitted
        before = (None, None) if used is None else (used.producer.instance_id, used.consumer.instance_id)
        source = resolve(work.source, self.candidates(work.source), before[0])
        target = resolve(work.target, self.candidates(work.target), before[1])
        if isinstance(source, str) or isinstance(target, str):
            return "; ".join(why for why in (source, target) if isinstance(why, str))
        pair = Pair(producer=party(source, work.source.port), consumer=party(target, work.target.port))
        if pair.producer == pair.consumer:
            return f"both ends are port {work.source.port} of {pair.producer.instance_id}: an edge joins two ports"
        return pair

    def situation(self, work: EdgeWork, edge: DesiredEdge, *, recorded: bool, now: float) -> Situation:
        """What the next step of that edge depends on."""
        pair = self.pair_of(work, edge)
        known = pair if isinstance(pair, Pair) else None
        hold = work.hold
        if hold is not None and (now >= hold.until or (hold.pair is not None and hold.pair != known)):
            hold = work.hold = None
        life, view = edge.life, work.life
        unheard = () if known is None else self._unheard(known, now)
        return Situation(
            edge=edge,
            loaded=self.placements_known,
            recorded=recorded,
            fresh=view is not None and view.fresh,
            pair=known,
            unresolved=pair if isinstance(pair, str) else "",
            unheard=unheard,
            hold="" if hold is None else hold.reason,
            running=_runs(work, known, now),
            permitted=known is not None and work.granted == known,
            producer=self._sight(life, view, RingDirection.EGRESS, now),
            consumer=self._sight(life, view, RingDirection.INGRESS, now),
            opening_s=0.0 if view is None or view.ordered_at is None else now - view.ordered_at,
            told_established=view is not None and view.established_at is not None,
        )

    def _unheard(self, pair: Pair, now: float) -> tuple[NodeName, ...]:
        names = dict.fromkeys((pair.producer.process, pair.consumer.process))
        return tuple(name for name in names if not self.process(name, now).is_linked)

    def _sight(self, life: Life | None, view: LifeView | None, way: RingDirection, now: float) -> EndSight:
        if life is None or view is None:
            return EndSight()
        end, owner = view.ends[way], party_of(life.pair, way)
        process = self.process(owner.process, now)
        row = self.rows.get(owner.instance_id)
        placed = row is not None and party(row, owner.port) == owner
        return EndSight(
            linked=process.is_linked,
            silent_s=now - process.heard_at,
            listed=end.listed,
            suspect=end.suspect,
            report=end.report,
            ordered=end.ordered,
            opened=end.opened,
            refusal=end.refusal,
            closed=end.closed,
            placed=placed or not self.placements_known,
            leaving=placed and row is not None and row.unloading,
            stopped=placed and row is not None and row.stopped,
        )


__all__ = [
    "EdgeWork",
    "Hold",
    "PlanView",
    "ProcessView",
    "Rest",
    "ambiguity",
    "party",
    "resolve",
]
