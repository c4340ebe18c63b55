"""The two ends of a life in hand, as their edges processes told of them.

Beats and answers may overtake each other, so a report never takes an end back to an earlier state, and an end that a
beat does not show is asked about before it counts as gone.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from actors.edges.planning.situation import Listed, party_of
from actors.edges.planning.state import Life
from messages.base import NodeName
from messages.edge import EdgeId, EdgeProvisionState, RingDirection
from messages.edge_end import EndReport

_RANK = {
    EdgeProvisionState.WAITING_FOR_LEASE: 0,
    EdgeProvisionState.WAITING_FOR_WORKER_RING: 1,
    EdgeProvisionState.WAITING_FOR_DRIVER: 2,
    EdgeProvisionState.READY: 3,
    EdgeProvisionState.STOPPING: 4,
    EdgeProvisionState.FAILED: 5,
    EdgeProvisionState.STOPPED: 5,
}


@dataclass(slots=True)
class EndView:
    """One end of the life in hand. `serial`: the newest order to it; listings asked before do not count."""

    ordered: bool = True
    opened: bool = False
    refusal: str = ""
    closed: bool = False
    listed: Listed = Listed.UNKNOWN
    suspect: bool = False
    report: EndReport | None = None
    incarnation: int = 0
    serial: int = 0

    def take(self, report: EndReport, incarnation: int) -> bool:
        """Its process tells of it; what was told already stays told. Whether there is news but for its progress."""
        known, before = self.report, (self.opened, self.listed, self.suspect, self.incarnation)
        if known is not None and incarnation == self.incarnation:
            if _RANK[report.state] < _RANK[known.state]:
                return False
            told = known if known.fault is not None and (known.fault_text or not report.fault_text) else report
            report = msgspec.structs.replace(
                report, ended=report.ended or known.ended, fault=told.fault, fault_text=told.fault_text
            )
        self.report, self.incarnation = report, incarnation
        self.opened, self.listed, self.suspect = True, Listed.PRESENT, False
        same = known is not None and _told(known) == _told(report)
        return not same or before != (self.opened, self.listed, self.suspect, self.incarnation)

    def missing(self, incarnation: int, asked: int | None) -> bool:
        """A listing does not show it. `asked`: the serial at which it was asked for, None for a beat. Whether that is
        news."""
        before = (self.listed, self.suspect)
        if asked is None:
            self.suspect = self.listed is Listed.PRESENT or self.suspect
        elif asked >= self.serial:
            self.listed, self.suspect, self.incarnation = Listed.ABSENT, False, incarnation
        return before != (self.listed, self.suspect)


def _told(report: EndReport) -> tuple[object, ...]:
    """What a report says that a step may depend on."""
    return report.state, report.fault, report.fault_text, report.ended


@dataclass(slots=True)
class LifeView:
    """The life in hand. `fresh`: it began in this incarnation of the planner; `processes`: where its ends are."""

    fresh: bool
    edge_id: EdgeId
    processes: dict[RingDirection, NodeName]
    ends: dict[RingDirection, EndView]
    ordered_at: float | None = None
    established_at: float | None = None
    ready_since: float | None = None

    @classmethod
    def begun(cls, life: Life) -> LifeView:
        return cls._of(life, fresh=True)

    @classmethod
    def found(cls, life: Life, now: float) -> LifeView:
        view = cls._of(life, fresh=False)
        view.ordered_at = now
        return view

    @classmethod
    def _of(cls, life: Life, *, fresh: bool) -> LifeView:
        return cls(
            fresh=fresh,
            edge_id=life.edge_id,
            processes={way: party_of(life.pair, way).process for way in RingDirection},
            ends={way: EndView(ordered=not fresh) for way in RingDirection},
        )


__all__ = ["EndView", "LifeView"]
