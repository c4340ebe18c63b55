"""`NODE.edges/edge/NUMBER`: the actor of one edge end (E 7.1, design 7).

It is told what becomes of its end and tells the planner readiness, faults and the end of the stream; of the objects it
knows identities and totals, never bytes. Its address is the `local_edge_actor` of the seed. It ends itself once its end
is stopped and that is told.
"""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from typing import Any, ClassVar

import msgspec

from actors.actor import Actor, Context
from actors.edges.faults import code_of
from messages.base import U64, Address, NodeName
from messages.edge import (
    ActorAddress,
    EdgeFaulted,
    EdgeProvisionState,
    EdgeReady,
    EdgeRingLeaseRejectedReason,
    EdgeStopped,
)
from messages.edge_end import (
    EdgeActorMessage,
    EndBound,
    EndChanged,
    EndReport,
    FaultNoted,
    ObjectsMoved,
    StreamFinished,
)

State = EdgeProvisionState


class EdgeActorState(StrEnum):
    """E 7.1."""

    PROVISIONING = "provisioning"
    READY = "ready"
    FAULTED = "faulted"
    STOPPED = "stopped"


def edge_actor_address(process: NodeName, number: ActorAddress) -> Address:
    """Where the actor `number` of an edges process is."""
    return Address(f"{process}/edge/{number}")


class EdgeActor(Actor[EdgeActorMessage]):
    """One end, for as long as it lives. `report`: how it stands at the start, later than its opening after a crash of
    this actor (`again`), which the planner is then told.

    What another than `owner` tells, and what speaks of another edge, is refused: logged and counted (the reference
    faults the actor for the latter, which would let a stray message end a stream).
    """

    mailbox: ClassVar[Any] = EdgeActorMessage

    def __init__(
        self,
        report: EndReport,
        *,
        process: NodeName,
        incarnation: U64,
        planner: Address,
        owner: Address,
        again: bool = False,
    ) -> None:
        self._report = report
        self._process = process
        self._incarnation = incarnation
        self._planner = planner
        self._owner = owner
        self._again = again
        self._state = _state_of(report)
        self._noted: FaultNoted | None = None
        self._refused: Counter[str] = Counter()
        self._untold = 0

    def started(self, ctx: Context) -> None:
        if self._again:
            self._changed(ctx)
            self._end_if_stopped(ctx)

    def receive(self, message: EdgeActorMessage, ctx: Context) -> None:
        if ctx.sender != self._owner:
            self._refuse("not_the_owner", message, ctx)
            return
        match message:
            case EdgeReady() | EdgeFaulted() | EdgeStopped() if message.edge_id != self._report.edge_id:
                self._refuse("mismatched_edge_id", message, ctx)
            case EdgeReady() if self._state is EdgeActorState.PROVISIONING:
                self._state = EdgeActorState.READY
                self._become(ctx, state=State.READY)
            case EdgeFaulted() if self._state in (EdgeActorState.PROVISIONING, EdgeActorState.READY):
                self._faulted(message, ctx)
            case EdgeStopped() if self._state is not EdgeActorState.STOPPED:
                self._stopped(ctx)
            case FaultNoted():
                self._noted = message
            case ObjectsMoved() if self._state is EdgeActorState.READY:
                self._report = msgspec.structs.replace(self._report, progress=message.progress)
            case EndBound(state=state, ring_id=ring_id):
                self._become(ctx, state=state, ring_id=ring_id)
            case StreamFinished() if self._state in (EdgeActorState.PROVISIONING, EdgeActorState.READY):
                self._become(ctx, ended=True)
            case EdgeReady() | EdgeFaulted() | EdgeStopped() | ObjectsMoved() | StreamFinished():
                self._refused[f"{type(message).__name__} when {self._state.value}"] += 1

    def state(self) -> object:
        """The report as the planner sees it, the state of E 7.1, and what was refused or could not be told."""
        return {
            "state": self._state.value,
            "report": msgspec.to_builtins(self._report),
            "refused": dict(self._refused),
            "untold": self._untold,
        }

    def _faulted(self, message: EdgeFaulted, ctx: Context) -> None:
        self._state = EdgeActorState.FAULTED
        noted = self._noted
        lease_refused = isinstance(message.reason, EdgeRingLeaseRejectedReason)
        self._become(
            ctx,
            state=State.FAILED if lease_refused else State.STOPPING,
            fault=code_of(message.reason) if noted is None else noted.code,
            fault_text="" if noted is None else noted.text,
        )

    def _stopped(self, ctx: Context) -> None:
        """A fault that only stops the end (a lease that came too late) is noted before its `EdgeStopped`."""
        self._state = EdgeActorState.STOPPED
        noted = self._noted if self._report.fault is None else None
        if noted is None:
            self._become(ctx, state=State.STOPPED)
        else:
            self._become(ctx, state=State.STOPPED, fault=noted.code, fault_text=noted.text)
        self._end_if_stopped(ctx)

    def _end_if_stopped(self, ctx: Context) -> None:
        if self._state is EdgeActorState.STOPPED:
            ctx.stop(ctx.address)

    def _become(self, ctx: Context, **changes: object) -> None:
        changed = msgspec.structs.replace(self._report, **changes)
        if changed != self._report:
            self._report = changed
            self._changed(ctx)

    def _changed(self, ctx: Context) -> None:
        """Lost when the planner is out of reach; the beats of the process tell all of it again."""
        told = EndChanged(process=self._process, incarnation=self._incarnation, report=self._report)
        if not ctx.tell(self._planner, told):
            self._untold += 1

    def _refuse(self, why: str, message: EdgeActorMessage, ctx: Context) -> None:
        self._refused[why] += 1
        ctx.log(
            "warning",
            "refused what is not for this edge end",
            why=why,
            edge_id=self._report.edge_id,
            sender=ctx.sender,
            message=msgspec.to_builtins(message),
        )


def _state_of(report: EndReport) -> EdgeActorState:
    if report.state is State.STOPPED:
        return EdgeActorState.STOPPED
    if report.fault is not None:
        return EdgeActorState.FAULTED
    return EdgeActorState.READY if report.state is State.READY else EdgeActorState.PROVISIONING
