"""The establisher as an actor: events in by message, commands and life-cycle events out by message (design 3 and 7).

The machine itself is `EdgeEstablisher`; this shell adds addresses and nothing else.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from actors.actor import Actor, Context
from actors.edges.establisher import EdgeEstablisher
from messages.base import Address, Message
from messages.edge import EdgeEvent, GetLocalRecord, LocalRecord, NodeId

EstablisherMailbox = EdgeEvent | GetLocalRecord


class EstablisherActor(Actor[EstablisherMailbox]):
    """The edge ends of the node `local_node_id`.

    After each event its commands go to `commands_to`, where arena, worker and driver are reached, and then its
    life-cycle events to `lifecycle_to`, so whoever hears of a fault finds the teardown already ordered (E 5.6). What
    cannot be handed over is a dead letter of the kernel and an error in the log; an edge whose command is lost waits
    in its state. `GetLocalRecord` is answered with `LocalRecord`.
    """

    mailbox: ClassVar[Any] = EstablisherMailbox

    def __init__(self, local_node_id: NodeId, *, commands_to: Address, lifecycle_to: Address) -> None:
        self._local_node_id = local_node_id
        self._establisher = EdgeEstablisher(local_node_id)
        self._commands_to = commands_to
        self._lifecycle_to = lifecycle_to

    def receive(self, message: EstablisherMailbox, ctx: Context) -> None:
        match message:
            case GetLocalRecord():
                ctx.reply(LocalRecord(record=self._establisher.local_record(message.edge_id)))
            case _:
                self._establisher.observe(message)
                for command in self._establisher.drain_commands():
                    _tell(ctx, self._commands_to, command)
                for event in self._establisher.drain_events():
                    _tell(ctx, self._lifecycle_to, event)

    def state(self) -> object:
        """The node and every record, in ascending edge id."""
        records = [msgspec.to_builtins(record) for record in self._establisher.local_records()]
        return {"local_node_id": self._local_node_id, "records": records}


def _tell(ctx: Context, to: Address, message: Message) -> None:
    if not ctx.tell(to, message):
        ctx.log("error", "the establisher's message was not handed over", to=to, message=msgspec.to_builtins(message))
