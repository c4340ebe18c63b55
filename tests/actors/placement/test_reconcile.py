"""Lost answers: fence, reconcile, settle later; never two (P 10.6, design 8)."""

from __future__ import annotations

import json

import msgspec
import pytest

from actors.placement.signed import sign_response
from messages.control import Accepted, Epoch, FenceResult, Method, Refusal, RefusalCode


def by_rank(cluster):
    return sorted(cluster.nodes.values(), key=lambda node: node.id)


def test_a_start_failure_that_the_node_rolled_back_is_a_refusal_and_the_next_places(two):
    first, second = by_rank(two)
    first.refusals["workload.place"] = Refusal(code=RefusalCode.GOVERNANCE, reason="start failed: denied; unloaded")
    report = two.place()
    assert (report.attempts[0].outcome, report.attempts[0].code) == ("refused", "governance")
    assert report.placed.node_id == second.id
    assert first.methods() == [], "a signed refusal needs no fence"


def test_a_lost_answer_is_fenced_and_undone_before_the_next_is_asked(two):
    first, second = by_rank(two)
    two.lose_answer(first.name)
    report = two.place()
    assert [attempt.outcome for attempt in report.attempts] == ["indeterminate", "placed"]
    assert "reconciled: unloaded 1 instance, fenced below 1.2" in report.attempts[0].reason
    assert first.methods() == ["workload.place", "workload.fence", "workload.unload"]
    assert first.floors == {report.placed.slot: Epoch(term=1, number=2)}
    assert (len(first.rows), len(second.rows)) == (0, 1)
    assert report.placed.epoch == Epoch(term=1, number=2)
    refusal = two.told("workload.refuse")[0]
    assert (refusal["outcome"], refusal["next"]) == ("indeterminate", "trying the next candidate")
    assert two.phases() == ["decision", "dispatching", "fenced", "dispatch", "dispatching", "placed"]
    decisions = {request.decision_id for request in first.requests if request.decision_id}
    assert decisions == {report.decision_id}


def test_a_request_that_never_arrived_leaves_nothing_but_the_fence(two):
    first, _ = by_rank(two)
    two.world.lose(lambda e: e.to == f"{first.name}/agent" and getattr(e.message, "method", "") == "workload.place")
    report = two.place()
    assert "reconciled: unloaded 0 instances" in report.attempts[0].reason
    assert len(two.held()) == 1


def test_an_order_that_comes_late_is_below_the_floor(two):
    """The request is delayed until after its fence: the node refuses it for ever."""
    first, _ = by_rank(two)
    late = []

    def matches(envelope):
        if envelope.to == f"{first.name}/agent" and getattr(envelope.message, "method", "") == "workload.place":
            late.append(envelope)
            return True
        return False

    two.world.lose(matches, 1)
    report = two.place()
    two.world.post(late[0])
    two.world.run_idle()
    assert report.placed is not None
    assert first.rows == {}
    two.never_two()


def test_a_lost_answer_of_a_node_that_is_gone_stops_and_is_settled_when_it_comes_back(two):
    first, second = by_rank(two)
    two.on_next(Method.PLACE, first.name, lambda: two.world.cut("controller", first.name))
    report = two.place()
    assert [attempt.outcome for attempt in report.attempts] == ["indeterminate"]
    assert "not reconciled" in report.attempts[0].reason
    assert (report.placed, len(first.rows), second.methods()) == (None, 1, [])
    assert two.told("workload.refuse")[0]["next"] == "stopped: the target may hold the instance"
    listing = two.instances()
    assert listing.instances == []
    assert [line.decision_id for line in listing.unsettled] == [report.decision_id]
    two.world.advance(30)
    assert len(two.instances().unsettled) == 1, "no clock settles anything"

    two.world.heal("controller", first.name)
    instance = next(iter(first.rows))
    assert two.verb("status", instance).result["lifecycle"] == "running"
    listing = two.instances()
    assert listing.unsettled == []
    line = listing.instances[0]
    assert (line.instance_id, line.node_id, line.decision_id) == (instance, first.id, report.decision_id)
    adopted = [record for record in two.told() if record["phase"] == "adopted"]
    assert [record["instance_id"] for record in adopted] == [instance]
    two.verb("unload", instance)
    assert two.held() == []


def test_an_unsettled_slot_is_not_placed_again(two):
    first, second = by_rank(two)
    two.on_next(Method.PLACE, first.name, lambda: two.world.cut("controller", first.name))
    decision = two.place().decision_id
    code, reason = two.place_code()
    assert code == "unsettled"
    assert decision in reason
    assert first.name in reason
    assert second.methods() == []


def test_an_unsettled_slot_is_settled_before_it_is_placed(two):
    first, _ = by_rank(two)
    two.on_next(Method.PLACE, first.name, lambda: two.world.cut("controller", first.name))
    two.place()
    two.world.heal("controller", first.name)
    code, reason = two.place_code()  # before any tick: it finds its own instance there
    assert (code, next(iter(first.rows)) in reason) == ("slot_held", True)
    assert len(two.held()) == 1


def test_what_never_arrived_is_forgotten_once_the_node_is_fenced(two):
    first, _ = by_rank(two)

    def cut_and_lose(envelope):
        if envelope.to == f"{first.name}/agent" and getattr(envelope.message, "method", "") == "workload.place":
            two.world.cut("controller", first.name)
            return True
        return False

    two.world.lose(cut_and_lose, 1)
    assert two.place().placed is None
    two.world.heal("controller", first.name)
    two.world.advance(6)
    assert two.instances().unsettled == []
    assert "settled" in two.phases()
    assert list(first.floors.values()) == [Epoch(term=1, number=2)]
    assert two.place().placed is not None
    two.never_two()


def test_an_order_still_in_flight_keeps_the_decision_unsettled(two):
    first, second = by_rank(two)

    def begin(envelope):
        if envelope.to == f"{first.name}/agent" and getattr(envelope.message, "method", "") == "workload.place":
            decision = two.told("workload.place")[0]
            first.in_flight[two.told()[-1]["decision_id"]] = decision["slot"]
            return True
        return False

    two.world.lose(begin, 1)
    report = two.place()
    assert report.placed is None
    assert "still carrying the order out" in report.attempts[0].reason
    assert second.methods() == []
    two.world.advance(10)
    assert len(two.instances().unsettled) == 1
    first.in_flight.clear()
    two.world.advance(10)
    assert two.instances().unsettled == []


@pytest.mark.parametrize(
    "refused", [Method.FENCE, Method.UNLOAD], ids=["the fence is refused", "the unload is refused"]
)
def test_what_cannot_be_undone_stops_the_loop(two, refused):
    first, second = by_rank(two)
    first.refusals[refused.value] = Refusal(code=RefusalCode.RUNTIME, reason="broken")
    two.lose_answer(first.name)
    report = two.place()
    assert (report.placed, second.methods()) == (None, [])
    assert "not reconciled" in report.attempts[0].reason
    assert "broken" in report.attempts[0].reason
    assert len(two.instances().instances) == 1, "adopted as soon as it can be listed"


def test_a_floor_below_the_fence_is_no_fence(two):
    first, second = by_rank(two)
    first.results["workload.fence"] = FenceResult(floor=Epoch(term=0, number=1), rows=[])
    two.lose_answer(first.name)
    report = two.place()
    assert (report.placed, second.methods()) == (None, [])
    assert "keeps the floor 0.1" in report.attempts[0].reason


def another_key(node, request, result, stranger):
    return sign_response(stranger, request, Accepted(result=result))


def another_request(node, request, result, stranger):
    return sign_response(node.signer, msgspec.structs.replace(request, nonce="0" * 32), Accepted(result=result))


def a_result_of_nonsense(node, request, result, stranger):
    return sign_response(node.signer, request, Accepted(result={"instance_id": 7}))


def another_instance(node, request, result, stranger):
    other = msgspec.structs.replace(result, instance_id="another-0123456789abcdef-n-0123456789abcdef")
    return sign_response(node.signer, request, Accepted(result=other))


def another_epoch(node, request, result, stranger):
    return sign_response(
        node.signer, request, Accepted(result=msgspec.structs.replace(result, epoch=Epoch(term=9, number=9)))
    )


def a_changed_signature(node, request, result, stranger):
    return msgspec.structs.replace(sign_response(node.signer, request, Accepted(result=result)), signature=bytes(64))


@pytest.mark.parametrize(
    "forge", [another_key, another_request, a_result_of_nonsense, another_instance, another_epoch, a_changed_signature]
)
def test_an_answer_that_proves_nothing_counts_as_lost(two, kit, forge):
    first, second = by_rank(two)
    first.answers["workload.place"] = lambda request, result: forge(first, request, result, second.signer)
    report = two.place()
    assert [attempt.outcome for attempt in report.attempts] == ["indeterminate", "placed"]
    assert "reconciled: unloaded 1 instance" in report.attempts[0].reason
    assert (len(first.rows), len(second.rows)) == (0, 1)


def test_a_refusal_that_is_not_signed_proves_nothing(two):
    first, _ = by_rank(two)
    first.unsigned_refusals["workload.place"] = ("io_error", "the launcher's disk")
    report = two.place()
    assert [attempt.outcome for attempt in report.attempts] == ["indeterminate", "placed"]
    assert first.methods() == ["workload.fence"]


def test_a_settled_decision_that_the_node_reports_under_another_name_is_not_adopted(two):
    first, _ = by_rank(two)
    two.on_next(Method.PLACE, first.name, lambda: two.world.cut("controller", first.name))
    two.place()
    row = next(iter(first.rows.values()))
    first.rows = {"other": msgspec.structs.replace(row, instance_id="other")}
    two.world.heal("controller", first.name)
    two.world.advance(5)
    listing = two.instances()
    assert (listing.instances, len(listing.unsettled)) == ([], 1)


def test_unsettled_decisions_survive_a_restart(two):
    first, _ = by_rank(two)
    two.on_next(Method.PLACE, first.name, lambda: two.world.cut("controller", first.name))
    decision = two.place().decision_id
    two.restart_plane()
    two.world.advance(5)
    assert [line.decision_id for line in two.instances().unsettled] == [decision]
    assert two.place_code()[0] == "unsettled"
    two.world.heal("controller", first.name)
    two.world.advance(5)
    listing = two.instances()
    assert ([line.decision_id for line in listing.instances], listing.unsettled) == ([decision], [])
    assert json.loads(two.disk.documents["plane"])["dispatches"] == []
