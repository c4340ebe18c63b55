"""What the planner believes of what edges processes tell, in whichever order it comes (design 7)."""

from __future__ import annotations

import pytest

from actors.edges.planning.ends import EndView
from actors.edges.planning.situation import Listed
from actors.edges.planning.view import PAST_LIVES, ProcessView
from messages.edge import EdgeProvisionState as State
from messages.edge import RingDirection
from messages.edge_end import EdgeFaultCode, EndReport

LIFE = 7
ORDER = [State.WAITING_FOR_LEASE, State.WAITING_FOR_WORKER_RING, State.WAITING_FOR_DRIVER, State.READY, State.STOPPING]


def report(state, fault=None, text="", ended=False):
    return EndReport(
        name="e", edge_id=1, run_id=1, direction=RingDirection.EGRESS, state=state, instance_id="i", port="p",
        local_edge_actor=1, peer="q", fault=fault, fault_text=text, ended=ended,
    )  # fmt: skip


def view(*reports, incarnation=LIFE):
    end = EndView()
    for told in reports:
        end.take(told, incarnation)
    return end


@pytest.mark.parametrize("later", range(1, len(ORDER)))
def test_an_end_never_goes_back_to_an_earlier_state(later):
    end = view(report(ORDER[later]), *(report(state) for state in ORDER[:later]))
    assert end.report.state is ORDER[later]


def test_a_newer_life_of_the_process_is_believed_whatever_it_tells():
    end = view(report(State.STOPPED, EdgeFaultCode.WORKER_CRASHED, "gone", ended=True))
    end.take(report(State.WAITING_FOR_LEASE), LIFE + 1)
    assert (end.report.state, end.report.fault, end.report.ended) == (State.WAITING_FOR_LEASE, None, False)


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        ([(EdgeFaultCode.LINK_LOST, "a"), (None, "")], (EdgeFaultCode.LINK_LOST, "a")),
        ([(None, ""), (EdgeFaultCode.LINK_LOST, "a")], (EdgeFaultCode.LINK_LOST, "a")),
        ([(EdgeFaultCode.LINK_LOST, "a"), (EdgeFaultCode.WORKER_CRASHED, "b")], (EdgeFaultCode.LINK_LOST, "a")),
        ([(EdgeFaultCode.WORKER_CRASHED, ""), (EdgeFaultCode.LINK_LOST, "a")], (EdgeFaultCode.LINK_LOST, "a")),
        ([(EdgeFaultCode.LINK_LOST, "a"), (EdgeFaultCode.WORKER_CRASHED, "")], (EdgeFaultCode.LINK_LOST, "a")),
    ],
)
def test_the_first_fault_that_says_why_stays(told, shown):
    end = view(*(report(State.STOPPING, fault, text) for fault, text in told))
    assert (end.report.fault, end.report.fault_text) == shown


def test_an_ended_stream_stays_ended():
    assert view(report(State.READY, ended=True), report(State.READY)).report.ended


@pytest.mark.parametrize(
    ("serial", "asked", "listed", "suspect"),
    [
        (3, None, Listed.PRESENT, True),  # a beat alone may be older than what is known
        (3, 2, Listed.PRESENT, False),  # asked before the newest order
        (3, 3, Listed.ABSENT, False),
        (3, 4, Listed.ABSENT, False),
    ],
)
def test_an_end_counts_as_gone_only_by_a_listing_that_was_asked_for_since(serial, asked, listed, suspect):
    end = view(report(State.READY))
    end.serial = serial
    end.missing(LIFE, asked)
    assert (end.listed, end.suspect) == (listed, suspect)


def test_a_report_clears_the_suspicion():
    end = view(report(State.READY))
    end.missing(LIFE, None)
    end.take(report(State.READY), LIFE)
    assert (end.listed, end.suspect) == (Listed.PRESENT, False)


def test_an_end_that_was_never_told_of_is_not_suspected():
    end = EndView()
    end.missing(LIFE, None)
    assert (end.listed, end.suspect) == (Listed.UNKNOWN, False)


def test_of_a_life_of_a_process_that_is_past_nothing_is_taken_any_more():
    process = ProcessView("shed.edges", heard_at=0.0)
    assert [process.lives_as(life) for life in (5, 5, 9, 5, 9, 2, 9, 5, 2)] == [
        True, True, True, False, True, True, False, False, True,
    ]  # fmt: skip
    for life in range(100, 100 + 3 * PAST_LIVES):
        assert process.lives_as(life)
    assert len(process.past) == PAST_LIVES


@pytest.mark.parametrize(
    ("told", "news"),
    [
        (report(State.READY), False),
        (report(State.WAITING_FOR_DRIVER), False),
        (report(State.READY, ended=True), True),
        (report(State.READY, EdgeFaultCode.LINK_LOST), True),
        (report(State.STOPPING), True),
    ],
)
def test_what_is_news_of_an_end(told, news):
    end = view(report(State.READY))
    assert end.take(told, LIFE) == news
    assert not end.take(told, LIFE), "not twice"
    assert end.take(told, LIFE + 1), "another life of its process"


def test_a_missing_end_is_news_once():
    end = view(report(State.READY))
    assert [end.missing(LIFE, None) for _ in range(2)] == [True, False]
    assert [end.missing(LIFE, 1) for _ in range(2)] == [True, False]
