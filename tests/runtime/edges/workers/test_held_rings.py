"""The table of what a workload holds, against every order of what it may say."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from messages.base import Address
from messages.edge_end import EdgeFaultCode
from messages.edge_ports import WorkerClosed, WorkerFaulted, WorkerGone, WorkerInstalled, WorkerQuiesced
from runtime.edges.workers.held_rings import HeldRings, Holding
from runtime.edges.workers.packets import Closed, Fault, Installed, Quiesced, Refused

OWNER, OTHER = Address("shed.edges/edges"), Address("shed.edges/other")


def table(holding: Holding | None) -> HeldRings:
    rings = HeldRings("cam")
    if holding is not None:
        rings.add(1, OWNER)
        rings.get(1).holding = holding
    return rings


RULES = {
    # what it says, while the ring is -> the report, whether it is held after, whether it was surplus
    (Installed, Holding.INSTALLING): (WorkerInstalled, True, False),
    (Installed, Holding.INSTALLED): (None, True, True),
    (Installed, Holding.UNINSTALLING): (None, True, False),
    (Refused, Holding.INSTALLING): (WorkerFaulted, False, False),
    (Refused, Holding.INSTALLED): (None, True, True),
    (Refused, Holding.UNINSTALLING): (None, True, False),
    (Quiesced, Holding.INSTALLING): (None, True, True),
    (Quiesced, Holding.INSTALLED): (WorkerFaulted, False, False),
    (Quiesced, Holding.UNINSTALLING): (WorkerQuiesced, False, False),
    (Fault, Holding.INSTALLING): (WorkerFaulted, True, False),
    (Fault, Holding.INSTALLED): (WorkerFaulted, True, False),
    (Fault, Holding.UNINSTALLING): (WorkerFaulted, True, False),
    (Closed, Holding.INSTALLING): (WorkerClosed, True, False),
    (Closed, Holding.INSTALLED): (WorkerClosed, True, False),
    (Closed, Holding.UNINSTALLING): (WorkerClosed, True, False),
}
SAID = (Installed, Refused, Quiesced, Fault, Closed)


def test_what_each_word_means_in_each_state():
    assert RULES.keys() == {(said, holding) for said in SAID for holding in Holding}
    for (said, holding), (report, held, surplus) in RULES.items():
        rings = table(holding)
        told = rings.take(said(ring=1))
        assert (told and type(told[1])) == report, (said, holding)
        assert told is None or told[0] == OWNER
        assert (rings.get(1) is not None, rings.surplus == 1) == (held, surplus), (said, holding)
        assert not isinstance(told and told[1], WorkerFaulted) or told[1].holds is held


def test_a_word_about_a_ring_that_is_not_held_changes_nothing():
    for said in SAID:
        rings = table(Holding.INSTALLED)
        assert rings.take(said(ring=2)) is None
        assert (len(rings), rings.surplus) == (1, 1)


def test_everything_is_said_once_and_more_is_a_flood():
    for said in SAID:
        for holding in Holding:
            rings = table(holding)
            for _ in range(3):
                rings.take(said(ring=1))
            assert rings.surplus >= 2, (said, holding)


words = st.tuples(st.just("say"), st.sampled_from(SAID), st.integers(1, 3))
orders = st.tuples(st.sampled_from(["add", "uninstall", "lose"]), st.none(), st.integers(1, 3))


@given(st.lists(words | orders, max_size=40))
@settings(max_examples=150)
def test_a_ring_is_free_only_by_a_refusal_its_letting_go_or_the_end(steps):
    rings = HeldRings("cam")
    held, asked, done = set(), set(), set()
    for what, said, ring in steps:
        before = {number for number in (1, 2, 3) if rings.get(number) is not None}
        assert before == held
        if what == "add":
            if ring not in held:
                rings.add(ring, OWNER)
                held.add(ring)
                asked.discard(ring)
                done.discard(ring)
        elif what == "uninstall":
            if ring in held:
                rings.get(ring).holding = Holding.UNINSTALLING
                asked.add(ring)
        elif what == "lose":
            reports = rings.fault_all(EdgeFaultCode.WORKER_CRASHED, "lost")
            assert all(report.holds for _, report in reports)
            done |= held
        else:
            holding = None if rings.get(ring) is None else rings.get(ring).holding
            first = holding is Holding.INSTALLING
            report = rings.take(said(ring=ring))
            if said in (Fault, Closed):
                done.add(ring)
            if said is Quiesced and holding is Holding.INSTALLED:
                assert (report is None) == (ring in done), "what it did not say before is a fault"
                held.discard(ring)
            elif said is Quiesced and ring in held and ring in asked:
                assert report == (OWNER, WorkerQuiesced(instance_id="cam", ring_id=ring))
                held.discard(ring)
            elif said is Refused and first:
                assert not report[1].holds
                held.discard(ring)
    gone = rings.gone()
    assert gone == ([(OWNER, WorkerGone(instance_id="cam", ring_ids=sorted(held)))] if held else [])
    assert len(rings) == 0


@pytest.mark.parametrize("before", [Closed, Fault])
def test_to_let_go_of_a_ring_that_has_no_more_use_is_no_fault(before):
    rings = table(Holding.INSTALLED)
    rings.take(before(ring=1))
    assert rings.take(Quiesced(ring=1)) is None
    assert (len(rings), rings.surplus) == (0, 0)
    assert rings.fault_all(EdgeFaultCode.WORKER_CRASHED, "lost") == []


def test_everybody_concerned_is_told_that_a_run_is_gone():
    rings = HeldRings("cam")
    for number, owner in ((5, OWNER), (2, OWNER), (3, OTHER)):
        rings.add(number, owner)
    assert dict(rings.gone()) == {
        OTHER: WorkerGone(instance_id="cam", ring_ids=[3]),
        OWNER: WorkerGone(instance_id="cam", ring_ids=[2, 5]),
    }
