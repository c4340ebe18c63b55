"""Instance verbs: start, stop, unload, status, logs, and the listing of what is placed (P 6.8, design 8)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from actors.actor import Context
from actors.placement.audit import append, ensure_current
from actors.placement.calls import CallAccepted, CallIndeterminate, CallOutcome, CallRefused, CallUnreachable
from actors.placement.core import Core
from actors.placement.governance import check_instance
from actors.placement.order import PlaneRefusal
from actors.placement.reconcile import clear_unknown, drop, forget_departed, settle_all
from actors.placement.state import Held
from messages.base import NodeName
from messages.control import (
    AdapterState,
    Epoch,
    HeldRow,
    InstanceBody,
    LifeState,
    Method,
    RefusalCode,
    StatusListing,
    StatusRow,
)
from messages.placement import (
    InstanceLine,
    InstanceLines,
    InstanceOrder,
    InstanceResult,
    PlacementRecord,
    PlaneError,
    UnsettledLine,
)

DEFAULT_GRACE_MS = 2_000
VERBS = (Method.START, Method.STOP, Method.UNLOAD, Method.STATUS, Method.LOGS)


@dataclass(slots=True)
class Instances:
    """The verbs, and the last state that each node reported of its instances.

    `stopped`: instances, each at its epoch, that were ordered to stop and not to start since.
    """

    core: Core
    seen: dict[str, HeldRow] = field(default_factory=dict)
    stopped: set[tuple[str, Epoch]] = field(default_factory=set)

    def is_stopped(self, record: PlacementRecord) -> bool:
        return (record.instance_id, record.epoch) in self.stopped

    async def order(self, ctx: Context, order: InstanceOrder) -> InstanceResult:
        """Carry out one verb. Raises `PlaneRefusal`: every code of `PlaneError` that fits a call."""
        method = _method(order.method)
        held = await self._find(ctx, order.instance)
        if method is Method.STATUS:
            return self._result(held, await self._status(ctx, held))
        if not method.mutates:
            return self._result(held, await self._send(ctx, held, method, order, None))
        slot = held.record.slot
        async with ctx.exclusive(("slot", slot), self.core.settings.place_timeout_s):
            self.core.active.add(slot)
            try:
                if self.core.state.placements.get(held.record.instance_id) is not held:
                    raise _unknown(order.instance)
                return await self._mutate(ctx, held, method, order)
            finally:
                self.core.active.discard(slot)

    async def _mutate(self, ctx: Context, held: Held, method: Method, order: InstanceOrder) -> InstanceResult:
        core, record = self.core, held.record
        await ensure_current(core, ctx)
        await check_instance(core, ctx, record, method)
        payload = {"phase": "request", "instance_id": record.instance_id, "node": record.node_id}
        decision_id = await append(core, ctx, method.value, payload)
        before = held.unloading
        if method is not Method.STOP:
            held = await self._intend(ctx, held, unloading=method is Method.UNLOAD)
        run = (record.instance_id, record.epoch)
        if method is Method.STOP:
            self.stopped.add(run)
        else:
            self.stopped.discard(run)
        outcome = await self._send(ctx, held, method, order, decision_id)
        if isinstance(outcome, CallIndeterminate):
            outcome = await self._reconcile(ctx, held, method, outcome)
        if not isinstance(outcome, CallAccepted):
            self.stopped.discard(run)
        if method is Method.UNLOAD:
            outcome = await self._unloaded(ctx, held, outcome, before)
        return self._result(held, outcome)

    async def _intend(self, ctx: Context, held: Held, *, unloading: bool) -> Held:
        """Make durable that an unload is on its way, or no longer. Raises `PlaneRefusal` (`no_record`)."""
        if held.unloading == unloading:
            return held
        changed = self._replace(held, unloading=unloading)
        try:
            await self.core.save(ctx)
        except PlaneRefusal:
            self._replace(changed, unloading=held.unloading)
            raise
        return changed

    def _replace(self, held: Held, *, unloading: bool) -> Held:
        changed = msgspec.structs.replace(held, unloading=unloading)
        self.core.state.placements[held.record.instance_id] = changed
        self.core.dirty = True
        return changed

    async def _send(
        self, ctx: Context, held: Held, method: Method, order: InstanceOrder, decision_id: str | None
    ) -> CallOutcome[Any]:
        grace_ms = order.grace_ms if method is Method.STOP else None
        grace_s = (DEFAULT_GRACE_MS if grace_ms is None else grace_ms) / 1000 if method.is_teardown else 0.0
        body = InstanceBody(
            instance_id=held.record.instance_id,
            epoch=held.record.epoch if method.mutates else None,
            grace_ms=grace_ms,
            stdout_offset=order.stdout_offset,
            stderr_offset=order.stderr_offset,
        )
        return await self.core.call(
            ctx,
            held.record.node_id,
            method,
            dict,
            body=body,
            decision_id=decision_id,
            timeout_s=self.core.settings.read_timeout_s + grace_s,
        )

    async def _status(self, ctx: Context, held: Held) -> CallOutcome[Any]:
        """The node's row of one instance, as plain data."""
        record = held.record
        body = InstanceBody(instance_id=record.instance_id)
        listing = await self.core.call(ctx, record.node_id, Method.STATUS, StatusListing, body=body)
        if not isinstance(listing, CallAccepted):
            return listing
        row = _row(listing.result.rows, record.instance_id)
        if row is None:
            return CallUnreachable("it answers, but not about this instance")
        self.seen[row.instance_id] = row
        return CallAccepted(msgspec.to_builtins(row))

    async def _reconcile(
        self, ctx: Context, held: Held, method: Method, outcome: CallIndeterminate
    ) -> CallOutcome[Any]:
        """Ask the node what became of a verb whose answer was lost; it stays indeterminate unless the node shows it."""
        instance, node_id = held.record.instance_id, held.record.node_id
        listing = await self._listing(ctx, node_id)
        if not isinstance(listing, CallAccepted):
            return CallIndeterminate(f"{outcome.reason}; not reconciled: {listing}")
        row = _row(listing.result.rows, instance)
        if row is None:
            gone = {"instance_id": instance, "reconciled": "the node does not hold it"}
            return CallAccepted(gone) if method is Method.UNLOAD else CallIndeterminate(f"{outcome.reason}; {gone}")
        running = row.status.state is AdapterState.RUNNING
        if (method is Method.START and running) or (method is Method.STOP and not running):
            return CallAccepted({"instance_id": instance, "reconciled": f"the node reports {row.status.state.value}"})
        return CallIndeterminate(f"{outcome.reason}; the node reports {row.status.state.value}")

    async def _unloaded(self, ctx: Context, held: Held, outcome: CallOutcome[Any], before: bool) -> CallOutcome[Any]:
        """After an unload the placement goes; also when its node, fenced, knows nothing of it."""
        if isinstance(outcome, CallAccepted):
            await drop(self.core, ctx, held, "unloaded by order")
        elif (
            isinstance(outcome, CallRefused)
            and outcome.refusal.code is RefusalCode.UNKNOWN_INSTANCE
            and await clear_unknown(self.core, ctx, held)
        ):
            return CallAccepted({"unloaded": held.record.instance_id, "reconciled": "its node did not know it"})
        elif not isinstance(outcome, CallIndeterminate):
            self._replace(held, unloading=before)  # this one certainly did not happen; an earlier one still may
        return outcome

    def _result(self, held: Held, outcome: CallOutcome[Any]) -> InstanceResult:
        record = held.record
        node = self.core.view.label(record.node_id)
        match outcome:
            case CallAccepted(result=result):
                return InstanceResult(instance_id=record.instance_id, node_id=record.node_id, result=result)
            case CallRefused(refusal=refusal):
                raise PlaneRefusal(PlaneError.CALL_REFUSED, f"{node}: {refusal}")
            case CallUnreachable(reason=reason):
                raise PlaneRefusal(PlaneError.CALL_UNREACHABLE, f"{node} was not reached ({reason}); nothing was done")
            case CallIndeterminate(reason=reason):
                raise PlaneRefusal(
                    PlaneError.CALL_INDETERMINATE,
                    f"{node} may or may not have done it ({reason}); `sennit instance ls` tells when it answers again",
                )

    # listing

    async def lines(self, ctx: Context) -> InstanceLines:
        """Settle what can be settled, then ask every node that holds something, side by side."""
        core = self.core
        if not core.loaded:
            core.check_unblocked()
        if core.blocked is None:
            await settle_all(core, ctx)
            await self.settle_unloads(ctx)
        asked = list(core.state.placements.values())  # what is placed from now on, these listings do not know yet
        holding = {held.record.node_id for held in asked}
        nodes = sorted(node_id for node_id in holding if core.view.is_reachable(node_id, ctx.now()))
        listings = await core.call_all(
            ctx, nodes, Method.STATUS, StatusListing, body=InstanceBody(include_departed=True)
        )
        reached: set[str] = set()
        for node_id, listing in listings.items():
            if isinstance(listing, CallAccepted):
                reached.add(node_id)
                for held in asked:
                    if held.record.node_id == node_id and held.record.slot not in core.active:
                        await self._mirror(ctx, held, listing.result.rows)
        placed = [self._line(held, held.record.node_id in reached) for held in core.state.placements.values()]
        unsettled = [
            UnsettledLine(
                decision_id=dispatch.decision_id,
                slot=dispatch.slot,
                node_id=dispatch.node_id,
                node=NodeName(core.view.name_of(dispatch.node_id)),
                since_ms=dispatch.since_ms,
            )
            for dispatch in core.state.dispatches.values()
            if dispatch.slot not in core.active
        ]
        return InstanceLines(instances=sorted(placed, key=lambda line: line.instance_id), unsettled=unsettled)

    async def settle_unloads(self, ctx: Context) -> None:
        """Find out what became of unloads whose end is not known, on nodes that can be asked."""
        core = self.core
        for held in [held for held in core.state.placements.values() if held.unloading]:
            record = held.record
            if record.slot in core.active or not core.view.is_reachable(record.node_id, ctx.now()):
                continue
            async with ctx.exclusive(("slot", record.slot), core.settings.place_timeout_s):
                await self.look_at(ctx, held)

    async def look_at(self, ctx: Context, held: Held) -> None:
        """Forget a placement that its node no longer holds and, fenced, never will; the caller holds its turn."""
        core, record = self.core, held.record
        if not core.view.is_reachable(record.node_id, ctx.now()):
            return
        listing = await self._listing(ctx, record.node_id)
        if not isinstance(listing, CallAccepted):
            return
        await self._mirror(ctx, held, listing.result.rows)
        if record.instance_id not in self.seen and core.state.placements.get(record.instance_id) is held:
            await clear_unknown(core, ctx, held)

    async def _mirror(self, ctx: Context, held: Held, rows: list[StatusRow]) -> None:
        """Take over what its node reports; what that took down on purpose is forgotten."""
        instance = held.record.instance_id
        row = _row(rows, instance)
        if row is not None:
            self.seen[instance] = row
            return
        self.seen.pop(instance, None)
        await forget_departed(self.core, ctx, held, rows)

    async def _listing(self, ctx: Context, node_id: str) -> CallOutcome[StatusListing]:
        body = InstanceBody(include_departed=True)
        return await self.core.call(ctx, node_id, Method.STATUS, StatusListing, body=body)

    def _line(self, held: Held, reached: bool) -> InstanceLine:
        record = held.record
        row = self.seen.get(record.instance_id)
        state = row.lifecycle if row is not None else LifeState.LOST if reached else LifeState.PLACED
        return InstanceLine(
            instance_id=record.instance_id,
            workload=record.workload,
            node_id=record.node_id,
            node=NodeName(self.core.view.name_of(record.node_id)),
            variant=record.variant,
            state=state,
            slot=record.slot,
            epoch=record.epoch,
            decision_id=record.decision_id,
            pid=None if row is None else row.status.pid,
            restarts=0 if row is None else row.restarts,
            reachable=reached,
        )

    # finding

    async def _find(self, ctx: Context, text: str) -> Held:
        if not self.core.loaded:
            self.core.check_unblocked()
        held = self._lookup(text)
        if held is None and self.core.blocked is None:
            await settle_all(self.core, ctx)  # it may come from a lost answer
            held = self._lookup(text)
        if held is None:
            raise _unknown(text)
        return held

    def _lookup(self, text: str) -> Held | None:
        placements = self.core.state.placements
        if text in placements:
            return placements[text]
        workload, at, where = text.partition("@")
        node = self.core.view.find(where) if at else None
        if node is None:
            return None
        found = [
            held
            for held in placements.values()
            if held.record.workload == workload and held.record.node_id == node.identity.node_id
        ]
        if len(found) > 1:
            ids = ", ".join(sorted(held.record.instance_id for held in found))
            raise PlaneRefusal(PlaneError.UNKNOWN, f"{text} names {len(found)} instances, give one of {ids}")
        return found[0] if found else None


def _method(text: str) -> Method:
    full = text if text.startswith("workload.") else f"workload.{text}"
    for method in VERBS:
        if method.value == full:
            return method
    known = ", ".join(method.value.removeprefix("workload.") for method in VERBS)
    raise PlaneRefusal(PlaneError.INVALID, f"{text[:64]!r} is no instance verb; there are {known}")


def _row(rows: list[StatusRow], instance: str) -> HeldRow | None:
    return next((row for row in rows if isinstance(row, HeldRow) and row.instance_id == instance), None)


def _unknown(text: str) -> PlaneRefusal:
    return PlaneRefusal(PlaneError.UNKNOWN, f"no placed instance {text[:200]}; `sennit instance ls` lists them")


__all__ = ["Instances"]
