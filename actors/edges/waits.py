"""How long an edge end may wait, and which event of the seed the end of its patience is (design 7).

wait           in state                   over: the establisher observes
lease          waiting_for_lease          StopEdge                        lease_timeout
install        waiting_for_worker_ring    RingFault(WorkerRejectedRing)   install_timeout
driver         waiting_for_driver         StreamFault(ProtocolError)      driver_timeout
producer       the same, ingress, until the producer is established       driver_timeout
drain          ready, producer crashed    RingFault(WorkerRejectedRing)   worker_crashed
teardown       stopping                   nothing: the workload is killed if it holds the ring
last_teardown  stopping                   nothing: the edges process restarts
"""

from __future__ import annotations

from dataclasses import dataclass

from actors.edges.ends import End, State, WaitKind
from actors.edges.faults import reported_fault, seed_event
from actors.edges.settings import EdgeDeadlines
from messages.edge import EdgeEvent, RingDirection
from messages.edge_end import EdgeFaultCode


@dataclass(frozen=True, slots=True)
class Observation:
    """An event for the establisher, at which end, and the detail of the fault that it tells."""

    event: EdgeEvent
    direction: RingDirection | None = None
    code: EdgeFaultCode | None = None
    text: str = ""


class TeardownOverdue(Exception):
    """Something still holds a ring and cannot be made to let go: only a restart of the process frees its memory."""


def wait_in(end: End) -> WaitKind | None:
    """What an end waits for in the state that it has come to."""
    match end.state:
        case State.WAITING_FOR_LEASE:
            return WaitKind.LEASE
        case State.WAITING_FOR_WORKER_RING:
            return WaitKind.INSTALL
        case State.WAITING_FOR_DRIVER if end.order.direction is RingDirection.EGRESS or end.producer_established:
            return WaitKind.DRIVER
        case State.WAITING_FOR_DRIVER:
            return WaitKind.PRODUCER
        case State.STOPPING:
            return WaitKind.TEARDOWN
        case _:
            return None


def seconds_of(kind: WaitKind, deadlines: EdgeDeadlines) -> float:
    return {
        WaitKind.LEASE: deadlines.lease_s,
        WaitKind.INSTALL: deadlines.install_s,
        WaitKind.DRIVER: deadlines.driver_s,
        WaitKind.PRODUCER: deadlines.producer_s,
        WaitKind.DRAIN: deadlines.drain_s,
        WaitKind.TEARDOWN: deadlines.teardown_s,
        WaitKind.LAST_TEARDOWN: deadlines.teardown_s,
    }[kind]


def observation_after(kind: WaitKind, end: End, seconds: float) -> Observation | None:
    """What a wait that lasted too long is to the establisher; `None` while tearing down."""
    match kind:
        case WaitKind.LEASE:
            code, what = EdgeFaultCode.LEASE_TIMEOUT, "no ring memory came free"
        case WaitKind.INSTALL:
            code, what = EdgeFaultCode.INSTALL_TIMEOUT, "the workload did not take the ring"
        case WaitKind.DRIVER:
            code, what = EdgeFaultCode.DRIVER_TIMEOUT, "the stream was not established"
        case WaitKind.PRODUCER:
            code, what = EdgeFaultCode.DRIVER_TIMEOUT, "the producer was not established"
        case WaitKind.DRAIN:
            return crash_of(end, f"the far end did not take what it left within {seconds:g} s")
        case WaitKind.TEARDOWN | WaitKind.LAST_TEARDOWN:
            return None
    return fault_of(end, code, f"{what} within {seconds:g} s")


def fault_of(end: End, code: EdgeFaultCode, text: str) -> Observation:
    """A fault that is found here, as the establisher observes it."""
    event = seed_event(
        code,
        edge_id=end.order.edge_id,
        direction=end.order.direction,
        ring_id=end.ring_id,
        request_id=end.request_id,
    )
    return Observation(event, end.order.direction, code, text)


def crash_of(end: End, what: str) -> Observation:
    """The fault of an end that drained, or did not: its producer's crash, and `what` became of what that left.

    It proves nothing of the ring: a producer whose channel is lost may live. Worker control knows, and tells.
    """
    assert end.ring_id is not None
    code, direction = EdgeFaultCode.WORKER_CRASHED, end.order.direction
    event = reported_fault(code, edge_id=end.order.edge_id, direction=direction, ring_id=end.ring_id, streaming=True)
    return Observation(event, direction, code, f"{end.crash}; {what}")
