"""What goes wrong at an edge end keeps its reason up to the planner, ends in `stopped`, and gives the memory back."""

import pytest

from actors.edges.establisher import EdgeEstablisher
from messages.base import Address
from messages.edge import EdgeProvisionState as State
from messages.edge import RingDirection, RingFault, RingFaultReason
from messages.edge_end import CloseEdge, ObjectsMoved, Progress
from messages.edge_end import EdgeFaultCode as Code
from messages.edge_ports import (
    CloseStream,
    HaltPump,
    InstallRing,
    KillWorker,
    PumpFaulted,
    PumpHalted,
    PumpReady,
    StartSend,
    StreamEnded,
    UninstallRing,
    WorkerClosed,
    WorkerFaulted,
    WorkerGone,
    WorkerInstalled,
    WorkerQuiesced,
)
from messages.ports import PortRefusal

EGRESS, INGRESS = RingDirection.EGRESS, RingDirection.INGRESS


def assert_faulted(rig, process, code, text=""):
    """Told with its text when it faulted and when it was stopped; nothing is left of it."""
    [*_, last] = rig.changes(process)
    assert (last.state, last.fault) == (State.STOPPED, code)
    assert text in last.fault_text
    assert rig.end(process).fault is code
    assert rig.is_whole(process)


# --- deadlines ---


def test_a_lease_that_does_not_come_stops_the_end(make_rig):
    rig = make_rig(budget_bytes=20_480)
    rig.open_both(data=12_288)
    rig.told.clear()
    rig.open(rig.order(EGRESS, edge=2, data=12_288, name="other"))
    rig.world.advance(rig.deadlines.lease_s - 0.1)
    assert rig.end(rig.shed, edge=2).state is State.WAITING_FOR_LEASE
    rig.world.advance(0.1)
    [*_, last] = rig.changes(rig.shed, edge=2)
    assert (last.state, last.fault, last.ring_id) == (State.STOPPED, Code.LEASE_TIMEOUT, None)
    assert rig.ends(rig.shed).arena.pending_leases == 0
    assert rig.end(rig.shed).state is State.READY


def test_a_workload_that_does_not_take_its_ring_faults_the_end(rig):
    rig.ports[rig.shed].workloads.silent = True
    rig.open(direction=EGRESS)
    rig.world.advance(rig.deadlines.install_s)
    assert_faulted(rig, rig.shed, Code.INSTALL_TIMEOUT, "within 10 s")


def test_a_sending_end_waits_for_its_stream_from_its_own_establishment(rig):
    rig.open(direction=EGRESS)
    rig.world.advance(rig.deadlines.driver_s)
    assert_faulted(rig, rig.shed, Code.DRIVER_TIMEOUT, "stream was not established")


def test_a_receiving_end_waits_for_its_stream_from_the_establishment_of_its_producer(rig):
    rig.open(direction=INGRESS)
    rig.world.advance(rig.deadlines.producer_s - 1)
    assert rig.end(rig.loft).state is State.WAITING_FOR_DRIVER
    rig.producer_established()
    rig.producer_established()  # told again it does not begin anew
    rig.world.advance(rig.deadlines.driver_s - 0.1)
    assert rig.end(rig.loft).state is State.WAITING_FOR_DRIVER
    rig.world.advance(0.1)
    assert_faulted(rig, rig.loft, Code.DRIVER_TIMEOUT, "stream was not established")


def test_a_producer_established_before_the_ring_is_there_counts(rig):
    rig.ports[rig.loft].workloads.silent = True
    rig.open(direction=INGRESS)
    rig.producer_established()
    rig.report(rig.loft, WorkerInstalled(instance_id="trend@loft", ring_id=1))
    rig.world.advance(rig.deadlines.driver_s)
    assert_faulted(rig, rig.loft, Code.DRIVER_TIMEOUT)


def test_a_receiving_end_does_not_wait_for_ever_for_a_producer(rig):
    rig.open(direction=INGRESS)
    rig.world.advance(rig.deadlines.producer_s)
    assert_faulted(rig, rig.loft, Code.DRIVER_TIMEOUT, "producer was not established within 120 s")


def test_a_workload_that_does_not_let_go_is_killed_once(rig):
    rig.ports[rig.shed].workloads.clinging.add("hostwatch@shed")
    rig.open_both()
    rig.close(rig.shed, EGRESS)
    rig.world.advance(rig.deadlines.teardown_s - 0.1)
    assert rig.end(rig.shed).state is State.STOPPING
    rig.world.advance(0.1)
    [kill] = rig.sent(KillWorker)
    assert kill.instance_id == "hostwatch@shed"
    assert "the workload still holds ring 1" in kill.reason
    assert_faulted(rig, rig.shed, Code.TEARDOWN_TIMEOUT, "the workload still holds")


def test_a_teardown_by_force_keeps_the_fault_that_began_it(rig):
    rig.ports[rig.shed].workloads.clinging.add("hostwatch@shed")
    rig.open_both()
    rig.fault_pump(rig.shed, EGRESS, Code.LINK_LOST)
    rig.world.advance(rig.deadlines.teardown_s)
    assert len(rig.sent(KillWorker)) == 1
    assert_faulted(rig, rig.shed, Code.LINK_LOST, "found by the pump")


def test_an_end_is_known_until_its_ring_is_erased_however_few_are_kept(make_rig):
    rig = make_rig(kept_ends=0)
    rig.open_both()
    rig.ports[rig.shed].arenas.silent = True
    rig.close(rig.shed, EGRESS)
    rig.close(rig.loft, INGRESS)
    assert rig.end(rig.shed).state is State.STOPPED
    assert rig.ends(rig.shed).arena.active_leases == 1
    assert rig.ends(rig.loft).ends == []


@pytest.mark.parametrize("held_by", ["pump", "workload"])
def test_what_cannot_be_made_to_let_go_restarts_the_process(rig, held_by):
    ports = rig.ports[rig.shed]
    if held_by == "pump":
        ports.driving.keep = True
    else:
        ports.workloads.clinging.add("hostwatch@shed")
        ports.workloads.stuck = True
    rig.open_both()
    rig.close(rig.shed, EGRESS)
    rig.world.advance(2 * rig.deadlines.teardown_s - 0.1)
    assert len(rig.sent(KillWorker)) == (held_by == "workload")
    assert len(rig.sent(HaltPump)) == (2 if held_by == "pump" else 1)
    assert rig.edges_of(rig.shed) in rig.world.cells
    rig.world.advance(0.1)
    assert rig.edges_of(rig.shed) not in rig.world.cells
    assert any("still holds ring 1" in str(fields.get("exception")) for *_, fields in rig.world.logs)


def test_a_memory_port_that_does_not_answer_restarts_the_process(rig):
    rig.ports[rig.shed].arenas.silent = True
    rig.open(direction=EGRESS)
    rig.world.advance(rig.deadlines.install_s)
    assert rig.end(rig.shed).fault is Code.INSTALL_TIMEOUT
    assert rig.end(rig.shed).state is State.STOPPING  # the port may be writing the header
    rig.world.advance(2 * rig.deadlines.teardown_s)
    assert not rig.sent(KillWorker)
    assert rig.edges_of(rig.shed) not in rig.world.cells


def test_memory_that_is_still_looked_at_is_not_leased_again(rig):
    rig.ports[rig.shed].arenas.erase_refuse = True
    rig.open_both()
    rig.close(rig.shed, EGRESS)
    assert rig.edges_of(rig.shed) not in rig.world.cells


# --- faults with their codes ---

PUMP_CODES = [
    Code.RING_HEADER_CHANGED,
    Code.CURSOR_BEYOND_CAPACITY,
    Code.UNSUPPORTED_MAGIC,
    Code.UNSUPPORTED_VERSION,
    Code.MALFORMED_HEADER_LENGTH,
    Code.MALFORMED_HEADER,
    Code.EXTENT_EXCEEDS_MAX,
    Code.EXTENT_ALIGNMENT_VIOLATION,
    Code.SEQUENCE_VIOLATION,
    Code.EOF_BEFORE_FULL_PAYLOAD,
    Code.NOT_THE_PRODUCER,
    Code.STALE_EPOCH,
    Code.PEER_RESTARTED,
    Code.LINK_LOST,
    Code.CREDIT_EXCEEDED,
    Code.MALFORMED_FRAME,
]


@pytest.mark.parametrize("code", PUMP_CODES)
@pytest.mark.parametrize("direction", list(RingDirection))
def test_a_fault_of_the_pump_keeps_its_code_and_text(rig, direction, code):
    rig.open_both()
    process = rig.at(rig.order(direction))
    rig.fault_pump(process, direction, code)
    assert_faulted(rig, process, code, "found by the pump")
    faulted = [report for report in rig.changes(process) if report.fault]
    assert [report.state for report in faulted] == [State.STOPPING, State.STOPPED]
    assert {report.fault_text for report in faulted} == {"found by the pump"}
    assert [text for *_, text, fields in rig.world.logs if fields.get("code") == code] == ["an edge end faulted"]


@pytest.mark.parametrize("code", [*PUMP_CODES[:10], Code.WORKER_REFUSED, Code.WORKER_CRASHED, Code.CANNOT_FIT])
@pytest.mark.parametrize("holds", [True, False])
def test_a_fault_that_the_workload_finds_keeps_its_code_and_the_ring_goes_back_when_it_let_go(rig, code, holds):
    rig.open_both()
    rig.fault_ring(rig.loft, "trend@loft", "in", code, holds=holds)
    assert_faulted(rig, rig.loft, code, "the test said so")
    assert len(rig.sent(UninstallRing)) == holds


@pytest.mark.parametrize("code", [Code.WORKER_NOT_RUNNING, Code.WORKER_REFUSED, Code.SEQUENCE_VIOLATION])
def test_a_ring_that_the_workload_does_not_take_is_quiet_without_asking(rig, code):
    rig.ports[rig.shed].workloads.refuse = code
    rig.open(direction=EGRESS)
    assert_faulted(rig, rig.shed, code, "does not take ring 1")
    assert not rig.sent(UninstallRing)
    assert not rig.sent(StartSend)


def test_a_ring_that_can_never_fit_fails_the_end_which_then_is_stopped(rig):
    rig.open(rig.order(EGRESS, data=1 << 30))
    assert [report.state for report in rig.changes(rig.shed)] == [State.FAILED, State.STOPPED]
    assert_faulted(rig, rig.shed, Code.CANNOT_FIT, "1048576 bytes")
    assert Address("shed.edges/edge/1") not in rig.world.cells


def test_a_ring_that_the_memory_port_cannot_make_is_offered_to_nobody(rig):
    rig.ports[rig.shed].arenas.refuse = PortRefusal.DISK_FULL
    rig.open(direction=EGRESS)
    assert_faulted(rig, rig.shed, Code.ARENA_FAILED, "no memory for ring 1")
    assert not rig.sent(InstallRing)


# --- a workload that crashes ---


@pytest.mark.parametrize("process", ["shed", "loft"])
def test_a_workload_that_crashes_while_its_stream_is_not_there_faults_the_end_at_once(rig, process):
    process = getattr(rig, process)
    direction = EGRESS if process == rig.shed else INGRESS
    rig.open(direction=direction)
    rig.crash_workload(process, "hostwatch@shed" if direction is EGRESS else "trend@loft")
    assert_faulted(rig, process, Code.WORKER_CRASHED, "run 1.1")


def test_what_a_crashed_producer_left_is_taken_by_the_far_end_before_the_fault(rig):
    rig.open_both()
    rig.world.cut(rig.shed, rig.loft)
    rig.crash_workload(rig.shed, "hostwatch@shed")
    assert [close.clean for close in rig.sent(CloseStream)] == [False]
    assert rig.end(rig.shed).state is State.READY
    rig.world.heal(rig.shed, rig.loft)
    rig.world.advance(1)
    assert_faulted(rig, rig.shed, Code.WORKER_CRASHED, "what it left has arrived")
    assert not rig.end(rig.loft).ended


def test_the_far_end_has_so_long_to_take_it_and_no_longer(rig):
    rig.open_both()
    rig.world.cut(rig.shed, rig.loft)
    rig.crash_workload(rig.shed, "hostwatch@shed")
    rig.world.advance(rig.deadlines.drain_s - 0.1)
    assert rig.end(rig.shed).state is State.READY
    rig.world.advance(0.1)
    assert_faulted(rig, rig.shed, Code.WORKER_CRASHED, "did not take what it left within 5 s")


def test_a_pump_that_faults_while_a_crashed_producer_drains_ends_the_wait(rig):
    rig.open_both()
    rig.world.cut(rig.shed, rig.loft)
    rig.crash_workload(rig.shed, "hostwatch@shed")
    rig.fault_pump(rig.shed, EGRESS, Code.LINK_LOST)
    assert_faulted(rig, rig.shed, Code.WORKER_CRASHED, "what it left is lost: found by the pump")


def test_an_order_to_stop_ends_the_drain_too(rig):
    rig.open_both()
    rig.world.cut(rig.shed, rig.loft)
    rig.crash_workload(rig.shed, "hostwatch@shed")
    rig.close(rig.shed, EGRESS)
    rig.world.advance(30)
    assert_faulted(rig, rig.shed, Code.WORKER_CRASHED, "closed before the far end took what it left")


@pytest.mark.parametrize("holds", [True, False])
def test_a_channel_that_is_lost_after_the_port_was_closed_loses_nothing(rig, holds):
    rig.open_both()
    rig.world.cut(rig.shed, rig.loft)
    rig.close_port(rig.shed, "hostwatch@shed", "out")
    rig.fault_ring(rig.shed, "hostwatch@shed", "out", Code.WORKER_CRASHED, holds=holds)
    rig.world.advance(60)
    assert (rig.end(rig.shed).state, rig.end(rig.shed).fault) == (State.READY, None)
    rig.world.heal(rig.shed, rig.loft)
    rig.world.run_until(lambda: rig.end(rig.shed).ended and rig.end(rig.loft).ended, limit_s=5)
    rig.close(rig.shed, EGRESS)
    assert rig.end(rig.shed).fault is None
    assert rig.is_whole(rig.shed)


def test_a_channel_that_is_lost_while_the_port_is_open_ends_the_stream_as_a_crash_does(rig):
    rig.open_both()
    rig.fault_ring(rig.shed, "hostwatch@shed", "out", Code.WORKER_CRASHED)
    rig.world.advance(1)
    assert_faulted(rig, rig.shed, Code.WORKER_CRASHED, "the test said so; what it left has arrived")


def test_a_workload_whose_channel_is_lost_has_its_ring_until_it_lets_go_or_is_gone(rig, monkeypatch):
    observed, observe = [], EdgeEstablisher.observe
    spy = lambda self, *args: observed.append(args[0]) or observe(self, *args)  # noqa: E731
    monkeypatch.setattr(EdgeEstablisher, "observe", spy)
    rig.ports[rig.shed].workloads.clinging.add("hostwatch@shed")
    rig.open_both()
    rig.fault_ring(rig.shed, "hostwatch@shed", "out", Code.WORKER_CRASHED)
    rig.world.advance(1)
    assert (rig.end(rig.shed).state, rig.end(rig.shed).fault) == (State.STOPPING, Code.WORKER_CRASHED)
    assert rig.ends(rig.shed).arena.active_leases == 1
    [reason] = [event.reason for event in observed if isinstance(event, RingFault)]
    assert reason is RingFaultReason.WORKER_REJECTED_RING  # a crash would be proof that the worker touches nothing
    rig.crash_workload(rig.shed, "hostwatch@shed")
    assert_faulted(rig, rig.shed, Code.WORKER_CRASHED)


@pytest.mark.parametrize("side", [EGRESS, INGRESS])
def test_an_end_of_stream_that_cannot_be_handed_over_faults_the_end(rig, side):
    rig.open_both()
    if side is EGRESS:
        rig.world.crash(Address("shed.edges/driver"))
        rig.close_port(rig.shed, "hostwatch@shed", "out")
    else:
        rig.world.crash(Address("loft.edges/workers"))
        rig.report(rig.loft, StreamEnded(edge_id=1, direction=INGRESS))
    process = rig.at(rig.order(side))
    assert rig.end(process).fault is Code.DRIVER_TIMEOUT
    assert "could not be told" in rig.end(process).fault_text


def test_a_consumer_that_crashes_faults_its_end(rig):
    rig.open_both()
    rig.crash_workload(rig.loft, "trend@loft")
    assert_faulted(rig, rig.loft, Code.WORKER_CRASHED)


def test_a_crash_while_stopping_completes_the_stop_without_a_fault(rig):
    rig.ports[rig.shed].workloads.clinging.add("hostwatch@shed")
    rig.open_both()
    rig.close(rig.shed, EGRESS)
    assert rig.end(rig.shed).state is State.STOPPING
    rig.crash_workload(rig.shed, "hostwatch@shed")
    assert rig.end(rig.shed).state is State.STOPPED
    assert rig.end(rig.shed).fault is None
    assert rig.is_whole(rig.shed)


# --- stop in every state, and whatever comes after ---


def waiting_for_lease(rig):
    rig.open(rig.order(INGRESS, edge=9, data=900_000, consumer=rig.shed, producer=rig.loft, name="large"))
    rig.open(rig.order(EGRESS, data=900_000))


def waiting_for_worker_ring(rig):
    rig.ports[rig.shed].workloads.silent = True
    rig.open(direction=EGRESS)


def formatting(rig):
    rig.ports[rig.shed].arenas.silent = True
    rig.open(direction=EGRESS)


def waiting_for_driver(rig):
    rig.open(direction=EGRESS)


def ready(rig):
    rig.open_both()


def stopping(rig):
    rig.ports[rig.shed].workloads.clinging.add("hostwatch@shed")
    rig.open_both()
    rig.close(rig.shed, EGRESS)


def failed(rig):
    rig.open(rig.order(EGRESS, data=1 << 30))


def stopped(rig):
    rig.open(direction=EGRESS)
    rig.close(rig.shed, EGRESS)


STATES = [waiting_for_lease, waiting_for_worker_ring, waiting_for_driver, ready, stopping, failed, stopped]


@pytest.mark.parametrize("reach", STATES, ids=lambda reach: reach.__name__)
def test_an_end_can_be_stopped_in_every_state_and_told_so_once(rig, reach):
    reach(rig)
    rig.close(rig.shed, EGRESS)
    rig.close(rig.shed, EGRESS)
    rig.world.advance(2 * rig.deadlines.teardown_s)
    assert [report.state for report in rig.changes(rig.shed)].count(State.STOPPED) == 1
    assert rig.end(rig.shed).state is State.STOPPED
    assert [lease["arena"] for lease in rig.state(rig.shed)["leases"]] == (
        ["trend@loft"] if reach is waiting_for_lease else []
    )


def test_a_ring_whose_header_is_being_written_is_quiet_when_it_is_written(rig):
    formatting(rig)
    rig.close(rig.shed, EGRESS)
    assert rig.end(rig.shed).state is State.STOPPING
    assert not rig.sent(InstallRing)
    assert rig.state(rig.shed)["workers"][0]["phase"] == "formatting"


STRAY = [
    PumpReady(edge_id=1, direction=EGRESS),
    PumpFaulted(edge_id=1, direction=EGRESS, code=Code.LINK_LOST, text="late"),
    PumpHalted(edge_id=1, direction=EGRESS, ring_id=1),
    WorkerInstalled(instance_id="hostwatch@shed", ring_id=1),
    WorkerFaulted(instance_id="hostwatch@shed", ring_id=1, code=Code.WORKER_REFUSED, text="late", holds=False),
    WorkerQuiesced(instance_id="hostwatch@shed", ring_id=1),
    WorkerClosed(instance_id="hostwatch@shed", ring_id=1),
    WorkerGone(instance_id="hostwatch@shed", ring_ids=[1]),
]


@pytest.mark.parametrize("report", STRAY, ids=lambda report: type(report).__name__)
@pytest.mark.parametrize("reach", [failed, stopped], ids=lambda reach: reach.__name__)
def test_nothing_revives_an_end_that_is_over(rig, reach, report):
    reach(rig)
    before = rig.end(rig.shed)
    orders = len(rig.world.sent)
    rig.report(rig.shed, report)
    assert rig.end(rig.shed) == before
    assert not [
        one
        for one in rig.world.sent[orders:]
        if one.sender == rig.edges_of(rig.shed) and one.to.startswith("shed.edges/")
    ]
    state = rig.state(rig.shed)
    assert sum(state["dropped"].values()) + sum(state["dropped_of_workers"].values()) == 1


@pytest.mark.parametrize(
    "report",
    [
        PumpHalted(edge_id=1, direction=EGRESS, ring_id=1),
        WorkerQuiesced(instance_id="hostwatch@shed", ring_id=1),
        WorkerInstalled(instance_id="hostwatch@shed", ring_id=1),
        WorkerGone(instance_id="another@shed", ring_ids=[1]),
        WorkerGone(instance_id="hostwatch@shed", ring_ids=[7]),
        PumpReady(edge_id=1, direction=EGRESS),
    ],
    ids=repr,
)
def test_what_was_not_asked_for_does_not_touch_a_ready_end(rig, report):
    rig.open_both()
    rig.report(rig.shed, report)
    assert rig.end(rig.shed).state is State.READY
    state = rig.state(rig.shed)
    assert sum(state["dropped"].values()) + sum(state["dropped_of_workers"].values()) == 1
    rig.ports[rig.shed].workloads.clinging.add("hostwatch@shed")
    rig.close(rig.shed, EGRESS)  # what was told too early proves nothing now
    assert rig.end(rig.shed).state is State.STOPPING
    assert rig.ends(rig.shed).arena.active_leases == 1


# --- the actors of the ends ---


def test_the_actor_of_an_end_that_crashes_is_started_again_and_tells_how_the_end_stands(rig):
    rig.open_both()
    rig.told.clear()
    rig.world.crash(Address("shed.edges/edge/1"))
    rig.world.run_idle()
    assert [report.state for report in rig.changes(rig.shed)] == [State.READY]
    rig.fault_pump(rig.shed, EGRESS, Code.LINK_LOST)
    assert_faulted(rig, rig.shed, Code.LINK_LOST)


def test_a_fault_while_the_actor_is_down_is_told_by_its_next_life(rig):
    rig.open_both()
    rig.told.clear()
    pending = rig.world.start_ask(rig.edges_of(rig.shed), rig.order(EGRESS), sender=rig.planner)
    rig.world.run_idle()
    assert pending.done
    rig.world.tell(
        rig.edges_of(rig.shed),
        PumpFaulted(edge_id=1, direction=EGRESS, code=Code.LINK_LOST, text="meanwhile"),
        sender=Address("shed.edges/driver"),
    )
    rig.world.crash(Address("shed.edges/edge/1"))  # before it can be told
    rig.world.run_idle()
    assert_faulted(rig, rig.shed, Code.LINK_LOST, "meanwhile")
    assert Address("shed.edges/edge/1") not in rig.world.cells


def test_an_end_that_stops_while_its_actor_is_down_is_told_by_the_next_life(rig):
    waiting_for_lease(rig)
    rig.told.clear()
    close = CloseEdge(edge_id=1, direction=EGRESS, reason="by order")
    rig.world.start_ask(rig.edges_of(rig.shed), close, sender=rig.planner)
    rig.world.crash(Address("shed.edges/edge/2"))
    rig.world.run_idle()
    assert [report.state for report in rig.changes(rig.shed)] == [State.STOPPED]
    assert Address("shed.edges/edge/2") not in rig.world.cells


def test_an_actor_that_crashes_again_and_again_is_left_to_the_beats(rig):
    rig.open_both()
    for _ in range(8):
        rig.world.crash(Address("shed.edges/edge/1"))
        rig.world.run_idle()
    assert Address("shed.edges/edge/1") not in rig.world.cells
    rig.fault_pump(rig.shed, EGRESS, Code.LINK_LOST)
    assert rig.end(rig.shed).fault is Code.LINK_LOST
    rig.world.advance(1)
    assert rig.beats(rig.shed)[-1].ends[0].fault is Code.LINK_LOST
    assert any(fields.get("why") == "it crashes again and again" for *_, fields in rig.world.logs)


def test_what_another_tells_the_actor_of_an_end_is_refused(rig):
    rig.open_both()
    rig.world.tell(Address("shed.edges/edge/1"), ObjectsMoved(progress=Progress(objects=9)), sender=rig.planner)
    rig.world.run_idle()
    assert any(fields.get("why") == "not_the_owner" for *_, fields in rig.world.logs)


def test_a_memory_port_that_dies_with_a_question_open_restarts_the_process(rig):
    rig.ports[rig.shed].arenas.silent = True
    rig.open(direction=EGRESS)
    rig.world.crash(Address("shed.edges/memory"))
    rig.world.run_idle()
    assert rig.edges_of(rig.shed) not in rig.world.cells
