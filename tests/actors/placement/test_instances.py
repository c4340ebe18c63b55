"""Instance verbs and listings from the controller (P 6.8, P 10.8, design 8)."""

from __future__ import annotations

import json

import msgspec
import pytest

from actors.actor import Actor
from messages.control import CtlConfig, HeldRow, Interval, Method, Refusal, RefusalCode
from messages.gate import Decision, GateMessage, GateVerdictOf, Verdict
from messages.placement import GetPlacements, ListInstances


@pytest.fixture
def placed(two):
    return two.place(pin="attic").placed


def test_a_verb_is_gated_recorded_and_sent_under_its_record(two, placed):
    result = two.verb("stop", placed.instance_id, grace_ms=500)
    assert (result.instance_id, result.node_id) == (placed.instance_id, placed.node_id)
    request = two.nodes["attic"].requests[-1]
    record = two.chain_disk.records[-1]
    assert (record.kind, request.decision_id) == ("workload.stop", record.hash)
    assert two.told("workload.stop") == [
        {"kind": "workload.stop", "phase": "request", "instance_id": placed.instance_id, "node": placed.node_id}
    ]
    assert request.body["grace_ms"] == 500
    assert [told["action"] for told in two.told("workload.stop", source="workload")] == ["workload.stop"]


@pytest.mark.parametrize("verb", ["status", "workload.status", "logs"])
def test_questions_are_neither_gated_nor_chained(two, placed, verb):
    before = len(two.chain_disk.records)
    two.verb(verb, placed.instance_id)
    assert len(two.chain_disk.records) == before
    assert two.nodes["attic"].requests[-1].decision_id is None


def test_what_is_placed_is_told_from_memory_asking_no_node(two, placed):
    two.nodes["attic"].requests.clear()
    placements = two.world.ask("controller/plane", GetPlacements())
    assert placements.loaded
    assert [(row.record, row.node) for row in placements.rows] == [(placed, "attic")]
    assert two.nodes["attic"].requests == []
    two.verb("unload", placed.instance_id)
    assert two.world.ask("controller/plane", GetPlacements()).rows == []


def test_a_placement_whose_unload_was_sent_is_told_as_such_until_its_end_is_known(two, placed):
    two.on_next(Method.UNLOAD, "attic", lambda: two.world.cut("controller", "attic"))
    two.verb_code("unload", placed.instance_id)
    assert [row.unloading for row in two.world.ask("controller/plane", GetPlacements()).rows] == [True]
    two.world.heal("controller", "attic")
    two.world.advance(10)
    assert two.world.ask("controller/plane", GetPlacements()).rows == []


def stopped(two):
    return [row.stopped for row in two.world.ask("controller/plane", GetPlacements()).rows]


def test_an_instance_is_told_as_stopped_from_the_order_to_stop_to_the_next_to_start(two, placed):
    seen = []
    two.on_next(Method.STOP, "attic", lambda: seen.append(stopped(two)))
    two.verb("stop", placed.instance_id)
    assert [*seen, stopped(two)] == [[True], [True]]
    two.verb("start", placed.instance_id)
    assert stopped(two) == [False]


def test_an_instance_that_was_not_stopped_is_not_told_as_such(two, placed):
    two.world.cut("controller", "attic")
    two.verb_code("stop", placed.instance_id)
    assert stopped(two) == [False]
    two.world.heal("controller", "attic")
    two.verb("stop", placed.instance_id)
    two.restart_plane()
    assert stopped(two) == [False], "nobody knows any more"


def test_placements_of_a_state_that_is_not_trusted_are_told_as_such(two, placed):
    two.disk.damaged.add("plane")
    two.restart_plane()
    assert not two.world.ask("controller/plane", GetPlacements()).loaded


@pytest.mark.parametrize("name", ["hostwatch@attic", "hostwatch@ID"])
def test_an_instance_may_be_named_by_workload_and_node(two, placed, name):
    named = name.replace("ID", placed.node_id)
    assert two.verb("status", named).instance_id == placed.instance_id


def test_a_name_that_means_two_instances_is_refused_listing_them(two, placed):
    other = two.place(pin="attic", config=CtlConfig(mode=Interval(secs=7))).placed
    code, reason = two.verb_code("stop", "hostwatch@attic")
    assert code == "unknown"
    assert placed.instance_id in reason
    assert other.instance_id in reason


@pytest.mark.parametrize("name", ["nothing", "hostwatch@shed", "hostwatch@cellar", "other@attic", ""])
def test_what_is_not_placed_is_unknown(two, placed, name):
    assert two.verb_code("stop", name)[0] == "unknown"


@pytest.mark.parametrize("verb", ["place", "workload.fence", "dance"])
def test_what_is_no_verb_is_invalid(two, placed, verb):
    code, reason = two.verb_code(verb, placed.instance_id)
    assert (code, "start, stop, unload, status, logs" in reason) == ("invalid", True)


def test_an_unload_frees_the_slot_durably(two, placed):
    two.verb("unload", placed.instance_id)
    two.restart_plane()
    assert two.instances().instances == []
    two.world.advance(2)
    again = two.place(pin="attic").placed
    assert again.epoch > placed.epoch
    assert two.told("workload.lifecycle")[0]["to"] == "unloaded"


# the gate


def test_taking_down_is_asked_for_as_a_teardown_and_growing_is_not(two, placed):
    """What the tier of a demoted node forbids is the gate's to waive, and only for stop and unload."""
    replace_gate(two, lambda check: Decision.PERMIT if check.teardown else Decision.DENY)
    assert two.verb_code("start", placed.instance_id)[0] == "governance"
    assert two.verb("stop", placed.instance_id).result == {"stopped": placed.instance_id}
    two.verb("unload", placed.instance_id)
    assert two.nodes["attic"].rows == {}


def test_the_gate_is_told_the_tier_of_now_and_what_may_be_revoked(two, placed):
    two.nodes["attic"].tier = "discovered"
    two.restart_plane()
    asked = replace_gate(two, lambda check: Decision.PERMIT)
    two.verb("start", placed.instance_id)
    told = json.loads(asked[0].context)
    assert told["node_id"] == placed.node_id
    assert told["workload"]["node_tier"] == "discovered"
    assert told["workload"]["package_id"] == placed.package_id
    assert told["workload"]["signer_keys"] == placed.signer_keys
    assert asked[0].agent_id == two.world.actor("controller/plane")._core.node_id


def replace_gate(cluster, decide):
    """A gate that answers by `decide(check)`; returns the list of checks it gets."""
    asked = []

    class FixedGate(Actor):
        mailbox = GateMessage

        def receive(self, message, ctx):
            asked.append(message)
            ctx.reply(Verdict(verdict=GateVerdictOf(decision=decide(message), reason="not now")))

    cluster.world.crash("gate/gate")
    cluster.world.spawn("gate/gate", FixedGate)
    return asked


@pytest.mark.parametrize("decision", [Decision.DENY, Decision.DEFER])
@pytest.mark.parametrize("verb", ["start", "stop", "unload"])
def test_a_denial_and_a_deferral_send_nothing(two, placed, verb, decision):
    replace_gate(two, lambda check: decision)
    code, reason = two.verb_code(verb, placed.instance_id)
    assert (code, "not now" in reason) == ("governance", True)
    assert two.nodes["attic"].methods() == ["workload.place"]


@pytest.mark.parametrize("verb", ["start", "stop", "unload"])
def test_without_a_record_nothing_is_sent(two, kit, placed, verb):
    kit.at_record(two, "request", lambda: setattr(two.chain_disk, "full", True))
    assert two.verb_code(verb, placed.instance_id)[0] == "no_record"
    assert two.nodes["attic"].methods() == ["workload.place"]


# answers that do not come


def test_a_refused_verb_says_code_and_reason(two, placed):
    two.nodes["attic"].refusals["workload.stop"] = Refusal(code=RefusalCode.RUNTIME, reason="not started")
    code, reason = two.verb_code("stop", placed.instance_id)
    assert (code, "runtime refused: not started" in reason) == ("call_refused", True)


def test_an_unreachable_node_is_told_apart(two, placed):
    two.world.cut("controller", "attic")
    code, reason = two.verb_code("stop", placed.instance_id)
    assert (code, "nothing was done" in reason) == ("call_unreachable", True)


@pytest.mark.parametrize(
    ("verb", "method"), [("stop", Method.STOP), ("start", Method.START), ("unload", Method.UNLOAD)]
)
def test_a_lost_answer_is_reconciled_before_anything_is_said(two, placed, verb, method):
    if verb == "start":
        two.verb("stop", placed.instance_id)
    two.lose_answer("attic", Method(f"workload.{verb}"))
    result = two.verb(verb, placed.instance_id)
    assert "reconciled" in result.result
    assert [line.instance_id for line in two.instances().instances] == two.held()


@pytest.mark.parametrize("verb", ["stop", "start", "unload"])
def test_a_lost_request_stays_indeterminate(two, placed, verb):
    if verb == "start":
        two.verb("stop", placed.instance_id)
    method = f"workload.{verb}"
    two.world.lose(lambda e: e.to == "attic/agent" and getattr(e.message, "method", "") == method)
    code, reason = two.verb_code(verb, placed.instance_id)
    assert code == "call_indeterminate"
    assert "the node reports" in reason
    assert len(two.instances().instances) == 1


def test_a_verb_whose_node_vanishes_stays_indeterminate_and_the_listing_settles_it(two, placed):
    two.on_next(Method.UNLOAD, "attic", lambda: two.world.cut("controller", "attic"))
    assert two.verb_code("unload", placed.instance_id)[0] == "call_indeterminate"
    line = two.instances().instances[0]
    assert (line.reachable, line.state) == (False, "placed")
    assert two.place_code(pin="attic")[0] == "slot_held"
    two.world.heal("controller", "attic")
    two.world.run_idle()
    assert two.instances().instances == [], "its node reports it unloaded"
    assert two.told("workload.lifecycle")[0]["reason"] == "its node reports it unloaded"


def test_what_its_node_took_down_long_ago_does_not_hold_its_slot(two, placed):
    two.on_next(Method.UNLOAD, "attic", lambda: two.world.cut("controller", "attic"))
    assert two.verb_code("unload", placed.instance_id)[0] == "call_indeterminate"
    two.world.heal("controller", "attic")
    two.world.advance(2)
    assert two.place(pin="attic").placed.epoch > placed.epoch


def test_an_instance_that_its_node_does_not_know_is_cleared_by_a_fence(two, placed):
    two.nodes["attic"].rows.clear()
    assert two.instances().instances[0].state == "lost"
    result = two.verb("unload", placed.instance_id)
    assert "did not know it" in result.result["reconciled"]
    assert placed.slot in two.nodes["attic"].floors
    assert two.instances().instances == []
    assert two.place(pin="attic").placed.epoch >= two.nodes["attic"].floors[placed.slot]


@pytest.mark.parametrize("verb", ["stop", "unload"])
def test_an_order_that_comes_late_cannot_take_down_a_newer_life(two, placed, verb):
    late = []

    def delay(envelope):
        if not late and envelope.to == "attic/agent" and getattr(envelope.message, "method", "") == f"workload.{verb}":
            late.append(envelope)
            return True
        return False

    two.world.lose(delay, 1)
    assert two.verb_code(verb, placed.instance_id)[0] == "call_indeterminate"
    two.verb("unload", placed.instance_id)
    again = two.place(pin="attic").placed
    assert again.instance_id == placed.instance_id
    two.world.post(late[0])
    two.world.run_idle()
    assert two.nodes["attic"].rows[again.instance_id].lifecycle == "running"


# listing


def test_the_listing_tells_what_the_nodes_report(two, placed):
    row = two.nodes["attic"].rows[placed.instance_id]
    two.nodes["attic"].rows[placed.instance_id] = msgspec.structs.replace(row, restarts=3)
    line = two.instances().instances[0]
    assert (line.workload, line.node, line.state, line.pid, line.restarts, line.reachable) == (
        "hostwatch", "attic", "running", 100, 3, True,
    )  # fmt: skip
    two.verb("stop", placed.instance_id)
    assert two.instances().instances[0].state == "stopped"


def test_a_node_that_does_not_answer_delays_no_other(kit):
    cluster = kit.cluster(kit.node("attic"), kit.node("shed"), kit.node("loft"), read_timeout_s=2.0)
    for name in cluster.nodes:
        cluster.place(pin=name)
    for name in ("attic", "shed"):
        cluster.world.lose(lambda e, to=f"{name}/agent": e.to == to, 1)
    began = cluster.world.now_s
    lines = {line.node: line for line in cluster.instances().instances}
    assert cluster.world.now_s - began < 3.0, "both are waited for at once"
    assert {name: line.reachable for name, line in lines.items()} == {"attic": False, "shed": False, "loft": True}


def test_an_instance_placed_again_while_a_listing_is_under_way_is_not_taken_for_departed(two, placed):
    """The node's answer is older than the placement: what it calls departed was an earlier life of the instance."""
    two.on_next(Method.UNLOAD, "attic", lambda: two.world.cut("controller", "attic"))
    assert two.verb_code("unload", placed.instance_id)[0] == "call_indeterminate"
    two.world.heal("controller", "attic")
    two.world.advance(1.5)
    late = []

    def delay(envelope):
        if not late and envelope.sender == "attic/agent" and envelope.to == "controller/plane":
            late.append(envelope)
            return True
        return False

    listing = two.world.start_ask("controller/plane", ListInstances(), timeout_s=60)
    two.world.lose(delay, 1)
    two.world.run_until(lambda: bool(late))
    again = two.place(pin="attic").placed
    assert again.instance_id == placed.instance_id
    two.world.post(late[0])
    two.world.run_until(lambda: listing.done)
    assert [line.instance_id for line in two.instances().instances] == [again.instance_id]


def test_a_departed_row_beside_a_held_one_forgets_nothing(two, placed):
    two.nodes["attic"].departed[placed.instance_id] = "unloaded"
    assert [line.instance_id for line in two.instances().instances] == [placed.instance_id]
    assert isinstance(two.nodes["attic"].rows[placed.instance_id], HeldRow)
