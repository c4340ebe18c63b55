"""The root itself: killed, stopped in order, started again; what stays is the shims of running workloads, alone."""

from __future__ import annotations

import signal

import pytest

from runtime.leftovers import shared_memory

GONE_S = 2.0
"""Design 6: children leave within a second of the parent's death; the rest is for a busy machine."""


@pytest.fixture
def live(make_cluster):
    return make_cluster()


def commands(found):
    return [" ".join(one.command) for one in found]


def workload_of(live, line):
    """The shim and the workload, as the host sees them."""
    workload = live.life(line.pid)
    return {live.shim_of(line.pid).pid, workload.pid}


def test_after_a_kill_of_the_root_all_leave_but_the_workload_which_the_next_root_adopts(live):
    live.up()
    line = live.place()
    kept = workload_of(live, line)
    leaving = [live.life(found.pid) for found in live.left() if found.pid not in kept and found.pid != live.root.pid]
    assert len(leaving) == len(live.cluster.supervised)
    live.hang_up()
    live.root.kill()
    live.wait_root()
    assert [life.pid for life in leaving if not life.wait_end(GONE_S)] == []
    assert {found.pid for found in live.left()} == kept, commands(live.left())

    live.up()  # past stale sockets and locks
    assert live.wait_instance(line.instance_id).pid == line.pid
    live.unload(line.instance_id)
    live.check_serves()
    assert live.end() == 0
    assert live.left() == []
    assert live.sockets() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_ordered_stop_leaves_no_process_socket_or_shared_memory(live, number):
    before = shared_memory()
    live.up()
    live.check_serves()
    assert live.end(number) == 0, live.words()
    assert live.left() == []
    assert live.sockets() == []
    assert list(live.cluster.run_dir.iterdir()) == []
    assert shared_memory() <= before


def test_an_ordered_stop_leaves_running_workloads_to_be_adopted_by_the_next_up(live):
    live.up()
    line = live.place()
    kept = workload_of(live, line)
    assert live.end() == 0, live.words()
    assert {found.pid for found in live.left()} == kept, commands(live.left())
    live.up()
    assert live.wait_instance(line.instance_id).pid == line.pid
    live.unload(line.instance_id)
    assert live.end() == 0
    assert live.left() == []


def test_a_second_signal_does_not_break_an_ordered_stop(live):
    live.up()
    live.hang_up()
    live.root.send_signal(signal.SIGINT)
    live.root.send_signal(signal.SIGINT)
    assert live.end(signal.SIGTERM) == 0, live.words()
    assert live.left() == []
    assert live.sockets() == []
