"""Placing: decisions, dispatch, refusals, and the story on the chain (P 10.5, G 1.12, design 8)."""

from __future__ import annotations

import json

import msgspec
import pytest

from actors.packages.manifest import sign_manifest
from messages.control import CtlConfig, Epoch, Interval, Once, Refusal, RefusalCode
from messages.packages import Arch
from messages.workload_spec import TrustTier
from runtime.simulated.store import SimulatedStore


def by_rank(cluster):
    """The nodes in the order in which equal boards are tried: by id."""
    return sorted(cluster.nodes.values(), key=lambda node: node.id)


def test_the_best_node_is_asked_and_the_story_is_on_the_chain(two):
    report = two.place()
    winner, _ = by_rank(two)
    assert report.placed is not None
    assert [(attempt.node_id, attempt.outcome) for attempt in report.attempts] == [(winner.id, "placed")]
    assert two.held() == [report.placed.instance_id]
    assert two.phases() == ["decision", "dispatching", "placed"]
    decision, dispatching, placed = two.told()
    assert two.chain_disk.records[-3].hash == report.decision_id
    assert placed["decision_id"] == dispatching["decision_id"] == report.decision_id
    assert placed["attempts"] == 1
    assert placed["target_result"]["instance_id"] == report.placed.instance_id
    assert (decision["dry_run"], decision["manifest_hash"]) == (False, report.placed.manifest_hash)
    assert [candidate["node_id"] for candidate in decision["decision"]["candidates"]] == [n.id for n in by_rank(two)]
    assert [request.decision_id for request in winner.requests if request.method == "workload.place"] == [
        report.decision_id
    ]


def test_the_explanation_names_nodes_and_attempts(two):
    first, second = by_rank(two)
    report = two.place()
    lines = report.explain.splitlines()
    assert f"decision: PLACED on {first.name} ({first.id}) via aarch64-native" in lines[3]
    assert any(f"{second.name} ({second.id}) eligible" in line for line in lines)
    assert lines[-3:] == [
        f"decision_id: {report.decision_id}",
        "dispatch:",
        f"  1. {first.name} ({first.id}) via aarch64-native: placed",
    ]


def test_a_board_is_preferred_to_a_developer_machine(kit):
    cluster = kit.cluster(kit.node("mac", kit.mac(), tier="pinned", routes=["native", "container"]), kit.node("board"))
    report = cluster.place()
    board, mac = cluster.nodes["board"], cluster.nodes["mac"]
    assert (report.placed.node_id, report.placed.variant) == (board.id, "aarch64-native")
    rows = {row.node_id: row for row in report.decision.candidates}
    assert (rows[board.id].tier, rows[mac.id].tier, rows[mac.id].variant) == (
        "native", "dev_fallback", "aarch64-container",
    )  # fmt: skip
    assert "native > emulated > dev_fallback" in report.explain
    instance = report.placed.instance_id
    assert cluster.verb("status", instance).result["lifecycle"] == "running"
    assert cluster.verb("stop", instance).result == {"stopped": instance}
    assert cluster.verb("logs", instance).result["stdout"] == "hello"
    assert cluster.verb("unload", instance).result == {"unloaded": instance}
    assert cluster.instances().instances == []


def test_after_a_refusal_the_next_candidate_is_asked_with_a_new_epoch(two):
    first, second = by_rank(two)
    first.refusals["workload.place"] = Refusal(code=RefusalCode.ADMISSION, reason="no room in the inn")
    report = two.place()
    assert [(attempt.outcome, attempt.code) for attempt in report.attempts] == [
        ("refused", "admission"),
        ("placed", None),
    ]
    assert "refused (admission: no room in the inn)" in report.explain
    assert two.phases() == ["decision", "dispatching", "dispatch", "dispatching", "placed"]
    refusal = two.told("workload.refuse")[0]
    assert (refusal["outcome"], refusal["code"], refusal["node"]) == ("refused", "admission", first.id)
    assert refusal["next"] == "trying the next candidate"
    assert second.epochs == [Epoch(term=1, number=2)]
    assert two.told()[-1]["attempts"] == 2


def test_an_unreachable_candidate_is_passed_over(two):
    first, second = by_rank(two)
    two.world.spawn(f"{first.name}/store", SimulatedStore)  # the process lives on
    two.world.crash(f"{first.name}/agent")  # between two beats: it still counts as alive
    report = two.place()
    assert [attempt.outcome for attempt in report.attempts] == ["unreachable", "placed"]
    assert report.placed.node_id == second.id
    assert two.told("workload.refuse")[0]["outcome"] == "unreachable"


def test_when_every_target_refuses_the_report_says_so_and_nothing_stays_behind(two):
    for node in two.nodes.values():
        node.refusals["workload.place"] = Refusal(code=RefusalCode.VERIFY, reason="unknown signer")
    report = two.place()
    assert report.placed is None
    assert [attempt.code for attempt in report.attempts] == ["verify", "verify"]
    assert json.loads(two.disk.documents["plane"])["dispatches"] == []
    for node in two.nodes.values():
        node.refusals.clear()
    assert two.place().placed is not None


def test_what_fits_nowhere_is_decided_chained_and_explained(kit):
    cluster = kit.cluster(kit.node("attic"))
    cluster.add_package(arches=(Arch.X86_64,))
    report = cluster.place()
    assert (report.placed, report.attempts) == (None, [])
    assert "UNPLACEABLE" in report.explain
    assert "cpu.arch.x86_64: not advertised" in report.explain
    assert cluster.phases() == ["decision"]


def test_a_runtime_without_its_adapter_is_not_offered(kit):
    cluster = kit.cluster(kit.node("mac", kit.mac(), tier="pinned", routes=["native"]))
    report = cluster.place()
    assert (report.placed, report.attempts) == (None, [])
    assert not report.decision.candidates[0].eligible


def test_every_node_of_the_directory_is_explained_also_one_never_heard(kit):
    cluster = kit.cluster(kit.node("attic"), kit.node("loft", silent=True))
    report = cluster.place()
    loft = next(row for row in report.decision.candidates if row.node_id == cluster.nodes["loft"].id)
    assert "liveness" in [rejection.constraint for rejection in loft.rejections]
    assert "node is unknown" in report.explain
    assert cluster.world.now_s >= 5.0, "it was given the time in which it could have been heard"


def test_a_dry_run_decides_and_sends_nothing(two):
    report = two.place(dry_run=True)
    assert report.decision.placement is not None
    assert (report.placed, report.attempts) == (None, [])
    assert two.phases() == ["decision"]
    assert two.told()[0]["dry_run"] is True
    assert two.held() == []
    assert all(node.methods() == [] for node in two.nodes.values())


def test_a_dry_run_of_what_runs_already_is_answered_and_says_it_would_stay(two):
    placed = two.place().placed
    report = two.place(dry_run=True)
    assert report.decision.placement.node_id == placed.node_id
    assert report.decision.placement.score.stickiness > 0


@pytest.mark.parametrize("by", ["name", "id"])
def test_a_pin_takes_a_name_or_an_id(two, by):
    _, second = by_rank(two)
    report = two.place(pin=getattr(second, by))
    assert report.placed.node_id == report.decision.pin == second.id
    assert report.placed.slot.endswith(f"@{second.id}")


def test_a_pinned_order_tries_no_other_node(two):
    first, second = by_rank(two)
    first.refusals["workload.place"] = Refusal(code=RefusalCode.ADMISSION, reason="no")
    report = two.place(pin=first.name)
    assert (report.placed, [attempt.node_id for attempt in report.attempts]) == (None, [first.id])
    assert second.methods() == []


@pytest.mark.parametrize(
    ("changes", "code", "text"),
    [
        ({"pin": "cellar"}, "invalid", "no configured name (attic, shed)"),
        ({"prefer": ["cellar"]}, "invalid", "prefer 'cellar'"),
        ({"avoid": ["attic", "cellar"]}, "invalid", "avoid 'cellar'"),
        ({"pin": "n-0123456789abcdef"}, "placement", "is not a known node"),
        ({"config": CtlConfig(mode=Interval(secs=0))}, "invalid", "interval must be 1..=3600"),
        ({"config": CtlConfig(mode=Interval(secs=3601))}, "invalid", "interval must be 1..=3600"),
        ({"config": CtlConfig(mode=Once(), csi_port=0)}, "invalid", "csi_port must be non-zero"),
        ({"package_dir": ""}, "invalid", "package_dir"),
        ({"package_dir": "nowhere"}, "package", "file-missing"),
    ],
)
def test_what_cannot_be_ordered_is_refused_by_name(two, changes, code, text):
    got, reason = two.place_code(**changes)
    assert got == code
    assert text in reason
    assert two.held() == []


def test_an_ineligible_pin_is_refused_naming_its_constraints_and_chained(kit):
    cluster = kit.cluster(kit.node("attic", tier="discovered"), kit.node("shed"))
    code, reason = cluster.place_code(pin="attic")
    assert code == "placement"
    assert "constraint `trust`" in reason
    refusal = cluster.told("workload.refuse")[0]
    assert (refusal["phase"], refusal["constraints"]) == ("decision", ["trust", "gate"])


@pytest.mark.parametrize(("wish", "index"), [("prefer", 1), ("avoid", 0)])
def test_affinity_takes_names(two, wish, index):
    nodes = by_rank(two)
    report = two.place(**{wish: [nodes[index].name]})
    assert report.placed.node_id == nodes[1].id


def test_an_unknown_kind_is_refused_and_chained(two):
    manifest = json.loads(two.shelf.directories["packages/hostwatch"]["manifest.json"])
    two.shelf.directories["packages/hostwatch"]["manifest.json"] = json.dumps({**manifest, "kind": "balloon"}).encode()
    code, reason = two.place_code()
    assert code == "unknown_kind"
    assert '"balloon"' in reason
    assert [(r["kind"], r["phase"]) for r in two.told()] == [("workload.refuse", "kind")]


@pytest.mark.parametrize(
    ("path", "data", "text"),
    [
        ("aarch64/cog-hostwatch", b"another program", "file-tampered"),
        ("manifest.json", b"{}", "manifest-invalid"),
        ("manifest.json", None, "untrusted-signer"),
    ],
)
def test_a_package_that_does_not_verify_is_refused_unchained(two, path, data, text):
    files = two.shelf.directories["packages/hostwatch"]
    if data is None:
        unsigned = json.loads(files["manifest.json"])
        data = sign_manifest(json.dumps({**unsigned, "signatures": []}).encode(), b"\1" * 32, "someone")
    files[path] = data
    code, reason = two.place_code()
    assert (code, text in reason) == ("package", True)
    assert two.told() == []


# the gate


def test_a_gate_that_permits_nothing_denies_every_node_with_its_reason(kit):
    cluster = kit.cluster(kit.node("attic"), kit.node("shed"), permits=())
    report = cluster.place()
    assert report.placed is None
    for row in report.decision.candidates:
        assert [r.detail for r in row.rejections if r.constraint == "gate"] == [
            row.rejections[-1].detail
        ]  # fmt: skip
        assert "workload.place denied: default deny" in row.rejections[-1].detail
    assert report.explain.count("workload.place denied: default deny") == 2


def test_a_denial_of_one_node_leaves_the_other(kit):
    cluster = kit.cluster(kit.node("attic", tier="paired"), kit.node("shed", tier="pinned"), permits=(
        msgspec.structs.replace(kit.permit, min_node_tier=TrustTier.PINNED),
    ))  # fmt: skip
    assert cluster.place().placed.node_id == cluster.nodes["shed"].id


def test_a_deferral_is_a_refusal(kit, monkeypatch):
    from messages.gate import Decision, GateVerdictOf, Judged

    cluster = kit.cluster(kit.node("attic"))
    node = cluster.nodes["attic"]
    answer_gate_with(cluster, Judged(verdicts={node.id: GateVerdictOf(decision=Decision.DEFER, reason="ask Ada")}))
    report = cluster.place()
    assert report.placed is None
    assert "deferred to a human (refused on this path): ask Ada" in report.explain


def test_a_verdict_that_is_missing_is_a_denial(kit):
    from messages.gate import Judged

    cluster = kit.cluster(kit.node("attic"))
    answer_gate_with(cluster, Judged(verdicts={}))
    assert "no gate decision for this node" in cluster.place().explain


def test_without_a_gate_nothing_is_placed(two):
    two.world.crash("gate/gate")
    code, reason = two.place_code()
    assert code == "governance"
    assert "no verdict" in reason
    assert (two.told(), two.held()) == ([], [])


def answer_gate_with(cluster, answer):
    from actors.actor import Actor
    from messages.gate import GateMessage

    class FixedGate(Actor):
        mailbox = GateMessage

        def receive(self, message, ctx):
            ctx.reply(answer)

    cluster.world.crash("gate/gate")
    cluster.world.spawn("gate/gate", FixedGate)


@pytest.mark.parametrize(("allowed", "outcome"), [(False, "gate_denied"), (True, "placed")])
def test_emulation_is_asked_for_again(kit, allowed, outcome):
    permit = msgspec.structs.replace(kit.permit, allow_emulated=allowed)
    cluster = kit.cluster(kit.node("mac", kit.mac(), routes=["container"]), permits=(permit,))
    cluster.add_package(arches=(Arch.X86_64,))
    report = cluster.place(allow_emulated=True)
    assert [attempt.outcome for attempt in report.attempts] == [outcome]
    assert (report.placed is not None) is allowed
    if allowed:
        assert cluster.told()[-1]["emulated"] is True


# slots and epochs


def test_a_held_slot_is_refused_naming_the_holder(two):
    placed = two.place().placed
    code, reason = two.place_code()
    assert code == "slot_held"
    assert placed.instance_id in reason
    assert two.nodes[two.world.actor("controller/plane")._core.view.name_of(placed.node_id)].name in reason
    assert len(two.held()) == 1


def test_another_configuration_is_another_slot(two):
    one = two.place().placed
    other = two.place(config=CtlConfig(mode=Interval(secs=2))).placed
    assert one.slot != other.slot
    assert len(two.held()) == 2


def test_the_same_workload_may_be_pinned_to_each_node_and_once_only(two):
    for name in ("attic", "shed"):
        assert two.place(pin=name).placed is not None
    assert two.place_code(pin="shed")[0] == "slot_held"
    assert len(two.held()) == 2


def test_a_pin_to_where_the_unpinned_instance_runs_is_refused(two):
    placed = two.place().placed
    code, reason = two.place_code(pin=placed.node_id)
    assert (code, placed.instance_id in reason) == ("slot_held", True)


def test_an_unpinned_instance_goes_beside_a_pinned_one(two):
    first, second = by_rank(two)
    assert two.place(pin=first.name).placed is not None
    report = two.place()
    assert report.placed.node_id == second.id
    assert [attempt.code for attempt in report.attempts] == ["runtime", None]


def test_two_orders_for_one_slot_at_once_place_it_once(two):
    orders = [two.world.start_ask("controller/plane", two.order(), timeout_s=600) for _ in range(2)]
    two.world.run_until(lambda: all(order.done for order in orders), limit_s=600)
    outcomes = []
    for order in orders:
        try:
            outcomes.append(order.result().placed is not None)
        except Exception as error:
            outcomes.append(error.code)
    assert outcomes == [True, "slot_held"]
    assert len(two.held()) == 1


def test_epochs_of_a_slot_only_grow(two):
    epochs = []
    for turn in range(4):
        placed = two.place().placed
        epochs.append(placed.epoch)
        two.verb("unload", placed.instance_id)
        if turn == 1:
            two.restart_plane()
            two.world.advance(2)
    assert epochs == sorted(set(epochs))
    assert [epoch.term for epoch in epochs] == [1, 1, 2, 2]


def test_a_node_that_holds_the_slot_unknown_to_us_ends_the_loop(two):
    first, second = by_rank(two)
    first.refusals["workload.place"] = Refusal(code=RefusalCode.SLOT_HELD, reason="epoch 0.7 runs here")
    report = two.place()
    assert (report.placed, [attempt.code for attempt in report.attempts]) == (None, ["slot_held"])
    assert second.methods() == []
    assert two.told("workload.refuse")[0]["next"] == "stopped: the target holds the slot"


@pytest.mark.parametrize("code", [RefusalCode.STALE_TERM, RefusalCode.STALE_EPOCH])
def test_a_node_that_knows_more_ends_every_grant(two, code):
    first, second = by_rank(two)
    first.refusals["workload.place"] = Refusal(code=code, reason="seen 9")
    assert two.place_code()[0] == "stale_state"
    assert second.methods() == []
    assert two.told("workload.refuse")[0]["next"] == "stopped: the target knows more than this controller"
    first.refusals.clear()
    got, reason = two.place_code()
    assert (got, "restore the newest state" in reason) == ("stale_state", True)


# no record, no act


def test_with_a_full_chain_nothing_is_dispatched(two):
    two.chain_disk.full = True
    code, _ = two.place_code()
    assert code == "no_record"
    assert all(node.methods() == [] for node in two.nodes.values())
    two.chain_disk.full = False
    assert two.place().placed is not None


@pytest.mark.parametrize("phase", ["decision", "dispatching"])
def test_a_chain_that_fills_up_before_the_request_stops_it(two, kit, phase):
    kit.at_record(two, phase, lambda: setattr(two.chain_disk, "full", True))
    assert two.place_code()[0] == "no_record"
    assert all(node.methods() == [] for node in two.nodes.values())


def test_a_full_disk_of_the_controller_stops_the_request(two, kit):
    kit.at_record(two, "decision", lambda: setattr(two.disk, "full", True))
    assert two.place_code()[0] == "no_record"
    assert all(node.methods() == [] for node in two.nodes.values())
    assert two.phases() == ["decision"]


def test_a_refusal_that_cannot_be_chained_ends_the_loop_and_is_paid_later(two, kit):
    first, second = by_rank(two)
    first.refusals["workload.place"] = Refusal(code=RefusalCode.ADMISSION, reason="no")
    kit.at_record(two, "dispatch", lambda: setattr(two.chain_disk, "full", True))
    assert two.place_code()[0] == "no_record"
    assert second.methods() == []
    two.restart_plane()
    two.chain_disk.full = False
    two.world.advance(5)
    assert two.phases() == ["decision", "dispatching", "dispatch"]
    two.world.advance(10)
    assert two.phases() == ["decision", "dispatching", "dispatch"], "paid once"


def test_a_placement_that_cannot_be_chained_yet_is_placed_and_told_later(two, kit):
    kit.at_record(two, "placed", lambda: setattr(two.chain_disk, "full", True))
    report = two.place()
    assert report.placed is not None
    two.chain_disk.full = False
    two.world.advance(5)
    assert two.phases() == ["decision", "dispatching", "placed"]


def test_a_placement_that_cannot_be_saved_yet_is_saved_later(two):
    def fill(envelope):
        if envelope.to == "controller/plane" and any(node.rows for node in two.nodes.values()):
            two.disk.full = True
        return False

    two.world.lose(fill, 1)
    placed = two.place().placed
    assert json.loads(two.disk.documents["plane"])["placements"] == []
    two.world._losses.clear()
    two.disk.full = False
    two.world.advance(3)
    saved = json.loads(two.disk.documents["plane"])
    assert [held["record"]["instance_id"] for held in saved["placements"]] == [placed.instance_id]
    assert saved["dispatches"] == []


def test_an_append_whose_answer_is_lost_is_written_once(two):
    from messages.chain import Appended

    two.world.lose(lambda e: e.sender == "chain/chain" and isinstance(e.message, Appended), 1)
    assert two.place().placed is not None
    assert two.phases() == ["decision", "dispatching", "placed"]


# what the engine is told


def test_hardware_that_is_attached_marks_the_placement(kit):
    cog = kit.cog_toml.replace(b'version = "1.0.0"\n', b'version = "1.0.0"\nhardware_requirement = ["feed.csi"]\n')
    cluster = kit.cluster(kit.node("attic", kit.board(extra=("feed.csi",))))
    cluster.add_package(cog_toml=cog)
    report = cluster.place()
    assert (report.placed is not None, report.hardware_bound) == (True, True)
    assert kit.cluster(kit.node("attic")).place().hardware_bound is False


def test_memory_that_facts_do_not_show_yet_is_counted(kit):
    cluster = kit.cluster(kit.node("attic", kit.board(free_mib=100)))
    assert cluster.place().placed is not None
    report = cluster.place(config=CtlConfig(mode=Interval(secs=9)))
    assert report.placed is None
    assert "system pool: need" in report.explain
    cluster.world.advance(3)  # newer facts show what is really free
    assert cluster.place(config=CtlConfig(mode=Interval(secs=9))).placed is not None
