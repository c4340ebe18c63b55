"""The edge planner: which edges shall be, and what is done about it (design 7, E 7.4).

`sennit edge add hostwatch.out trend.in` becomes a wish that is durable and on the chain before it is answered. From
then on the edge follows its instances: a life of it begins when both are placed and the gate permits it, ends with
either, and after a fault comes back. What an edge needs next is decided by one pure function (`plan.next_step`); a tick
and what edges processes tell drive it.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from typing import Any

import msgspec

from actors.actor import Actor, Context, Procedure
from actors.edges.planning.acts import PlanActs
from actors.edges.planning.core import PlanCore, PlannerAddresses, PlannerSettings
from actors.edges.planning.lines import lines_of
from actors.edges.planning.orders import PlanOrders
from actors.edges.planning.processes import close_strays, see_placements
from actors.edges.planning.view import EDGES_SUFFIX, PlanView
from actors.edges.planning.wish import PlanRefused
from messages.base import Message, NodeName
from messages.edge_end import EndChanged, EndsBeat
from messages.edge_plan import (
    AddEdge,
    EdgePlanMessage,
    ListEdges,
    PlanTick,
    RemoveEdge,
)
from messages.identity import Identity
from messages.system import PeerDown, PeerUp


class EdgePlanner(Actor[EdgePlanMessage]):
    """`controller/edges`. `agent_id`: the controller's node id, as the gate judges it; `nodes`: from the directory."""

    mailbox = EdgePlanMessage

    def __init__(
        self,
        *,
        agent_id: str,
        nodes: Iterable[Identity],
        settings: PlannerSettings | None = None,
        addresses: PlannerAddresses | None = None,
    ) -> None:
        identities = list(nodes)
        self._core = PlanCore(agent_id, settings or PlannerSettings(), addresses or PlannerAddresses())
        self._view = PlanView()
        self._acts = PlanActs(self._core, self._view, {node.node_id: node for node in identities})
        self._orders = PlanOrders(self._core, self._view, self._acts, {node.node_id: node.name for node in identities})
        self._gate = self._core.addresses.gate.partition("/")[0]
        self._ticking = False
        self._ticked_at = 0.0

    def started(self, ctx: Context) -> Procedure | None:
        self._ticked_at = ctx.now()
        for name in self._orders.nodes:
            ctx.watch_peer(self._view.process(NodeName(name + EDGES_SUFFIX), ctx.now()).name)
        ctx.watch_peer(NodeName(self._gate))
        return self._start(ctx)

    def receive(self, message: EdgePlanMessage, ctx: Context) -> Procedure | None:
        match message:
            case AddEdge():
                return self._answer(ctx, self._orders.add(ctx, message))
            case RemoveEdge():
                return self._answer(ctx, self._orders.remove(ctx, message))
            case ListEdges():
                ctx.reply(lines_of(self._core, self._view))
            case EndChanged():
                self._changed(ctx, message)
            case EndsBeat():
                self._beat(ctx, message)
            case PlanTick():
                return self._tick(ctx)
            case PeerUp():
                self._up(ctx, message)
            case PeerDown():
                self._down(message)
        return None

    def state(self) -> object:
        core, lines = self._core, lines_of(self._core, self._view)
        return {
            "term": core.state.term,
            "distrust": core.distrust,
            "placements_known": self._view.placements_known,
            "last_edge_id": core.state.last_edge_id,
            "owed": len(core.state.owed),
            "dirty": core.dirty,
            "edges": [msgspec.to_builtins(line) for line in lines.edges],
            "strikes": {work.name: work.strikes for work in self._view.works.values() if work.strikes},
            "nodes": [msgspec.to_builtins(node) for node in lines.nodes],
            "strays": {
                process.name: [f"{edge_id}/{way.value}" for edge_id, way in process.strays]
                for process in self._view.processes.values()
                if process.strays
            },
        }

    # starting

    async def _start(self, ctx: Context) -> None:
        await self._load(ctx)
        ctx.tell(ctx.address, PlanTick())

    async def _load(self, ctx: Context) -> None:
        core = self._core
        if await core.load(ctx):
            for edge in core.state.edges.values():
                self._view.work_on(edge, ctx)

    async def _answer(self, ctx: Context, asked: Coroutine[Any, Any, Message]) -> None:
        try:
            ctx.reply(await asked)
        except PlanRefused as refused:
            ctx.refuse(refused.code.value, refused.reason)

    # what edges processes tell

    def _changed(self, ctx: Context, message: EndChanged) -> None:
        if not self._speaks_for(ctx, message.process):
            return
        process = self._view.process(message.process, ctx.now())
        work = self._view.take_report(process, message.incarnation, message.report)
        if work is not None:
            ctx.run(self._acts.drive(ctx, work))

    def _beat(self, ctx: Context, message: EndsBeat) -> None:
        if not self._speaks_for(ctx, message.process):
            return
        process = self._view.process(message.process, ctx.now())
        if not process.lives_as(message.incarnation):
            return
        silent = not process.speaking
        process.heard_at, process.speaking, process.arena = ctx.now(), True, message.arena
        concerned = self._view.take_listing(process, message.incarnation, message.ends, None)
        if silent:
            self._heard(ctx)
        for work in concerned:
            ctx.run(self._acts.drive(ctx, work))

    def _speaks_for(self, ctx: Context, process: NodeName) -> bool:
        if ctx.sender is not None and ctx.sender.partition("/")[0] == process and process in self._view.processes:
            return True
        ctx.log("warning", "refused what does not come from the process it speaks for", process=process, of=ctx.sender)
        return False

    def _up(self, ctx: Context, message: PeerUp) -> None:
        if message.process == self._gate:
            for work in self._view.works.values():  # it reads its policy when it starts
                work.granted = None
                if work.hold is not None and work.hold.denied:
                    work.hold = None
            return
        process = self._view.process(message.process, ctx.now())
        process.link, process.speaking, process.heard_at = message.incarnation, False, ctx.now()
        # Its edges actor may not be there yet; it beats when it is

    def _down(self, message: PeerDown) -> None:
        process = self._view.processes.get(message.process)
        if process is not None and process.link == message.incarnation:  # not an older link's, told late
            process.link, process.speaking, process.started_at = None, False, None

    def _heard(self, ctx: Context) -> None:
        """An edges process speaks again: go on with what waits for one."""
        for work in self._view.works.values():
            if work.hold is not None and work.hold.process:
                work.hold = None
            ctx.run(self._acts.drive(ctx, work))

    # driving

    async def _tick(self, ctx: Context) -> None:
        if self._ticking:
            return
        self._ticking = True
        try:
            await self._look(ctx)
        finally:
            self._ticking = False
            ctx.after(self._core.settings.tick_s, PlanTick())

    async def _look(self, ctx: Context) -> None:
        core, view = self._core, self._view
        self._excuse_standstill(ctx)
        await self._load(ctx)
        await core.compare(ctx)
        if view.works:
            await see_placements(ctx, core, view)
        if core.distrust:
            return
        for work in view.works.values():
            if not view.may_rest(work, core.state.edges[work.name], ctx.now()):
                ctx.run(self._acts.drive(ctx, work))
        for process in view.processes.values():
            if process.strays and process.is_linked:
                ctx.run(close_strays(ctx, core, process))
        if core.state.owed or core.dirty:
            ctx.run(self._write(ctx))

    def _excuse_standstill(self, ctx: Context) -> None:
        """While this process stood still (stopped, or its machine) it could hear nobody: that is nobody's silence.

        What came meanwhile waits behind the timer that brought us here.
        """
        late_s = ctx.now() - self._ticked_at - self._core.settings.tick_s
        self._ticked_at = ctx.now()
        if late_s > self._core.settings.tick_s:
            for process in self._view.processes.values():
                process.heard_at = min(ctx.now(), process.heard_at + late_s)

    async def _write(self, ctx: Context) -> None:
        await self._core.pay(ctx)
        if self._core.dirty:
            await self._core.save_quietly(ctx)


__all__ = ["EdgePlanner", "PlannerAddresses", "PlannerSettings"]
