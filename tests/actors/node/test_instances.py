"""The verbs on an instance, and what the node does by itself when one ends (P 10.12)."""

import pytest

from messages.control import CtlConfig, Interval, Method, Once, RefusalCode
from runtime.simulated.launcher import WriteOutput


@pytest.fixture
def running(rig, package):
    return rig.place(package)["instance_id"]


def steps(rig):
    return [(payload["from"], payload["to"], payload["reason"]) for _, payload in rig.book.of("workload.lifecycle")]


def states(rig):
    return [to for _, to, _ in steps(rig)]


# verbs


def test_stop_start_and_unload(rig, running):
    pid = rig.host.running()[running]
    stopped = rig.verb(Method.STOP, running)
    assert (stopped["stopped"], stopped["signal"]) == (running, 15)
    assert rig.row(running)["lifecycle"] == "stopped"
    rig.agree()
    started = rig.verb(Method.START, running)
    assert started["pid"] != pid
    rig.agree()
    assert rig.verb(Method.UNLOAD, running) == {"unloaded": running}
    assert rig.rows() == [{"row": "departed", "departed_instance": running, "reason": "unloaded"}]
    assert rig.host.instances == {}
    assert rig.verb(Method.STATUS, running).code is RefusalCode.UNKNOWN_INSTANCE
    rig.agree()


def test_the_outcomes_of_the_verbs_are_recorded_by_the_adapter(rig, running):
    rig.verb(Method.STOP, running)
    rig.verb(Method.UNLOAD, running)
    told = [(kind, payload["outcome"]) for kind, payload in rig.book.of(source="workload.runtime")]
    assert told == [(f"workload.{what}", "ok") for what in ("load", "start", "stop", "unload")]
    stop = rig.book.of("workload.stop", "workload.runtime")[0][1]
    assert (stop["evidence"]["signal"], stop["workload_id"]) == (15, "hostwatch")


@pytest.mark.parametrize("method", [Method.START, Method.STOP, Method.UNLOAD, Method.STATUS, Method.LOGS])
def test_an_instance_that_is_not_here_is_unknown(rig, method):
    assert rig.verb(method, "nobody-n-0000000000000000").code is RefusalCode.UNKNOWN_INSTANCE


@pytest.mark.parametrize("method", [Method.START, Method.STOP, Method.UNLOAD, Method.LOGS])
def test_only_a_status_may_leave_the_instance_out(rig, method):
    assert rig.call(method, {}).code is RefusalCode.INVALID_REQUEST


def test_a_grace_beyond_its_bound_is_refused(rig, running):
    assert rig.call(Method.STOP, {"instance_id": running, "grace_ms": 60_001}).code is RefusalCode.INVALID_REQUEST


def test_a_second_start_is_refused_and_a_second_stop_changes_nothing(rig, running):
    refusal = rig.verb(Method.START, running)
    assert refusal.code is RefusalCode.RUNTIME
    assert "runs already" in refusal.reason
    rig.verb(Method.STOP, running)
    records = len(rig.book.of("workload.stop", "workload.runtime"))
    assert rig.verb(Method.STOP, running)["signal"] == 15
    assert len(rig.book.of("workload.stop", "workload.runtime")) == records


def test_the_grace_is_the_orders_and_what_ignores_it_is_killed(rig, package):
    rig.behave(package, stop_s=100.0)
    name = rig.place(package)["instance_id"]
    began = rig.world.now_s
    stopped = rig.call(Method.STOP, {"instance_id": name, "grace_ms": 7_000})
    assert (stopped["killed"], stopped["signal"]) == (True, 9)
    assert rig.world.now_s - began == pytest.approx(7.0, abs=0.1)


def test_a_stop_does_not_wait_for_the_chain_and_its_record_follows(rig, running):
    rig.book.down = True
    assert rig.verb(Method.STOP, running)["stopped"] == running
    assert rig.host.running() == {}
    refusal = rig.verb(Method.START, running)
    assert refusal.code is RefusalCode.GOVERNANCE
    rig.book.down = False
    rig.world.advance(2)
    assert rig.book.of("workload.stop", "workload.runtime")[0][1]["outcome"] == "ok"


def test_records_that_are_owed_outlive_the_agent_and_are_written_once(rig, running):
    rig.book.down = True
    rig.verb(Method.STOP, running)
    rig.verb(Method.UNLOAD, running)
    rig.restart_agent()
    rig.book.down = False
    rig.world.advance(2)
    rig.restart_agent()
    rig.world.advance(2)
    told = [kind for kind, _ in rig.book.of(source="workload.runtime")]
    assert told == ["workload.load", "workload.start", "workload.stop", "workload.unload"]


def test_a_denied_teardown_stands(make_rig, make_sample):
    rig = make_rig(actions=("workload.load", "workload.start"))
    name = rig.place(rig.offer(make_sample()))["instance_id"]
    for method in (Method.STOP, Method.UNLOAD):
        assert rig.verb(method, name).code is RefusalCode.GOVERNANCE
    assert name in rig.host.running()


def test_verbs_on_one_instance_take_turns(rig, package):
    rig.behave(package, stop_s=1.0)
    name = rig.place(package)["instance_id"]
    requests = [
        rig.request(method, {"instance_id": name}, decision_id=rig.decision())
        for method in (Method.STOP, Method.START, Method.UNLOAD)
    ]
    pending = [rig.send(request) for request in requests]
    rig.world.run_until(lambda: all(one.done for one in pending))
    results = [rig.outcome(request, one) for request, one in zip(requests, pending, strict=True)]
    assert [next(iter(result)) for result in results] == ["stopped", "started", "unloaded"]
    rig.agree()


def test_a_stop_that_the_disk_refuses_is_no_stop(rig, running):
    rig.disk.full = True
    assert rig.verb(Method.STOP, running).code is RefusalCode.RUNTIME
    assert running in rig.host.running()
    rig.disk.full = False
    rig.agree()


# output


def test_logs_are_read_from_the_asked_offset_and_followed_by_asking_again(rig, package):
    rig.behave(package, output="grüße\n".encode())
    name = rig.place(package)["instance_id"]
    first = rig.verb(Method.LOGS, name, stdout_offset=0)
    assert (first["stdout"], first["running"], first["stdout_next"]) == ("grüße\n", True, 8)
    assert rig.verb(Method.LOGS, name, stdout_offset=8)["stdout"] == ""
    rig.world.ask(rig.launcher, WriteOutput(instance_id=name, data=b"more \xc3"), timeout_s=5)
    half = rig.verb(Method.LOGS, name, stdout_offset=8)
    assert (half["stdout"], half["stdout_next"]) == ("more ", 13)
    rig.world.ask(rig.launcher, WriteOutput(instance_id=name, data=b"\xbc"), timeout_s=5)
    assert rig.verb(Method.LOGS, name, stdout_offset=13)["stdout"] == "ü"


def test_logs_without_offset_are_the_last_of_what_there_is(rig, package):
    rig.behave(package, output=b"x" * 70_000)
    name = rig.place(package)["instance_id"]
    told = rig.verb(Method.LOGS, name)
    assert (len(told["stdout"]), told["stdout_next"]) == (65_536, 70_000)
    rig.end(name, exit_code=0)


def test_broken_text_is_shown_and_not_waited_for_once_the_run_is_over(rig, package):
    rig.behave(package, output=b"end \xc3", exit_code=4)
    name = rig.place(package, config=CtlConfig(mode=Once()))["instance_id"]
    told = rig.verb(Method.LOGS, name, stdout_offset=0)
    assert (told["stdout"], told["stdout_next"]) == ("end \N{REPLACEMENT CHARACTER}", 5)


# ends by themselves


def test_a_healthy_instance_causes_nothing(rig, running):
    rig.world.advance(120)
    assert steps(rig) == []
    rig.agree()


def test_a_crashing_listener_is_restarted_three_times_and_then_given_up(rig, running):
    for _ in range(4):
        rig.end(running, exit_code=3)
        rig.world.advance(35)
    told = steps(rig)
    assert [to for _, to, _ in told] == ["unhealthy", "restarting", "running"] * 3 + ["unhealthy", "failed"]
    assert "restart 1/3" in told[1][2]
    assert "code 3" in told[0][2]
    assert "budget spent" in told[-1][2]
    assert len(rig.book.of("workload.start", "workload.runtime")) == 4
    row = rig.row(running)
    assert (row["lifecycle"], row["restarts"], row["status"]["state"]) == ("failed", 3, "exited")
    rig.world.advance(700)
    assert len(steps(rig)) == len(told)
    rig.agree()


def test_restarts_wait_one_second_and_then_twice_as_long(rig, running):
    rig.end(running, exit_code=1)
    assert running in rig.host.running()  # the first at once
    rig.end(running, exit_code=1)
    rig.world.advance(0.9)
    assert running not in rig.host.running()
    rig.world.advance(0.2)
    assert running in rig.host.running()
    rig.end(running, exit_code=1)
    rig.world.advance(1.8)
    assert running not in rig.host.running()
    rig.world.advance(0.3)
    assert running in rig.host.running()
    rig.agree()


def test_restarts_long_ago_do_not_count(rig, running):
    for _ in range(6):
        rig.end(running, signal=11)
        rig.world.advance(301)
    assert running in rig.host.running()


def test_a_restart_keeps_its_epoch_and_asks_neither_gate_nor_chain(rig, running):
    rig.book.down = True
    rig.end(running, exit_code=1)
    assert running in rig.host.running()
    assert [start.epoch for start in rig.host.instances[running].starts] == ["1.1", "1.1"]
    rig.book.down = False
    rig.world.advance(2)
    assert states(rig) == ["unhealthy", "restarting", "running"]


def test_a_restart_that_fails_is_tried_again_within_the_budget(rig, package, running):
    rig.behave(package, start="no such interpreter")
    rig.end(running, exit_code=1)
    rig.world.advance(60)
    assert rig.row(running)["lifecycle"] == "failed"
    assert states(rig)[:3] == ["unhealthy", "restarting", "unhealthy"]
    rig.behave(package)
    assert rig.verb(Method.START, running)["started"] == running
    row = rig.row(running)
    assert (row["lifecycle"], row.get("restarts", 0)) == ("running", 0)


def test_an_operators_stop_is_final(rig, running):
    rig.verb(Method.STOP, running)
    rig.world.advance(100)
    assert rig.row(running)["lifecycle"] == "stopped"
    assert steps(rig) == []
    rig.restart_node()
    rig.world.advance(100)
    assert rig.row(running)["lifecycle"] == "stopped"
    rig.agree()


def test_a_stop_while_a_restart_waits_is_final_too(rig, running):
    rig.end(running, exit_code=1)
    rig.end(running, exit_code=1)
    assert rig.row(running)["lifecycle"] == "unhealthy"
    rig.verb(Method.STOP, running)
    rig.world.advance(100)
    assert rig.row(running)["lifecycle"] == "stopped"
    assert rig.host.running() == {}


def test_a_one_shot_that_ends_well_is_finished_and_not_started_again(rig, package):
    rig.behave(package, exit_after_s=2.0)
    name = rig.place(package, config=CtlConfig(mode=Once()))["instance_id"]
    rig.world.advance(100)
    assert states(rig) == ["finished"]
    row = rig.row(name)
    assert (row["lifecycle"], row["status"]["exit_code"]) == ("finished", 0)
    assert rig.verb(Method.START, name)["started"] == name


def test_a_one_shot_that_ends_badly_is_restarted(rig, package):
    rig.behave(package, exit_after_s=1.0, exit_code=2)
    name = rig.place(package, config=CtlConfig(mode=Once()))["instance_id"]
    rig.world.advance(100)
    assert rig.row(name)["lifecycle"] == "failed"
    assert len(rig.host.instances[name].starts) == 4


def test_a_clean_exit_of_what_should_go_on_is_a_failure(rig, package):
    rig.behave(package, exit_after_s=5.0)
    name = rig.place(package, config=CtlConfig(mode=Interval(secs=1)))["instance_id"]
    rig.world.advance(5.1)
    assert states(rig) == ["unhealthy", "restarting", "running"]
    assert name in rig.host.running()


def test_the_word_of_an_earlier_end_does_not_count_against_the_next_run(rig, package, running):
    """The end is told while a stop and a start are in hand: it belongs to the run before."""
    rig.behave(package, stop_s=0.5)
    requests = [
        rig.request(method, {"instance_id": running}, decision_id=rig.decision())
        for method in (Method.STOP, Method.START)
    ]
    pending = [rig.send(request) for request in requests]
    rig.world.run_until(lambda: all(one.done for one in pending))
    rig.world.advance(5)
    assert steps(rig) == []
    assert len(rig.host.instances[running].starts) == 2
    rig.agree()


def test_a_full_disk_delays_a_restart_until_there_is_room(rig, running):
    rig.disk.full = True
    rig.end(running, exit_code=1)
    rig.world.advance(10)
    assert rig.host.running() == {}
    rig.disk.full = False
    rig.world.advance(2)
    assert running in rig.host.running()
    rig.agree()
