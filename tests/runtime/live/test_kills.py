"""Workloads across the death of what is around them; how each process comes back is in `test_fault_matrix`."""

from __future__ import annotations

import pytest

from messages.supervision import ChildState

POLICED = ["chain", "gate", "controller", "shed"]


@pytest.mark.parametrize("name", POLICED)
def test_a_workload_outlives_the_death_of_a_process(shared, name):
    line = shared.place()
    workload, life = shared.life(line.pid), shared.life(name)
    life.kill()
    assert life.wait_end()
    shared.wait_child(name, lambda child: child.state is ChildState.RUNNING and child.incarnation > 0)
    assert shared.wait_instance(line.instance_id).pid == line.pid
    assert workload.lives()
    shared.unload(line.instance_id)
    assert workload.wait_end()


def test_a_workload_dies_with_its_shim_and_is_started_again_within_its_epoch(shared):
    line = shared.place()
    workload, shim = shared.life(line.pid), shared.shim_of(line.pid)
    shim.kill()
    assert workload.wait_end(5), "the workload outlives its shim"
    again = shared.wait_instance(line.instance_id, lambda now: now.pid != line.pid)
    assert again.epoch == line.epoch
    shared.unload(line.instance_id)
    assert not [found for found in shared.left() if line.instance_id in " ".join(found.command)]
