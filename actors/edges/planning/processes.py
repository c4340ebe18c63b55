"""What the edge planner asks to know where it stands: what is placed, and of edges processes what ends they have.

An edges process is told to close what no edge should have.
"""

from __future__ import annotations

from actors.actor import AskFailed, Context
from actors.edges.planning.core import PlanCore
from actors.edges.planning.view import PlanView, ProcessView
from messages.base import Address, NodeName
from messages.edge_end import CloseEdge, ListEnds
from messages.placement import GetPlacements

STRAY_EVERY_S = 5.0


async def see_placements(ctx: Context, core: PlanCore, view: PlanView) -> None:
    """What is placed, as the plane has it in memory; what it does not answer, stays as it was."""
    try:
        placements = await ctx.ask(core.addresses.plane, GetPlacements(), core.settings.ask_timeout_s)
    except AskFailed as failure:
        ctx.log("debug", "the plane does not tell what is placed", reason=str(failure))
        return
    view.place(placements.rows, known=placements.loaded)


async def list_ends(ctx: Context, core: PlanCore, view: PlanView, process: NodeName) -> bool:
    """Ask what ends are there, and take the answer in. False when there is none."""
    asked = view.serial
    try:
        ends = await ctx.ask(Address(f"{process}/edges"), ListEnds(), core.settings.ask_timeout_s)
    except AskFailed as failure:
        ctx.log("debug", "an edges process does not tell what it has", process=process, reason=str(failure))
        return False
    known = view.process(process, ctx.now())
    known.heard_at, known.speaking, known.arena = ctx.now(), True, ends.arena
    view.take_listing(known, ends.incarnation, ends.ends, asked)
    return True


async def close_strays(ctx: Context, core: PlanCore, process: ProcessView) -> None:
    """Close what no edge here has: what is left of a life that ended while its process could not be reached."""
    now = ctx.now()
    wanted = {edge.life.edge_id for edge in core.state.edges.values() if edge.life is not None}
    due = [
        key
        for key, told in process.strays.items()
        if key[0] not in wanted and (told is None or now - told >= STRAY_EVERY_S)
    ]
    process.strays.update(dict.fromkeys(due, now))
    asks = [
        ctx.ask(
            Address(f"{process.name}/edges"),
            CloseEdge(edge_id=edge_id, direction=way, reason="no edge that shall be has this end"),
            core.settings.ask_timeout_s,
        )
        for edge_id, way in due
    ]
    for (edge_id, way), closed in zip(due, await ctx.all_of(asks), strict=True):
        ctx.log("info", "a stray end was told to close", process=process.name, edge_id=edge_id, direction=way.value,
                answer=str(closed))  # fmt: skip


__all__ = ["close_strays", "list_ends", "see_placements"]
