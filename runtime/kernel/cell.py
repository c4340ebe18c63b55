"""One actor at work: its mailbox, its procedures, its waits (design 3).

The same cell runs in both worlds. A world calls `step` from the one thread that the actor has; everything else may
be called from any thread. Nothing of a cell passes to the actor's next incarnation.
"""

from __future__ import annotations

from collections.abc import Callable
from traceback import format_exception_only
from typing import TYPE_CHECKING, Any

import msgspec

from actors.actor import Actor, AskFailed
from messages.base import Address, Message
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
from runtime.kernel.context import CellContext
from runtime.kernel.envelope import SYSTEM_MAIL, SYSTEM_TYPES, Envelope, Kind, mail_of, process_of, tag_of
from runtime.kernel.mailbox import Mailbox
from runtime.kernel.procedures import MAX_REASON, Procedures, Running
from runtime.kernel.timers import Timers

if TYPE_CHECKING:
    from random import Random

    from runtime.kernel.world import World

NOTICES = frozenset(map(tag_of, (Down, PeerUp, PeerDown)))
"""What only the kernel of the same process says, and never refuses for want of room: nobody would ask again."""

SWEEP_FROM = 64
"""From so many unanswered asks on, those whose deadline passed are forgotten."""


class Sentinel:
    """What a mailbox may hold besides envelopes."""


STOP = Sentinel()
TIMER = Sentinel()


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
        self.procedures = Procedures(self)
        self.timers = Timers()
        self._wake_at = float("inf")
        self._sweep_at = SWEEP_FROM
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
            self.has_started()
        else:
            self.procedures.run(Running(procedure, context, starting=True))

    def has_started(self) -> None:
        """Ordinary messages go on from here."""
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
            self.procedures.go_on()
        except BaseException as error:  # pykka would stop every actor of the process on SystemExit
            if self.ended:
                raise
            self.crashed = True
            try:
                world.log("error", self.address, "the actor crashed", {"exception": error})
            finally:
                self.end(ExitKind.CRASHED, "".join(format_exception_only(error)).strip())
        else:
            if self.timers:
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
                self.procedures.answered(item)
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
            self.procedures.run(Running(procedure, context))
        if self._tracing is not None:
            self._trace(message, context, self.world.now() - self.now)

    def _open(self, context: CellContext) -> None:
        """Remember whom to answer `died`; those whose deadline passed wait no longer."""
        if len(self._unanswered) >= self._sweep_at:
            for old in [old for old in self._unanswered if old.is_late(self.now)]:
                del self._unanswered[old]
            self._sweep_at = max(SWEEP_FROM, 2 * len(self._unanswered))
        self._unanswered[context] = None

    def closed(self, context: CellContext) -> None:
        """It was answered."""
        self._unanswered.pop(context, None)

    def _reject(self, context: CellContext, envelope: Envelope, code: KernelRefusal, reason: str) -> None:
        context.refuse(code.value, reason)
        self.world.dead_letter(envelope, code.value)

    # timers

    def after(self, delay_s: float, work: Callable[[], None]) -> int:
        return self.timers.add(self.now + max(0.0, delay_s), work)

    def after_message(self, delay_s: float, message: Message, context: CellContext) -> int:
        return self.after(delay_s, lambda: self._receive(context.to_self(message)))

    def _fire(self) -> None:
        for work in self.timers.due(self.now):
            work()
            self.procedures.go_on()
            if self.ended:
                return

    def _schedule(self) -> None:
        earliest = self.timers.earliest()
        if earliest is not None and earliest < self._wake_at and not self.ended:
            self._wake_at = earliest
            self.world.wake_at(self, earliest)

    # the end

    def end(self, kind: ExitKind, reason: str) -> None:
        """Close everything in order, answer whoever waits, tell the world. Effects while closing are discarded."""
        if self.ended:
            return
        if kind in (ExitKind.NORMAL, ExitKind.SHUTDOWN) and self.actor is not None:
            self.actor.stopped(CellContext(self, None))
        self.ended = True
        died = AskFailed(AskFailure.DIED, self.address, "", reason)
        self.procedures.close()
        for context in list(self._unanswered):
            context.fail(died, closing=True)
        for item in self.mailbox.close():
            if isinstance(item, Envelope):
                if item.kind is Kind.ASK:
                    CellContext(self, item).fail(died, closing=True)
                self.world.dead_letter(item, "died")
        self.timers.clear()
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
            case Suspend() | Resume() | Trace() if not self._is_operator(context):
                reason = "only the operator, the root and the own process hold or trace an actor"
                context.refuse(KernelRefusal.NOT_ALLOWED.value, reason)
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
                self._tracing = ([], count, context, self.after(seconds, self._traced))
            case ListActors():
                context.reply(self.world.actor_list())
            case GetProcess():
                context.reply(self.world.process_report())
            case _:
                raise TypeError(f"not a system message: {message!r}")

    def _is_operator(self, context: CellContext) -> bool:
        return process_of(context.sender or "") in (*self.world.operators, process_of(self.address))

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
            procedures=len(self.procedures),
            waiting_asks=self.procedures.asks,
            timers=len(self.timers),
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
            self.timers.cancel(timer)
            context.reply(TraceReport(address=self.address, lines=lines))

    def random(self) -> Random:
        if self._random is None:
            self._random = self.world.random_for(self.address)
        return self._random
