"""The live `memory` port of an edges process: its arenas and rings, behind a mailbox (design 7)."""

from __future__ import annotations

from typing import ClassVar

from actors.actor import Actor, Context
from messages.edge_ports import DropArena, EraseRing, FormatRing, MemoryMessage
from messages.system import Done
from runtime.edges.memory import MemoryFault, NodeMemory


class Memory(Actor[MemoryMessage]):
    """`memory` is the one of this process; driver and workers find the rings in it.

    An erasure that the system refuses ends the process: nobody knows then what lies in the range.
    """

    mailbox: ClassVar = MemoryMessage

    def __init__(self, memory: NodeMemory) -> None:
        self._memory = memory

    def receive(self, message: MemoryMessage, ctx: Context) -> None:
        try:
            match message:
                case FormatRing(ring=ring, size_bytes=size_bytes):
                    self._memory.format_ring(ring, size_bytes)
                case EraseRing(ring_id=ring_id):
                    self._memory.erase_ring(ring_id)
                case DropArena(arena=arena):
                    self._memory.drop_arena(arena)
        except MemoryFault as fault:
            asked = type(message).__name__
            ctx.log("error", "the memory refused", asked=asked, code=fault.code.value, reason=fault.reason)
            ctx.refuse(fault.code, fault.reason)
        else:
            ctx.reply(Done())

    def stopped(self, ctx: Context) -> None:  # noqa: ARG002
        self._memory.close()

    def state(self) -> object:
        return self._memory.rows()


__all__ = ["Memory"]
