"""An instance that goes while it is listed, placed or asked for: all are answered, and the plane goes on (N75)."""

from __future__ import annotations

import pytest

from actors.actor import AskFailed
from messages.placement import InstanceOrder, ListInstances
from messages.system import AskFailure

MOMENTS_AT_MOST = 200


def order(verb):
    return lambda cluster, name: InstanceOrder(method=f"workload.{verb}", instance=name)


OTHERS = {
    "listed": lambda cluster, name: ListInstances(),
    "placed again": lambda cluster, name: cluster.order(pin="attic"),
    "tried": lambda cluster, name: cluster.order(dry_run=True),
    **{verb: order(verb) for verb in ("status", "logs", "stop", "start", "unload")},
}


def failure_of(pending):
    try:
        pending.result()
    except AskFailed as failed:
        return failed.failure
    return None


@pytest.mark.parametrize("what", OTHERS)
def test_whoever_asks_while_an_instance_goes_is_answered_and_the_plane_goes_on(kit, what):
    cluster = kit.cluster(kit.node("attic"), kit.node("shed"))
    world, plane = cluster.world, cluster.world.actor("controller/plane")
    for moment in range(MOMENTS_AT_MOST):
        name = cluster.place(pin="attic").placed.instance_id
        going = world.start_ask("controller/plane", order("unload")(cluster, name), timeout_s=60)
        for _ in range(moment):
            world._step()
        late = going.done
        asking = world.start_ask("controller/plane", OTHERS[what](cluster, name), timeout_s=60)
        world.run_until(lambda going=going, asking=asking: going.done and asking.done)
        assert failure_of(going) is None
        assert failure_of(asking) in (None, AskFailure.REFUSED)
        assert world.actor("controller/plane") is plane, "it did not crash"
        cluster.never_two()
        assert sorted(line.instance_id for line in cluster.instances().instances) == sorted(cluster.held())
        for held in cluster.held():
            cluster.verb("unload", held)
        if late:
            break
    assert 5 < moment < MOMENTS_AT_MOST - 1
