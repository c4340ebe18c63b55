"""The simulated store: documents in a `SimulatedDisk`, which outlives the actor as a disk outlives a process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from actors.actor import Actor, Context
from messages.ports import Document, LoadDocument, PortRefusal, SaveDocument, StoreMessage
from messages.system import Done


@dataclass
class SimulatedDisk:
    """What is on the disk of one process, and what is wrong with it.

    `full`: writes are refused, reads work. `damaged`: names whose content does not read any more.
    """

    documents: dict[str, bytes] = field(default_factory=dict)
    full: bool = False
    damaged: set[str] = field(default_factory=set)
    saves: int = 0


class SimulatedStore(Actor[StoreMessage]):
    mailbox: ClassVar = StoreMessage

    def __init__(self, disk: SimulatedDisk | None = None) -> None:
        self._disk = SimulatedDisk() if disk is None else disk

    def receive(self, message: StoreMessage, ctx: Context) -> None:
        disk = self._disk
        if message.name in disk.damaged:
            ctx.refuse(PortRefusal.DAMAGED, f"{message.name} is damaged on the simulated disk")
            return
        match message:
            case LoadDocument():
                ctx.reply(Document(data=disk.documents.get(message.name)))
            case SaveDocument() if disk.full:
                ctx.refuse(PortRefusal.DISK_FULL, f"no room for {message.name} on the simulated disk")
            case SaveDocument():
                disk.documents[message.name] = message.data
                disk.saves += 1
                ctx.reply(Done())

    def state(self) -> object:
        return {"names": sorted(self._disk.documents), "full": self._disk.full}
