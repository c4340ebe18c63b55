"""The mailbox of `chain/chain` and of its store port (design 9, G 3)."""

from __future__ import annotations

from enum import StrEnum

from messages.base import Message, Record, Request


class ChainRefusal(StrEnum):
    """Why a record was not written. Whoever is refused has no record, so no act (promise 2)."""

    DISK_FULL = "disk_full"
    CLOSED = "closed"
    PAYLOAD_TOO_LARGE = "payload_too_large"
    PAYLOAD_INVALID = "payload_invalid"
    RESERVED = "reserved"
    KEY_REUSED = "key_reused"
    INVALID = "invalid"
    OVERLOADED = "overloaded"


class ChainRecord(Record, frozen=True):
    """One link. `time_ms` Unix milliseconds; hashes are SHA-256, lower-case hex; `payload` canonical JSON bytes.

    `hash` covers every other field, the payload through `payload_hash` (`actors.chain.record`).
    """

    sequence: int
    chain_id: str
    time_ms: int
    prev_hash: str
    hash: str
    payload_hash: str
    source: str
    kind: str
    payload: bytes
    idempotency_key: str = ""


class Appended(Message, frozen=True):
    """Durable. `repeated` when the idempotency key was known: then it is the first record's sequence and hash."""

    sequence: int
    hash: str
    time_ms: int
    repeated: bool = False


class Entry(Record, frozen=True):
    """What a caller gives: `payload` is JSON text in canonical form, made by `actors.chain.canonical.encode`."""

    source: str
    kind: str
    payload: bytes
    idempotency_key: str = ""


class Append(Request[Appended], frozen=True):
    """Answered when the record survives a power cut. Refused with a `ChainRefusal`: then nothing was written.

    With an idempotency key a second append of the same kind and payload is answered with the first record; of
    another one refused `key_reused`. Keys belong to their source and are remembered for ever.
    """

    entry: Entry


class AppendedAll(Message, frozen=True):
    results: list[Appended]


class AppendAll(Request[AppendedAll], frozen=True):
    """All of the entries, next to each other, in one transaction, or none."""

    entries: list[Entry]


class Records(Message, frozen=True):
    records: list[ChainRecord]


class Tail(Request[Records], frozen=True):
    """The newest `count` records (1..1000), oldest first; with `after`, the first `count` of a greater sequence.

    Fewer come when their payloads together would not fit a message; one always comes if there is one.
    """

    count: int = 20
    after: int | None = None


class Show(Request[Records], frozen=True):
    """The record with this sequence or this hash (a hash may be shortened to 8 or more digits); empty if none."""

    sequence: int | None = None
    hash: str | None = None


class Verdict(Message, frozen=True):
    """Outcome of a verification: the first bad record by sequence and what is wrong with it, or none.

    `torn_tail` says how many bytes or records at the end were never completed (a power cut), which is not tampering.
    """

    valid: bool
    count: int
    head_hash: str
    first_bad: int | None = None
    problem: str = ""
    torn_tail: int = 0


class Verify(Request[Verdict], frozen=True):
    pass


class Head(Message, frozen=True):
    chain_id: str
    sequence: int
    hash: str
    count: int


class GetHead(Request[Head], frozen=True):
    pass


ChainMessage = Append | AppendAll | Tail | Show | Verify | GetHead


# chain/store: the port that holds the records


class StoredHead(Message, frozen=True):
    """`records` is 0 for a chain that has no genesis yet.

    `torn_tail`: bytes at the end of the log that a crash left incomplete and that were dropped on opening; nothing of
    them had been answered.
    """

    records: int
    last: ChainRecord | None
    torn_tail: int = 0


class OpenChain(Request[StoredHead], frozen=True):
    """Open (or create) the log of `chain_id`; refused `damaged` when the file is another chain's or unreadable."""

    chain_id: str


class Written(Message, frozen=True):
    pass


class WriteRecords(Request[Written], frozen=True):
    """One transaction with full synchronisation; refused `disk_full`: then nothing of it is written."""

    records: list[ChainRecord]


class ReadRecords(Request[Records], frozen=True):
    """Up to `limit` records with a sequence above `after`, in order; fewer when their payloads are large.

    Records before an unreadable one are answered; when the first is unreadable the port refuses `damaged`.
    """

    after: int
    limit: int


class FindRecord(Request[Records], frozen=True):
    """By exact sequence or by hash prefix (at most 10)."""

    sequence: int | None = None
    hash_prefix: str | None = None


class RecordKey(Record, frozen=True):
    source: str
    idempotency_key: str


class FindKeys(Request[Records], frozen=True):
    """The records that hold one of these keys, in any order; a key without a record is left out."""

    keys: list[RecordKey]


ChainStoreMessage = OpenChain | WriteRecords | ReadRecords | FindRecord | FindKeys
