"""One node in the simulated world: real agent, gate and package server, simulated ports, a chain kept in a list."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from hashlib import sha256

import msgspec
import pytest
from nacl.bindings import crypto_sign_seed_keypair

from actors.actor import Actor
from actors.gate.gate import Gate
from actors.gate.policy import Permit, Policy
from actors.node.agent import NodeAgent
from actors.node.settings import AgentSettings
from actors.packages.keys import TrustAnchors, TrustKey, key_id_of
from actors.packages.manifest import parse_manifest, payload_path, render_manifest, sign_manifest
from actors.packages.server import PackageServer
from actors.placement.order import slot_of
from actors.placement.signed import Signer, new_request, sign_request, verify_response
from messages.base import Address
from messages.chain import Append, AppendAll, Appended, AppendedAll, ChainRefusal
from messages.control import (
    Accepted,
    ControlCall,
    CtlConfig,
    Epoch,
    FenceBody,
    InstanceBody,
    Interval,
    Method,
    Once,
    PlaceBody,
)
from messages.gate import Network
from messages.node import NodeBeat
from messages.packages import Arch, CogBody, FileRef, Offer, PackageOrigin
from messages.workload_spec import TrustTier
from runtime.kernel.simulated import SimulatedWorld
from runtime.simulated.blobs import SimulatedBlobs, SimulatedShelf
from runtime.simulated.launcher import Behaviour, EndInstance, SimulatedHost, SimulatedLauncher
from runtime.simulated.probe import SimulatedMachine, SimulatedProbe
from runtime.simulated.store import SimulatedDisk, SimulatedStore

PACKAGER = bytes(range(32))
CONTROLLER = Signer(b"c" * 32)
NODE_SEED = b"n" * 32
NODE = Signer(NODE_SEED)
STRANGER = Signer(b"s" * 32)

AGENT = Address("shed/agent")
LAUNCHER = Address("shed/launcher")
PLANE = Address("controller/plane")
CALLER = Address("test/controller")
"""Asks in the plane's place, where a test's asks come from."""


class RecordingChain(Actor[Append | AppendAll]):
    """Keeps entries; `down` refuses; a key that was seen is not written again."""

    mailbox = Append | AppendAll

    def __init__(self, book):
        self.book = book

    def receive(self, message, ctx):
        if self.book.down:
            ctx.refuse(ChainRefusal.DISK_FULL, "no room")
            return
        if isinstance(message, Append):
            ctx.reply(self.book.add(message.entry))
        else:
            ctx.reply(AppendedAll(results=[self.book.add(entry) for entry in message.entries]))


@dataclass
class Book:
    entries: list = field(default_factory=list)
    down: bool = False

    def add(self, entry):
        keys = [(known.source, known.idempotency_key) for known in self.entries if known.idempotency_key]
        repeated = (entry.source, entry.idempotency_key) in keys
        if not repeated:
            self.entries.append(entry)
        digest = sha256(entry.payload).hexdigest()
        return Appended(sequence=len(self.entries), hash=digest, time_ms=0, repeated=repeated)

    def of(self, kind=None, source=None):
        """(kind, payload) of what was recorded, in order."""
        return [
            (entry.kind, json.loads(entry.payload))
            for entry in self.entries
            if kind in (None, entry.kind) and source in (None, entry.source)
        ]


class Deaf(Actor[msgspec.Raw]):
    """Stands where the plane would be and takes what nodes tell."""

    def __init__(self, mailbox):
        self.mailbox = mailbox
        self.heard = []

    def receive(self, message, ctx):
        self.heard.append(message)


@dataclass
class Package:
    manifest: bytes
    files: dict
    body: CogBody
    program: str

    @property
    def hash(self):
        return parse_manifest(self.manifest).manifest_hash

    def slot(self, config, pinned_to=None):
        manifest = parse_manifest(self.manifest)
        return slot_of(
            kind=manifest.kind, workload=self.body.id, version=self.body.version, package_id=manifest.package_id,
            config=config, pinned_to=pinned_to,
        )  # fmt: skip


def make_package(name="hostwatch", arch=Arch.NOARCH, program=b"print('hello')", extra="") -> Package:
    cog_toml = f'[cog]\nid = "{name}"\nversion = "1.0.0"\n{extra}'.encode()
    path = payload_path(arch, name)

    def ref(path, data):
        return FileRef(path=path, size=len(data), sha256=sha256(data).hexdigest())

    body = CogBody(
        id=name, version="1.0.0", cog_toml=ref("cog.toml", cog_toml), binaries={arch: ref(path, program)},
        source=PackageOrigin(commit="0123abc"),
    )  # fmt: skip
    manifest = sign_manifest(render_manifest(body), PACKAGER)
    return Package(manifest, {"cog.toml": cog_toml, path: program}, body, sha256(program).hexdigest())


def anchors():
    public_key, _ = crypto_sign_seed_keypair(PACKAGER)
    return TrustAnchors.of([TrustKey(key_id=key_id_of(public_key), public_key=public_key.hex())])


def permitting(actions):
    if not actions:
        return Policy()
    return Policy(permits=(Permit(id="cogs", actions=actions, kinds=("cog",), max_network=Network.EGRESS),))


class Rig:
    """`disk`, `host`, `machine` and `book` outlive crashes."""

    controller, node, stranger = CONTROLLER, NODE, STRANGER
    agent, launcher, plane, caller = AGENT, LAUNCHER, PLANE, CALLER

    def __init__(self, actions=("workload.*",), settings=None, claimed=(), trusted=None, tier=TrustTier.PAIRED):
        self.world = SimulatedWorld(seed=1)
        self.disk, self.host, self.machine, self.book = SimulatedDisk(), SimulatedHost(), SimulatedMachine(), Book()
        self.settings, self.claimed, self.tier = settings or AgentSettings(), claimed, tier
        self.policy = permitting(actions)
        self.trusted = anchors() if trusted is None else trusted
        self.term = 1
        self.decisions = 0
        world, shelf = self.world, SimulatedShelf()
        self.shelf = shelf
        world.spawn(Address("chain/chain"), lambda: RecordingChain(self.book))
        world.spawn(Address("controller/blobs"), lambda: SimulatedBlobs(shelf))
        world.spawn(Address("controller/packages"), lambda: PackageServer(Address("controller/blobs"), anchors()))
        self.start_node()
        world.run_idle()

    def start_node(self):
        self.start_node_ports()
        self.start_agent()

    def start_node_ports(self):
        world = self.world
        ports = {
            "store": lambda: SimulatedStore(self.disk),
            "blobs": lambda: SimulatedBlobs(SimulatedShelf()),
            "probe": lambda: SimulatedProbe(self.machine),
            "launcher": lambda: SimulatedLauncher(self.host),
            "gate": self.make_gate,
        }
        for name, factory in ports.items():
            if Address(f"shed/{name}") not in world.cells:
                world.spawn(Address(f"shed/{name}"), factory)

    def listen(self):
        """Put somebody where the plane would be; returns what nodes tell him from now on."""
        self.world.spawn(PLANE, lambda: Deaf(NodeBeat))
        self.world.run_idle()
        return self.world.actor(PLANE).heard

    def start_agent(self):
        self.world.spawn(AGENT, self.make_agent)

    def make_gate(self):
        return Gate(self.policy, Address("chain/chain"))

    def make_agent(self):
        return NodeAgent(
            name="shed", seed=NODE_SEED, controller_key=CONTROLLER.public_key, anchors=self.trusted, tier=self.tier,
            claimed=self.claimed, settings=self.settings,
        )  # fmt: skip

    def restart_agent(self):
        if AGENT in self.world.cells:
            self.world.crash(AGENT)
        self.world.run_idle()
        self.start_agent()
        self.world.run_idle()

    def restart_node(self, *, power_cut=False):
        self.world.crash_process("shed")
        self.world.run_idle()
        if power_cut:
            self.host.boot(self.world.now_s)
            self.machine.boot(self.world.now_s)
        self.start_node()
        self.world.run_idle()

    def offer(self, package):
        self.shelf.put(package.manifest)
        for data in package.files.values():
            self.shelf.put(data)
        self.world.ask(Address("controller/packages"), Offer(manifest_hash=package.hash), timeout_s=5)
        return package

    def behave(self, package, **behaviour):
        self.host.behaviours = {**self.host.behaviours, package.program: Behaviour(**behaviour)}

    # asking

    def decision(self):
        self.decisions += 1
        return sha256(f"decision {self.decisions}".encode()).hexdigest()

    def request(self, method, body=None, /, *, decision_id=None, signer=CONTROLLER, target=None, term=None, **changes):
        self.nonce = getattr(self, "nonce", 0) + 1
        request = new_request(
            method, requester=signer.node_id, target=target or NODE.node_id, nonce=f"{self.nonce:032x}",
            now_ms=self.world.wall_ms, term=self.term if term is None else term, decision_id=decision_id, body=body,
        )  # fmt: skip
        return msgspec.structs.replace(request, **changes)

    def send(self, request, *, signer=CONTROLLER, timeout_s=300, method=None):
        call = ControlCall(method=method or request.method, request=sign_request(signer, request))
        return self.world.start_ask(AGENT, call, timeout_s=timeout_s, sender=CALLER)

    def outcome(self, request, pending):
        """The result as plain data, or the refusal."""
        response, _ = verify_response(pending.result().response, request, NODE.public_key)
        outcome = response.outcome
        return outcome.result if isinstance(outcome, Accepted) else outcome.refusal

    def call(self, method, body=None, /, *, signer=CONTROLLER, **more):
        if method.mutates and "decision_id" not in more:
            more["decision_id"] = self.decision()
        request = self.request(method, body, signer=signer, **more)
        pending = self.send(request, signer=signer)
        self.world.run_until(lambda: pending.done, limit_s=301)
        self.world.run_idle()
        return self.outcome(request, pending)

    def body(self, package, *, number=1, config=None, start=True, term=None, pinned=False, **changes):
        config = config or CtlConfig(mode=Interval(secs=1))
        body = PlaceBody(
            name=package.body.id, manifest_hash=package.hash, variant="noarch-native", config=config,
            slot=package.slot(config, NODE.node_id if pinned else None),
            epoch=Epoch(term=self.term if term is None else term, number=number), start=start,
        )  # fmt: skip
        return msgspec.structs.replace(body, **changes)

    def place(self, package, *, decision_id=None, method=Method.PLACE, **more):
        decision_id = decision_id or self.decision()
        return self.call(method, self.body(package, **more), decision_id=decision_id)

    def said(self, kind, *, to="shed/"):
        """How many messages of that class went to the node's own actors so far."""
        return sum(type(one.message).__name__ == kind and one.to.startswith(to) for one in self.world.sent)

    def verb(self, method, instance_id, **more):
        return self.call(method, InstanceBody(instance_id=instance_id, **more))

    def fence(self, slot, number, decision_id):
        body = FenceBody(slot=slot, floor=Epoch(term=self.term, number=number), decision_id=decision_id)
        return self.call(Method.FENCE, body)

    def rows(self):
        return self.call(Method.STATUS, InstanceBody(include_departed=True))["rows"]

    def row(self, instance_id):
        return next(row for row in self.rows() if row.get("instance_id") == instance_id)

    def end(self, instance_id, **how):
        self.world.ask(LAUNCHER, EndInstance(instance_id=instance_id, **how), timeout_s=5)
        self.world.run_idle()

    def agree(self):
        """Table and reality: what should run runs, nothing else does, no folder is left over."""
        host = self.world.actor(AGENT)._host
        should = {name for name, row in host.state.instances.items() if row.desired}
        assert set(self.host.running()) == should
        assert set(self.host.instances) == set(host.state.instances)
        assert {name: run.pid for name, run in host.runs.items()} == self.host.running()
        assert not host.in_flight.rows()


ONCE = CtlConfig(mode=Once())


@pytest.fixture
def rig():
    return Rig()


@pytest.fixture
def package(rig):
    return rig.offer(make_package())


@pytest.fixture
def make_rig():
    return Rig


@pytest.fixture
def make_sample():
    return make_package
