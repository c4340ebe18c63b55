"""Carrying out what an edge needs next: asking gate, supervisors and edges processes, and writing it all down.

One step at a time for each edge. A step that cannot be done holds its edge back for a while and says why; nothing is
given up, and no wait is without a deadline.
"""

from __future__ import annotations

from typing import Any

import msgspec

from actors.actor import AskFailed, Context
from actors.edges.planning.core import OPENING, PlanCore
from actors.edges.planning.ends import LifeView
from actors.edges.planning.judging import PairJudge
from actors.edges.planning.plan import (
    Begin,
    Close,
    CloseEnds,
    FindRuns,
    Forget,
    Judge,
    ListProcess,
    NoteReady,
    OpenEnds,
    Record,
    Settle,
    StartProcesses,
    Step,
    TellEstablished,
    Wait,
    backoff_s,
    doing,
    is_consequence,
    next_step,
    phase_during,
)
from actors.edges.planning.processes import list_ends, see_placements
from actors.edges.planning.runs import RunWatch
from actors.edges.planning.situation import Listed, party_of
from actors.edges.planning.state import Closing, DesiredEdge, Life, Pair
from actors.edges.planning.view import EdgeWork, Hold, PlanView
from actors.edges.planning.wish import PlanRefused
from messages.base import Address, NodeName
from messages.edge import RingDirection
from messages.edge_end import (
    CloseEdge,
    EdgeFaultCode,
    EdgeParty,
    EndRefusal,
    OpenEdge,
    ProducerEstablished,
)
from messages.edge_plan import EdgePhase
from messages.identity import Identity
from messages.supervision import StartChild

MAX_TEXT = 1_024
"""Of what a node says about a fault, in characters: of every edge it is kept, in one document of bounded size."""

FINAL = frozenset(code.value for code in EndRefusal)
STEPS_AT_ONCE = 32
MAX_OWED = 1_000
"""Records that the chain may be behind before no life begins any more: they lie in one document of bounded size."""


class PlanActs:
    """The steps of one incarnation of the planner."""

    def __init__(self, core: PlanCore, view: PlanView, nodes: dict[str, Identity]) -> None:
        self.core = core
        self.view = view
        self._gate = PairJudge(core, view, nodes)
        self._runs = RunWatch(core, view, self.drive)

    async def drive(self, ctx: Context, work: EdgeWork) -> None:
        """Do what the edge needs, step by step, until it has to wait. Only one procedure drives an edge."""
        core, view = self.core, self.view
        if work.driving or core.distrust:
            return
        work.driving, work.rest, looked = True, None, False
        try:
            for _ in range(STEPS_AT_ONCE):
                edge = core.state.edges.get(work.name)
                if edge is None or view.works.get(work.name) is not work:
                    return
                seen = view.situation(work, edge, recorded=core.is_recorded(edge), now=ctx.now())
                step = next_step(seen, core.settings.times)
                if isinstance(step, Wait):
                    self._note(ctx, work, step.phase, step.reason)
                    view.rest(work)
                    return
                self._note(ctx, work, phase_during(edge), doing(step) or work.reason)
                if isinstance(step, Close) and step.why is Closing.FAULT and not looked:
                    looked = True  # what ends because its instance is taken down has no fault
                    await see_placements(ctx, core, view)
                    continue
                await self._carry_out(ctx, work, step)
            ctx.log("error", "an edge does not come to rest", edge=work.name)
            work.hold = Hold(ctx.now() + core.settings.times.backoff_most_s, "it did not come to rest")
        finally:
            work.driving = False

    def look(self, ctx: Context, work: EdgeWork) -> None:
        """Note where an edge stands that is not driven yet."""
        edge = self.core.state.edges[work.name]
        step = next_step(
            self.view.situation(work, edge, recorded=self.core.is_recorded(edge), now=ctx.now()),
            self.core.settings.times,
        )
        if isinstance(step, Wait):
            self._note(ctx, work, step.phase, step.reason)
        else:
            self._note(ctx, work, phase_during(edge), doing(step))

    def _note(self, ctx: Context, work: EdgeWork, phase: EdgePhase, reason: str) -> None:
        if phase is not work.phase:
            work.since_ms = ctx.wall()
        work.phase, work.reason = phase, reason

    async def _carry_out(self, ctx: Context, work: EdgeWork, step: Step) -> None:
        match step:
            case Record():
                await self._record(ctx, work)
            case Judge(pair=pair):
                await self._gate.judge(ctx, work, pair)
            case StartProcesses(processes=processes):
                await self._start(ctx, work, processes)
            case FindRuns(pair=pair):
                await self._runs.look(ctx, work, pair)
            case Begin(pair=pair):
                await self._begin(ctx, work, pair)
            case OpenEnds(directions=ways):
                await self._open(ctx, work, ways)
            case ListProcess(process=process):
                if not await list_ends(ctx, self.core, self.view, process):
                    self._hold(ctx, work, f"{process} does not tell what ends it has")
            case TellEstablished():
                self._established(ctx, work)
            case NoteReady():
                await self._ready(ctx, work)
            case Close():
                await self._close(ctx, work, step)
            case CloseEnds(directions=ways):
                await self._close_ends(ctx, work, ways)
            case Settle():
                await self._settle(ctx, work)
            case Forget():
                await self._forget(ctx, work)
            case _:
                raise AssertionError(f"{step} is nothing to do")

    # before a life

    async def _record(self, ctx: Context, work: EdgeWork) -> None:
        paid = await self.core.pay(ctx)
        edge = self.core.state.edges.get(work.name)  # none when it was not to be recorded, and so not added
        if edge is not None and not self.core.is_recorded(edge):  # paid, it is still on its way to the disk
            why = (
                "the record that permits it is being written"
                if paid
                else "the chain does not take the record that permits it"
            )
            self._hold(ctx, work, why)

    async def _start(self, ctx: Context, work: EdgeWork, names: tuple[NodeName, ...]) -> None:
        """Have the nodes' supervisors start their edges processes, then wait until they are heard."""
        settings, now = self.core.settings, ctx.now()
        asked = []
        for name in names:
            process = self.view.process(name, now)
            if process.started_at is None or now - process.started_at >= settings.start_timeout_s:
                process.started_at = now
                asked.append(process)
        asks = [
            ctx.ask(Address(f"{process.node}/supervisor"), StartChild(name=process.name), settings.ask_timeout_s)
            for process in asked
        ]
        for process, done in zip(asked, await ctx.all_of(asks), strict=True):
            refused = str(done) if isinstance(done, AskFailed) else done.detail if done.refused is not None else ""
            if refused:
                process.started_at = None
                self._hold(ctx, work, f"{process.name} was not started: {refused}", process=True)
                return
        waited = " and ".join(names)
        if any(not self.view.process(name, now).is_linked for name in names):
            reason = f"starting {waited}, not heard yet"
            self._hold(ctx, work, reason, process=True)

    async def _begin(self, ctx: Context, work: EdgeWork, pair: Pair) -> None:
        core = self.core
        if len(core.state.owed) >= MAX_OWED:
            self._hold(ctx, work, f"the chain has not taken {len(core.state.owed)} records of what happened before")
            return
        edge = self._edge(work)
        assert work.running is not None
        life = core.state.next_life(edge, pair, work.running.producer_run)
        key = core.owe_life(edge, life, OPENING, number=edge.lives + 1)
        core.state.edges[work.name] = msgspec.structs.replace(
            edge,
            run_id=life.run_id,
            lives=edge.lives + 1,
            life=life,
            permitted=pair,
            permit_key=edge.permit_key if edge.permitted == pair else key,
            finished=None,
            finished_run="",
        )
        work.life, work.running = LifeView.begun(life), None
        try:
            await core.save(ctx)
        except PlanRefused as refused:
            if not core.withdraw(key):
                core.owe_life(edge, life, "closed", why=Closing.WITHDRAWN.value, text=refused.reason)
            core.state.edges[work.name] = msgspec.structs.replace(
                self._edge(work),
                lives=edge.lives,
                life=None,
                permitted=edge.permitted,
                permit_key=edge.permit_key,
                finished=edge.finished,
                finished_run=edge.finished_run,
            )
            work.life = None
            self._hold(ctx, work, refused.reason)

    # a life

    async def _open(self, ctx: Context, work: EdgeWork, ways: tuple[RingDirection, ...]) -> None:
        """Order ends, side by side. The same order again is answered the same, so a lost answer is asked for again."""
        edge, view = self._edge(work), work.life
        life = edge.life
        assert life is not None
        assert view is not None
        if view.ordered_at is None:
            view.ordered_at = ctx.now()
        asks = []
        for way in ways:
            end = view.ends[way]
            end.ordered, end.serial, end.listed = True, self.view.next_serial(), Listed.UNKNOWN
            order = OpenEdge(
                name=edge.name,
                run_id=life.run_id,
                edge_id=life.edge_id,
                direction=way,
                producer=life.pair.producer,
                consumer=life.pair.consumer,
                object_spec=edge.sizes.object_spec,
                ring_spec=edge.sizes.ring_spec,
            )
            asks.append(ctx.ask(_edges(party_of(life.pair, way)), order, self.core.settings.ask_timeout_s))
        for way, opened in zip(ways, await ctx.all_of(asks), strict=True):
            end, process = view.ends[way], party_of(life.pair, way).process
            if not isinstance(opened, AskFailed):
                if self.view.process(process, ctx.now()).lives_as(opened.incarnation):
                    end.take(opened.report, opened.incarnation)
            elif opened.code in FINAL:
                end.refusal = f"{process} refused its end: {opened.code}: {opened.reason}"[:MAX_TEXT]
            else:
                self._hold(ctx, work, f"{process} did not answer the order: {opened}")

    def _established(self, ctx: Context, work: EdgeWork) -> None:
        life, view = self._edge(work).life, work.life
        assert life is not None
        assert view is not None
        view.established_at = ctx.now()
        ctx.tell(_edges(life.pair.consumer), ProducerEstablished(edge_id=life.edge_id))

    async def _ready(self, ctx: Context, work: EdgeWork) -> None:
        edge, view = self._edge(work), work.life
        assert edge.life is not None
        assert view is not None
        view.ready_since = ctx.now()
        self.core.owe_life(edge, edge.life, "ready")
        life = msgspec.structs.replace(edge.life, ready=True)
        self.core.state.edges[work.name] = msgspec.structs.replace(edge, life=life)
        await self._written(ctx)

    async def _close(self, ctx: Context, work: EdgeWork, step: Close) -> None:
        """This life ends; it is closed however long disk and chain take to hear of it."""
        core, edge, view = self.core, self._edge(work), work.life
        assert edge.life is not None
        assert view is not None
        reason = step.reason[:MAX_TEXT]
        life = msgspec.structs.replace(edge.life, closing=step.why, reason=reason)
        changed = msgspec.structs.replace(edge, life=life)
        if step.fault is not None:
            code = step.fault.code
            changed = msgspec.structs.replace(changed, faults=edge.faults + 1)
            if not _tells_less(work, edge, code):
                changed = msgspec.structs.replace(changed, fault=code, fault_text=reason)
            core.owe_life(edge, life, "faulted", fault=None if code is None else code.value, text=reason)
        elif step.why is Closing.FINISHED:
            core.owe_life(edge, life, "finished")
        core.state.edges[work.name] = changed
        core.dirty = True
        if view.ready_since is not None and ctx.now() - view.ready_since >= core.settings.times.steady_s:
            work.strikes = 0
        work.hold = view.ready_since = None
        ctx.run(self._written(ctx))

    async def _close_ends(self, ctx: Context, work: EdgeWork, ways: tuple[RingDirection, ...]) -> None:
        """Tell ends to close, then look what is left of them."""
        edge, view = self._edge(work), work.life
        life = edge.life
        assert life is not None
        assert view is not None
        asks = []
        for way in ways:
            view.ends[way].serial = self.view.next_serial()
            order = CloseEdge(edge_id=life.edge_id, direction=way, reason=life.reason)
            asks.append(ctx.ask(_edges(party_of(life.pair, way)), order, self.core.settings.ask_timeout_s))
        for way, closed in zip(ways, await ctx.all_of(asks), strict=True):
            end, process = view.ends[way], party_of(life.pair, way).process
            if isinstance(closed, AskFailed):
                self._hold(ctx, work, f"{process} did not answer the order to close: {closed}")
            else:
                end.closed, end.listed = True, Listed.UNKNOWN

    async def _settle(self, ctx: Context, work: EdgeWork) -> None:
        """Nothing of the life is left: the next may begin."""
        core, edge, view = self.core, self._edge(work), work.life
        life = edge.life
        assert life is not None
        assert view is not None
        if life.closing is Closing.FAULT:
            edge, life = self._cause(view, edge, life)
            work.strikes += 1
            wait_s = backoff_s(work.strikes, ctx.random.random(), core.settings.times)
            work.hold = Hold(ctx.now() + wait_s, f"its last life faulted: {life.reason}", pair=life.pair)
        else:
            work.strikes, work.hold = 0, None
        assert life.closing is not None
        core.owe_life(edge, life, "closed", why=life.closing.value, text=life.reason)
        ended: dict[str, Any] = {}
        if life.closing is Closing.FINISHED:
            ended = {"finished": life.pair, "finished_run": life.producer_run}
        core.state.edges[work.name] = msgspec.structs.replace(edge, life=None, **ended)
        work.life = None
        await core.save_quietly(ctx)
        ctx.run(self._pay(ctx))

    def _cause(self, view: LifeView, edge: DesiredEdge, life: Life) -> tuple[DesiredEdge, Life]:
        """What the ends told until the end may name the cause where the first to fault had only seen its effect."""
        if edge.fault is not None and not is_consequence(edge.fault):
            return edge, life
        for end in view.ends.values():
            report = end.report
            if report is not None and report.fault is not None and not is_consequence(report.fault):
                text = report.fault_text[:MAX_TEXT]
                return (
                    msgspec.structs.replace(edge, fault=report.fault, fault_text=text),
                    msgspec.structs.replace(life, reason=text),
                )
        return edge, life

    async def _forget(self, ctx: Context, work: EdgeWork) -> None:
        core, edge = self.core, self._edge(work)
        core.owe_plan(edge, "removed", reason="by order")
        core.state.forget(work.name)
        self.view.works.pop(work.name, None)
        await self._written(ctx)

    # writing

    async def _written(self, ctx: Context) -> None:
        """Save and pay what has happened already."""
        await self.core.save_quietly(ctx)
        ctx.run(self._pay(ctx))

    async def _pay(self, ctx: Context) -> None:
        await self.core.pay(ctx)

    def _edge(self, work: EdgeWork) -> DesiredEdge:
        return self.core.state.edges[work.name]

    def _hold(
        self, ctx: Context, work: EdgeWork, reason: str, *, pair: Pair | None = None, process: bool = False
    ) -> None:
        work.hold = Hold(ctx.now() + self.core.settings.retry_s, reason, pair=pair, process=process)


def _tells_less(work: EdgeWork, edge: DesiredEdge, code: EdgeFaultCode | None) -> bool:
    """That its instance stopped while a life began only follows from what ended the life before."""
    if code is not EdgeFaultCode.WORKER_NOT_RUNNING or not work.strikes:
        return False
    return edge.fault is not None and not is_consequence(edge.fault)


def _edges(owner: EdgeParty) -> Address:
    return Address(f"{owner.process}/edges")


__all__ = ["PlanActs"]
