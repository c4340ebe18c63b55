"""Serving, fetching and importing on the virtual clock (G 4.9; K12, K13, N90)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from actors.actor import Actor, AskFailed, Context, Procedure
from actors.packages.fault import PackageFault
from actors.packages.fetch import FetchFault, fetch_package
from actors.packages.keys import TrustAnchors
from actors.packages.server import PackageServer
from actors.packages.store import import_package
from messages.base import Address, Message, Request
from messages.control import RefusalCode
from messages.packages import (
    BLOCK_BYTES,
    Arch,
    Block,
    GetBlock,
    GetManifest,
    ManifestBytes,
    Offer,
    PackageRefusal,
    VerifiedWorkload,
    Withdraw,
)
from messages.ports import ReadBlob, StatBlob
from messages.system import AskFailure
from runtime.kernel.simulated import SimulatedWorld
from runtime.simulated.blobs import SimulatedBlobs, SimulatedShelf

SERVER = Address("controller/packages")
SERVER_BLOBS = Address("controller/blobs")
AGENT = Address("node-a/agent")
NODE_BLOBS = Address("node-a/blobs")


class Got(Message, frozen=True):
    workload: VerifiedWorkload


class Fetch(Request[Got], frozen=True):
    manifest_hash: str
    timeout_s: float = 30.0
    revoked: tuple[str, ...] = ()


class Import(Request[Got], frozen=True):
    directory: str


class Agent(Actor[Fetch | Import]):
    """As much of a node agent as fetches, and of a plane as imports."""

    mailbox: ClassVar = Fetch | Import

    def __init__(self, anchors: TrustAnchors, blobs: Address) -> None:
        self.anchors = anchors
        self.blobs = blobs

    def receive(self, message: Fetch | Import, ctx: Context) -> Procedure:
        return self.fetch(message, ctx) if isinstance(message, Fetch) else self.import_it(message, ctx)

    async def fetch(self, message: Fetch, ctx: Context) -> None:
        try:
            workload = await fetch_package(
                ctx,
                server=SERVER,
                blobs=self.blobs,
                manifest_hash=message.manifest_hash,
                anchors=self.anchors,
                revoked=message.revoked,
                timeout_s=message.timeout_s,
            )
        except FetchFault as fault:
            ctx.refuse(fault.code, fault.reason)
        else:
            ctx.reply(Got(workload=workload))

    async def import_it(self, message: Import, ctx: Context) -> None:
        try:
            workload = await import_package(ctx, blobs=self.blobs, directory=message.directory, anchors=self.anchors)
        except PackageFault as fault:
            ctx.refuse(fault.code, fault.text)
        else:
            ctx.reply(Got(workload=workload))


class BadServer(Actor[GetManifest | GetBlock]):
    """Answers each question as the test says."""

    mailbox: ClassVar = GetManifest | GetBlock

    def __init__(self, answer: Callable[[GetManifest | GetBlock], Message | None]) -> None:
        self.answer = answer

    def receive(self, message: GetManifest | GetBlock, ctx: Context) -> None:
        answer = self.answer(message)
        if answer is not None:
            ctx.reply(answer)


class Rig:
    def __init__(self, package: Any) -> None:
        self.package = package
        self.world = SimulatedWorld(seed=1)
        self.server_shelf = SimulatedShelf()
        self.node_shelf = SimulatedShelf()
        for data in (package.manifest, *package.files.values()):
            self.server_shelf.put(data)
        self.world.spawn(SERVER_BLOBS, lambda: SimulatedBlobs(self.server_shelf))
        self.world.spawn(NODE_BLOBS, lambda: SimulatedBlobs(self.node_shelf))
        self.world.spawn(SERVER, lambda: PackageServer(SERVER_BLOBS, package.anchors))
        self.world.spawn(AGENT, lambda: Agent(package.anchors, NODE_BLOBS))
        self.world.run_idle()

    def offer(self) -> None:
        self.world.ask(SERVER, Offer(manifest_hash=self.package.hash))

    def replace_server(self, answer: Callable[[GetManifest | GetBlock], Message | None]) -> None:
        self.world.stop(SERVER)
        self.world.run_idle()
        self.world.spawn(SERVER, lambda: BadServer(answer))
        self.world.run_idle()

    def fetch(self, **more: Any) -> VerifiedWorkload:
        request = Fetch(manifest_hash=self.package.hash, **more)
        return self.world.ask(AGENT, request, timeout_s=200.0).workload

    def fetch_fault(self, **more: Any) -> AskFailed:
        with pytest.raises(AskFailed) as caught:
            self.fetch(**more)
        assert caught.value.failure is AskFailure.REFUSED
        return caught.value

    def served(self, request: type[Message]) -> int:
        return sum(isinstance(envelope.message, request) and envelope.to == SERVER for envelope in self.world.sent)

    def block_of(self, request: GetBlock) -> bytes:
        data = self.server_shelf.sealed[request.sha256]
        return data[request.offset : request.offset + BLOCK_BYTES]


@pytest.fixture
def rig(make_package: Any) -> Rig:
    big = bytes(range(256)) * 1300  # 5.08 blocks: more than one window, and a short last block
    return Rig(make_package({Arch.NOARCH: big, Arch.X86_64: b""}, attestation=b"x" * BLOCK_BYTES))


def honest(rig: Rig) -> Callable[[GetManifest | GetBlock], Message]:
    def answer(request: GetManifest | GetBlock) -> Message:
        if isinstance(request, GetManifest):
            return ManifestBytes(data=rig.package.manifest)
        data = rig.block_of(request)
        size = len(rig.server_shelf.sealed[request.sha256])
        return Block(data=data, last=request.offset + len(data) == size)

    return answer


def test_an_offered_package_arrives_whole_and_verified(rig: Rig) -> None:
    rig.offer()
    workload = rig.fetch()
    assert (workload.id, workload.manifest_hash) == ("air", rig.package.hash)
    assert rig.node_shelf.sealed == rig.server_shelf.sealed


def test_what_is_held_is_not_fetched_again_but_judged_again(rig: Rig, other_seed: bytes, trust: Any) -> None:
    rig.offer()
    rig.fetch()
    asked = rig.served(GetBlock)
    assert asked == 6 + 1 + 1  # the script, cog.toml, the attestation; the empty payload needs none
    rig.fetch()
    assert rig.served(GetBlock) == asked
    rig.world.actor(AGENT).anchors = TrustAnchors.of([trust(other_seed)])
    fault = rig.fetch_fault()
    assert fault.code == RefusalCode.VERIFY
    assert "untrusted-signer" in fault.reason


def test_nothing_is_served_that_was_not_offered(rig: Rig) -> None:
    questions = [
        GetManifest(manifest_hash=rig.package.hash),
        GetBlock(sha256=rig.package.body.cog_toml.sha256, offset=0),
        GetBlock(sha256="../../etc/passwd", offset=0),
    ]
    for question in questions:
        with pytest.raises(AskFailed) as caught:
            rig.world.ask(SERVER, question)
        assert caught.value.code == PackageRefusal.NOT_OFFERED
    fault = rig.fetch_fault()
    assert fault.code == RefusalCode.FETCH
    assert rig.node_shelf.sealed == {}


def test_a_withdrawn_package_is_not_served_any_more(rig: Rig) -> None:
    rig.offer()
    assert rig.world.ask(SERVER, Withdraw(manifest_hash=rig.package.hash)).known
    assert not rig.world.ask(SERVER, Withdraw(manifest_hash=rig.package.hash)).known
    assert rig.fetch_fault().code == RefusalCode.FETCH


def test_a_withdrawal_overtakes_an_offer_that_is_being_verified(rig: Rig) -> None:
    pending = rig.world.start_ask(SERVER, Offer(manifest_hash=rig.package.hash))
    rig.world.ask(SERVER, Withdraw(manifest_hash=rig.package.hash))
    rig.world.run_until(lambda: pending.done)
    with pytest.raises(AskFailed, match="withdrawn meanwhile"):
        pending.result()
    rig.offer()  # and a later offer stands
    rig.fetch()


def test_a_file_that_two_packages_list_stays_while_one_is_offered(rig: Rig, make_package: Any) -> None:
    rig.offer()
    shared = rig.package.files["cog.toml"]
    other = make_package({Arch.ARMV7: b"other"}, cog_toml=shared)
    for data in (other.manifest, *other.files.values()):
        rig.server_shelf.put(data)
    rig.world.ask(SERVER, Offer(manifest_hash=other.hash))
    rig.world.ask(SERVER, Withdraw(manifest_hash=rig.package.hash))
    block = rig.world.ask(SERVER, GetBlock(sha256=other.body.cog_toml.sha256, offset=0))
    assert (block.data, block.last) == (shared, True)


def test_an_offer_of_what_is_not_held_whole_is_refused(rig: Rig) -> None:
    rig.server_shelf.sealed.pop(rig.package.body.cog_toml.sha256)
    with pytest.raises(AskFailed, match=r"cog\.toml") as caught:
        rig.offer()
    assert caught.value.code == "file-missing"
    with pytest.raises(AskFailed, match="file-missing"):
        rig.world.ask(SERVER, Offer(manifest_hash="0" * 64))


def test_an_offer_with_an_untrusted_signature_is_refused(rig: Rig, make_package: Any) -> None:
    unsigned = make_package(signed=False)
    for data in (unsigned.manifest, *unsigned.files.values()):
        rig.server_shelf.put(data)
    with pytest.raises(AskFailed) as caught:
        rig.world.ask(SERVER, Offer(manifest_hash=unsigned.hash))
    assert caught.value.code == "missing-signature"


@pytest.mark.parametrize("offset", [1, BLOCK_BYTES - 1, 6 * BLOCK_BYTES, 2**63])
def test_an_offset_that_is_no_block_is_refused(rig: Rig, offset: int) -> None:
    rig.offer()
    digest = rig.package.body.binaries[Arch.NOARCH].sha256
    with pytest.raises(AskFailed) as caught:
        rig.world.ask(SERVER, GetBlock(sha256=digest, offset=offset))
    assert caught.value.code == PackageRefusal.BAD_OFFSET


def corrupt(what: str, rig: Rig) -> Callable[[GetManifest | GetBlock], Message | None]:
    good = honest(rig)
    target = rig.package.body.binaries[Arch.NOARCH].sha256

    def answer(request: GetManifest | GetBlock) -> Message | None:
        reply = good(request)
        if isinstance(reply, ManifestBytes):
            match what:
                case "another manifest":
                    return ManifestBytes(data=rig.package.manifest + b"\n")
                case "endless manifest":
                    return ManifestBytes(data=b" " * (2 * 1024 * 1024))
            return reply
        if request.sha256 != target or request.offset != 4 * BLOCK_BYTES:
            return reply
        match what:
            case "flipped byte":
                return Block(data=b"!" + reply.data[1:], last=reply.last)
            case "short block":
                return Block(data=reply.data[:-1], last=reply.last)
            case "long block":
                return Block(data=reply.data + b"!", last=reply.last)
            case "early end":
                return Block(data=reply.data, last=True)
        return reply

    return answer


@pytest.mark.parametrize(
    "what", ["another manifest", "endless manifest", "flipped byte", "short block", "long block", "early end"]
)
def test_a_lying_server_is_found_out_and_nothing_false_is_stored(rig: Rig, what: str) -> None:
    rig.replace_server(corrupt(what, rig))
    fault = rig.fetch_fault()
    assert fault.code == RefusalCode.VERIFY
    assert "tampered" in fault.reason
    assert rig.package.body.binaries[Arch.NOARCH].sha256 not in rig.node_shelf.sealed
    assert set(rig.node_shelf.sealed.items()) <= set(rig.server_shelf.sealed.items())


def test_a_silent_server_costs_no_more_than_the_deadline(rig: Rig) -> None:
    rig.replace_server(lambda request: None)
    started = rig.world.now_s
    assert rig.fetch_fault(timeout_s=7.0).code == RefusalCode.FETCH
    assert rig.world.now_s - started <= 7.5


def test_a_server_that_stalls_in_the_middle_costs_no_more_than_the_deadline(rig: Rig) -> None:
    good = honest(rig)

    def stalling(request: GetManifest | GetBlock) -> Message | None:
        return None if isinstance(request, GetBlock) and request.offset else good(request)

    rig.replace_server(stalling)
    started = rig.world.now_s
    fault = rig.fetch_fault(timeout_s=25.0)
    assert fault.code == RefusalCode.FETCH
    assert rig.world.now_s - started <= 26.0


def test_a_lost_block_is_asked_for_again(rig: Rig) -> None:
    rig.offer()
    rig.world.lose(lambda envelope: isinstance(envelope.message, GetBlock) and envelope.message.offset > 0, count=2)
    rig.fetch(timeout_s=60.0)
    assert rig.node_shelf.sealed == rig.server_shelf.sealed


def test_a_link_that_is_down_is_a_fetch_failure(rig: Rig) -> None:
    rig.offer()
    rig.world.cut("controller", "node-a")
    assert rig.fetch_fault().code == RefusalCode.FETCH
    rig.world.heal("controller", "node-a")
    rig.fetch()


def test_a_full_disk_is_a_fetch_failure_and_heals(rig: Rig) -> None:
    rig.offer()
    rig.node_shelf.full = True
    fault = rig.fetch_fault()
    assert fault.code == RefusalCode.FETCH
    rig.node_shelf.full = False
    rig.fetch()


def test_two_fetches_of_one_package_share_the_bytes(rig: Rig) -> None:
    rig.offer()
    pending = [rig.world.start_ask(AGENT, Fetch(manifest_hash=rig.package.hash), timeout_s=60.0) for _ in range(2)]
    rig.world.run_until(lambda: all(one.done for one in pending))
    assert pending[0].result() == pending[1].result()
    assert rig.served(GetBlock) == 8


@pytest.mark.parametrize("ref", ["package", "manifest", "signer", "artifact"])
def test_a_revoked_package_is_not_fetched(rig: Rig, ref: str) -> None:
    rig.offer()
    workload = rig.fetch()
    refs = {
        "package": workload.package_id,
        "manifest": workload.manifest_hash,
        "signer": workload.signer_keys[0],
        "artifact": workload.artifact_hashes[0],
    }
    fault = rig.fetch_fault(revoked=(refs[ref],))
    assert fault.code == RefusalCode.FETCH
    assert "revoked" in fault.reason


@pytest.mark.parametrize("digest", ["", "A" * 64, "0" * 63, "../" * 22])
def test_a_malformed_hash_is_refused_before_anything_is_asked(rig: Rig, digest: str) -> None:
    sent = len(rig.world.sent)
    with pytest.raises(AskFailed) as caught:
        rig.world.ask(AGENT, Fetch(manifest_hash=digest))
    assert caught.value.code == RefusalCode.FETCH
    assert not any(isinstance(envelope.message, StatBlob | ReadBlob) for envelope in rig.world.sent[sent:])


def test_the_window_is_bounded(rig: Rig) -> None:
    """No more than four blocks are asked for before an answer came."""
    rig.offer()
    rig.fetch()
    outstanding = most = 0
    for envelope in rig.world.sent:
        if isinstance(envelope.message, GetBlock):
            outstanding += 1
        elif isinstance(envelope.message, Block):
            outstanding -= 1
        most = max(most, outstanding)
    assert most == 4


# importing on the controller


def importing(package: Any) -> tuple[SimulatedWorld, SimulatedShelf]:
    world, shelf = SimulatedWorld(seed=2), SimulatedShelf()
    shelf.directories["/packages/air"] = {"manifest.json": package.manifest, **package.files}
    world.spawn(SERVER_BLOBS, lambda: SimulatedBlobs(shelf))
    world.spawn(AGENT, lambda: Agent(package.anchors, SERVER_BLOBS))
    world.run_idle()
    return world, shelf


def test_a_directory_is_imported_with_all_its_files(package: Any) -> None:
    world, shelf = importing(package)
    workload = world.ask(AGENT, Import(directory="/packages/air")).workload
    assert workload.manifest_hash == package.hash
    assert len(shelf.sealed) == 4  # cog.toml, two payloads, the manifest


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (lambda files: files.update({"armv7/cog-air": b"armv7 progrum"}), "file-tampered"),
        (lambda files: files.pop("cog.toml"), "file-missing"),
        (lambda files: files.pop("manifest.json"), "file-missing"),
        (lambda files: files.update({"manifest.json": b"{}"}), "manifest-invalid"),
    ],
    ids=["tampered", "missing", "no manifest", "no envelope"],
)
def test_a_damaged_directory_is_not_imported(package: Any, spoil: Any, code: str) -> None:
    world, shelf = importing(package)
    spoil(shelf.directories["/packages/air"])
    with pytest.raises(AskFailed) as caught:
        world.ask(AGENT, Import(directory="/packages/air"))
    assert caught.value.code == code
    assert package.hash not in shelf.sealed


def test_nothing_is_stored_of_an_unsigned_package(make_package: Any) -> None:
    world, shelf = importing(make_package(signed=False))
    with pytest.raises(AskFailed) as caught:
        world.ask(AGENT, Import(directory="/packages/air"))
    assert caught.value.code == "missing-signature"
    assert shelf.sealed == {}


def test_a_full_disk_refuses_the_import_by_name(package: Any) -> None:
    world, shelf = importing(package)
    shelf.full = True
    with pytest.raises(AskFailed) as caught:
        world.ask(AGENT, Import(directory="/packages/air"))
    assert caught.value.code == "io-error"
    assert shelf.sealed == {}


def test_a_held_manifest_with_lost_files_is_made_whole(rig: Rig) -> None:
    rig.offer()
    rig.fetch()
    rig.node_shelf.sealed.pop(rig.package.body.binaries[Arch.NOARCH].sha256)
    rig.fetch()
    assert rig.node_shelf.sealed == rig.server_shelf.sealed


def test_the_server_tells_what_it_serves(rig: Rig) -> None:
    rig.offer()
    rig.fetch()
    state = rig.world.actor(SERVER).state()
    assert state["offers"] == {rig.package.hash: rig.fetch().package_id}
    assert state["blocks_served"] == 8
    assert state["refused"] == 0
