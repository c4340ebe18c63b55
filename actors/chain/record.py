"""One link of the chain: how it is hashed, how it is made, how a chain is verified (design 9, G 3).

The hash of a record is SHA-256 over a domain tag and its fields, each led by its length as 4 bytes, big-endian, so
that no two different records share an input (`foo` + `bar.baz` is not `foo.bar` + `baz`):

    "sennit.chain.record.v1\\0"
    sequence (8 bytes, big-endian) | chain id | time in Unix milliseconds (8 bytes, big-endian) | previous hash (32)
    | source | kind | SHA-256 of the payload (32) | idempotency key

The payload is hashed as the bytes that are stored, never as a value encoded anew. The idempotency key is covered too:
changed, it would let a repeated act be taken for a new one. Times are what the writer's clock said; clocks step, so
their order is not checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import sha256
from struct import Struct

from msgspec.structs import replace

from actors.chain import canonical
from messages.chain import ChainRecord, Entry, Verdict

DOMAIN = b"sennit.chain.record.v1\0"
ZERO_HASH = "0" * 64
CHAIN_SOURCE = "chain"
GENESIS_KIND = "genesis"
RESERVED_SOURCES = frozenset({CHAIN_SOURCE})
"""Sources that only the chain itself writes (G 3.4)."""

_NAME = re.compile(r"[a-z0-9]+([._-][a-z0-9]+)*", re.ASCII)
_NAME_LIMIT = 64
_CHAIN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}", re.ASCII)
_KEY_LIMIT_BYTES = 256
_MAX_NUMBER = 2**63 - 1

_NUMBER = Struct(">IQ").pack  # length 8 and the number
_LENGTH = Struct(">I").pack


class EntryFault(ValueError):
    """An entry cannot become a record; the text says which field and why."""


def check_chain_id(chain_id: str) -> str:
    """Refuse what cannot name a chain. Raises `ValueError`."""
    if _CHAIN_ID.fullmatch(chain_id) is None:
        raise ValueError(f"chain id {chain_id[:64]!r} must match {_CHAIN_ID.pattern}")
    return chain_id


def check_entry(entry: Entry) -> None:
    """Refuse source, kind or key that cannot be recorded. Raises `EntryFault`; the payload is checked elsewhere."""
    for what, name in (("source", entry.source), ("kind", entry.kind)):
        if len(name) > _NAME_LIMIT or _NAME.fullmatch(name) is None:
            raise EntryFault(
                f"{what} {name[:_NAME_LIMIT]!r} must be at most {_NAME_LIMIT} lower-case letters, digits and single "
                "dots, underscores or hyphens between them"
            )
    key = entry.idempotency_key
    if not key.isprintable() or len(key.encode()) > _KEY_LIMIT_BYTES:
        raise EntryFault(f"the idempotency key must be at most {_KEY_LIMIT_BYTES} printable bytes")


def payload_hash(payload: bytes) -> str:
    return sha256(payload).hexdigest()


def record_hash(record: ChainRecord) -> str:
    """The hash that `record` ought to have, from its other fields. Raises `ValueError` when a field cannot be hashed:
    a hash that is not 64 hexadecimal digits, a number outside 0..2^63-1, text that is not Unicode."""
    previous, payload = bytes.fromhex(record.prev_hash), bytes.fromhex(record.payload_hash)
    if len(previous) != 32 or len(payload) != 32:
        raise ValueError("a hash has 32 bytes")
    if not (0 <= record.sequence <= _MAX_NUMBER and 0 <= record.time_ms <= _MAX_NUMBER):
        raise ValueError("sequence and time are numbers from 0 to 2^63-1")
    chain_id, source, kind = record.chain_id.encode(), record.source.encode(), record.kind.encode()
    key = record.idempotency_key.encode()
    parts = (
        DOMAIN,
        _NUMBER(8, record.sequence),
        _LENGTH(len(chain_id)),
        chain_id,
        _NUMBER(8, record.time_ms),
        _LENGTH(32),
        previous,
        _LENGTH(len(source)),
        source,
        _LENGTH(len(kind)),
        kind,
        _LENGTH(32),
        payload,
        _LENGTH(len(key)),
        key,
    )
    return sha256(b"".join(parts)).hexdigest()


def make_record(chain_id: str, sequence: int, prev_hash: str, time_ms: int, entry: Entry) -> ChainRecord:
    """The next link for an entry that was checked."""
    unsealed = ChainRecord(
        sequence=sequence,
        chain_id=chain_id,
        time_ms=time_ms,
        prev_hash=prev_hash,
        hash="",
        payload_hash=payload_hash(entry.payload),
        source=entry.source,
        kind=entry.kind,
        payload=entry.payload,
        idempotency_key=entry.idempotency_key,
    )
    return replace(unsealed, hash=record_hash(unsealed))


def genesis(chain_id: str, time_ms: int) -> ChainRecord:
    """Record 0 (G 3.3): source `chain`, kind `genesis`, previous hash all zeros, payload naming the chain."""
    entry = Entry(source=CHAIN_SOURCE, kind=GENESIS_KIND, payload=canonical.encode({"chain_id": chain_id}))
    return make_record(chain_id, 0, ZERO_HASH, time_ms, entry)


class Verifier:
    """Verifies a chain record by record, from genesis on; stops judging at the first bad one.

    Feed records in the order they are stored; `verdict` may be asked at any time.
    """

    def __init__(self, chain_id: str | None = None, known: tuple[int, str] | None = None) -> None:
        """`chain_id`: the chain expected; None takes the one that genesis names.

        `known`: sequence and hash of a record that the chain is known to hold; a log that ends before it, or holds
        another record there, is not valid.
        """
        self._chain_id = chain_id
        self._known = known
        self._head = ZERO_HASH
        self._count = 0
        self._first_bad: int | None = None
        self._problem = ""

    @property
    def count(self) -> int:
        """Good records so far, which is the sequence expected next."""
        return self._count

    @property
    def failed(self) -> bool:
        return self._first_bad is not None

    def add(self, record: ChainRecord) -> bool:
        """Judge the next record; False once a bad one was seen."""
        if self._first_bad is not None:
            return False
        problem = self._judge(record)
        if problem:
            # A gap is a fault of what is missing, not of the record behind it.
            self.fail(min(self._count, record.sequence) if record.sequence >= 0 else self._count, problem)
            return False
        self._head = record.hash
        self._count += 1
        return True

    def fail(self, sequence: int, problem: str) -> None:
        """Note a fault found outside the record, such as one that cannot be read; the first counts."""
        if self._first_bad is None:
            self._first_bad, self._problem = sequence, problem

    def finish(self) -> None:
        """After the last record: judge what is missing. An empty log is not valid, every chain has a genesis."""
        if self._count == 0:
            self.fail(0, "no genesis: the log is empty")
        elif self._known is not None and self._count <= self._known[0]:
            self.fail(self._count, f"the log ends here; it is known to have held records up to {self._known[0]}")

    def verdict(self, torn_tail: int = 0) -> Verdict:
        return Verdict(
            valid=self._first_bad is None,
            count=self._count,
            head_hash=self._head,
            first_bad=self._first_bad,
            problem=self._problem,
            torn_tail=torn_tail,
        )

    def _judge(self, record: ChainRecord) -> str:
        if record.sequence != self._count:
            return f"sequence is {record.sequence}, expected {self._count}: records are missing or out of order"
        if self._chain_id is None:
            self._chain_id = record.chain_id
        if record.chain_id != self._chain_id:
            return f"belongs to chain {record.chain_id!r}, not to {self._chain_id!r}"
        if self._count == 0 and (record.source, record.kind) != (CHAIN_SOURCE, GENESIS_KIND):
            return f"record 0 is {record.source}/{record.kind}, not the genesis"
        if record.prev_hash != self._head:
            return f"previous hash {record.prev_hash[:16]} is not the hash of the record before ({self._head[:16]})"
        if sha256(record.payload).hexdigest() != record.payload_hash:
            return "the payload is not the one that was hashed"
        try:
            expected = record_hash(record)
        except ValueError as error:
            return f"cannot be hashed: {error}"
        if record.hash != expected:
            return f"hash is {record.hash[:16]}, its fields give {expected[:16]}"
        if self._known is not None and record.sequence == self._known[0] and record.hash != self._known[1]:
            return f"hash is {record.hash[:16]}, the record written here had {self._known[1][:16]}"
        return ""


def verify(records: Iterable[ChainRecord], chain_id: str | None = None) -> Verdict:
    """Verify a whole chain given in order."""
    verifier = Verifier(chain_id)
    for record in records:
        if not verifier.add(record):
            break
    verifier.finish()
    return verifier.verdict()
