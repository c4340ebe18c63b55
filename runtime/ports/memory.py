"""The live `memory` port of an edges process: its arenas and rings, behind a mailbox (design 7)."""

from __future__ import annotations

from typing import ClassVar

from actors.actor import Actor, Context
from messages.base import Message
from messages.edge_ports import DropArena, EraseRing, FormatRing, MemoryMessage
from messages.system import Done
from runtime.edges.memory import MemoryFault, NodeMemory

RECLAIM_S = 5.0


class ReclaimDue(Message, frozen=True):
    """The port's own timer."""


LiveMemoryMessage = MemoryMessage | ReclaimDue


class Memory(Actor[LiveMemoryMessage]):
    """`memory` is the one of this process; driver and workers find the rings in it.

    An erasure that the system refuses ends the process: nobody knows then what lies in the range. What workloads put
    where no ring lies is taken away every `reclaim_s` seconds, so that the node's budget is one.
    """

    mailbox: ClassVar = LiveMemoryMessage

    def __init__(self, memory: NodeMemory, *, reclaim_s: float = RECLAIM_S) -> None:
        self._memory = memory
        self._reclaim_s = reclaim_s
        self._reclaims = 0

    def started(self, ctx: Context) -> None:
        ctx.after(self._reclaim_s, ReclaimDue())

    def receive(self, message: LiveMemoryMessage, ctx: Context) -> None:
        if isinstance(message, ReclaimDue):
            self._reclaim(ctx)
            return
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

    def _reclaim(self, ctx: Context) -> None:
        ctx.after(self._reclaim_s, ReclaimDue())
        for arena, size in self._memory.reclaim().items():
            self._reclaims += 1
            if self._reclaims.bit_count() == 1:  # the 1st, 2nd, 4th, 8th ...: it can go on for ever
                text = "a workload takes memory that no ring has"
                ctx.log("warning", text, instance=arena, reclaimed_bytes=size, times=self._reclaims)

    def stopped(self, ctx: Context) -> None:  # noqa: ARG002
        self._memory.close()

    def state(self) -> object:
        return self._memory.rows()


__all__ = ["RECLAIM_S", "LiveMemoryMessage", "Memory"]
