"""What an operator orders of the edge planner: an edge that shall be, or shall be no more (design 7 and 11)."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from actors.actor import Context
from actors.edges.planning.acts import PlanActs
from actors.edges.planning.core import PlanCore
from actors.edges.planning.lines import line_of
from actors.edges.planning.processes import see_placements
from actors.edges.planning.state import DesiredEdge
from actors.edges.planning.view import PlanView, ambiguity
from actors.edges.planning.wish import PlanRefused, PortName, edge_name, parse_port, sizes_of, spelled
from messages.edge import RunId
from messages.edge_plan import AddEdge, EdgeAdded, EdgePlanRefusal, RemoveEdge
from messages.system import Done

MAX_EDGES = 1_000
REMOVED_EVERY_S = 0.1


class PlanOrders:
    """`names`: the configured name of each node, by node id."""

    def __init__(self, core: PlanCore, view: PlanView, acts: PlanActs, names: Mapping[str, str]) -> None:
        self._core = core
        self._view = view
        self._acts = acts
        self._names = names

    @property
    def nodes(self) -> list[str]:
        return sorted(self._names.values())

    async def add(self, ctx: Context, order: AddEdge) -> EdgeAdded:
        """Durable and on the chain before it is answered. Raises `PlanRefused`."""
        core, view = self._core, self._view
        source, target = self._port(order.source, "source"), self._port(order.target, "target")
        if source == target:
            raise PlanRefused(EdgePlanRefusal.INVALID, f"{source} cannot be joined to itself: name two ports")
        sizes = sizes_of(order, self._arena_bytes())
        core.check_trusted()
        await see_placements(ctx, core, view)
        for port in (source, target):
            found = view.candidates(port)
            if len(found) > 1:
                raise PlanRefused(EdgePlanRefusal.AMBIGUOUS, ambiguity(port, found))
        name = edge_name(str(source), str(target))
        known = core.state.edges.get(name)
        if known is not None:
            same = known.sizes == sizes or (
                order.ring_bytes is None and known.sizes.max_extent_bytes == sizes.max_extent_bytes
            )
            if same and not known.removing and known.added_key not in core.state.owed:
                return EdgeAdded(edge=line_of(core, view, known))
            why = "is being stopped" if known.removing else "" if same else "exists, with other sizes"
            raise PlanRefused(
                EdgePlanRefusal.EXISTS,
                f"{name} {why or 'is being added'}: wait, or stop it first with `sennit edge stop '{name}'`",
            )
        if len(core.state.edges) >= MAX_EDGES:
            raise PlanRefused(EdgePlanRefusal.INVALID, f"there are {MAX_EDGES} edges already: stop some first")
        if not await core.pay(ctx):
            raise PlanRefused(EdgePlanRefusal.NO_RECORD, "the chain takes no records now, so no edge is added")
        if name in core.state.edges:
            raise PlanRefused(EdgePlanRefusal.EXISTS, f"{name} is being added by somebody else: `sennit edge ls`")
        edge = DesiredEdge(
            source=str(source),
            target=str(target),
            sizes=sizes,
            added_key="",
            since_ms=ctx.wall(),
            run_id=RunId(core.state.run_floor),
        )
        edge = msgspec.structs.replace(edge, added_key=core.owe_plan(edge, "added"))
        core.state.edges[name] = edge
        work = view.work_on(edge, ctx)
        await self._make_durable(ctx, edge)
        if view.works.get(name) is not work:
            raise PlanRefused(EdgePlanRefusal.UNKNOWN, f"{name} was added, and stopped by somebody else at once")
        self._acts.look(ctx, work)
        ctx.run(self._acts.drive(ctx, work))
        return EdgeAdded(edge=line_of(core, view, core.state.edges[name]))

    async def _make_durable(self, ctx: Context, edge: DesiredEdge) -> None:
        """Write the wish, then have the chain take it; else it is withdrawn. Raises `PlanRefused` (`no_record`)."""
        core = self._core
        try:
            await core.save(ctx)
        except PlanRefused:
            self._withdraw(edge)
            raise
        if not await core.pay(ctx) and edge.added_key in core.state.owed:
            self._withdraw(edge)
            await core.save_quietly(ctx)
            raise PlanRefused(EdgePlanRefusal.NO_RECORD, "the chain did not take its record, so the edge is not added")

    def _withdraw(self, edge: DesiredEdge) -> None:
        """Take the wish back, unless somebody stopped it meanwhile.

        Where the chain may have its record, it is told both, in order, when it can be written again.
        """
        core = self._core
        known = core.state.edges.get(edge.name)
        if known is None or known.added_key != edge.added_key:
            return
        if not core.withdraw(edge.added_key):
            core.owe_plan(edge, "removed", reason="not added: it could not be written when it was ordered")
        core.state.forget(edge.name)
        core.dirty = True
        self._view.works.pop(edge.name, None)

    async def remove(self, ctx: Context, order: RemoveEdge) -> Done:
        """Close both ends, then forget. Raises `PlanRefused`; `stopping` when that takes longer than can be waited."""
        core, view = self._core, self._view
        core.check_trusted()
        edge = self._find(order.edge)
        work = view.works[edge.name]
        if not edge.removing:
            core.state.edges[edge.name] = msgspec.structs.replace(edge, removing=True)
            try:
                await core.save(ctx)
            except PlanRefused:
                if view.works.get(edge.name) is work:
                    again = core.state.edges[edge.name]
                    core.state.edges[edge.name] = msgspec.structs.replace(again, removing=False)
                raise
        work.hold = None
        ctx.run(self._acts.drive(ctx, work))
        until = ctx.now() + core.settings.remove_timeout_s
        while view.works.get(edge.name) is work:
            if ctx.now() >= until:
                raise PlanRefused(
                    EdgePlanRefusal.STOPPING,
                    f"{edge.name} is being stopped and not gone yet ({work.reason}); that goes on: `sennit edge ls`",
                )
            await ctx.sleep(REMOVED_EVERY_S)
        return Done()

    def _find(self, text: str) -> DesiredEdge:
        edges = self._core.state.edges
        found = edges.get(spelled(text))
        if found is None and text.isdecimal():
            found = next(
                (edge for edge in edges.values() if edge.life is not None and str(edge.life.edge_id) == text), None
            )
        if found is None:
            listed = ", ".join(sorted(edges)) or "there is none"
            raise PlanRefused(EdgePlanRefusal.UNKNOWN, f"no edge {text[:200]!r}; {listed[:1000]}")
        return found

    def _port(self, text: str, what: str) -> PortName:
        """The port's name, its node by configured name. Raises `PlanRefused`."""
        port = parse_port(text, what)
        if port.node is None or port.node in self.nodes:
            return port
        if port.node in self._names:
            return msgspec.structs.replace(port, node=self._names[port.node])
        listed = ", ".join(self.nodes) or "none"
        raise PlanRefused(
            EdgePlanRefusal.UNKNOWN, f"{what} {text[:200]!r}: there is no node {port.node}; nodes: {listed}"
        )

    def _arena_bytes(self) -> int:
        told = [process.arena.capacity_bytes for process in self._view.processes.values() if process.arena is not None]
        return max(told, default=self._core.settings.arena_bytes)


__all__ = ["PlanOrders"]
