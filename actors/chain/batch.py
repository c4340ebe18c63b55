"""What goes into a batch of the chain, and how its entries become the next links (design 9)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from actors.actor import Context
from actors.chain.canonical import PAYLOAD_LIMIT_BYTES, CanonicalFault, check_canonical
from actors.chain.record import RESERVED_SOURCES, EntryFault, check_entry, make_record
from messages.chain import Appended, AppendedAll, ChainRecord, ChainRefusal, Entry, RecordKey

MAX_BATCH_RECORDS = 1_024
MAX_BATCH_BYTES = 8 * 1024 * 1024
assert PAYLOAD_LIMIT_BYTES <= MAX_BATCH_BYTES


@dataclass(slots=True, eq=False)
class Waiting:
    """One append that has not been answered."""

    ctx: Context
    entries: Sequence[Entry]
    size: int
    alone: bool

    def reply(self, results: list[Appended]) -> None:
        self.ctx.reply(results[0] if self.alone else AppendedAll(results=results))


def objection(entries: Sequence[Entry], size: int) -> tuple[ChainRefusal, str] | None:
    """Why the entries of one append, `size` bytes of payload together, cannot become records; None when they can."""
    if len(entries) > MAX_BATCH_RECORDS:
        return ChainRefusal.INVALID, f"{len(entries)} entries at once, at most {MAX_BATCH_RECORDS} are taken"
    for entry in entries:
        try:
            check_entry(entry)
            check_canonical(entry.payload)
        except EntryFault as fault:
            return ChainRefusal.INVALID, str(fault)
        except CanonicalFault as fault:
            code = ChainRefusal.PAYLOAD_TOO_LARGE if fault.too_large else ChainRefusal.PAYLOAD_INVALID
            return code, f"payload of {entry.source}/{entry.kind}: {fault}"
        if entry.source in RESERVED_SOURCES:
            return ChainRefusal.RESERVED, f"source {entry.source!r} is the chain's own"
    if size > MAX_BATCH_BYTES:
        return ChainRefusal.PAYLOAD_TOO_LARGE, f"{size} bytes at once, at most {MAX_BATCH_BYTES} are taken"
    return None


def link(
    entries: Sequence[Entry], last: ChainRecord, known: dict[RecordKey, ChainRecord], wall_ms: int
) -> tuple[list[ChainRecord], list[Appended]] | None:
    """The new records of one append behind `last`, and its answers; the new keys are added to `known`.

    An entry whose key is known, with the same kind and payload, is answered with that record. None, and nothing
    changed, when a key belongs to another record.
    """
    fresh: list[ChainRecord] = []
    fresh_keys: dict[RecordKey, ChainRecord] = {}
    results: list[Appended] = []
    for entry in entries:
        key = key_of(entry)
        first = fresh_keys.get(key) or known.get(key) if entry.idempotency_key else None
        if first is not None:
            if (first.kind, first.payload) != (entry.kind, entry.payload):
                return None
            results.append(_appended(first, repeated=True))
            continue
        last = make_record(last.chain_id, last.sequence + 1, last.hash, wall_ms, entry)
        fresh.append(last)
        results.append(_appended(last))
        if entry.idempotency_key:
            fresh_keys[key] = last
    known.update(fresh_keys)
    return fresh, results


def key_of(what: Entry | ChainRecord) -> RecordKey:
    return RecordKey(source=what.source, idempotency_key=what.idempotency_key)


def _appended(record: ChainRecord, *, repeated: bool = False) -> Appended:
    return Appended(sequence=record.sequence, hash=record.hash, time_ms=record.time_ms, repeated=repeated)
