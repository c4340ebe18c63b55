"""What the control plane tells the chain (P 12, design 8 and 9): a decision's story can be told from the chain alone.

A record that permits an act is appended before the act, and its failure stops it. A record of what has happened is
owed: saved with the state, then paid, again after a restart; its idempotency key makes paying twice write once.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from actors.actor import AskFailed, Context
from actors.chain.canonical import CanonicalFault, decode, encode
from actors.placement.core import Core
from actors.placement.order import PlaneRefusal
from actors.placement.state import Owed
from messages.chain import Append, ChainRecord, Entry, Tail
from messages.placement import PlaneError

SOURCE = "workload.placement"
PLACE = "workload.place"
REFUSE = "workload.refuse"
LIFECYCLE = "workload.lifecycle"

_EPOCH = re.compile(r"([0-9]{1,20})\.([0-9]{1,20})")

APPEND_ATTEMPTS = 2
TAIL_RECORDS = 1_000


async def append(core: Core, ctx: Context, kind: str, payload: dict[str, Any]) -> str:
    """Write one record and return its hash when it is durable. Raises `PlaneRefusal` (`no_record`)."""
    try:
        data = encode(msgspec.to_builtins(payload))
    except CanonicalFault as fault:
        raise PlaneRefusal(PlaneError.NO_RECORD, f"the record of {kind} cannot be written: {fault}") from None
    return await _append(core, ctx, _entry(_next_key(core), kind, data))


def owe(core: Core, kind: str, payload: dict[str, Any]) -> None:
    """Note a record of something that has happened; `core.save` makes the debt durable, `pay` writes the record."""
    plain = msgspec.to_builtins(payload)
    try:
        data = encode(plain)
    except CanonicalFault as fault:  # what a node said has no canonical form; that it happened is told all the same
        data = encode({**plain, "target_result": f"left out: {fault}"})
    key = _next_key(core)
    core.state.owed[key] = Owed(key=key, kind=kind, payload=data)
    core.dirty = True


async def pay(core: Core, ctx: Context) -> bool:
    """Write what is owed, oldest first. False when the chain still cannot."""
    for owed in list(core.state.owed.values()):
        try:
            await _append(core, ctx, _entry(owed.key, owed.kind, owed.payload))
        except PlaneRefusal as refusal:
            ctx.log("warning", "a record is still owed to the chain", kind=owed.kind, reason=refusal.reason)
            return False
        core.state.owed.pop(owed.key, None)
        core.dirty = True
    return True


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
    newest = core.state.chain_sequence
    after = newest - 1
    while not core.is_current():
        try:
            tail = await ctx.ask(
                core.addresses.chain, Tail(count=TAIL_RECORDS, after=after), core.settings.write_timeout_s
            )
        except AskFailed as failure:
            raise PlaneRefusal(PlaneError.NO_RECORD, f"the chain cannot be read ({failure})") from None
        if core.is_current():  # another procedure was faster; what follows on the chain may be of this incarnation
            return
        if after == newest - 1:
            _check_remembered(core, tail.records)
        for record in tail.records:
            if record.source == SOURCE and record.sequence > newest:
                _compare(core, record.sequence, record.payload)
        core.check_unblocked()
        if not tail.records:
            core.mark_current()
        else:
            after = tail.records[-1].sequence


def _check_remembered(core: Core, records: list[ChainRecord]) -> None:
    """The newest record this controller wrote is still there, unchanged."""
    sequence, remembered = core.state.chain_sequence, core.state.chain_hash
    if sequence < 0 or (records and (records[0].sequence, records[0].hash) == (sequence, remembered)):
        return
    core.block(
        f"the chain does not hold record {sequence} ({remembered[:16]}) that this controller wrote: it was cut, "
        "deleted or replaced; stop the cluster and put the chain's files back from a copy (docs/operations.md)"
    )


def _compare(core: Core, sequence: int, payload: bytes) -> None:
    told = decode(payload)
    if not isinstance(told, dict) or told.get("phase") != "dispatching":
        return
    slot, epoch = str(told.get("slot")), str(told.get("epoch"))
    parts = _EPOCH.fullmatch(epoch)
    known = (core.known_term, core.known_epochs.get(slot, 0))
    if parts is None or (int(parts[1]), int(parts[2])) > known:
        core.block(
            f"the state is behind the chain: record {sequence} tells of epoch {epoch} of {slot}, the state knows "
            f"{known[0]}.{known[1]}; restore the newest state of the controller before anything is placed"
        )


async def _append(core: Core, ctx: Context, entry: Entry) -> str:
    for attempt in range(1, APPEND_ATTEMPTS + 1):
        try:
            appended = await ctx.ask(core.addresses.chain, Append(entry=entry), core.settings.write_timeout_s)
        except AskFailed as failure:
            if failure.nothing_happened or attempt == APPEND_ATTEMPTS:
                raise PlaneRefusal(
                    PlaneError.NO_RECORD, f"the chain did not take the record of {entry.kind} ({failure}): no act"
                ) from None
        else:
            if appended.sequence > core.state.chain_sequence:
                core.state.chain_sequence, core.state.chain_hash = appended.sequence, appended.hash
            return appended.hash
    raise AssertionError("the last attempt returns or raises")


def _entry(key: str, kind: str, payload: bytes) -> Entry:
    return Entry(source=SOURCE, kind=kind, payload=payload, idempotency_key=key)


def _next_key(core: Core) -> str:
    core.records += 1
    return f"{core.state.term}.{core.records}"


__all__ = ["LIFECYCLE", "PLACE", "REFUSE", "SOURCE", "append", "ensure_current", "happened", "owe", "pay"]
