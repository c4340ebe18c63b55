"""What driver and workers report of the ends of a node, and waits that are over (design 7, E 5 and 6).

Most of it is an event of the seed as it stands. What the seed does not know is the end of a stream: a producer that
closes its port lets everything arrive and then has `ended`; one that crashes lets the far end take what it left, for
`drain_s`, and then faults.
"""

from __future__ import annotations

from actors.actor import Context
from actors.edges.ends import STREAMING, End, State, WaitKind
from actors.edges.faults import reported_fault
from actors.edges.node_edges import NodeEdges
from actors.edges.waits import Observation, TeardownOverdue, crash_of, observation_after, seconds_of
from actors.edges.worker_control import PortClosed, Told
from messages.edge import DriverEdgeReady, PumpStopped, RingDirection
from messages.edge_end import EdgeFaultCode, ObjectsMoved, ProducerEstablished, StreamFinished, WaitOver
from messages.edge_ports import (
    DriverReport,
    Moved,
    PumpFaulted,
    PumpHalted,
    PumpReady,
    PumpsMoved,
    StreamEnded,
    WorkerReport,
)


def driver_reported(edges: NodeEdges, report: DriverReport, ctx: Context) -> None:
    if isinstance(report, PumpsMoved):
        for moved in report.pumps:
            _moved(edges, moved, ctx)
        return
    end = edges.table.get(report.edge_id, report.direction)
    if end is None:
        edges.drop(f"{type(report).__name__}: unknown end")
        return
    match report:
        case PumpHalted():
            _pump_halted(edges, end, report)
        case _ if end.state not in STREAMING:
            edges.drop(f"{type(report).__name__}: {end.state.value}")
        case PumpReady() if end.state is State.READY:
            edges.drop("PumpReady: again")
        case PumpReady():
            edges.observe(Observation(DriverEdgeReady(edge_id=report.edge_id), report.direction))
        case PumpFaulted():
            _pump_faulted(edges, end, report)
        case StreamEnded():
            _stream_ended(edges, end, ctx)
    edges.settle(ctx)


def worker_reported(edges: NodeEdges, report: WorkerReport, ctx: Context) -> None:
    edges.workers.observe(report)
    for notice in edges.workers.drain_notices():
        end = edges.table.get(notice.edge_id, notice.direction)
        assert end is not None, f"{notice} is about an end that is not here"
        match notice:
            case PortClosed():
                _port_closed(edges, end, ctx)
            case Told(code=EdgeFaultCode.WORKER_CRASHED):
                _worker_crashed(edges, end, notice, ctx)
            case Told():
                edges.observe(Observation(notice.event, notice.direction, notice.code, notice.text))
    edges.settle(ctx)


def producer_established(edges: NodeEdges, message: ProducerEstablished, ctx: Context) -> None:
    """From now on the receiving end waits for the stream itself (design 7)."""
    end = edges.table.get(message.edge_id, RingDirection.INGRESS)
    if end is None or end.producer_established:
        edges.drop("ProducerEstablished: " + ("unknown end" if end is None else "again"))
        return
    end.producer_established = True
    if end.wait is not None and end.wait.kind is WaitKind.PRODUCER:
        edges.wait(end, WaitKind.DRIVER, ctx)


def wait_over(edges: NodeEdges, over: WaitOver, ctx: Context) -> None:
    """An end waited too long, unless it waits for something else by now. Raises `TeardownOverdue`."""
    end = edges.table.get(over.edge_id, over.direction)
    if end is None or end.wait is None or end.wait.serial != over.serial:
        edges.drop("WaitOver: over already")
        return
    kind, end.wait = end.wait.kind, None
    seconds = seconds_of(kind, edges.settings.deadlines)
    observation = observation_after(kind, end, seconds)
    if observation is not None:
        edges.observe(observation)
        edges.settle(ctx)
    elif kind is WaitKind.TEARDOWN:
        _force(edges, end, seconds, ctx)
    else:
        raise TeardownOverdue(f"{_missing(edges, end)} after {2 * seconds:g} s: start anew, with new memory")


# --- teardown that does not come to an end ---


def _force(edges: NodeEdges, end: End, seconds: float, ctx: Context) -> None:
    """Order the pump to halt again; end the workload if it is what holds the ring."""
    assert end.ring_id is not None
    why = f"{_missing(edges, end)} after {seconds:g} s"
    if end.pump_asked and not end.pump_halted:
        edges.halt_pump(end, ctx)
    killed = edges.workers.kill(end.ring_id, why)
    ctx.log("error", "teardown takes too long", why=why, workload_killed=killed)
    edges.fault(end, EdgeFaultCode.TEARDOWN_TIMEOUT, why)
    edges.actors.note_fault(end, ctx)
    edges.wait(end, WaitKind.LAST_TEARDOWN, ctx)
    edges.settle(ctx)


def _missing(edges: NodeEdges, end: End) -> str:
    assert end.ring_id is not None
    holders = []
    if end.pump_asked and not end.pump_halted:
        holders.append("the pump")
    if edges.workers.holds(end.ring_id):
        holders.append("the memory port" if edges.workers.is_waiting_for_memory(end.ring_id) else "the workload")
    return f"{' and '.join(holders) or 'something'} still holds ring {end.ring_id} of {end.order.name}"


# --- pumps ---


def _moved(edges: NodeEdges, moved: Moved, ctx: Context) -> None:
    end = edges.table.get(moved.edge_id, moved.direction)
    if end is None or not end.live:
        edges.drop("Moved: unknown end" if end is None else "Moved: over")
        return
    end.progress = moved.progress
    if end.state is State.READY:
        edges.actors.tell(end, ObjectsMoved(progress=moved.progress), ctx)


def _pump_halted(edges: NodeEdges, end: End, report: PumpHalted) -> None:
    if end.state is not State.STOPPING or end.ring_id != report.ring_id or end.pump_halted:
        edges.drop("PumpHalted: not asked for")
        return
    end.pump_halted = True
    edges.observe(Observation(PumpStopped(edge_id=report.edge_id, ring_id=report.ring_id), report.direction))


def _pump_faulted(edges: NodeEdges, end: End, report: PumpFaulted) -> None:
    if end.crash is not None:
        edges.observe(crash_of(end, f"what it left is lost: {report.text}"))
        return
    assert end.ring_id is not None
    event = reported_fault(
        report.code, edge_id=report.edge_id, direction=report.direction, ring_id=end.ring_id, streaming=True
    )
    edges.observe(Observation(event, report.direction, report.code, report.text))


def _stream_ended(edges: NodeEdges, end: End, ctx: Context) -> None:
    if end.order.direction is RingDirection.INGRESS:
        assert end.ring_id is not None
        end.stream_ended = True
        edges.workers.end_stream(end.ring_id)
    elif end.crash is not None:
        edges.observe(crash_of(end, "what it left has arrived"))
    elif end.port_closed:
        _finished(edges, end, ctx)
    else:
        edges.drop("StreamEnded: the port is open")


# --- workers ---


def _port_closed(edges: NodeEdges, end: End, ctx: Context) -> None:
    if end.order.direction is RingDirection.EGRESS:
        end.port_closed = True
        if end.state in STREAMING:
            edges.close_stream(end, ctx, clean=True)
    elif end.stream_ended:
        _finished(edges, end, ctx)
    else:
        edges.drop("WorkerClosed: the stream goes on")


def _worker_crashed(edges: NodeEdges, end: End, told: Told, ctx: Context) -> None:
    """It, or its channel, is gone; no crash for the edge when all that the workload had to do for it is done."""
    egress = end.order.direction is RingDirection.EGRESS
    if end.ended or (egress and end.port_closed and end.state in STREAMING):
        return
    if egress and end.state is State.READY:
        end.crash = told.text
        edges.close_stream(end, ctx, clean=False)
        edges.wait(end, WaitKind.DRAIN, ctx)
        return
    edges.observe(Observation(told.event, told.direction, told.code, told.text))


def _finished(edges: NodeEdges, end: End, ctx: Context) -> None:
    if not end.ended:
        end.ended = True
        edges.actors.tell(end, StreamFinished(), ctx)
