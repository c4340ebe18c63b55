"""A record as a row of the chain's database, and back: payload compressed, with a CRC of what is stored."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

from actors.chain.canonical import PAYLOAD_LIMIT_BYTES
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


def row_of(record: ChainRecord) -> tuple[object, ...]:
    stored = zlib.compress(record.payload)
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


def record_of(row: Sequence[Any]) -> ChainRecord:
    """The record of a row; verification judges it. Raises `ValueError` when a column is not even of its type."""
    sequence, chain_id, time_ms, prev_hash, digest, payload_hash, source, kind, stored, crc, key = row
    if not (isinstance(sequence, int) and isinstance(time_ms, int)):
        raise ValueError("a number is none")
    for column in (chain_id, prev_hash, digest, payload_hash, source, kind, stored, b"" if key is None else key):
        if not isinstance(column, bytes):
            raise ValueError("a column has another type")
    return ChainRecord(
        sequence=sequence,
        chain_id=chain_id.decode(),
        time_ms=time_ms,
        prev_hash=prev_hash.hex(),
        hash=digest.hex(),
        payload_hash=payload_hash.hex(),
        source=source.decode(),
        kind=kind.decode(),
        payload=_payload_of(stored, crc),
        idempotency_key="" if key is None else key.decode(),
    )


def _payload_of(stored: bytes, crc: object) -> bytes:
    """What was compressed; damaged bytes come back as they are, for their hash is wrong whatever they say."""
    if zlib.crc32(stored) != crc:
        return stored
    unpacking = zlib.decompressobj()
    try:
        payload = unpacking.decompress(stored, PAYLOAD_LIMIT_BYTES + 1)
    except zlib.error:
        return stored
    return payload if unpacking.eof and not unpacking.unused_data else stored
