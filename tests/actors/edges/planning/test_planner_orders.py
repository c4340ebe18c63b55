"""What an operator orders of the edge planner, and what is refused (design 7 and 11, E 2.5 Q27)."""

from __future__ import annotations

from contextlib import suppress

import pytest

from actors.actor import AskFailed
from messages.chain import Append
from messages.edge import EdgeProvisionState as State
from messages.edge import RingDirection
from messages.edge_end import EdgeFaultCode
from messages.edge_plan import AddEdge, RemoveEdge
from messages.ports import SaveDocument
from messages.system import GetState

MIB = 2**20
NAME = "hostwatch.out -> trend.in"
EGRESS, INGRESS = RingDirection.EGRESS, RingDirection.INGRESS


@pytest.mark.parametrize(
    ("source", "target", "name"),
    [
        ("hostwatch.out", "trend.in", NAME),
        ("hostwatch@attic.out", "trend@shed.in", "hostwatch@attic.out -> trend@shed.in"),
        ("a-b2.p-1", "c.i", "a-b2.p-1 -> c.i"),
    ],
)
def test_ports_are_named_by_workload_node_and_port(kit, source, target, name):
    cluster = kit.cluster("attic", "shed")
    line = cluster.add(source, target)
    assert (line.name, line.source, line.target) == (name, source, target)
    assert list(cluster.lines()) == [name]


def test_a_node_may_be_named_by_its_id(kit):
    cluster = kit.cluster("attic", "shed")
    ident = cluster.nodes[0].node_id
    assert cluster.add(f"hostwatch@{ident}.out", "trend.in").source == "hostwatch@attic.out"


def test_an_instance_may_be_named_by_its_id(kit):
    cluster = kit.cluster("attic", "shed")
    first, second = (cluster.place("hostwatch", "attic", digest=digest) for digest in "de")
    cluster.place("trend", "shed")
    code, reason = cluster.code(lambda: cluster.add("hostwatch.out", "trend.in"))
    assert code == "ambiguous"
    assert f"write one of {first.record.instance_id}.out, {second.record.instance_id}.out" in reason
    cluster.add(f"{second.record.instance_id}.out", "trend.in")
    cluster.until("ready")
    assert cluster.fabric.opens[0].producer.instance_id == second.record.instance_id


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("hostwatch", "write WORKLOAD.PORT, for example hostwatch.out"),
        ("", "names no port"),
        (".out", "'' is no name of a workload"),
        ("hostwatch.", "'' is no name of a port"),
        ("host_watch.out", "'host_watch' is no name of a workload"),
        ("Hostwatch.out", "no name of a workload"),
        ("hostwatch.Out", "'Out' is no name of a port"),
        ("hostwatch." + "p" * 64, "is no name of a port"),
        ("hostwatch.-out", "is no name of a port"),
        ("hostwatch@.out", "'' is no name of a node"),
        ("hostwatch@at tic.out", "'at tic' is no name of a node"),
        ("a@b@attic.out", "'b@attic' is no name of a node"),
        ("a.b@attic.out", "'a.b' is no name of a workload"),
        ("w" * 129 + ".out", "is no name of a workload"),
        ("hostwatch.out\n", "is no name of a port"),
        ("hostwatch.aus\u00df", "is no name of a port"),
    ],
)
def test_what_is_no_port_is_refused_saying_what_to_write(kit, text, why):
    cluster = kit.cluster("attic", "shed")
    for source, target in ((text, "trend.in"), ("hostwatch.out", text)):
        code, reason = cluster.code(lambda source=source, target=target: cluster.add(source, target))
        assert code == "invalid"
        assert why in reason
        assert reason.startswith("source" if source == text else "target")
    assert cluster.lines() == {}
    assert cluster.told("edge.plan") == []


def test_a_node_that_there_is_not_is_unknown_at_once(kit):
    cluster = kit.cluster("attic", "shed")
    assert cluster.code(lambda: cluster.add("hostwatch@cellar.out", "trend.in")) == (
        "unknown",
        "source 'hostwatch@cellar.out': there is no node cellar; nodes: attic, shed",
    )


def test_a_port_is_not_joined_to_itself(kit):
    cluster = kit.cluster("attic", "shed")
    code, reason = cluster.code(lambda: cluster.add("trend@attic.in", "trend@attic.in"))
    assert (code, reason) == ("invalid", "trend@attic.in cannot be joined to itself: name two ports")


def test_a_workload_on_several_nodes_is_ambiguous_and_they_are_named(kit):
    cluster = kit.cluster("attic", "shed", "loft")
    cluster.place("hostwatch", "attic")
    cluster.place("trend", "shed")
    cluster.place("trend", "loft")
    code, reason = cluster.code(lambda: cluster.add("hostwatch.out", "trend.in"))
    assert code == "ambiguous"
    assert reason == "trend.in may be any of 2 placed instances: write one of trend@loft.in, trend@shed.in"
    cluster.add("hostwatch.out", "trend@loft.in")
    assert cluster.until("ready").consumer_node == "loft"


def test_a_name_too_long_for_an_edges_process_is_refused(kit):
    cluster = kit.cluster("attic")
    code, reason = cluster.code(lambda: cluster.add("a" * 120 + ".out", "b" * 125 + "." + "p" * 60))
    assert code == "invalid"
    assert "at most 255" in reason


# sizes


@pytest.mark.parametrize(
    ("extent", "given", "ring"),
    [
        (1, None, 262_144),
        (4096, None, 262_144),
        (65_536, None, 528_384),
        (MIB, None, 8 * MIB),  # no more than a 64th of 512 MiB
        (16 * MIB, None, 33_558_528),
        (4096, 2 * 4136, 12_288),
        (4096, 12_288, 12_288),
        (1, 82, 4096),
        (255 * MIB, None, 534_777_856),
    ],
)
def test_a_ring_holds_two_records_at_least_and_whole_pages(kit, extent, given, ring):
    cluster = kit.cluster("attic")
    cluster.start_edges("attic.edges")  # it tells that it has 512 MiB
    cluster.world.advance(1)
    line = cluster.add("hostwatch.out", "trend.in", max_extent_bytes=extent, ring_bytes=given)
    assert (line.max_extent_bytes, line.ring_bytes) == (extent, ring)
    assert ring % 4096 == 0
    assert ring >= 2 * (extent + 40)


@pytest.mark.parametrize(
    ("extent", "given", "why"),
    [
        (0, None, "max_extent_bytes is 0: an object holds 1 to 268435456 bytes"),
        (256 * MIB + 1, None, "max_extent_bytes is 268435457"),
        (2**64 - 1, None, "max_extent_bytes is 18446744073709551615"),
        (2**64 - 1, 2**64 - 1, "max_extent_bytes is 18446744073709551615"),
        (4096, 0, "ring_bytes is 0: a ring holds two of its largest records, so at least 8272 bytes"),
        (4096, 8271, "ring_bytes is 8271"),
        (4096, 2**64 - 1, "which is 268435456 bytes at most"),
        (4096, 2**64 - 4096, "which is 268435456 bytes at most"),
        (4096, 256 * MIB, "needs 268439552 bytes of a node's ring memory"),
        (256 * MIB, None, "needs 536879104 bytes"),
    ],
)
def test_a_size_that_can_never_be_had_is_refused_with_the_numbers(kit, extent, given, why):
    cluster = kit.cluster("attic")
    code, reason = cluster.code(
        lambda: cluster.add("hostwatch.out", "trend.in", max_extent_bytes=extent, ring_bytes=given)
    )
    assert code == "invalid"
    assert why in reason
    assert cluster.lines() == {}


def test_the_order_of_an_end_carries_the_sizes(kit):
    cluster = kit.cluster("attic", "shed")
    cluster.place("hostwatch", "attic")
    cluster.place("trend", "shed")
    cluster.add("hostwatch.out", "trend.in", max_extent_bytes=100, ring_bytes=5000)
    cluster.until("ready")
    for order in cluster.fabric.opens:
        assert (order.object_spec.kind, order.object_spec.dtype) == ("activation", "f16")
        assert order.object_spec.max_extent_bytes == 100
        ring = order.ring_spec
        assert (ring.header_bytes, ring.data_bytes, ring.alignment) == (128, 8192, 4096)


# again, and no more


def test_the_same_edge_again_is_answered_as_it_is_and_another_size_is_refused(joined):
    line = joined.line()
    assert joined.add("hostwatch.out", "trend.in").edge_id == line.edge_id
    assert joined.add("hostwatch.out", "trend.in", ring_bytes=line.ring_bytes).run_id == 1
    code, reason = joined.code(lambda: joined.add("hostwatch.out", "trend.in", max_extent_bytes=9))
    assert code == "exists"
    assert "sennit edge stop" in reason
    assert len(joined.told("edge.plan")) == 1


@pytest.mark.parametrize("text", [NAME, "hostwatch.out->trend.in", "  hostwatch.out  ->  trend.in ", "1"])
def test_an_edge_is_removed_by_name_or_id(joined, text):
    joined.remove(text)
    assert joined.lines() == {}
    assert joined.fabric.live() == []
    assert joined.document()["edges"] == []
    joined.world.advance(2)
    assert [told["phase"] for told in joined.told("edge.plan")] == ["added", "removed"]
    assert joined.story() == ["opening 1", "ready 1", "closed 1"]
    assert joined.told()[-1]["why"] == "removed"


@pytest.mark.parametrize("text", ["", "nothing", "trend.in -> hostwatch.out", "2", "0", "->", "hostwatch.out -> trend"])
def test_what_is_no_edge_is_unknown_and_those_that_are_get_listed(joined, text):
    code, reason = joined.code(lambda: joined.remove(text))
    assert code == "unknown"
    assert NAME in reason
    assert joined.line().phase == "ready"


def test_an_edge_that_comes_back_goes_on_with_its_epochs(joined):
    joined.remove(NAME)
    assert joined.add("hostwatch.out", "trend.in").run_id == 1
    line = joined.until("ready")
    assert (line.run_id, line.edge_id, line.lives) == (2, 2, 1)
    joined.never_two()


def waiting(cluster):
    cluster.unload(next(row for row in cluster.rows.values() if row.node == "shed"))
    cluster.until("waiting")


def opening(cluster):
    cluster.fabric.slow.update(("attic.edges", "shed.edges"))
    cluster.fault(cluster.end("shed.edges", RingDirection.INGRESS), EdgeFaultCode.WORKER_CRASHED)
    cluster.until("opening")


def finished(cluster):
    for end in cluster.fabric.live():
        end.ended = True
        cluster.tell_of(end)
    cluster.until("finished")


def closing(cluster):
    cluster.fabric.stuck.add("attic.edges")
    cluster.fault(cluster.end("shed.edges", RingDirection.INGRESS), EdgeFaultCode.WORKER_CRASHED)
    cluster.until("closing")
    cluster.world.advance(1)
    cluster.set(cluster.end("attic.edges", RingDirection.EGRESS), State.STOPPED)


def held_back(cluster):
    for _ in range(5):
        if cluster.fabric.live():
            cluster.fault(cluster.fabric.live()[0], EdgeFaultCode.WORKER_CRASHED)
        cluster.world.advance(0.5)


def ready(cluster):
    pass


@pytest.mark.parametrize("phase", [waiting, opening, ready, finished, closing, held_back])
def test_an_edge_can_be_removed_in_every_phase(joined, phase):
    phase(joined)
    joined.remove(NAME)
    assert joined.lines() == {}
    assert joined.fabric.live() == []
    joined.world.advance(30)
    assert joined.fabric.live() == []
    assert [told["phase"] for told in joined.told("edge.plan")] == ["added", "removed"]


def test_an_edge_that_does_not_go_in_time_stays_stopping_and_goes_in_the_end(joined):
    joined.fabric.stuck.add("shed.edges")
    code, reason = joined.code(lambda: joined.remove(NAME))
    assert code == "stopping"
    assert "until shed.edges has let go of it" in reason
    assert joined.line().phase == "stopping"
    code, reason = joined.code(lambda: joined.add("hostwatch.out", "trend.in"))
    assert (code, "is being stopped" in reason) == ("exists", True)
    joined.restart_planner()
    joined.world.advance(5)
    assert joined.line().phase == "stopping"
    again = joined.world.start_ask("controller/edges", RemoveEdge(edge=NAME), timeout_s=60)
    joined.set(joined.end("shed.edges", RingDirection.INGRESS), State.STOPPED)
    joined.world.run_until(lambda: again.done, 20)
    again.result()
    assert joined.lines() == {}


def test_an_edge_is_removed_though_a_node_is_gone_whose_instance_is_placed_no_more(joined):
    joined.world.cut("controller", "shed.edges")
    code, _ = joined.code(lambda: joined.remove(NAME))
    assert code == "stopping"
    joined.unload(next(row for row in joined.rows.values() if row.node == "shed"))
    joined.world.run_until(lambda: not joined.works(), 5)


def test_two_who_stop_one_edge_are_both_answered(joined):
    asked = [joined.world.start_ask("controller/edges", RemoveEdge(edge=NAME), timeout_s=30) for _ in range(2)]
    joined.world.run_until(lambda: all(pending.done for pending in asked), 20)
    for pending in asked:
        pending.result()


def test_the_wish_is_on_disk_and_on_the_chain_when_it_is_answered(kit):
    cluster = kit.cluster("attic")
    cluster.add("hostwatch.out", "trend.in", max_extent_bytes=10)
    assert [edge["source"] for edge in cluster.document()["edges"]] == ["hostwatch.out"]
    assert cluster.told("edge.plan") == [
        {"phase": "added", "edge": NAME, "max_extent_bytes": 10, "ring_bytes": 262_144},
    ]


def test_a_wish_that_the_chain_does_not_take_is_not_granted(kit):
    cluster = kit.cluster("attic")
    cluster.chain_disk.full = True
    code, _ = cluster.code(lambda: cluster.add("hostwatch.out", "trend.in"))
    assert code == "no_record"
    assert cluster.lines() == {}
    cluster.chain_disk.full = False
    cluster.restart_planner()
    cluster.world.advance(5)
    assert cluster.lines() == {}
    cluster.add("hostwatch.out", "trend.in")
    story = [told["phase"] for told in cluster.told("edge.plan")]
    assert story in (["added"], ["added", "removed", "added"])


@pytest.mark.parametrize("lost", range(1, 6))
def test_a_chain_that_is_slow_to_take_a_wish_takes_it_or_leaves_it(kit, lost):
    cluster = kit.cluster("attic", "shed", write_timeout_s=2.0)
    cluster.place("hostwatch", "attic")
    cluster.place("trend", "shed")
    cluster.world.lose(lambda envelope: isinstance(envelope.message, Append), lost)
    pending = cluster.world.start_ask("controller/edges", AddEdge(source="hostwatch.out", target="trend.in"), 60)
    cluster.world.run_until(lambda: pending.done, 60)
    crashes = [log for log in cluster.world.logs if log[1] == "controller/edges" and "crash" in log[2]]
    assert crashes == []
    assert cluster.planner() is not None
    if cluster.lines():
        pending.result()
        cluster.until("ready", 60)
    else:
        assert cluster.code(pending.result)[0] == "no_record"
        cluster.world.advance(10)
        assert cluster.fabric.opens == []
        assert [told["phase"] for told in cluster.told("edge.plan")] in ([], ["added", "removed"])


@pytest.mark.parametrize("write", ["save", "append"])
@pytest.mark.parametrize("fails", [False, True])
def test_an_edge_that_is_stopped_while_it_is_added_is_gone(kit, write, fails):
    cluster = kit.cluster("attic", "shed", write_timeout_s=2.0)
    cluster.world.lose(
        lambda envelope: isinstance(envelope.message, Append if write == "append" else SaveDocument), 2 if fails else 1
    )
    adding = cluster.world.start_ask("controller/edges", AddEdge(source="hostwatch.out", target="trend.in"), 60)
    cluster.world.run_until(lambda: bool(cluster.works()), 5)
    removing = cluster.world.start_ask("controller/edges", RemoveEdge(edge=NAME), 60)
    cluster.world.run_until(lambda: adding.done and removing.done, 60)
    cluster.world.advance(10)
    assert cluster.planner() is not None
    assert cluster.lines() == {}
    story = [told["phase"] for told in cluster.told("edge.plan")]
    assert story.count("added") == story.count("removed")
    for pending in (adding, removing):
        with suppress(AskFailed):
            pending.result()
        assert pending.done


def test_the_state_of_the_planner_shows_everything(joined):
    state = joined.world.ask("controller/edges", GetState()).state
    assert state["edges"][0]["name"] == NAME
    assert {node["process"] for node in state["nodes"]} == {"attic.edges", "shed.edges"}
    assert (state["owed"], state["distrust"], state["last_edge_id"]) == (0, "", 1)


def finish(cluster):
    for process, direction in (("attic.edges", EGRESS), ("shed.edges", INGRESS)):
        end = cluster.end(process, direction)
        end.ended = True
        cluster.tell_of(end)


def wait_for_run(cluster):
    cluster.fabric.absent[next(key for key in cluster.rows if key.startswith("trend"))] = ""
    cluster.fault(cluster.end("shed.edges", INGRESS), EdgeFaultCode.WORKER_CRASHED)


def fault(cluster):
    cluster.fault(cluster.end("shed.edges", INGRESS), EdgeFaultCode.WORKER_CRASHED)


def unplace(cluster):
    cluster.rows.clear()


def stay_opening(cluster):
    cluster.fabric.slow.update(("attic.edges", "shed.edges"))
    fault(cluster)


@pytest.mark.parametrize("prepare", [finish, wait_for_run, fault, unplace, stay_opening, lambda cluster: None])
@pytest.mark.parametrize("after_s", [0.0, 0.03, 0.3, 3.0])
@pytest.mark.parametrize("replan", [False, True])
def test_an_edge_may_be_stopped_whatever_it_is_at(joined, prepare, after_s, replan):
    prepare(joined)
    joined.world.advance(after_s)
    if replan:
        joined.restart_planner()
        joined.world.advance(0.6)
    joined.remove(NAME)
    assert joined.lines() == {}
    assert joined.fabric.live() == []
    opened = len(joined.fabric.opens)
    joined.world.advance(30)
    assert len(joined.fabric.opens) == opened
    assert [told["phase"] for told in joined.told("edge.plan")] == ["added", "removed"]
    joined.never_two()
