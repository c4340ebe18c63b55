"""Worker control: orders, what it tells of rings; quiescence is told when it is wanted and true, never before."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.edges.worker_control import PortClosed, Told, WorkerControl, WorkerRun
from messages.control import Epoch
from messages.edge import (
    DType,
    InstallWorkerRing,
    ObjectKind,
    ObjectSpec,
    QuiescenceProven,
    RingDirection,
    RingFault,
    RingFaultReason,
    RingInstalled,
    RingLayout,
    RingQuiesced,
    RingSpec,
    StreamFault,
    UninstallWorkerRing,
)
from messages.edge_end import EdgeFaultCode as Code
from messages.edge_ports import (
    EndStream,
    InstallRing,
    KillWorker,
    UninstallRing,
    WorkerClosed,
    WorkerFaulted,
    WorkerGone,
    WorkerInstalled,
    WorkerQuiesced,
)

ME = "hostwatch@shed"
RUN = WorkerRun(ME, Epoch(term=1, number=2), "out", 5)
QUIET = [RingQuiesced(ring_id=8001), QuiescenceProven(ring_id=8001)]


def install(ring=8001, edge=7001):
    return InstallWorkerRing(
        edge_id=edge, ring_id=ring, direction=RingDirection.EGRESS,
        layout=RingLayout(
            start_offset=0, header_offset=0, data_offset=4096, end_offset=8192, data_bytes=4096, alignment=4096
        ),
        object_spec=ObjectSpec(kind=ObjectKind.ACTIVATION, dtype=DType.F16, max_extent_bytes=64),
        ring_spec=RingSpec(header_bytes=128, data_bytes=4096, alignment=4096),
    )  # fmt: skip


UNINSTALL = UninstallWorkerRing(edge_id=7001, ring_id=8001)
INSTALLED = WorkerInstalled(instance_id=ME, ring_id=8001)
QUIESCED = WorkerQuiesced(instance_id=ME, ring_id=8001)
CLOSED = WorkerClosed(instance_id=ME, ring_id=8001)
GONE = WorkerGone(instance_id=ME, ring_ids=[8001])


def faulted(code=Code.WORKER_REFUSED, *, holds=True):
    return WorkerFaulted(instance_id=ME, ring_id=8001, code=code, text="why", holds=holds)


class Driven:
    """A control with one ring that has come as far as `steps`; what that caused is drained."""

    def __init__(self, *steps):
        self.control = WorkerControl()
        self.ref = self.control.install(install(), RUN)
        self.do(*steps)

    def do(self, *steps):
        for step in steps:
            if step == "formatted":
                self.control.formatted(8001)
            elif step == "refused":
                self.control.format_refused(8001, "no room")
            elif step == "uninstall":
                self.control.uninstall(UNINSTALL, "by order")
            elif step == "end":
                self.control.end_stream(8001)
            else:
                self.control.observe(step)
        self.orders = self.control.drain_orders()
        self.notices = self.control.drain_notices()
        return self

    @property
    def events(self):
        return [notice.event for notice in self.notices if isinstance(notice, Told)]

    @property
    def phase(self):
        rows = self.control.rows()
        return rows[0]["phase"] if rows else None


def test_a_ring_is_offered_to_the_run_it_is_for_when_its_memory_is_there():
    driven = Driven()
    assert not driven.orders
    assert driven.phase == "formatting"
    driven.do("formatted")
    [order] = driven.orders
    assert isinstance(order, InstallRing)
    assert (order.instance_id, order.epoch, order.port, order.ring) == (ME, RUN.epoch, "out", driven.ref)
    assert (driven.ref.arena, driven.ref.generation, driven.ref.layout) == (ME, 5, install().layout)
    assert driven.do(INSTALLED).notices == [Told(7001, RingDirection.EGRESS, RingInstalled(edge_id=7001, ring_id=8001))]


REACHED = {
    "formatting": [],
    "installing": ["formatted"],
    "installed": ["formatted", INSTALLED],
    "refused": ["formatted", faulted(holds=False)],
    "no memory": ["refused"],
    "gone": ["formatted", INSTALLED, GONE],
    "gone while installing": ["formatted", GONE],
    "faulted": ["formatted", INSTALLED, faulted()],
}


@pytest.mark.parametrize("path", REACHED.values(), ids=REACHED.keys())
@pytest.mark.parametrize("word", [QUIESCED, INSTALLED, CLOSED, faulted(), faulted(holds=False), GONE], ids=repr)
def test_quiescence_is_never_told_before_it_is_asked_for(path, word):
    driven = Driven(*path, word)
    assert not [event for event in driven.events if isinstance(event, RingQuiesced | QuiescenceProven)]


@pytest.mark.parametrize("reached", ["refused", "no memory", "gone", "gone while installing"])
def test_a_ring_that_no_worker_holds_is_quiet_at_once_when_asked(reached):
    driven = Driven(*REACHED[reached]).do("uninstall")
    assert driven.events == QUIET
    assert driven.orders == []
    assert driven.phase is None


@pytest.mark.parametrize("reached", ["installing", "installed", "faulted"])
@pytest.mark.parametrize("word", [QUIESCED, GONE, faulted(holds=False)], ids=repr)
def test_a_ring_at_a_worker_is_quiet_when_the_worker_let_go_or_is_gone(reached, word):
    driven = Driven(*REACHED[reached]).do("uninstall")
    assert driven.orders == [UninstallRing(instance_id=ME, ring_id=8001, reason="by order")]
    assert driven.events == []
    assert driven.do("uninstall", INSTALLED, faulted(), CLOSED).events == []
    assert driven.orders == []
    assert driven.do(word).events == QUIET
    assert driven.do(word).events == []


@pytest.mark.parametrize("outcome", ["formatted", "refused"])
def test_a_ring_whose_header_is_being_written_is_quiet_when_that_is_over(outcome):
    driven = Driven("uninstall", QUIESCED, GONE)
    assert driven.events == []
    assert driven.control.is_waiting_for_memory(8001)
    assert driven.do(outcome).events == QUIET
    assert driven.orders == []


def test_a_run_that_ends_faults_its_rings_once_and_no_others():
    driven = Driven("formatted", INSTALLED)
    driven.control.install(install(8002, 7002), RUN)
    driven.control.formatted(8002)
    driven.do(WorkerGone(instance_id="other@shed", ring_ids=[8001]), WorkerGone(instance_id=ME, ring_ids=[8001, 9]))
    [told] = driven.notices
    assert told.event == RingFault(edge_id=7001, ring_id=8001, reason=RingFaultReason.WORKER_CRASHED)
    assert told.code is Code.WORKER_CRASHED
    assert "run 1.2" in told.text
    assert driven.do(GONE).notices == []
    assert driven.control.dropped == {"WorkerGone: another workload": 1, "WorkerGone: unknown ring": 1}


def test_a_crash_is_believed_of_nothing_but_the_end_of_the_run():
    driven = Driven("formatted", INSTALLED).do(faulted(Code.WORKER_CRASHED))
    assert [event.reason for event in driven.events] == [RingFaultReason.WORKER_REJECTED_RING]
    assert driven.notices[0].code is Code.WORKER_CRASHED


def test_a_bad_record_faults_the_stream_once_there_is_one_and_the_ring_before():
    code = Code.SEQUENCE_VIOLATION
    assert isinstance(Driven("formatted", INSTALLED, faulted(code)).events[-1], StreamFault)
    assert isinstance(Driven("formatted", faulted(code)).events[-1], RingFault)


def test_only_the_first_fault_of_a_ring_is_told():
    driven = Driven("formatted", INSTALLED, faulted(Code.SEQUENCE_VIOLATION), faulted(), GONE)
    assert [notice.code for notice in driven.notices if isinstance(notice, Told)][1:] == [Code.SEQUENCE_VIOLATION]
    assert driven.control.dropped == {"WorkerFaulted: again": 1}


def test_a_closed_port_is_told_once():
    driven = Driven("formatted", INSTALLED, CLOSED, CLOSED)
    assert driven.notices[1:] == [PortClosed(7001, RingDirection.EGRESS)]
    assert driven.control.dropped == {"WorkerClosed: late": 1}


def test_the_end_of_a_stream_is_told_once_to_a_worker_that_holds_the_ring():
    driven = Driven("formatted", INSTALLED, "end", "end")
    assert [order for order in driven.orders if isinstance(order, EndStream)] == [
        EndStream(instance_id=ME, ring_id=8001)
    ]
    assert Driven("formatted", INSTALLED, GONE).do("end").orders == []
    assert Driven("formatted", INSTALLED, "uninstall").do("end").orders == []


def test_a_workload_is_killed_once_and_only_if_it_may_hold_the_ring():
    driven = Driven("formatted", INSTALLED, "uninstall")
    assert driven.control.kill(8001, "too long")
    assert not driven.control.kill(8001, "too long")
    assert driven.control.drain_orders() == [KillWorker(instance_id=ME, ring_id=8001, reason="too long")]
    assert not Driven().control.kill(8001, "it is the memory port")
    assert not Driven("formatted", GONE).control.kill(8001, "nobody is left")
    assert not driven.control.kill(404, "no such ring")


def test_a_ring_is_taken_in_once():
    driven = Driven()
    with pytest.raises(ValueError, match="8001"):
        driven.control.install(install(), RUN)


def test_what_is_about_an_unknown_ring_is_counted_by_name():
    control = WorkerControl()
    for report in (INSTALLED, faulted(), QUIESCED, CLOSED, GONE):
        control.observe(report)
    control.uninstall(UNINSTALL, "late")
    assert (control.drain_orders(), control.drain_notices()) == ([], [])
    assert set(control.dropped) == {
        f"{name}: unknown ring"
        for name in (
            "WorkerInstalled", "WorkerFaulted", "WorkerQuiesced", "WorkerClosed", "WorkerGone", "UninstallWorkerRing",
        )
    }  # fmt: skip


WORDS = [INSTALLED, QUIESCED, CLOSED, GONE, faulted(), faulted(holds=False), "uninstall", "end", "formatted", "refused"]


@settings(max_examples=200)
@given(st.lists(st.sampled_from(range(len(WORDS))), max_size=12))
def test_in_any_order_quiescence_is_told_once_as_a_pair_and_installed_at_most_once(numbers):
    control = WorkerControl()
    control.install(install(), RUN)
    asked = settled = False
    events = []
    for word in (WORDS[number] for number in numbers):
        if word in ("formatted", "refused"):
            if settled:
                continue
            settled = True
            control.formatted(8001) if word == "formatted" else control.format_refused(8001, "no")
        elif word == "uninstall":
            asked = True
            control.uninstall(UNINSTALL, "by order")
        elif word == "end":
            control.end_stream(8001)
        else:
            control.observe(word)
        new = [notice.event for notice in control.drain_notices() if isinstance(notice, Told)]
        quiet = [event for event in new if isinstance(event, RingQuiesced | QuiescenceProven)]
        assert quiet in ([], QUIET)
        assert not quiet or (asked and settled)
        events += new
    assert [type(event) for event in events].count(RingQuiesced) <= 1
    assert [type(event) for event in events].count(RingInstalled) <= 1
    assert sum(isinstance(event, RingFault | StreamFault) for event in events) <= 1
