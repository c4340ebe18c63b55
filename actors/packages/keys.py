"""Signer keys and trust anchors (G 4.5).

A key counts by its 32 bytes; its id is a hint for people. Enrolment refuses every encoding that is not a canonical
point of the prime-order group: under a key of small order one fixed signature verifies every message.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256

import msgspec
from nacl.bindings import crypto_core_ed25519_is_valid_point, crypto_sign_open
from nacl.exceptions import BadSignatureError

from actors.packages.canonical import JsonFault, canonical_json, parse_json
from actors.packages.fault import key_invalid
from actors.packages.text import is_hex, is_token
from messages.base import Record

TRUST_SCHEMA = "sennit.workload-trust.v1"
TRUST_LIMIT_BYTES = 256 * 1024

_SPKI_ED25519 = bytes.fromhex("302a300506032b6570032100")  # SubjectPublicKeyInfo of RFC 8410 up to the key itself
_PEM = re.compile(r"-----BEGIN PUBLIC KEY-----([A-Za-z0-9+/=\s]+)-----END PUBLIC KEY-----\s*", re.ASCII)


class TrustKey(Record, frozen=True):
    """One entry of a trust file; `public_key` is 64 lower hex or an SPKI PEM."""

    key_id: str
    public_key: str


class TrustFile(Record, frozen=True):
    schema: str
    operator_keys: tuple[TrustKey, ...]


@dataclass(frozen=True, slots=True)
class TrustAnchors:
    """The keys whose signature admits a package: public key (64 lower hex) to key id."""

    by_key: dict[str, str]

    @classmethod
    def of(cls, keys: Iterable[TrustKey]) -> TrustAnchors:
        """Enrol `keys`. Raises `PackageFault` (`key-invalid`) for duplicates and keys that must not be trusted."""
        by_key: dict[str, str] = {}
        ids: set[str] = set()
        for key in keys:
            if not is_token(key.key_id, 128):
                raise key_invalid(f"key id {key.key_id[:32]!r} is not a token of at most 128 bytes")
            public_key = parse_public_key(key.public_key).hex()
            if public_key in by_key:
                raise key_invalid(f"key {public_key[:16]} is listed twice, as {by_key[public_key]} and {key.key_id}")
            if key.key_id in ids:
                raise key_invalid(f"key id {key.key_id} names two keys: give each key an id of its own")
            by_key[public_key] = key.key_id
            ids.add(key.key_id)
        return cls(by_key)


def parse_trust(data: bytes) -> TrustAnchors:
    """The anchors of a trust file (at most 256 KiB). Raises `PackageFault` (`key-invalid`)."""
    try:
        trust = msgspec.convert(parse_json(data, TRUST_LIMIT_BYTES), TrustFile)
    except (JsonFault, msgspec.ValidationError) as error:
        raise key_invalid(f"trust file invalid: {str(error)[:200]}") from None
    if trust.schema != TRUST_SCHEMA:
        raise key_invalid(f"trust file invalid: schema is {trust.schema[:32]!r}, expected {TRUST_SCHEMA!r}")
    return TrustAnchors.of(trust.operator_keys)


def render_trust(keys: Iterable[TrustKey]) -> bytes:
    """The bytes of a trust file that holds `keys`, checked as `parse_trust` would."""
    keys = tuple(keys)
    TrustAnchors.of(keys)
    value = {"schema": TRUST_SCHEMA, "operator_keys": [msgspec.to_builtins(key) for key in keys]}
    return canonical_json(value, TRUST_LIMIT_BYTES) + b"\n"


def key_id_of(public_key: bytes) -> str:
    """The default id of a key: `ed25519:` and 16 hex of its SHA-256."""
    return f"ed25519:{sha256(public_key).hexdigest()[:16]}"


def parse_public_key(text: str) -> bytes:
    """32 bytes out of 64 lower hex or an Ed25519 SPKI PEM. Raises `PackageFault` (`key-invalid`)."""
    if is_hex(text, 64):
        return check_public_key(bytes.fromhex(text))
    match = _PEM.fullmatch(text)
    if match is None:
        raise key_invalid("public key is neither 64 lower hex digits nor an Ed25519 key in PEM")
    try:
        der = base64.b64decode("".join(match[1].split()), validate=True)
    except binascii.Error:
        raise key_invalid("public key in PEM is not base64") from None
    if len(der) != len(_SPKI_ED25519) + 32 or not der.startswith(_SPKI_ED25519):
        raise key_invalid("public key in PEM is not an Ed25519 key")
    return check_public_key(der[-32:])


def check_public_key(public_key: bytes) -> bytes:
    """`public_key` itself if it may be trusted. Raises `PackageFault` (`key-invalid`)."""
    if len(public_key) != 32:
        raise key_invalid(f"public key has {len(public_key)} bytes, an Ed25519 key has 32")
    if not crypto_core_ed25519_is_valid_point(public_key):
        raise key_invalid(
            f"public key {public_key.hex()} is no point of the prime-order group (small order or not canonical): "
            "anyone could sign in its name; make a new one with `sennit package keygen`"
        )
    return public_key


def verifies(public_key: bytes, signed: bytes, signature: bytes) -> bool:
    """Strict Ed25519: small-order points and malleable signatures are refused."""
    if len(signature) != 64 or len(public_key) != 32 or not crypto_core_ed25519_is_valid_point(public_key):
        return False
    try:
        crypto_sign_open(signature + signed, public_key)
    except BadSignatureError:
        return False
    return True


__all__ = [
    "TRUST_LIMIT_BYTES",
    "TRUST_SCHEMA",
    "TrustAnchors",
    "TrustFile",
    "TrustKey",
    "check_public_key",
    "key_id_of",
    "parse_public_key",
    "parse_trust",
    "render_trust",
    "verifies",
]
