"""What is said to and by a supervisor: its rules as enums, its state as plain data (design 6).

`sennit tree` asks `ShowChildren` and prints the `SupervisorView` it gets back. The rules themselves are one class,
`actors.supervision.policy.Supervision`.
"""

from __future__ import annotations

from enum import StrEnum

from messages.base import Message, Record, Request


class Strategy(StrEnum):
    """Who else goes down and comes back when one child fails."""

    ONE_FOR_ONE = "one_for_one"
    ONE_FOR_ALL = "one_for_all"
    REST_FOR_ONE = "rest_for_one"


class Restart(StrEnum):
    """Which ends of a child are followed by a restart: all, only failures, none."""

    PERMANENT = "permanent"
    TRANSIENT = "transient"
    TEMPORARY = "temporary"


class AutoShutdown(StrEnum):
    """When the supervisor ends because significant children finished their work."""

    NEVER = "never"
    ANY_SIGNIFICANT = "any_significant"
    ALL_SIGNIFICANT = "all_significant"


class Spent(StrEnum):
    """What follows when the restart budget is spent: the supervisor fails, or the child is parked alone."""

    ESCALATE = "escalate"
    PARK = "park"


class ChildState(StrEnum):
    """Where a child is. `waiting` is between two lives, `parked` the same with its budget spent."""

    WAITING = "waiting"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FINISHED = "finished"
    PARKED = "parked"


class Verdict(StrEnum):
    """What is wrong with a child, as its supervisor sees it (design 5).

    `dead`: it ended and waits for its next life. `hung`: silent for three beats, and its link is up. `overloaded`:
    beats come late, or a mailbox is at least half full. `partitioned`: its link is gone and no exit was seen.
    """

    DEAD = "dead"
    HUNG = "hung"
    OVERLOADED = "overloaded"
    PARTITIONED = "partitioned"


class SupervisionRefusal(StrEnum):
    """Why a supervisor did not do what an operator asked."""

    UNKNOWN_CHILD = "unknown_child"
    DUPLICATE_CHILD = "duplicate_child"
    CHILD_ALIVE = "child_alive"
    SHUTTING_DOWN = "shutting_down"


class ChildView(Record, frozen=True, kw_only=True):
    """One row of `sennit tree`. `next_attempt_s`: seconds until the next start, absent when none is planned.

    `verdict`: absent while nothing is wrong.
    """

    name: str
    state: ChildState
    restart: Restart
    incarnation: int = 0
    restarts: int = 0
    budget_left: int = 0
    next_attempt_s: float | None = None
    last_exit: str = ""
    verdict: Verdict | None = None


class SupervisorView(Message, frozen=True, kw_only=True):
    """A supervisor and its children in start order. `closing`: why it is shutting down, empty while it is not."""

    strategy: Strategy
    children: tuple[ChildView, ...]
    closing: str = ""


class ShowChildren(Request[SupervisorView], frozen=True, kw_only=True):
    """Ask for the children as they are now."""


class ChildDone(Message, frozen=True, kw_only=True):
    """What an operator's verb answers: the child as it is now, or the refusal and what to do."""

    child: ChildView | None = None
    refused: SupervisionRefusal | None = None
    detail: str = ""


class StopChild(Request[ChildDone], frozen=True, kw_only=True):
    """Stop a child; it stays stopped until `StartChild`. Answered when the stop has begun."""

    name: str


class StartChild(Request[ChildDone], frozen=True, kw_only=True):
    """Start a stopped, finished or parked child now, its restart history cleared."""

    name: str


class Shutdown(Message, frozen=True, kw_only=True):
    """Stop every child in reverse start order, then end."""

    reason: str = "asked to"


class ProcessReady(Message, frozen=True, kw_only=True):
    """Told by a process's supervisor to the root: every actor of this life has started, its mailboxes answer."""

    name: str
    incarnation: int


class ProcessBeat(Message, frozen=True, kw_only=True):
    """Told by a process's supervisor to the root each beat, out of the mailbox loops of its actors.

    `slowest_ms`: the longest that one of them took to answer; `mailbox`: the longest mailbox.
    """

    name: str
    incarnation: int
    slowest_ms: int
    mailbox: int


class Tick(Message, frozen=True, kw_only=True):
    """The supervisor's own timer."""


class BeatDue(Message, frozen=True, kw_only=True):
    """The supervisor's own timer for beats."""
