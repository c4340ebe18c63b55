"""What one actor tells the chain, and how it keeps its word (promise 2, design 8 and 9).

A record that permits an act is appended before the act, and its failure stops it. A record of what has happened is
owed: saved with the actor's state, then paid, again after a restart; its idempotency key makes paying twice write once.
A state is compared with the chain before anything is granted from it: one that was put back from an old copy shows.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any, Protocol

import msgspec

from actors.actor import AskFailed, Context
from actors.chain.canonical import CanonicalFault, encode
from messages.base import Address, Record
from messages.chain import Append, ChainRecord, Entry, Tail

APPEND_ATTEMPTS = 2
TAIL_RECORDS = 1_000


class NotRecorded(Exception):
    """The chain did not take a record, or could not be read."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Owed(Record, frozen=True):
    """A chain record still to be written: kind, canonical payload, idempotency key."""

    key: str
    kind: str
    payload: bytes


class Teller(Protocol):
    """The durable part: `term` is new in each life of the actor; sequence and hash are of its newest record."""

    term: int
    chain_sequence: int
    chain_hash: str
    owed: dict[str, Owed]


class Ledger:
    """The records of one source, told by one incarnation of an actor."""

    def __init__(self, source: str, chain: Address, timeout_s: float) -> None:
        self.source = source
        self._current = False
        self._records = 0
        self._chain = chain
        self._timeout_s = timeout_s

    def is_current(self) -> bool:
        """Whether the state was found to know all that the chain tells."""
        return self._current

    async def append(self, ctx: Context, teller: Teller, kind: str, payload: dict[str, Any]) -> str:
        """Write one record and return its hash when it is durable. Raises `NotRecorded`: then there is no act."""
        try:
            data = encode(msgspec.to_builtins(payload))
        except CanonicalFault as fault:
            raise NotRecorded(f"the record of {kind} cannot be written: {fault}") from None
        return await self._append(ctx, teller, Owed(key=self._next_key(teller), kind=kind, payload=data))

    def owe(self, teller: Teller, kind: str, payload: dict[str, Any], spare: str) -> str:
        """Note a record; saving the state makes the debt durable, `pay` writes it. Returns its key in `owed`.

        `spare`: the member that is left out, its fault told in its place, when the payload has no canonical form.
        """
        plain = msgspec.to_builtins(payload)
        try:
            data = encode(plain)
        except CanonicalFault as fault:  # what a node said has no canonical form; that it happened is told all the same
            data = encode({**plain, spare: f"left out: {fault}"})
        key = self._next_key(teller)
        teller.owed[key] = Owed(key=key, kind=kind, payload=data)
        return key

    async def pay(self, ctx: Context, teller: Teller, durable: Container[str] | None = None) -> int:
        """Write what is owed, oldest first, until the chain takes no more. Returns how many records were written.

        `durable`: the keys of the debts that are saved, when others must wait until they are.
        """
        paid = 0
        for owed in list(teller.owed.values()):
            if durable is not None and owed.key not in durable:
                break
            try:
                await self._append(ctx, teller, owed)
            except NotRecorded as failure:
                ctx.log("warning", "a record is still owed to the chain", kind=owed.kind, reason=failure.reason)
                break
            teller.owed.pop(owed.key, None)
            paid += 1
        return paid

    async def catch_up(self, ctx: Context, teller: Teller, compare: Callable[[ChainRecord], str | None]) -> str | None:
        """Compare the loaded state with what this source has on the chain, once; it `is_current` from then on.

        `compare` is given each record after the newest that the state remembers, and says what it shows the state not
        to know. Returns why the state cannot be trusted, or None. Raises `NotRecorded` when the chain cannot be read.
        """
        newest, remembered = teller.chain_sequence, teller.chain_hash
        after = newest - 1
        while not self.is_current():
            try:
                tail = await ctx.ask(self._chain, Tail(count=TAIL_RECORDS, after=after), self._timeout_s)
            except AskFailed as failure:
                raise NotRecorded(f"the chain cannot be read ({failure})") from None
            if self.is_current():  # another procedure was faster; what follows on the chain may be of this incarnation
                return None
            if after == newest - 1 and not _holds(tail.records, newest, remembered):
                return (
                    f"the chain does not hold record {newest} ({remembered[:16]}) that this controller wrote: it was "
                    "cut, deleted or replaced; stop the cluster and put the chain's files back from a copy "
                    "(docs/operations.md)"
                )
            for record in tail.records:
                if record.source == self.source and record.sequence > newest:
                    problem = compare(record)
                    if problem is not None:
                        return problem
            if not tail.records:
                self._current = True
            else:
                after = tail.records[-1].sequence
        return None

    async def _append(self, ctx: Context, teller: Teller, owed: Owed) -> str:
        entry = Entry(source=self.source, kind=owed.kind, payload=owed.payload, idempotency_key=owed.key)
        for attempt in range(1, APPEND_ATTEMPTS + 1):
            try:
                appended = await ctx.ask(self._chain, Append(entry=entry), self._timeout_s)
            except AskFailed as failure:
                if failure.nothing_happened or attempt == APPEND_ATTEMPTS:
                    reason = f"the chain did not take the record of {owed.kind} ({failure}): no act"
                    raise NotRecorded(reason) from None
            else:
                if appended.sequence > teller.chain_sequence:
                    teller.chain_sequence, teller.chain_hash = appended.sequence, appended.hash
                return appended.hash
        raise AssertionError("the last attempt returns or raises")

    def _next_key(self, teller: Teller) -> str:
        self._records += 1
        return f"{teller.term}.{self._records}"


def _holds(records: list[ChainRecord], sequence: int, remembered: str) -> bool:
    """The newest record that was written is still there, unchanged."""
    return sequence < 0 or bool(records and (records[0].sequence, records[0].hash) == (sequence, remembered))


__all__ = ["Ledger", "NotRecorded", "Owed", "Teller"]
