"""A record as a row of the chain's database, and back: its payload with a CRC of what is stored.

A payload of more than `PLAIN_BYTES` is compressed. Below that, inflating it would take as long as fetching and hashing
the record, and deflating it a third of the chain's own work on an append, to save a fifth of the row. The first byte
tells which it is: JSON does not begin with an `x`, a zlib stream does.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

from actors.chain.canonical import PAYLOAD_LIMIT_BYTES
from actors.chain.record import Stored
from messages.chain import ChainRecord

TABLE = """
    CREATE TABLE records (
        sequence INTEGER PRIMARY KEY, chain_id TEXT NOT NULL, time_ms INTEGER NOT NULL, prev_hash BLOB NOT NULL,
        hash BLOB NOT NULL, payload_hash BLOB NOT NULL, source TEXT NOT NULL, kind TEXT NOT NULL,
        payload BLOB NOT NULL, stored_crc INTEGER NOT NULL, idempotency_key TEXT)
"""
SELECT = (
    "SELECT sequence, chain_id, time_ms, prev_hash, hash, payload_hash, source, kind, payload, stored_crc, "
    "idempotency_key FROM records"
)
INSERT = "INSERT INTO records VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"

PLAIN_BYTES = 512

_ZLIB = b"x"
_WITHOUT_KEY = (int, bytes, int, bytes, bytes, bytes, bytes, bytes, bytes, int)
_COLUMN_TYPES = {(*_WITHOUT_KEY, bytes), (*_WITHOUT_KEY, type(None))}


def row_of(record: ChainRecord) -> tuple[object, ...]:
    plain = len(record.payload) <= PLAIN_BYTES and not record.payload.startswith(_ZLIB)
    stored = record.payload if plain else zlib.compress(record.payload)
    return (
        record.sequence,
        record.chain_id,
        record.time_ms,
        bytes.fromhex(record.prev_hash),
        bytes.fromhex(record.hash),
        bytes.fromhex(record.payload_hash),
        record.source,
        record.kind,
        stored,
        zlib.crc32(stored),
        record.idempotency_key or None,
    )


def stored_of(row: Sequence[Any]) -> Stored:
    """What a row holds, payload unpacked; verification judges it. Raises `ValueError` for a column of another type."""
    if tuple(map(type, row)) not in _COLUMN_TYPES:
        raise ValueError("a column has another type")
    sequence, chain_id, time_ms, prev_hash, digest, payload_hash, source, kind, stored, crc, key = row
    payload = _payload_of(stored, crc)
    return sequence, chain_id, time_ms, prev_hash, digest, payload_hash, source, kind, payload, key or b""


def record_of(row: Sequence[Any]) -> ChainRecord:
    """The record of a row. Raises `ValueError` as `stored_of` does, and for text that is not UTF-8."""
    sequence, chain_id, time_ms, prev_hash, digest, payload_hash, source, kind, payload, key = stored_of(row)
    return ChainRecord(
        sequence=sequence,
        chain_id=chain_id.decode(),
        time_ms=time_ms,
        prev_hash=prev_hash.hex(),
        hash=digest.hex(),
        payload_hash=payload_hash.hex(),
        source=source.decode(),
        kind=kind.decode(),
        payload=payload,
        idempotency_key=key.decode(),
    )


def _payload_of(stored: bytes, crc: int) -> bytes:
    """What was stored; nothing when it is damaged, for that no record has: verification then names the payload."""
    if zlib.crc32(stored) != crc:
        return b""
    if not stored.startswith(_ZLIB):
        return stored
    unpacking = zlib.decompressobj()
    try:
        payload = unpacking.decompress(stored, PAYLOAD_LIMIT_BYTES + 1)
    except zlib.error:
        return b""
    return payload if unpacking.eof and not unpacking.unused_data else b""
