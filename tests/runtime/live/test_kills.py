"""SIGKILL and SIGSTOP of every kind of process below the root: it comes back, alone, and the cluster serves."""

from __future__ import annotations

import signal

import pytest

from messages.supervision import ChildState

POLICED = ["chain", "gate", "controller", "shed"]


@pytest.mark.parametrize("name", POLICED)
def test_a_killed_process_comes_back_alone_and_the_cluster_serves(shared, name):
    before, life = shared.pids(), shared.life(name)
    restarts = shared.child(name).restarts
    life.kill()
    assert life.wait_end()
    child = shared.wait_child(name, lambda child: child.restarts == restarts + 1 and child.state is ChildState.RUNNING)
    assert child.last_exit == "killed by signal 9"
    after = shared.pids()
    assert {other: pid for other, pid in after.items() if pid != before[other]} == {name: after[name]}
    shared.check_serves()


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


def test_a_stopped_process_is_seen_to_hang_is_killed_and_comes_back_alone(shared):
    before, life = shared.pids(), shared.life("loft")
    restarts = shared.child("loft").restarts
    life.kill(signal.SIGSTOP)
    assert life.wait_end(15), "no beat for three periods, and it still lives"
    shared.wait_child("loft", lambda child: child.restarts == restarts + 1 and child.state is ChildState.RUNNING)
    after = shared.pids()
    assert {other for other, pid in after.items() if pid != before[other]} == {"loft"}
    shared.check_serves()
