"""The simulated ports of edges processes behave as the live ones promise: memory, driver, workers."""

from __future__ import annotations

import pytest

from actors.actor import AskFailed
from messages.base import Address, NodeName
from messages.control import Epoch
from messages.edge import DType, ObjectKind, ObjectSpec, RingDirection, RingLayout
from messages.edge_end import EdgeFaultCode as Code
from messages.edge_ports import (
    CloseStream,
    DropArena,
    EndStream,
    EraseRing,
    FormatRing,
    HaltPump,
    InstallRing,
    KillWorker,
    PumpFaulted,
    PumpHalted,
    PumpReady,
    PumpsMoved,
    RingRef,
    StartReceive,
    StartSend,
    StreamEnded,
    UninstallRing,
    WorkerClosed,
    WorkerFaulted,
    WorkerGone,
    WorkerInstalled,
    WorkerQuiesced,
)
from messages.ports import PortRefusal, RunLimits, StageInstance, StartInstance
from messages.system import Done
from runtime.kernel.simulated import SimulatedWorld
from runtime.simulated.edge_ports import (
    MoveObjects,
    SimulatedDriver,
    SimulatedDriving,
    SimulatedMemory,
    SimulatedWorkers,
    SimulatedWorkloads,
)
from runtime.simulated.launcher import EndInstance, SimulatedHost, SimulatedLauncher

SHED, LOFT = NodeName("shed.edges"), NodeName("loft.edges")
EGRESS, INGRESS = RingDirection.EGRESS, RingDirection.INGRESS
OBJECTS = ObjectSpec(kind=ObjectKind.ACTIVATION, dtype=DType.F16, max_extent_bytes=64)


def ring(number=1, start=0, arena="hostwatch@shed"):
    layout = RingLayout(
        start_offset=start, header_offset=start, data_offset=start + 4096, end_offset=start + 8192, data_bytes=4096,
        alignment=4096,
    )  # fmt: skip
    return RingRef(arena=arena, ring_id=number, generation=1, layout=layout)


class Ports:
    """The ports of two edges processes; the test stands where their edges actors would."""

    def __init__(self, workloads=None, host=None):
        self.world = world = SimulatedWorld()
        self.driving = {process: SimulatedDriving() for process in (SHED, LOFT)}
        for process in (SHED, LOFT):
            world.inbox(Address(f"{process}/edges"))
            world.spawn(Address(f"{process}/memory"), SimulatedMemory)
            self.start_driver(process)
        workloads = workloads or SimulatedWorkloads(host=host)
        world.spawn(Address(f"{SHED}/workers"), lambda: SimulatedWorkers(SHED, workloads))
        if host is not None:
            world.spawn(Address("shed/launcher"), lambda: SimulatedLauncher(host))
        world.run_idle()

    def start_driver(self, process):
        self.world.spawn(Address(f"{process}/driver"), lambda: SimulatedDriver(process, self.driving[process]))

    def tell(self, process, port, *messages):
        for message in messages:
            self.world.tell(Address(f"{process}/{port}"), message, sender=Address(f"{process}/edges"))
        self.world.run_idle()

    def ask(self, to, request):
        return self.world.ask(Address(to), request)

    def told(self, process):
        return self.world.inbox(Address(f"{process}/edges"))

    def send(self, process=SHED, consumer=LOFT, run=1):
        self.tell(
            process, "driver", StartSend(edge_id=1, run_id=run, ring=ring(), object_spec=OBJECTS, consumer=consumer)
        )

    def take(self, process=LOFT, producer=SHED, run=1):
        self.tell(
            process, "driver", StartReceive(edge_id=1, run_id=run, ring=ring(2), object_spec=OBJECTS, producer=producer)
        )


def install(number=1):
    return InstallRing(
        instance_id="hostwatch@shed", epoch=Epoch(term=1, number=1), edge_id=1, ring=ring(number), port="out",
        direction=EGRESS, object_spec=OBJECTS,
    )  # fmt: skip


READY = {SHED: PumpReady(edge_id=1, direction=EGRESS), LOFT: PumpReady(edge_id=1, direction=INGRESS)}


# --- memory ---


def test_a_ring_may_not_lie_on_another_of_its_arena():
    ports = Ports()
    form = FormatRing(ring=ring(), size_bytes=65_536)
    assert ports.ask(f"{SHED}/memory", form) == Done()
    for other in (ring(), ring(2, start=4096)):
        with pytest.raises(AskFailed) as failed:
            ports.ask(f"{SHED}/memory", FormatRing(ring=other, size_bytes=65_536))
        assert failed.value.code == PortRefusal.EXISTS
    assert ports.ask(f"{SHED}/memory", FormatRing(ring=ring(2, arena="other"), size_bytes=65_536)) == Done()


def test_an_arena_is_dropped_when_its_rings_are_erased_and_not_before():
    ports = Ports()
    ports.ask(f"{SHED}/memory", FormatRing(ring=ring(), size_bytes=65_536))
    with pytest.raises(AskFailed) as failed:
        ports.ask(f"{SHED}/memory", DropArena(arena="hostwatch@shed"))
    assert failed.value.code == PortRefusal.INVALID_STATE
    for request in (EraseRing(ring_id=1), EraseRing(ring_id=1), DropArena(arena="hostwatch@shed")):
        assert ports.ask(f"{SHED}/memory", request) == Done()


# --- driver ---


@pytest.mark.parametrize("first", ["send", "take"])
def test_a_stream_is_established_when_both_pumps_are_there(first):
    ports = Ports()
    for step in (first, {"send": "take", "take": "send"}[first]):
        assert not ports.told(SHED) + ports.told(LOFT)
        getattr(ports, step)()
    assert ports.told(SHED) == [READY[SHED]]
    assert ports.told(LOFT) == [READY[LOFT]]


def test_both_pumps_may_be_in_one_process():
    ports = Ports()
    ports.send(consumer=SHED)
    ports.take(SHED)
    assert ports.told(SHED) == [READY[LOFT], READY[SHED]]


@pytest.mark.parametrize(
    ("how", "code"), [({"producer": SHED, "run": 2}, Code.STALE_EPOCH), ({"producer": LOFT}, Code.NOT_THE_PRODUCER)]
)
def test_a_stream_of_another_producer_or_run_is_refused_at_its_source(how, code):
    ports = Ports()
    ports.take(**how)
    ports.send()
    assert [(fault.code, type(fault)) for fault in ports.told(SHED)] == [(code, PumpFaulted)]
    assert ports.told(LOFT) == []


def test_a_cut_link_holds_a_stream_up_and_ends_nothing():
    ports = Ports()
    ports.world.cut(SHED, LOFT)
    ports.send()
    ports.take()
    ports.world.advance(5)
    assert not ports.told(SHED)
    ports.world.heal(SHED, LOFT)
    ports.world.advance(1)
    assert ports.told(SHED) == [READY[SHED]]
    ports.world.cut(SHED, LOFT)
    ports.world.heal(SHED, LOFT)
    ports.world.run_idle()
    assert ports.told(SHED) == [READY[SHED]]


def test_a_restart_of_the_far_process_faults_an_established_stream():
    ports = Ports()
    ports.send()
    ports.take()
    ports.world.crash_process(LOFT)
    ports.world.run_idle()
    ports.start_driver(LOFT)
    ports.world.run_idle()
    assert ports.told(SHED)[-1].code is Code.PEER_RESTARTED


def test_a_clean_close_ends_the_stream_at_both_ends_and_another_at_its_source_alone():
    for clean in (True, False):
        ports = Ports()
        ports.send()
        ports.take()
        ports.tell(SHED, "driver", CloseStream(edge_id=1, clean=clean))
        assert ports.told(SHED)[1:] == [StreamEnded(edge_id=1, direction=EGRESS)]
        assert ports.told(LOFT)[1:] == [StreamEnded(edge_id=1, direction=INGRESS)] * clean


def test_every_order_to_halt_is_answered_and_a_start_after_it_means_nothing():
    ports = Ports()
    halt = HaltPump(edge_id=1, direction=EGRESS, ring_id=1)
    ports.tell(SHED, "driver", halt, halt)
    ports.send()
    ports.take()
    ports.world.advance(5)
    assert ports.told(SHED) == [PumpHalted(edge_id=1, direction=EGRESS, ring_id=1)] * 2
    assert ports.told(LOFT) == []


def test_objects_that_move_are_counted_at_both_ends():
    ports = Ports()
    ports.send()
    ports.take()
    ports.ask(f"{SHED}/driver", MoveObjects(edge_id=1, count=2, extent=60))
    ports.world.run_idle()
    for process in (SHED, LOFT):
        [moved] = [report for report in ports.told(process) if isinstance(report, PumpsMoved)]
        assert (moved.pumps[0].progress.objects, moved.pumps[0].progress.bytes) == (2, 200)


# --- workers ---


def test_a_workload_takes_a_ring_reads_to_the_end_and_lets_go():
    ports = Ports()
    ports.tell(
        SHED, "workers", install(), EndStream(instance_id="hostwatch@shed", ring_id=1),
        UninstallRing(instance_id="hostwatch@shed", ring_id=1, reason="moved"),
    )  # fmt: skip
    assert [type(report) for report in ports.told(SHED)] == [WorkerInstalled, WorkerClosed, WorkerQuiesced]


def test_a_killed_workload_is_gone_with_its_rings_and_its_run_takes_no_more():
    ports = Ports()
    kill = KillWorker(instance_id="hostwatch@shed", ring_id=1, reason="it clings")
    ports.tell(SHED, "workers", install(), install(2), kill)
    assert ports.told(SHED)[-1] == WorkerGone(instance_id="hostwatch@shed", ring_ids=[1, 2])
    ports.tell(SHED, "workers", install(3))
    faulted = ports.told(SHED)[-1]
    assert isinstance(faulted, WorkerFaulted)
    assert (faulted.code, faulted.holds) == (Code.WORKER_NOT_RUNNING, False)


def test_a_workload_that_does_not_hold_the_ring_is_not_killed():
    workloads = SimulatedWorkloads()
    ports = Ports(workloads)
    kill = KillWorker(instance_id="hostwatch@shed", ring_id=7, reason="it clings")
    ports.tell(SHED, "workers", install(), kill)
    assert ports.told(SHED)[-1] == WorkerQuiesced(instance_id="hostwatch@shed", ring_id=7)
    assert list(workloads.held) == [1]


def test_with_a_host_rings_belong_to_the_process_that_got_them():
    host = SimulatedHost()
    ports = Ports(host=host)
    ports.tell(SHED, "workers", install())
    assert ports.told(SHED)[-1].code is Code.WORKER_NOT_RUNNING
    stage = StageInstance(
        instance_id="hostwatch@shed", sha256="00" * 32, arch="x86_64", interpreter=None, program_name="hostwatch",
        limits=RunLimits(ram_mb=16, max_runtime_s=60, output_limit_bytes=1024),
    )  # fmt: skip
    ports.ask("shed/launcher", stage)
    start = StartInstance(instance_id="hostwatch@shed", arguments=[], environment={}, once=False, epoch="1.1")
    ports.ask("shed/launcher", start)
    ports.tell(SHED, "workers", install())
    assert isinstance(ports.told(SHED)[-1], WorkerInstalled)
    ports.ask("shed/launcher", EndInstance(instance_id="hostwatch@shed"))
    ports.ask("shed/launcher", start)  # another process before anybody looked
    ports.world.advance(1)
    assert ports.told(SHED)[-1] == WorkerGone(instance_id="hostwatch@shed", ring_ids=[1])
