"""The one writer of the audit chain (design 9, G 3). `append` answers when the record is durable, never before.

Group commit: when no batch is in flight, one is cut out of everything that waits, and only then are sequence and
hashes given. One batch is with the store at a time; a batch that the store does not take is refused whole, the head
stays, and the next append tries again, so a full disk is survived without a restart. What the store does not answer
is unknown: then this actor crashes rather than guess, and starts again from what the store holds.

A log that is damaged is closed: nothing is appended to it and the reason is given to whoever tries.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from actors.actor import Actor, AskFailed, Context, Procedure
from actors.chain.batch import MAX_BATCH_BYTES, MAX_BATCH_RECORDS, Waiting, key_of, link, objection
from actors.chain.record import Verifier, check_chain_id, genesis, record_hash
from messages.base import Address
from messages.chain import (
    Append,
    AppendAll,
    Appended,
    AppendedAll,
    ChainMessage,
    ChainRecord,
    ChainRefusal,
    Entry,
    FindKeys,
    FindRecord,
    GetHead,
    Head,
    OpenChain,
    ReadRecords,
    RecordKey,
    Records,
    Show,
    Tail,
    Verify,
    WriteRecords,
)
from messages.ports import PortRefusal
from messages.system import AskFailure

MAX_WAITING_RECORDS = 8_192
MAX_WAITING_BYTES = 32 * 1024 * 1024
READ_PAGE = 1_000
MAX_ANSWER_BYTES = 8 * 1024 * 1024

OPEN_TIMEOUT_S = 60.0
WRITE_TIMEOUT_S = 30.0
READ_TIMEOUT_S = 30.0

STORE = Address("chain/store")

_HEX = frozenset("0123456789abcdef")


class ChainLost(Exception):
    """What the store did is not known, or it did what must not happen: the actor ends and starts from the store."""


class Chain(Actor[ChainMessage]):
    """`chain_id` names the chain for ever (it is in its genesis); `store` is the port that holds the log."""

    mailbox = ChainMessage

    def __init__(self, chain_id: str, store: Address = STORE) -> None:
        self._chain_id = check_chain_id(chain_id)
        self._store = store
        self._head: ChainRecord | None = None
        self._opened = False
        self._closed = ""
        self._torn_tail = 0
        self._queue: deque[Waiting] = deque()
        self._queued_records = self._queued_bytes = 0
        self._in_flight = False
        self._batches = self._failed_batches = self._repeated = 0

    def started(self, ctx: Context) -> Procedure:
        return self._open(ctx)

    def receive(self, message: ChainMessage, ctx: Context) -> Procedure | None:
        match message:
            case Append():
                self._append([message.entry], ctx, alone=True)
            case AppendAll():
                self._append(message.entries, ctx, alone=False)
            case Tail():
                return self._tail(message, ctx)
            case Show():
                return self._show(message, ctx)
            case Verify():
                return self._verify(ctx)
            case GetHead():
                self._answer_head(ctx)
        return None

    def state(self) -> object:
        return {
            "chain_id": self._chain_id,
            "sequence": -1 if self._head is None else self._head.sequence,
            "head": "" if self._head is None else self._head.hash,
            "closed": self._closed,
            "waiting": self._queued_records,
            "batches": self._batches,
            "failed_batches": self._failed_batches,
            "repeated": self._repeated,
            "torn_tail": self._torn_tail,
        }

    # opening

    async def _open(self, ctx: Context) -> None:
        try:
            stored = await ctx.ask(self._store, OpenChain(chain_id=self._chain_id), timeout_s=OPEN_TIMEOUT_S)
        except AskFailed as failure:
            if _is_refused(failure, PortRefusal.DISK_FULL):
                ctx.log("warning", "the disk is full: no log yet", reason=failure.reason)
            elif _is_refused(failure, PortRefusal.DAMAGED):
                self._close(failure.reason, ctx)
            else:
                raise ChainLost(f"the log cannot be opened: {failure}") from failure
            return
        self._opened = True
        self._torn_tail = stored.torn_tail
        if stored.torn_tail:
            ctx.log("warning", "dropped the torn end of the log; nothing of it was answered", bytes=stored.torn_tail)
        self._head = stored.last
        if stored.last is None:
            await self._begin(ctx)
            return
        if stored.last.sequence + 1 != stored.records or not self._is_sound(stored.last):
            self._close(
                f"its last record ({stored.last.sequence}) is not as it was written; `sennit chain verify`", ctx
            )

    async def _begin(self, ctx: Context) -> None:
        """Write the genesis; on a full disk it is written with the first batch instead."""
        await self._write([genesis(self._chain_id, ctx.wall())], ctx)

    def _closed_refusal(self) -> tuple[ChainRefusal, str]:
        return ChainRefusal.CLOSED, f"the chain takes no records: {self._closed}"

    def _close(self, why: str, ctx: Context) -> None:
        self._closed = why
        ctx.log("error", "the chain is closed", reason=why)

    def _is_sound(self, record: ChainRecord) -> bool:
        try:
            return record.chain_id == self._chain_id and record.hash == record_hash(record)
        except ValueError:
            return False

    # appending

    def _append(self, entries: Sequence[Entry], ctx: Context, *, alone: bool) -> None:
        size = sum(len(entry.payload) for entry in entries)
        refusal = self._objection(entries, size)
        if refusal is not None:
            ctx.refuse(*refusal)
            return
        if not entries:
            ctx.reply(AppendedAll(results=[]))
            return
        self._queue.append(Waiting(ctx, entries, size, alone))
        self._queued_records += len(entries)
        self._queued_bytes += size
        self._next_batch()

    def _next_batch(self) -> None:
        """Commit what waits, unless a batch is in flight: then it waits for the next one."""
        if self._queue and not self._in_flight:
            self._in_flight = True
            batch = self._cut()
            batch[0].ctx.run(self._commit_batch(batch))

    async def _commit_batch(self, batch: list[Waiting]) -> None:
        await self._commit(batch, batch[0].ctx)
        self._in_flight = False
        self._next_batch()

    def _objection(self, entries: Sequence[Entry], size: int) -> tuple[ChainRefusal, str] | None:
        if self._closed:
            return self._closed_refusal()
        if self._queued_records + len(entries) > MAX_WAITING_RECORDS or self._queued_bytes + size > MAX_WAITING_BYTES:
            return ChainRefusal.OVERLOADED, f"{self._queued_records} records wait for the disk; try again"
        return objection(entries, size)

    def _cut(self) -> list[Waiting]:
        """The next batch, in order of arrival; at least one append, however large."""
        batch: list[Waiting] = []
        records = size = 0
        while self._queue:
            records += len(self._queue[0].entries)
            size += self._queue[0].size
            if batch and (records > MAX_BATCH_RECORDS or size > MAX_BATCH_BYTES):
                break
            batch.append(self._queue.popleft())
        return batch

    def _dequeued(self, waiting: Waiting) -> None:
        self._queued_records -= len(waiting.entries)
        self._queued_bytes -= waiting.size

    async def _commit(self, batch: list[Waiting], ctx: Context) -> None:
        known: dict[RecordKey, ChainRecord] = {}
        if not self._opened and not self._closed:
            await self._open(ctx)
        if self._opened and not self._closed:
            try:
                known = await self._known(batch, ctx)
            except AskFailed as failure:
                self._store_failed(failure, ctx)
        if self._closed or not self._opened:
            full = (ChainRefusal.DISK_FULL, "the disk is full: there is no log yet; free some space and try again")
            self._refuse(batch, self._closed_refusal() if self._closed else full)
            return
        records: list[ChainRecord] = []
        last = self._head
        if last is None:
            last = genesis(self._chain_id, ctx.wall())
            records.append(last)
        answers: list[tuple[Waiting, list[Appended]]] = []
        for waiting in batch:
            linked = link(waiting.entries, last, known, ctx.wall())
            if linked is None:
                self._refuse([waiting], (ChainRefusal.KEY_REUSED, "the idempotency key belongs to another record"))
                continue
            fresh, results = linked
            records += fresh
            last = records[-1] if records else last
            answers.append((waiting, results))
        refusal = await self._write(records, ctx)
        if refusal is not None:
            self._refuse([waiting for waiting, _ in answers], refusal)
            return
        for waiting, results in answers:
            self._dequeued(waiting)
            self._repeated += sum(result.repeated for result in results)
            waiting.reply(results)

    async def _known(self, batch: list[Waiting], ctx: Context) -> dict[RecordKey, ChainRecord]:
        """The records that already hold one of the batch's keys."""
        keys = {key_of(entry): None for waiting in batch for entry in waiting.entries if entry.idempotency_key}
        known: dict[RecordKey, ChainRecord] = {}
        while keys:
            found = await ctx.ask(self._store, FindKeys(keys=list(keys)), timeout_s=READ_TIMEOUT_S)
            known.update((key_of(record), record) for record in found.records)
            if not found.records:  # what is large comes in parts
                break
            keys = {key: None for key in keys if key not in known}
        return known

    async def _write(self, records: list[ChainRecord], ctx: Context) -> tuple[ChainRefusal, str] | None:
        """Make `records` durable and the last one the head; what to refuse with when the store did not take them."""
        if not records:
            return None
        try:
            await ctx.ask(self._store, WriteRecords(records=records), timeout_s=WRITE_TIMEOUT_S)
        except AskFailed as failure:
            self._failed_batches += 1
            if _is_refused(failure, PortRefusal.DISK_FULL):
                ctx.log("warning", "the disk is full: nothing was chained", records=len(records), reason=failure.reason)
                return ChainRefusal.DISK_FULL, f"{failure.reason}; free some space, appending then works by itself"
            self._store_failed(failure, ctx)
            return self._closed_refusal()
        self._batches += 1
        self._head = records[-1]
        return None

    def _store_failed(self, failure: AskFailed, ctx: Context) -> None:
        """Damage closes the chain; anything else ends it, for what became of the batch is not known."""
        if not _is_refused(failure, PortRefusal.DAMAGED):
            raise ChainLost(f"the store failed: {failure}") from failure
        self._close(failure.reason, ctx)

    def _refuse(self, batch: list[Waiting], refusal: tuple[ChainRefusal, str]) -> None:
        for waiting in batch:
            self._dequeued(waiting)
            waiting.ctx.refuse(*refusal)

    # reading

    def _answer_head(self, ctx: Context) -> None:
        if self._closed:
            ctx.refuse(ChainRefusal.CLOSED, f"the chain is closed: {self._closed}")
        elif self._head is None:
            ctx.refuse(ChainRefusal.DISK_FULL, "the chain has no genesis yet: the disk was full")
        else:
            head = self._head
            ctx.reply(Head(chain_id=self._chain_id, sequence=head.sequence, hash=head.hash, count=head.sequence + 1))

    async def _tail(self, tail: Tail, ctx: Context) -> None:
        if not 1 <= tail.count <= READ_PAGE:
            ctx.refuse(ChainRefusal.INVALID, f"count must be 1..{READ_PAGE}, not {tail.count}")
            return
        if tail.after is not None:
            ctx.reply(await self._page(tail.after, tail.count, ctx))
            return
        head = -1 if self._head is None else self._head.sequence
        after = max(head - tail.count, -1)
        newest: deque[ChainRecord] = deque()
        size = 0
        while after < head:
            page = await self._page(after, head - after, ctx)
            if not page.records:
                break
            after = page.records[-1].sequence
            newest.extend(page.records)
            size += sum(len(record.payload) for record in page.records)
            while size > MAX_ANSWER_BYTES and len(newest) > 1:
                size -= len(newest.popleft().payload)
        ctx.reply(Records(records=list(newest)))

    async def _show(self, show: Show, ctx: Context) -> None:
        digest = show.hash
        if (show.sequence is None) == (digest is None):
            ctx.refuse(ChainRefusal.INVALID, "ask for a sequence or for a hash")
            return
        if digest is not None and (not 8 <= len(digest) <= 64 or not _HEX.issuperset(digest)):
            ctx.refuse(ChainRefusal.INVALID, "a hash is 8 to 64 lower-case hexadecimal digits")
            return
        question = FindRecord(sequence=show.sequence, hash_prefix=digest)
        ctx.reply(await ctx.ask(self._store, question, timeout_s=READ_TIMEOUT_S))

    async def _verify(self, ctx: Context) -> None:
        """Everything up to the head of now, page by page: appends go on meanwhile."""
        known = None if self._head is None else (self._head.sequence, self._head.hash)
        verifier = Verifier(self._chain_id, known)
        while not verifier.failed:
            try:
                page = await self._page(verifier.count - 1, READ_PAGE, ctx)
            except AskFailed as failure:
                if not _is_refused(failure, PortRefusal.DAMAGED):
                    raise
                verifier.fail(verifier.count, failure.reason)
                break
            for record in page.records:
                if not verifier.add(record):
                    break
            if not page.records or known is None or verifier.count > known[0]:
                break
        verifier.finish()
        verdict = verifier.verdict(self._torn_tail)
        if not verdict.valid and not self._closed and known is not None:
            self._close(f"record {verdict.first_bad}: {verdict.problem}", ctx)
        ctx.reply(verdict)

    async def _page(self, after: int, limit: int, ctx: Context) -> Records:
        page: Records = await ctx.ask(self._store, ReadRecords(after=after, limit=limit), timeout_s=READ_TIMEOUT_S)
        return page


def _is_refused(failure: AskFailed, code: PortRefusal) -> bool:
    return failure.failure is AskFailure.REFUSED and failure.code == code
