"""The signed envelope `manifest.json`: parse, validate, sign, verify (design 9, G 4.2, G 4.3, G 4.6).

    { "schema": "sennit.workload-manifest.v1", "kind": "cog", "body": {...}, "signatures": [...] }

Signed are the domain tag `sennit.workload-manifest.v1` and NUL, then the statement: the canonical JSON of body, kind
and schema. The package id is the statement's SHA-256, so it survives signing again; the manifest hash is that of the
file's exact bytes and names one set of signatures. Signatures are checked before any file is read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import msgspec
from nacl.bindings import crypto_sign, crypto_sign_seed_keypair

from actors.packages.canonical import JsonFault, canonical_json, parse_json
from actors.packages.fault import PackageFault, input_invalid, manifest_invalid
from actors.packages.keys import TrustAnchors, key_id_of, verifies
from actors.packages.text import has_control, is_cog_id, is_hex, is_lower_hex, is_safe_path, is_token
from messages.base import Record
from messages.packages import (
    FILE_LIMIT_BYTES,
    MANIFEST_LIMIT_BYTES,
    Arch,
    CogBody,
    FileRef,
    PackageErrorCode,
    PackageOrigin,
    SignatureEntry,
)

SCHEMA = "sennit.workload-manifest.v1"
DOMAIN = SCHEMA.encode() + b"\0"
ALGORITHM = "ed25519"
COG_KIND = "cog"
MANIFEST_PATH = "manifest.json"
COG_TOML_PATH = "cog.toml"
SIGNATURE_LIMIT = 16
ATTESTATION_LIMIT = 32
"""With 16 signers and 5 payloads, all a package can be revoked by stays within the engine's 64 references."""


class _Frame(Record, frozen=True):
    schema: str
    kind: str
    body: dict[str, Any]
    signatures: tuple[SignatureEntry, ...]


@dataclass(frozen=True, slots=True)
class Manifest:
    """A parsed and validated manifest; its signatures are not judged yet."""

    kind: str
    body: CogBody
    signatures: tuple[SignatureEntry, ...]
    statement: bytes
    package_id: str
    manifest_hash: str


@dataclass(frozen=True, slots=True)
class Signer:
    """An accepted signature: the pinned id and the key, 64 lower hex."""

    key_id: str
    public_key: str


def payload_path(arch: Arch, cog_id: str) -> str:
    """Where the payload for `arch` lies; no other path is accepted."""
    return f"wasm/{cog_id}.wasm" if arch is Arch.WASM else f"{arch.value}/cog-{cog_id}"


def parse_manifest(data: bytes) -> Manifest:
    """Frame checks in the order of G 4.2, then the kind's own. Raises `PackageFault` (`manifest-invalid`)."""
    if len(data) > MANIFEST_LIMIT_BYTES:
        raise manifest_invalid(f"larger than {MANIFEST_LIMIT_BYTES} bytes")
    try:
        frame = msgspec.convert(parse_json(data), _Frame)
    except (JsonFault, msgspec.ValidationError) as error:
        raise manifest_invalid(str(error)[:200]) from None
    if frame.schema != SCHEMA:
        raise manifest_invalid(f"schema {frame.schema[:32]!r}, expected {SCHEMA!r}")
    if not is_token(frame.kind, 32):
        raise manifest_invalid(f"kind {frame.kind[:32]!r} is not a token of at most 32 bytes")
    if len(frame.signatures) > SIGNATURE_LIMIT:
        raise manifest_invalid(f"{len(frame.signatures)} signatures, at most {SIGNATURE_LIMIT} are allowed")
    for entry in frame.signatures:
        if not is_token(entry.key_id, 128):
            raise manifest_invalid(f"key id {entry.key_id[:32]!r} is not a token of at most 128 bytes")
    if frame.kind != COG_KIND:
        raise manifest_invalid(f'unknown workload kind "{frame.kind[:32]}"')
    body = parse_body(frame.body)
    statement = statement_of(frame.kind, frame.body)
    return Manifest(
        kind=frame.kind,
        body=body,
        signatures=frame.signatures,
        statement=statement,
        package_id=sha256(statement).hexdigest(),
        manifest_hash=manifest_hash_of(data),
    )


def parse_body(body: Mapping[str, Any]) -> CogBody:
    """A cog body (G 4.3) in its one form. Raises `PackageFault` (`manifest-invalid`)."""
    try:
        cog = msgspec.convert(body, CogBody)
    except msgspec.ValidationError as error:
        raise manifest_invalid(str(error)[:200]) from None
    _check_body(cog)
    if canonical_json(body) != canonical_json(msgspec.to_builtins(cog)):
        raise manifest_invalid("body spells out a member that is left out when absent or empty")
    return cog


def statement_of(kind: str, body: Mapping[str, Any]) -> bytes:
    """What is signed after the domain tag; without the signatures, so signers are independent."""
    try:
        return canonical_json({"body": body, "kind": kind, "schema": SCHEMA})
    except JsonFault as error:
        raise manifest_invalid(str(error)) from None


def manifest_hash_of(data: bytes) -> str:
    """SHA-256 of the exact bytes, in hex: the name under which a manifest is offered and fetched."""
    return sha256(data).hexdigest()


def render_manifest(body: CogBody, signatures: tuple[SignatureEntry, ...] = ()) -> bytes:
    """The bytes of `manifest.json`: pretty JSON and a newline. Raises `PackageFault` for a body that is invalid."""
    value = {
        "body": msgspec.to_builtins(body),
        "kind": COG_KIND,
        "schema": SCHEMA,
        "signatures": [msgspec.to_builtins(entry) for entry in signatures],
    }
    data = json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False).encode() + b"\n"
    parse_manifest(data)
    return data


def sign_manifest(data: bytes, seed: bytes, key_id: str | None = None) -> bytes:
    """`data` with the signature of the 32-byte Ed25519 `seed`; an entry of the same key is replaced.

    `key_id` defaults to `key_id_of` the key. Raises `PackageFault`.
    """
    if len(seed) != 32:
        raise input_invalid(f"a signing seed has 32 bytes, this one has {len(seed)}")
    manifest = parse_manifest(data)
    public_key, secret_key = crypto_sign_seed_keypair(seed)
    key_id = key_id or key_id_of(public_key)
    if not is_token(key_id, 128):
        raise input_invalid(f"key id {key_id[:32]!r} is not a token of at most 128 bytes")
    entry = SignatureEntry(
        algorithm=ALGORITHM,
        key_id=key_id,
        public_key=public_key.hex(),
        signature=crypto_sign(DOMAIN + manifest.statement, secret_key)[:64].hex(),
    )
    others = tuple(other for other in manifest.signatures if other.public_key != entry.public_key)
    if len(others) >= SIGNATURE_LIMIT:
        raise input_invalid(f"the package carries {SIGNATURE_LIMIT} signatures already; pack it again")
    return render_manifest(manifest.body, (*others, entry))


def verify_signatures(manifest: Manifest, anchors: TrustAnchors) -> tuple[Signer, ...]:
    """The accepted signers, at least one, each key once, in the order of the entries (G 4.6, steps 3 and 5).

    A malformed or unpinned entry neither admits nor vetoes. A pinned key under another id, or a pinned key whose
    signature does not verify, is fatal even beside a good signature. Raises `PackageFault`.
    """
    accepted: dict[str, Signer] = {}
    for entry in manifest.signatures:
        if entry.algorithm != ALGORITHM:
            raise manifest_invalid(f"signature algorithm {entry.algorithm[:32]!r}, expected {ALGORITHM!r}")
        pinned = anchors.by_key.get(entry.public_key)  # by key material: an id decides nothing
        if not is_hex(entry.public_key, 64) or pinned is None:
            continue
        if pinned != entry.key_id:
            raise _bad_signature(entry.key_id)
        if not is_hex(entry.signature, 128):
            continue
        signature, public_key = bytes.fromhex(entry.signature), bytes.fromhex(entry.public_key)
        if not verifies(public_key, DOMAIN + manifest.statement, signature):
            raise _bad_signature(entry.key_id)
        accepted[entry.public_key] = Signer(pinned, entry.public_key)
    if accepted:
        return tuple(accepted.values())
    if not manifest.signatures:
        raise PackageFault(
            PackageErrorCode.MISSING_SIGNATURE, "package has no signature; sign it with `sennit package sign`"
        )
    seen = ", ".join(entry.key_id for entry in manifest.signatures)
    raise PackageFault(PackageErrorCode.UNTRUSTED_SIGNER, f"no signature from a pinned signer (saw: {seen})")


def _bad_signature(key_id: str) -> PackageFault:
    return PackageFault(PackageErrorCode.BAD_SIGNATURE, f"signature from {key_id} does not verify")


def _check_body(body: CogBody) -> None:
    if not is_cog_id(body.id):
        raise manifest_invalid(f"id {body.id[:64]!r} is not lower-case words joined by single hyphens, at most 64")
    if not is_token(body.version, 64):
        raise manifest_invalid(f"version {body.version[:64]!r} is not a token of at most 64 bytes")
    if not body.binaries:
        raise manifest_invalid("no payload: at least one architecture is needed")
    if len(body.attestations) > ATTESTATION_LIMIT:
        raise manifest_invalid(f"{len(body.attestations)} attestations, at most {ATTESTATION_LIMIT} are allowed")
    paths: set[str] = set()
    for file in body.files():
        _check_file(file)
        if file.path in paths:
            raise manifest_invalid(f"path {file.path} is listed twice")
        paths.add(file.path)
    if body.cog_toml.path != COG_TOML_PATH:
        raise manifest_invalid(f"cog_toml is at {body.cog_toml.path}, expected {COG_TOML_PATH}")
    for arch, file in body.binaries.items():
        if file.path != payload_path(arch, body.id):
            raise manifest_invalid(f"payload for {arch} is at {file.path}, expected {payload_path(arch, body.id)}")
    for attestation in body.attestations:
        if not is_token(attestation.kind, 64):
            raise manifest_invalid(f"attestation kind {attestation.kind[:64]!r} is not a token of at most 64 bytes")
        if not attestation.file.path.startswith("attestations/"):
            raise manifest_invalid(f"attestation {attestation.file.path} is not under attestations/")
    check_origin(body.source)


def _check_file(file: FileRef) -> None:
    if not is_safe_path(file.path):
        raise manifest_invalid(f'unsafe path "{file.path[:64]}"')
    if not 0 <= file.size <= FILE_LIMIT_BYTES:
        raise manifest_invalid(f"size of {file.path} is {file.size}, allowed are 0..{FILE_LIMIT_BYTES} bytes")
    if not is_hex(file.sha256, 64):
        raise manifest_invalid(f"sha256 of {file.path} is not 64 lower hex digits")


def check_origin(origin: PackageOrigin) -> None:
    """Raises `PackageFault` (`manifest-invalid`) unless the origin follows G 4.3."""
    if origin.commit is None and origin.release_url is None:
        raise manifest_invalid("source names neither commit nor release_url")
    if origin.commit is not None and not (7 <= len(origin.commit) <= 64 and is_lower_hex(origin.commit)):
        raise manifest_invalid(f"source commit {origin.commit[:64]!r} is not 7 to 64 lower hex digits")
    for name, text in (("repo", origin.repo), ("release_url", origin.release_url)):
        if text is not None and not (1 <= len(text.encode()) <= 512 and not has_control(text)):
            raise manifest_invalid(f"source {name} is not 1 to 512 bytes without control characters")
