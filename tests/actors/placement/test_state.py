"""What survives a restart, and what is refused instead of believed (P 10.7, design 8)."""

from __future__ import annotations

import json

import msgspec
import pytest

from actors.chain.chain import Chain
from actors.document import StateDamaged
from actors.placement.state import PlaneState
from messages.chain import Append, Entry
from runtime.simulated.chain_store import SimulatedChainDisk, SimulatedChainStore


def test_placements_are_manageable_after_a_restart(two):
    instance = two.place().placed.instance_id
    two.restart_plane(crash=False)
    listing = two.instances()
    assert [line.instance_id for line in listing.instances] == [instance]
    assert {line.liveness for line in two.list_nodes().values()} <= {"unknown", "alive"}
    assert two.verb("status", instance).result["lifecycle"] == "running"
    two.verb("stop", instance)
    two.verb("unload", instance)
    two.restart_plane(crash=False)
    assert two.instances().instances == []


def test_after_a_restart_no_node_counts_until_it_is_heard(two):
    two.restart_plane()
    assert {line.liveness for line in two.list_nodes().values()} == {"unknown"}
    two.world.advance(1.5)
    assert {line.liveness for line in two.list_nodes().values()} == {"alive"}


def test_each_start_raises_the_term_before_anything_is_sent(two):
    for term in (1, 2, 3):
        assert json.loads(two.disk.documents["plane"])["term"] == term
        two.world.advance(1.5)
        report = two.place()
        assert report.placed.epoch.term == term
        assert all(node.term in (0, term) for node in two.nodes.values())
        two.verb("unload", report.placed.instance_id)
        two.restart_plane()


BROKEN = {
    "not json": b"\x00\x01",
    "not an object": b"[]",
    "another version": (
        b'{"version":2,"term":1,"chain_sequence":0,"chain_hash":"","epochs":{},"placements":[],"dispatches":[],"owed":[]}'
    ),
    "an unknown field": (
        b'{"version":1,"term":1,"chain_sequence":0,"chain_hash":"",'
        b'"epochs":{},"placements":[],"dispatches":[],"owed":[],"more":1}'
    ),
    "a missing field": (
        b'{"version":1,"term":1,"chain_sequence":0,"chain_hash":"","epochs":{},"placements":[],"owed":[]}'
    ),
    "a negative term": (
        b'{"version":1,"term":-1,"chain_sequence":0,"chain_hash":"",'
        b'"epochs":{},"placements":[],"dispatches":[],"owed":[]}'
    ),
    "empty": b"",
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_malformed_state_is_refused_and_left_untouched(two, name):
    two.place()
    two.disk.documents["plane"] = BROKEN[name]
    two.restart_plane()
    two.world.advance(30)
    for code, reason in (two.place_code(), two.verb_code("stop", "hostwatch@attic"), two.verb_code("status", "x")):
        assert code == "stale_state"
        assert "left untouched" in reason
    assert two.disk.documents["plane"] == BROKEN[name]
    assert len(two.list_nodes()) == 2, "what needs no state is answered"


def test_a_damaged_document_is_never_written_over(two):
    two.disk.damaged.add("plane")
    two.restart_plane()
    two.disk.damaged.clear()
    before = two.disk.documents["plane"]
    two.world.advance(10)
    assert two.place_code()[0] == "stale_state"
    assert two.disk.documents["plane"] == before


def test_a_store_that_cannot_be_written_delays_the_first_grant(two):
    two.disk.full = True
    two.restart_plane()
    two.world.advance(6)
    assert two.place_code()[0] == "stale_state"
    two.disk.full = False
    two.world.advance(6)
    assert two.place().placed.epoch.term == 2


def test_an_old_state_grants_nothing(two):
    old = two.disk.documents["plane"]
    two.place()
    two.disk.documents["plane"] = old
    two.restart_plane()
    two.world.advance(3)
    code, reason = two.place_code(pin="attic")
    assert code == "stale_state"
    assert "behind the chain" in reason
    assert len(two.held()) == 1


def test_a_state_of_an_earlier_term_grants_nothing(two):
    old = two.disk.documents["plane"]
    for _ in range(3):
        two.restart_plane()
        two.world.advance(1.5)
    placed = two.place().placed
    two.verb("unload", placed.instance_id)
    two.disk.documents["plane"] = old
    two.restart_plane()
    two.world.advance(3)
    assert two.place_code()[0] == "stale_state"


def test_a_new_state_beside_an_old_chain_of_decisions_without_dispatch_is_current(two):
    for _ in range(3):
        two.place(dry_run=True)
    old = two.disk.documents["plane"]
    two.disk.documents["plane"] = msgspec.json.encode({**json.loads(old), "chain_sequence": -1})
    two.restart_plane()
    assert two.place().placed is not None


@pytest.mark.parametrize("records", [0, 40], ids=["deleted", "replaced by a longer one"])
def test_a_chain_without_the_record_that_the_state_remembers_grants_nothing(two, records):
    two.verb("unload", two.place().placed.instance_id)
    assert 0 < json.loads(two.disk.documents["plane"])["chain_sequence"] < 40
    for address in ("chain/chain", "chain/store"):
        two.world.crash(address)
    two.chain_disk = SimulatedChainDisk()
    two.world.spawn("chain/store", lambda: SimulatedChainStore(two.chain_disk))
    two.world.spawn("chain/chain", lambda: Chain("c-test"))
    for number in range(records):
        two.world.ask("chain/chain", Append(entry=Entry(source="other", kind="other", payload=b"%d" % number)))
    two.restart_plane()
    two.world.advance(3)
    code, reason = two.place_code()
    assert code == "stale_state"
    assert "cut, deleted or replaced" in reason


def test_a_chain_that_cannot_be_read_grants_nothing_until_it_can(two):
    two.restart_plane()
    factory = two.world.cells["chain/chain"]._factory
    two.world.crash("chain/chain")
    assert two.place_code()[0] == "no_record"
    two.world.spawn("chain/chain", factory)
    assert two.place().placed is not None


def test_the_document_reads_back_as_it_was_written(two):
    two.place(pin="attic")
    two.place(pin="shed")
    state = two.world.actor("controller/plane")._core.state
    state.take_epoch("another")
    again = PlaneState.decode(state.encode())
    assert again.encode() == state.encode()
    assert (again.placements, again.epochs, again.term) == (state.placements, state.epochs, state.term)


def test_what_is_listed_twice_is_damage(two):
    two.place()
    document = json.loads(two.disk.documents["plane"])
    document["placements"] *= 2
    with pytest.raises(StateDamaged, match="twice"):
        PlaneState.decode(json.dumps(document).encode())


def test_no_document_is_an_empty_state():
    state = PlaneState.decode(None)
    assert (state.term, state.placements, state.dispatches) == (0, {}, {})


def test_no_secret_is_in_the_state(two):
    two.place()
    data = two.disk.documents["plane"]
    seed = b"controller".ljust(32, b".")
    assert seed not in data
    assert seed.hex().encode() not in data
    assert seed not in repr(two.world.actor("controller/plane")._core.signer).encode()


def test_epochs_of_slots_that_nobody_holds_are_forgotten_with_a_new_term(two):
    for secs in range(1, 4):
        placed = two.place(pin="attic").placed
        two.verb("unload", placed.instance_id)
        assert secs in json.loads(two.disk.documents["plane"])["epochs"].values()
    two.restart_plane()
    two.world.advance(3)
    assert json.loads(two.disk.documents["plane"])["epochs"] == {}
