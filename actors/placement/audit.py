"""What the control plane tells the chain (P 12, design 8 and 9): a decision's story can be told from the chain alone.

How records are appended, owed and paid is the ledger's; here is what they say, and what follows when one is missing.
"""

from __future__ import annotations

import re
from typing import Any

from actors.actor import Context
from actors.chain.canonical import decode
from actors.chain.ledger import NotRecorded
from actors.placement.core import Core
from actors.placement.order import PlaneRefusal
from messages.chain import ChainRecord
from messages.placement import PlaneError

PLACE = "workload.place"
REFUSE = "workload.refuse"
LIFECYCLE = "workload.lifecycle"

_EPOCH = re.compile(r"([0-9]{1,20})\.([0-9]{1,20})")


async def append(core: Core, ctx: Context, kind: str, payload: dict[str, Any]) -> str:
    """Write one record and return its hash when it is durable. Raises `PlaneRefusal` (`no_record`)."""
    try:
        return await core.ledger.append(ctx, core.state, kind, payload)
    except NotRecorded as failure:
        raise PlaneRefusal(PlaneError.NO_RECORD, failure.reason) from None


def owe(core: Core, kind: str, payload: dict[str, Any]) -> None:
    """Note a record of something that has happened; `core.save` makes the debt durable, `pay` writes the record."""
    core.ledger.owe(core.state, kind, payload, spare="target_result")
    core.dirty = True


async def pay(core: Core, ctx: Context) -> bool:
    """Write what is owed, oldest first. False when the chain still cannot."""
    owed = len(core.state.owed)
    paid = await core.ledger.pay(ctx, core.state)
    core.dirty = core.dirty or paid > 0
    return paid == owed


async def happened(core: Core, ctx: Context, kind: str, payload: dict[str, Any]) -> bool:
    """Owe, save and pay in one go: what the state says and what the chain tells change together."""
    owe(core, kind, payload)
    await core.save_quietly(ctx)
    return await pay(core, ctx)


async def ensure_current(core: Core, ctx: Context) -> None:
    """Compare the loaded state with the chain, once. Raises `PlaneRefusal`: `stale_state`, or `no_record` when the
    chain cannot be read. A dispatch that the chain tells of and the state does not know means an old state; a record
    that the state remembers and the chain does not hold means another chain, or one that was cut."""
    core.check_unblocked()
    try:
        problem = await core.ledger.catch_up(ctx, core.state, lambda record: _behind(core, record))
    except NotRecorded as failure:
        raise PlaneRefusal(PlaneError.NO_RECORD, failure.reason) from None
    if problem is not None:
        core.block(problem)
    core.check_unblocked()


def _behind(core: Core, record: ChainRecord) -> str | None:
    told = decode(record.payload)
    if not isinstance(told, dict) or told.get("phase") != "dispatching":
        return None
    slot, epoch = str(told.get("slot")), str(told.get("epoch"))
    parts = _EPOCH.fullmatch(epoch)
    known = (core.known_term, core.known_epochs.get(slot, 0))
    if parts is not None and (int(parts[1]), int(parts[2])) <= known:
        return None
    return (
        f"the state is behind the chain: record {record.sequence} tells of epoch {epoch} of {slot}, the state knows "
        f"{known[0]}.{known[1]}; restore the newest state of the controller before anything is placed"
    )


__all__ = ["LIFECYCLE", "PLACE", "REFUSE", "append", "ensure_current", "happened", "owe", "pay"]
