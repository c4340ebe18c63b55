"""How an order ended, in the words of a scenario: done, refused with a code, unplaceable, indeterminate."""

from __future__ import annotations

from typing import NamedTuple

from actors.actor import AskFailed
from messages.placement import Outcome, PlaceReport
from messages.system import AskFailure
from runtime.scenario.format import Act, Edge, Ending, Place

Order = Place | Act | Edge

_UNKNOWN = ("call_indeterminate", "unsettled")


class Ended(NamedTuple):
    """`code` and `text` are those of the refusal; empty when it was done."""

    ending: Ending
    code: str = ""
    text: str = ""

    def meets(self, order: Order) -> bool:
        """Whether it ended as the scenario says."""
        return (
            self.ending is order.ends
            and order.code in (None, self.code)
            and (order.says is None or order.says in self.text)
        )

    def __str__(self) -> str:
        return self.ending.value + (f" ({self.code})" if self.code else "") + (f": {self.text}" if self.text else "")


def wanted(order: Order) -> str:
    """What the scenario says of the ending."""
    says = f" saying {order.says!r}" if order.says else ""
    return order.ends.value + (f" ({order.code})" if order.code else "") + says


def ending_of_failure(failed: AskFailed) -> Ended:
    """The ending that a failed ask stands for."""
    if failed.failure is AskFailure.REFUSED:
        ending = Ending.INDETERMINATE if failed.code in _UNKNOWN else Ending.REFUSED
        return Ended(ending, failed.code, failed.reason)
    ending = Ending.REFUSED if failed.nothing_happened else Ending.INDETERMINATE
    return Ended(ending, failed.failure.value, failed.reason)


def ending_of_report(report: PlaceReport, *, dry_run: bool) -> Ended:
    """The ending of a placement that was answered."""
    if report.placed is not None or (dry_run and report.decision.placement is not None):
        return Ended(Ending.DONE)
    if not report.attempts:
        return Ended(Ending.UNPLACEABLE, text=report.explain)
    last = report.attempts[-1]
    ending = Ending.INDETERMINATE if last.outcome is Outcome.INDETERMINATE else Ending.REFUSED
    return Ended(ending, last.code or last.outcome.value, last.reason or "")
