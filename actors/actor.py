"""What an actor is (design 3).

An actor holds its state and acts only through its context. `receive` handles one message at a time; a procedure of
several steps is an `async def` that the kernel's own trampoline drives:

    def receive(self, message: PlaneMessage, ctx: Context) -> Procedure | None:
        match message:
            case PlaceOrder():
                return self.place(message, ctx)        # a procedure: the kernel runs it to its first await at once
            case GetTable():
                ctx.reply(Table(rows=self.rows))       # a plain answer
        return None

    async def place(self, order: PlaceOrder, ctx: Context) -> None:
        verdict = await ctx.ask(self.gate, CheckPlacement(...), timeout_s=5)
        ...

Between two awaits other messages are handled: what was read before is checked again after. Nothing but `Ask`,
`AllOf`, `Sleep` and `Exclusive` can be awaited, so a procedure is pure: the world decides what comes back.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Generator, Hashable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from messages.base import Address, Message, NodeName, Request
from messages.system import AskFailure

if TYPE_CHECKING:
    from random import Random

M = TypeVar("M")
A = TypeVar("A")

Procedure = Coroutine[Any, Any, None]


class AskFailed(Exception):
    """An ask that brought no answer. `code` and `reason` are the refuser's when `failure` is `refused`."""

    def __init__(self, failure: AskFailure, to: Address, code: str, reason: str) -> None:
        super().__init__(f"{to}: {failure.value}" + (f" ({code}: {reason})" if code else f" ({reason})"))
        self.failure = failure
        self.to = to
        self.code = code
        self.reason = reason

    @property
    def nothing_happened(self) -> bool:
        """True when the other side certainly did not act; False when a mutation is indeterminate."""
        return self.failure not in (AskFailure.TIMEOUT, AskFailure.DIED)


class Effect(Generic[A]):
    """Something a procedure can await; the kernel sees the object itself and sends the result back."""

    __slots__ = ()

    def __await__(self) -> Generator[Effect[A], A, A]:
        return (yield self)


class Ask(Effect[A]):
    """Ask `to` and wait for the answer. Awaiting raises `AskFailed`."""

    __slots__ = ("request", "timeout_s", "to")

    def __init__(self, to: Address, request: Request[A], timeout_s: float) -> None:
        self.to = to
        self.request = request
        self.timeout_s = timeout_s


class AllOf(Effect["list[A | AskFailed]"], Generic[A]):
    """Several asks at once; the results come in the order of the asks, failures as values, never raised."""

    __slots__ = ("asks",)

    def __init__(self, asks: Sequence[Ask[A]]) -> None:
        self.asks = asks


class Sleep(Effect[None]):
    __slots__ = ("seconds",)

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds


class Acquire(Effect[None]):
    """What entering `Exclusive` awaits."""

    __slots__ = ("key", "timeout_s")

    def __init__(self, key: Hashable, timeout_s: float) -> None:
        self.key = key
        self.timeout_s = timeout_s


class Exclusive:
    """`async with ctx.exclusive(key, timeout_s=...)`: procedures on one key of one actor run one after the other.

    First come, first served; not re-entrant. Raises `AskFailed` (`refused`, code `busy`) when the turn does not
    come in time.
    """

    __slots__ = ("_acquire", "_release")

    def __init__(self, acquire: Acquire, release: Callable[[Hashable], None]) -> None:
        self._acquire = acquire
        self._release = release

    async def __aenter__(self) -> None:
        await self._acquire

    async def __aexit__(self, *_: object) -> None:
        self._release(self._acquire.key)


class Context(ABC):
    """All that an actor can do. One context belongs to one message: `reply` answers that message.

    A context may be kept and answered later, from another message or procedure of the same actor (group commit
    does). Outside a request `reply` and `refuse` do nothing.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def address(self) -> Address:
        """The actor's own address."""

    @property
    @abstractmethod
    def sender(self) -> Address | None:
        """Who said the message; the process part is bound to the sender's key by the post office."""

    @abstractmethod
    def tell(self, to: Address, message: Message) -> bool:
        """Hand `message` over. False when it certainly was not (counted as a dead letter)."""

    @abstractmethod
    def reply(self, answer: Message) -> None: ...

    @abstractmethod
    def refuse(self, code: str, reason: str) -> None:
        """Answer with `AskFailed(refused, code, reason)`: nothing was done."""

    @abstractmethod
    def after(self, delay_s: float, message: Message) -> int:
        """Tell oneself `message` after `delay_s` seconds; returns a timer for `cancel`."""

    @abstractmethod
    def cancel(self, timer: int) -> None: ...

    @abstractmethod
    def now(self) -> float:
        """Monotonic seconds; stands still within a step."""

    @abstractmethod
    def wall(self) -> int:
        """Unix milliseconds; stands still within a step."""

    @property
    @abstractmethod
    def random(self) -> Random:
        """The actor's own stream; unpredictable in the live world, seeded by the address in the simulated one."""

    @abstractmethod
    def run(self, procedure: Procedure) -> None:
        """Run one more procedure for the same message, from the next turn of the actor on."""

    @abstractmethod
    def spawn(self, address: Address, factory: Callable[[], Actor[Any]]) -> None:
        """Start an actor of this process and watch it: its end is told as `Down`. Raises `ValueError` if it exists."""

    @abstractmethod
    def stop(self, address: Address) -> None:
        """Ask an actor of this process to stop after the message in hand; `Down` follows."""

    @abstractmethod
    def watch(self, address: Address) -> None:
        """Be told `Down` when that actor of this process ends (at once if it does not exist)."""

    @abstractmethod
    def watch_peer(self, process: NodeName) -> None:
        """Be told `PeerUp` and `PeerDown` of the link to that process (`PeerUp` at once if it is up)."""

    @abstractmethod
    def log(self, level: str, text: str, **fields: object) -> None:
        """`level`: debug, info, warning, error. Fields are plain data; never a key."""

    @abstractmethod
    def release(self, key: Hashable) -> None:
        """Used by `Exclusive`; not called by actors."""

    def ask(self, to: Address, request: Request[A], timeout_s: float) -> Ask[A]:
        """A question to await. A timeout does not cancel the other side."""
        return Ask(to, request, timeout_s)

    def all_of(self, asks: Sequence[Ask[A]]) -> AllOf[A]:
        return AllOf(asks)

    def sleep(self, seconds: float) -> Sleep:
        return Sleep(seconds)

    def exclusive(self, key: Hashable, timeout_s: float) -> Exclusive:
        return Exclusive(Acquire(key, timeout_s), self.release)


class Actor(Generic[M]):
    """Base of every actor. `mailbox` is the union of the messages that `receive` takes.

    An exception out of `receive` or a procedure, other than `AskFailed`, crashes the actor: its procedures are
    closed, whoever waits for it is answered `died`, and its supervisor decides. An `AskFailed` that a procedure
    lets through answers the asker with that failure and ends the procedure.
    """

    mailbox: ClassVar[Any]

    def started(self, ctx: Context) -> Procedure | None:  # noqa: ARG002
        """Runs before the first message; while a procedure returned here runs, ordinary messages wait.

        Load state here through ports of the same process; do not wait for other processes: readiness means that
        the own mailbox answers, not that links are up.
        """
        return None

    def receive(self, message: M, ctx: Context) -> Procedure | None:
        raise NotImplementedError

    def stopped(self, ctx: Context) -> None:
        """Runs after the last message of an ordered stop; its tells are delivered, asks cannot be awaited."""

    def state(self) -> object:
        """The state as plain data (what MessagePack carries), for `sennit actor state`. No secrets."""
        return {}
