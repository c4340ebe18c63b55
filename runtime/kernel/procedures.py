"""The procedures of one actor (design 3): the trampoline that drives them, and what each of them waits for.

A procedure is an `async def` that awaits asks, sleeps and exclusive turns and nothing else, so it is driven by hand:
the kernel sees each effect, and sends back what the world says of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from actors.actor import Acquire, AllOf, Ask, AskFailed, Effect, Sleep
from messages.base import Address, answer_type
from messages.system import AskFailure, KernelRefusal
from runtime.kernel.envelope import MAX_WAITING, Envelope, Kind, answer_decoder, tag_of

if TYPE_CHECKING:
    from runtime.kernel.cell import Cell
    from runtime.kernel.context import CellContext

MAX_REASON = 500
"""Most characters of what is wrong with a message: its text repeats names out of the message itself."""


@dataclass(slots=True, eq=False)
class Running:
    """A procedure under way; `context` is the message it serves."""

    coroutine: Coroutine[Any, Any, None]
    context: CellContext
    starting: bool = False


@dataclass(slots=True)
class Gathering:
    """An `AllOf` under way."""

    results: list[Any]
    missing: int


@dataclass(slots=True)
class Waiting:
    """One ask under way, perhaps a part of an `AllOf`."""

    running: Running
    to: Address
    answer: Any
    timer: int
    gathering: Gathering | None = None
    index: int = 0


class Procedures:
    """Those of one cell, in the order they began. Used by the actor's own thread alone."""

    def __init__(self, cell: Cell) -> None:
        self._cell = cell
        self._running: dict[Running, None] = {}
        self._waiting: dict[int, Waiting] = {}
        self._turns: dict[Hashable, deque[tuple[Running, int]]] = {}
        self._ready: deque[Running] = deque()
        self._last = cell.world.first_number()

    def __len__(self) -> int:
        return len(self._running)

    @property
    def asks(self) -> int:
        """How many answers are waited for."""
        return len(self._waiting)

    def go_on(self) -> None:
        """Drive those whose turn has come."""
        while self._ready:
            self._advance(self._ready.popleft())

    def close(self) -> None:
        """End them in order; what they do while closing is discarded."""
        for running in list(self._running):
            try:
                running.coroutine.close()
            except BaseException as error:  # it waited, or raised: the rest is closed all the same
                what = {"exception": error}
                self._cell.world.log("warning", self._cell.address, "a procedure failed while it was closed", what)
        self._running.clear()
        self._ready.clear()
        self._waiting.clear()

    def run(self, running: Running) -> None:
        """Drive it to its first wait at once."""
        self._running[running] = None
        self._advance(running)

    def run_later(self, running: Running) -> None:
        """From the end of this step on."""
        self._running[running] = None
        self._ready.append(running)

    def _advance(self, running: Running, value: Any = None, error: AskFailed | None = None) -> None:
        """Drive the procedure until it waits or ends."""
        coroutine = running.coroutine
        while True:
            try:
                effect: Effect[Any] = coroutine.send(value) if error is None else coroutine.throw(error)
            except StopIteration:
                self._finished(running)
                return
            except AskFailed as failure:
                running.context.fail(failure)
                self._finished(running)
                if running.starting:
                    raise RuntimeError(f"cannot start: {failure}") from failure
                return
            value = error = None
            match effect:
                case Ask():
                    error = self._ask(running, effect, None, 0)
                    if error is None:
                        return
                case AllOf():
                    gathering = Gathering([None] * len(effect.asks), len(effect.asks))
                    for index, ask in enumerate(effect.asks):
                        failed = self._ask(running, ask, gathering, index)
                        if failed is not None:
                            gathering.results[index] = failed
                            gathering.missing -= 1
                    if gathering.missing:
                        return
                    value = gathering.results
                case Sleep():
                    self._after(effect.seconds, lambda: self._advance(running))
                    return
                case Acquire():
                    if not self._acquire(running, effect):
                        return
                case _:
                    raise TypeError(f"a procedure can await asks, sleeps and exclusive turns, not {effect!r}")

    def _finished(self, running: Running) -> None:
        self._running.pop(running, None)
        if running.starting and not self._cell.ended:
            self._cell.has_started()

    def _ask(self, running: Running, ask: Ask[Any], gathering: Gathering | None, index: int) -> AskFailed | None:
        """Send the question; what comes back at once is the failure to."""
        envelope = running.context.envelope
        waiting = (
            *(envelope.waiting if envelope is not None and envelope.kind is Kind.ASK else ()),
            self._cell.address,
        )
        if ask.to in waiting or len(waiting) >= MAX_WAITING:
            if ask.to not in waiting:
                reason = f"{len(waiting)} actors would wait in a row, for {' -> '.join(waiting)}"
            else:
                reason = f"{' -> '.join([*waiting[waiting.index(ask.to) :], ask.to])} would wait for itself"
            return AskFailed(AskFailure.WOULD_DEADLOCK, ask.to, "", reason)
        self._last += 1
        number = self._last
        timer = self._after(ask.timeout_s, lambda: self._timed_out(number))
        answer = answer_type(type(ask.request))
        self._waiting[number] = Waiting(running, ask.to, answer, timer, gathering, index)
        self._cell.world.post(
            Envelope(
                Kind.ASK,
                ask.to,
                self._cell.address,
                ask.request,
                tag=tag_of(type(ask.request)),
                correlation=number,
                deadline=self._cell.now + ask.timeout_s,
                waiting=waiting,
            )
        )
        return None

    def answered(self, envelope: Envelope) -> None:
        """An answer or a failure came."""
        waiting = self._waiting.pop(envelope.correlation, None)
        if waiting is None or waiting.to != envelope.sender:
            if waiting is not None:
                self._waiting[envelope.correlation] = waiting
            self._cell.world.dead_letter(envelope, "late_answer")
            return
        self._cell.timers.cancel(waiting.timer)
        result: Any = envelope.message
        if envelope.kind is Kind.FAILURE:
            assert envelope.failure is not None
            failure = envelope.failure
            result = AskFailed(failure.failure, waiting.to, failure.code, failure.reason)
        elif result is None:
            try:
                result = answer_decoder(waiting.answer).decode(envelope.body)
            except (msgspec.MsgspecError, RecursionError, ValueError) as error:
                reason = f"its answer: {str(error)[:MAX_REASON]}"
                result = AskFailed(AskFailure.DIED, waiting.to, KernelRefusal.MALFORMED.value, reason)
        self._settle(waiting, result)

    def _timed_out(self, number: int) -> None:
        waiting = self._waiting.pop(number, None)
        if waiting is not None:
            self._settle(waiting, AskFailed(AskFailure.TIMEOUT, waiting.to, "", "no answer in time"))

    def _settle(self, waiting: Waiting, result: Any) -> None:
        gathering = waiting.gathering
        if gathering is not None:
            gathering.results[waiting.index] = result
            gathering.missing -= 1
            if gathering.missing == 0:
                self._advance(waiting.running, gathering.results)
        elif isinstance(result, AskFailed):
            self._advance(waiting.running, error=result)
        else:
            self._advance(waiting.running, result)

    def _acquire(self, running: Running, acquire: Acquire) -> bool:
        turns = self._turns.get(acquire.key)
        if turns is None:
            self._turns[acquire.key] = deque()
            return True

        def too_late() -> None:
            turns.remove((running, timer))
            reason = f"another procedure holds {acquire.key!r}"
            busy = AskFailed(AskFailure.REFUSED, self._cell.address, KernelRefusal.BUSY.value, reason)
            self._advance(running, error=busy)

        timer = self._after(acquire.timeout_s, too_late)
        turns.append((running, timer))
        return False

    def release(self, key: Hashable) -> None:
        """The turn on `key` is over; the next in line goes on at the end of this step."""
        turns = self._turns.get(key)
        if turns:
            running, timer = turns.popleft()
            self._cell.timers.cancel(timer)
            self._ready.append(running)
        elif turns is not None:
            del self._turns[key]

    def _after(self, delay_s: float, work: Callable[[], None]) -> int:
        return self._cell.after(delay_s, work)
