"""Edge traces in the notation of E 2.10: events by short names, commands and life-cycle events as short texts.

Commands: L lease, C cancel, I install, U uninstall, S send (to), R receive, P stop pump, X release, with the number of
the request or ring. States: WL, WW and WD waiting for lease, worker ring and driver, RD ready, SG stopping, SD stopped,
FL failed. Edge 1 on node 10, consumer 11, ring 8001, unless said otherwise.
"""

from messages.edge import (
    CancelQueuedLease,
    DriverEdgeReady,
    DType,
    EdgeFaulted,
    EdgeProvisionState,
    EdgeReady,
    EdgeStopped,
    EstablishRecv,
    EstablishSend,
    InstallWorkerRing,
    LeaseRing,
    ObjectKind,
    ObjectSpec,
    ProvisionRx,
    ProvisionTx,
    PumpStopped,
    QuiescenceProven,
    ReleaseArenaLease,
    RingFault,
    RingFaultReason,
    RingInstalled,
    RingLayout,
    RingLeased,
    RingLeaseRejected,
    RingLeaseRejection,
    RingQuiesced,
    RingSpec,
    StopEdge,
    Stopped,
    StopPump,
    StreamFault,
    StreamFaultReason,
    UninstallWorkerRing,
)

OBJECT_SPEC = ObjectSpec(kind=ObjectKind.ACTIVATION, dtype=DType.F16, max_extent_bytes=4096)
RING_SPEC = RingSpec(header_bytes=128, data_bytes=4096, alignment=64)
LAYOUT = RingLayout(
    start_offset=0, header_offset=0, data_offset=128, end_offset=4224, data_bytes=4096, alignment=64
)  # fmt: skip
STATES = {
    "WL": EdgeProvisionState.WAITING_FOR_LEASE,
    "WW": EdgeProvisionState.WAITING_FOR_WORKER_RING,
    "WD": EdgeProvisionState.WAITING_FOR_DRIVER,
    "RD": EdgeProvisionState.READY,
    "SG": EdgeProvisionState.STOPPING,
    "SD": EdgeProvisionState.STOPPED,
    "FL": EdgeProvisionState.FAILED,
}


def tx(edge=1, node=10, consumer=11, run=7, ring_spec=RING_SPEC, object_spec=OBJECT_SPEC):  # noqa: PLR0917
    return ProvisionTx(
        run_id=run,
        edge_id=edge,
        local_node_id=node,
        consumer_node_id=consumer,
        object_spec=object_spec,
        ring_spec=ring_spec,
    )


def rx(edge=1, node=10, run=7):
    return ProvisionRx(run_id=run, edge_id=edge, local_node_id=node, object_spec=OBJECT_SPEC, ring_spec=RING_SPEC)


def leased(request=1, ring=8001):
    return RingLeased(request_id=request, ring_id=ring, layout=LAYOUT)


def rejected(request=1):
    return RingLeaseRejected(request_id=request, reason=RingLeaseRejection.CANNOT_FIT)


def installed(ring=8001, edge=1):
    return RingInstalled(edge_id=edge, ring_id=ring)


def driver_ready(edge=1):
    return DriverEdgeReady(edge_id=edge)


def stream_fault(edge=1):
    return StreamFault(edge_id=edge, reason=StreamFaultReason.READ_ERROR)


def crashed(ring=8001, edge=1):
    return RingFault(edge_id=edge, ring_id=ring, reason=RingFaultReason.WORKER_CRASHED)


def worker_rejects(ring=8001, edge=1):
    return RingFault(edge_id=edge, ring_id=ring, reason=RingFaultReason.WORKER_REJECTED_RING)


def stop(edge=1):
    return StopEdge(edge_id=edge)


def pump_stopped(ring=8001, edge=1):
    return PumpStopped(edge_id=edge, ring_id=ring)


def quiesced(ring=8001):
    return RingQuiesced(ring_id=ring)


def proven(ring=8001):
    return QuiescenceProven(ring_id=ring)


def stopped(edge=1):
    return Stopped(edge_id=edge)


def ready(edge=1, request=1, ring=8001, provision=tx):
    """The way to a ready edge."""
    return [provision(edge), leased(request, ring), installed(ring, edge), driver_ready(edge)]


def written(command):
    match command:
        case LeaseRing():
            return f"L{command.request_id} {command.direction}"
        case CancelQueuedLease():
            return f"C{command.request_id}"
        case InstallWorkerRing():
            assert (command.layout, command.object_spec, command.ring_spec) == (LAYOUT, OBJECT_SPEC, RING_SPEC)
            return f"I{command.ring_id} {command.direction}"
        case UninstallWorkerRing():
            return f"U{command.ring_id}"
        case EstablishSend():
            assert command.layout == LAYOUT
            return f"S{command.consumer_node_id}"
        case EstablishRecv():
            assert command.layout == LAYOUT
            return "R"
        case StopPump():
            return f"P{command.ring_id}"
        case ReleaseArenaLease():
            assert command.proof.verified
            return f"X{command.ring_id}"


def told(event):
    match event:
        case EdgeReady():
            return f"ready {event.local_edge_actor}"
        case EdgeFaulted():
            return f"faulted {event.reason.__struct_config__.tag}"
        case EdgeStopped():
            return "stopped"


def record(snapshot):
    """`egress RD 8001`: direction, state and ring."""
    state = next(short for short, state in STATES.items() if state == snapshot.state)
    ring = "" if snapshot.ring_id is None else f" {snapshot.ring_id}"
    return f"{snapshot.direction} {state}{ring}"


def observed(establisher, events):
    """What each event brought: `commands | life-cycle events`, or `!reason` if it was turned away. An event that says
    which end it is about is a pair with the direction."""
    lines = []
    for event in events:
        rejection = establisher.observe(*event) if isinstance(event, tuple) else establisher.observe(event)
        commands = " ".join(map(written, establisher.drain_commands()))
        events_told = ", ".join(map(told, establisher.drain_events()))
        if rejection is not None:
            assert (commands, events_told) == ("", "")
            lines.append(f"!{rejection.reason}")
        else:
            lines.append(f"{commands} | {events_told}" if events_told else commands)
    return lines


def records(establisher):
    return ", ".join(map(record, establisher.local_records()))
