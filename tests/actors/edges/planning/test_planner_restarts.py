"""The planner dies at any step and at every durable write; what it finds again, and what it does not believe."""

from __future__ import annotations

import json

import msgspec
import pytest

from actors.chain.chain import Chain
from actors.document import StateDamaged
from actors.edges.planning.state import PlanState
from messages.base import Address
from messages.chain import Append
from messages.edge import EdgeProvisionState, RingDirection
from messages.edge_end import EdgeFaultCode, Ends
from messages.edge_plan import AddEdge, RemoveEdge
from messages.ports import SaveDocument
from runtime.simulated.chain_store import SimulatedChainDisk, SimulatedChainStore
from runtime.simulated.store import SimulatedStore

INGRESS, EGRESS = RingDirection.INGRESS, RingDirection.EGRESS
NAME = "hostwatch.out -> trend.in"
STEPS_AT_MOST = 600


def test_ends_are_adopted_as_they_are_and_data_flows_on(joined):
    opens, closes = len(joined.fabric.opens), len(joined.fabric.closes)
    joined.restart_planner()
    line = joined.until("ready", 3)
    assert (line.run_id, line.edge_id, line.lives, line.faults) == (1, 1, 1, 0)
    joined.world.advance(120)
    assert joined.line().phase == "ready"
    assert (len(joined.fabric.opens), len(joined.fabric.closes)) == (opens, closes)
    assert joined.story() == ["opening 1", "ready 1"]


def test_an_adopted_life_ends_and_begins_like_any_other(joined):
    joined.restart_planner()
    joined.until("ready", 3)
    joined.fault(joined.end("shed.edges", INGRESS), EdgeFaultCode.WORKER_CRASHED)
    joined.world.run_until(lambda: joined.fabric.opens[-1].run_id == 2, 5)
    joined.until("ready")
    assert joined.fabric.opens[-1].edge_id == 2
    joined.never_two()


def test_what_changed_while_the_planner_was_gone_is_found_out(joined):
    joined.world.crash(Address("controller/edges"))
    joined.unload(next(row for row in joined.rows.values() if row.node == "shed"))
    joined.place("trend", "loft")
    joined.start_planner()
    joined.world.run_until(lambda: joined.fabric.opens[-1].run_id == 2, 10)
    assert joined.until("ready").consumer_node == "loft"
    joined.never_two()


def test_an_edges_process_that_restarted_while_the_planner_was_gone_has_a_new_life_of_the_edge(joined):
    joined.world.crash(Address("controller/edges"))
    joined.kill_edges("shed.edges", restart_s=0.1)
    joined.world.advance(1)
    joined.start_planner()
    joined.world.run_until(lambda: joined.fabric.opens[-1].run_id == 2, 10)
    joined.until("ready")
    joined.never_two()


def test_a_cluster_that_comes_up_again_has_its_edges_processes_started_and_a_new_life_of_the_edge(joined):
    """They run from the first edge on, and nobody else knows that there is one."""
    joined.world.crash(Address("controller/edges"))
    for process in ("attic.edges", "shed.edges"):
        joined.kill_edges(process, restart_s=None)
    joined.start_planner()
    joined.world.run_until(lambda: joined.fabric.opens[-1].run_id == 2, 5)
    line = joined.until("ready", 3)
    assert (line.faults, line.fault) == (1, EdgeFaultCode.EDGES_RESTARTED)
    joined.never_two()


def test_an_edges_process_that_went_with_its_node_is_started_again(joined):
    joined.kill_edges("shed.edges", restart_s=None)
    joined.world.run_until(lambda: joined.fabric.opens[-1].run_id == 2, 10)
    joined.until("ready")
    joined.never_two()


def test_ends_that_are_gone_are_found_out_though_the_first_listing_is_lost(joined):
    joined.world.crash(Address("controller/edges"))
    joined.world.crash_process("shed.edges")  # and its peer has not noticed
    joined.start_edges("shed.edges")
    joined.world.advance(1)
    joined.world.lose(lambda envelope: isinstance(envelope.message, Ends), 2)
    joined.start_planner()
    joined.world.run_until(lambda: joined.run() == 2, 30)
    joined.until("ready")
    joined.never_two()


def test_an_edge_removed_while_an_end_was_out_of_reach_leaves_a_stray_that_is_closed_after_a_restart(joined):
    joined.world.cut("controller", "shed.edges")
    joined.unload(next(row for row in joined.rows.values() if row.node == "shed"))
    joined.remove(NAME)
    assert len(joined.fabric.live()) == 1
    joined.restart_planner()
    joined.world.advance(1)
    joined.world.heal("controller", "shed.edges")
    joined.world.run_until(lambda: joined.fabric.live() == [], 10)


def scenario(cluster):
    """One edge from the wish to its removal, with a fault and a move between; returns what drives it."""

    def do():
        cluster.place("hostwatch", "attic")
        cluster.place("trend", "shed")
        add(cluster)
        cluster.until("ready", 100)
        if cluster.fabric.live():
            cluster.fault(cluster.fabric.live()[-1], EdgeFaultCode.WORKER_CRASHED)
        cluster.world.advance(0.3)
        cluster.until("ready", 100)
        cluster.unload(next(row for row in cluster.rows.values() if row.node == "shed"))
        cluster.place("trend", "loft")
        cluster.world.advance(2)
        cluster.until("ready", 100)

    return do


def add(cluster):
    """Until the wish is granted: an answer that never came leaves it open whether it was."""
    for _ in range(5):
        pending = cluster.world.start_ask("controller/edges", add_order(), timeout_s=10)
        cluster.world.run_until(lambda pending=pending: pending.done, 20)
        cluster.world.advance(1)
        if cluster.works():
            return
    raise AssertionError("the edge could not be added")


def add_order():
    return AddEdge(source="hostwatch.out", target="trend.in")


def take_down(cluster):
    for _ in range(3):
        if not cluster.works():
            break
        pending = cluster.world.start_ask("controller/edges", RemoveEdge(edge=NAME), timeout_s=30)
        cluster.world.run_until(lambda pending=pending: pending.done, 40)
        cluster.world.advance(3)
    assert cluster.lines() == {}


def crash_at(cluster, kinds, number):
    """End the planner as the `number`th message of these kinds leaves it; delivered or lost, turn by turn."""
    seen = [0]

    def matches(envelope):
        if envelope.sender != "controller/edges" or not isinstance(envelope.message, kinds):
            return False
        seen[0] += 1
        if seen[0] != number:
            return False
        cluster.world._alarm(cluster.world.now_s, cluster.restart_planner)
        return number % 2 == 0

    cluster.world.lose(matches, 1)
    return seen


@pytest.mark.parametrize("kinds", [SaveDocument, Append])
def test_a_crash_at_every_durable_write_leads_to_one_life_and_a_story_that_is_whole(kit, kinds):
    for number in range(1, 60):
        cluster = kit.cluster("attic", "shed", "loft", write_timeout_s=2.0)
        seen = crash_at(cluster, kinds, number)
        scenario(cluster)()
        cluster.world.advance(10)
        assert cluster.phase() == "ready", f"after write {number}"
        assert {end.order.edge_id for end in cluster.fabric.live()} == {cluster.line().edge_id}
        assert len(cluster.fabric.live()) == 2
        cluster.never_two()
        whole(cluster)
        take_down(cluster)
        assert cluster.fabric.live() == []
        assert [told["phase"] for told in cluster.told("edge.plan")] == ["added", "removed"], f"after write {number}"
        if seen[0] < number:
            break
    else:
        raise AssertionError("more writes than expected")
    assert number > 8


def whole(cluster):
    """What was opened, the chain tells; and no life is told twice over or after its end."""
    cluster.world.advance(3)
    stories = {}
    for told in cluster.told():
        stories.setdefault(told["edge_id"], []).append(told["phase"])
    for edge_id, phases in stories.items():
        assert phases[0] == "opening", (edge_id, phases)
        assert len(phases) == len(set(phases)), (edge_id, phases)
        assert "closed" not in phases[:-1], (edge_id, phases)
    assert {str(order.edge_id) for order in cluster.fabric.opens} <= set(stories)
    assert [told["phase"] for told in cluster.told("edge.plan")].count("added") == 1


@pytest.mark.parametrize("offset", range(3))
def test_a_crash_at_any_step_leads_to_one_life(kit, offset):
    for steps in range(offset, STEPS_AT_MOST, 3):
        cluster = kit.cluster("attic", "shed", "loft", write_timeout_s=2.0)
        cluster.place("hostwatch", "attic")
        cluster.place("trend", "shed")
        pending = cluster.world.start_ask("controller/edges", add_order(), timeout_s=30)
        world = cluster.world
        for _ in range(steps):
            while not world._step():
                world.now_s = world._alarms[0][0]
        over = pending.done and cluster.phase() == "ready"
        cluster.restart_planner()
        world.advance(12)
        lines = cluster.lines()
        if lines:
            assert lines[NAME].phase == "ready", f"after {steps} steps"
            assert {end.order.edge_id for end in cluster.fabric.live()} == {lines[NAME].edge_id}
        else:
            assert not pending.done or cluster.code(pending.result)
            assert cluster.fabric.live() == []
        cluster.never_two()
        if over:
            break
    else:
        raise AssertionError("more steps than expected")


@pytest.mark.parametrize("victim", ["controller/store", "chain/chain", "gate/gate", "controller/plane"])
def test_a_neighbour_that_dies_at_any_step_never_leads_to_two(kit, victim):
    for steps in range(0, STEPS_AT_MOST, 7):
        cluster = kit.cluster("attic", "shed", write_timeout_s=2.0, gate_timeout_s=2.0)
        cluster.place("hostwatch", "attic")
        cluster.place("trend", "shed")
        world = cluster.world
        pending = world.start_ask("controller/edges", add_order(), timeout_s=30)
        for _ in range(steps):
            while not world._step():
                world.now_s = world._alarms[0][0]
        over = pending.done and cluster.phase() == "ready"
        factory = world.cells[victim]._factory
        world.crash(victim)
        world.spawn(victim, factory)
        world.advance(15)
        if not cluster.lines():
            cluster.add("hostwatch.out", "trend.in")
        cluster.until("ready", 30)
        cluster.never_two()
        whole_enough(cluster)
        if over:
            break


def whole_enough(cluster):
    cluster.world.advance(3)
    opened = {told["edge_id"] for told in cluster.told() if told["phase"] == "opening"}
    assert {str(order.edge_id) for order in cluster.fabric.opens} <= opened


# state that is not believed


def test_a_damaged_state_orders_nothing_closes_nothing_and_is_left_as_it_is(joined):
    joined.world.crash(Address("controller/edges"))
    joined.disk.documents["edges"] = b"{half a doc"
    joined.start_planner()
    joined.world.advance(20)
    assert joined.disk.documents["edges"] == b"{half a doc"
    assert len(joined.fabric.live()) == 2, "running edges go on"
    assert joined.fabric.closes == []
    code, reason = joined.code(lambda: joined.add("hostwatch.out", "more.in"))
    assert code == "stale_state"
    assert "left untouched" in reason
    assert joined.code(lambda: joined.remove(NAME))[0] == "stale_state"


def test_a_state_that_was_put_back_from_an_old_copy_is_not_believed(joined):
    old = joined.disk.documents["edges"]
    joined.fault(joined.end("shed.edges", INGRESS), EdgeFaultCode.WORKER_CRASHED)
    joined.world.run_until(lambda: joined.fabric.opens[-1].run_id == 2, 5)
    joined.until("ready")
    joined.world.advance(2)
    joined.world.crash(Address("controller/edges"))
    joined.disk.documents["edges"] = old
    joined.start_planner()
    joined.world.advance(20)
    assert len(joined.fabric.live()) == 2
    assert joined.fabric.closes[-1][1] == 1, "nothing of the life that it does not know is closed"
    code, reason = joined.code(lambda: joined.add("hostwatch.out", "more.in"))
    assert code == "stale_state"
    assert "tells of edge id 2" in reason
    assert joined.line().reason == reason


def test_a_state_that_was_deleted_is_not_believed(joined):
    joined.world.crash(Address("controller/edges"))
    del joined.disk.documents["edges"]
    joined.start_planner()
    joined.world.advance(20)
    assert len(joined.fabric.live()) == 2
    assert joined.code(lambda: joined.add("hostwatch.out", "more.in"))[0] == "stale_state"


def test_another_chain_is_not_believed(joined):
    joined.world.crash_process("chain")
    other = SimulatedChainDisk()
    joined.world.spawn(Address("chain/store"), lambda: SimulatedChainStore(other))
    joined.world.spawn(Address("chain/chain"), lambda: Chain("c-test"))
    joined.restart_planner()
    joined.world.advance(5)
    code, reason = joined.code(lambda: joined.add("hostwatch.out", "more.in"))
    assert code == "stale_state"
    assert "was cut, deleted or replaced" in reason


def test_a_chain_that_cannot_be_read_yet_orders_nothing_and_closes_nothing(joined):
    joined.world.crash_process("chain")
    joined.restart_planner()
    joined.world.advance(100)
    assert len(joined.fabric.live()) == 2
    assert "cannot be compared with the chain" in joined.line().reason
    joined.world.spawn(Address("chain/store"), lambda: SimulatedChainStore(joined.chain_disk))
    joined.world.spawn(Address("chain/chain"), lambda: Chain("c-test"))
    assert joined.until("ready", 60).reason == ""


def test_a_store_that_answers_late_is_waited_for_and_no_end_is_closed_meanwhile(joined):
    joined.world.crash(Address("controller/edges"))
    joined.world.crash(Address("controller/store"))
    joined.start_planner()
    joined.world.advance(30)
    assert joined.code(lambda: joined.add("hostwatch.out", "more.in"))[0] == "stale_state"
    joined.world.spawn(Address("controller/store"), lambda: SimulatedStore(joined.disk))
    joined.until("ready", 60)
    assert joined.fabric.closes == []
    assert joined.line().run_id == 1


LIFE = {
    "edge_id": 1,
    "run_id": 1,
    "pair": {
        end: {"node_id": "n", "process": "p", "instance_id": "i", "epoch": {"term": 1, "number": 1}, "port": "x"}
        for end in ("producer", "consumer")
    },
}
EDGE = {
    "source": "a.out",
    "target": "b.in",
    "sizes": {"max_extent_bytes": 1, "ring_bytes": 4096},
    "added_key": "1.1",
    "since_ms": 0,
    "run_id": 1,
}
DOCUMENT = {
    "version": 1, "term": 1, "chain_sequence": -1, "chain_hash": "", "last_edge_id": 1, "run_floor": 0, "owed": [],
}  # fmt: skip
OWED = {"key": "1.1", "kind": "edge.plan", "payload": ""}

BROKEN = {
    "another version": {**DOCUMENT, "version": 2, "edges": []},
    "an unknown member": {**DOCUMENT, "edges": [], "more": 1},
    "a missing member": DOCUMENT,
    "a negative term": {**DOCUMENT, "term": -1, "edges": []},
    "too large a number": {**DOCUMENT, "last_edge_id": 2**64, "edges": []},
    "an edge twice": {**DOCUMENT, "edges": [EDGE, EDGE]},
    "a debt twice": {**DOCUMENT, "edges": [], "owed": [OWED, OWED]},
    "an edge id that was not given": {**DOCUMENT, "last_edge_id": 0, "edges": [{**EDGE, "life": LIFE}]},
    "an epoch that was not given": {**DOCUMENT, "edges": [{**EDGE, "run_id": 2, "life": LIFE}]},
    "an edge id twice": {
        **DOCUMENT,
        "edges": [{**EDGE, "life": LIFE}, {**EDGE, "target": "c.in", "life": LIFE}],
    },
    "a name too long": {**DOCUMENT, "edges": [{**EDGE, "source": "a" * 128 + ".p", "target": "b" * 128 + ".p"}]},
    "a source that is no port": {**DOCUMENT, "edges": [{**EDGE, "source": "nonsense"}]},
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_document_that_this_version_did_not_write_is_refused(what):
    with pytest.raises(StateDamaged):
        PlanState.decode(json.dumps(BROKEN[what]).encode())


def test_every_truncation_of_the_document_is_refused(joined):
    whole = joined.disk.documents["edges"]
    for length in range(1, len(whole) - 1, 7):
        with pytest.raises(StateDamaged):
            PlanState.decode(whole[:length])


def test_the_document_reads_as_it_was_written(joined):
    state = PlanState.decode(joined.disk.documents["edges"])
    assert state.encode() == joined.disk.documents["edges"]
    assert PlanState.decode(None).encode() == PlanState().encode()
    assert msgspec.json.decode(state.encode())["version"] == 1


def test_a_planner_that_restarts_counts_no_end_as_over_before_its_process_could_speak(joined):
    """Its instance is placed no more at that epoch, and nobody is linked to a planner that has just started."""
    joined.fabric.stuck.add("shed.edges")
    joined.place("trend", "shed")
    joined.until("closing", 5)
    joined.restart_planner()
    joined.world.advance(20)
    assert (joined.run(), joined.fabric.two) == (1, [])
    assert "until shed.edges has let go of it" in joined.line().reason
    joined.set(joined.end("shed.edges", INGRESS), EdgeProvisionState.STOPPED)
    joined.until("ready", 5)
    joined.never_two()
