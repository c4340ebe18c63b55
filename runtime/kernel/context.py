"""What an actor sees of its cell while it serves one message (`actors.actor.Context`)."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

from actors.actor import Actor, AskFailed, Context, Procedure
from messages.base import Address, Message, NodeName
from messages.system import AskFailure
from runtime.kernel.envelope import Envelope, Failure, Kind, tag_of
from runtime.kernel.procedures import Running

if TYPE_CHECKING:
    from random import Random

    from runtime.kernel.cell import Cell


class CellContext(Context):
    """What an actor sees of its cell while it serves one message."""

    __slots__ = ("_answered", "_cell", "envelope")

    def __init__(self, cell: Cell, envelope: Envelope | None) -> None:
        self._cell = cell
        self.envelope = envelope
        self._answered = envelope is None or envelope.kind is not Kind.ASK

    @property
    def address(self) -> Address:
        return self._cell.address

    @property
    def sender(self) -> Address | None:
        return None if self.envelope is None else self.envelope.sender

    def is_late(self, now: float) -> bool:
        """Its asker waits no longer."""
        return self.envelope is not None and self.envelope.deadline is not None and self.envelope.deadline < now

    def tell(self, to: Address, message: Message) -> bool:
        cell = self._cell
        if cell.ended:
            return False
        return cell.world.post(Envelope(Kind.TELL, to, cell.address, message, tag=tag_of(type(message))))

    def reply(self, answer: Message) -> None:
        if self._answered or self._cell.ended:
            return
        self._cell.answered += 1
        self._answer(Kind.ANSWER, answer, None)

    def refuse(self, code: str, reason: str) -> None:
        if self._answered or self._cell.ended:
            return
        self._cell.refused += 1
        self._answer(Kind.FAILURE, None, Failure(AskFailure.REFUSED, str(code), reason))

    def fail(self, failed: AskFailed, *, closing: bool = False) -> None:
        """Answer with a failure that came from elsewhere: a let-through `AskFailed`, or the end of this actor."""
        if self._answered or (self._cell.ended and not closing):
            return
        nothing = failed.nothing_happened
        if closing or not nothing:
            failure = Failure(AskFailure.DIED, failed.code, failed.reason if closing else str(failed))
        else:
            code = failed.code or failed.failure.value
            failure = Failure(AskFailure.REFUSED, code, failed.reason if failed.code else str(failed))
        self._answer(Kind.FAILURE, None, failure)

    def _answer(self, kind: Kind, answer: Message | None, failure: Failure | None) -> None:
        self._answered = True
        self._cell.closed(self)
        asked = self.envelope
        assert asked is not None
        self._cell.world.post(
            Envelope(
                kind,
                asked.sender,
                self._cell.address,
                answer,
                tag="" if answer is None else tag_of(type(answer)),
                correlation=asked.correlation,
                failure=failure,
                route=asked.route,
            )
        )

    def after(self, delay_s: float, message: Message) -> int:
        return 0 if self._cell.ended else self._cell.after_message(delay_s, message, self)

    def to_self(self, message: Message) -> Envelope:
        return Envelope(Kind.TELL, self._cell.address, self._cell.address, message, tag=tag_of(type(message)))

    def cancel(self, timer: int) -> None:
        self._cell.timers.cancel(timer)

    def now(self) -> float:
        return self._cell.now

    def wall(self) -> int:
        return self._cell.wall

    @property
    def random(self) -> Random:
        return self._cell.random()

    def run(self, procedure: Procedure) -> None:
        if self._cell.ended:
            procedure.close()
        else:
            self._cell.procedures.run_later(Running(procedure, self))

    def spawn(self, address: Address, factory: Callable[[], Actor[Any]]) -> None:
        if not self._cell.ended:
            self._cell.world.spawn(address, factory, watcher=self._cell.address)

    def stop(self, address: Address) -> None:
        if not self._cell.ended:
            self._cell.world.stop(address)

    def watch(self, address: Address) -> None:
        if not self._cell.ended:
            self._cell.world.watch(self._cell.address, address)

    def watch_peer(self, process: NodeName) -> None:
        if not self._cell.ended:
            self._cell.world.watch_peer(self._cell.address, process)

    def log(self, level: str, text: str, **fields: object) -> None:
        self._cell.world.log(level, self._cell.address, text, fields)

    def release(self, key: Hashable) -> None:
        if not self._cell.ended:
            self._cell.procedures.release(key)
