"""Edges processes in the simulated world: the real actors of `shed.edges` and `loft.edges` over simulated ports."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
import pytest

from actors.edges.edges import Edges
from actors.edges.settings import EdgeDeadlines, EdgeSettings
from messages.base import Address, NodeName
from messages.control import Epoch
from messages.edge import DType, EdgeProvisionState, ObjectKind, ObjectSpec, RingDirection, RingSpec
from messages.edge_end import (
    CloseEdge,
    EdgeParty,
    EndChanged,
    EndsBeat,
    ListEnds,
    OpenEdge,
    ProducerEstablished,
)
from messages.system import GetState
from runtime.kernel.simulated import SimulatedWorld
from runtime.simulated.edge_ports import (
    ClosePort,
    CrashWorkload,
    FaultPump,
    FaultRing,
    SimulatedArenas,
    SimulatedDriver,
    SimulatedDriving,
    SimulatedMemory,
    SimulatedWorkers,
    SimulatedWorkloads,
)

SHED, LOFT = NodeName("shed.edges"), NodeName("loft.edges")
NUMBERS = {SHED: 10, LOFT: 2**64 - 1}
PLANNER = Address("controller/edges")
EGRESS, INGRESS = RingDirection.EGRESS, RingDirection.INGRESS
State = EdgeProvisionState


@dataclass
class NodePorts:
    """What outlives the actors of one edges process, and what is wrong with its ports."""

    arenas: SimulatedArenas = field(default_factory=SimulatedArenas)
    driving: SimulatedDriving = field(default_factory=SimulatedDriving)
    workloads: SimulatedWorkloads = field(default_factory=SimulatedWorkloads)


class EdgesRig:
    """`producer` hostwatch and `consumer` trend, on `shed` and `loft` unless the order says otherwise."""

    shed, loft, planner = SHED, LOFT, PLANNER
    egress, ingress = EGRESS, INGRESS

    def __init__(
        self, processes=(SHED, LOFT), *, budget_bytes=1 << 20, seed=1, kept_ends=64, beat_s=1.0, live_ends=512
    ):
        self.world = SimulatedWorld(seed)
        self.settings = EdgeSettings(kept_ends=kept_ends, beat_s=beat_s, live_ends=live_ends)
        self.budget_bytes = budget_bytes
        self.ports = {process: NodePorts() for process in processes}
        self.world.inbox(PLANNER)
        for process in processes:
            self.start(process)
        self.world.run_idle()
        self.told.clear()

    @property
    def deadlines(self) -> EdgeDeadlines:
        return self.settings.deadlines

    def start(self, process):
        ports, world = self.ports[process], self.world
        world.spawn(Address(f"{process}/memory"), lambda: SimulatedMemory(ports.arenas))
        world.spawn(Address(f"{process}/driver"), lambda: SimulatedDriver(process, ports.driving))
        world.spawn(Address(f"{process}/workers"), lambda: SimulatedWorkers(process, ports.workloads))
        world.spawn(self.edges_of(process), lambda: self.make_edges(process))

    def make_edges(self, process):
        return Edges(process, NUMBERS[process], PLANNER, budget_bytes=self.budget_bytes, settings=self.settings)

    @staticmethod
    def edges_of(process):
        return Address(f"{process}/edges")

    def party(self, process, instance, port="out"):
        return EdgeParty(
            node_id=f"n-{NUMBERS[process]:016x}", process=process, instance_id=instance,
            epoch=Epoch(term=1, number=1), port=port,
        )  # fmt: skip

    def order(
        self, direction=EGRESS, *, edge=1, run=1, extent=1024, data=4096, producer=SHED, consumer=LOFT, **changes
    ):
        order = OpenEdge(
            name="hostwatch.out->trend.in", run_id=run, edge_id=edge, direction=direction,
            producer=self.party(producer, "hostwatch@shed", "out"),
            consumer=self.party(consumer, "trend@loft", "in"),
            object_spec=ObjectSpec(kind=ObjectKind.ACTIVATION, dtype=DType.F16, max_extent_bytes=extent),
            ring_spec=RingSpec(header_bytes=128, data_bytes=data, alignment=4096),
        )  # fmt: skip
        return msgspec.structs.replace(order, **changes)

    def at(self, order):
        return order.producer.process if order.direction is EGRESS else order.consumer.process

    # what is said

    def ask(self, process, request, sender=PLANNER):
        """The answer, when all that it causes at once is done; raises `AskFailed`."""
        self.world.inbox(sender)
        pending = self.world.start_ask(self.edges_of(process), request, sender=sender)
        self.world.run_idle()
        return pending.result()

    def open(self, order=None, sender=PLANNER, **how):
        order = order or self.order(**how)
        return self.ask(self.at(order), order, sender)

    def open_both(self, **how):
        """Receiver first; both are ready when this returns."""
        self.open(direction=INGRESS, **how)
        self.open(direction=EGRESS, **how)
        self.world.run_idle()

    def close(self, process, direction, edge=1, sender=PLANNER, reason="by order"):
        return self.ask(process, CloseEdge(edge_id=edge, direction=direction, reason=reason), sender)

    def producer_established(self, edge=1, process=LOFT, sender=PLANNER):
        self.world.tell(self.edges_of(process), ProducerEstablished(edge_id=edge), sender=sender)
        self.world.run_idle()

    def say(self, to, request):
        pending = self.world.start_ask(Address(to), request)
        self.world.run_idle()
        return pending.result()

    def crash_workload(self, process, instance):
        self.say(f"{process}/workers", CrashWorkload(instance_id=instance))

    def close_port(self, process, instance, port):
        self.say(f"{process}/workers", ClosePort(instance_id=instance, port=port))

    def fault_ring(self, process, instance, port, code, holds=True):
        self.say(f"{process}/workers", FaultRing(instance_id=instance, port=port, code=code, holds=holds))

    def fault_pump(self, process, direction, code, edge=1):
        self.say(f"{process}/driver", FaultPump(edge_id=edge, direction=direction, code=code, text="found by the pump"))

    def report(self, process, message):
        """As a port of the process would."""
        port = (
            "driver"
            if type(message).__name__ in ("PumpReady", "PumpFaulted", "PumpHalted", "StreamEnded")
            else "workers"
        )
        self.world.tell(self.edges_of(process), message, sender=Address(f"{process}/{port}"))
        self.world.run_idle()

    # what is seen

    @property
    def told(self):
        """All that the planner was told."""
        return self.world.inbox(PLANNER)

    def changes(self, process=None, direction=None, edge=1):
        """The reports of `EndChanged`, oldest first."""
        return [
            told.report
            for told in self.told
            if isinstance(told, EndChanged)
            and told.report.edge_id == edge
            and process in (None, told.process)
            and direction in (None, told.report.direction)
        ]

    def beats(self, process=None):
        return [told for told in self.told if isinstance(told, EndsBeat) and process in (None, told.process)]

    def ends(self, process):
        return self.ask(process, ListEnds())

    def end(self, process, direction=None, edge=1):
        ends = self.ends(process).ends
        return next(end for end in ends if end.edge_id == edge and direction in (None, end.direction))

    def state(self, process):
        return self.world.ask(self.edges_of(process), GetState()).state

    def sent(self, kind):
        return [envelope.message for envelope in self.world.sent if type(envelope.message) is kind]

    def is_whole(self, process):
        """No ring is leased, laid out or held; every byte is free."""
        arena, ports = self.ends(process).arena, self.ports[process]
        return (
            (arena.active_leases, arena.pending_leases, arena.free_bytes) == (0, 0, arena.capacity_bytes)
            and not ports.arenas.rings
            and not ports.arenas.arenas
            and not ports.workloads.held
        )


@pytest.fixture
def rig():
    return EdgesRig()


@pytest.fixture
def make_rig():
    return EdgesRig
