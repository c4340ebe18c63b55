"""A node that dies at any moment: afterwards table and reality agree, and what ran runs on (design 6 and 8, P 6.4)."""

import pytest

from actors.actor import AskFailed
from actors.document import StateDamaged
from actors.node.state import AgentState, decode_state, encode_state
from messages.control import CtlConfig, Epoch, FenceBody, InstanceBody, Method, Once, Refusal, RefusalCode
from messages.ports import StopInstance
from runtime.simulated.launcher import EndInstance, SimulatedInstance


@pytest.fixture
def running(rig, package):
    return rig.place(package)["instance_id"]


def test_a_restarted_agent_adopts_what_runs_with_its_pid(rig, running):
    pid = rig.host.running()[running]
    rig.restart_agent()
    assert rig.row(running)["status"]["pid"] == pid
    assert rig.book.of("workload.lifecycle") == []
    rig.agree()
    rig.end(running, exit_code=1)
    assert rig.row(running)["lifecycle"] == "running"
    assert rig.host.running()[running] != pid


def test_a_restarted_process_adopts_what_runs_with_its_pid(rig, running):
    pid = rig.host.running()[running]
    rig.restart_node()
    assert rig.host.running() == {running: pid}
    rig.agree()


def test_what_ended_while_nobody_looked_is_started_again_within_its_epoch(rig, running):
    rig.world.crash(rig.agent)
    rig.end(running, exit_code=7)
    rig.restart_agent()
    rig.world.advance(2)
    assert running in rig.host.running()
    told = [payload["reason"] for _, payload in rig.book.of("workload.lifecycle")]
    assert "code 7" in told[0]
    rig.agree()


def test_a_one_shot_that_ended_while_nobody_looked_is_finished(rig, package):
    rig.behave(package, exit_after_s=10.0)
    name = rig.place(package, config=CtlConfig(mode=Once()))["instance_id"]
    rig.world.crash(rig.agent)
    rig.world.advance(11)
    rig.restart_agent()
    rig.world.advance(2)
    assert rig.row(name)["lifecycle"] == "finished"
    rig.agree()


def test_after_a_power_cut_what_should_run_is_started_and_the_rest_is_not(rig, package, make_sample):
    first = rig.place(package)["instance_id"]
    second = rig.place(rig.offer(make_sample("other", program=b"other")))["instance_id"]
    rig.verb(Method.STOP, second)
    rig.restart_node(power_cut=True)
    rig.world.advance(2)
    assert set(rig.host.running()) == {first}
    assert rig.row(second)["lifecycle"] == "stopped"
    rig.agree()


def test_restarts_are_counted_across_restarts_of_the_agent_but_not_of_the_machine(rig, running):
    for _ in range(3):
        rig.end(running, exit_code=1)
        rig.world.advance(5)
    rig.restart_agent()
    assert rig.row(running)["restarts"] == 3
    rig.restart_node(power_cut=True)
    rig.world.advance(2)
    assert rig.row(running)["restarts"] == 1
    assert running in rig.host.running()


def test_a_stop_that_was_cut_short_is_completed(rig, package):
    rig.behave(package, stop_s=1.0)
    name = rig.place(package)["instance_id"]
    rig.send(rig.request(Method.STOP, {"instance_id": name}, decision_id=rig.decision()))
    rig.world.run_idle()
    assert name in rig.host.running()
    rig.restart_agent()
    rig.world.advance(5)
    assert rig.row(name)["lifecycle"] == "stopped"
    rig.agree()


@pytest.mark.parametrize("method", [Method.STOP, Method.UNLOAD])
def test_a_run_that_ends_while_its_stop_is_under_way_is_a_run_that_ended(rig, running, method):
    """The launcher tells the end, then refuses the stop; the refusal overtakes what it told."""
    ends = []

    def end_just_before(envelope):
        if isinstance(envelope.message, StopInstance) and not ends:
            ends.append(rig.world.start_ask(rig.launcher, EndInstance(instance_id=running, exit_code=4), timeout_s=5))
        return False

    rig.world.lose(end_just_before)
    answer = rig.verb(method, running)
    assert ends
    if method is Method.STOP:
        assert answer == {"stopped": running, "exit_code": 4}
        assert rig.row(running)["lifecycle"] == "stopped"
    else:
        assert answer == {"unloaded": running}
    rig.agree()
    assert rig.world.actor(rig.agent)._host.state.starts == 1, "the agent did not have to start anew"


def test_an_instance_whose_files_are_gone_is_shown_as_failed(rig, running):
    rig.world.crash_process("shed")
    rig.host.instances.clear()
    rig.start_node()
    rig.world.run_idle()
    assert rig.row(running)["lifecycle"] == "failed"
    assert rig.host.running() == {}


def test_what_no_table_knows_is_ended_and_removed(rig, running):
    rig.world.crash_process("shed")
    rig.disk.documents.clear()
    rig.start_node()
    rig.world.advance(5)
    assert rig.host.instances == {}
    rig.agree()


def test_a_launcher_that_restarts_alone_ends_the_agent_which_then_adopts_anew(rig, running):
    """A fresh launcher would say of everything that it does not run."""
    pid = rig.host.running()[running]
    rig.world.crash(rig.launcher)
    rig.world.run_idle()
    assert rig.agent not in rig.world.cells
    rig.start_node()
    rig.world.run_idle()
    assert rig.row(running)["status"]["pid"] == pid
    rig.agree()


def test_a_launcher_that_knows_nothing_of_a_run_is_not_believed(rig, running):
    rig.world.lose(lambda envelope: type(envelope.message).__name__ == "Down")
    rig.world.crash(rig.launcher)
    rig.world.run_idle()
    rig.host.instances[running], gone = SimulatedInstance(staged=rig.host.instances[running].staged), rig.host.running()
    rig.start_node_ports()
    with pytest.raises(AskFailed):
        rig.verb(Method.STOP, running)
    assert gone
    assert rig.agent not in rig.world.cells


def test_a_launcher_that_runs_what_the_agent_does_not_know_ends_the_agent(rig, running):
    order = rig.host.instances[running].starts[0]
    rig.verb(Method.STOP, running)
    rig.world.ask(rig.launcher, order, timeout_s=5)
    with pytest.raises(AskFailed):
        rig.verb(Method.START, running)
    assert rig.agent not in rig.world.cells
    rig.restart_agent()
    rig.world.advance(5)
    rig.agree()


def test_a_stop_of_what_ended_a_moment_ago_is_a_stop(rig, running):
    request = rig.request(Method.STOP, {"instance_id": running}, decision_id=rig.decision())
    pending = rig.send(request)
    rig.world.start_ask(rig.launcher, EndInstance(instance_id=running, exit_code=5))
    rig.world.run_until(lambda: pending.done)
    rig.world.advance(5)
    assert rig.outcome(request, pending)["stopped"] == running
    assert rig.row(running)["lifecycle"] == "stopped"
    rig.agree()


def test_a_damaged_state_starts_no_agent(rig, running):
    rig.world.crash(rig.agent)
    rig.disk.damaged.add("agent")
    rig.start_agent()
    rig.world.run_idle()
    assert rig.agent not in rig.world.cells
    assert running in rig.host.running()


def test_bytes_of_another_release_are_refused(rig):
    with pytest.raises(StateDamaged):
        decode_state(b"\x80\x81")
    with pytest.raises(StateDamaged, match="version 9"):
        decode_state(encode_state(AgentState(version=9)))
    assert decode_state(None) == AgentState()


# every moment


OPERATIONS = {
    "place": lambda rig, package, name: (Method.PLACE, rig.body(package, number=2)),
    "start": lambda rig, package, name: (Method.START, InstanceBody(instance_id=name)),
    "stop": lambda rig, package, name: (Method.STOP, InstanceBody(instance_id=name)),
    "unload": lambda rig, package, name: (Method.UNLOAD, InstanceBody(instance_id=name)),
}


@pytest.mark.parametrize("whole_process", [False, True], ids=["agent", "process"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_crash_at_any_message_leaves_table_and_reality_in_agreement(make_rig, make_sample, operation, whole_process):
    """The crash comes after the nth message; then the fence of design 8 settles what the asker cannot know."""
    moment = 0
    while True:
        rig = make_rig()
        package = rig.offer(make_sample())
        name = None if operation == "place" else rig.place(package)["instance_id"]
        if operation == "start":
            rig.verb(Method.STOP, name)
        method, body = OPERATIONS[operation](rig, package, name)
        decision = rig.decision()
        pending = rig.send(rig.request(method, body, decision_id=decision))
        for _ in range(moment):
            rig.world._step()
        finished = pending.done
        if whole_process:
            rig.restart_node()
        else:
            rig.restart_agent()
        rig.world.advance(5)
        rig.agree()
        if operation == "place":
            settled = rig.fence(package.slot(body.config), 3, decision)
            rows = settled.get("rows", [])
            assert [row["row"] for row in rows] in ([], ["held"])
            assert bool(rows) == (decision in {row.get("decision_id") for row in rig.rows()})
            late = rig.place(package, decision_id=decision, number=2)
            assert late.code in (RefusalCode.FENCED, RefusalCode.SLOT_HELD)
        elif operation == "stop" and finished:
            assert name not in rig.host.running()
        elif operation == "unload" and finished:
            assert rig.host.instances == {}
        assert len(rig.host.running()) <= 1
        if finished:
            break
        moment += 1
    assert moment > 5


LOST = {
    "save": ("SaveDocument", "shed/agent"),
    "saved": ("Done", "shed/store"),
    "stage": ("StageInstance", "shed/agent"),
    "staged": ("Done", "shed/launcher"),
    "start": ("StartInstance", "shed/agent"),
    "started": ("InstanceStarted", "shed/launcher"),
}


@pytest.mark.parametrize("lost", LOST)
@pytest.mark.parametrize("nth", range(3))
def test_a_port_that_does_not_answer_never_leaves_a_lie(rig, package, lost, nth):
    """What may or may not have happened ends the agent without an answer; its next incarnation finds out."""
    skipped = iter([False] * nth + [True] * 100)

    def matching(envelope):
        said = (type(envelope.message).__name__, envelope.sender)
        return said == LOST[lost] and next(skipped)

    rig.world.lose(matching)
    decision = rig.decision()
    pending = rig.send(rig.request(Method.PLACE, rig.body(package), decision_id=decision))
    rig.world.run_until(lambda: pending.done, limit_s=301)
    if rig.agent not in rig.world.cells:
        with pytest.raises(AskFailed):
            pending.result()
        rig.restart_agent()
    rig.world.advance(20)
    if rig.agent not in rig.world.cells:
        rig.restart_agent()
    rig.agree()
    rig.world._losses.clear()
    told = [row for row in rig.rows() if row["row"] == "held"]
    rig.restart_agent()
    assert [row for row in rig.rows() if row["row"] == "held"] == told
    rig.agree()


# fence


def test_a_lost_answer_is_found_by_the_fence_and_taken_down(rig, package):
    decision = rig.decision()
    rig.world.lose(lambda envelope: type(envelope.message).__name__ == "ControlAnswer")
    pending = rig.send(rig.request(Method.PLACE, rig.body(package), decision_id=decision), timeout_s=30)
    rig.world.run_until(lambda: pending.done)
    with pytest.raises(AskFailed):
        pending.result()
    found = rig.fence(rig.body(package).slot, 2, decision)
    assert [row["decision_id"] for row in found["rows"]] == [decision]
    name = found["rows"][0]["instance_id"]
    unloaded = rig.call(Method.UNLOAD, {"instance_id": name}, decision_id=decision)
    assert unloaded == {"unloaded": name}
    rig.agree()


def test_a_fenced_slot_refuses_late_orders_for_ever_and_takes_later_epochs(rig, package):
    slot = rig.body(package).slot
    decision = rig.decision()
    assert rig.fence(slot, 2, decision) == {"floor": {"term": 1, "number": 2}, "rows": []}
    for restart in (lambda: None, rig.restart_agent, rig.restart_node):
        restart()
        rig.world.advance(1000)
        late = rig.place(package, decision_id=decision, number=1)
        assert late.code is RefusalCode.FENCED
    assert rig.host.instances == {}
    assert rig.place(package, number=2)["status"]["state"] == "running"


def test_a_fence_reports_only_when_its_floor_is_durable(rig, package):
    rig.disk.full = True
    assert rig.fence(rig.body(package).slot, 2, rig.decision()).code is RefusalCode.RUNTIME
    rig.disk.full = False
    assert rig.place(package, number=1)["status"]["state"] == "running"


def test_a_lower_fence_does_not_lower_the_floor(rig, package):
    slot = rig.body(package).slot
    rig.fence(slot, 5, rig.decision())
    assert rig.fence(slot, 2, rig.decision())["floor"] == {"term": 1, "number": 5}
    assert rig.place(package, number=4).code is RefusalCode.FENCED


def test_a_fence_overtakes_an_order_that_is_still_fetching(rig, package):
    decision = rig.decision()
    rig.world.lose(lambda envelope: type(envelope.message).__name__ == "Block")
    request = rig.request(Method.PLACE, rig.body(package), decision_id=decision)
    pending = rig.send(request)
    rig.world.run_idle()
    during = rig.fence(rig.body(package).slot, 2, decision)
    assert [row["row"] for row in during["rows"]] == ["in_flight"]
    rig.world.run_until(lambda: pending.done)
    refusal = rig.outcome(request, pending)
    assert refusal.code is RefusalCode.FENCED
    assert rig.fence(rig.body(package).slot, 2, decision)["rows"] == []
    rig.agree()


@pytest.mark.parametrize("method", [Method.PLACE, Method.LOAD])
def test_a_fence_at_any_moment_of_an_order_tells_what_will_be(make_rig, make_sample, method):
    """What a fence does not show, in flight or held, never comes; and nothing is started that it came before."""
    moment, done = 0, False
    refused = set()
    while not done:
        rig = make_rig()
        package = rig.offer(make_sample())
        decision = rig.decision()
        request = rig.request(method, rig.body(package), decision_id=decision)
        pending = rig.send(request)
        for _ in range(moment):
            rig.world._step()
        done = pending.done
        body = FenceBody(slot=rig.body(package).slot, floor=Epoch(term=1, number=2), decision_id=decision)
        order = rig.request(Method.FENCE, body, decision_id=decision)
        fence = rig.send(order)
        rig.world.run_until(lambda: fence.done)  # noqa: B023
        shown = rig.outcome(order, fence)["rows"]
        started = rig.said("StartInstance")
        rig.world.run_until(lambda: pending.done)  # noqa: B023
        rig.world.run_idle()
        outcome = rig.outcome(request, pending)
        if isinstance(outcome, Refusal):
            assert outcome.code is RefusalCode.FENCED
            refused.add("start failed" in outcome.reason)
            assert rig.host.instances == {}
        else:
            assert "held" in {row["row"] for row in shown}
            assert started == len(rig.host.running()) == (method is Method.PLACE)
        rig.agree()
        moment += 1
    assert refused == {False, True} if method is Method.PLACE else {False}


def test_an_epoch_is_good_once(rig, package):
    name = rig.place(package)["instance_id"]
    rig.verb(Method.UNLOAD, name)
    again = rig.place(package)
    assert again.code is RefusalCode.STALE_EPOCH
    rig.restart_agent()
    assert rig.place(package).code is RefusalCode.STALE_EPOCH
    assert rig.place(package, number=2)["instance_id"] == name


def test_a_higher_term_begins_its_epochs_anew_and_old_marks_are_forgotten(rig, package, make_sample):
    name = rig.place(package, number=9)["instance_id"]
    rig.verb(Method.UNLOAD, name)
    rig.fence(rig.body(package).slot, 12, rig.decision())
    rig.term = 2
    other = rig.offer(make_sample("other", program=b"other"))
    rig.place(other)
    assert set(rig.world.actor(rig.agent)._host.state.marks) == {rig.body(other).slot}
    refusal = rig.place(package, number=9, term=1)
    assert refusal.code is RefusalCode.STALE_EPOCH
    assert rig.place(package, number=1)["instance_id"] == name
