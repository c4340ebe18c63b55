"""What an edge needs next, as a pure function of what is known (design 7).

A life of an edge joins one placed producer to one placed consumer. It begins when both run, the gate permits that pair
and both edges processes are heard; both ends are ordered side by side; when one end fails, or an instance is not placed
any more, both are closed, and only when neither can move a byte does the next life begin, after a back-off. So there
are never two lives of one edge, whatever was lost on the way.
"""

from __future__ import annotations

from dataclasses import dataclass

from actors.edges.planning.situation import (
    TERMINAL,
    EndSight,
    Fault,
    Listed,
    PlanTimes,
    Situation,
    node_of,
    party_of,
)
from actors.edges.planning.state import Closing, DesiredEdge, Life, Pair
from messages.base import NodeName
from messages.edge import EdgeProvisionState, RingDirection
from messages.edge_end import EdgeFaultCode, EdgeParty
from messages.edge_plan import EdgePhase

_PUMPING = frozenset({EdgeProvisionState.WAITING_FOR_DRIVER, EdgeProvisionState.READY})

CONSEQUENCES = frozenset(
    {EdgeFaultCode.PEER_RESTARTED, EdgeFaultCode.LINK_LOST, EdgeFaultCode.DRIVER_TIMEOUT, EdgeFaultCode.STALE_EPOCH}
)
"""Faults that one end has when the other fails: if that one tells why, its reason is shown."""

_OF_A_STOP = frozenset(
    {EdgeFaultCode.WORKER_CRASHED, EdgeFaultCode.WORKER_NOT_RUNNING, EdgeFaultCode.WORKER_REFUSED}  # closed its input
)
"""Faults that an end has when its instance is stopped by order, which is none of the edge."""

ALL_ARRIVED = "its producer closed the port and all has arrived"


# --- steps ---


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do until something changes."""

    phase: EdgePhase
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Record:
    """Have the chain take what permits the next act."""


@dataclass(frozen=True, slots=True)
class Judge:
    """Ask the gate whether the pair may be joined."""

    pair: Pair


@dataclass(frozen=True, slots=True)
class StartProcesses:
    processes: tuple[NodeName, ...]


@dataclass(frozen=True, slots=True)
class FindRuns:
    """Ask whether both instances run: nothing is begun for one that does not, nor for a producer that has finished."""

    pair: Pair


@dataclass(frozen=True, slots=True)
class Begin:
    """A new life, durable before anything of it is ordered."""

    pair: Pair


@dataclass(frozen=True, slots=True)
class OpenEnds:
    directions: tuple[RingDirection, ...]


@dataclass(frozen=True, slots=True)
class ListProcess:
    """Ask an edges process what is there: a beat alone may be older than what is known already."""

    process: NodeName


@dataclass(frozen=True, slots=True)
class TellEstablished:
    """Tell the consumer's end that the producer's pump runs."""


@dataclass(frozen=True, slots=True)
class NoteReady:
    """Both ends are ready for the first time in this life."""


@dataclass(frozen=True, slots=True)
class Close:
    """Decide that this life ends."""

    why: Closing
    reason: str
    fault: Fault | None = None


@dataclass(frozen=True, slots=True)
class CloseEnds:
    directions: tuple[RingDirection, ...]


@dataclass(frozen=True, slots=True)
class Settle:
    """Both ends are over: the life is."""


@dataclass(frozen=True, slots=True)
class Forget:
    """The edge was removed and nothing of it is left."""


Step = (
    Wait | Record | Judge | StartProcesses | FindRuns | Begin | OpenEnds | ListProcess | TellEstablished | NoteReady
    | Close | CloseEnds | Settle | Forget
)  # fmt: skip


def next_step(seen: Situation, times: PlanTimes) -> Step:
    """The one thing to do next for this edge."""
    life = seen.edge.life
    if life is None:
        return _without_life(seen)
    if life.closing is not None:
        return _closing(seen, life)
    return _close(seen, life, times) or _open(seen, life, times)


def _without_life(seen: Situation) -> Step:
    edge, pair = seen.edge, seen.pair
    if edge.removing:
        return Forget()
    if not seen.recorded:
        return Wait(EdgePhase.WAITING, seen.hold) if seen.hold else Record()
    if not seen.loaded:
        return Wait(EdgePhase.WAITING, "the placement control plane has not told what is placed")
    if pair is None:
        return Wait(EdgePhase.WAITING, seen.unresolved)
    finished = edge.finished == pair
    if seen.hold:
        return Wait(EdgePhase.FINISHED, ALL_ARRIVED) if finished else Wait(EdgePhase.WAITING, seen.hold)
    if seen.unheard:
        return StartProcesses(seen.unheard)
    if finished or not seen.running:
        return FindRuns(pair)
    if edge.permitted != pair and not seen.permitted:
        return Judge(pair)
    return Begin(pair)


def _open(seen: Situation, life: Life, times: PlanTimes) -> Step:
    """A life that shall go on: order what is missing, tell what is established."""
    for direction in RingDirection:
        end = seen.end(direction)
        unsure = end.suspect or (not seen.fresh and end.listed is Listed.UNKNOWN)
        if unsure and end.linked:
            return ListProcess(party_of(life.pair, direction).process)
    if seen.fresh:
        if not seen.recorded:
            return Wait(EdgePhase.OPENING, seen.hold) if seen.hold else Record()
        missing = tuple(way for way in RingDirection if not seen.end(way).opened and seen.end(way).linked)
        if missing and not seen.hold:
            return OpenEnds(missing)
    ends = {party_of(life.pair, way).process: seen.end(way) for way in RingDirection}
    silent = tuple(name for name, end in ends.items() if not end.linked and end.silent_s > times.start_after_s)
    if silent and not seen.hold:
        return StartProcesses(silent)
    if seen.producer.is_ready and seen.consumer.is_ready:
        if not life.ready:
            return NoteReady()
        return Wait(EdgePhase.READY, _unheard(seen, life))
    pumping = seen.producer.report is not None and seen.producer.report.state in _PUMPING
    if pumping and seen.consumer.opened and not seen.told_established:
        return TellEstablished()
    return Wait(EdgePhase.OPENING, _unheard(seen, life) or seen.hold)


def _close(seen: Situation, life: Life, times: PlanTimes) -> Close | None:
    """Whether the life must end, and why."""
    if seen.edge.removing:
        return Close(Closing.REMOVED, "removed by order")
    if seen.producer.ended and seen.consumer.ended:
        return Close(Closing.FINISHED, ALL_ARRIVED)
    if seen.loaded:
        for direction in RingDirection:
            end, party = seen.end(direction), party_of(life.pair, direction)
            if end.ended:
                continue
            which = f"{party.instance_id} at epoch {party.epoch}"
            if not end.placed:
                return Close(Closing.MOVED, f"{which} is not placed on {node_of(party)} any more")
            if end.leaving:
                return Close(Closing.MOVED, f"{which} is being unloaded from {node_of(party)}")
    fault = fault_of(seen, life, times)
    if fault is None:
        return None
    for direction in RingDirection:
        if seen.end(direction).stopped and (fault.code in _OF_A_STOP or is_consequence(fault.code)):
            party = party_of(life.pair, direction)
            return Close(Closing.STOPPED, f"{party.instance_id} was stopped by order on {node_of(party)}")
    return Close(Closing.FAULT, fault.text, fault)


def fault_of(seen: Situation, life: Life, times: PlanTimes) -> Fault | None:
    """What is wrong with an open life; the cause rather than its consequence at the other end."""
    faults = [
        fault
        for direction in RingDirection
        if not seen.end(direction).ended
        and (fault := _fault_of_end(seen.end(direction), party_of(life.pair, direction), seen.fresh, times)) is not None
    ]
    if not faults:
        if life.ready or seen.opening_s <= times.opening_s:
            return None
        return Fault(None, f"not ready {times.opening_s:g} s after it was ordered")
    return min(faults, key=lambda fault: is_consequence(fault.code))


def _fault_of_end(end: EndSight, party: EdgeParty, fresh: bool, times: PlanTimes) -> Fault | None:
    report = end.report
    if report is not None and report.fault is not None:
        return Fault(report.fault, report.fault_text)
    if end.refusal:
        return Fault(None, end.refusal)
    if end.listed is Listed.ABSENT and not end.suspect and (end.opened or not fresh):
        return Fault(EdgeFaultCode.EDGES_RESTARTED, f"{party.process} does not have its end of this life any more")
    if report is not None and report.state in (*TERMINAL, EdgeProvisionState.STOPPING):
        return Fault(None, f"{party.process} stopped its end, which nobody ordered")
    if end.silent_s > times.gone_after_s:
        return Fault(EdgeFaultCode.LINK_LOST, f"{party.process} was not heard for {times.gone_after_s:g} s")
    return None


def _closing(seen: Situation, life: Life) -> Step:
    ways = [way for way in RingDirection if not seen.end(way).is_over]
    if not ways:
        return Settle()
    phase = EdgePhase.STOPPING if seen.edge.removing else EdgePhase.CLOSING
    untold = tuple(way for way in ways if not seen.end(way).closed and seen.end(way).linked)
    if untold and not seen.hold:
        return CloseEnds(untold)
    for way in ways:
        end, process = seen.end(way), party_of(life.pair, way).process
        if end.linked and end.closed and (end.suspect or end.listed is Listed.UNKNOWN) and not seen.hold:
            return ListProcess(process)
    unlinked = tuple(party_of(life.pair, way).process for way in ways if not seen.end(way).linked)
    if unlinked and not seen.hold:
        return StartProcesses(unlinked)
    still = " and ".join(party_of(life.pair, way).process for way in ways)
    return Wait(phase, f"{life.reason}; until {still} has let go of it" + (f" ({seen.hold})" if seen.hold else ""))


def _unheard(seen: Situation, life: Life) -> str:
    silent = [party_of(life.pair, way).process for way in RingDirection if not seen.end(way).linked]
    return f"{' and '.join(dict.fromkeys(silent))} cannot be reached" if silent else ""


def is_consequence(code: EdgeFaultCode | None) -> bool:
    return code in CONSEQUENCES


def backoff_s(strikes: int, jitter: float, times: PlanTimes) -> float:
    """The wait before the next life after `strikes` that faulted, at least 1; `jitter` within 0..1 takes off up to a
    half."""
    most = min(times.backoff_most_s, times.backoff_first_s * 2.0 ** min(strikes - 1, 30))
    return most * (1.0 - 0.5 * jitter)


def doing(step: Step) -> str:
    """What an edge waits for while this is done for it, where it is not plain from its phase."""
    match step:
        case Judge():
            return "the gate is asked whether its two instances may be joined"
        case StartProcesses(processes=processes):
            return f"starting {' and '.join(processes)}"
        case FindRuns():
            return "it is asked whether its two instances run"
        case Begin():
            return "its next life begins"
        case _:
            return ""


def phase_during(edge: DesiredEdge) -> EdgePhase:
    """Where an edge stands while something is being done for it."""
    if edge.removing:
        return EdgePhase.STOPPING
    if edge.life is None:
        return EdgePhase.WAITING if edge.finished is None else EdgePhase.FINISHED
    if edge.life.closing is not None:
        return EdgePhase.CLOSING
    return EdgePhase.READY if edge.life.ready else EdgePhase.OPENING


__all__ = [
    "Begin", "Close", "CloseEnds", "FindRuns", "Forget", "Judge", "ListProcess", "NoteReady", "OpenEnds", "Record",
    "Settle", "StartProcesses", "Step", "TellEstablished", "Wait", "backoff_s", "doing", "fault_of", "is_consequence",
    "next_step", "phase_during",
]  # fmt: skip
