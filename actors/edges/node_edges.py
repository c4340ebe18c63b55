"""The edge ends of one node put together: establisher, arena, worker control, and the actor of each end (design 7).

Whatever comes in becomes an event of the seed; what the establisher then commands is carried out before its life-cycle
events are told, so whoever hears of a fault finds the teardown already ordered (E 5.6). A step goes on until nothing is
left to observe. What is asked of the memory port comes back as a step of its own.
"""

from __future__ import annotations

from collections import Counter, deque

import msgspec

from actors.actor import AskFailed, Context
from actors.edges.arena import ArenaManager, ArenaOutcome, RingReleaseRejected
from actors.edges.end_actors import EndActors
from actors.edges.ends import TERMINAL, End, EndTable, State, Wait, WaitKind
from actors.edges.establisher import EdgeEstablisher
from actors.edges.opening import Refusal, far_party, own_party, provision_of
from actors.edges.semantics import EventRejection, Semantics
from actors.edges.settings import EdgeAddresses, EdgeSettings
from actors.edges.waits import Observation, fault_of, seconds_of, wait_in
from actors.edges.worker_control import Told, WorkerControl, WorkerRun
from messages.base import Address, Message, NodeName, Request
from messages.edge import (
    ActorAddress,
    CancelQueuedLease,
    EdgeCommand,
    EdgeId,
    EdgeLifecycleEvent,
    EstablishRecv,
    EstablishSend,
    InstallWorkerRing,
    LeaseRing,
    NodeId,
    QuiescenceProven,
    ReleaseArenaLease,
    RingDirection,
    RingLeased,
    RingLeaseRejected,
    RingQuiesced,
    StopEdge,
    Stopped,
    StopPump,
    UninstallWorkerRing,
)
from messages.edge_end import EdgeFaultCode, EndBound, EndRefusal, OpenEdge, WaitOver
from messages.edge_ports import (
    CloseStream,
    DropArena,
    EndStream,
    EraseRing,
    FormatRing,
    HaltPump,
    RingRef,
    StartReceive,
    StartSend,
)
from messages.system import Done, KernelRefusal

PAGE_BYTES = 4_096
"""Every ring starts at a page, so its worker maps it alone."""

_REFUSALS = {
    EventRejection.WRONG_NODE: EndRefusal.NOT_HERE,
    EventRejection.INVALID_SPEC: EndRefusal.INVALID,
    EventRejection.STALE_RUN: EndRefusal.STALE_EPOCH,
    EventRejection.EDGE_LIVE: EndRefusal.CONFLICT,
}


_FEWER = "stop edges that are not needed or place their workloads on other nodes"
_AS_MANY = f"as many as an edges process may have: {_FEWER}"


class MemoryUnsettled(Exception):
    """Whether something touches a range of memory is unknown, or it does although it was proved that nothing does."""


class NodeEdges:
    """Every end here, live ones and the newest of those that are over.

    `observe` only takes note; `settle` leaves nothing to observe: what was caused is ordered, told and timed. `dropped`
    counts by name what meant nothing any more or could not be handed over.
    """

    def __init__(
        self, process: NodeName, node_id: NodeId, to: EdgeAddresses, budget_bytes: int, settings: EdgeSettings
    ) -> None:
        self.process = process
        self.node_id = node_id
        self.to = to
        self.settings = settings
        self.actors = EndActors(process, to.planner, self.tell)
        self.table = EndTable(settings.kept_ends)
        self.arena = ArenaManager(budget_bytes, PAGE_BYTES)
        self.workers = WorkerControl()
        self.dropped: Counter[str] = Counter()
        self._budget_bytes = budget_bytes
        self._establisher = EdgeEstablisher(node_id, Semantics.STRICT)
        self._observations: deque[Observation] = deque()
        self._serials = 0

    def open(self, order: OpenEdge, ctx: Context) -> End:
        """Make the end of a checked order that no end was made of yet. Raises `Refusal`; then nothing was done."""
        if sum(other.live for other in self.table.all()) >= self.settings.live_ends:
            raise Refusal(KernelRefusal.OVERLOADED, f"{self.process} has {self.settings.live_ends} ends, {_AS_MANY}")
        rejected = self._establisher.observe(provision_of(order), order.direction)
        if rejected is not None:
            raise Refusal(_REFUSALS.get(rejected.reason, EndRefusal.INVALID), rejected.text)
        record = self._establisher.local_record(order.edge_id, order.direction)
        assert record is not None
        assert record.lease_request_id is not None
        end = End(order=order, actor=record.local_edge_actor, request_id=record.lease_request_id)
        failed = self.actors.start(end, ctx)
        if failed:
            self._withdraw(order)
            raise Refusal(
                KernelRefusal.OVERLOADED, f"{self.process} has no thread for another end ({failed}), {_FEWER}"
            )
        for older in self.table.add(end):
            text = f"run {order.run_id} of {order.name} takes its place"
            stop = StopEdge(edge_id=older.order.edge_id)
            self.observe(Observation(stop, order.direction, EdgeFaultCode.STALE_EPOCH, text))
        self.wait(end, wait_in(end), ctx)
        self.settle(ctx)
        return end

    def _withdraw(self, order: OpenEdge) -> None:
        """Have the establisher forget what it took in a moment ago; nothing of that was carried out."""
        for event in (StopEdge(edge_id=order.edge_id), Stopped(edge_id=order.edge_id)):
            self._establisher.observe(event, order.direction)
        self._establisher.drain_commands()
        self._establisher.drain_events()

    def observe(self, observation: Observation) -> None:
        self._observations.append(observation)

    def settle(self, ctx: Context) -> None:
        self._carry_out([], ctx)
        while self._observations:
            self._step(self._observations.popleft(), ctx)
            if not self._observations:
                self._give_up_surplus()
        for arena in self.arena.arenas_without_leases:
            self.arena.drop_arena(arena)
            ctx.run(self._drop(arena, ctx))

    # --- one step of the establisher ---

    def _step(self, observation: Observation, ctx: Context) -> None:
        ends = self._concerned(observation)
        rejected = self._establisher.observe(observation.event, observation.direction)
        if rejected is not None:
            self.drop(f"{type(observation.event).__name__}: {rejected.reason}")
        changed = [end for end in ends if self._follow(end, observation)]
        self._carry_out(changed, ctx)

    def _concerned(self, observation: Observation) -> list[End]:
        """The ends that an observation may change."""
        match observation.event:
            case RingLeased(request_id=request_id) | RingLeaseRejected(request_id=request_id):
                end = self.table.of_request(request_id)
            case RingQuiesced(ring_id=ring_id) | QuiescenceProven(ring_id=ring_id):
                end = self.table.of_ring(ring_id)
            case event:
                ends = self.table.of_edge(event.edge_id)
                return [end for end in ends if observation.direction in (None, end.order.direction)]
        return [] if end is None else [end]

    def _follow(self, end: End, observation: Observation) -> bool:
        """Take over what the establisher has made of it; whether that is anything new."""
        record = self._establisher.local_record(*end.key)
        if record is None or record.state is end.state:
            return False
        faulted = end.flowing and record.state in (State.STOPPING, *TERMINAL)
        end.state = record.state
        if record.ring_id is not None and end.ring_id is None:
            self.table.granted(end, record.ring_id)
        if faulted and observation.code is not None:
            self.fault(end, observation.code, observation.text)
        return True

    def _carry_out(self, changed: list[End], ctx: Context) -> None:
        """Commands first, then what is told of the ends that changed."""
        for command in self._establisher.drain_commands():
            self._execute(command, ctx)
        told: dict[ActorAddress, list[EdgeLifecycleEvent]] = {}
        for actor, event in self._establisher.drain_addressed_events():
            told.setdefault(actor, []).append(event)
        for end in changed:
            self._tell_change(end, told.pop(end.actor, []), ctx)
            self.wait(end, wait_in(end), ctx)
        assert not told, f"nobody is told {told}"
        for order in self.workers.drain_orders():
            if not self.tell(self.to.workers, order, ctx) and isinstance(order, EndStream):
                ring_end = self.table.of_ring(order.ring_id)
                assert ring_end is not None
                self._never_ends(ring_end, "the workload could not be told that its stream has ended")
        for notice in self.workers.drain_notices():
            assert isinstance(notice, Told), f"{notice} is no answer to a command"
            self.observe(Observation(notice.event, notice.direction, notice.code, notice.text))

    def _tell_change(self, end: End, events: list[EdgeLifecycleEvent], ctx: Context) -> None:
        if end.fault is not None and events:
            self.actors.note_fault(end, ctx)
        for event in events:
            self.actors.tell(end, event, ctx)
        if not events:
            self.actors.tell(end, EndBound(state=end.state, ring_id=end.ring_id), ctx)
        if end.state is State.FAILED:  # nothing is left to tear down; so every end comes to be stopped (E 2.5 Q7)
            self.observe(Observation(StopEdge(edge_id=end.order.edge_id), end.order.direction))
        elif end.state is State.STOPPED:
            self.table.over(end)
            if end.ring_id is None:
                self._over(end)

    def fault(self, end: End, code: EdgeFaultCode, text: str) -> None:
        """Why the end is torn down, if nothing else was first (E 2.5 Q17)."""
        if end.fault is None:
            end.fault, end.fault_text = code, text

    def _over(self, end: End) -> None:
        """Nothing is left of it: the establisher forgets it (E 2.5 Q22, Q29)."""
        end.given_back = True
        self.observe(Observation(Stopped(edge_id=end.order.edge_id), end.order.direction))

    def _give_up_surplus(self) -> None:
        """Of the ends that are over the newest stay."""
        for end in self.table.surplus():
            if end.given_back:
                self.table.forget(end)

    # --- the establisher's commands ---

    def _execute(self, command: EdgeCommand, ctx: Context) -> None:
        match command:
            case LeaseRing():
                end = self._end(command.edge_id, command.direction)
                arena = own_party(end.order).instance_id
                self._arena_says(self.arena.lease(command.request_id, arena, command.ring_spec))
            case CancelQueuedLease():
                self._arena_says(self.arena.cancel(command.request_id))
            case InstallWorkerRing():
                end = self._end(command.edge_id, command.direction)
                own = own_party(end.order)
                run = WorkerRun(own.instance_id, own.epoch, own.port, end.order.run_id)
                end.ring = self.workers.install(command, run)
                ctx.run(self._format(end.ring, ctx))
            case UninstallWorkerRing():
                ring_end = self.table.of_ring(command.ring_id)
                assert ring_end is not None
                why = ring_end.fault.value if ring_end.fault is not None else ring_end.close_reason or "stopped"
                self.workers.uninstall(command, why)
            case EstablishSend():
                self._start_pump(self._end(command.edge_id, RingDirection.EGRESS), ctx)
            case EstablishRecv():
                self._start_pump(self._end(command.edge_id, RingDirection.INGRESS), ctx)
            case StopPump():
                ring_end = self.table.of_ring(command.ring_id)
                assert ring_end is not None
                self.halt_pump(ring_end, ctx)
            case ReleaseArenaLease():
                ctx.run(self._give_back(command, ctx))

    def _start_pump(self, end: End, ctx: Context) -> None:
        order, ring, far = end.order, end.ring, far_party(end.order).process
        assert ring is not None
        end.pump_asked = True
        start: StartSend | StartReceive
        if order.direction is RingDirection.EGRESS:
            start = StartSend(
                edge_id=order.edge_id, run_id=order.run_id, ring=ring, object_spec=order.object_spec, consumer=far
            )
        else:
            start = StartReceive(
                edge_id=order.edge_id, run_id=order.run_id, ring=ring, object_spec=order.object_spec, producer=far
            )
        self.tell(self.to.driver, start, ctx)
        if end.port_closed:  # while the ring was installed
            self.close_stream(end, ctx, clean=True)

    def halt_pump(self, end: End, ctx: Context) -> None:
        """Repeated it is harmless: the driver answers each."""
        edge_id, direction = end.key
        assert end.ring_id is not None
        self.tell(self.to.driver, HaltPump(edge_id=edge_id, direction=direction, ring_id=end.ring_id), ctx)

    def close_stream(self, end: End, ctx: Context, *, clean: bool) -> None:
        if not self.tell(self.to.driver, CloseStream(edge_id=end.order.edge_id, clean=clean), ctx) and clean:
            self._never_ends(end, "the driver could not be told that the producer has closed its port")

    def _never_ends(self, end: End, text: str) -> None:
        """The end of a stream may take as long as it likes, so no deadline answers for what was not handed over."""
        self.observe(fault_of(end, EdgeFaultCode.DRIVER_TIMEOUT, text))

    # --- arena and memory ---

    def _arena_says(self, outcomes: list[ArenaOutcome]) -> None:
        """A grant that a release or a cancel lets through is among them, and reaches its end like any other."""
        for outcome in outcomes:
            match outcome:
                case RingLeased():
                    self.observe(Observation(outcome))
                case RingLeaseRejected():
                    text = f"{self._budget_bytes} bytes of ring memory on {self.process} cannot hold such a ring"
                    self.observe(Observation(outcome, code=EdgeFaultCode(outcome.reason.value), text=text))
                case RingReleaseRejected():
                    self.drop(f"ReleaseArenaLease: {outcome.reason}")
                case _:
                    pass

    async def _format(self, ring: RingRef, ctx: Context) -> None:
        """Have the memory port lay the ring out; only then is it offered to the worker."""
        try:
            await self._ask_memory(FormatRing(ring=ring, size_bytes=self._budget_bytes), ctx)
        except AskFailed as failed:
            self.workers.format_refused(ring.ring_id, str(failed))
        else:
            self.workers.formatted(ring.ring_id)
        self.settle(ctx)

    async def _give_back(self, command: ReleaseArenaLease, ctx: Context) -> None:
        """Erase the ring, then let the arena lease its range again, so no erasure ever hits another's ring."""
        assert command.proof.verified, f"{command}: the establisher proves what it releases"
        try:
            await self._ask_memory(EraseRing(ring_id=command.ring_id), ctx)
        except AskFailed as failed:
            text = f"ring {command.ring_id} is proved quiescent and cannot be erased: {failed}"
            raise MemoryUnsettled(f"{text}: start anew, with new memory") from failed
        self._arena_says(self.arena.release(command.ring_id, command.proof))
        end = self.table.of_ring(command.ring_id)
        if end is not None:
            self._over(end)
        self.settle(ctx)

    async def _drop(self, arena: str, ctx: Context) -> None:
        try:
            await self._ask_memory(DropArena(arena=arena), ctx)
        except AskFailed as failed:
            self.drop("DropArena: refused")
            ctx.log("error", "an arena without rings stays", arena=arena, why=str(failed))

    async def _ask_memory(self, request: Request[Done], ctx: Context) -> None:
        """Raises `AskFailed` when the port did nothing; crashes this actor when it is unknown what the port did."""
        deadlines = self.settings.deadlines
        patience_s = deadlines.install_s + 2 * deadlines.teardown_s
        try:
            await ctx.ask(self.to.memory, request, timeout_s=patience_s)
        except AskFailed as failed:
            if not failed.nothing_happened:
                raise MemoryUnsettled(f"{request}: {failed}: start anew, with new memory") from failed
            raise

    # --- waits ---

    def wait(self, end: End, kind: WaitKind | None, ctx: Context) -> None:
        """Begin to wait for something else, or for nothing."""
        if end.wait is not None:
            ctx.cancel(end.wait.timer)
            end.wait = None
        if kind is not None:
            self._serials += 1
            edge_id, direction = end.key
            over = WaitOver(edge_id=edge_id, direction=direction, serial=self._serials)
            timer = ctx.after(seconds_of(kind, self.settings.deadlines), over)
            end.wait = Wait(kind, self._serials, timer)

    def restart_actor(self, end: End, ctx: Context) -> None:
        failed = self.actors.start(end, ctx)
        if failed:
            ctx.log("error", "an edge end goes on without its actor", edge=end.order.name, number=end.actor, why=failed)
            self.drop("EdgeActor: not started")

    def tell(self, to: Address, message: Message, ctx: Context) -> bool:
        """False when it could not be handed over: named here; a deadline answers for it."""
        if ctx.tell(to, message):
            return True
        self.drop(f"{type(message).__name__}: not handed over")
        ctx.log("error", "could not be handed over", to=to, message=msgspec.to_builtins(message))
        return False

    def drop(self, what: str) -> None:
        self.dropped[what] += 1

    def _end(self, edge_id: EdgeId, direction: RingDirection) -> End:
        end = self.table.get(edge_id, direction)
        assert end is not None, f"the establisher commands for edge {edge_id}, which has no {direction} end"
        return end
