"""The simulated chain store: records on a `SimulatedChainDisk`, which outlives the actor as a disk a process."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar

from actors.actor import Actor, Context
from messages.chain import (
    ChainRecord,
    ChainStoreMessage,
    FindKeys,
    FindRecord,
    OpenChain,
    ReadRecords,
    RecordKey,
    Records,
    StoredHead,
    WriteRecords,
    Written,
)
from messages.ports import PortRefusal

PAGE_BYTES = 4 * 1024 * 1024
"""Payload bytes after which an answer ends, with at least one record."""


@dataclass
class SimulatedChainDisk:
    """What the disk holds, and what is wrong with it.

    `full`: writes are refused, reads work. `broken`: the next write or read ends the store, as an I/O error does.
    `damaged`: the reason why the log does not open. `writes` counts transactions.
    """

    chain_id: str = ""
    records: list[ChainRecord] = field(default_factory=list)
    full: bool = False
    broken: bool = False
    damaged: str = ""
    torn_tail: int = 0
    writes: int = 0


class SimulatedChainStore(Actor[ChainStoreMessage]):
    mailbox: ClassVar = ChainStoreMessage

    def __init__(self, disk: SimulatedChainDisk | None = None) -> None:
        self._disk = SimulatedChainDisk() if disk is None else disk

    def receive(self, message: ChainStoreMessage, ctx: Context) -> None:
        disk = self._disk
        if disk.broken:
            raise OSError("the simulated disk is broken")
        if disk.damaged:
            ctx.refuse(PortRefusal.DAMAGED, disk.damaged)
            return
        match message:
            case OpenChain():
                self._open(message, ctx)
            case WriteRecords() if disk.full:
                ctx.refuse(PortRefusal.DISK_FULL, "no room on the simulated disk")
            case WriteRecords():
                expected = len(disk.records)
                if [record.sequence for record in message.records] != list(
                    range(expected, expected + len(message.records))
                ):
                    raise ValueError(f"the log goes on with record {expected}")
                disk.records.extend(message.records)
                disk.writes += 1
                ctx.reply(Written())
            case ReadRecords():
                following = disk.records[max(message.after + 1, 0) :]
                ctx.reply(Records(records=bounded(following[: message.limit])))
            case FindRecord():
                ctx.reply(Records(records=bounded(self._found(message))))
            case FindKeys():
                keys = set(message.keys)
                held = (
                    record
                    for record in disk.records
                    if RecordKey(source=record.source, idempotency_key=record.idempotency_key) in keys
                )
                ctx.reply(Records(records=bounded(held)))

    def state(self) -> object:
        return {"records": len(self._disk.records), "full": self._disk.full}

    def _open(self, message: OpenChain, ctx: Context) -> None:
        disk = self._disk
        if disk.chain_id not in ("", message.chain_id):
            ctx.refuse(PortRefusal.DAMAGED, f"the simulated log is chain {disk.chain_id}, not {message.chain_id}")
            return
        if disk.full and not disk.chain_id:
            ctx.refuse(PortRefusal.DISK_FULL, "no room for a log on the simulated disk")
            return
        disk.chain_id = message.chain_id
        last = disk.records[-1] if disk.records else None
        ctx.reply(StoredHead(records=len(disk.records), last=last, torn_tail=disk.torn_tail))

    def _found(self, question: FindRecord) -> list[ChainRecord]:
        if question.sequence is not None:
            return [record for record in self._disk.records if record.sequence == question.sequence]
        prefix = question.hash_prefix or ""
        return [record for record in self._disk.records if record.hash.startswith(prefix)][:10]


def bounded(records: Iterable[ChainRecord]) -> list[ChainRecord]:
    """As many of `records` as one answer may carry, at least one if there is one."""
    answer: list[ChainRecord] = []
    size = 0
    for record in records:
        size += len(record.payload)
        if answer and size > PAGE_BYTES:
            break
        answer.append(record)
    return answer
