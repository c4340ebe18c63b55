"""Both ends of an edge come to be, in either order and on one node or two, and go again without a rest."""

import msgspec
import pytest

from messages.base import Address
from messages.edge import EdgeProvisionState as State
from messages.edge import RingDirection
from messages.edge_end import EdgeFaultCode, EndChanged, EndsBeat
from messages.edge_ports import (
    DropArena,
    EndStream,
    EraseRing,
    FormatRing,
    HaltPump,
    InstallRing,
    Moved,
    PumpsMoved,
    StartReceive,
    StartSend,
    StreamEnded,
    UninstallRing,
    WorkerClosed,
    WorkerInstalled,
)
from messages.system import GetState
from runtime.simulated.edge_ports import MoveObjects, SimulatedMemory

EGRESS, INGRESS = RingDirection.EGRESS, RingDirection.INGRESS


def test_a_sending_end_is_leased_installed_and_pumped_in_that_order(rig):
    rig.open_both()
    order = rig.order(EGRESS)
    sent = [type(one.message).__name__ for one in rig.world.sent if one.to.startswith("shed.edges/")]
    steps = [
        name for name in sent if name in ("FormatRing", "InstallRing", "WorkerInstalled", "StartSend", "PumpReady")
    ]
    assert steps == ["FormatRing", "InstallRing", "WorkerInstalled", "StartSend", "PumpReady"]
    [install] = [one for one in rig.sent(InstallRing) if one.direction is EGRESS]
    assert (install.instance_id, install.epoch, install.port) == ("hostwatch@shed", order.producer.epoch, "out")
    assert install.object_spec == order.object_spec
    assert install.ring.generation == order.run_id
    assert install.ring.arena == "hostwatch@shed"
    [start] = rig.sent(StartSend)
    assert (start.ring, start.consumer, start.run_id) == (install.ring, "loft.edges", 1)
    [receive] = rig.sent(StartReceive)
    assert receive.producer == "shed.edges"


@pytest.mark.parametrize("first", [EGRESS, INGRESS])
def test_the_ends_may_be_opened_in_either_order(rig, first):
    rig.open(direction=first)
    rig.world.run_idle()
    assert rig.end(rig.at(rig.order(first))).state is State.WAITING_FOR_DRIVER
    rig.open(direction=INGRESS if first is EGRESS else EGRESS)
    rig.world.run_until(lambda: rig.end(rig.shed).state is rig.end(rig.loft).state is State.READY, limit_s=5)


def test_the_actor_of_an_end_tells_the_planner_each_state_with_the_incarnation_of_its_process(rig):
    rig.open_both()
    opened = rig.open(direction=EGRESS)
    states = [(report.state, report.ring_id) for report in rig.changes(rig.shed)]
    assert states == [
        (State.WAITING_FOR_WORKER_RING, 1),
        (State.WAITING_FOR_DRIVER, 1),
        (State.READY, 1),
    ]
    senders = {one.sender for one in rig.world.sent if isinstance(one.message, EndChanged)}
    assert senders == {Address("shed.edges/edge/1"), Address("loft.edges/edge/1")}
    assert {told.incarnation for told in rig.told if getattr(told, "process", "") == rig.shed} == {opened.incarnation}
    assert rig.changes(rig.shed)[-1] == opened.report == rig.end(rig.shed)


def test_producer_and_consumer_may_share_a_node(make_rig):
    rig = make_rig(processes=(make_rig.shed,))
    rig.open_both(consumer=rig.shed)
    assert [(end.direction, end.state) for end in rig.ends(rig.shed).ends] == [
        (EGRESS, State.READY),
        (INGRESS, State.READY),
    ]
    rig.close(rig.shed, EGRESS)
    assert [end.state for end in rig.ends(rig.shed).ends] == [State.STOPPED, State.READY]
    rig.close(rig.shed, INGRESS)
    assert rig.is_whole(rig.shed)


def test_stop_takes_pump_and_worker_ring_away_before_the_memory_goes_back(rig):
    rig.open_both()
    for process, direction in ((rig.shed, EGRESS), (rig.loft, INGRESS)):
        rig.close(process, direction, reason="it moves")
        sent = [type(one.message) for one in rig.world.sent if one.to.startswith(f"{process}/")]
        assert sent.index(HaltPump) < sent.index(EraseRing) < sent.index(DropArena)
        assert sent.index(UninstallRing) < sent.index(EraseRing)
        assert [report.state for report in rig.changes(process)][-2:] == [State.STOPPING, State.STOPPED]
        assert rig.end(process).fault is None
        assert rig.is_whole(process)
    assert {order.reason for order in rig.sent(UninstallRing)} == {"it moves"}
    assert Address("shed.edges/edge/1") not in rig.world.cells
    assert not any(level == "error" for level, *_ in rig.world.logs)


def test_a_stream_that_its_producer_ends_is_ended_at_both_ends_when_all_has_passed(rig):
    rig.open_both()
    rig.close_port(rig.shed, "hostwatch@shed", "out")
    rig.world.run_until(lambda: rig.end(rig.shed).ended and rig.end(rig.loft).ended, limit_s=5)
    assert [type(one) for one in rig.sent(EndStream)] == [EndStream]
    assert [report.ended for report in rig.changes()][-2:] == [True, True]
    assert rig.end(rig.shed).state is rig.end(rig.loft).state is State.READY
    rig.crash_workload(rig.shed, "hostwatch@shed")  # its process ends too: nothing is lost by it
    rig.crash_workload(rig.loft, "trend@loft")
    rig.world.advance(60)
    assert rig.end(rig.shed).fault is rig.end(rig.loft).fault is None
    rig.close(rig.shed, EGRESS)
    rig.close(rig.loft, INGRESS)
    assert rig.is_whole(rig.shed)
    assert rig.is_whole(rig.loft)


def test_a_port_closed_before_the_stream_is_there_still_ends_it(rig):
    rig.open(direction=EGRESS)
    rig.close_port(rig.shed, "hostwatch@shed", "out")
    rig.crash_workload(rig.shed, "hostwatch@shed")
    assert rig.end(rig.shed).state is State.WAITING_FOR_DRIVER
    rig.open(direction=INGRESS)
    rig.world.run_until(lambda: rig.end(rig.shed).ended and rig.end(rig.loft).ended, limit_s=5)


def test_a_port_closed_before_its_installation_is_told_ends_the_stream_too(rig):
    rig.ports[rig.shed].workloads.silent = True
    rig.open_both()
    rig.close_port(rig.shed, "hostwatch@shed", "out")
    rig.report(rig.shed, WorkerInstalled(instance_id="hostwatch@shed", ring_id=1))
    rig.world.run_until(lambda: rig.end(rig.shed).ended and rig.end(rig.loft).ended, limit_s=5)


@pytest.mark.parametrize(
    ("process", "report"),
    [
        ("shed", StreamEnded(edge_id=1, direction=EGRESS)),
        ("loft", WorkerClosed(instance_id="trend@loft", ring_id=1)),
    ],
    ids=["the port is open", "the stream goes on"],
)
def test_no_end_is_ended_before_its_producer_has_ended(rig, process, report):
    rig.open_both()
    rig.report(getattr(rig, process), report)
    assert not any(rig.end(each).ended for each in (rig.shed, rig.loft))
    assert sum(rig.state(getattr(rig, process))["dropped"].values()) == 1


def test_totals_and_the_newest_identity_reach_the_actor_and_the_beats(rig):
    rig.open_both()
    rig.say(f"{rig.shed}/driver", MoveObjects(edge_id=1, count=3, extent=64))
    for process in (rig.shed, rig.loft):
        actor = rig.world.ask(Address(f"{process}/edge/1"), GetState()).state
        assert actor["state"] == "ready"
        assert actor["report"]["progress"]["last_object_id"] == 2
        assert rig.end(process).progress.bytes == 3 * 104
    rig.world.advance(1)
    assert rig.beats(rig.shed)[-1].ends == rig.ends(rig.shed).ends


def test_it_beats_at_the_start_then_each_period_though_nothing_changes(make_rig):
    rig = make_rig(processes=(make_rig.shed,))
    rig.world.advance(5)
    beats = rig.beats(rig.shed)
    assert len(beats) == 5
    assert len({beat.incarnation for beat in beats}) == 1
    assert beats[0].arena.free_bytes == beats[0].arena.capacity_bytes == rig.budget_bytes


def test_a_planner_that_comes_back_hears_everything_at_once(rig):
    rig.open(direction=EGRESS)
    rig.told.clear()
    rig.world.spawn(Address("controller/other"), SimulatedMemory)
    rig.world.run_idle()
    assert [beat.process for beat in rig.beats()] == [rig.shed, rig.loft]
    assert rig.beats(rig.shed)[0].ends == rig.ends(rig.shed).ends


def test_beats_that_reach_nobody_are_counted_and_go_on(rig):
    rig.world.cut(rig.shed, "controller")
    rig.world.advance(2)
    rig.world.heal(rig.shed, "controller")
    assert rig.state(rig.shed)["dropped"] == {"EndsBeat: not handed over": 2}
    rig.told.clear()
    rig.world.advance(1)
    assert rig.beats(rig.shed)


def test_a_restarted_process_has_another_incarnation_and_no_end(rig):
    rig.open_both()
    before = rig.ends(rig.shed).incarnation
    rig.world.crash_process(rig.shed)
    rig.world.seed += 1  # the live world draws anew at each start
    rig.start(rig.shed)
    rig.world.run_idle()
    after = rig.ends(rig.shed)
    assert after.incarnation != before
    assert after.ends == []
    assert rig.beats(rig.shed)[-1] == EndsBeat(
        process=rig.shed, incarnation=after.incarnation, ends=[], arena=after.arena
    )
    assert rig.end(rig.loft).fault is EdgeFaultCode.PEER_RESTARTED


def test_a_grant_that_a_release_lets_through_reaches_the_end_that_waited_for_it(make_rig):
    rig = make_rig(budget_bytes=20_480)
    rig.open_both(data=12_288, extent=1024)
    waiting = rig.order(EGRESS, edge=2, data=12_288, name="hostwatch.out->other.in")
    assert rig.open(waiting).report.state is State.WAITING_FOR_LEASE
    assert rig.ends(rig.shed).arena.pending_leases == 1
    rig.close(rig.shed, EGRESS)
    assert rig.end(rig.shed, edge=2).state is State.WAITING_FOR_DRIVER
    assert rig.end(rig.shed, edge=2).ring_id == 2


def test_an_arena_whose_last_waiting_request_is_given_up_is_dropped(make_rig):
    rig = make_rig(budget_bytes=40_960)
    elsewhere = rig.order(INGRESS, edge=3, data=12_288, name="other", producer=rig.loft, consumer=rig.shed)
    rig.open(elsewhere)
    rig.open(direction=EGRESS, data=16_384)
    waiting = rig.order(EGRESS, edge=2, data=24_576, name="third")
    rig.open(waiting)
    rig.close(rig.shed, EGRESS)
    assert set(rig.ports[rig.shed].arenas.arenas) == {"hostwatch@shed", "trend@loft"}
    rig.close(rig.shed, EGRESS, edge=2)
    assert set(rig.ports[rig.shed].arenas.arenas) == {"trend@loft"}


def test_an_arena_that_the_memory_port_keeps_is_named_and_counted(rig):
    rig.open(direction=EGRESS)
    arenas = rig.ports[rig.shed].arenas
    arenas.rings[99] = msgspec.structs.replace(arenas.rings[1], ring_id=99)
    rig.close(rig.shed, EGRESS)
    assert rig.state(rig.shed)["dropped"] == {"DropArena: refused": 1}
    assert any(text == "an arena without rings stays" for _, _, text, _ in rig.world.logs)
    del arenas.rings[99]
    rig.open(direction=EGRESS, run=2, edge=2)  # it serves again
    assert rig.end(rig.shed, edge=2).state is State.WAITING_FOR_DRIVER


def test_ends_that_are_over_are_kept_for_reports_and_the_oldest_given_up(make_rig):
    rig = make_rig(kept_ends=3, budget_bytes=1 << 16)
    too_large = rig.order(EGRESS, edge=1, data=1 << 20)
    assert rig.open(too_large).report.state is State.STOPPED
    for edge in range(2, 7):
        rig.open(rig.order(EGRESS, edge=edge, run=edge))
        rig.close(rig.shed, EGRESS, edge=edge)
    assert [end.edge_id for end in rig.ends(rig.shed).ends] == [4, 5, 6]
    assert not [address for address in rig.world.cells if address.startswith("shed.edges/edge/")]
    assert rig.is_whole(rig.shed)


def test_its_state_shows_every_end_ring_and_lease_as_plain_data(rig):
    rig.open(direction=EGRESS)
    state = rig.state(rig.shed)
    assert state["ends"][0]["waits_for"] == "driver"
    assert state["workers"] == [
        {
            "ring_id": 1,
            "edge_id": 1,
            "instance_id": "hostwatch@shed",
            "epoch": "1.1",
            "port": "out",
            "phase": "installed",
            "uninstalling": False,
        }
    ]
    assert [lease["arena"] for lease in state["leases"]] == ["hostwatch@shed"]
    msgspec.msgpack.encode(state)


def test_progress_of_an_unknown_end_is_counted_and_nothing_else(rig):
    moved = PumpsMoved(pumps=[Moved(edge_id=9, direction=EGRESS, progress=rig.open(direction=EGRESS).report.progress)])
    rig.world.tell(rig.edges_of(rig.shed), moved, sender=Address("shed.edges/driver"))
    rig.report(rig.shed, StreamEnded(edge_id=9, direction=EGRESS))
    assert rig.state(rig.shed)["dropped"] == {"Moved: unknown end": 1, "StreamEnded: unknown end": 1}
    assert len(rig.sent(FormatRing)) == 1
