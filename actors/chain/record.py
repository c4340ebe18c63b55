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
from collections.abc import Callable, Iterable
from functools import lru_cache
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
_HASH_BYTES = 32
_GENESIS = (CHAIN_SOURCE.encode(), GENESIS_KIND.encode())


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


Stored = tuple[int, bytes, int, bytes, bytes, bytes, bytes, bytes, bytes, bytes]
"""A record in the form that is hashed, and that a file holds: sequence, chain id, time, previous hash, hash, hash of
the payload, source, kind, payload, idempotency key. Hashes are 32 bytes, text is UTF-8."""


def link_hash(record: Stored) -> bytes:
    """The hash that `record` ought to have, from its other fields.

    Raises `ValueError` when a field cannot be hashed: a hash that is not 32 bytes, a number outside 0..2^63-1.
    """
    sequence, chain_id, time_ms, prev_hash, _, payload_hash, source, kind, _, idempotency_key = record
    if len(prev_hash) != _HASH_BYTES or len(payload_hash) != _HASH_BYTES:
        raise ValueError("a hash has 32 bytes")
    if not (0 <= sequence <= _MAX_NUMBER and 0 <= time_ms <= _MAX_NUMBER):
        raise ValueError("sequence and time are numbers from 0 to 2^63-1")
    chain, origin, sort, key = len(chain_id), len(source), len(kind), len(idempotency_key)
    covered = _packing(chain, origin, sort, key)(
        DOMAIN, 8, sequence, chain, chain_id, 8, time_ms, _HASH_BYTES, prev_hash,
        origin, source, sort, kind, _HASH_BYTES, payload_hash, key, idempotency_key,
    )  # fmt: skip
    return sha256(covered).digest()


@lru_cache(maxsize=1_024)
def _packing(chain_id: int, source: int, kind: int, idempotency_key: int) -> Callable[..., bytes]:
    """Lays out what is hashed, each field led by its length, for text of these lengths; they hardly vary."""
    return Struct(f">{len(DOMAIN)}sIQI{chain_id}sIQI32sI{source}sI{kind}sI32sI{idempotency_key}s").pack


def stored(record: ChainRecord) -> Stored:
    """The other form of a record. Raises `ValueError` for hashes that are not lower-case hexadecimal, and for text
    that is not Unicode."""
    return (
        record.sequence,
        record.chain_id.encode(),
        record.time_ms,
        _digest(record.prev_hash),
        _digest(record.hash),
        _digest(record.payload_hash),
        record.source.encode(),
        record.kind.encode(),
        record.payload,
        record.idempotency_key.encode(),
    )


def _digest(text: str) -> bytes:
    digest = bytes.fromhex(text)
    if digest.hex() != text:
        raise ValueError("a hash is lower-case hexadecimal digits")
    return digest


def record_hash(record: ChainRecord) -> str:
    """`link_hash` of a message; raises `ValueError` as `stored` and `link_hash` do."""
    return link_hash(stored(record)).hex()


def make_record(chain_id: str, sequence: int, prev_hash: str, time_ms: int, entry: Entry) -> ChainRecord:
    """The next link for an entry that was checked."""
    payload_hash = sha256(entry.payload).hexdigest()
    unsealed = ChainRecord(
        sequence=sequence,
        chain_id=chain_id,
        time_ms=time_ms,
        prev_hash=prev_hash,
        hash="",
        payload_hash=payload_hash,
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

    Feed records in the order they are stored, as messages (`add`) or as the bytes that a file holds (`add_stored`);
    `verdict` may be asked at any time.
    """

    def __init__(self, chain_id: str | None = None, known: tuple[int, str] | None = None) -> None:
        """`chain_id`: the chain expected; None takes the one that genesis names.

        `known`: sequence and hash of a record that the chain is known to hold; a log that ends before it, or holds
        another record there, is not valid.
        """
        self._chain_id = None if chain_id is None else chain_id.encode()
        self._known = known
        self._head = bytes(_HASH_BYTES)
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
        try:
            return self.add_stored(stored(record))
        except ValueError as error:
            self._fail_at(record.sequence, f"cannot be hashed: {error}")
            return False

    def add_stored(self, record: Stored) -> bool:
        """`add` for a record in the form of a file."""
        if self._first_bad is not None:
            return False
        problem = self._judge_place(record) or self._judge_content(record)
        if problem:
            self._fail_at(record[0], problem)
            return False
        self._head = record[4]
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
            head_hash=self._head.hex(),
            first_bad=self._first_bad,
            problem=self._problem,
            torn_tail=torn_tail,
        )

    def _fail_at(self, sequence: int, problem: str) -> None:
        """A gap is a fault of what is missing, not of the record behind it."""
        self.fail(min(self._count, sequence) if sequence >= 0 else self._count, problem)

    def _judge_place(self, record: Stored) -> str:
        """What is wrong with it as the next link of this chain, whatever it says."""
        sequence, chain_id, _, prev_hash, _, _, source, kind, _, _ = record
        if sequence != self._count:
            return f"sequence is {sequence}, expected {self._count}: records are missing or out of order"
        if self._chain_id is None:
            self._chain_id = chain_id
        if chain_id != self._chain_id:
            return f"belongs to chain {_text(chain_id)!r}, not to {_text(self._chain_id)!r}"
        if sequence == 0 and (source, kind) != _GENESIS:
            return f"record 0 is {_text(source)}/{_text(kind)}, not the genesis"
        if prev_hash != self._head:
            return (
                f"previous hash {prev_hash.hex()[:16]} is not the hash of the record before ({self._head.hex()[:16]})"
            )
        return ""

    def _judge_content(self, record: Stored) -> str:
        """What is wrong with it in itself, or with its hash being what was written here."""
        sequence, _, _, _, digest, payload_hash, source, kind, payload, key = record
        if sha256(payload).digest() != payload_hash:
            return "the payload is not the one that was hashed"
        try:
            expected = link_hash(record)
            for text in (source, kind, key):
                text.decode()
        except ValueError as error:
            return f"cannot be hashed: {error}"
        if digest != expected:
            return f"hash is {digest.hex()[:16]}, its fields give {expected.hex()[:16]}"
        if self._known is not None and sequence == self._known[0] and digest.hex() != self._known[1]:
            return f"hash is {digest.hex()[:16]}, the record written here had {self._known[1][:16]}"
        return ""


def _text(stored_text: bytes) -> str:
    return stored_text.decode("utf-8", "replace")


def verify(records: Iterable[ChainRecord], chain_id: str | None = None) -> Verdict:
    """Verify a whole chain given in order."""
    verifier = Verifier(chain_id)
    for record in records:
        if not verifier.add(record):
            break
    verifier.finish()
    return verifier.verdict()
