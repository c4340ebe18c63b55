"""The live `blobs` port: one process's content store, behind its mailbox."""

from __future__ import annotations

from typing import ClassVar

from actors.actor import Actor, Context
from messages.ports import BlobsMessage
from runtime.packages.blobs import BlobFault, ContentStore


class Blobs(Actor[BlobsMessage]):
    """`store` is this process's one content store."""

    mailbox: ClassVar = BlobsMessage

    def __init__(self, store: ContentStore) -> None:
        self._store = store

    def receive(self, message: BlobsMessage, ctx: Context) -> None:
        try:
            ctx.reply(self._store.handle(message))
        except BlobFault as fault:
            ctx.refuse(fault.code, fault.reason)
