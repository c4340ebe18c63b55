"""What the kernel itself says and answers (design 3 and 5): failures of asks, exits, links, sight into an actor."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from messages.base import Address, Message, NodeName, Record, Request


class AskFailure(StrEnum):
    """Why an ask brought no answer. The first three: nothing happened. The last two: nothing is known."""

    UNREACHABLE = "unreachable"
    REFUSED = "refused"
    WOULD_DEADLOCK = "would_deadlock"
    TIMEOUT = "timeout"
    DIED = "died"


class KernelRefusal(StrEnum):
    """Codes of refusals that the kernel gives in an actor's place."""

    OVERLOADED = "overloaded"
    NO_SUCH_ACTOR = "no_such_actor"
    NOT_IN_MAILBOX = "not_in_mailbox"
    MALFORMED = "malformed"
    TOO_LARGE = "too_large"
    BUSY = "busy"
    NOT_ALLOWED = "not_allowed"


class ExitKind(StrEnum):
    NORMAL = "normal"
    SHUTDOWN = "shutdown"
    CRASHED = "crashed"
    KILLED = "killed"


class Down(Message, frozen=True):
    """A watched actor has ended; told to whoever asked `ctx.watch`."""

    address: Address
    kind: ExitKind
    reason: str


class PeerUp(Message, frozen=True):
    """A link to `process` carries messages (again); told to whoever asked `ctx.watch_peer`."""

    process: NodeName
    incarnation: int


class PeerDown(Message, frozen=True):
    """The link to `process` ended; what was sent and not acknowledged was counted `unconfirmed`."""

    process: NodeName
    incarnation: int
    reason: str


class Done(Message, frozen=True):
    """The plain answer of a request that has nothing to tell."""


class Ping(Request[Done], frozen=True):
    """Answered by the mailbox loop itself, before anything that waits: a beat."""


class AwaitReady(Request[Done], frozen=True):
    """Answered when the actor has started: from then on its mailbox takes ordinary messages."""


class StateReport(Message, frozen=True):
    """An actor's own account of its state, as plain data."""

    address: Address
    state: Any


class GetState(Request[StateReport], frozen=True):
    pass


class Statistics(Message, frozen=True):
    """Counters of one actor since it started; lengths are now."""

    address: Address
    received: int
    answered: int
    refused: int
    crashed: bool
    mailbox: int
    mailbox_high: int
    procedures: int
    waiting_asks: int
    timers: int
    suspended: bool
    busy_s: float


class GetStatistics(Request[Statistics], frozen=True):
    pass


class TraceLine(Record, frozen=True):
    at_s: float
    sender: Address | None
    message: str
    handled_us: int


class TraceReport(Message, frozen=True):
    address: Address
    lines: list[TraceLine]


class Trace(Request[TraceReport], frozen=True):
    """Report the next `count` messages (1..1000), or those seen when `seconds` are over."""

    count: int
    seconds: float = 5.0


class Suspend(Request[Done], frozen=True):
    """Stop taking ordinary messages; control, replies and timers go on."""


class Resume(Request[Done], frozen=True):
    pass


class ActorRow(Record, frozen=True):
    """One line of `sennit actor ls`."""

    address: Address
    kind: str
    mailbox: int
    received: int
    suspended: bool


class ActorList(Message, frozen=True):
    actors: list[ActorRow]


class ListActors(Request[ActorList], frozen=True):
    """Answered by any actor of a process for the whole process."""


class LinkRow(Record, frozen=True):
    """One link of a post office, as counted at this end."""

    process: NodeName
    plane: str
    up: bool
    incarnation: int
    sent: int
    received: int
    unacknowledged: int
    duplicates: int
    gaps: int
    unconfirmed: int


class ProcessReport(Message, frozen=True):
    """The counters of a process that nothing may drop in silence (promise 7)."""

    process: NodeName
    dead_letters: dict[str, int]
    links: list[LinkRow]


class GetProcess(Request[ProcessReport], frozen=True):
    """Answered by any actor of a process for the whole process."""


SystemRequest = Ping | AwaitReady | GetState | GetStatistics | Trace | Suspend | Resume | ListActors | GetProcess
