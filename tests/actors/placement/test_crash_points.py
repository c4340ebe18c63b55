"""The plane dies at every single step of a placement, and of what follows one (P 5.4): never two, and all settles."""

from __future__ import annotations

import pytest

from actors.actor import AskFailed
from messages.control import Method, Refusal, RefusalCode
from messages.placement import InstanceOrder

STEPS_AT_MOST = 400


def refuse_first(cluster, first):
    first.refusals["workload.place"] = Refusal(code=RefusalCode.ADMISSION, reason="no")


def lose_answer(cluster, first):
    cluster.lose_answer(first.name)


def lose_request(cluster, first):
    cluster.world.lose(lambda e: e.to == f"{first.name}/agent" and getattr(e.message, "method", "") == Method.PLACE)


def nothing(cluster, first):
    pass


def crash_after(cluster, pending, steps):
    """Run `steps` steps of the world, then end the plane; False when the answer came before."""
    world = cluster.world
    for _ in range(steps):
        if pending.done:
            return False
        while not world._step():
            world.now_s = world._alarms[0][0]
    cluster.restart_plane()
    return True


@pytest.mark.parametrize(("fault", "stride"), [(nothing, 1), (refuse_first, 4), (lose_answer, 2), (lose_request, 3)])
def test_a_crash_at_any_step_of_a_placement_settles_to_at_most_one(kit, fault, stride):
    outcomes = set()
    for steps in range(0, STEPS_AT_MOST, stride):
        cluster = kit.cluster(kit.node("attic"), kit.node("shed"), place_timeout_s=4.0, read_timeout_s=2.0)
        first = min(cluster.nodes.values(), key=lambda node: node.id)
        fault(cluster, first)
        pending = cluster.world.start_ask("controller/plane", cluster.order(), timeout_s=100)
        if not crash_after(cluster, pending, steps):
            break
        cluster.world.advance(12)
        cluster.never_two()
        listing = cluster.instances()
        assert listing.unsettled == [], f"after {steps} steps"
        assert sorted(line.instance_id for line in listing.instances) == sorted(cluster.held())
        outcomes.add(len(cluster.held()))
        assert_chain_tells_the_state(cluster, listing)
        # whatever happened, the slot can be had exactly once
        assert place_again(cluster) in ("placed", "slot_held")
        assert len(cluster.held()) == 1
    else:
        raise AssertionError("a placement takes more steps than expected")
    assert outcomes == {0, 1}, "both sides of the point of no return were crossed"


def place_again(cluster):
    try:
        return cluster.place().attempts[-1].outcome
    except AskFailed as refused:
        return refused.code


def assert_chain_tells_the_state(cluster, listing):
    placed = {r["instance_id"] for r in cluster.told("workload.place") if r["phase"] in ("placed", "adopted")}
    gone = {r["instance_id"] for r in cluster.told("workload.lifecycle")}
    assert placed - gone == {line.instance_id for line in listing.instances}


@pytest.mark.parametrize("method", [Method.UNLOAD, Method.STOP, Method.START])
def test_a_crash_at_any_step_of_a_verb_leaves_state_and_node_agreeing(kit, method):
    for steps in range(STEPS_AT_MOST):
        cluster = kit.cluster(kit.node("attic"), place_timeout_s=4.0, read_timeout_s=2.0)
        instance = cluster.place().placed.instance_id
        if method is Method.START:
            cluster.verb("stop", instance)
        order = InstanceOrder(method=method.value, instance=instance)
        pending = cluster.world.start_ask("controller/plane", order, timeout_s=100)
        if not crash_after(cluster, pending, steps):
            break
        cluster.world.advance(6)
        listing = cluster.instances()
        assert [line.instance_id for line in listing.instances] == cluster.held(), f"after {steps} steps"
        assert_chain_tells_the_state(cluster, listing)
    else:
        raise AssertionError("a verb takes more steps than expected")


@pytest.mark.parametrize("victim", ["controller/store", "chain/chain", "gate/gate", "controller/packages"])
def test_a_neighbour_that_dies_at_any_step_never_leads_to_two(kit, victim):
    for steps in range(0, STEPS_AT_MOST, 5):
        cluster = kit.cluster(kit.node("attic"), kit.node("shed"), place_timeout_s=4.0, read_timeout_s=2.0)
        pending = cluster.world.start_ask("controller/plane", cluster.order(), timeout_s=100)
        world = cluster.world
        for _ in range(steps):
            if not pending.done:
                while not world._step():
                    world.now_s = world._alarms[0][0]
        if pending.done:
            break
        factory = world.cells[victim]._factory
        world.crash(victim)
        world.spawn(victim, factory)
        world.run_until(lambda p=pending: p.done, limit_s=100)
        world.advance(12)
        cluster.never_two()
        listing = cluster.instances()
        assert (listing.unsettled, len(listing.instances)) == ([], len(cluster.held()))
        assert_chain_tells_the_state(cluster, listing)
    else:
        raise AssertionError("a placement takes more steps than expected")
