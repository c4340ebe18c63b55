"""Place and load on a node: what happens, in which order, and what is left when it does not."""

import pytest

from actors.actor import Actor, AskFailed
from actors.node.settings import AgentSettings
from actors.packages.keys import TrustAnchors
from messages.control import CtlConfig, Epoch, Interval, Listener, Method, Once, Refusal, RefusalCode
from messages.gate import Check, Decision, GateVerdictOf, Verdict
from messages.packages import Arch
from messages.ports import PortRefusal
from runtime.simulated.launcher import Behaviour


def test_a_place_fetches_verifies_stages_starts_and_answers(rig, package):
    result = rig.place(package)
    assert (result["runtime"], result["variant"], result["status"]["state"]) == ("native", "noarch-native", "running")
    name = result["instance_id"]
    started = rig.host.instances[name].starts[0]
    assert started.arguments == ["--interval", "1"]
    assert started.environment == {
        "SENNIT_INSTANCE": name, "SENNIT_EPOCH": "1.1", "SENNIT_CSI_BIND": "0.0.0.0:5006",
    }  # fmt: skip
    staged = rig.host.instances[name].staged
    assert (staged.arch, staged.interpreter, staged.sha256) == ("noarch", "/usr/bin/python3", package.program)
    row = rig.row(name)
    assert (row["lifecycle"], row["status"]["pid"]) == ("running", rig.host.running()[name])
    rig.agree()


def test_the_permits_are_on_the_chain_before_the_acts_and_the_outcomes_after(rig, package):
    rig.place(package)
    told = [
        (kind, payload.get("outcome") or payload.get("decision") or payload["phase"]) for kind, payload in rig.book.of()
    ]
    assert told == [
        ("workload.load", "permit"), ("workload.load", "ok"), ("workload.start", "permit"),
        ("workload.start", "ok"), ("workload.place", "placed"),
    ]  # fmt: skip


def test_a_load_stages_and_does_not_start(rig, package):
    name = rig.place(package, method=Method.LOAD)["instance_id"]
    assert rig.row(name)["lifecycle"] == "loaded"
    assert rig.host.running() == {}
    assert rig.verb(Method.START, name)["started"] == name
    rig.agree()


@pytest.mark.parametrize(
    ("mode", "arguments"),
    [
        (Once(), ["--once", "--loud", "--level", "3"]),
        (Interval(secs=60), ["--interval", "60", "--loud", "--level", "3"]),
        (Listener(), ["--loud", "--level", "3"]),
    ],
)
def test_the_command_line_is_the_mode_then_the_arguments(rig, make_sample, mode, arguments):
    declared = '[config.loud]\ncli_arg = "--loud"\ntype = "boolean"\n[config.level]\ncli_arg = "--level"\n'
    package = rig.offer(make_sample(extra=declared))
    rig.behave(package, exit_after_s=5.0)
    config = CtlConfig(mode=mode, args=["--loud", "--level", "3"])
    name = rig.place(package, config=config)["instance_id"]
    assert rig.host.instances[name].starts[0].arguments == arguments


REFUSED = [
    ({"name": "Host/watch"}, RefusalCode.INVALID_REQUEST, "name"),
    ({"manifest_hash": "A" * 64}, RefusalCode.INVALID_REQUEST, "manifest_hash"),
    ({"config": CtlConfig(mode=Interval(secs=0))}, RefusalCode.INVALID_REQUEST, "interval"),
    ({"config": CtlConfig(mode=Once(), csi_port=0)}, RefusalCode.INVALID_REQUEST, "csi_port"),
    ({"slot": ""}, RefusalCode.INVALID_REQUEST, "slot"),
    ({"slot": "cog:hostwatch-0000000000000000"}, RefusalCode.INVALID_REQUEST, "does not follow"),
    ({"project_id": "short"}, RefusalCode.INVALID_REQUEST, "project_id"),
    ({"epoch": Epoch(term=2, number=1)}, RefusalCode.STALE_EPOCH, "term"),
    ({"variant": "noarch-container"}, RefusalCode.ADMISSION, "container"),
    ({"variant": "x86_64-native"}, RefusalCode.ADMISSION, "no payload"),
    ({"manifest_hash": "0" * 64}, RefusalCode.FETCH, ""),
    ({"name": "otherwatch"}, RefusalCode.VERIFY, "hostwatch"),
]


@pytest.mark.parametrize(("changes", "code", "says"), REFUSED, ids=[f"{r[1].value}-{r[2]}" for r in REFUSED])
def test_what_is_not_in_order_is_refused_and_leaves_nothing(rig, package, changes, code, says):
    refusal = rig.call(Method.PLACE, rig.body(package, **changes), decision_id=rig.decision())
    assert isinstance(refusal, Refusal)
    assert refusal.code is code
    assert says in refusal.reason
    assert rig.host.instances == {}
    assert rig.book.of("workload.refuse", "workload.host")[-1][1]["code"] == code.value
    rig.agree()


def test_unknown_arguments_and_unknown_fields_are_refused(rig, package):
    config = CtlConfig(mode=Interval(secs=1), args=["--loud"])
    assert rig.place(package, config=config).code is RefusalCode.INVALID_REQUEST
    assert rig.call(Method.PLACE, {"surprise": 1}).code is RefusalCode.INVALID_REQUEST


def test_a_node_judges_a_package_with_its_own_anchors(make_rig, make_sample):
    rig = make_rig(trusted=TrustAnchors.of([]))
    refusal = rig.place(rig.offer(make_sample()))
    assert refusal.code is RefusalCode.VERIFY
    assert rig.host.instances == {}


def test_a_program_for_another_machine_is_not_admitted(rig, make_sample):
    package = rig.offer(make_sample(arch=Arch.X86_64))
    refusal = rig.call(Method.PLACE, rig.body(package, variant="x86_64-native"), decision_id=rig.decision())
    assert refusal.code is RefusalCode.ADMISSION
    assert "no emulation" in refusal.reason
    recorded = rig.book.of("workload.refuse", "workload.runtime")[-1][1]
    assert (recorded["failed_action"], recorded["error_code"]) == ("workload.load", "admission-refused")


def test_a_native_program_is_staged_without_interpreter(rig, make_sample):
    package = rig.offer(make_sample(arch=Arch.AARCH64))
    name = rig.call(Method.PLACE, rig.body(package, variant="aarch64-native"), decision_id=rig.decision())[
        "instance_id"
    ]
    assert (rig.host.instances[name].staged.arch, rig.host.instances[name].staged.interpreter) == ("aarch64", None)


def test_the_launchers_own_admission_check_is_an_admission_refusal(rig, package):
    rig.behave(package, admission="not an ELF file")
    refusal = rig.place(package)
    assert refusal.code is RefusalCode.ADMISSION
    assert "not an ELF file" in refusal.reason
    rig.agree()


@pytest.mark.parametrize(
    ("actions", "code", "left"),
    [
        ((), RefusalCode.GOVERNANCE, "workload.load denied"),
        (("workload.load", "workload.unload", "workload.stop"), RefusalCode.GOVERNANCE, "was unloaded"),
    ],
)
def test_the_nodes_own_gate_decides(make_rig, make_sample, actions, code, left):
    rig = make_rig(actions=actions)
    package = rig.offer(make_sample())
    refusal = rig.place(package)
    assert refusal.code is code
    assert left in refusal.reason
    assert rig.host.running() == {}
    rig.agree()


def test_a_failed_start_takes_the_instance_with_it(rig, package):
    rig.behave(package, start="exec format error")
    refusal = rig.place(package)
    assert refusal.code is RefusalCode.RUNTIME
    assert "start failed" in refusal.reason
    assert "unloaded" in refusal.reason
    assert "exec format error" in refusal.reason
    assert rig.rows()[-1]["reason"] == "unloaded"
    rig.agree()


def test_a_start_that_cannot_be_taken_back_gets_no_signed_answer(make_rig, make_sample):
    rig = make_rig(actions=("workload.load",))
    package = rig.offer(make_sample())
    with pytest.raises(AskFailed) as caught:
        rig.place(package)
    assert caught.value.code == "indeterminate"
    assert len(rig.rows()) == 1


def test_a_chain_that_cannot_write_stops_a_place_before_anything_is_done(rig, package):
    rig.book.down = True
    refusal = rig.place(package)
    assert refusal.code is RefusalCode.GOVERNANCE
    assert rig.host.instances == {}
    rig.book.down = False
    rig.world.advance(2.0)
    assert rig.book.of("workload.refuse", "workload.host")[-1][1]["code"] == "governance"
    assert rig.place(package)["status"]["state"] == "running"


def test_a_full_disk_stops_a_place_and_beats_go_on(rig, package):
    rig.disk.full = True
    refusal = rig.place(package)
    assert refusal.code is RefusalCode.RUNTIME
    assert "disk_full" in refusal.reason
    rig.agree()
    rig.disk.full = False
    assert rig.place(package)["status"]["state"] == "running"
    rig.agree()


def test_a_table_that_cannot_be_written_takes_the_folder_back(rig, package, make_sample):
    rig.place(rig.offer(make_sample("other", program=b"other")))
    before = set(rig.host.instances)
    rig.disk.full = True
    assert rig.place(package).code is RefusalCode.RUNTIME
    assert rig.said("StageInstance") == 2
    assert set(rig.host.instances) == before
    rig.agree()


class Unrecorded(Actor[Check]):
    """Permits, and leaves no record."""

    mailbox = Check

    def receive(self, message, ctx):
        ctx.reply(Verdict(verdict=GateVerdictOf(decision=Decision.PERMIT)))


def test_a_permit_without_a_record_is_none(rig, package):
    rig.world.stop("shed/gate")
    rig.world.run_idle()
    rig.world.spawn("shed/gate", Unrecorded)
    refusal = rig.place(package)
    assert refusal.code is RefusalCode.GOVERNANCE
    assert "not on the chain" in refusal.reason
    rig.agree()


def test_no_gate_no_act(rig, package):
    rig.world.stop("shed/gate")
    rig.world.run_idle()
    assert rig.place(package).code is RefusalCode.GOVERNANCE
    rig.agree()


def test_a_launcher_without_room_is_a_runtime_refusal(rig, package):
    rig.host.refuse = PortRefusal.DISK_FULL
    assert rig.place(package).code is RefusalCode.RUNTIME
    rig.agree()


def test_a_folder_that_an_unload_left_behind_does_not_hinder(rig, package):
    name = rig.place(package)["instance_id"]
    rig.world.lose(lambda envelope: type(envelope.message).__name__ == "RemoveInstance")
    assert rig.verb(Method.UNLOAD, name)["unloaded"] == name
    assert name in rig.host.instances
    assert rig.place(package, number=2)["instance_id"] == name
    rig.agree()


def test_two_ports_are_two_instances_and_one_slot_is_held_once(rig, package):
    first = rig.place(package)["instance_id"]
    held = rig.place(package, number=2)
    assert held.code is RefusalCode.SLOT_HELD
    assert first in held.reason
    second = rig.place(package, config=CtlConfig(mode=Interval(secs=1), csi_port=5007))["instance_id"]
    assert second != first
    assert len(rig.host.running()) == 2


def test_a_pinned_order_cannot_run_beside_an_unpinned_one_of_the_same_workload(rig, package):
    name = rig.place(package)["instance_id"]
    refusal = rig.place(package, pinned=True)
    assert refusal.code is RefusalCode.SLOT_HELD
    assert name in refusal.reason


def test_an_order_under_way_is_visible_and_holds_its_slot(rig, package):
    decision = rig.decision()
    rig.world.lose(lambda envelope: type(envelope.message).__name__ == "Block")
    request = rig.request(Method.PLACE, rig.body(package), decision_id=decision)
    pending = rig.send(request)
    rig.world.run_idle()
    assert not pending.done
    assert rig.rows() == [{"row": "in_flight", "decision_id": decision, "slot": rig.body(package).slot}]
    assert rig.place(package, number=2).code is RefusalCode.SLOT_HELD
    rig.world.run_until(lambda: pending.done)
    assert rig.outcome(request, pending)["status"]["state"] == "running"
    rig.agree()


def test_a_decision_is_always_visible_from_its_arrival_on(rig, package):
    """In flight or in the table, at every message of a whole placement (P 7.2)."""
    decision = rig.decision()
    request = rig.request(Method.PLACE, rig.body(package), decision_id=decision)
    pending = rig.send(request)
    seen = 0
    host = rig.world.actor("shed/agent")._host
    while not pending.done and rig.world._step():
        visible = decision in host.in_flight or any(
            row.decision_id == decision for row in host.state.instances.values()
        )
        assert visible or seen == 0
        seen += visible
    assert seen > 10


def test_too_much_at_once_is_refused_as_overloaded(make_rig, make_sample):
    rig = make_rig(settings=AgentSettings(in_flight_limit=1))
    package = rig.offer(make_sample())
    rig.world.lose(lambda envelope: type(envelope.message).__name__ == "Block")
    request = rig.request(Method.PLACE, rig.body(package), decision_id=rig.decision())
    pending = rig.send(request)
    rig.world.run_idle()
    other = rig.place(package, config=CtlConfig(mode=Once()))
    assert other.code is RefusalCode.OVERLOADED
    rig.world.run_until(lambda: pending.done)


def test_nothing_new_is_begun_while_too_many_records_wait_for_the_chain(make_rig, make_sample):
    rig = make_rig(settings=AgentSettings(owed_limit=3))
    package = rig.offer(make_sample())
    rig.book.down = True
    for _ in range(3):
        rig.place(package)
    refusal = rig.place(package)
    assert refusal.code is RefusalCode.OVERLOADED
    rig.book.down = False
    rig.world.advance(2.0)
    assert rig.place(package)["status"]["state"] == "running"


def test_a_behaviour_that_ends_at_once_is_reported_as_it_is(rig, package):
    rig.host.behaviours = {package.program: Behaviour(output=b"done\n")}
    name = rig.place(package, config=CtlConfig(mode=Once()))["instance_id"]
    assert rig.row(name)["lifecycle"] == "finished"
