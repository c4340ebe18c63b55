"""`NODE.edges/edges`: makes, watches and tears down the edge ends of one node (design 7).

The planner orders ends, the ports report what became of rings and pumps, timers tell that a wait lasted too long; what
follows from it is `NodeEdges`. Here it is decided who may say what, and the planner is told everything each beat.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from actors.actor import Actor, Context, Procedure
from actors.edges.edge_actor import edge_actor_address
from actors.edges.ends import End, State
from actors.edges.node_edges import NodeEdges
from actors.edges.opening import Refusal, check_order
from actors.edges.reports import driver_reported, producer_established, wait_over, worker_reported
from actors.edges.settings import EdgeSettings, addresses_of
from actors.edges.waits import Observation, crash_of
from messages.base import Address, Message, NodeName
from messages.edge import ActorAddress, NodeId, StopEdge
from messages.edge_end import (
    BounceLink,
    CloseEdge,
    EdgeOpened,
    EdgesControl,
    EndRefusal,
    EndReport,
    Ends,
    EndsBeat,
    EndsBeatDue,
    FindRun,
    ListEnds,
    OpenEdge,
    ProducerEstablished,
    WaitOver,
)
from messages.edge_ports import (
    CutLink,
    DriverReport,
    PumpFaulted,
    PumpHalted,
    PumpReady,
    PumpsMoved,
    StreamEnded,
    WorkerReport,
)
from messages.system import Done, Down, ExitKind, PeerDown, PeerUp

CONTROLLER = NodeName("controller")
OPERATOR = NodeName("operator")
PLANNER = Address("controller/edges")

EdgesMailbox = EdgesControl | DriverReport | WorkerReport


class Edges(Actor[EdgesMailbox]):
    """The ends of the node `node_id` (a number), in the edges process `process`.

    `budget_bytes`: ring memory of all ends together. Crashes, and so restarts the process with new memory, when a
    teardown does not come to an end though the workload was killed, or when the memory port does not say what it did.
    """

    mailbox: ClassVar[Any] = EdgesMailbox

    def __init__(
        self,
        process: NodeName,
        node_id: NodeId,
        planner: Address = PLANNER,
        *,
        budget_bytes: int,
        settings: EdgeSettings | None = None,
    ) -> None:
        settings = settings or EdgeSettings()
        self._edges = NodeEdges(process, node_id, addresses_of(process, planner), budget_bytes, settings)

    def started(self, ctx: Context) -> None:
        self._edges.actors.incarnation = ctx.random.getrandbits(63) + 1
        ctx.watch_peer(_process_of(self._edges.to.planner))
        self._beat_again(ctx)

    def receive(self, message: EdgesMailbox, ctx: Context) -> Procedure | None:
        edges = self._edges
        match message:
            case FindRun():
                return self._find_run(message, ctx) if self._may_order(message, ctx) else None
            case OpenEdge() | CloseEdge() | ListEnds() | BounceLink():
                self._ordered(message, ctx)
            case ProducerEstablished():
                if self._is_from(message, ctx, CONTROLLER):
                    producer_established(edges, message, ctx)
            case PumpReady() | PumpFaulted() | PumpHalted() | StreamEnded() | PumpsMoved():
                if self._is_from(message, ctx, edges.to.driver):
                    driver_reported(edges, message, ctx)
            case WaitOver():
                if self._is_from(message, ctx, ctx.address):
                    wait_over(edges, message, ctx)
            case EndsBeatDue():
                if self._is_from(message, ctx, ctx.address):
                    self._beat_again(ctx)
            case Down():
                self._actor_ended(message, ctx)
            case PeerUp():
                self._beat(ctx)
            case PeerDown():
                pass
            case _:
                if self._is_from(message, ctx, edges.to.workers):
                    worker_reported(edges, message, ctx)
        return None

    def state(self) -> object:
        """Every end with its wait, every ring at a worker, the arena, and what was dropped."""
        edges = self._edges
        return {
            "process": edges.process,
            "node_id": edges.node_id,
            "incarnation": edges.actors.incarnation,
            "ends": [_row(end) for end in edges.table.all()],
            "workers": edges.workers.rows(),
            "arena": msgspec.to_builtins(edges.arena.sample()),
            "leases": [
                {"ring_id": lease.ring_id, "arena": lease.arena, **msgspec.to_builtins(lease.layout)}
                for lease in edges.arena.live_leases()
            ],
            "dropped": dict(edges.dropped),
            "dropped_of_workers": dict(edges.workers.dropped),
        }

    # --- orders ---

    def _may_order(self, order: Message, ctx: Context) -> bool:
        may = (CONTROLLER,) if isinstance(order, OpenEdge | CloseEdge) else (CONTROLLER, OPERATOR)
        if _process_of(ctx.sender) in may:
            return True
        reason = f"{type(order).__name__} is taken from {' and '.join(may)}, not from {ctx.sender}"
        ctx.refuse(EndRefusal.NOT_ALLOWED, reason)
        return False

    async def _find_run(self, question: FindRun, ctx: Context) -> None:
        edges = self._edges
        ctx.reply(await ctx.ask(edges.to.workers, question, edges.settings.ask_s))

    def _ordered(self, order: OpenEdge | CloseEdge | ListEnds | BounceLink, ctx: Context) -> None:
        if not self._may_order(order, ctx):
            return
        edges = self._edges
        try:
            match order:
                case OpenEdge():
                    ctx.reply(EdgeOpened(incarnation=edges.actors.incarnation, report=self._open(order, ctx).report()))
                case CloseEdge():
                    self._close(order, ctx)
                    ctx.reply(Done())
                case ListEnds():
                    ctx.reply(
                        Ends(
                            process=edges.process,
                            incarnation=edges.actors.incarnation,
                            ends=self._reports(),
                            arena=edges.arena.sample(),
                        )
                    )
                case BounceLink():
                    self._bounce(order, ctx)
                    ctx.reply(Done())
        except Refusal as refusal:
            ctx.refuse(refusal.code, refusal.reason)

    def _open(self, order: OpenEdge, ctx: Context) -> End:
        edges = self._edges
        check_order(order, process=edges.process, node=edges.node_id)
        known = edges.table.known(order)
        return edges.open(order, ctx) if known is None else known

    def _close(self, order: CloseEdge, ctx: Context) -> None:
        """Also for an end that is not here: there is nothing left to stop (E 2.5 Q24)."""
        end = self._edges.table.get(order.edge_id, order.direction)
        if end is not None and end.state is not State.STOPPED:
            end.close_reason = end.close_reason or order.reason
            if end.flowing and end.crash is not None:  # the order does not hide why the end was about to fault
                self._edges.observe(crash_of(end, "closed before the far end took what it left"))
            else:
                self._edges.observe(Observation(StopEdge(edge_id=order.edge_id), order.direction))
            self._edges.settle(ctx)

    def _bounce(self, order: BounceLink, ctx: Context) -> None:
        peers = {report.peer for report in self._reports() if report.peer != self._edges.process}
        if order.peer not in peers:
            known = ", ".join(sorted(peers)) or "none"
            reason = f"no edge of {self._edges.process} goes to or comes from {order.peer}; links of edges: {known}"
            raise Refusal(EndRefusal.NOT_HERE, reason)
        self._edges.tell(self._edges.to.driver, CutLink(peer=order.peer), ctx)

    # --- what is told, and the actors of the ends ---

    def _reports(self) -> list[EndReport]:
        return [end.report() for end in self._edges.table.all()]

    def _beat_again(self, ctx: Context) -> None:
        ctx.after(self._edges.settings.beat_s, EndsBeatDue())
        self._beat(ctx)

    def _beat(self, ctx: Context) -> None:
        """Also when nothing changed: the planner judges by beats. A lost one is followed by the next."""
        edges = self._edges
        beat = EndsBeat(
            process=edges.process,
            incarnation=edges.actors.incarnation,
            ends=self._reports(),
            arena=edges.arena.sample(),
        )
        if not ctx.tell(edges.to.planner, beat):
            edges.drop("EndsBeat: not handed over")

    def _actor_ended(self, down: Down, ctx: Context) -> None:
        """The actor of an end ends by itself when the end is stopped; every other end of it is followed by a start."""
        number = down.address.rpartition("/")[2]
        end = self._edges.table.of_actor(ActorAddress(int(number))) if number.isdecimal() else None
        if end is None or down.address != edge_actor_address(self._edges.process, end.actor):
            return
        by_itself = down.kind in (ExitKind.NORMAL, ExitKind.SHUTDOWN)
        if end.live or not by_itself:
            ctx.log("warning", "the actor of an edge end ended", edge=end.order.name, kind=down.kind, why=down.reason)
            self._edges.restart_actor(end, ctx)

    def _is_from(self, message: Message, ctx: Context, sender: str) -> bool:
        """Whether the actor or process `sender` said it; else it is named and counted."""
        if sender in (ctx.sender, _process_of(ctx.sender)):
            return True
        self._edges.drop(f"{type(message).__name__}: from a stranger")
        ctx.log("warning", "refused what a stranger told", sender=ctx.sender, message=type(message).__name__)
        return False


def _process_of(address: Address | None) -> NodeName:
    return NodeName((address or "").partition("/")[0])


def _row(end: End) -> dict[str, object]:
    report: dict[str, object] = msgspec.to_builtins(end.report())
    return {
        **report,
        "waits_for": None if end.wait is None else end.wait.kind.value,
        "port_closed": end.port_closed,
        "stream_ended": end.stream_ended,
        "pump_halted": end.pump_halted,
        "given_back": end.given_back,
    }
