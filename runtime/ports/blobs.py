"""The live `blobs` port: one process's content store, behind its mailbox."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from actors.actor import Actor, Context
from messages.ports import BlobsMessage
from runtime.packages.blobs import BlobFault, ContentStore


class Blobs(Actor[BlobsMessage]):
    """`directory` is made with mode 0700."""

    mailbox: ClassVar = BlobsMessage

    def __init__(self, directory: Path) -> None:
        self._store = ContentStore(directory)
        self._directory = directory

    def receive(self, message: BlobsMessage, ctx: Context) -> None:
        try:
            ctx.reply(self._store.handle(message))
        except BlobFault as fault:
            ctx.refuse(fault.code, fault.reason)

    def state(self) -> object:
        return {"directory": str(self._directory)}
