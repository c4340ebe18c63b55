"""The actors of the ends of one node: started, told, started again after a fault of their own (E 7.1).

Each has a thread, of which a process may run out. Then an end is not opened; one that is open goes on without its
actor, and the beats alone tell of it.
"""

from __future__ import annotations

from collections.abc import Callable

from actors.actor import Context
from actors.edges.edge_actor import EdgeActor, edge_actor_address
from actors.edges.ends import End
from messages.base import U64, Address, Message, NodeName
from messages.edge_end import EdgeActorMessage, FaultNoted

LIVES_AT_MOST = 8
"""How often the actor of one end is started."""


class EndActors:
    """`tell` hands a message over, or counts that it could not; `incarnation` is the edges actor's."""

    def __init__(self, process: NodeName, planner: Address, tell: Callable[[Address, Message, Context], bool]) -> None:
        self.incarnation: U64 = 0
        self._process = process
        self._planner = planner
        self._tell = tell

    def start(self, end: End, ctx: Context) -> str:
        """Start the actor of an end, again after it has ended by a fault of its own. Returns why it was not started."""
        if end.actor_lives >= LIVES_AT_MOST:
            return "it crashes again and again"
        report, again = end.report(), end.actor_lives > 0
        end.actor_lives += 1
        try:
            ctx.spawn(
                edge_actor_address(self._process, end.actor),
                lambda: EdgeActor(
                    report,
                    process=self._process,
                    incarnation=self.incarnation,
                    planner=self._planner,
                    owner=ctx.address,
                    again=again,
                ),
            )
        except RuntimeError as error:  # the system gives no thread
            return str(error)
        return ""

    def tell(self, end: End, message: EdgeActorMessage, ctx: Context) -> None:
        self._tell(edge_actor_address(self._process, end.actor), message, ctx)

    def note_fault(self, end: End, ctx: Context) -> None:
        """Log and tell once why the end faulted, if it did."""
        if end.fault is None or end.fault_told:
            return
        end.fault_told = True
        ctx.log(
            "warning",
            "an edge end faulted",
            edge=end.order.name,
            edge_id=end.order.edge_id,
            run_id=end.order.run_id,
            direction=end.order.direction.value,
            code=end.fault.value,
            why=end.fault_text,
        )
        self.tell(end, FaultNoted(code=end.fault, text=end.fault_text), ctx)
