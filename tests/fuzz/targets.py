"""Everything that reads bytes it did not write, one entry each: how it is called, what it may raise, valid examples.

Shared by the fuzzer (`run.py`) and by the tests in `tests/hostile`. A target may raise its own typed fault and nothing
else; what it accepts must survive being said again. The text of a fault is for logs and terminals, so it is bounded
too: a fault that repeats its input is a way to fill a disk.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

import messages.chain
import messages.edge
import messages.gate
import messages.node
import messages.packages
import messages.placement
import messages.ports
import messages.supervision
import messages.system
from actors.chain import canonical as chain_json
from actors.chain import record as chain_record
from actors.chain.ledger import Owed
from actors.document import StateDamaged
from actors.edges.planning.state import Closing, DesiredEdge, Life, Pair, PlanState
from actors.edges.planning.wish import Sizes
from actors.gate.context import CONTEXT_LIMIT_BYTES, ContextFault, parse_context
from actors.gate.policy import PolicyFault, parse_policy
from actors.node.placing import read_order
from actors.node.state import AgentState, decode_state, encode_state
from actors.node.verbs import read_body, read_fence
from actors.packages.cog import parse_cog
from actors.packages.fault import PackageFault
from actors.packages.keys import TRUST_LIMIT_BYTES, TrustAnchors, TrustKey, key_id_of, parse_trust, render_trust
from actors.packages.manifest import parse_manifest, render_manifest, sign_manifest, verify_signatures
from actors.placement.signed import (
    NonceGuard,
    Rejected,
    Signer,
    is_decision_id,
    new_request,
    sign_request,
    sign_response,
    verify_request,
    verify_response,
)
from actors.placement.state import Dispatch, Held, PlaneState
from actors.placement.view import MAX_FACTS_BYTES, FactsRefused, open_facts, sign_facts
from messages.base import Address, Message, Request
from messages.capabilities import Capability, CapabilityId, Provenance
from messages.chain import Entry
from messages.control import (
    MAX_REQUEST_BYTES,
    MAX_RESPONSE_BYTES,
    REQUEST_DOMAIN,
    RESPONSE_DOMAIN,
    Accepted,
    CtlConfig,
    Epoch,
    FenceBody,
    InstanceBody,
    Interval,
    Method,
    PlaceBody,
    SignedObject,
)
from messages.edge_end import EdgeParty
from messages.facts import NodeFacts
from messages.gate import WorkloadContext
from messages.node import FACTS_DOMAIN
from messages.packages import (
    COG_TOML_LIMIT_BYTES,
    MANIFEST_LIMIT_BYTES,
    Arch,
    CogBody,
    FileRef,
    PackageOrigin,
)
from messages.placement import PlacementRecord, PlaceOrder
from messages.system import AskFailure
from messages.workload_spec import TrustTier
from runtime.cluster.directory import DOMAIN as DIRECTORY_DOMAIN
from runtime.cluster.directory import (
    Directory,
    DirectoryEntry,
    cluster_id_of,
    open_directory,
    sign_directory,
)
from runtime.cluster.fault import ClusterFault
from runtime.cluster.keys import SecretSeed
from runtime.cluster.names import Role
from runtime.cluster.settings import ClusterSettings, NodeSettings, Times, parse_settings, render_settings
from runtime.kernel.envelope import BadFrame, Envelope, Failure, Kind, Mail, mail_of, pack, unpack
from runtime.policy import default_policy_toml
from runtime.ports.chain_rows import record_of, row_of
from runtime.ports.store import LIMIT_BYTES as DOCUMENT_LIMIT_BYTES
from runtime.ports.store import StoreFault, unwrap, wrap
from runtime.scenario.reading import parse_scenario

FAULT_TEXT_LIMIT = 4096
"""Most characters that a fault may show of itself."""

SEED = bytes(range(32))
CONTROLLER, NODE = Signer(b"c" * 32), Signer(b"n" * 32)
OPERATOR = SecretSeed(SEED)
NOW_MS = 1_700_000_000_000
CLUSTER_ID = cluster_id_of(OPERATOR.public_key)
TEXT_LIMIT_BYTES = 1024 * 1024
DOCUMENT_NAME = "agent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """`read` takes any bytes of at most `limit_bytes` and may raise `faults`; `seeds` are bytes that it accepts."""

    read: Callable[[bytes], object]
    faults: tuple[type[Exception], ...]
    seeds: Callable[[], list[bytes]]
    limit_bytes: int

    def run(self, data: bytes) -> Exception | None:
        """The fault that was raised, if one was. Anything else it raises is a finding."""
        try:
            self.read(data)
        except self.faults as fault:
            text = str(fault)
            assert len(text) <= FAULT_TEXT_LIMIT, f"the text of the fault has {len(text)} characters: {text[:300]}"
            return fault
        return None


def _text(read: Callable[[str], object]) -> Callable[[bytes], object]:
    """A reader of text: what is not UTF-8 is refused where the file is read, before it is called."""

    def read_bytes(data: bytes) -> object:
        try:
            text = data.decode()
        except UnicodeDecodeError:
            return None
        return read(text)

    return read_bytes


# envelopes and messages


def _read_envelopes(data: bytes) -> None:
    for envelope, sequence, incarnation in unpack(data, 0.0):
        again = next(unpack(pack(envelope, sequence, incarnation, 0.0), 0.0))
        assert again == (envelope, sequence, incarnation) or (envelope.deadline or 0) > 2**50  # rounds as a float


def _envelope_seeds() -> list[bytes]:
    to, sender = Address("controller/plane"), Address("shed/agent")
    asked = Envelope(
        Kind.ASK, to, sender, body=b"\x80", tag="system.GetState", correlation=7, deadline=2.0, waiting=(sender,)
    )
    failed = Envelope(Kind.FAILURE, to, sender, failure=Failure(AskFailure.REFUSED, "code", "reason"), correlation=7)
    hello = Envelope(Kind.HELLO, Address("shed"), Address("controller"), body=b"\xc0", correlation=1)
    frames = [pack(envelope, number, 3, 0.0) for number, envelope in enumerate((asked, failed, hello), start=1)]
    return [*frames, b"".join(frames)]


@cache
def _mails() -> tuple[tuple[str, Mail], ...]:
    """Every message there is, by tag, the answers included."""
    modules = (
        messages.chain, messages.edge, messages.gate, messages.node, messages.packages, messages.placement,
        messages.ports, messages.supervision, messages.system,
    )  # fmt: skip
    found: dict[str, Mail] = {}
    for module in modules:
        for name, kind in vars(module).items():
            if isinstance(kind, type) and issubclass(kind, Message) and kind not in (Message, Request):
                found[f"{module.__name__}.{name}"] = mail_of(kind)
    return tuple(sorted(found.items()))


def _read_message(data: bytes) -> None:
    """The first byte chooses the type that the rest is read as."""
    if not data:
        return
    mails = _mails()
    _, mail = mails[data[0] % len(mails)]
    [tag] = mail.types
    message = mail.decode(tag, data[1:])
    assert mail.decode(tag, msgspec.msgpack.encode(message)) == message or _has_nan(message)


def _has_nan(value: object) -> bool:
    """NaN is not equal to itself; where one may stand is a matter of the message's own checks."""
    return "nan" in repr(value)


def _message_seeds() -> list[bytes]:
    samples: list[Message] = [
        messages.chain.Append(entry=Entry(source="gate", kind="workload.place", payload=b"{}")),
        PlaceOrder(package_dir="/p", config=CtlConfig(mode=Interval(secs=1)), pin="shed", prefer=["a"]),
        messages.ports.SaveDocument(name="plane", data=b"{}"),
    ]
    numbers = {name: number for number, (name, _) in enumerate(_mails())}
    return [
        bytes([numbers[f"{type(sample).__module__}.{type(sample).__name__}"]]) + msgspec.msgpack.encode(sample)
        for sample in samples
    ]


# signed objects


def _request(method: Method, body: object = None) -> Any:
    return new_request(
        method,
        requester=CONTROLLER.node_id,
        target=NODE.node_id,
        nonce="ab" * 16,
        now_ms=NOW_MS,
        term=1,
        decision_id="d" * 64,
        body=body,
    )


def _read_request(data: bytes) -> None:
    """As if the controller itself had signed it: all that a signature does not protect from."""
    request = verify_request(
        CONTROLLER.sign(REQUEST_DOMAIN, data),
        me=NODE.node_id,
        now_ms=NOW_MS,
        allows=lambda _key, _method: True,
        nonces=NonceGuard(),
    )
    match request.method:
        case Method.PLACE:
            if is_decision_id(request.decision_id):  # the agent refuses the others before it reads the order
                read_order(request, may_start=True)
        case Method.FENCE:
            read_fence(request)
        case _:
            read_body(request)


def _place_body() -> PlaceBody:
    config = CtlConfig(mode=Interval(secs=5), args=["--label", "x"])
    return PlaceBody(
        name="hostwatch", manifest_hash="a" * 64, variant="noarch-native", config=config, slot="cog/hostwatch/1",
        epoch=Epoch(term=1, number=2), start=True,
    )  # fmt: skip


def _request_seeds() -> list[bytes]:
    requests = [
        _request(Method.PLACE, _place_body()),
        _request(Method.STATUS),
        _request(Method.STOP, InstanceBody(instance_id="cog:hostwatch", grace_ms=10)),
        _request(Method.FENCE, FenceBody(slot="s", floor=Epoch(term=1, number=3), decision_id="d" * 64)),
    ]
    return [sign_request(CONTROLLER, request).payload for request in requests]


def _read_response(data: bytes) -> None:
    verify_response(NODE.sign(RESPONSE_DOMAIN, data), _request(Method.STATUS), NODE.public_key)


def _response_seeds() -> list[bytes]:
    return [sign_response(NODE, _request(Method.STATUS), Accepted(result={"rows": [1, "two", None, 2.5]})).payload]


def _read_signed(data: bytes) -> None:
    """A signed object whose three parts come from a stranger."""
    signed = SignedObject(payload=data[96:], public_key=data[:32], signature=data[32:96])
    verify_request(
        signed, me=NODE.node_id, now_ms=NOW_MS, allows=lambda key, _: key == CONTROLLER.public_key, nonces=NonceGuard()
    )


def _signed_seeds() -> list[bytes]:
    signed = sign_request(CONTROLLER, _request(Method.STATUS))
    return [signed.public_key + signed.signature + signed.payload]


def _read_facts(data: bytes) -> None:
    facts = open_facts(NODE.sign(FACTS_DOMAIN, data), NODE.public_key, NOW_MS // 1000)
    sign_facts(NODE, facts)
    facts.load()


def _facts_seeds() -> list[bytes]:
    capabilities = (
        Capability(id=CapabilityId("os.linux"), attrs={"kernel": "6.1"}, provenance=Provenance.PROBED),
        Capability(id=CapabilityId("mem.system"), attrs={"free": 6, "total": 9}, provenance=Provenance.PROBED),
        Capability(id=CapabilityId("x.odd"), attrs={"list": (1, 2.5, True, "a")}, provenance=Provenance.CLAIMED),
    )
    facts = NodeFacts(
        version=1,
        node_id=NODE.node_id,
        issued_at=NOW_MS // 1000,
        ttl_secs=600,
        seq=7,
        capabilities=capabilities,
    )
    return [sign_facts(NODE, facts).payload]


# packages


def _read_manifest(data: bytes) -> None:
    manifest = parse_manifest(data)
    again = parse_manifest(render_manifest(manifest.body, manifest.signatures))
    assert again.package_id == manifest.package_id
    verify_signatures(manifest, TrustAnchors({OPERATOR.public_key.hex(): key_id_of(OPERATOR.public_key)}))


def _manifest_seeds() -> list[bytes]:
    def file(path: str) -> FileRef:
        return FileRef(path=path, size=4, sha256=sha256(path.encode()).hexdigest())

    body = CogBody(
        id="hostwatch",
        version="0.1.0",
        cog_toml=file("cog.toml"),
        binaries={Arch.NOARCH: file("noarch/cog-hostwatch"), Arch.X86_64: file("x86_64/cog-hostwatch")},
        source=PackageOrigin(repo="r", commit="abcdef0"),
    )
    signed = sign_manifest(render_manifest(body), SEED)
    return [signed, sign_manifest(signed, b"o" * 32)]


def _trust_seeds() -> list[bytes]:
    key = OPERATOR.public_key
    spki = "MCowBQYDK2VwAyEAA6EHv/POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg="
    pem = f"-----BEGIN PUBLIC KEY-----\n{spki}\n-----END PUBLIC KEY-----\n"
    return [
        render_trust([TrustKey(key_id=key_id_of(key), public_key=key.hex())]),
        render_trust([TrustKey(key_id="as-pem", public_key=pem)]),
        render_trust([]),
    ]


_COG = b"""\
[cog]
id = "hostwatch"
version = "0.1.0"
hardware_requirement = ["feed.csi", "camera"]
[resources]
ram_mb = 128
cpu_pct = 25
[console]
max_runtime_secs = 15
allowed_commands = ["status --all"]
[config.label]
cli_arg = "--label"
type = "string"
[simulation]
behaviour = "steady"
[package]
release_url = "urn:sample:hostwatch"
binaries = { noarch = "hostwatch.py" }
"""


# gate and chain

_POLICY = """\
format = 1
threshold = 0.5
human_approval = true
[[permit]]
id = "a"
min_node_tier = "pinned"
max_network = "none"
principals = ["operator"]
actions = ["workload.*"]
kinds = ["*"]
accelerators = ["accel.npu.*"]
[[permit]]
id = "b"
actions = ["workload.stop", "workload.un*"]
kinds = ["cog"]
"""


def _context_seeds() -> list[bytes]:
    context = msgspec.convert(
        {"kind": "cog", "package_trust": "pinned_signer", "node_tier": "paired", "network": "lan",
         "resource_cost": 0.25, "package_id": "cog.a", "signer_keys": ["ab" * 32], "accelerator": "accel.npu"},
        WorkloadContext,
    )  # fmt: skip
    return [msgspec.json.encode({"workload": context, "node": "n-1"})]


def _read_canonical(data: bytes) -> None:
    value = chain_json.decode(data)
    encoded = chain_json.encode(value)
    chain_json.check_canonical(encoded)
    assert chain_json.encode(chain_json.decode(encoded)) == encoded


def _read_record(data: bytes) -> None:
    """A record as the disk may hold it: every column of the right type, each with any content."""
    parts = data.split(b"|")
    if len(parts) != 9:
        raise ValueError("not a row")
    sequence, chain_id, time_ms, previous, digest, payload_hash, source, kind, stored = parts
    numbers = [int.from_bytes(part[:8], "big", signed=True) for part in (sequence, time_ms)]
    crc = int.from_bytes(sequence[8:12], "big")
    for stored_crc in (crc, chain_rows_crc(stored)):  # a wrong and a right one
        row = (numbers[0], chain_id, numbers[1], previous, digest, payload_hash, source, kind, stored, stored_crc, None)
        chain_record.verify([record_of(row)])


def chain_rows_crc(stored: bytes) -> int:
    import zlib

    return zlib.crc32(stored)


def _record_seeds() -> list[bytes]:
    row = row_of(chain_record.genesis("c-1", NOW_MS))
    sequence, chain_id, time_ms, previous, digest, payload_hash, source, kind, stored, crc, _ = row
    head = int.to_bytes(sequence, 8, "big") + int.to_bytes(crc, 4, "big")
    text = [part.encode() if isinstance(part, str) else part for part in (chain_id, source, kind)]
    columns = [head, text[0], int.to_bytes(time_ms, 8, "big"), previous, digest, payload_hash, *text[1:], stored]
    assert all(b"|" not in column for column in columns)
    return [b"|".join(columns)]


# cluster, scenario, documents


def _settings() -> ClusterSettings:
    return ClusterSettings(
        format=1,
        name="reef",
        operator_key=OPERATOR.public_key.hex(),
        node=(NodeSettings(name="attic", tier=TrustTier.PINNED, facts=("feed.csi",)), NodeSettings(name="shed")),
        run_dir="/run/reef",
        times=Times(beat_s=0.5),
    )


def _directory() -> Directory:
    roles = (Role.ROOT, Role.CHAIN, Role.GATE, Role.CONTROLLER, Role.OPERATOR)
    named = [(role.value, role, None) for role in roles] + [("shed", Role.NODE, TrustTier.PAIRED)]
    entries = tuple(
        DirectoryEntry(
            name=name, role=role, public_key=SecretSeed(bytes([number]) * 32).public_key.hex(), control="ipc", tier=tier
        )
        for number, (name, role, tier) in enumerate(named)
    )
    return Directory(schema="sennit.directory.v1", cluster_id=CLUSTER_ID, name="reef", version=1, processes=entries)


def _read_directory_payload(data: bytes) -> None:
    """The payload as if the operator had signed it."""
    try:
        payload = data.decode()
    except UnicodeDecodeError:
        return
    signed = {
        "payload": payload,
        "public_key": OPERATOR.public_key.hex(),
        "signature": OPERATOR.sign(DIRECTORY_DOMAIN + data).hex(),
    }
    directory = open_directory(json.dumps(signed).encode(), OPERATOR.public_key, "directory.json")
    sign_directory(directory, OPERATOR)


def _directory_payload_seeds() -> list[bytes]:
    return [json.loads(sign_directory(_directory(), OPERATOR))["payload"].encode()]


def _scenario_seeds() -> list[bytes]:
    folder = Path(__file__).parents[2] / "scenarios"
    return [path.read_bytes() for path in sorted(folder.glob("*.toml"))]


def _read_plane_state(data: bytes) -> None:
    state = PlaneState.decode(data)
    again = PlaneState.decode(state.encode())
    assert vars(again) == vars(state)
    for held in state.placements.values():  # what goes to a node must be sayable there
        msgspec.msgpack.encode(held)
    msgspec.msgpack.encode([state.term, state.epochs])


def _plane_seeds() -> list[bytes]:
    record = PlacementRecord(
        instance_id="i", node_id=NODE.node_id, kind="cog", workload="hostwatch", variant="noarch-native",
        decision_id="d" * 64, manifest_hash="a" * 64, slot="s", epoch=Epoch(term=1, number=1), signer_keys=["ab"],
    )  # fmt: skip
    order = PlaceOrder(package_dir="/p", config=CtlConfig(mode=Interval(secs=1)))
    state = PlaneState()
    state.term, state.chain_sequence, state.epochs = 3, 9, {"s": 1}
    state.dispatches["d" * 64] = Dispatch(held=Held(record=record, order=order), since_ms=NOW_MS)
    other = msgspec.structs.replace(record, instance_id="j", decision_id="e" * 64)
    state.placements["j"] = Held(record=other, order=order, labels=("l",), hardware_bound=True)
    state.owed["k"] = Owed(key="k", kind="workload.place", payload=b"{}")
    return [state.encode(), PlaneState().encode()]


def _read_edges_state(data: bytes) -> None:
    state = PlanState.decode(data)
    again = PlanState.decode(state.encode())
    assert vars(again) == vars(state)
    for edge in state.edges.values():  # what goes to a node must be sayable there
        msgspec.msgpack.encode(edge)


def _edges_seeds() -> list[bytes]:
    state = PlanState()
    state.term, state.chain_sequence, state.last_edge_id, state.run_floor = 3, 9, 4, 2
    producer, consumer = (
        EdgeParty(node_id=NODE.node_id, process="shed.edges", instance_id="i", epoch=Epoch(term=1, number=1), port=port)
        for port in ("out", "in")
    )
    pair = Pair(producer=producer, consumer=consumer)
    edge = DesiredEdge(
        source="hostwatch@shed.out", target="trend.in", sizes=Sizes(max_extent_bytes=1, ring_bytes=4096),
        added_key="1.1", since_ms=NOW_MS, run_id=2, permitted=pair, permit_key="1.2",
        life=Life(edge_id=4, run_id=2, pair=pair, closing=Closing.FAULT, reason="r"),
    )  # fmt: skip
    state.edges[edge.name] = edge
    state.owed["1.1"] = Owed(key="1.1", kind="edge.plan", payload=b"{}")
    return [state.encode(), PlanState().encode()]


def _read_agent_state(data: bytes) -> None:
    state = decode_state(data)
    assert decode_state(encode_state(state)) == state or _has_nan(state)


def _agent_seeds() -> list[bytes]:
    state = AgentState(starts=2, boot_id="b", owed=(Entry(source="n", kind="k", payload=b"{}"),))
    state = state.with_term(4).with_floor("s", Epoch(term=4, number=2)).with_taken("s", Epoch(term=4, number=3))
    return [encode_state(state), encode_state(AgentState())]


TARGETS: dict[str, Target] = {
    "envelope": Target(read=_read_envelopes, faults=(BadFrame,), seeds=_envelope_seeds, limit_bytes=TEXT_LIMIT_BYTES),
    # A mailbox catches exactly these and refuses the message (runtime/kernel/cell.py).
    "message": Target(
        read=_read_message,
        faults=(msgspec.MsgspecError, RecursionError, ValueError),
        seeds=_message_seeds,
        limit_bytes=TEXT_LIMIT_BYTES,
    ),
    "signed": Target(read=_read_signed, faults=(Rejected,), seeds=_signed_seeds, limit_bytes=MAX_REQUEST_BYTES),
    "request": Target(read=_read_request, faults=(Rejected,), seeds=_request_seeds, limit_bytes=MAX_REQUEST_BYTES),
    "response": Target(read=_read_response, faults=(Rejected,), seeds=_response_seeds, limit_bytes=MAX_RESPONSE_BYTES),
    "facts": Target(read=_read_facts, faults=(FactsRefused,), seeds=_facts_seeds, limit_bytes=MAX_FACTS_BYTES),
    "manifest": Target(
        read=_read_manifest, faults=(PackageFault,), seeds=_manifest_seeds, limit_bytes=MANIFEST_LIMIT_BYTES
    ),
    "trust": Target(read=parse_trust, faults=(PackageFault,), seeds=_trust_seeds, limit_bytes=TRUST_LIMIT_BYTES),
    "cog": Target(read=parse_cog, faults=(PackageFault,), seeds=lambda: [_COG], limit_bytes=COG_TOML_LIMIT_BYTES),
    "policy": Target(
        read=_text(parse_policy),
        faults=(PolicyFault,),
        seeds=lambda: [_POLICY.encode(), default_policy_toml("0f" * 32).encode()],
        limit_bytes=TEXT_LIMIT_BYTES,
    ),
    "context": Target(
        read=parse_context, faults=(ContextFault,), seeds=_context_seeds, limit_bytes=CONTEXT_LIMIT_BYTES
    ),
    "canonical": Target(
        read=_read_canonical,
        faults=(chain_json.CanonicalFault,),
        seeds=lambda: [b'{"a":[1,-2.5,true,null,"\xc3\xa9"],"b":{"c":"d"}}', b"[]"],
        limit_bytes=chain_json.PAYLOAD_LIMIT_BYTES,
    ),
    # The log catches ValueError around a row and calls it damaged (runtime/ports/chain_log.py).
    "record": Target(read=_read_record, faults=(ValueError,), seeds=_record_seeds, limit_bytes=TEXT_LIMIT_BYTES),
    "cluster": Target(
        read=_text(lambda text: parse_settings(text, "cluster.toml")),
        faults=(ClusterFault,),
        seeds=lambda: [render_settings(_settings()).encode()],
        limit_bytes=TEXT_LIMIT_BYTES,
    ),
    "directory": Target(
        read=lambda data: open_directory(data, OPERATOR.public_key, "directory.json"),
        faults=(ClusterFault,),
        seeds=lambda: [sign_directory(_directory(), OPERATOR)],
        limit_bytes=TEXT_LIMIT_BYTES,
    ),
    "directory-payload": Target(
        read=_read_directory_payload,
        faults=(ClusterFault,),
        seeds=_directory_payload_seeds,
        limit_bytes=TEXT_LIMIT_BYTES // 2,
    ),
    "scenario": Target(
        read=_text(lambda text: parse_scenario(text, "scenario.toml")),
        faults=(ClusterFault,),
        seeds=_scenario_seeds,
        limit_bytes=TEXT_LIMIT_BYTES,
    ),
    "plane-state": Target(
        read=_read_plane_state, faults=(StateDamaged,), seeds=_plane_seeds, limit_bytes=DOCUMENT_LIMIT_BYTES
    ),
    "edges-state": Target(
        read=_read_edges_state, faults=(StateDamaged,), seeds=_edges_seeds, limit_bytes=DOCUMENT_LIMIT_BYTES
    ),
    "agent-state": Target(
        read=_read_agent_state, faults=(StateDamaged,), seeds=_agent_seeds, limit_bytes=DOCUMENT_LIMIT_BYTES
    ),
    "document": Target(
        read=lambda data: unwrap(data, DOCUMENT_NAME, CLUSTER_ID, "agent.doc"),
        faults=(StoreFault,),
        seeds=lambda: [wrap(b"state", DOCUMENT_NAME, CLUSTER_ID), wrap(b"", DOCUMENT_NAME, CLUSTER_ID)],
        limit_bytes=DOCUMENT_LIMIT_BYTES,
    ),
}
