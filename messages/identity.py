"""Who somebody is: ids derived from Ed25519 public keys (design 5)."""

from __future__ import annotations

from hashlib import sha256

from messages.base import Record

ED25519_KEY_BYTES = 32


def node_id(public_key: bytes) -> str:
    """`n-` and 16 hexadecimal digits of SHA-256 over the 32 bytes of the key. Raises `ValueError` on another length."""
    return "n-" + _digest(public_key)[:8].hex()


def node_number(public_key: bytes) -> int:
    """The same 8 bytes as the unsigned 64-bit `NodeId` of edge messages, big-endian."""
    return int.from_bytes(_digest(public_key)[:8], "big")


def _digest(public_key: bytes) -> bytes:
    if len(public_key) != ED25519_KEY_BYTES:
        raise ValueError(f"an Ed25519 public key has {ED25519_KEY_BYTES} bytes, not {len(public_key)}")
    return sha256(public_key).digest()


class Identity(Record, frozen=True):
    """One process of the directory: configured name, role, full key (32 bytes), trust tier of a node."""

    name: str
    role: str
    public_key: bytes
    tier: str = "paired"

    @property
    def node_id(self) -> str:
        return node_id(self.public_key)
