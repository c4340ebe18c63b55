"""Fleets for `sennit bench place`: real actors on simulated machines, and machines that only the engine sees."""

from __future__ import annotations

from hashlib import sha256
from random import Random

from actors.chain.chain import Chain
from actors.gate.gate import Gate
from actors.gate.policy import Permit, Policy
from actors.node.agent import NodeAgent
from actors.packages.keys import TrustAnchors, TrustKey
from actors.packages.manifest import payload_path, render_manifest, sign_manifest
from actors.packages.server import PackageServer
from actors.placement.plane import PlacementControlPlane
from actors.placement.signed import Signer
from messages.base import Address, NodeName
from messages.capabilities import (
    AttrValue,
    Capability,
    CapabilityId,
    MemoryDemand,
    Predicate,
    PredicateOp,
    Provenance,
    Requirement,
)
from messages.control import CtlConfig, Interval
from messages.engine import GatePermit, Liveness, PlacementFacts, PlacementRequest, UniformGate
from messages.gate import Network
from messages.identity import Identity
from messages.packages import Arch, CogBody, FileRef, PackageOrigin
from messages.placement import InstanceOrder, ListNodes, PlaceOrder, PlaceReport
from messages.workload_spec import TrustTier, WorkloadRequirements, WorkloadSpec
from runtime.kernel.simulated import SimulatedWorld
from runtime.simulated.blobs import SimulatedBlobs, SimulatedShelf
from runtime.simulated.chain_store import SimulatedChainDisk, SimulatedChainStore
from runtime.simulated.launcher import SimulatedHost, SimulatedLauncher
from runtime.simulated.probe import SimulatedMachine, SimulatedProbe
from runtime.simulated.store import SimulatedDisk, SimulatedStore

PLANE = Address("controller/plane")
GIB = 2**30
LIMIT_S = 60.0
"""Simulated seconds for anything to happen."""

_PACKAGE = "packages/idle"
_COG = b'[cog]\nid = "idle"\nversion = "1.0.0"\n[resources]\nram_mb = 64\n'
_OPERATOR, _CONTROLLER = (name.ljust(32, b".") for name in (b"operator", b"controller"))


class SimulatedFleet:
    """A cluster of `count` equal boards on the simulated world: plane, gates, chain, agents and ports as they are."""

    def __init__(self, count: int, seed: int = 1) -> None:
        self.world = SimulatedWorld(seed=seed)
        self._names = [NodeName(f"node-{number}") for number in range(count)]
        key = Signer(_OPERATOR).public_key
        self._anchors = TrustAnchors.of([TrustKey(key_id="operator", public_key=key.hex())])
        policy = Policy(
            threshold=0.95,
            permits=(Permit(id="cogs", actions=("workload.*",), kinds=("cog",), max_network=Network.EGRESS),),
        )
        self._policy = policy
        spawn = self.world.spawn
        chain_disk, disk, shelf = SimulatedChainDisk(), SimulatedDisk(), _shelf()
        spawn(Address("chain/store"), lambda: SimulatedChainStore(chain_disk))
        spawn(Address("chain/chain"), lambda: Chain("c-bench"))
        spawn(Address("gate/gate"), lambda: Gate(policy, Address("chain/chain")))
        spawn(Address("controller/store"), lambda: SimulatedStore(disk))
        spawn(Address("controller/blobs"), lambda: SimulatedBlobs(shelf))
        spawn(Address("controller/packages"), lambda: PackageServer(Address("controller/blobs"), self._anchors))
        spawn(PLANE, self._plane)
        for name in self._names:
            self._spawn_node(name)
        self.world.run_until(self._all_alive, LIMIT_S)

    def place(self, *, dry_run: bool) -> PlaceReport:
        """Raises `AskFailed`, and `RuntimeError` when nothing was placed."""
        order = PlaceOrder(package_dir=_PACKAGE, config=CtlConfig(mode=Interval(secs=1)), dry_run=dry_run)
        report = self.world.ask(PLANE, order, LIMIT_S)
        if report.placed is None and not dry_run:
            raise RuntimeError(f"nothing was placed: {report.explain}")
        return report

    def unload(self, instance: str) -> None:
        for method in ("stop", "unload"):
            self.world.ask(PLANE, InstanceOrder(method=method, instance=instance), LIMIT_S)

    def beat(self, seconds: float) -> None:
        """Let the clock go on: every node beats once a second."""
        self.world.advance(seconds)

    def _all_alive(self) -> bool:
        lines = self.world.ask(PLANE, ListNodes(), LIMIT_S).nodes
        return all(node.liveness == Liveness.ALIVE for node in lines)

    def _plane(self) -> PlacementControlPlane:
        nodes = [
            Identity(name=name, role="node", public_key=_signer(name).public_key, tier=TrustTier.PAIRED.value)
            for name in self._names
        ]
        return PlacementControlPlane(seed=_CONTROLLER, nodes=nodes, anchors=self._anchors)

    def _spawn_node(self, name: NodeName) -> None:
        disk, shelf, host, machine = SimulatedDisk(), SimulatedShelf(), SimulatedHost(), SimulatedMachine(name=name)
        spawn = self.world.spawn
        spawn(Address(f"{name}/store"), lambda: SimulatedStore(disk))
        spawn(Address(f"{name}/blobs"), lambda: SimulatedBlobs(shelf))
        spawn(Address(f"{name}/probe"), lambda: SimulatedProbe(machine))
        spawn(Address(f"{name}/launcher"), lambda: SimulatedLauncher(host))
        spawn(Address(f"{name}/gate"), lambda: Gate(self._policy, Address("chain/chain")))
        spawn(
            Address(f"{name}/agent"),
            lambda: NodeAgent(
                name=name,
                seed=_seed(name),
                controller_key=Signer(_CONTROLLER).public_key,
                anchors=self._anchors,
                tier=TrustTier.PAIRED,
            ),
        )


def _seed(name: str) -> bytes:
    return name.encode().ljust(32, b"-")


def _signer(name: str) -> Signer:
    return Signer(_seed(name))


def _shelf() -> SimulatedShelf:
    """With the signed package in its directory."""
    program = payload_path(Arch.NOARCH, "idle")
    files = {"cog.toml": _COG, program: b"pass\n"}
    body = CogBody(
        id="idle",
        version="1.0.0",
        cog_toml=_ref("cog.toml", files),
        binaries={Arch.NOARCH: _ref(program, files)},
        source=PackageOrigin(commit="0123abc"),
    )
    files["manifest.json"] = sign_manifest(render_manifest(body), _OPERATOR, "operator")
    shelf = SimulatedShelf()
    shelf.directories[_PACKAGE] = files
    return shelf


def _ref(path: str, files: dict[str, bytes]) -> FileRef:
    return FileRef(path=path, size=len(files[path]), sha256=sha256(files[path]).hexdigest())


# what only the engine sees

_MODELS = (("p100", 16, 2), ("t4", 16, 2), ("t4", 16, 4), ("v100", 16, 8), ("v100", 32, 8), ("a10", 24, 1))
"""GPUs of the machine types: model, GiB, how many."""


def engine_fleet(count: int, seed: int = 1) -> list[PlacementFacts]:
    """`count` nodes of seven types as a GPU cluster has them; free memory and load differ from node to node."""
    random = Random(seed)  # noqa: S311 - no secret
    facts = []
    for number in range(count):
        capabilities = [
            _capability("cpu.arch.x86_64"),
            _capability("os.linux"),
            _capability("runtime.native", arches_native=("x86_64",)),
            _capability("mem.system", free=random.randrange(16, 768) * GIB),
        ]
        kind = random.randrange(len(_MODELS) + 1)
        if kind < len(_MODELS):
            model, memory, gpus = _MODELS[kind]
            capabilities += [
                _capability("accel.gpu.cuda", exclusive=True, model=model, mem_bytes=memory * GIB, slot=slot)
                for slot in range(gpus)
            ]
        facts.append(
            PlacementFacts(
                node_id=f"n-{sha256(str(number).encode()).hexdigest()[:16]}",
                capabilities=tuple(capabilities),
                liveness=Liveness.ALIVE,
                trust_tier=TrustTier.PAIRED,
                load=random.random(),
            )
        )
    return facts


def engine_request() -> PlacementRequest:
    """One GPU of at least 16 GiB and 32 GiB of memory, wherever they are."""
    requirements = WorkloadRequirements(
        common=(
            Requirement(id=CapabilityId("cpu.arch.x86_64")),
            Requirement(id=CapabilityId("os.linux")),
            Requirement(
                id_prefix="accel.gpu",
                exclusive=True,
                where=(Predicate(attr="mem_bytes", op=PredicateOp.GTE, value=16 * GIB),),
            ),
        ),
        memory=MemoryDemand(host_bytes=32 * GIB),
    )
    spec = WorkloadSpec(kind="inference", name="bench", requirements=requirements)
    return PlacementRequest(spec=spec, gate=UniformGate(verdict=GatePermit()))


def _capability(name: str, *, exclusive: bool = False, **attrs: AttrValue) -> Capability:
    return Capability(id=CapabilityId(name), attrs=attrs, provenance=Provenance.PROBED, exclusive=exclusive)


__all__ = ["SimulatedFleet", "engine_fleet", "engine_request"]
