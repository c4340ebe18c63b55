"""The live chain store: the port between the chain actor and its log, and reading a log while no cluster runs."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from actors.actor import Actor, Context
from actors.chain.record import Verifier
from messages.chain import (
    ChainRecord,
    ChainStoreMessage,
    FindKeys,
    FindRecord,
    OpenChain,
    ReadRecords,
    Records,
    StoredHead,
    Verdict,
    WriteRecords,
    Written,
)
from messages.ports import PortRefusal
from runtime.ports.chain_log import ChainLog, ChainLogFault

_PAGE = 1_000


class SqliteChainStore(Actor[ChainStoreMessage]):
    """The log in `directory` (made with mode 0700); blocks its own thread while the disk works.

    A full disk and damage are refusals. Any other error of the disk is let through and ends this actor: after a
    failed sync nobody knows what is on the disk, so its process has to end with it.
    """

    mailbox: ClassVar = ChainStoreMessage

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._log: ChainLog | None = None
        self._fault = ChainLogFault(PortRefusal.INVALID_STATE, f"{directory}: the log was not opened yet")

    def receive(self, message: ChainStoreMessage, ctx: Context) -> None:
        try:
            if isinstance(message, OpenChain):
                self._open(message, ctx)
                return
            log = self._log
            if log is None:
                raise self._fault
            match message:
                case WriteRecords():
                    log.write(message.records)
                    ctx.reply(Written())
                case ReadRecords():
                    ctx.reply(Records(records=log.read(message.after, message.limit)))
                case FindRecord():
                    ctx.reply(Records(records=log.find(message.sequence, message.hash_prefix)))
                case FindKeys():
                    ctx.reply(Records(records=log.find_keys(message.keys)))
        except ChainLogFault as fault:
            ctx.refuse(fault.code, fault.reason)

    def stopped(self, ctx: Context) -> None:  # noqa: ARG002
        if self._log is not None:
            self._log.close()
            self._log = None

    def state(self) -> object:
        log = self._log
        if log is None:
            return {"directory": str(self._directory), "open": False}
        return {
            "directory": str(self._directory),
            "open": True,
            "records": 0 if log.last is None else log.last.sequence + 1,
        }

    def _open(self, message: OpenChain, ctx: Context) -> None:
        if self._log is None or self._log.chain_id != message.chain_id:
            if self._log is not None:
                self._log.close()
                self._log = None
            try:
                self._log = ChainLog(self._directory, message.chain_id)
            except ChainLogFault as fault:
                self._fault = fault
                raise
        last = self._log.last
        ctx.reply(
            StoredHead(records=0 if last is None else last.sequence + 1, last=last, torn_tail=self._log.torn_tail)
        )


def read_chain(directory: Path) -> list[ChainRecord]:
    """Every record of the log in `directory`, oldest first, changing nothing.

    Raises `ChainLogFault`: `not_found`, `invalid_state` while a cluster holds it, `damaged` at what cannot be read.
    """
    log = ChainLog(directory, None)
    try:
        records: list[ChainRecord] = []
        while page := log.read(records[-1].sequence if records else -1, _PAGE):
            records.extend(page)
        return records
    finally:
        log.close()


def verify_file(directory: Path) -> Verdict:
    """Verify the log in `directory`, changing nothing; what cannot be read is a verdict too.

    Raises `ChainLogFault` only when there is nothing to judge: `not_found`, or `invalid_state` while it is in use.
    """
    try:
        log = ChainLog(directory, None)
    except ChainLogFault as fault:
        if fault.code is not PortRefusal.DAMAGED:
            raise
        return Verdict(valid=False, count=0, head_hash="0" * 64, first_bad=0, problem=fault.reason)
    try:
        verifier = Verifier(log.chain_id, log.known)
        try:
            for record in log.stored():
                if not verifier.add_stored(record):
                    break
        except ChainLogFault as fault:
            verifier.fail(verifier.count, fault.reason)
        verifier.finish()
        return verifier.verdict(log.torn_tail)
    finally:
        log.close()
