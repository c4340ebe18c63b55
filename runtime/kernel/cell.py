"""One actor at work: its mailbox, its procedures, its waits (design 3).

The same cell runs in both worlds. A world calls `step` from the one thread that the actor has; everything else may
be called from any thread. Nothing of a cell passes to the actor's next incarnation.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Hashable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from traceback import format_exception_only
from typing import TYPE_CHECKING, Any

import msgspec

from actors.actor import Acquire, Actor, AllOf, Ask, AskFailed, Context, Effect, Procedure, Sleep
from messages.base import Address, Message, NodeName, answer_type
from messages.system import (
    AskFailure,
    AwaitReady,
    Done,
    Down,
    ExitKind,
    GetProcess,
    GetState,
    GetStatistics,
    KernelRefusal,
    ListActors,
    PeerDown,
    PeerUp,
    Ping,
    Resume,
    StateReport,
    Statistics,
    Suspend,
    Trace,
    TraceLine,
    TraceReport,
)
from runtime.kernel.envelope import (
    MAX_WAITING,
    SYSTEM_MAIL,
    SYSTEM_TYPES,
    Envelope,
    Failure,
    Kind,
    answer_decoder,
    mail_of,
    tag_of,
)
from runtime.kernel.mailbox import Mailbox

if TYPE_CHECKING:
    from random import Random

    from runtime.kernel.world import World

NOTICES = frozenset(map(tag_of, (Down, PeerUp, PeerDown)))
"""What only the kernel of the same process says, and never refuses for want of room: nobody would ask again."""

MAX_REASON = 500
"""Most characters of what is wrong with a message: its text repeats names out of the message itself."""

TIMERS_KEPT = 64
"""Cancelled timers beyond this and half of the heap are swept out."""


class Sentinel:
    """What a mailbox may hold besides envelopes."""


STOP = Sentinel()
TIMER = Sentinel()


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


class Cell:
    """`wake` is called (from any thread) when `step` should be called on the actor's own."""

    def __init__(self, world: World, address: Address, factory: Callable[[], Actor[Any]]) -> None:
        self.world = world
        self.address = address
        self.mailbox: Mailbox[Envelope | Sentinel] = Mailbox()
        self.actor: Actor[Any] | None = None
        self.ended = False
        self.wake: Callable[[], None] = lambda: None
        self.now = 0.0
        self._wall: int | None = None
        self._factory = factory
        self._mail = mail_of(None)
        self._procedures: dict[Running, None] = {}
        self._waiting: dict[int, Waiting] = {}
        self._timers: dict[int, Callable[[], None]] = {}
        self._heap: list[tuple[float, int]] = []
        self._wake_at = float("inf")
        self._sweep_at = TIMERS_KEPT
        self._turns: dict[Hashable, deque[tuple[Running, int]]] = {}
        self._ready: deque[Running] = deque()
        self._last = world.first_number()
        self._starting = False
        self._expecting: list[CellContext] = []
        self._unanswered: dict[CellContext, None] = {}
        self._suspended = False
        self._tracing: tuple[list[TraceLine], int, CellContext, int] | None = None
        self._random: Random | None = None
        self.received = self.answered = self.refused = 0
        self.busy_s = 0.0
        self.crashed = False

    # from any thread

    def deliver(self, envelope: Envelope) -> KernelRefusal | None:
        """Put it into the mailbox; a code means that it was not taken. Never blocks."""
        if envelope.kind is Kind.ANSWER or envelope.kind is Kind.FAILURE:
            taken = self.mailbox.put_reserved(envelope)
        elif envelope.tag in SYSTEM_MAIL.types:
            taken = self.mailbox.put_control(envelope)
        elif envelope.tag in NOTICES:
            if envelope.route is not None:  # the kernel of another process speaks of its own links and actors only
                return KernelRefusal.NOT_IN_MAILBOX
            taken = self.mailbox.put(envelope, len(envelope.body), must=True)
        else:
            taken = self.mailbox.put(envelope, len(envelope.body))
        if taken is None:
            return KernelRefusal.NO_SUCH_ACTOR if self.mailbox.closed else KernelRefusal.OVERLOADED
        if taken:
            self.wake()
        return None

    def request_stop(self) -> None:
        self._interrupt(STOP)

    def timer_due(self) -> None:
        """The world's answer to `wake_at`."""
        self._interrupt(TIMER)

    def _interrupt(self, item: Sentinel) -> None:
        mailbox = self.mailbox
        if mailbox.put_control(item, must=True) if item is STOP else mailbox.put_reserved(item):
            self.wake()

    # from the actor's own thread

    def start(self) -> None:
        """Make the actor and run `started`; ordinary messages wait until its procedure is through."""
        self._guard(None)

    def step(self) -> bool:
        """Handle one item; False when there was none."""
        item = self.mailbox.take()
        if item is None or self.ended:
            return False
        self._guard(item)
        return True

    def _start(self) -> None:
        self._starting = True
        self._hold()
        self.actor = self._factory()
        self._mail = mail_of(self.actor.mailbox)
        context = CellContext(self, None)
        procedure = self.actor.started(context)
        if procedure is None:
            self._has_started()
        else:
            self._run(Running(procedure, context, starting=True))

    def _has_started(self) -> None:
        self._starting = False
        self._hold()
        for context in self._expecting:
            context.reply(Done())
        self._expecting.clear()

    def _hold(self) -> None:
        held = self._starting or self._suspended
        if held:
            self.mailbox.suspended = True
        elif self.mailbox.suspended and self.mailbox.resume():
            self.wake()

    def _guard(self, item: Envelope | Sentinel | None) -> None:
        """One step: `now` and `wall` stand still, and whatever is raised ends this actor alone."""
        world = self.world
        self.now = began = world.now()
        self._wall = None
        try:
            if item is None:
                self._start()
            else:
                self._handle(item)
            while self._ready:
                self._advance(self._ready.popleft())
        except BaseException as error:  # pykka would stop every actor of the process on SystemExit
            if self.ended:
                raise
            self.crashed = True
            try:
                world.log("error", self.address, "the actor crashed", {"exception": error})
            finally:
                self.end(ExitKind.CRASHED, "".join(format_exception_only(error)).strip())
        else:
            if self._heap:
                self._schedule()
        self.busy_s += world.now() - began

    @property
    def wall(self) -> int:
        if self._wall is None:
            self._wall = self.world.wall()
        return self._wall

    def _handle(self, item: Envelope | Sentinel) -> None:
        if type(item) is Envelope:
            if item.kind is Kind.TELL or item.kind is Kind.ASK:
                self._receive(item)
            else:
                self._answered(item)
        elif item is TIMER:
            self._wake_at = float("inf")
            self._fire()
        else:
            self.end(ExitKind.SHUTDOWN, "stopped")

    def _receive(self, envelope: Envelope) -> None:
        context = CellContext(self, envelope)
        mail = SYSTEM_MAIL if envelope.tag in SYSTEM_MAIL.types else self._mail
        try:
            message = mail.decode(envelope.tag, envelope.body) if envelope.message is None else envelope.message
            if envelope.tag not in mail.types:
                raise KeyError(envelope.tag)
        except KeyError:
            self._reject(context, envelope, KernelRefusal.NOT_IN_MAILBOX, f"{self.address} takes no {envelope.tag}")
            return
        except (msgspec.MsgspecError, RecursionError, ValueError) as error:
            self._reject(context, envelope, KernelRefusal.MALFORMED, f"{envelope.tag}: {str(error)[:MAX_REASON]}")
            return
        self.received += 1
        if envelope.kind is Kind.ASK:
            self._open(context)
        if type(message) in SYSTEM_TYPES:
            self._system(message, context)
            return
        assert self.actor is not None
        procedure = self.actor.receive(message, context)
        if procedure is not None:
            self._run(Running(procedure, context))
        if self._tracing is not None:
            self._trace(message, context, self.world.now() - self.now)

    def _open(self, context: CellContext) -> None:
        """Remember whom to answer `died`; those whose deadline passed wait no longer."""
        if len(self._unanswered) >= self._sweep_at:
            for old in [old for old in self._unanswered if old.is_late(self.now)]:
                del self._unanswered[old]
            self._sweep_at = max(TIMERS_KEPT, 2 * len(self._unanswered))
        self._unanswered[context] = None

    def closed(self, context: CellContext) -> None:
        """It was answered."""
        self._unanswered.pop(context, None)

    def _reject(self, context: CellContext, envelope: Envelope, code: KernelRefusal, reason: str) -> None:
        context.refuse(code.value, reason)
        self.world.dead_letter(envelope, code.value)

    # procedures

    def _run(self, running: Running) -> None:
        self._procedures[running] = None
        self._advance(running)

    def run_later(self, running: Running) -> None:
        self._procedures[running] = None
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
                    self._timer(effect.seconds, lambda: self._advance(running))
                    return
                case Acquire():
                    if not self._acquire(running, effect):
                        return
                case _:
                    raise TypeError(f"a procedure can await asks, sleeps and exclusive turns, not {effect!r}")

    def _finished(self, running: Running) -> None:
        self._procedures.pop(running, None)
        if running.starting and not self.ended:
            self._has_started()

    def _ask(self, running: Running, ask: Ask[Any], gathering: Gathering | None, index: int) -> AskFailed | None:
        """Send the question; what comes back at once is the failure to."""
        envelope = running.context.envelope
        waiting = (*(envelope.waiting if envelope is not None and envelope.kind is Kind.ASK else ()), self.address)
        if ask.to in waiting or len(waiting) >= MAX_WAITING:
            if ask.to not in waiting:
                reason = f"{len(waiting)} actors would wait in a row, for {' -> '.join(waiting)}"
            else:
                reason = f"{' -> '.join([*waiting[waiting.index(ask.to) :], ask.to])} would wait for itself"
            return AskFailed(AskFailure.WOULD_DEADLOCK, ask.to, "", reason)
        self._last += 1
        number = self._last
        timer = self._timer(ask.timeout_s, lambda: self._timed_out(number))
        answer = answer_type(type(ask.request))
        self._waiting[number] = Waiting(running, ask.to, answer, timer, gathering, index)
        self.world.post(
            Envelope(
                Kind.ASK,
                ask.to,
                self.address,
                ask.request,
                tag=tag_of(type(ask.request)),
                correlation=number,
                deadline=self.now + ask.timeout_s,
                waiting=waiting,
            )
        )
        return None

    def _answered(self, envelope: Envelope) -> None:
        waiting = self._waiting.pop(envelope.correlation, None)
        if waiting is None or waiting.to != envelope.sender:
            if waiting is not None:
                self._waiting[envelope.correlation] = waiting
            self.world.dead_letter(envelope, "late_answer")
            return
        self.cancel(waiting.timer)
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
            busy = AskFailed(AskFailure.REFUSED, self.address, KernelRefusal.BUSY.value, reason)
            self._advance(running, error=busy)

        timer = self._timer(acquire.timeout_s, too_late)
        turns.append((running, timer))
        return False

    def release(self, key: Hashable) -> None:
        turns = self._turns.get(key)
        if turns:
            running, timer = turns.popleft()
            self.cancel(timer)
            self._ready.append(running)
        elif turns is not None:
            del self._turns[key]

    # timers

    def _timer(self, delay_s: float, work: Callable[[], None]) -> int:
        self._last += 1
        self._timers[self._last] = work
        heappush(self._heap, (self.now + max(0.0, delay_s), self._last))
        return self._last

    def after(self, delay_s: float, message: Message, context: CellContext) -> int:
        return self._timer(delay_s, lambda: self._receive(context.to_self(message)))

    def cancel(self, timer: int) -> None:
        self._timers.pop(timer, None)
        if len(self._heap) > TIMERS_KEPT + 2 * len(self._timers):
            self._heap = [entry for entry in self._heap if entry[1] in self._timers]
            heapify(self._heap)

    def _fire(self) -> None:
        while self._heap and self._heap[0][0] <= self.now and not self.ended:
            work = self._timers.pop(heappop(self._heap)[1], None)
            if work is not None:
                work()
                while self._ready:
                    self._advance(self._ready.popleft())

    def _schedule(self) -> None:
        while self._heap and self._heap[0][1] not in self._timers:
            heappop(self._heap)
        if self._heap and self._heap[0][0] < self._wake_at and not self.ended:
            self._wake_at = self._heap[0][0]
            self.world.wake_at(self, self._wake_at)

    # the end

    def end(self, kind: ExitKind, reason: str) -> None:
        """Close everything in order, answer whoever waits, tell the world. Effects while closing are discarded."""
        if self.ended:
            return
        if kind in (ExitKind.NORMAL, ExitKind.SHUTDOWN) and self.actor is not None:
            self.actor.stopped(CellContext(self, None))
        self.ended = True
        died = AskFailed(AskFailure.DIED, self.address, "", reason)
        for running in list(self._procedures):
            try:
                running.coroutine.close()
            except BaseException as error:  # it waited, or raised: the rest is closed all the same
                self.world.log("warning", self.address, "a procedure failed while it was closed", {"exception": error})
        for context in list(self._unanswered):
            context.fail(died, closing=True)
        for item in self.mailbox.close():
            if isinstance(item, Envelope):
                if item.kind is Kind.ASK:
                    CellContext(self, item).fail(died, closing=True)
                self.world.dead_letter(item, "died")
        self._procedures.clear()
        self._ready.clear()
        self._waiting.clear()
        self._timers.clear()
        self._heap.clear()
        self.world.ended(self, kind, reason)

    # sight

    def _system(self, message: Message, context: CellContext) -> None:
        match message:
            case Ping():
                context.reply(Done())
            case AwaitReady():
                if self._starting:
                    self._expecting.append(context)
                else:
                    context.reply(Done())
            case GetState():
                self._report_state(context)
            case GetStatistics():
                context.reply(self.statistics())
            case Suspend():
                self._suspended = True
                self._hold()
                context.reply(Done())
            case Resume():
                self._suspended = False
                self._hold()
                context.reply(Done())
            case Trace(count=count, seconds=seconds):
                if self._tracing is not None or not 1 <= count <= 1000:
                    context.refuse(KernelRefusal.BUSY.value, "one trace at a time, of 1..1000 messages")
                    return
                self._tracing = ([], count, context, self._timer(seconds, self._traced))
            case ListActors():
                context.reply(self.world.actor_list())
            case GetProcess():
                context.reply(self.world.process_report())
            case _:
                raise TypeError(f"not a system message: {message!r}")

    def _report_state(self, context: CellContext) -> None:
        try:
            state = msgspec.to_builtins(self.actor.state() if self.actor else {}, str_keys=True)
        except Exception as error:  # looking at an actor does not end it
            context.refuse(KernelRefusal.MALFORMED.value, f"its state cannot be told: {error!r}")
        else:
            context.reply(StateReport(address=self.address, state=state))

    def statistics(self) -> Statistics:
        return Statistics(
            address=self.address,
            received=self.received,
            answered=self.answered,
            refused=self.refused,
            crashed=self.crashed,
            mailbox=len(self.mailbox),
            mailbox_high=self.mailbox.high,
            procedures=len(self._procedures),
            waiting_asks=len(self._waiting),
            timers=len(self._timers),
            suspended=self._suspended,
            busy_s=self.busy_s,
        )

    def _trace(self, message: Message, context: CellContext, took_s: float) -> None:
        assert self._tracing is not None
        lines, count, *_ = self._tracing
        text = repr(message)[:400]
        lines.append(TraceLine(at_s=self.now, sender=context.sender, message=text, handled_us=round(took_s * 1e6)))
        if len(lines) >= count:
            self._traced()

    def _traced(self) -> None:
        if self._tracing is not None:
            lines, _, context, timer = self._tracing
            self._tracing = None
            self.cancel(timer)
            context.reply(TraceReport(address=self.address, lines=lines))

    def random(self) -> Random:
        if self._random is None:
            self._random = self.world.random_for(self.address)
        return self._random


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

    @property
    def is_request(self) -> bool:
        return not self._answered

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
        return 0 if self._cell.ended else self._cell.after(delay_s, message, self)

    def to_self(self, message: Message) -> Envelope:
        return Envelope(Kind.TELL, self._cell.address, self._cell.address, message, tag=tag_of(type(message)))

    def cancel(self, timer: int) -> None:
        self._cell.cancel(timer)

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
            self._cell.run_later(Running(procedure, self))

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
            self._cell.release(key)
