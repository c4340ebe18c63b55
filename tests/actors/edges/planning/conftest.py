"""A cluster around the real edge planner, on the simulated world: real chain and gate; the plane, the supervisors and
the edges processes are scripted. Ends of one edge become ready when both are there, unless a test wants otherwise."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from actors.actor import Actor, AskFailed, Context
from actors.chain.chain import Chain
from actors.edges.edges import Edges
from actors.edges.planning.planner import EdgePlanner, PlannerSettings
from actors.gate.gate import Gate
from actors.gate.policy import Permit, Policy
from messages.base import Address, Message, NodeName
from messages.control import Epoch
from messages.edge import ActorAddress, EdgeProvisionState, NodeId, RingDirection, RingId
from messages.edge_end import (
    ArenaSample,
    CloseEdge,
    EdgeFaultCode,
    EdgeOpened,
    EndChanged,
    EndReport,
    Ends,
    EndsBeat,
    FindRun,
    ListEnds,
    OpenEdge,
    ProducerEstablished,
    RunFound,
)
from messages.edge_plan import AddEdge, EdgeLine, ListEdges, RemoveEdge
from messages.gate import Network
from messages.identity import Identity, node_number
from messages.placement import GetPlacements, PlacedInstance, PlacementRecord, Placements
from messages.supervision import ChildDone, StartChild
from messages.system import Done
from runtime.kernel.simulated import SimulatedWorld
from runtime.simulated.chain_store import SimulatedChainDisk, SimulatedChainStore
from runtime.simulated.edge_ports import (
    SimulatedArenas,
    SimulatedDriver,
    SimulatedDriving,
    SimulatedMemory,
    SimulatedWorkers,
    SimulatedWorkloads,
)
from runtime.simulated.store import SimulatedDisk, SimulatedStore

PLANNER = Address("controller/edges")
PERMIT = Permit(id="cogs", actions=("workload.*",), kinds=("cog",), max_network=Network.EGRESS)
State = EdgeProvisionState
EGRESS, INGRESS = RingDirection.EGRESS, RingDirection.INGRESS
TERMINAL = (State.STOPPED, State.FAILED)
MIB = 2**20


class Beat(Message, frozen=True):
    """Timer of a scripted edges process."""


class Become(Message, frozen=True):
    """Timer of a scripted edges process: that end reaches that state."""

    edge_id: int
    direction: RingDirection
    state: State


@dataclass
class End:
    order: OpenEdge
    process: str
    number: int
    state: State = State.WAITING_FOR_LEASE
    fault: EdgeFaultCode | None = None
    fault_text: str = ""
    ended: bool = False
    established: int = 0

    @property
    def live(self) -> bool:
        return self.state not in TERMINAL

    def report(self) -> EndReport:
        order = self.order
        mine, peer = order.producer, order.consumer
        if order.direction is INGRESS:
            mine, peer = peer, mine
        return EndReport(
            name=order.name,
            edge_id=order.edge_id,
            run_id=order.run_id,
            direction=order.direction,
            state=self.state,
            instance_id=mine.instance_id,
            port=mine.port,
            local_edge_actor=ActorAddress(self.number),
            ring_id=RingId(self.number),
            peer=peer.process,
            fault=self.fault,
            fault_text=self.fault_text,
            ended=self.ended,
        )


@dataclass
class Fabric:
    """All ends of all edges processes, and what is wrong with these. `opens`: every order carried out.

    `two`: what would be two lives of one edge at once, as the promise has it. `absent`: instances that do not run, with
    what is said of it; `asked`: the runs that were asked about; `runs`: which run it is of an instance that ran before.
    """

    ends: dict[tuple[str, int, RingDirection], End] = field(default_factory=dict)
    opens: list[OpenEdge] = field(default_factory=list)
    closes: list[tuple[str, int, RingDirection]] = field(default_factory=list)
    two: list[str] = field(default_factory=list)
    incarnations: int = 100
    numbers: int = 0
    slow: set[str] = field(default_factory=set)
    stuck: set[str] = field(default_factory=set)
    refuse: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    on_open: dict[str, Callable[[End], None]] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    asked: list[FindRun] = field(default_factory=list)
    runs: dict[str, str] = field(default_factory=dict)

    def live(self, name: str | None = None) -> list[End]:
        return [end for end in self.ends.values() if end.live and name in (None, end.order.name)]

    def check(self) -> None:
        by_name: dict[str, set[int]] = {}
        for end in self.live():
            by_name.setdefault(end.order.name, set()).add(end.order.edge_id)
        self.two += [f"{name}: {sorted(ids)}" for name, ids in by_name.items() if len(ids) > 1]


EdgesMessages = OpenEdge | CloseEdge | ProducerEstablished | ListEnds | FindRun | Beat | Become


class ScriptedEdges(Actor[EdgesMessages]):
    mailbox = EdgesMessages

    def __init__(self, process: str, fabric: Fabric) -> None:
        self.process = process
        self.fabric = fabric
        fabric.incarnations += 1
        self.incarnation = fabric.incarnations
        for key in [key for key in fabric.ends if key[0] == process]:
            del fabric.ends[key]  # what an earlier life had is gone with it

    def started(self, ctx: Context) -> None:
        ctx.after(0, Beat())

    @property
    def mine(self) -> list[End]:
        return [end for key, end in sorted(self.fabric.ends.items()) if key[0] == self.process]

    def arena(self) -> ArenaSample:
        return ArenaSample(
            capacity_bytes=512 * MIB, live_bytes=0, free_bytes=512 * MIB, active_leases=0, pending_leases=0,
            largest_free_range_bytes=512 * MIB, allocation_failures_total=0, release_failures_total=0,
        )  # fmt: skip

    def receive(self, message: EdgesMessages, ctx: Context) -> None:
        fabric, name = self.fabric, NodeName(self.process)
        match message:
            case Beat():
                ctx.after(1.0, Beat())
                reports = [end.report() for end in self.mine]
                ctx.tell(
                    PLANNER, EndsBeat(process=name, incarnation=self.incarnation, ends=reports, arena=self.arena())
                )
            case ListEnds():
                reports = [end.report() for end in self.mine]
                ctx.reply(Ends(process=name, incarnation=self.incarnation, ends=reports, arena=self.arena()))
            case FindRun(instance_id=instance):
                fabric.asked.append(message)
                detail = fabric.absent.get(instance)
                run = fabric.runs.get(instance, "first")
                ctx.reply(RunFound(runs=detail is None, run=run, detail=detail or ""))
            case OpenEdge():
                self.open(message, ctx)
            case CloseEdge(edge_id=edge_id, direction=direction):
                fabric.closes.append((self.process, edge_id, direction))
                end = fabric.ends.get((self.process, edge_id, direction))
                ctx.reply(Done())
                if end is not None and end.live and end.state is not State.STOPPING:
                    self.become(end, State.STOPPING, ctx)
                    if self.process not in fabric.stuck:
                        ctx.after(0.05, Become(edge_id=edge_id, direction=direction, state=State.STOPPED))
            case ProducerEstablished(edge_id=edge_id):
                end = fabric.ends.get((self.process, edge_id, INGRESS))
                if end is not None:
                    end.established += 1
            case Become(edge_id=edge_id, direction=direction, state=state):
                end = fabric.ends.get((self.process, edge_id, direction))
                if end is None or not end.live or (end.state is State.STOPPING and state not in TERMINAL):
                    return
                if state is State.READY and not self.peer_is_there(end):
                    ctx.after(0.05, message)
                    return
                self.become(end, state, ctx)

    def peer_is_there(self, end: End) -> bool:
        order = end.order
        peer, way = (order.consumer, INGRESS) if order.direction is EGRESS else (order.producer, EGRESS)
        other = self.fabric.ends.get((peer.process, order.edge_id, way))
        return other is not None and other.state in (State.WAITING_FOR_DRIVER, State.READY)

    def open(self, order: OpenEdge, ctx: Context) -> None:
        fabric = self.fabric
        refusals = fabric.refuse.get(self.process)
        if refusals:
            ctx.refuse(*refusals.pop(0))
            return
        key = (self.process, order.edge_id, order.direction)
        known = fabric.ends.get(key)
        if known is None:
            fabric.numbers += 1
            known = fabric.ends[key] = End(order, self.process, fabric.numbers)
            fabric.opens.append(order)
            fabric.check()
            on_open = fabric.on_open.get(self.process)
            if on_open is not None:
                on_open(known)
            if self.process not in fabric.slow:
                self.then(known, State.WAITING_FOR_DRIVER, 0.02, ctx)
                self.then(known, State.READY, 0.04, ctx)
        ctx.reply(EdgeOpened(incarnation=self.incarnation, report=known.report()))

    def then(self, end: End, state: State, after_s: float, ctx: Context) -> None:
        ctx.after(after_s, Become(edge_id=end.order.edge_id, direction=end.order.direction, state=state))

    def become(self, end: End, state: State, ctx: Context) -> None:
        end.state = state
        changed = EndChanged(process=NodeName(self.process), incarnation=self.incarnation, report=end.report())
        ctx.tell(PLANNER, changed)


class ScriptedPlane(Actor[GetPlacements]):
    mailbox = GetPlacements

    def __init__(self, rows: dict[str, PlacedInstance], told: dict[str, bool]) -> None:
        self.rows = rows
        self.told = told

    def receive(self, message: GetPlacements, ctx: Context) -> None:
        ctx.reply(Placements(rows=list(self.rows.values()), loaded=self.told["loaded"]))


class ScriptedSupervisor(Actor[StartChild]):
    mailbox = StartChild

    def __init__(self, start: Callable[[str], None], asked: list[str]) -> None:
        self.start = start
        self.asked = asked

    def receive(self, message: StartChild, ctx: Context) -> None:
        self.asked.append(message.name)
        self.start(message.name)
        ctx.reply(ChildDone())


class Cluster:
    """The rig. `disk` and `chain_disk` outlive the actors."""

    def __init__(
        self,
        *nodes: str,
        permits: tuple[Permit, ...] = (PERMIT,),
        supervised: bool = True,
        real: bool = False,
        seed: int = 1,
        **settings: Any,
    ) -> None:
        self.world = SimulatedWorld(seed=seed)
        self.fabric = Fabric()
        self.chain_disk, self.disk = SimulatedChainDisk(), SimulatedDisk()
        self.rows: dict[str, PlacedInstance] = {}
        self.placements_told = {"loaded": True}
        self.asked: list[str] = []
        self.epochs: dict[str, int] = {}
        self.settings = PlannerSettings(**settings)
        self.real = real
        self.arenas: dict[str, SimulatedArenas] = {}
        self.driving: dict[str, SimulatedDriving] = {}
        self.workloads: dict[str, SimulatedWorkloads] = {}
        self.nodes = [Identity(name=node, role="node", public_key=node.encode().ljust(32, b"-")) for node in nodes]
        spawn = self.world.spawn
        spawn(Address("chain/store"), lambda: SimulatedChainStore(self.chain_disk))
        spawn(Address("chain/chain"), lambda: Chain("c-test"))
        self.start_gate(permits)
        spawn(Address("controller/store"), lambda: SimulatedStore(self.disk))
        spawn(Address("controller/plane"), lambda: ScriptedPlane(self.rows, self.placements_told))
        for node in nodes:
            if supervised:
                spawn(Address(f"{node}/supervisor"), lambda: ScriptedSupervisor(self.start_edges, self.asked))
        self.start_planner()
        self.world.run_idle()

    def start_gate(self, permits: tuple[Permit, ...]) -> None:
        policy = Policy(threshold=0.95, permits=permits)
        self.world.spawn(Address("gate/gate"), lambda: Gate(policy, Address("chain/chain")))

    def start_planner(self) -> None:
        self.world.spawn(
            PLANNER, lambda: EdgePlanner(agent_id="n-controller", nodes=self.nodes, settings=self.settings)
        )

    def restart_planner(self) -> None:
        if PLANNER in self.world.cells:
            self.world.crash(PLANNER)
        self.start_planner()

    def start_edges(self, process: str) -> None:
        address = Address(f"{process}/edges")
        if address in self.world.cells:
            return
        if not self.real:
            self.world.spawn(address, lambda: ScriptedEdges(process, self.fabric))
            return
        name, spawn = NodeName(process), self.world.spawn
        arenas = self.arenas.setdefault(process, SimulatedArenas())
        driving = self.driving.setdefault(process, SimulatedDriving())
        workloads = self.workloads.setdefault(process, SimulatedWorkloads())
        node = next(node for node in self.nodes if f"{node.name}.edges" == process)
        number = NodeId(node_number(node.public_key))
        spawn(Address(f"{process}/memory"), lambda: SimulatedMemory(arenas))
        spawn(Address(f"{process}/driver"), lambda: SimulatedDriver(name, driving))
        spawn(Address(f"{process}/workers"), lambda: SimulatedWorkers(name, workloads))
        spawn(address, lambda: Edges(name, number, PLANNER, budget_bytes=256 * MIB))

    def kill_edges(self, process: str, *, restart_s: float | None = 0.2) -> None:
        """SIGKILL: its ends are gone; the far ends notice; its supervisor brings it back."""
        self.world.crash_process(process)
        for key in [key for key in self.fabric.ends if key[0] == process]:
            end = self.fabric.ends.pop(key)
            for other in self.fabric.live():
                if other.order.edge_id == end.order.edge_id:
                    self.fault(other, EdgeFaultCode.PEER_RESTARTED, f"{process} started anew")
        if restart_s is not None:
            self.world._alarm(self.world.now_s + restart_s, lambda: self.start_edges(process))

    # what happens on nodes

    def place(self, workload: str, node: str, *, digest: str = "d") -> PlacedInstance:
        identity = next(identity for identity in self.nodes if identity.name == node)
        instance = f"{workload}-{digest}-{identity.node_id}"
        self.epochs[instance] = self.epochs.get(instance, 0) + 1
        record = PlacementRecord(
            instance_id=instance, node_id=identity.node_id, kind="cog", workload=workload, variant="v", decision_id="d",
            manifest_hash="m", slot=f"cog:{workload}-{digest}", epoch=Epoch(term=1, number=self.epochs[instance]),
        )  # fmt: skip
        row = self.rows[instance] = PlacedInstance(record=record, node=NodeName(node))
        return row

    def unload(self, row: PlacedInstance) -> None:
        del self.rows[row.record.instance_id]

    def end(self, process: str, direction: RingDirection, name: str | None = None) -> End:
        """The live end there; its edge by name when there are several."""
        found = [end for end in self.fabric.live(name) if end.process == process and end.order.direction is direction]
        assert len(found) == 1, found
        return found[0]

    def fault(self, end: End, code: EdgeFaultCode, text: str = "it broke") -> None:
        """The end faults and tears itself down."""
        end.fault, end.fault_text = code, text
        self.set(end, State.STOPPING)
        order = end.order
        self.world.tell(
            Address(f"{end.process}/edges"),
            Become(edge_id=order.edge_id, direction=order.direction, state=State.STOPPED),
        )

    def set(self, end: End, state: State) -> None:
        end.state = state
        self.tell_of(end)

    def tell_of(self, end: End) -> None:
        actor = self.world.cells.get(Address(f"{end.process}/edges"))
        assert actor is not None
        changed = EndChanged(process=NodeName(end.process), incarnation=actor.actor.incarnation, report=end.report())
        self.world.tell(PLANNER, changed, sender=Address(f"{end.process}/edge/{end.number}"))

    # what an operator does and sees

    def add(self, source: str, target: str, **more: Any) -> EdgeLine:
        return self.world.ask(PLANNER, AddEdge(source=source, target=target, **more), timeout_s=60).edge

    def remove(self, edge: str, timeout_s: float = 60) -> None:
        self.world.ask(PLANNER, RemoveEdge(edge=edge), timeout_s=timeout_s)

    def code(self, act: Callable[[], Any]) -> tuple[str, str]:
        with pytest.raises(AskFailed) as caught:
            act()
        return caught.value.code, caught.value.reason

    def lines(self) -> dict[str, EdgeLine]:
        return {line.name: line for line in self.world.ask(PLANNER, ListEdges(), timeout_s=60).edges}

    def line(self) -> EdgeLine:
        (line,) = self.lines().values()
        return line

    def planner(self) -> EdgePlanner | None:
        """The actor, while there is one."""
        return self.world.cells[PLANNER].actor if PLANNER in self.world.cells else None

    def works(self) -> list[Any]:
        planner = self.planner()
        return [] if planner is None else list(planner._view.works.values())

    def phase(self) -> str:
        """Of the one edge; nothing while there is none."""
        works = self.works()
        assert len(works) < 2
        return works[0].phase.value if works else ""

    def run(self) -> int:
        """The epoch of the one edge, read without a message."""
        planner = self.planner()
        return 0 if planner is None else max((edge.run_id for edge in planner._core.state.edges.values()), default=0)

    def until(self, phase: str, limit_s: float = 60) -> EdgeLine:
        self.world.run_until(lambda: self.phase() == phase, limit_s)
        self.world.run_idle()
        return self.line()

    def never_two(self) -> None:
        assert self.fabric.two == []
        runs = [(order.name, order.run_id, order.edge_id) for order in self.fabric.opens]
        for name in {name for name, *_ in runs}:
            lives = sorted({(run, edge) for other, run, edge in runs if other == name})
            assert len({run for run, _ in lives}) == len({edge for _, edge in lives}) == len(lives)
            assert [edge for _, edge in lives] == sorted(edge for _, edge in lives)

    def told(self, kind: str = "edge.life") -> list[dict[str, Any]]:
        return [json.loads(record.payload) for record in self.chain_disk.records if record.kind == kind]

    def story(self) -> list[str]:
        """Phases told of lives, with their epochs."""
        return [f"{told['phase']} {told['epoch']}" for told in self.told()]

    def document(self) -> Any:
        return msgspec.json.decode(self.disk.documents["edges"])


class Kit:
    Cluster = Cluster
    State = State
    EGRESS, INGRESS = EGRESS, INGRESS
    PERMIT = PERMIT
    PLANNER = PLANNER
    ScriptedEdges = ScriptedEdges

    @staticmethod
    def cluster(*nodes: str, **more: Any) -> Cluster:
        return Cluster(*(nodes or ("attic", "shed")), **more)

    @staticmethod
    def joined(**more: Any) -> Cluster:
        """`hostwatch.out` on attic joined to `trend.in` on shed, ready."""
        cluster = Cluster("attic", "shed", "loft", **more)
        cluster.place("hostwatch", "attic")
        cluster.place("trend", "shed")
        cluster.add("hostwatch.out", "trend.in")
        cluster.until("ready")
        return cluster


@pytest.fixture
def kit() -> type[Kit]:
    return Kit


@pytest.fixture
def joined() -> Cluster:
    return Kit.joined()
