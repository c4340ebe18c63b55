"""What the controller believes of its nodes: facts, liveness, routes, names (P 9.1 to 9.4, N4, N63)."""

from __future__ import annotations

import msgspec
import pytest

from actors.placement.signed import Signer
from actors.placement.view import FactsRefused, Node, View, open_facts, sign_facts
from messages.capabilities import Capability, Provenance
from messages.control import SignedObject
from messages.engine import Liveness
from messages.facts import FactsError, NodeFacts
from messages.identity import Identity
from messages.node import FACTS_DOMAIN, NodeBeat
from messages.ports import ClockReading
from messages.system import GetState

NOW_S = 1_700_000_000
SIGNER = Signer(b"a" * 32)
OTHER = Signer(b"b" * 32)


def facts(signer=SIGNER, **changes):
    fields = {
        "version": 1, "node_id": signer.node_id, "issued_at": NOW_S, "ttl_secs": 600, "seq": 1, "capabilities": (),
    }  # fmt: skip
    return NodeFacts(**{**fields, **changes})


def identity(name="attic", signer=SIGNER, tier="paired"):
    return Identity(name=name, role="node", public_key=signer.public_key, tier=tier)


def beat(name="attic", signer=SIGNER, **changes):
    fields = {
        "node_id": signer.node_id, "name": name, "agent": f"{name}/agent", "incarnation": 1, "instances": 0,
        "clock": ClockReading(boot_id="b", boottime_ms=0), "routes": ["native"],
    }  # fmt: skip
    return NodeBeat(**{**fields, **changes})


def test_facts_are_taken_from_their_own_node_and_in_order():
    node = Node(identity())
    first = sign_facts(SIGNER, facts(seq=5))
    assert node.accept(first, NOW_S) is True
    assert node.accept(first, NOW_S) is False, "the same again is no news"
    with pytest.raises(FactsRefused, match="stale"):
        node.accept(sign_facts(SIGNER, facts(seq=5, issued_at=NOW_S + 1)), NOW_S + 1)
    assert node.accept(sign_facts(SIGNER, facts(seq=6)), NOW_S)
    assert node.accept(sign_facts(SIGNER, facts(seq=1, issued_at=NOW_S + 600)), NOW_S + 600), (
        "expired ones block nobody"
    )


def unsigned(made):
    signed = sign_facts(SIGNER, made)
    return SignedObject(payload=signed.payload, public_key=signed.public_key, signature=bytes(64))


REFUSED = {
    "expired": (lambda: sign_facts(SIGNER, facts(issued_at=NOW_S - 600)), "expired"),
    "from the future": (lambda: sign_facts(SIGNER, facts(issued_at=NOW_S + 61)), "future"),
    "another node's words": (lambda: SIGNER.sign(FACTS_DOMAIN, msgspec.msgpack.encode(facts(OTHER))), "speak of"),
    "another key": (lambda: sign_facts(OTHER, facts(OTHER)), "signed by"),
    "a bad signature": (lambda: unsigned(facts()), "does not verify"),
    "another purpose": (lambda: SIGNER.sign(b"sennit.other.v1\0", msgspec.msgpack.encode(facts())), "does not verify"),
    "another version": (lambda: SIGNER.sign(FACTS_DOMAIN, msgspec.msgpack.encode(facts(version=2))), "version 2"),
    "a short life": (lambda: SIGNER.sign(FACTS_DOMAIN, msgspec.msgpack.encode(facts(ttl_secs=9))), "ttl_secs"),
    "no facts": (lambda: SIGNER.sign(FACTS_DOMAIN, b"\xc0"), "malformed"),
    "too much": (lambda: SIGNER.sign(FACTS_DOMAIN, bytes(262_145)), "exceeds"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_facts_that_do_not_hold_are_refused(name):
    make, text = REFUSED[name]
    with pytest.raises(FactsRefused, match=text):
        open_facts(make(), SIGNER.public_key, NOW_S)


def test_trust_is_never_what_a_node_says(two):
    node = two.nodes["attic"]
    assert two.list_nodes()["attic"].tier == "paired"
    claim = Capability(id="trust.pinned", provenance=Provenance.CLAIMED)
    told = facts(node.signer, capabilities=(claim,))
    with pytest.raises(FactsError, match="trust"):
        sign_facts(node.signer, told)
    with pytest.raises(FactsRefused, match="trust"):
        open_facts(node.signer.sign(FACTS_DOMAIN, msgspec.msgpack.encode(told)), node.signer.public_key, NOW_S)


@pytest.mark.parametrize(
    ("heard_ago", "link_up", "adopting", "known", "expected"),
    [
        (None, None, False, False, Liveness.UNKNOWN),
        (None, True, False, False, Liveness.UNKNOWN),
        (0, None, False, True, Liveness.ALIVE),
        (0, True, False, True, Liveness.ALIVE),
        (5, True, False, True, Liveness.ALIVE),
        (5.1, True, False, True, Liveness.SUSPECT),
        (0, False, False, True, Liveness.SUSPECT),
        (0, True, True, True, Liveness.UNKNOWN),
        (0, True, False, False, Liveness.UNKNOWN),
    ],
)
def test_liveness(heard_ago, link_up, adopting, known, expected):
    view = View([identity()], dead_after_s=5.0)
    node = view.nodes[SIGNER.node_id]
    if heard_ago is not None:
        view.heard(beat(adopting=adopting), "attic/agent", 100.0 - heard_ago)
    if known:
        node.accept(sign_facts(SIGNER, facts()), NOW_S)
    node.link_up = link_up
    assert node.liveness(100.0, 5.0) is expected


def test_a_beat_counts_only_from_the_process_it_speaks_for():
    view = View([identity(), identity("shed", OTHER)], 5.0)
    for told, sender in (
        (beat(), "shed/agent"),
        (beat(), None),
        (beat("shed"), "shed/agent"),
        (beat(signer=Signer(b"c" * 32)), "attic/agent"),
    ):
        with pytest.raises(FactsRefused):
            view.heard(told, sender, 0.0)
    assert view.heard(beat(), "attic/agent", 0.0).identity.name == "attic"


def test_one_name_or_one_key_twice_is_refused():
    for pair in ([identity(), identity("attic", OTHER)], [identity(), identity("shed", SIGNER)]):
        with pytest.raises(ValueError, match="twice"):
            View(pair, 5.0)


def test_the_end_of_an_older_link_says_nothing():
    view = View([identity()], 5.0)
    view.link("attic", 7, 0.0, up=True)
    view.link("attic", 6, 0.0, up=False)
    assert view.nodes[SIGNER.node_id].link_up is True
    view.link("attic", 7, 0.0, up=False)
    assert view.nodes[SIGNER.node_id].link_up is False


def test_a_node_whose_inventory_is_incomplete_gets_nothing(kit):
    cluster = kit.cluster(kit.node("attic", adopting=True), kit.node("shed"))
    report = cluster.place()
    assert report.placed.node_id == cluster.nodes["shed"].id
    cluster.nodes["attic"].adopting = False
    cluster.world.advance(2)
    assert cluster.list_nodes()["attic"].liveness == "alive"


def test_a_node_that_falls_silent_is_suspect_and_gets_nothing(two):
    two.nodes["attic"].silent = True
    two.world.advance(7)
    line = two.list_nodes()["attic"]
    assert (line.liveness, line.reachable) == ("suspect", False)
    assert two.place().placed.node_id == two.nodes["shed"].id


def test_a_cut_link_makes_a_node_suspect_at_once(two):
    two.world.cut("controller", "attic")
    two.world.run_idle()
    assert two.list_nodes()["attic"].liveness == "suspect"
    two.world.heal("controller", "attic")
    two.world.advance(1.5)
    assert two.list_nodes()["attic"].liveness == "alive"


def test_a_node_that_does_not_tell_its_facts_is_asked_for_them(kit):
    cluster = kit.cluster(kit.node("attic", tell_facts=False))
    cluster.world.advance(1.5)
    assert cluster.list_nodes()["attic"].liveness == "alive"
    assert cluster.place().placed is not None
    assert [method for method, _ in cluster.nodes["attic"].handled].count("workload.describe") == 1


def test_a_restarted_agent_may_count_its_facts_anew():
    view = View([identity()], 5.0)
    node = view.heard(beat(), "attic/agent", 0.0)
    node.accept(sign_facts(SIGNER, facts(seq=9)), NOW_S)
    view.heard(beat(incarnation=2), "attic/agent", 1.0)
    assert node.accept(sign_facts(SIGNER, facts(seq=1)), NOW_S) is True


def test_the_snapshot_is_frozen_and_the_decision_leaves_it_alone(two):
    core = two.world.actor("controller/plane")._core
    before = core.view.snapshot(two.world.now_s)
    text = msgspec.json.encode(before)
    two.place()
    assert msgspec.json.encode(before) == text
    assert isinstance(before, tuple)


def test_the_nodes_are_listed_by_name_with_what_they_offer(two):
    lines = two.list_nodes()
    assert list(lines) == ["attic", "shed"]
    line = lines["attic"]
    assert (line.node_id, line.incarnation, line.instances, line.reachable) == (two.nodes["attic"].id, 1, 0, True)
    assert {"id": "os.linux", "attrs": {}, "state": "available"} in line.capabilities
    assert 0 <= line.beat_age_ms <= 1000


def test_the_state_can_be_looked_at_as_plain_data(two):
    placed = two.place().placed
    state = two.world.ask("controller/plane", GetState()).state
    assert [record["instance_id"] for record in state["placements"]] == [placed.instance_id]
    assert (state["term"], state["blocked"], state["owed"]) == (1, None, 0)
