"""An edge waits for instances that run: neither an epoch nor a record is spent on one that does not (design 7)."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest

from messages.base import Address
from messages.edge import EdgeProvisionState, RingDirection
from messages.edge_end import EdgeFaultCode, FindRun, OpenEdge
from runtime.simulated.edge_ports import ClosePort, CrashWorkload

EGRESS, INGRESS = RingDirection.EGRESS, RingDirection.INGRESS
ENDS = [("hostwatch", "attic", EGRESS), ("trend", "shed", INGRESS)]


def instance(cluster, workload):
    return next(key for key in cluster.rows if key.startswith(workload))


def asked(cluster, workload):
    return [question for question in cluster.fabric.asked if question.instance_id.startswith(workload)]


def stop(cluster, workload, node, direction):
    """Its processes end, which its edges process sees."""
    cluster.fabric.absent[instance(cluster, workload)] = ""
    cluster.fault(cluster.end(f"{node}.edges", direction), EdgeFaultCode.WORKER_CRASHED, f"{workload} ended")


def saves(cluster):
    return sum(type(envelope.message).__name__ == "SaveDocument" for envelope in cluster.world.sent)


@pytest.mark.parametrize(("workload", "node", "direction"), ENDS)
def test_a_stopped_instance_costs_nothing_however_long_and_is_seen_when_it_runs(joined, workload, node, direction):
    stop(joined, workload, node, direction)
    joined.until("waiting", 5)
    joined.world.advance(10)
    records, written = len(joined.chain_disk.records), saves(joined)
    assert joined.story() == ["opening 1", "ready 1", "faulted 1", "closed 1"]
    joined.world.advance(300)
    line = joined.line()
    assert (line.phase, line.reason) == ("waiting", f"{workload}@{node} does not run")
    assert (line.run_id, line.lives, line.faults, line.fault) == (1, 1, 1, "worker_crashed")
    assert (len(joined.chain_disk.records), saves(joined)) == (records, written)
    joined.fabric.absent.clear()
    line = joined.until("ready", 3)
    assert (line.run_id, line.faults, line.fault) == (2, 1, "worker_crashed")


def test_it_is_asked_at_growing_intervals_once_for_all_edges_that_wait(kit, joined):
    for name in ("alarm", "store"):
        joined.place(name, "loft")
        joined.add("hostwatch.out", f"{name}.in")
    joined.world.run_until(lambda: [work.phase.value for work in joined.works()] == ["ready"] * 3, 10)
    joined.fabric.absent[instance(joined, "hostwatch")] = ""
    for line in joined.lines().values():
        joined.fault(joined.end("attic.edges", EGRESS, line.name), EdgeFaultCode.WORKER_CRASHED)
    joined.world.run_until(lambda: all("does not run" in work.reason for work in joined.works()), 5)
    times = []
    count = len(asked(joined, "hostwatch"))

    def counted():
        nonlocal count
        if len(asked(joined, "hostwatch")) > count:
            count = len(asked(joined, "hostwatch"))
            times.append(joined.world.now_s)
        return len(times) > 8

    joined.world.run_until(counted, 30)
    waits = [later - earlier for earlier, later in pairwise(times)]
    assert max(waits) == pytest.approx(2.0, abs=0.1)
    assert count < 20, "three edges ask no more than one"
    joined.fabric.absent.clear()
    joined.world.run_until(lambda: [work.phase.value for work in joined.works()] == ["ready"] * 3, 4)
    joined.never_two()


def test_what_its_node_says_more_is_shown(joined):
    joined.fabric.absent[instance(joined, "trend")] = "it runs in epoch 1.9"
    joined.fault(joined.end("shed.edges", INGRESS), EdgeFaultCode.WORKER_CRASHED)
    joined.world.advance(5)
    assert joined.line().reason == "trend@shed does not run: it runs in epoch 1.9"


def test_an_edge_that_is_new_waits_too_and_its_pair_is_not_judged_before_it_runs(kit):
    cluster = kit.cluster("attic", "shed")
    row = cluster.place("hostwatch", "attic")
    cluster.place("trend", "shed")
    cluster.fabric.absent[row.record.instance_id] = ""
    cluster.add("hostwatch.out", "trend.in")
    cluster.world.advance(20)
    line = cluster.line()
    assert (line.phase, line.reason, line.run_id) == ("waiting", "hostwatch@attic does not run", 0)
    assert cluster.told("workload.edge") == []
    cluster.fabric.absent.clear()
    assert cluster.until("ready", 5).faults == 0


@pytest.mark.parametrize("lost", ["FindRun", "RunFound"])
def test_an_edges_process_that_does_not_tell_is_asked_again(kit, lost):
    cluster = kit.cluster("attic", "shed")
    cluster.world.lose(lambda envelope: type(envelope.message).__name__ == lost, 3)
    cluster.place("hostwatch", "attic")
    cluster.place("trend", "shed")
    cluster.add("hostwatch.out", "trend.in")
    cluster.world.run_until(lambda: "does not tell whether" in cluster.works()[0].reason, 10)
    assert cluster.line().run_id == 0
    cluster.until("ready", 30)


def test_an_edges_process_that_goes_while_it_is_asked_is_started_again(joined):
    stop(joined, *ENDS[1])
    joined.world.run_until(lambda: "does not run" in joined.works()[0].reason, 5)
    joined.kill_edges("shed.edges", restart_s=None)
    joined.fabric.absent.clear()
    joined.until("ready", 30)
    assert joined.asked.count("shed.edges") == 2


def test_nobody_is_asked_any_more_when_the_edge_is_stopped_or_its_instance_gone(joined):
    stop(joined, *ENDS[1])
    joined.world.run_until(lambda: "does not run" in joined.works()[0].reason, 5)
    joined.unload(next(row for row in joined.rows.values() if row.node == "shed"))
    joined.world.advance(3)
    count = len(joined.fabric.asked)
    joined.world.advance(30)
    assert len(joined.fabric.asked) == count
    joined.fabric.absent[joined.place("trend", "shed").record.instance_id] = ""
    joined.world.advance(3)
    joined.remove("hostwatch.out -> trend.in")
    joined.world.advance(3)
    count = len(joined.fabric.asked)
    joined.world.advance(30)
    assert len(joined.fabric.asked) == count
    assert joined.planner()._acts._runs._watched == {}


def test_an_instance_that_stops_while_a_life_begins_is_a_fault_that_hides_no_better_one(joined):
    joined.fault(joined.end("shed.edges", INGRESS), EdgeFaultCode.SEQUENCE_VIOLATION, "9 follows 7")
    joined.fabric.slow.add("shed.edges")

    def stops(end):
        end.fault, end.fault_text = EdgeFaultCode.WORKER_NOT_RUNNING, "trend does not run here"
        end.state = EdgeProvisionState.STOPPED

    joined.fabric.on_open["shed.edges"] = stops
    joined.world.run_until(lambda: joined.run() == 2, 5)
    joined.fabric.absent[instance(joined, "trend")] = ""
    joined.world.run_until(lambda: "does not run" in joined.works()[0].reason, 10)
    line = joined.line()
    assert (line.lives, line.faults) == (2, 2)
    assert (line.fault, line.fault_text) == ("sequence_violation", "9 follows 7")
    joined.world.advance(1)
    assert [told.get("fault") for told in joined.told() if told["phase"] == "faulted"] == [
        "sequence_violation",
        "worker_not_running",
    ]


def test_with_the_real_edges_actors_a_crashed_workload_is_one_fault_until_it_runs_again(kit):
    cluster = kit.joined(real=True)
    cluster.world.ask(Address("attic.edges/workers"), CrashWorkload(instance_id=instance(cluster, "hostwatch")))
    cluster.world.run_until(lambda: cluster.phase() == "waiting" and "does not run" in cluster.works()[0].reason, 20)
    cluster.world.advance(60)
    line = cluster.line()
    assert (line.run_id, line.faults, line.fault) == (1, 1, "worker_crashed")
    cluster.workloads["attic.edges"].over.clear()
    cluster.until("ready", 5)
    assert cluster.story() == ["opening 1", "ready 1", "faulted 1", "closed 1", "opening 2", "ready 2"]


def test_a_planner_that_restarts_while_an_edge_waits_begins_no_life_either(joined):
    stop(joined, *ENDS[0])
    joined.until("waiting", 5)
    joined.restart_planner()
    joined.world.advance(20)
    assert joined.line().reason == "hostwatch@attic does not run"
    assert joined.run() == 1


def test_a_life_that_is_open_is_not_asked_about(joined):
    count = len(joined.fabric.asked)
    joined.fabric.absent[instance(joined, "trend")] = ""
    joined.world.advance(60)
    assert (joined.line().phase, len(joined.fabric.asked)) == ("ready", count)
    assert all(isinstance(question, FindRun) for question in joined.fabric.asked)
    assert all(isinstance(order, OpenEdge) for order in joined.fabric.opens)


# after the end of a stream


def finished(cluster):
    for process, direction in (("attic.edges", EGRESS), ("shed.edges", INGRESS)):
        end = cluster.end(process, direction)
        end.ended = True
        cluster.tell_of(end)
    return cluster.until("finished", 5)


@pytest.mark.parametrize("down_s", [0, 30])
@pytest.mark.parametrize("replan", [False, True])
def test_a_producer_that_runs_again_has_a_new_stream(joined, down_s, replan):
    finished(joined)
    producer = instance(joined, "hostwatch")
    joined.fabric.absent[producer] = ""
    if replan:
        joined.restart_planner()
    joined.world.advance(down_s)
    assert (joined.phase(), joined.run()) == ("finished", 1)
    joined.fabric.absent.clear()
    joined.fabric.runs[producer] = "second"
    line = joined.until("ready", 5)
    assert (line.run_id, line.faults) == (2, 0)
    joined.world.advance(1)
    assert joined.story() == ["opening 1", "ready 1", "finished 1", "closed 1", "opening 2", "ready 2"]
    finished(joined)
    joined.world.advance(60)
    assert (joined.phase(), joined.run()) == ("finished", 2)


@pytest.mark.parametrize("replan", [False, True])
def test_a_finished_edge_costs_nothing_while_its_producer_runs_on_or_its_consumer_runs_again(joined, replan):
    finished(joined)
    if replan:
        joined.restart_planner()
    joined.fabric.runs[instance(joined, "trend")] = "second"
    joined.world.advance(5)
    records, written = len(joined.chain_disk.records), saves(joined)
    joined.world.advance(120)
    assert (joined.phase(), joined.run()) == ("finished", 1)
    assert (len(joined.chain_disk.records), saves(joined)) == (records, written)


def test_with_the_real_edges_actors_a_finished_edge_comes_back_with_its_producer(kit):
    cluster = kit.joined(real=True)
    producer = instance(cluster, "hostwatch")
    cluster.world.ask(Address("attic.edges/workers"), ClosePort(instance_id=producer, port="out"))
    cluster.until("finished", 20)
    cluster.world.advance(10)
    assert cluster.phase() == "finished"
    cluster.world.ask(Address("attic.edges/workers"), CrashWorkload(instance_id=producer))  # and it runs again
    assert cluster.until("ready", 5).faults == 0


# stopped by order


def order_stop(cluster, workload, stopped=True):
    key = instance(cluster, workload)
    cluster.rows[key] = msgspec.structs.replace(cluster.rows[key], stopped=stopped)


@pytest.mark.parametrize(("workload", "node", "direction"), ENDS)
@pytest.mark.parametrize("consequence", [False, True])
def test_what_was_stopped_by_order_is_no_fault(joined, workload, node, direction, consequence):
    order_stop(joined, workload)
    joined.world.advance(3)
    assert joined.phase() == "ready", "it may still send or take what is on its way"
    if consequence:
        far = ("shed.edges", INGRESS) if node == "attic" else ("attic.edges", EGRESS)
        joined.fault(joined.end(*far), EdgeFaultCode.PEER_RESTARTED, "the far end went")
    else:
        stop(joined, workload, node, direction)
    joined.world.advance(60)
    line = joined.line()
    assert (line.phase, line.reason) == ("waiting", f"{workload}@{node} does not run: stopped by order")
    assert (line.run_id, line.faults, line.fault) == (1, 0, None)
    assert joined.story() == ["opening 1", "ready 1", "closed 1"]
    assert joined.told()[-1]["why"] == "stopped"
    joined.fabric.absent.clear()
    joined.world.advance(5)
    assert joined.phase() == "waiting", "the order to stop is not carried out yet"
    order_stop(joined, workload, stopped=False)
    assert joined.until("ready", 5).run_id == 2
    assert len(joined.told("workload.edge")) == 2, "the same pair is not judged anew"


def test_another_fault_stays_one_though_an_instance_is_being_stopped(joined):
    order_stop(joined, "trend")
    joined.fault(joined.end("shed.edges", INGRESS), EdgeFaultCode.RING_HEADER_CHANGED, "magic is 0")
    joined.world.advance(5)
    assert (joined.line().faults, joined.line().fault) == (1, "ring_header_changed")
