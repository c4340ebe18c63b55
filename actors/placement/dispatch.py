"""The dispatch loop: the winner first, then the other eligible nodes in rank order, never two (P 6.3, design 8).

Each attempt takes a new epoch and is durable, here and on the chain, before its request leaves. The next candidate is
tried only when the one before certainly holds nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from actors.actor import Context
from actors.placement.audit import PLACE, REFUSE, append, happened, owe
from actors.placement.calls import CallAccepted, CallIndeterminate, CallOutcome, CallRefused, CallUnreachable
from actors.placement.core import Core
from actors.placement.governance import check_nodes
from actors.placement.order import PlaneRefusal, instance_id
from actors.placement.prepare import Prepared
from actors.placement.reconcile import reconcile
from actors.placement.state import Dispatch, Held
from messages.control import Method, PlaceBody, PlaceResult, Refusal, RefusalCode
from messages.engine import Decision, GateDeny, Tier
from messages.placement import Attempt, Outcome, PlacementRecord, PlaceOrder, PlaneError
from messages.workload_spec import Execution

NEXT = "trying the next candidate"
STOPPED = "stopped: the target may hold the instance"
HELD = "stopped: the target holds the slot"
OLD = "stopped: the target knows more than this controller"


@dataclass(frozen=True, slots=True)
class Candidate:
    node_id: str
    variant: str
    emulated: bool


@dataclass(slots=True)
class Progress:
    """A decided placement on its way."""

    decision: Decision
    decision_id: str
    attempts: list[Attempt] = field(default_factory=list)
    placed: PlacementRecord | None = None


def dispatch_order(decision: Decision) -> list[Candidate]:
    """The winner, then every other eligible candidate in rank order; a pin allows only its node."""
    placement = decision.placement
    if placement is None:
        return []
    order = [Candidate(placement.node_id, placement.variant, placement.execution is Execution.EMULATED)]
    if decision.pin is None:
        order += [
            Candidate(report.node_id, report.variant, report.tier is Tier.EMULATED)
            for report in decision.candidates
            if report.eligible and report.variant is not None and report.node_id != placement.node_id
        ]
    return order


async def dispatch(core: Core, ctx: Context, order: PlaceOrder, prepared: Prepared, progress: Progress) -> None:
    """Place on the first candidate that accepts; the outcome of each attempt is in `progress`.

    Raises `PlaneRefusal` (`no_record`) when something could not be written before it was done, `stale_state` when a
    node knows more than this controller.
    """
    loop = _Loop(core, ctx, order, prepared, progress)
    for candidate in dispatch_order(progress.decision):
        if not await loop.attempt(candidate):
            return
        core.check_unblocked()


@dataclass(frozen=True, slots=True)
class _Loop:
    core: Core
    ctx: Context
    order: PlaceOrder
    prepared: Prepared
    progress: Progress

    async def attempt(self, candidate: Candidate) -> bool:
        """Try one candidate; True when the next may be tried."""
        if candidate.emulated and (reason := await self._emulation_denied(candidate)) is not None:
            self._note(candidate, Outcome.GATE_DENIED, reason=reason)
            return True
        dispatched = await self._record(candidate)
        return await self._conclude(candidate, dispatched, await self._send(dispatched))

    async def _emulation_denied(self, candidate: Candidate) -> str | None:
        node = self.core.view.nodes[candidate.node_id]
        try:
            verdicts = await check_nodes(self.core, self.ctx, self.prepared.workload, [node], emulated=True)
        except PlaneRefusal as refusal:
            if refusal.code is PlaneError.NO_RECORD:
                raise
            return refusal.reason
        verdict = verdicts.get(candidate.node_id)
        if verdict is None:
            return "the gate gave no verdict for this node"
        return verdict.reason if isinstance(verdict, GateDeny) else None

    async def _record(self, candidate: Candidate) -> Dispatch:
        """Take an epoch and make the attempt durable: in the state, then on the chain."""
        core, ctx = self.core, self.ctx
        workload, spec = self.prepared.workload, self.prepared.spec
        record = PlacementRecord(
            instance_id="",
            node_id=candidate.node_id,
            kind=workload.kind,
            workload=workload.id,
            variant=candidate.variant,
            decision_id=self.progress.decision_id,
            manifest_hash=workload.manifest_hash,
            slot=self.prepared.slot,
            epoch=core.state.take_epoch(self.prepared.slot),
            project_id=self.order.project_id,
            package_id=workload.package_id,
            signer_keys=list(workload.signer_keys),
            artifact_hashes=list(workload.artifact_hashes),
        )
        held = Held(
            record=record,
            order=self.order,
            hardware_bound=self.prepared.hardware_bound,
            labels=spec.policy.labels,
            excludes=spec.policy.excludes,
            memory=spec.requirements.memory,
            placed_ms=ctx.wall(),
        )
        dispatched = Dispatch(held=held, since_ms=ctx.wall())
        core.state.dispatches[dispatched.decision_id] = dispatched
        payload = {**_subject(dispatched), "phase": "dispatching", "attempt": len(self.progress.attempts) + 1}
        try:
            await core.save(ctx)
            await append(core, ctx, PLACE, payload)
        except PlaneRefusal:
            self._over(dispatched)  # nothing left; had the process died instead, a restart would settle it
            raise
        return dispatched

    async def _send(self, dispatched: Dispatch) -> CallOutcome[PlaceResult]:
        record = dispatched.held.record
        answer = await self.core.call(
            self.ctx,
            record.node_id,
            Method.PLACE,
            PlaceResult,
            body=PlaceBody(
                name=record.workload,
                manifest_hash=record.manifest_hash,
                variant=record.variant,
                config=self.order.config,
                slot=record.slot,
                epoch=record.epoch,
                start=self.order.start,
                project_id=record.project_id,
            ),
            decision_id=record.decision_id,
            timeout_s=self.core.settings.place_timeout_s,
        )
        if isinstance(answer, CallAccepted):
            told = f"{answer.result.instance_id[:200]} at epoch {answer.result.epoch}"
            ordered = f"{instance_id(record.slot, record.node_id)} at epoch {record.epoch}"
            if told != ordered:
                return CallIndeterminate(f"the node answers for {told}, ordered was {ordered}")
        return answer

    async def _conclude(self, candidate: Candidate, dispatched: Dispatch, answer: CallOutcome[PlaceResult]) -> bool:
        """Record how the attempt ended; True when the next candidate may be tried."""
        match answer:
            case CallAccepted(result=result):
                await self._placed(candidate, dispatched, result)
                return False
            case CallIndeterminate(reason=reason):
                settlement = await reconcile(self.core, self.ctx, dispatched)
                if settlement.settled:
                    self._over(dispatched)
                self._note(candidate, Outcome.INDETERMINATE, reason=f"{reason}; {settlement.note}")
                told = {"outcome": Outcome.INDETERMINATE, "reason": reason, "reconcile": settlement.note}
                await self._refused(dispatched, told, NEXT if settlement.settled else STOPPED)
                return settlement.settled
            case CallRefused(refusal=refusal):
                self._over(dispatched)
                following = self._after(dispatched, refusal)
                self._note(candidate, Outcome.REFUSED, code=refusal.code.value, reason=refusal.reason)
                told = {"outcome": Outcome.REFUSED, "code": refusal.code, "reason": refusal.reason}
                await self._refused(dispatched, told, following)
                return following != HELD
            case CallUnreachable(reason=reason):
                self._over(dispatched)
                self._note(candidate, Outcome.UNREACHABLE, reason=reason)
                await self._refused(dispatched, {"outcome": Outcome.UNREACHABLE, "code": None, "reason": reason}, NEXT)
                return True

    def _after(self, dispatched: Dispatch, refusal: Refusal) -> str:
        """What follows a refusal: a node that holds the slot, or knows more than we do, ends the loop."""
        if refusal.code is RefusalCode.SLOT_HELD and not self._is_pinned_there(dispatched):
            return HELD
        if refusal.code is RefusalCode.STALE_EPOCH:
            node = self.core.view.label(dispatched.node_id)
            self.core.block(
                f"{node} has seen a later epoch of {dispatched.slot} ({refusal.reason}): this controller's state "
                "is old; restore the newest state before anything is placed"
            )
        return NEXT if self.core.blocked is None else OLD

    def _is_pinned_there(self, dispatched: Dispatch) -> bool:
        """The same workload, pinned to that node, is another slot: this one is still free."""
        held = self.core.state.placements.get(instance_id(dispatched.slot, dispatched.node_id))
        return held is not None and held.record.slot != dispatched.slot

    async def _placed(self, candidate: Candidate, dispatched: Dispatch, result: PlaceResult) -> None:
        record = msgspec.structs.replace(dispatched.held.record, instance_id=result.instance_id)
        self.core.state.place(msgspec.structs.replace(dispatched.held, record=record))
        payload = {
            **_subject(dispatched),
            "phase": "placed",
            "emulated": candidate.emulated,
            "instance_id": record.instance_id,
            "attempts": len(self.progress.attempts) + 1,
            "target_result": result,
        }
        self._note(candidate, Outcome.PLACED, ingest=result.ingest)
        self.progress.placed = record
        await happened(self.core, self.ctx, PLACE, payload)

    async def _refused(self, dispatched: Dispatch, told: dict[str, Any], following: str) -> None:
        """Chain how an attempt failed before anything else is tried; the loop ends, owing, when that fails."""
        payload = {**_subject(dispatched), "phase": "dispatch", **told, "next": following}
        try:
            await append(self.core, self.ctx, REFUSE, payload)
        except PlaneRefusal:
            owe(self.core, REFUSE, payload)
            await self.core.save_quietly(self.ctx)
            raise

    def _over(self, dispatched: Dispatch) -> None:
        """The attempt has certainly left nothing behind; the disk learns it with the next save."""
        self.core.state.dispatches.pop(dispatched.decision_id, None)
        self.core.dirty = True

    def _note(self, candidate: Candidate, outcome: Outcome, **told: str | None) -> None:
        attempt = Attempt(node_id=candidate.node_id, variant=candidate.variant, outcome=outcome, **told)
        self.progress.attempts.append(attempt)


def _subject(attempt: Dispatch) -> dict[str, Any]:
    record = attempt.held.record
    return {
        "decision_id": record.decision_id,
        "node": record.node_id,
        "variant": record.variant,
        "slot": record.slot,
        "epoch": str(record.epoch),
    }


__all__ = ["Candidate", "Progress", "dispatch", "dispatch_order"]
