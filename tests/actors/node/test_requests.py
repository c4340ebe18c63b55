"""Who may ask a node what, and how it answers (P 10.1, 10.4, 10.5)."""

import msgspec
import pytest

from actors.placement.signed import sign_request
from actors.placement.view import open_facts
from messages.capabilities import CapabilityState, Provenance
from messages.control import (
    MAX_LIFETIME_MS,
    MAX_SKEW_MS,
    Accepted,
    ControlCall,
    ControlResponse,
    Method,
    Refusal,
    RefusalCode,
    SignedObject,
)
from messages.ports import ProbedCapability
from messages.workload_spec import TrustTier


def test_the_controller_is_answered_once_and_a_replay_is_refused(rig):
    request = rig.request(Method.STATUS)
    first = rig.send(request)
    rig.world.run_idle()
    assert rig.outcome(request, first) == {"rows": []}
    again = rig.send(request)
    rig.world.run_idle()
    assert rig.outcome(request, again).code is RefusalCode.REPLAY


VERIFICATION = [
    ({"version": 2}, RefusalCode.INVALID_REQUEST),
    ({"requester": "n-0000000000000000"}, RefusalCode.SIGNATURE),
    ({"target": "n-0000000000000000"}, RefusalCode.NOT_FOR_ME),
    ({"target": "*"}, RefusalCode.NOT_FOR_ME),
    ({"expires_at_ms": 1_700_000_000_000}, RefusalCode.EXPIRED),
    ({"issued_at_ms": 1_700_000_000_001 + MAX_SKEW_MS}, RefusalCode.EXPIRED),
    ({"expires_at_ms": 1_700_000_000_001 + MAX_LIFETIME_MS}, RefusalCode.EXPIRED),
    ({"nonce": "A" * 32}, RefusalCode.INVALID_REQUEST),
    ({"term": 0}, None),
    ({"method": "workload.frobnicate"}, RefusalCode.UNKNOWN_METHOD),
    ({"method": "dashboard.status"}, RefusalCode.INVALID_REQUEST),
]


@pytest.mark.parametrize(("changes", "code"), VERIFICATION, ids=[str(next(iter(v[0].items()))) for v in VERIFICATION])
def test_a_request_is_checked_before_it_is_handled(rig, changes, code):
    request = rig.request(Method.STATUS, **changes)
    pending = rig.send(request)
    rig.world.run_idle()
    response = pending.result().response
    outcome = msgspec.msgpack.decode(response.payload, type=ControlResponse).outcome
    assert isinstance(outcome, Accepted) if code is None else outcome.refusal.code is code


def test_describe_may_be_addressed_to_whoever_is_there(rig):
    told = rig.call(Method.DESCRIBE, target="*")
    assert told["advertisement"]["node_id"] == rig.node.node_id
    assert told["advertisement"]["routes"] == ["native"]


def test_a_changed_payload_does_not_verify(rig):
    request = rig.request(Method.STOP, decision_id=rig.decision())
    signed = sign_request(rig.controller, request)
    forged = msgspec.structs.replace(signed, payload=signed.payload.replace(b"workload.stop", b"workload.load"))
    answer = rig.world.ask(rig.agent, ControlCall(method="workload.load", request=forged), timeout_s=5)
    outcome = msgspec.msgpack.decode(answer.response.payload, type=ControlResponse).outcome
    assert outcome.refusal.code is RefusalCode.SIGNATURE


def test_the_method_outside_the_signature_must_be_the_signed_one(rig):
    request = rig.request(Method.STATUS)
    pending = rig.send(request, method="workload.describe")
    rig.world.run_idle()
    assert rig.outcome(request, pending).code is RefusalCode.INVALID_REQUEST


def test_a_stranger_is_answered_and_does_not_burn_the_controllers_nonce(rig):
    request = rig.request(Method.STATUS, signer=rig.stranger)
    pending = rig.send(request, signer=rig.stranger)
    rig.world.run_idle()
    assert rig.outcome(request, pending).code is RefusalCode.UNAUTHORIZED
    own = rig.request(Method.STATUS, nonce=request.nonce)
    pending = rig.send(own)
    rig.world.run_idle()
    assert rig.outcome(own, pending) == {"rows": []}


def test_strangers_cannot_make_the_chain_grow(rig):
    for _ in range(48):
        assert rig.call(Method.STATUS, signer=rig.stranger).code is RefusalCode.UNAUTHORIZED
    assert len(rig.book.of("workload.refuse")) == 16
    assert rig.call(Method.STATUS) == {"rows": []}
    refusal = rig.call(Method.STOP, {"instance_id": "x"}, decision_id="no hash")
    assert refusal.code is RefusalCode.INVALID_REQUEST
    recorded = rig.book.of("workload.refuse")
    assert (len(recorded), recorded[-1][1]["phase"], recorded[-1][1]["suppressed"]) == (17, "handle", 0)
    rig.world.advance(61)
    rig.call(Method.STATUS, signer=rig.stranger)
    assert rig.book.of("workload.refuse")[-1][1]["suppressed"] == 32


@pytest.mark.parametrize("method", [method for method in Method if method.mutates])
@pytest.mark.parametrize("decision_id", [None, "", "a" * 63, "A" * 64])
def test_what_changes_something_names_a_decision(rig, method, decision_id):
    assert rig.call(method, {}, decision_id=decision_id).code is RefusalCode.INVALID_REQUEST


def test_an_unknown_method_is_on_the_gates_trail(rig):
    refusal = rig.call(Method.STATUS, method="workload.frobnicate")
    assert refusal.code is RefusalCode.UNKNOWN_METHOD
    judged = rig.book.of("workload.refuse", "workload")[-1][1]
    assert judged["action"] == "workload.frobnicate"


def test_an_older_term_is_refused_for_ever_and_also_after_a_restart(rig, package):
    rig.term = 5
    name = rig.place(package)["instance_id"]
    for restart in (False, True):
        if restart:
            rig.restart_agent()
        for method in (Method.STATUS, Method.STOP, Method.FENCE, Method.DESCRIBE):
            refusal = rig.call(method, {"instance_id": name}, term=4)
            assert refusal.code is RefusalCode.STALE_TERM
        assert rig.call(Method.DESCRIBE, target="*")["term_seen"] == 5
    assert name in rig.host.running()


def test_a_term_that_cannot_be_written_is_not_acted_in(rig, package):
    name = rig.place(package)["instance_id"]
    rig.disk.full = True
    assert rig.call(Method.STOP, {"instance_id": name}, term=2).code is RefusalCode.RUNTIME
    assert name in rig.host.running()
    rig.disk.full = False
    rig.restart_agent()
    assert rig.call(Method.DESCRIBE, target="*")["term_seen"] == 1


def test_every_refusal_of_the_controllers_own_requests_is_recorded(rig):
    decision = rig.decision()
    assert isinstance(rig.call(Method.START, {"instance_id": "none"}, decision_id=decision), Refusal)
    recorded = rig.book.of("workload.refuse", "workload.host")[-1][1]
    assert (recorded["code"], recorded["decision_id"]) == ("unknown_instance", decision)
    assert recorded["requester"] == rig.controller.node_id


# beats and facts


def test_a_node_beats_each_second_with_a_reading_of_its_clock(rig):
    heard = rig.listen()
    rig.world.advance(5.5)
    clocks = [beat.clock.boottime_ms for beat in heard]
    assert len(heard) in (5, 6, 7)
    assert clocks[-1] - clocks[-2] == 1000
    assert {beat.agent for beat in heard} == {rig.agent}
    assert {beat.node_id for beat in heard} == {rig.node.node_id}
    assert not any(beat.adopting for beat in heard)


def test_facts_come_with_the_first_beat_of_a_link_and_when_they_are_renewed(rig):
    heard = rig.listen()
    rig.world.advance(3)
    assert [beat.facts is not None for beat in heard].count(True) == 1
    rig.world.cut("controller", "shed")
    rig.world.advance(3)
    before = len(heard)
    rig.world.heal("controller", "shed")
    rig.world.run_idle()
    assert heard[before].facts is not None
    rig.world.advance(40)
    facts = [open_facts(beat.facts, rig.node.public_key, rig.world.wall_ms // 1000) for beat in heard if beat.facts]
    assert len(facts) >= 3
    assert [told.seq for told in facts] == sorted({told.seq for told in facts}) or facts[0].seq == facts[1].seq
    assert facts[-1].expires_at > rig.world.wall_ms // 1000


def test_facts_say_what_was_probed_and_what_the_operator_claims(make_rig):
    rig = make_rig(claimed=("feed.csi", "trust.mine", "NOT AN ID"), tier=TrustTier.PINNED)
    rig.machine.extra.append(ProbedCapability(id="accel.npu", state="busy"))
    rig.world.advance(30)
    told = rig.call(Method.DESCRIBE, target="*")
    facts = open_facts(
        msgspec.convert(told["facts"], type=SignedObject),
        rig.node.public_key,
        rig.world.wall_ms // 1000,
    )
    by_id = {capability.id: capability for capability in facts.capabilities}
    assert by_id["feed.csi"].provenance is Provenance.CLAIMED
    assert by_id["runtime.python"].provenance is Provenance.PROBED
    assert by_id["accel.npu"].state is CapabilityState.BUSY
    assert "trust.mine" not in by_id
    assert len([note for note in facts.notes if "left out" in note.text]) == 2


def test_a_later_incarnation_has_later_facts_and_a_higher_number(rig):
    heard = rig.listen()
    rig.world.advance(2)
    rig.restart_agent()
    rig.world.advance(2)
    now_s = rig.world.wall_ms // 1000
    facts = [open_facts(beat.facts, rig.node.public_key, now_s) for beat in heard if beat.facts]
    assert facts[-1].seq > facts[0].seq
    assert heard[-1].incarnation == heard[0].incarnation + 1


def test_a_slow_probe_does_not_stop_the_beats(rig):
    heard = rig.listen()
    rig.world.advance(2)
    rig.world.lose(lambda envelope: type(envelope.message).__name__ == "ClockReading", count=1000)
    before = len(heard)
    rig.world.advance(4)
    assert len(heard) - before >= 3
