"""What both worlds share (design 3 and 4): who exists, who watches whom, where an envelope goes, what was dropped."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from threading import RLock
from typing import TYPE_CHECKING, Any

from actors.actor import Actor
from messages.base import Address, Message, NodeName
from messages.system import (
    ActorList,
    ActorRow,
    AskFailure,
    Down,
    ExitKind,
    KernelRefusal,
    PeerDown,
    PeerUp,
    ProcessReport,
)
from runtime.kernel.cell import Cell
from runtime.kernel.envelope import Envelope, Failure, Kind, check_address, process_of, tag_of

if TYPE_CHECKING:
    from random import Random


class World(ABC):
    """Holds the cells. Subclasses give time, threads and the way to other processes.

    `operators` are the processes that may suspend, resume and trace actors here, besides the own one.
    """

    operators: frozenset[str] = frozenset({"operator", "root"})

    def __init__(self) -> None:
        self.cells: dict[Address, Cell] = {}
        self.dead_letters: Counter[str] = Counter()
        self._watchers: dict[Address, list[Address]] = {}
        self._peer_watchers: dict[NodeName, list[Address]] = {}
        self._peers_up: dict[NodeName, int] = {}
        self._lives = 0
        self._lock = RLock()
        """Over who exists, who watches and who is up: cells of many threads and the offices change them."""

    # time and place, given by each world

    @abstractmethod
    def now(self) -> float:
        """Monotonic seconds."""

    @abstractmethod
    def wall(self) -> int:
        """Unix milliseconds."""

    @abstractmethod
    def wake_at(self, cell: Cell, at: float) -> None:
        """Call `cell.timer_due()` when `now()` reaches `at`."""

    @abstractmethod
    def random_for(self, address: Address) -> Random: ...

    @abstractmethod
    def log(self, level: str, address: Address, text: str, fields: dict[str, Any]) -> None: ...

    @abstractmethod
    def launch(self, cell: Cell) -> None:
        """Give the cell its thread of control; calls `cell.start()` from there."""

    @abstractmethod
    def is_local(self, process: str) -> bool:
        """Whether the actors of `process` live in this world's `cells`."""

    @abstractmethod
    def post_away(self, envelope: Envelope) -> bool:
        """Hand over to another process; False (and for an ask a failure that follows) when it did not leave."""

    # actors

    def spawn(self, address: Address, factory: Callable[[], Actor[Any]], watcher: Address | None = None) -> Cell:
        """`watcher` watches from before the start: an actor may end before a `watch` that follows its spawn."""
        check_address(address)
        with self._lock:
            if address in self.cells:
                raise ValueError(f"{address} exists already")
            cell = self.cells[address] = Cell(self, address, factory)
            if watcher is not None:
                self.watch(watcher, address)
        try:
            self.launch(cell)
        except BaseException:  # no thread to be had, and nobody to end it
            with self._lock:
                del self.cells[address]
                self._watchers.pop(address, None)
            raise
        return cell

    def first_number(self) -> int:
        """Where a cell begins to count its asks: no answer to an earlier life of the actor fits one of this life."""
        with self._lock:
            self._lives += 1
            return self._lives << 32

    def stop(self, address: Address) -> None:
        cell = self.cells.get(address)
        if cell is not None:
            cell.request_stop()

    def ended(self, cell: Cell, kind: ExitKind, reason: str) -> None:
        down = Down(address=cell.address, kind=kind, reason=reason)
        with self._lock:
            if self.cells.get(cell.address) is cell:
                del self.cells[cell.address]
            for watchers in self._peer_watchers.values():
                if cell.address in watchers:
                    watchers.remove(cell.address)
            for watcher in self._watchers.pop(cell.address, []):
                self._notify(watcher, down)

    def watch(self, watcher: Address, address: Address) -> None:
        with self._lock:
            if address in self.cells:
                watchers = self._watchers.setdefault(address, [])
                if watcher not in watchers:
                    watchers.append(watcher)
            else:
                self._notify(watcher, Down(address=address, kind=ExitKind.NORMAL, reason="no such actor"))

    # links

    def watch_peer(self, watcher: Address, process: NodeName) -> None:
        with self._lock:
            watchers = self._peer_watchers.setdefault(process, [])
            if watcher not in watchers:
                watchers.append(watcher)
            if process in self._peers_up:
                self._notify(watcher, PeerUp(process=process, incarnation=self._peers_up[process]))

    def peer_up(self, process: NodeName, incarnation: int) -> None:
        with self._lock:
            self._peers_up[process] = incarnation
            self._notify_peers(process, PeerUp(process=process, incarnation=incarnation))

    def peer_down(self, process: NodeName, incarnation: int, reason: str) -> None:
        with self._lock:
            if self._peers_up.get(process) == incarnation:
                del self._peers_up[process]
            self._notify_peers(process, PeerDown(process=process, incarnation=incarnation, reason=reason))

    def _notify_peers(self, process: NodeName, message: Message) -> None:
        for watcher in list(self._peer_watchers.get(process, [])):
            self._notify(watcher, message)

    def _notify(self, to: Address, message: Message) -> None:
        self.post(Envelope(Kind.TELL, to, Address(f"{process_of(to)}/kernel"), message, tag=tag_of(type(message))))

    # messages

    def post(self, envelope: Envelope) -> bool:
        """Route one envelope. What cannot be delivered is a dead letter, and for an ask a failure that follows."""
        if envelope.route is not None or not self.is_local(process_of(envelope.to)):
            return self.post_away(envelope)
        return self.deliver(envelope)

    def deliver(self, envelope: Envelope) -> bool:
        """Into a mailbox of this world. Called by any thread; never blocks."""
        cell = self.cells.get(envelope.to)
        code = KernelRefusal.NO_SUCH_ACTOR if cell is None else cell.deliver(envelope)
        if code is None:
            return True
        self.dead_letter(envelope, code.value)
        reason = {
            KernelRefusal.NO_SUCH_ACTOR: f"no actor {envelope.to} here now",
            KernelRefusal.OVERLOADED: f"the mailbox of {envelope.to} is full",
            KernelRefusal.NOT_IN_MAILBOX: f"{envelope.tag} is said by the own kernel only",
        }[code]
        self.answer_failure(envelope, AskFailure.REFUSED, code.value, reason)
        return False

    def answer_failure(self, envelope: Envelope, failure: AskFailure, code: str, reason: str) -> None:
        """Tell the asker of an ask that did not reach its actor."""
        if envelope.kind is Kind.ASK:
            self.post(
                Envelope(
                    Kind.FAILURE,
                    envelope.sender,
                    envelope.to,
                    correlation=envelope.correlation,
                    failure=Failure(failure, code, reason),
                    route=envelope.route,
                )
            )

    def dead_letter(self, envelope: Envelope, why: str) -> None:
        """Count and name what reached nobody (promise 7)."""
        with self._lock:
            self.dead_letters[why] += 1
        what = {"to": envelope.to, "sender": envelope.sender, "message": envelope.tag, "why": why}
        self.log("debug", envelope.to, "dead letter", what)

    # sight

    def actor_list(self) -> ActorList:
        rows = [
            ActorRow(
                address=cell.address,
                kind=type(cell.actor).__name__ if cell.actor is not None else "starting",
                mailbox=len(cell.mailbox),
                received=cell.received,
                suspended=cell.mailbox.suspended,
            )
            for cell in list(self.cells.values())
        ]
        return ActorList(actors=sorted(rows, key=lambda row: row.address))

    @abstractmethod
    def process_report(self) -> ProcessReport: ...
