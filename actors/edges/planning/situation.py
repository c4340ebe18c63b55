"""All that the next step of one edge depends on, with its two ends as they are seen (design 7)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from actors.edges.planning.state import DesiredEdge, Pair
from messages.base import NodeName
from messages.edge import EdgeProvisionState, RingDirection
from messages.edge_end import EdgeFaultCode, EdgeParty, EndReport

TERMINAL = frozenset({EdgeProvisionState.STOPPED, EdgeProvisionState.FAILED})

UNASKABLE_S = 3.0
"""For so long an edges process is waited for that is not linked or has not spoken yet: it beats each second."""


@dataclass(frozen=True, slots=True)
class PlanTimes:
    """Seconds. `gone_after_s`: silence of an edges process after which its ends count as lost; `start_after_s`: after
    which it is had started, should it not run: with a node that began anew it does not; `opening_s`: from the first
    order to both ends ready; the back-off between lives doubles from the first to the most, with jitter, and begins
    anew after `steady_s` of readiness."""

    start_after_s: float = 2.0
    gone_after_s: float = 60.0
    opening_s: float = 90.0
    backoff_first_s: float = 0.2
    backoff_most_s: float = 5.0
    steady_s: float = 30.0


class Listed(Enum):
    """What the newest listing that counts says of an end."""

    UNKNOWN = "unknown"
    ABSENT = "absent"
    PRESENT = "present"


@dataclass(frozen=True, slots=True)
class EndSight:
    """What is known of one end of the life in hand.

    `linked`: its edges process is heard, `silent_s`: for how long it was not; `ordered`: it may have been told to open;
    `opened`: it took the order; `refusal`: it never will; `closed`: it was told to close, since then `listed` counts;
    `placed`: its instance is, at its epoch; `leaving`: and is being unloaded; `stopped`: and was stopped by order;
    `suspect`: a beat did not show it.
    """

    linked: bool = True
    silent_s: float = 0.0
    listed: Listed = Listed.UNKNOWN
    suspect: bool = False
    report: EndReport | None = None
    ordered: bool = True
    opened: bool = False
    refusal: str = ""
    closed: bool = False
    placed: bool = True
    leaving: bool = False
    stopped: bool = False

    @property
    def ended(self) -> bool:
        return self.report is not None and self.report.ended

    @property
    def is_ready(self) -> bool:
        return self.report is not None and self.report.state is EdgeProvisionState.READY

    @property
    def is_over(self) -> bool:
        """Nothing of this end can move a byte any more.

        Its process says so; or the process cannot be asked, and not for a moment only, but the instance is placed no
        more, which the plane only says when nothing of it runs.
        """
        if not self.ordered or (self.report is not None and self.report.state in TERMINAL):
            return True
        if self.closed and self.listed is Listed.ABSENT:
            return True
        return not self.linked and self.silent_s > UNASKABLE_S and not self.placed


@dataclass(frozen=True, slots=True)
class Fault:
    """What made a life end; `code` is None when the end was never there to have one."""

    code: EdgeFaultCode | None
    text: str


@dataclass(frozen=True, slots=True)
class Situation:
    """All that the next step of one edge depends on.

    `recorded`: the chain has what permits its acts; `fresh`: the life began in this incarnation of the planner;
    `pair`: whom it would join now, else `unresolved` says why nobody; `unheard`: edges processes of the pair that must
    be started first; `hold`: why nothing new is begun yet; `running`: both instances of the pair do, as was told just
    now; `permitted`: the gate's verdict on the pair in this incarnation; `opening_s`: since the ends were first
    ordered; `told_established`: lately enough.
    """

    edge: DesiredEdge
    loaded: bool
    recorded: bool
    fresh: bool
    pair: Pair | None
    unresolved: str
    unheard: tuple[NodeName, ...]
    hold: str
    running: bool
    permitted: bool
    producer: EndSight
    consumer: EndSight
    opening_s: float = 0.0
    told_established: bool = False

    def end(self, direction: RingDirection) -> EndSight:
        return self.producer if direction is RingDirection.EGRESS else self.consumer


def party_of(pair: Pair, direction: RingDirection) -> EdgeParty:
    return pair.producer if direction is RingDirection.EGRESS else pair.consumer


def node_of(party: EdgeParty) -> str:
    """The configured name of its node."""
    return party.process.removesuffix(".edges")


__all__ = ["TERMINAL", "EndSight", "Fault", "Listed", "PlanTimes", "Situation", "node_of", "party_of"]
