"""Which rings the workloads of this node hold (E 6.1 and 6.6, adapted to many workloads; design 7).

`WorkerControl` is pure. It takes the establisher's install and uninstall commands, what became of the ring's memory
and the reports of the workers port; it gives orders for that port and tells what the establisher is to observe. A ring
is held by one run of one workload, for one end of one edge, and its id is never used again, so a report names the run
by the ring: one about a ring that is over, of another workload, or out of turn is dropped and counted.

`RingQuiesced` and `QuiescenceProven` are told together and only after the uninstall was asked for (E 2.5 Q16): when
the workload has let go, when no process of that run is left, when it never held the ring, and in any case not while
the memory port still writes the ring's header.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum

from actors.edges.faults import reported_fault, seed_event
from messages.control import Epoch
from messages.edge import (
    EdgeId,
    InstallWorkerRing,
    QuiescenceProven,
    RingDirection,
    RingFault,
    RingId,
    RingInstalled,
    RingQuiesced,
    RunId,
    StreamFault,
    UninstallWorkerRing,
)
from messages.edge_end import EdgeFaultCode
from messages.edge_ports import (
    EndStream,
    InstallRing,
    KillWorker,
    RingRef,
    UninstallRing,
    WorkerClosed,
    WorkerFaulted,
    WorkerGone,
    WorkerInstalled,
    WorkerQuiesced,
    WorkerReport,
    WorkersMessage,
)


class RingPhase(StrEnum):
    """How far a ring is at its worker. `absent`: the run is gone, or refused the ring and does not hold it."""

    FORMATTING = "formatting"
    INSTALLING = "installing"
    INSTALLED = "installed"
    ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class WorkerRun:
    """One run of one workload, and the port that a ring is for. `generation`: of the ring, the edge's epoch."""

    instance_id: str
    epoch: Epoch
    port: str
    generation: RunId


@dataclass(frozen=True, slots=True)
class Told:
    """What the establisher is to observe, and at which end. `code` and `text`: of a fault."""

    edge_id: EdgeId
    direction: RingDirection
    event: RingInstalled | RingFault | StreamFault | RingQuiesced | QuiescenceProven
    code: EdgeFaultCode | None = None
    text: str = ""


@dataclass(frozen=True, slots=True)
class PortClosed:
    """The workload closed its port: egress: it commits nothing more; ingress: it has read all there was."""

    edge_id: EdgeId
    direction: RingDirection


WorkerNotice = Told | PortClosed


@dataclass(slots=True)
class _Held:
    """One ring. `uninstalling`: the establisher wants it back and waits for the proof."""

    ring: RingRef
    run: WorkerRun
    command: InstallWorkerRing
    phase: RingPhase = RingPhase.FORMATTING
    uninstalling: bool = False
    faulted: bool = False
    closed: bool = False
    end_told: bool = False
    kill_asked: bool = False

    @property
    def at_worker(self) -> bool:
        """Whether the worker may touch it."""
        return self.phase in (RingPhase.INSTALLING, RingPhase.INSTALLED)


class WorkerControl:
    """Every ring between its install command and its proof of quiescence. Does no I/O, owns no timer.

    What a step caused waits in two logs, each in order, until `drain_orders` and `drain_notices` take it out.
    `dropped` counts reports that meant nothing any more, by kind and cause.
    """

    def __init__(self) -> None:
        self.dropped: Counter[str] = Counter()
        self._rings: dict[RingId, _Held] = {}
        self._orders: list[WorkersMessage] = []
        self._notices: list[WorkerNotice] = []

    def drain_orders(self) -> list[WorkersMessage]:
        """Orders for the workers port since the last call, oldest first."""
        orders, self._orders = self._orders, []
        return orders

    def drain_notices(self) -> list[WorkerNotice]:
        """What there is to observe since the last call, oldest first."""
        notices, self._notices = self._notices, []
        return notices

    def rows(self) -> list[dict[str, object]]:
        """Every ring as plain data, in order of ring id."""
        return [
            {
                "ring_id": ring_id,
                "edge_id": held.command.edge_id,
                "instance_id": held.run.instance_id,
                "epoch": str(held.run.epoch),
                "port": held.run.port,
                "phase": held.phase.value,
                "uninstalling": held.uninstalling,
            }
            for ring_id, held in sorted(self._rings.items())
        ]

    def holds(self, ring_id: RingId) -> bool:
        """Whether quiescence of a ring that was taken in is still to be told."""
        return ring_id in self._rings

    def is_waiting_for_memory(self, ring_id: RingId) -> bool:
        """Whether the memory port has not yet said what became of the ring's header."""
        held = self._rings.get(ring_id)
        return held is not None and held.phase is RingPhase.FORMATTING

    # --- the establisher's commands ---

    def install(self, command: InstallWorkerRing, run: WorkerRun) -> RingRef:
        """Take the ring in; it is offered to the worker when its memory is `formatted`. Returns what to format.

        Raises `ValueError` for a ring that is taken in already: the arena never leases an id twice.
        """
        if command.ring_id in self._rings:
            raise ValueError(f"ring {command.ring_id} is at a worker already: {self._rings[command.ring_id].run}")
        ring = RingRef(arena=run.instance_id, ring_id=command.ring_id, generation=run.generation, layout=command.layout)
        self._rings[command.ring_id] = _Held(ring=ring, run=run, command=command)
        return ring

    def uninstall(self, command: UninstallWorkerRing, reason: str) -> None:
        """Want the ring back; quiescence is told at once when the worker does not hold it."""
        held = self._rings.get(command.ring_id)
        if held is None:
            self._drop(command, "unknown ring")
        elif not held.uninstalling:
            held.uninstalling = True
            if held.at_worker:
                self._orders.append(
                    UninstallRing(instance_id=held.run.instance_id, ring_id=command.ring_id, reason=reason)
                )
            self._quiesce_if_untouched(held)

    # --- what became of its memory ---

    def formatted(self, ring_id: RingId) -> None:
        """The ring's header is written: offer it to the worker, unless it is wanted back by now."""
        held = self._rings[ring_id]
        if held.uninstalling:
            held.phase = RingPhase.ABSENT
            self._quiesce_if_untouched(held)
            return
        held.phase = RingPhase.INSTALLING
        self._orders.append(
            InstallRing(
                instance_id=held.run.instance_id,
                epoch=held.run.epoch,
                edge_id=held.command.edge_id,
                ring=held.ring,
                port=held.run.port,
                direction=held.command.direction,
                object_spec=held.command.object_spec,
            )
        )

    def format_refused(self, ring_id: RingId, text: str) -> None:
        """The memory port made nothing."""
        held = self._rings[ring_id]
        held.phase = RingPhase.ABSENT
        if held.uninstalling:
            self._quiesce_if_untouched(held)
        else:
            self._fault(held, EdgeFaultCode.ARENA_FAILED, text, streaming=False)

    # --- reports of the workers port ---

    def observe(self, report: WorkerReport) -> None:
        """Take one report; what it is about must be held by the workload that it names."""
        if isinstance(report, WorkerGone):
            for ring_id in report.ring_ids:
                held = self._named(report, ring_id)
                if held is not None:
                    self._gone(held)
            return
        held = self._named(report, report.ring_id)
        if held is None:
            return
        match report:
            case WorkerInstalled():
                self._installed(held, report)
            case WorkerFaulted():
                self._faulted(held, report)
            case WorkerQuiesced() if held.uninstalling and held.at_worker:
                held.phase = RingPhase.ABSENT
                self._quiesce_if_untouched(held)
            case WorkerQuiesced():  # never before it was asked for (E 2.5 Q16)
                self._drop(report, "not asked for")
            case WorkerClosed() if held.closed or held.uninstalling or not held.at_worker:
                self._drop(report, "late")
            case WorkerClosed():
                held.closed = True
                self._notices.append(PortClosed(held.command.edge_id, held.command.direction))

    # --- orders that are not the establisher's ---

    def end_stream(self, ring_id: RingId) -> None:
        """Ingress: tell the workload once that nothing more comes; nobody to tell when it does not hold the ring."""
        held = self._rings.get(ring_id)
        if held is not None and held.at_worker and not (held.uninstalling or held.end_told):
            held.end_told = True
            self._orders.append(EndStream(instance_id=held.run.instance_id, ring_id=ring_id))

    def kill(self, ring_id: RingId, reason: str) -> bool:
        """Have the run ended that does not let go of the ring, once. False when that cannot help (any more)."""
        held = self._rings.get(ring_id)
        if held is None or not held.at_worker or held.kill_asked:
            return False
        held.kill_asked = True
        self._orders.append(KillWorker(instance_id=held.run.instance_id, ring_id=ring_id, reason=reason))
        return True

    # --- steps ---

    def _named(self, report: WorkerReport, ring_id: RingId) -> _Held | None:
        held = self._rings.get(ring_id)
        if held is None:
            self._drop(report, "unknown ring")
        elif held.run.instance_id != report.instance_id:
            self._drop(report, "another workload")
        else:
            return held
        return None

    def _installed(self, held: _Held, report: WorkerInstalled) -> None:
        if held.uninstalling or held.phase is not RingPhase.INSTALLING:
            self._drop(report, "late")
            return
        held.phase = RingPhase.INSTALLED
        event = RingInstalled(edge_id=held.command.edge_id, ring_id=held.command.ring_id)
        self._tell(held, event)

    def _faulted(self, held: _Held, report: WorkerFaulted) -> None:
        if not held.at_worker:
            self._drop(report, "late")
            return
        streaming = held.phase is RingPhase.INSTALLED
        if not report.holds:
            held.phase = RingPhase.ABSENT
        if held.uninstalling:  # one outcome: the first fault, or the order to stop (E 2.5 Q17)
            self._drop(report, "while uninstalling")
            self._quiesce_if_untouched(held)
        else:
            self._fault(held, report.code, report.text, streaming=streaming)

    def _gone(self, held: _Held) -> None:
        if held.phase is RingPhase.FORMATTING:  # not offered yet; the offer will find the run gone
            self.dropped["WorkerGone: not offered yet"] += 1
            return
        was_at_worker = held.at_worker
        held.phase = RingPhase.ABSENT
        if held.uninstalling:
            self._quiesce_if_untouched(held)
        elif was_at_worker and not held.faulted:
            held.faulted = True
            command = held.command
            event = seed_event(
                EdgeFaultCode.WORKER_CRASHED,
                edge_id=command.edge_id,
                direction=command.direction,
                ring_id=command.ring_id,
            )
            assert isinstance(event, RingFault)
            text = f"no process of {held.run.instance_id} (run {held.run.epoch}) is left"
            self._tell(held, event, EdgeFaultCode.WORKER_CRASHED, text)

    def _fault(self, held: _Held, code: EdgeFaultCode, text: str, *, streaming: bool) -> None:
        """Told once for a ring."""
        command = held.command
        if held.faulted:
            self.dropped["WorkerFaulted: again"] += 1
            return
        held.faulted = True
        event = reported_fault(
            code,
            edge_id=command.edge_id,
            direction=command.direction,
            ring_id=command.ring_id,
            streaming=streaming,
        )
        self._tell(held, event, code, text)

    def _quiesce_if_untouched(self, held: _Held) -> None:
        if held.phase is not RingPhase.ABSENT:
            return
        ring_id = held.command.ring_id
        del self._rings[ring_id]
        self._tell(held, RingQuiesced(ring_id=ring_id))
        self._tell(held, QuiescenceProven(ring_id=ring_id))

    def _tell(
        self,
        held: _Held,
        event: RingInstalled | RingFault | StreamFault | RingQuiesced | QuiescenceProven,
        code: EdgeFaultCode | None = None,
        text: str = "",
    ) -> None:
        self._notices.append(Told(held.command.edge_id, held.command.direction, event, code, text))

    def _drop(self, report: WorkerReport | UninstallWorkerRing, cause: str) -> None:
        self.dropped[f"{type(report).__name__}: {cause}"] += 1
