"""Who may order what of an edges process, and which orders are refused with nothing done."""

import msgspec
import pytest

from actors.actor import AskFailed
from actors.edges.opening import node_number
from messages.base import Address
from messages.control import Epoch
from messages.edge import DType, ObjectKind, ObjectSpec, RingDirection, RingSpec
from messages.edge import EdgeProvisionState as State
from messages.edge_end import (
    BounceLink,
    CloseEdge,
    EndRefusal,
    EndsBeatDue,
    FindRun,
    ListEnds,
    ProducerEstablished,
    RunFound,
    WaitOver,
)
from messages.edge_end import EdgeFaultCode as Code
from messages.edge_ports import CutLink, FormatRing, PumpFaulted, PumpReady, WorkerGone
from messages.identity import node_id
from messages.identity import node_number as number_of_key
from messages.system import Done, KernelRefusal

EGRESS, INGRESS = RingDirection.EGRESS, RingDirection.INGRESS
OPERATOR = Address("operator/edge")
STRANGERS = [Address("loft/agent"), Address("shed/agent"), Address("loft.edges/edge"), Address("controllers/edges")]


def refusal(rig, request, process=None, sender=None):
    """The code of the refusal, after which nothing has changed."""
    process = process or rig.shed
    before = rig.ends(process)
    with pytest.raises(AskFailed) as failed:
        rig.ask(process, request, sender or rig.planner)
    assert rig.ends(process) == before
    assert failed.value.reason
    return failed.value.code


@pytest.mark.parametrize("sender", [*STRANGERS, OPERATOR])
def test_only_the_controller_opens_and_closes_ends(rig, sender):
    assert refusal(rig, rig.order(), sender=sender) == EndRefusal.NOT_ALLOWED
    rig.open_both()
    close = CloseEdge(edge_id=1, direction=EGRESS, reason="mine")
    assert refusal(rig, close, sender=sender) == EndRefusal.NOT_ALLOWED


@pytest.mark.parametrize("sender", STRANGERS)
def test_only_controller_and_operator_look_and_cut_links(rig, sender):
    rig.open_both()
    for request in (ListEnds(), BounceLink(peer=rig.loft)):
        assert refusal(rig, request, sender=sender) == EndRefusal.NOT_ALLOWED
    assert rig.ask(rig.shed, ListEnds(), OPERATOR) == rig.ends(rig.shed)
    assert rig.ask(rig.shed, BounceLink(peer=rig.loft), OPERATOR) == Done()
    assert rig.sent(CutLink) == [CutLink(peer=rig.loft)]
    assert rig.ports[rig.shed].driving.cuts == [rig.loft]


def test_a_link_that_no_edge_uses_is_not_cut(rig):
    assert refusal(rig, BounceLink(peer=rig.loft)) == EndRefusal.NOT_HERE
    rig.open_both(consumer=rig.shed)
    assert refusal(rig, BounceLink(peer=rig.shed)) == EndRefusal.NOT_HERE


@pytest.mark.parametrize(
    "message",
    [
        PumpFaulted(edge_id=1, direction=EGRESS, code=Code.LINK_LOST, text="forged"),
        WorkerGone(instance_id="hostwatch@shed", ring_ids=[1]),
        WaitOver(edge_id=1, direction=EGRESS, serial=1),
        EndsBeatDue(),
        ProducerEstablished(edge_id=1),
    ],
    ids=lambda message: type(message).__name__,
)
@pytest.mark.parametrize("sender", [Address("loft.edges/driver"), Address("shed.edges/memory"), OPERATOR])
def test_a_report_or_timer_from_a_stranger_is_named_and_changes_nothing(rig, message, sender):
    rig.open_both()
    before = rig.ends(rig.shed)
    beats = len(rig.beats())
    rig.world.tell(rig.edges_of(rig.shed), message, sender=sender)
    rig.world.run_idle()
    assert rig.ends(rig.shed) == before
    assert len(rig.beats()) == beats
    assert rig.state(rig.shed)["dropped"] == {f"{type(message).__name__}: from a stranger": 1}
    assert any(fields.get("sender") == sender for *_, fields in rig.world.logs)


# --- what is no edge ---


def spec(order, **changes):
    return msgspec.structs.replace(order, ring_spec=msgspec.structs.replace(order.ring_spec, **changes))


def extent(order, size):
    objects = ObjectSpec(kind=ObjectKind.ACTIVATION, dtype=DType.F16, max_extent_bytes=size)
    return msgspec.structs.replace(order, object_spec=objects)


def producer(order, **changes):
    return msgspec.structs.replace(order, producer=msgspec.structs.replace(order.producer, **changes))


def consumer(order, **changes):
    return msgspec.structs.replace(order, consumer=msgspec.structs.replace(order.consumer, **changes))


INVALID = {
    "extent 0": lambda order: extent(order, 0),
    "ring of one record": lambda order: spec(extent(order, 1000), data_bytes=2 * 1040 - 1),
    "data 0": lambda order: spec(order, data_bytes=0),
    "header 64": lambda order: spec(order, header_bytes=64),
    "header 0": lambda order: spec(order, header_bytes=0),
    "alignment 0": lambda order: spec(order, alignment=0),
    "alignment 3": lambda order: spec(order, alignment=3),
    "alignment 4095": lambda order: spec(order, alignment=4095),
    "data beyond 2^63": lambda order: spec(order, data_bytes=2**63),
    "end beyond 2^63": lambda order: spec(order, data_bytes=2**63 - 200),
    "alignment beyond 2^63": lambda order: spec(order, alignment=2**63),
    "extent beyond 2^63": lambda order: spec(extent(order, 2**64 - 1), data_bytes=2**64 - 1),
    "run 0": lambda order: msgspec.structs.replace(order, run_id=0),
    "edge 0": lambda order: msgspec.structs.replace(order, edge_id=0),
    "no name": lambda order: msgspec.structs.replace(order, name=""),
    "long name": lambda order: msgspec.structs.replace(order, name="n" * 256),
    "newline in the name": lambda order: msgspec.structs.replace(order, name="a\nb"),
    "no port": lambda order: producer(order, port=""),
    "long port": lambda order: producer(order, port="p" * 64),
    "capital in a port": lambda order: consumer(order, port="In"),
    "newline after a port": lambda order: consumer(order, port="in\n"),
    "no instance": lambda order: producer(order, instance_id=""),
    "node id without prefix": lambda order: consumer(order, node_id="00000000000000aa"),
    "short node id": lambda order: consumer(order, node_id="n-aa"),
    "capital node id": lambda order: consumer(order, node_id="n-00000000000000AA"),
}


@pytest.mark.parametrize("spoil", INVALID.values(), ids=INVALID.keys())
def test_what_no_edge_can_be_is_refused_as_invalid(rig, spoil):
    assert refusal(rig, spoil(rig.order())) == EndRefusal.INVALID
    assert not rig.sent(FormatRing)


@pytest.mark.parametrize(
    "change",
    [
        lambda order: msgspec.structs.replace(order, direction=INGRESS),
        lambda order: producer(order, process="attic.edges"),
        lambda order: producer(order, node_id="n-000000000000000b"),
    ],
)
def test_an_end_of_another_node_is_refused_with_where_it_belongs(rig, change):
    assert refusal(rig, change(rig.order())) == EndRefusal.NOT_HERE


def test_the_smallest_ring_and_the_longest_names_are_taken(rig):
    order = spec(extent(rig.order(name="n" * 255), 1000), data_bytes=2 * 1040, alignment=1)
    order = consumer(producer(order, port="p" * 63, instance_id="i" * 255), port="0")
    assert rig.open(order).report.state is State.WAITING_FOR_WORKER_RING


def test_a_node_id_is_the_number_that_its_key_gives():
    key = bytes(range(32))
    assert node_number(node_id(key)) == number_of_key(key)


# --- again, otherwise, too late ---


def test_the_same_order_again_has_the_same_answer_and_does_nothing(rig):
    first = rig.open(direction=EGRESS)
    again = rig.open(direction=EGRESS)
    assert again.incarnation == first.incarnation
    assert again.report == rig.end(rig.shed)
    assert again.report.local_edge_actor == first.report.local_edge_actor
    assert len(rig.sent(FormatRing)) == 1
    rig.close(rig.shed, EGRESS)
    assert rig.open(direction=EGRESS).report.state is State.STOPPED


@pytest.mark.parametrize(
    "change",
    [
        {"run": 2},
        {"data": 8192},
        {"extent": 512},
        {"name": "another"},
        {"direction": INGRESS, "producer": "loft.edges", "consumer": "shed.edges"},
    ],
    ids=str,
)
def test_another_order_with_the_same_edge_id_is_a_conflict(rig, change):
    rig.open(direction=EGRESS)
    assert refusal(rig, rig.order(**change)) == EndRefusal.CONFLICT
    rig.close(rig.shed, EGRESS)
    assert refusal(rig, rig.order(**change)) == EndRefusal.CONFLICT


def test_a_lower_run_than_was_seen_of_the_edge_is_stale(make_rig):
    rig = make_rig(kept_ends=1)
    rig.open(direction=EGRESS, run=5, edge=50)
    rig.close(rig.shed, EGRESS, edge=50)
    for run, edge in ((4, 40), (4, 60), (5, 55)):
        assert refusal(rig, rig.order(run=run, edge=edge)) == EndRefusal.STALE_EPOCH
    rig.open(rig.order(run=1, edge=70, name="another"))
    rig.close(rig.shed, EGRESS, edge=70)
    assert [end.edge_id for end in rig.ends(rig.shed).ends] == [70]
    assert refusal(rig, rig.order(run=5, edge=50)) == EndRefusal.STALE_EPOCH  # forgotten, and still over
    assert rig.open(direction=EGRESS, run=6, edge=80).report.run_id == 6
    assert rig.open(direction=INGRESS, run=1, edge=10).report.run_id == 1  # the other end has its own


def test_a_process_has_a_limit_of_ends_that_are_not_over(make_rig):
    rig = make_rig(live_ends=2)
    rig.open_both(producer=rig.shed, consumer=rig.shed)
    another = rig.order(edge=2, name="another")
    assert refusal(rig, another) == KernelRefusal.OVERLOADED
    rig.open(direction=EGRESS, producer=rig.shed, consumer=rig.shed)  # it is one of them
    rig.close(rig.shed, INGRESS)
    rig.open(another)
    assert rig.end(rig.shed, edge=2).state is State.WAITING_FOR_DRIVER


def test_an_end_for_which_there_is_no_thread_is_refused_and_may_be_ordered_again(rig, monkeypatch):
    spawn = no_threads(rig.world, monkeypatch)
    for _ in range(2):
        assert refusal(rig, rig.order()) == KernelRefusal.OVERLOADED
    assert rig.state(rig.shed)["dropped"] == {}
    assert rig.sent(FormatRing) == []
    monkeypatch.setattr(rig.world, "spawn", spawn)
    rig.open_both()
    assert rig.end(rig.shed).state is State.READY
    rig.close(rig.shed, EGRESS)
    assert rig.is_whole(rig.shed)


def test_an_end_goes_on_without_an_actor_when_there_is_no_thread_for_another(rig, monkeypatch):
    rig.open_both()
    spawn = no_threads(rig.world, monkeypatch)
    rig.world.crash(Address("shed.edges/edge/1"))
    rig.world.run_idle()
    assert rig.state(rig.shed)["dropped"] == {"EdgeActor: not started": 1}
    monkeypatch.setattr(rig.world, "spawn", spawn)
    assert rig.end(rig.shed).state is State.READY
    rig.close(rig.shed, EGRESS)
    assert rig.end(rig.shed).state is State.STOPPED


def no_threads(world, monkeypatch):
    spawn = world.spawn

    def refuse(*_, **__):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(world, "spawn", refuse)
    return spawn


def test_a_higher_run_of_an_edge_takes_the_place_of_a_lower_one(rig):
    rig.open_both()
    rig.open(direction=EGRESS, run=2, edge=2)
    old = rig.end(rig.shed, edge=1)
    assert (old.state, old.fault) == (State.STOPPED, Code.STALE_EPOCH)
    assert "run 2" in old.fault_text
    assert rig.changes(rig.shed, edge=1)[-1].fault is Code.STALE_EPOCH
    assert rig.end(rig.shed, edge=2).state is State.WAITING_FOR_DRIVER


def test_an_end_that_is_stopping_is_answered_as_it_is_and_holds_up_no_later_run(rig):
    rig.ports[rig.shed].workloads.clinging.add("hostwatch@shed")
    rig.open_both()
    rig.close(rig.shed, EGRESS)
    assert rig.open(direction=EGRESS).report.state is State.STOPPING
    assert len(rig.sent(FormatRing)) == 2
    rig.open(direction=EGRESS, run=2, edge=2)
    old, new = rig.ends(rig.shed).ends
    assert (old.state, old.fault) == (State.STOPPING, None)
    assert (new.state, new.ring_id) == (State.WAITING_FOR_DRIVER, 2)
    assert rig.ends(rig.shed).arena.active_leases == 2


@pytest.mark.parametrize("stop_first", [True, False])
def test_a_stop_that_meets_readiness_stops(rig, stop_first):
    rig.ports[rig.shed].driving.silent = True
    rig.open(direction=EGRESS)
    rig.ports[rig.shed].driving.silent = False
    ready = PumpReady(edge_id=1, direction=EGRESS)
    close = CloseEdge(edge_id=1, direction=EGRESS, reason="by order")
    edges = rig.edges_of(rig.shed)
    if stop_first:
        rig.world.start_ask(edges, close, sender=rig.planner)
    rig.world.tell(edges, ready, sender=Address("shed.edges/driver"))
    if not stop_first:
        rig.world.start_ask(edges, close, sender=rig.planner)
    rig.world.run_idle()
    states = [report.state for report in rig.changes(rig.shed)]
    assert states[-2:] == [State.STOPPING, State.STOPPED]
    assert (State.READY in states) != stop_first
    assert rig.state(rig.shed)["dropped"] == ({"PumpReady: stopping": 1} if stop_first else {})
    assert rig.is_whole(rig.shed)


def test_closing_what_is_not_here_is_answered(rig):
    assert rig.close(rig.shed, EGRESS, edge=404) == Done()
    rig.open(direction=EGRESS)
    assert rig.close(rig.shed, INGRESS) == Done()
    assert rig.end(rig.shed).state is State.WAITING_FOR_DRIVER


def test_whether_an_instance_runs_is_told_and_changes_nothing(rig):
    question = FindRun(instance_id="hostwatch@shed", epoch=Epoch(term=1, number=1))
    rig.open(direction=EGRESS)
    before = rig.state(rig.shed)
    assert rig.ask(rig.shed, question) == RunFound(runs=True, run="hostwatch@shed/0")
    assert rig.ask(rig.shed, question, sender=Address("operator/cli")) == RunFound(runs=True, run="hostwatch@shed/0")
    assert refusal(rig, question, sender=Address("loft.edges/edges")) == EndRefusal.NOT_ALLOWED
    assert rig.state(rig.shed) == before
    rig.crash_workload(rig.shed, "hostwatch@shed")
    assert rig.ask(rig.shed, question) == RunFound(runs=False, run="hostwatch@shed/1")


def test_a_wait_that_is_over_already_means_nothing(rig):
    rig.open(direction=EGRESS)
    rig.world.tell(
        rig.edges_of(rig.shed), WaitOver(edge_id=1, direction=EGRESS, serial=1), sender=rig.edges_of(rig.shed)
    )
    rig.world.run_idle()
    assert rig.end(rig.shed).state is State.WAITING_FOR_DRIVER
    assert rig.state(rig.shed)["dropped"] == {"WaitOver: over already": 1}


def test_the_specifications_reach_worker_and_driver_as_ordered(rig):
    order = rig.order(extent=2000, data=8192)
    rig.open(order)
    layout = rig.sent(FormatRing)[0].ring.layout
    assert layout.data_bytes == order.ring_spec.data_bytes
    assert layout.data_offset - layout.header_offset >= 128
    assert layout.start_offset % 4096 == layout.data_offset % 4096 == 0
    assert rig.sent(FormatRing)[0].size_bytes == rig.budget_bytes
    assert isinstance(order.ring_spec, RingSpec)
