"""`directory.json`: who belongs to the cluster, signed by the operator (design 5).

    {"payload": "<canonical JSON text>", "public_key": "<64 hex>", "signature": "<128 hex>"}

The signature is Ed25519 over `sennit.directory.v1\\0` and the UTF-8 bytes of `payload`. The payload carries `schema`,
`cluster_id`, `name`, `version` (from 1, raised with every change) and `processes`: name, role, public key, trust tier
of a node, and where each listens (for control, packages, edges): `ipc` stands for a socket in the run directory, so a
directory may be moved.
"""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

import msgspec

from actors.packages.keys import verifies
from messages.engine import TrustTier
from runtime.cluster.fault import ClusterFault, ClusterFaultCode, invalid
from runtime.cluster.keys import SecretSeed, parse_key, transport_key
from runtime.cluster.names import RESERVED, Role, check_name, edges_of, node_of

DOMAIN = b"sennit.directory.v1\0"
SCHEMA = "sennit.directory.v1"
FILE_NAME = "directory.json"
LIMIT_BYTES = 1024 * 1024
RESTORE = "restore it from a copy: every host of the cluster has the same one"


class DirectoryEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One process. `control`, `packages` and `edges`: `ipc`, `tcp://host:port`, or None where it does not listen.

    `edges`: where the edges of other nodes send their bytes; processes of role `edges`, and they alone, have it. One
    that was signed before there were edges lacks it, and is not refused here but told as out of date.
    """

    name: str
    role: Role
    public_key: str
    control: str | None = None
    packages: str | None = None
    edges: str | None = None
    tier: TrustTier | None = None


class Directory(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The payload."""

    schema: str
    cluster_id: str
    name: str
    version: int
    processes: tuple[DirectoryEntry, ...]


class SignedDirectory(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file."""

    payload: str
    public_key: str
    signature: str


def cluster_id_of(operator_key: bytes) -> str:
    """`c-` and 16 hexadecimal digits of SHA-256 over the operator's public key."""
    return f"c-{sha256(operator_key).hexdigest()[:16]}"


def sign_directory(directory: Directory, operator: SecretSeed) -> bytes:
    """The bytes of the file. Raises `ClusterFault` if it would not be accepted by `open_directory`."""
    _check(directory)
    payload = json.dumps(msgspec.to_builtins(directory), sort_keys=True, separators=(",", ":"))
    signed = {
        "payload": payload,
        "public_key": operator.public_key.hex(),
        "signature": operator.sign(DOMAIN + payload.encode()).hex(),
    }
    return json.dumps(signed, indent=1).encode() + b"\n"


def open_directory(data: bytes, operator_key: bytes, file: str) -> Directory:
    """The verified directory. Raises `ClusterFault` (`invalid`, `signature`, `unsafe`) naming `file`."""
    signed = _decode(data, SignedDirectory, file)
    if signed.public_key != operator_key.hex():
        raise ClusterFault(
            ClusterFaultCode.SIGNATURE,
            f"{file} is signed by {signed.public_key[:16]}, not by the operator_key of cluster.toml "
            f"({operator_key.hex()[:16]}): it belongs to another cluster, or someone replaced it; {RESTORE}",
        )
    try:
        signature = bytes.fromhex(signed.signature)
    except ValueError:
        signature = b""
    payload = signed.payload.encode(errors="replace")  # JSON can spell half a character; no signature fits that
    if not verifies(operator_key, DOMAIN + payload, signature):
        raise ClusterFault(
            ClusterFaultCode.SIGNATURE,
            f"the signature of {file} does not fit its content: it was edited or damaged; {RESTORE}",
        )
    directory: Directory = _decode(payload, Directory, file)
    if directory.schema != SCHEMA:
        raise invalid(f"{file}: schema is {directory.schema[:40]!r}, expected {SCHEMA!r}")
    if directory.cluster_id != cluster_id_of(operator_key):
        raise invalid(f"{file}: cluster id {directory.cluster_id[:40]!r} is not that of the operator's key")
    _check(directory)
    return directory


def _check(directory: Directory) -> None:
    """Names are unique and well formed; no two identities share a transport key."""
    names: set[str] = set()
    transports: dict[bytes, str] = {}
    check_name(directory.name, "cluster name")
    if directory.version < 1:
        raise invalid(f"directory version {directory.version} is not a positive number")
    for entry in directory.processes:
        check_name(node_of(entry.name) if entry.role is Role.EDGES else entry.name, "process name")
        if entry.name in names:
            raise invalid(f"directory lists {entry.name!r} twice")
        names.add(entry.name)
        if not _fits(entry):
            raise invalid(f"directory lists {entry.name!r} with the role {entry.role.value!r}")
        if (entry.role is Role.NODE) != (entry.tier is not None):
            raise invalid(f"directory entry {entry.name!r}: nodes, and only nodes, have a trust tier")
        if entry.edges is not None and entry.role is not Role.EDGES:
            raise invalid(f"directory entry {entry.name!r}: only processes of role edges listen for edges")
        transport = transport_key(parse_key(entry.public_key, f"directory entry {entry.name!r}"))
        if transport in transports:
            raise ClusterFault(
                ClusterFaultCode.UNSAFE,
                f"{entry.name!r} and {transports[transport]!r} have the same transport key (one key is the other or "
                "its negative): each process needs a key of its own",
            )
        transports[transport] = entry.name
    missing = sorted({role.value for role in Role if role not in (Role.NODE, Role.EDGES)} - names)
    if missing:
        raise invalid(f"directory does not list {', '.join(missing)}")


def _fits(entry: DirectoryEntry) -> bool:
    match entry.role:
        case Role.NODE:
            return entry.name not in RESERVED
        case Role.EDGES:
            return entry.name == edges_of(node_of(entry.name))
        case _:
            return entry.name == entry.role.value


def _decode(data: bytes, form: type[Any], file: str) -> Any:
    if len(data) > LIMIT_BYTES:
        raise invalid(f"{file} is larger than {LIMIT_BYTES} bytes")

    def without_doubles(members: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(members)
        if len(value) != len(members):
            raise ValueError("a member appears twice in one object")
        return value

    try:
        return msgspec.convert(json.loads(data, object_pairs_hook=without_doubles), form)
    except (ValueError, RecursionError) as error:
        raise invalid(f"{file} is not a signed directory: {str(error)[:200]}; {RESTORE}") from None
