"""A cluster around the real plane, on the simulated world: real chain, gate, package server and signatures; the nodes
are scripted agents that keep the rules of the protocol unless a test tells them otherwise."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import msgspec
import pytest

from actors.actor import Actor, AskFailed, Context
from actors.chain.chain import Chain
from actors.gate.gate import Gate
from actors.gate.policy import Permit, Policy
from actors.packages.keys import TrustAnchors, TrustKey
from actors.packages.manifest import payload_path, render_manifest, sign_manifest
from actors.packages.server import PackageServer
from actors.placement.order import instance_id
from actors.placement.plane import PlacementControlPlane, PlaneSettings
from actors.placement.signed import NonceGuard, Rejected, Signer, sign_response, verify_request
from actors.placement.view import sign_facts
from messages.base import Address, Message, NodeName
from messages.capabilities import Capability, Provenance
from messages.chain import Append
from messages.control import (
    Accepted,
    AdapterState,
    Advertisement,
    ControlAnswer,
    ControlCall,
    ControlRequest,
    CtlConfig,
    DepartedRow,
    DescribeResult,
    Epoch,
    FenceBody,
    FenceResult,
    HeldRow,
    InFlightRow,
    InstanceBody,
    Interval,
    LifeState,
    Method,
    PlaceBody,
    PlaceResult,
    Refusal,
    RefusalCode,
    Refused,
    RunStatus,
    SignedObject,
    StatusListing,
    StatusRow,
)
from messages.facts import NodeFacts
from messages.gate import Network
from messages.identity import Identity
from messages.node import NodeBeat
from messages.packages import Arch, CogBody, FileRef, PackageOrigin
from messages.placement import InstanceOrder, InstanceResult, ListInstances, ListNodes, PlaceOrder, PlaceReport
from messages.ports import ClockReading
from runtime.kernel.envelope import Envelope
from runtime.kernel.simulated import SimulatedWorld
from runtime.simulated.blobs import SimulatedBlobs, SimulatedShelf
from runtime.simulated.chain_store import SimulatedChainDisk, SimulatedChainStore
from runtime.simulated.store import SimulatedDisk, SimulatedStore

PLANE = Address("controller/plane")
CONTROLLER = Signer(b"controller".ljust(32, b"."))
OPERATOR_SEED = b"signer".ljust(32, b".")
PERMIT = Permit(id="cogs", actions=("workload.*",), kinds=("cog",), max_network=Network.EGRESS)
DIRECTORY = "packages/hostwatch"
COG_TOML = b'[cog]\nid = "hostwatch"\nversion = "1.0.0"\n[resources]\nram_mb = 64\n'


def board(arch: str = "aarch64", *, free_mib: int = 4096, extra: tuple[str, ...] = ()) -> tuple[Capability, ...]:
    return (
        capability(f"cpu.arch.{arch}"),
        capability("os.linux"),
        capability("runtime.native", arches_native=(arch,)),
        capability("mem.system", free=free_mib * 2**20),
        *(capability(name) for name in extra),
    )


def mac(arch: str = "aarch64") -> tuple[Capability, ...]:
    return (
        capability(f"cpu.arch.{arch}"),
        capability("os.macos"),
        capability("node.class.dev-mac"),
        capability("runtime.native", arches_native=(arch,)),
        capability("runtime.container.docker", arches_native=(arch,), arches_emulated=("x86_64",)),
        capability("mem.system", free=2**33),
    )


def capability(name: str, **attrs: Any) -> Capability:
    return Capability(id=name, attrs=attrs, provenance=Provenance.PROBED)


class Beat(Message, frozen=True):
    """The scripted agent's timer."""


@dataclass
class Node:
    """What a scripted node is and holds; it outlives its agent."""

    name: str
    signer: Signer
    capabilities: tuple[Capability, ...]
    tier: str = "paired"
    routes: list[str] = field(default_factory=lambda: ["native"])
    rows: dict[str, HeldRow] = field(default_factory=dict)
    in_flight: dict[str, str] = field(default_factory=dict)
    departed: dict[str, str] = field(default_factory=dict)
    floors: dict[str, Epoch] = field(default_factory=dict)
    term: int = 0
    incarnation: int = 1
    adopting: bool = False
    silent: bool = False
    tell_facts: bool = True
    refusals: dict[str, Refusal] = field(default_factory=dict)
    unsigned_refusals: dict[str, tuple[str, str]] = field(default_factory=dict)
    results: dict[str, Any] = field(default_factory=dict)
    answers: dict[str, Callable[[ControlRequest, Any], SignedObject]] = field(default_factory=dict)
    handled: list[tuple[str, Any]] = field(default_factory=list)
    requests: list[ControlRequest] = field(default_factory=list)
    epochs: list[Epoch] = field(default_factory=list)

    @property
    def id(self) -> str:
        return self.signer.node_id

    @property
    def identity(self) -> Identity:
        return Identity(name=self.name, role="node", public_key=self.signer.public_key, tier=self.tier)

    def methods(self) -> list[str]:
        return [method for method, _ in self.handled if method not in ("workload.status", "workload.describe")]


class ScriptedAgent(Actor[ControlCall | Beat]):
    mailbox = ControlCall | Beat

    def __init__(self, node: Node) -> None:
        self.node = node
        self.nonces = NonceGuard()

    def started(self, ctx: Context) -> None:
        ctx.after(0, Beat())

    def receive(self, message: ControlCall | Beat, ctx: Context) -> None:
        node = self.node
        match message:
            case Beat():
                ctx.after(1.0, Beat())
                if not node.silent:
                    ctx.tell(PLANE, self.beat(ctx))
            case ControlCall():
                try:
                    request = verify_request(
                        message.request,
                        me=node.id,
                        now_ms=ctx.wall(),
                        allows=lambda key, _: key == CONTROLLER.public_key,
                        nonces=self.nonces,
                        method=message.method,
                    )
                except Rejected as rejected:
                    raise AssertionError(f"the plane sent something invalid: {rejected}") from None
                node.requests.append(request)
                if request.method in node.unsigned_refusals:
                    ctx.refuse(*node.unsigned_refusals[request.method])
                    return
                try:
                    outcome: Accepted | Refused = Accepted(result=self.handle(request, ctx))
                except Rejected as rejected:
                    outcome = Refused(refusal=rejected.refusal)
                response = sign_response(node.signer, request, outcome)
                if request.method in node.answers and isinstance(outcome, Accepted):
                    response = node.answers[request.method](request, outcome.result)
                ctx.reply(ControlAnswer(response=response))

    def beat(self, ctx: Context) -> NodeBeat:
        node = self.node
        return NodeBeat(
            node_id=node.id,
            name=NodeName(node.name),
            agent=ctx.address,
            incarnation=node.incarnation,
            clock=ClockReading(boot_id="boot", boottime_ms=ctx.wall()),
            instances=len(node.rows),
            adopting=node.adopting,
            facts=self.facts(ctx) if node.tell_facts else None,
            routes=node.routes,
        )

    def facts(self, ctx: Context) -> SignedObject:
        now_s = ctx.wall() // 1000
        facts = NodeFacts(
            version=1,
            node_id=self.node.id,
            issued_at=now_s,
            ttl_secs=600,
            seq=now_s,
            capabilities=self.node.capabilities,
        )
        return sign_facts(self.node.signer, facts)

    def handle(self, request: ControlRequest, ctx: Context) -> Any:
        node = self.node
        method = Method(request.method)
        if request.term < node.term:
            raise Rejected(RefusalCode.STALE_TERM, f"term {request.term}, seen was {node.term}")
        node.term = request.term
        if method.value in node.refusals:
            raise Rejected(node.refusals[method.value].code, node.refusals[method.value].reason)
        if method.mutates:
            assert request.decision_id is not None
            assert len(request.decision_id) == 64
        body = msgspec.convert(request.body, _BODIES.get(method, InstanceBody)) if request.body is not None else None
        node.handled.append((method.value, body))
        done = getattr(self, method.name.lower())(request, body, ctx)
        return node.results.get(method.value, done)

    def describe(self, request: ControlRequest, body: Any, ctx: Context) -> DescribeResult:
        offer = Advertisement(node_id=self.node.id, methods=[], routes=self.node.routes, last_updated=0)
        return DescribeResult(facts=self.facts(ctx), advertisement=offer, term_seen=self.node.term)

    def place(self, request: ControlRequest, body: PlaceBody, ctx: Context) -> PlaceResult:
        node = self.node
        if body.epoch < node.floors.get(body.slot, Epoch(term=0, number=0)):
            raise Rejected(RefusalCode.FENCED, "below the floor of the slot")
        if any(row.slot == body.slot for row in node.rows.values()):
            raise Rejected(RefusalCode.SLOT_HELD, "this node holds the slot")
        instance = instance_id(body.slot, node.id)
        if instance in node.rows:
            raise Rejected(RefusalCode.RUNTIME, f"{instance} is already loaded")
        node.epochs.append(body.epoch)
        status = RunStatus(state=AdapterState.RUNNING if body.start else AdapterState.LOADED, pid=100)
        node.departed.pop(instance, None)
        node.rows[instance] = HeldRow(
            instance_id=instance,
            workload=body.name,
            variant=body.variant,
            decision_id=request.decision_id or "",
            slot=body.slot,
            epoch=body.epoch,
            status=status,
            lifecycle=LifeState.RUNNING if body.start else LifeState.LOADED,
        )
        return PlaceResult(
            instance_id=instance,
            runtime="native",
            variant=body.variant,
            package_id="p",
            status=status,
            node=node.id,
            epoch=body.epoch,
        )

    def fence(self, request: ControlRequest, body: FenceBody, ctx: Context) -> FenceResult:
        node = self.node
        node.floors[body.slot] = max(body.floor, node.floors.get(body.slot, body.floor))
        return FenceResult(floor=node.floors[body.slot], rows=self.rows(body.decision_id))

    def rows(self, decision_id: str | None = None) -> list[StatusRow]:
        node = self.node
        rows: list[StatusRow] = [InFlightRow(decision_id=key, slot=slot) for key, slot in node.in_flight.items()]
        rows += node.rows.values()
        return [row for row in rows if decision_id in (None, row.decision_id)]

    def status(self, request: ControlRequest, body: InstanceBody, ctx: Context) -> Any:
        if body.instance_id is not None:
            return StatusListing(rows=[self.found(body)])
        rows = self.rows()
        if body.include_departed:
            rows += [DepartedRow(departed_instance=key, reason=why) for key, why in self.node.departed.items()]
        return StatusListing(rows=rows)

    def found(self, body: InstanceBody) -> HeldRow:
        row = self.node.rows.get(body.instance_id or "")
        if row is None:
            raise Rejected(RefusalCode.UNKNOWN_INSTANCE, f"{body.instance_id} is not here")
        if body.epoch is not None and body.epoch != row.epoch:
            raise Rejected(RefusalCode.STALE_EPOCH, f"{body.instance_id} has epoch {row.epoch}, not {body.epoch}")
        return row

    def start(self, request: ControlRequest, body: InstanceBody, ctx: Context) -> dict[str, Any]:
        return self.become(body, AdapterState.RUNNING, LifeState.RUNNING, {"started": body.instance_id, "pid": 100})

    def stop(self, request: ControlRequest, body: InstanceBody, ctx: Context) -> dict[str, Any]:
        return self.become(body, AdapterState.EXITED, LifeState.STOPPED, {"stopped": body.instance_id})

    def become(self, body: InstanceBody, state: AdapterState, life: LifeState, done: dict[str, Any]) -> dict[str, Any]:
        row = self.found(body)
        changed = msgspec.structs.replace(row, status=RunStatus(state=state, pid=100), lifecycle=life)
        self.node.rows[row.instance_id] = changed
        return done

    def unload(self, request: ControlRequest, body: InstanceBody, ctx: Context) -> dict[str, Any]:
        row = self.found(body)
        del self.node.rows[row.instance_id]
        self.node.departed[row.instance_id] = "unloaded"
        return {"unloaded": row.instance_id}

    def logs(self, request: ControlRequest, body: InstanceBody, ctx: Context) -> dict[str, Any]:
        return {"instance_id": self.found(body).instance_id, "stdout": "hello"}


_BODIES: dict[Method, type[Any]] = {Method.PLACE: PlaceBody, Method.FENCE: FenceBody}


class Cluster:
    """The rig. `chain_disk`, `disk` and `shelf` outlive the actors."""

    def __init__(self, *nodes: Node, seed: int = 1, permits: tuple[Permit, ...] = (PERMIT,), **settings: Any) -> None:
        self.world = SimulatedWorld(seed=seed)
        self.nodes = {node.name: node for node in nodes}
        self.chain_disk = SimulatedChainDisk()
        self.disk = SimulatedDisk()
        self.shelf = SimulatedShelf()
        self.settings = PlaneSettings(**settings)
        key = Signer(OPERATOR_SEED).public_key
        self.anchors = TrustAnchors.of([TrustKey(key_id="operator", public_key=key.hex())])
        self.add_package()
        spawn = self.world.spawn
        spawn(Address("chain/store"), lambda: SimulatedChainStore(self.chain_disk))
        spawn(Address("chain/chain"), lambda: Chain("c-test"))
        policy = Policy(threshold=0.95, permits=permits)
        spawn(Address("gate/gate"), lambda: Gate(policy, Address("chain/chain")))
        spawn(Address("controller/store"), lambda: SimulatedStore(self.disk))
        spawn(Address("controller/blobs"), lambda: SimulatedBlobs(self.shelf))
        spawn(Address("controller/packages"), lambda: PackageServer(Address("controller/blobs"), self.anchors))
        self.start_plane()
        for node in nodes:
            self.start_agent(node)
        self.world.advance(0.5)

    def start_plane(self) -> None:
        self.world.spawn(PLANE, self.make_plane)

    def make_plane(self) -> PlacementControlPlane:
        return PlacementControlPlane(
            seed=b"controller".ljust(32, b"."),
            nodes=[node.identity for node in self.nodes.values()],
            anchors=self.anchors,
            settings=self.settings,
        )

    def start_agent(self, node: Node) -> None:
        self.world.spawn(Address(f"{node.name}/agent"), lambda: ScriptedAgent(node))

    def restart_plane(self, *, crash: bool = True) -> None:
        if PLANE in self.world.cells:
            if crash:
                self.world.crash(PLANE)
            else:
                self.world.stop(PLANE)
                self.world.run_idle()
        self.start_plane()
        self.world.run_idle()

    def add_package(
        self, directory: str = DIRECTORY, *, cog_toml: bytes = COG_TOML, arches: tuple[Arch, ...] = (Arch.AARCH64,)
    ) -> None:
        cog_id = cog_toml.split(b'id = "')[1].split(b'"')[0].decode()
        files = {"cog.toml": cog_toml, **{payload_path(arch, cog_id): arch.value.encode() for arch in arches}}
        body = CogBody(
            id=cog_id,
            version="1.0.0",
            cog_toml=_ref("cog.toml", cog_toml),
            binaries={arch: _ref(payload_path(arch, cog_id), files[payload_path(arch, cog_id)]) for arch in arches},
            source=PackageOrigin(commit="0123abc"),
        )
        files["manifest.json"] = sign_manifest(render_manifest(body), OPERATOR_SEED, "operator")
        self.shelf.directories[directory] = files

    # what a test asks

    def order(self, **changes: Any) -> PlaceOrder:
        return PlaceOrder(**{"package_dir": DIRECTORY, "config": CtlConfig(mode=Interval(secs=1)), **changes})

    def place(self, *, timeout_s: float = 900.0, **changes: Any) -> PlaceReport:
        return self.world.ask(PLANE, self.order(**changes), timeout_s=timeout_s)

    def place_code(self, **changes: Any) -> tuple[str, str]:
        with pytest.raises(AskFailed) as caught:
            self.place(**changes)
        return caught.value.code, caught.value.reason

    def verb(self, method: str, instance: str, **more: Any) -> InstanceResult:
        return self.world.ask(PLANE, InstanceOrder(method=method, instance=instance, **more), timeout_s=400.0)

    def verb_code(self, method: str, instance: str, **more: Any) -> tuple[str, str]:
        with pytest.raises(AskFailed) as caught:
            self.verb(method, instance, **more)
        return caught.value.code, caught.value.reason

    def instances(self) -> Any:
        return self.world.ask(PLANE, ListInstances(), timeout_s=400.0)

    def list_nodes(self) -> Any:
        return {line.name: line for line in self.world.ask(PLANE, ListNodes()).nodes}

    # what a test sees

    def told(self, kind: str | None = None, source: str = "workload.placement") -> list[dict[str, Any]]:
        return [
            {"kind": record.kind, **json.loads(record.payload)}
            for record in self.chain_disk.records
            if record.source == source and kind in (None, record.kind)
        ]

    def phases(self) -> list[str]:
        return [record["phase"] for record in self.told()]

    def held(self) -> list[str]:
        """Every instance that any node holds."""
        return [instance for node in self.nodes.values() for instance in node.rows]

    def never_two(self) -> None:
        slots = [row.slot for node in self.nodes.values() for row in node.rows.values()]
        assert len(slots) == len(set(slots)), f"a slot runs twice: {slots}"

    def lose_answer(self, node: str, method: Method = Method.PLACE, count: int = 1) -> None:
        """Lose the agent's next answers to `method` (the request is carried out)."""
        wanted = self.nodes[node]

        def matches(envelope: Envelope) -> bool:
            answered = envelope.sender == f"{node}/agent" and isinstance(envelope.message, ControlAnswer)
            return answered and bool(wanted.requests) and wanted.requests[-1].method == method.value

        self.world.lose(matches, count)

    def on_next(self, method: Method, node: str, act: Callable[[], None]) -> None:
        """Run `act` as the agent's next answer to `method` leaves; the answer is lost."""
        done: list[bool] = []
        wanted = self.nodes[node]

        def matches(envelope: Envelope) -> bool:
            if done or envelope.sender != f"{node}/agent" or not isinstance(envelope.message, ControlAnswer):
                return False
            if wanted.requests[-1].method != method.value:
                return False
            done.append(True)
            act()
            return True

        self.world.lose(matches, 1)


def at_record(cluster: Cluster, phase: str, act: Callable[[], None]) -> None:
    """Run `act` once, as the plane is about to have a record of that phase written; the record is not lost."""
    done: list[bool] = []

    def matches(envelope: Envelope) -> bool:
        message = envelope.message
        if not done and isinstance(message, Append) and json.loads(message.entry.payload).get("phase") == phase:
            done.append(True)
            act()
        return False

    cluster.world.lose(matches, 1)


def _ref(path: str, data: bytes) -> FileRef:
    return FileRef(path=path, size=len(data), sha256=sha256(data).hexdigest())


def make_node(name: str, capabilities: tuple[Capability, ...] | None = None, **more: Any) -> Node:
    signer = Signer(name.encode().ljust(32, b"-"))
    return Node(name=name, signer=signer, capabilities=board() if capabilities is None else capabilities, **more)


class Kit:
    """What tests build clusters from."""

    cluster = Cluster
    node = staticmethod(make_node)
    board = staticmethod(board)
    mac = staticmethod(mac)
    at_record = staticmethod(at_record)
    controller = CONTROLLER
    directory = DIRECTORY
    cog_toml = COG_TOML
    permit = PERMIT


@pytest.fixture
def kit() -> type[Kit]:
    return Kit


@pytest.fixture
def two() -> Cluster:
    """Two equal boards, `attic` and `shed`; which of them ranks first is decided by node id."""
    return Cluster(make_node("attic"), make_node("shed"))
