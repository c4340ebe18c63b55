"""The placement control plane: decides where signed workloads run, and has it done (`plane_place.rs`, P 6, design 8).

`place`, in the order of the seed: check the order; verify the package and offer it; settle what is unsettled of its
slot; ask the gate for every node; decide with the pure engine; chain the decision, whose hash is the decision id that
every request carries; dispatch to the winner, then in rank order while targets refuse; chain how it ended; explain.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from typing import Any

import msgspec

from actors.actor import Actor, AskFailed, Context, Procedure
from actors.packages.keys import TrustAnchors
from actors.placement.audit import PLACE, REFUSE, append, ensure_current, pay
from actors.placement.calls import CallAccepted
from actors.placement.core import Core, PlaneAddresses, PlaneSettings
from actors.placement.dispatch import Progress, dispatch
from actors.placement.engine import place as decide
from actors.placement.governance import check_nodes
from actors.placement.instances import Instances
from actors.placement.order import PlaneRefusal, check_order, instance_id
from actors.placement.prepare import Prepared, prepare
from actors.placement.reconcile import settle_all, settle_slot
from actors.placement.render import render
from actors.placement.signed import Signer
from actors.placement.view import FactsRefused, Node, View
from messages.base import Message, NodeName
from messages.control import DescribeResult, Method
from messages.engine import (
    Affinity,
    GateVerdict,
    PerNodeGate,
    PlacementError,
    PlacementRequest,
)
from messages.engine import Decision as EngineDecision
from messages.identity import Identity
from messages.node import NodeBeat
from messages.placement import (
    GetPlacements,
    InstanceOrder,
    ListInstances,
    ListNodes,
    NodeLines,
    PlacedInstance,
    Placements,
    PlaceOrder,
    PlaceReport,
    PlaneError,
    PlaneMessage,
    SettleTick,
)
from messages.system import KernelRefusal, PeerDown, PeerUp

HEAR_EVERY_S = 0.1


class PlacementControlPlane(Actor[PlaneMessage]):
    """`controller/plane`. `seed` is the controller's own Ed25519 seed (32 bytes); `nodes` come from the directory."""

    mailbox = PlaneMessage

    def __init__(
        self,
        *,
        seed: bytes,
        nodes: Iterable[Identity],
        anchors: TrustAnchors,
        settings: PlaneSettings | None = None,
        addresses: PlaneAddresses | None = None,
    ) -> None:
        settings = settings or PlaneSettings()
        self._core = Core(
            signer=Signer(seed),
            view=View(nodes, settings.dead_after_s),
            anchors=anchors,
            settings=settings,
            addresses=addresses or PlaneAddresses(),
        )
        self._instances = Instances(self._core)
        self._settling = False
        self._started_at = 0.0

    def started(self, ctx: Context) -> Procedure | None:
        self._started_at = ctx.now()
        return self._start(ctx)

    def receive(self, message: PlaneMessage, ctx: Context) -> Procedure | None:
        core = self._core
        match message:
            case PlaceOrder():
                return self._answer(ctx, self.place(ctx, message))
            case InstanceOrder():
                return self._answer(ctx, self._instances.order(ctx, message))
            case ListInstances():
                return self._answer(ctx, self._instances.lines(ctx))
            case GetPlacements():
                ctx.reply(self._placements())
            case ListNodes():
                ctx.reply(NodeLines(nodes=core.view.lines(ctx.now(), ctx.wall())))
            case NodeBeat():
                return self._beat(ctx, message)
            case PeerUp(process=process, incarnation=incarnation):
                core.view.link(process, incarnation, ctx.now(), up=True)
            case PeerDown(process=process, incarnation=incarnation):
                core.view.link(process, incarnation, ctx.now(), up=False)
            case SettleTick():
                return self._tick(ctx)
        return None

    def state(self) -> object:
        core = self._core
        return {
            "node_id": core.node_id,
            "term": core.state.term,
            "blocked": core.blocked,
            "current": core.ledger.is_current(),
            "placements": [held.record for held in core.state.placements.values()],
            "unsettled": [dispatch.held.record for dispatch in core.state.dispatches.values()],
            "owed": len(core.state.owed),
            "active": sorted(core.active),
        }

    def _placements(self) -> Placements:
        core = self._core
        rows = [
            PlacedInstance(
                record=held.record,
                node=NodeName(core.view.name_of(held.record.node_id)),
                unloading=held.unloading,
                stopped=self._instances.is_stopped(held.record),
            )
            for _, held in sorted(core.state.placements.items())
        ]
        return Placements(rows=rows, loaded=core.blocked is None)

    async def _start(self, ctx: Context) -> None:
        for node in self._core.view.nodes.values():
            ctx.watch_peer(NodeName(node.identity.name))
        await self._core.load(ctx)
        ctx.tell(ctx.address, SettleTick())

    async def _answer(self, ctx: Context, work: Coroutine[Any, Any, Message]) -> None:
        try:
            ctx.reply(await work)
        except PlaneRefusal as refusal:
            ctx.refuse(refusal.code.value, refusal.reason)
        except AskFailed as failure:
            if failure.code != KernelRefusal.BUSY:
                raise
            reason = f"another order for the same slot is being carried out; ask again later ({failure.reason})"
            ctx.refuse(PlaneError.SLOT_HELD.value, reason)

    # placing

    async def place(self, ctx: Context, order: PlaceOrder) -> PlaceReport:
        """Decide and, unless it is a dry run, dispatch one placement. Raises `PlaneRefusal`.

        A report without a placement is no error: no node fits, every target refused, or an answer is indeterminate.
        """
        core = self._core
        check_order(order)
        pin = None if order.pin is None else core.view.resolve(order.pin, "pin")
        affinity = Affinity(
            prefer=tuple(core.view.resolve(text, "prefer") for text in order.prefer),
            avoid=tuple(core.view.resolve(text, "avoid") for text in order.avoid),
        )
        await ensure_current(core, ctx)
        try:
            prepared = await prepare(core, ctx, order, pin)
        except PlaneRefusal as refusal:
            if refusal.code is PlaneError.UNKNOWN_KIND:
                await append(core, ctx, REFUSE, {"phase": "kind", "error": refusal.reason})
            raise
        request = PlacementRequest(
            spec=prepared.spec,
            pin=pin,
            affinity=affinity,
            allow_emulated=order.allow_emulated,
            gate=PerNodeGate(verdicts={}),
            weights=core.settings.weights,
        )
        if order.dry_run:
            return await self._place(ctx, order, prepared, request)
        async with ctx.exclusive(("slot", prepared.slot), core.settings.place_timeout_s):
            core.active.add(prepared.slot)
            try:
                await self._free_slot(ctx, prepared, pin)
                return await self._place(ctx, order, prepared, request)
            finally:
                core.active.discard(prepared.slot)

    async def _place(
        self, ctx: Context, order: PlaceOrder, prepared: Prepared, request: PlacementRequest
    ) -> PlaceReport:
        core = self._core
        await self._hear_from_nodes(ctx)
        verdicts = await check_nodes(core, ctx, prepared.workload, core.view.nodes.values())
        decision = await self._decide(ctx, prepared, request, verdicts)
        told = {
            "phase": "decision",
            "dry_run": order.dry_run,
            "controller": core.node_id,
            "manifest_hash": prepared.workload.manifest_hash,
            "slot": prepared.slot,
            "decision": decision,
        }
        progress = Progress(decision, await append(core, ctx, PLACE, told))
        if not order.dry_run and decision.placement is not None:
            await dispatch(core, ctx, order, prepared, progress)
            if progress.placed is None:
                await core.save_quietly(ctx)
        return PlaceReport(
            decision=decision,
            decision_id=progress.decision_id,
            explain=render(decision, progress.decision_id, progress.attempts, core.view.names),
            attempts=progress.attempts,
            placed=progress.placed,
            hardware_bound=prepared.hardware_bound,
        )

    async def _free_slot(self, ctx: Context, prepared: Prepared, pin: str | None) -> None:
        """Settle the slot, then refuse unless nobody holds it (design 8)."""
        core, slot = self._core, prepared.slot
        await settle_slot(core, ctx, slot)
        unsettled = core.state.unsettled(slot)
        if unsettled:
            node = core.view.label(unsettled[0].node_id)
            raise PlaneRefusal(
                PlaneError.UNSETTLED,
                f"decision {unsettled[0].decision_id} may have started {slot} on {node}, which cannot be asked now: "
                "bring that node back, or it would run twice",
            )
        pinned_instance = None if pin is None else instance_id(slot, pin)
        holder = core.state.holder(slot, pinned_instance)
        if holder is not None:
            await self._instances.look_at(ctx, holder)  # its node may not hold it any more
            holder = core.state.holder(slot, pinned_instance)
        if holder is not None:
            record = holder.record
            raise PlaneRefusal(
                PlaneError.SLOT_HELD,
                f"{slot} is held by {record.instance_id} on {core.view.label(record.node_id)} at epoch "
                f"{record.epoch}; unload it first: sennit instance unload {record.instance_id}",
            )

    async def _decide(
        self, ctx: Context, prepared: Prepared, request: PlacementRequest, verdicts: dict[str, GateVerdict]
    ) -> EngineDecision:
        """The pure engine on frozen snapshots. What it cannot decide at all is chained and raised (`placement`)."""
        core = self._core
        holder = core.state.holder(prepared.slot)
        judged = msgspec.structs.replace(
            request,
            gate=PerNodeGate(verdicts=verdicts),
            current_node=None if holder is None else holder.record.node_id,
        )
        try:
            return decide(judged, core.view.snapshot(ctx.now()), core.view.cluster(core.state, ctx.wall()))
        except PlacementError as error:
            told = {
                "phase": "decision",
                "workload": prepared.workload.id,
                "error": str(error),
                "constraints": [constraint.value for constraint in error.constraints()],
            }
            await append(core, ctx, REFUSE, told)
            raise PlaneRefusal(PlaneError.PLACEMENT, str(error)) from None

    # what nodes tell

    def _beat(self, ctx: Context, beat: NodeBeat) -> Procedure | None:
        view = self._core.view
        try:
            node = view.heard(beat, ctx.sender, ctx.now())
            if beat.facts is not None:
                node.accept(beat.facts, ctx.wall() // 1000)
        except FactsRefused as refused:
            ctx.log("warning", "a beat or its facts were refused", node=beat.node_id, reason=str(refused))
            return None
        if node.describing or node.has_fresh_facts(ctx.wall() // 1000):
            return None
        return self._describe(ctx, node)

    async def _describe(self, ctx: Context, node: Node) -> None:
        """Ask a node for its facts: it sends them unasked only when its link comes up and when they change."""
        node.describing = True
        try:
            outcome = await self._core.call(ctx, node.identity.node_id, Method.DESCRIBE, DescribeResult)
        finally:
            node.describing = False
        if not isinstance(outcome, CallAccepted) or outcome.result.facts is None:
            return
        try:
            node.accept(outcome.result.facts, ctx.wall() // 1000)
        except FactsRefused as refused:
            ctx.log("warning", "facts were refused", node=node.identity.node_id, reason=str(refused))

    async def _hear_from_nodes(self, ctx: Context) -> None:
        """Right after the start no node has beaten yet; none is judged absent before it could have been heard."""
        core = self._core
        until = self._started_at + core.settings.dead_after_s
        now_s = ctx.wall() // 1000
        while ctx.now() < until and not all(node.is_known(now_s) for node in core.view.nodes.values()):
            await ctx.sleep(HEAR_EVERY_S)

    # settling

    async def _tick(self, ctx: Context) -> None:
        if self._settling:
            return
        self._settling = True
        try:
            await self._settle(ctx)
        finally:
            self._settling = False
            ctx.after(self._core.settings.settle_every_s, SettleTick())

    async def _settle(self, ctx: Context) -> None:
        core = self._core
        await core.load(ctx)
        if core.blocked is not None:
            return
        try:
            await ensure_current(core, ctx)
            await settle_all(core, ctx)
            await self._instances.settle_unloads(ctx)
        except PlaneRefusal as refusal:
            ctx.log("warning", "nothing can be settled now", reason=refusal.reason)
        except AskFailed as failure:
            ctx.log("debug", "a slot is busy", reason=str(failure))
        if core.state.owed:
            await pay(core, ctx)
        if core.dirty:
            await core.save_quietly(ctx)


__all__ = ["PlacementControlPlane", "PlaneAddresses", "PlaneSettings"]
