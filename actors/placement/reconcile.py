"""Finding out what became of a request whose answer was lost (P 6.4 and 6.6, design 8).

Within a placement: fence the slot on the node, so that nothing late can begin there, then take down what the decision
left. Later: adopt what is there; only a node that holds nothing is fenced, and then the decision is forgotten. A node
that cannot be asked settles nothing, ever: no clock and no guess.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from actors.actor import Context
from actors.placement.audit import LIFECYCLE, PLACE, happened
from actors.placement.calls import CallAccepted, CallIndeterminate, CallRefused
from actors.placement.core import Core
from actors.placement.order import PlaneRefusal, instance_id
from actors.placement.state import Dispatch, Held
from messages.control import (
    DepartedRow,
    FenceBody,
    FenceResult,
    HeldRow,
    InFlightRow,
    InstanceBody,
    LifeState,
    Method,
    RefusalCode,
    StatusListing,
    StatusRow,
    UnloadedResult,
)


@dataclass(frozen=True, slots=True)
class Settlement:
    """`settled`: the node holds nothing of the decision and never will. `note` says how that is known, or why not."""

    settled: bool
    note: str


async def reconcile(core: Core, ctx: Context, dispatch: Dispatch) -> Settlement:
    """Fence the slot on the node and unload what the decision left there, before another candidate is tried."""
    fenced = await fence(core, ctx, dispatch)
    if isinstance(fenced, str):
        return Settlement(False, f"not reconciled: {fenced}")
    held, in_flight = _rows_of(fenced.rows, dispatch)
    if in_flight:
        return Settlement(False, "not reconciled: the node is still carrying the order out")
    for row in held:
        if not await _intend(core, ctx, dispatch, undoing=True):
            return Settlement(False, "not reconciled: the state could not be written")
        gone = await core.call(
            ctx,
            dispatch.node_id,
            Method.UNLOAD,
            UnloadedResult,
            body=InstanceBody(instance_id=row.instance_id, epoch=row.epoch),
            decision_id=dispatch.decision_id,
        )
        if not isinstance(gone, CallAccepted) and not _unknown_instance(gone):
            if not isinstance(gone, CallIndeterminate):
                await _intend(core, ctx, dispatch, undoing=False)
            return Settlement(False, f"not reconciled: {row.instance_id} could not be unloaded: {gone}")
    unloaded = f"unloaded {len(held)} instance" + ("" if len(held) == 1 else "s")
    return Settlement(True, f"reconciled: {unloaded}, fenced below {fenced.floor}")


async def _intend(core: Core, ctx: Context, dispatch: Dispatch, *, undoing: bool) -> bool:
    """Make durable that an unload of what the decision left may be on its way, or certainly is not."""
    core.state.dispatches[dispatch.decision_id] = msgspec.structs.replace(dispatch, undoing=undoing)
    try:
        await core.save(ctx)
    except PlaneRefusal as refusal:
        ctx.log("error", "an unsettled decision could not be written", reason=refusal.reason)
        return False
    return True


async def fence(core: Core, ctx: Context, dispatch: Dispatch) -> FenceResult | str:
    """Have the node refuse every epoch of the slot given so far; the reason when it is not certain that it does."""
    floor = core.state.next_epoch(dispatch.slot)
    answer = await core.call(
        ctx,
        dispatch.node_id,
        Method.FENCE,
        FenceResult,
        body=FenceBody(slot=dispatch.slot, floor=floor, decision_id=dispatch.decision_id),
        decision_id=dispatch.decision_id,
    )
    if not isinstance(answer, CallAccepted):
        return f"the fence was not confirmed: {answer}"
    if answer.result.floor < floor:
        return f"the node keeps the floor {answer.result.floor}, below {floor}"
    payload = {
        "phase": "fenced",
        "decision_id": dispatch.decision_id,
        "node": dispatch.node_id,
        "slot": dispatch.slot,
        "floor": str(answer.result.floor),
        "rows": len(answer.result.rows),
    }
    await happened(core, ctx, PLACE, payload)
    return answer.result


async def settle_slot(core: Core, ctx: Context, slot: str) -> int:
    """Settle what is unsettled of a slot whose turn the caller holds. Returns how many instances were adopted."""
    adopted = 0
    for dispatch in core.state.unsettled(slot):
        adopted += await _settle(core, ctx, dispatch)
    return adopted


async def settle_all(core: Core, ctx: Context) -> int:
    """Settle every decision that no procedure is working on, on nodes that can be asked.

    Returns how many instances were adopted.
    """
    adopted = 0
    waiting = {
        dispatch.slot
        for dispatch in core.state.dispatches.values()
        if core.view.is_reachable(dispatch.node_id, ctx.now())
    }
    for slot in sorted(waiting - core.active):
        async with ctx.exclusive(("slot", slot), core.settings.place_timeout_s):
            if slot not in core.active:
                adopted += await settle_slot(core, ctx, slot)
    return adopted


async def _settle(core: Core, ctx: Context, dispatch: Dispatch) -> int:
    if dispatch.undoing:
        if (await reconcile(core, ctx, dispatch)).settled:
            await _forget(core, ctx, dispatch, "what it left was unloaded and the node is fenced")
        return 0
    listing = await core.call(ctx, dispatch.node_id, Method.STATUS, StatusListing, body=InstanceBody())
    if not isinstance(listing, CallAccepted):
        return 0
    held, in_flight = _rows_of(listing.result.rows, dispatch)
    if not held and not in_flight:
        fenced = await fence(core, ctx, dispatch)
        if isinstance(fenced, str):
            return 0
        held, in_flight = _rows_of(fenced.rows, dispatch)
    if in_flight or core.state.dispatches.get(dispatch.decision_id) is not dispatch:
        return 0
    if not held:
        await _forget(core, ctx, dispatch, "the node holds nothing of the decision and is fenced")
        return 0
    if held[0].instance_id != instance_id(dispatch.slot, dispatch.node_id):
        ctx.log("error", "a node reports an instance that the decision cannot have made", instance=held[0].instance_id)
        return 0
    await _adopt(core, ctx, dispatch, held[0])
    return 1


async def _forget(core: Core, ctx: Context, dispatch: Dispatch, reason: str) -> None:
    core.state.dispatches.pop(dispatch.decision_id, None)
    payload = {
        "phase": "settled",
        "decision_id": dispatch.decision_id,
        "node": dispatch.node_id,
        "slot": dispatch.slot,
        "reason": reason,
    }
    await happened(core, ctx, PLACE, payload)


async def _adopt(core: Core, ctx: Context, dispatch: Dispatch, row: HeldRow) -> None:
    record = msgspec.structs.replace(dispatch.held.record, instance_id=row.instance_id, epoch=row.epoch)
    core.state.place(msgspec.structs.replace(dispatch.held, record=record))
    payload = {
        "phase": "adopted",
        "decision_id": record.decision_id,
        "node": record.node_id,
        "variant": record.variant,
        "instance_id": record.instance_id,
        "slot": record.slot,
        "epoch": str(row.epoch),
    }
    await happened(core, ctx, PLACE, payload)


async def forget_departed(core: Core, ctx: Context, held: Held, rows: list[StatusRow]) -> bool:
    """Drop a placement that its node says was taken down on purpose, unless it changed since. True if dropped."""
    record = held.record
    if any(isinstance(row, HeldRow) and row.instance_id == record.instance_id for row in rows):
        return False
    reasons = [
        row.reason for row in rows if isinstance(row, DepartedRow) and row.departed_instance == record.instance_id
    ]
    if not reasons or core.state.placements.get(record.instance_id) is not held:
        return False
    await drop(core, ctx, held, f"its node reports it {reasons[-1]}")
    return True


async def drop(core: Core, ctx: Context, held: Held, reason: str) -> None:
    """Forget a placement of which nothing is left; its slot may be placed again."""
    record = held.record
    core.state.placements.pop(record.instance_id, None)
    payload = {
        "phase": "lifecycle",
        "instance_id": record.instance_id,
        "node": record.node_id,
        "workload": record.workload,
        "slot": record.slot,
        "to": LifeState.UNLOADED.value,
        "reason": reason,
    }
    await happened(core, ctx, LIFECYCLE, payload)


async def clear_unknown(core: Core, ctx: Context, held: Held) -> bool:
    """A node that does not know a placed instance is fenced; if nothing is there, the placement is dropped."""
    fenced = await fence(core, ctx, Dispatch(held=held, since_ms=ctx.wall()))
    if isinstance(fenced, str) or any(isinstance(row, HeldRow | InFlightRow) for row in fenced.rows):
        return False
    if core.state.placements.get(held.record.instance_id) is held:
        await drop(core, ctx, held, "its node does not know it and is fenced")
    return True


def _rows_of(rows: list[StatusRow], dispatch: Dispatch) -> tuple[list[HeldRow], bool]:
    held = [row for row in rows if isinstance(row, HeldRow) and row.decision_id == dispatch.decision_id]
    in_flight = any(isinstance(row, InFlightRow) and row.decision_id == dispatch.decision_id for row in rows)
    return held, in_flight


def _unknown_instance(outcome: object) -> bool:
    return isinstance(outcome, CallRefused) and outcome.refusal.code is RefusalCode.UNKNOWN_INSTANCE


__all__ = [
    "Settlement", "clear_unknown", "drop", "fence", "forget_departed", "reconcile", "settle_all", "settle_slot",
]  # fmt: skip
