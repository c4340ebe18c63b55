"""The live world (design 3): one pykka actor, so one thread and one inbox, for each actor of ours.

pykka's inbox carries wake-ups only; the bounded mailbox with its lanes is the cell's. Between actors there is only
`tell`: pykka's `ask` hangs on call cycles and hides failures from the supervisor.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from heapq import heappop, heappush
from queue import SimpleQueue
from random import Random, SystemRandom
from threading import Condition, Thread
from typing import Any

import pykka

from messages.base import Address, NodeName
from messages.system import AskFailure, ExitKind, ProcessReport
from runtime.kernel.caller import Caller
from runtime.kernel.cell import Cell
from runtime.kernel.envelope import Envelope, Kind, process_of
from runtime.kernel.world import World
from runtime.office.office import PostOffice

Log = Callable[[str, str, str, dict[str, Any]], None]

LONGEST_WAIT_S = 3600.0
"""A timer may lie further ahead than a lock can wait."""

_WAKE = object()
_SYSTEM_RANDOM = SystemRandom()

os.register_at_fork(after_in_child=pykka.ActorRegistry._actor_refs.clear)  # no thread of them crosses a fork


class Shell(pykka.ThreadingActor):
    """Runs one cell on a thread of its own."""

    use_daemon_thread = True

    def __init__(self, cell: Cell) -> None:
        super().__init__()
        self._cell = cell
        cell.wake = self._wake

    def _wake(self) -> None:
        with suppress(pykka.ActorDeadError):  # its mailbox is closed and answers for itself
            self.actor_ref.tell(_WAKE)

    @staticmethod
    def _create_actor_inbox() -> Any:
        """What pykka asks of whoever makes a kind of actor: a queue. This one waits in C."""
        return SimpleQueue()

    def on_start(self) -> None:
        self._cell.start()
        self._run()

    def on_receive(self, message: Any) -> None:  # noqa: ARG002
        self._run()

    def _run(self) -> None:
        while self._cell.step():
            pass
        if self._cell.ended:
            self.stop()


class Clock:
    """One thread that wakes cells when their timers are due."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Cell]] = []
        self._changed = Condition()
        self._count = 0
        self._closed = False
        Thread(target=self._run, name="clock", daemon=True).start()

    def wake_at(self, cell: Cell, at: float) -> None:
        with self._changed:
            self._count += 1
            heappush(self._heap, (at, self._count, cell))
            if self._heap[0][1] == self._count:
                self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _run(self) -> None:
        while True:
            due: list[Cell] = []
            with self._changed:
                if self._closed:
                    return
                now = time.monotonic()
                while self._heap and self._heap[0][0] <= now:
                    due.append(heappop(self._heap)[2])
                if not due:
                    self._changed.wait(min(self._heap[0][0] - now, LONGEST_WAIT_S) if self._heap else None)
            for cell in due:
                cell.timer_due()


class LiveWorld(World):
    """The actors of one process. Offices are given with `attach`; the control office routes what no other does."""

    def __init__(self, process: str, log: Log) -> None:
        super().__init__()
        self.process = NodeName(process)
        self.incarnation = secrets.randbits(63)
        self._lives = secrets.randbits(30)
        self._log = log
        self._clock = Clock()
        self._offices: dict[str, PostOffice] = {}
        self.main = Caller(Address(f"{process}/main"), self.post)
        self.on_end: Callable[[Address, ExitKind, str], object] = lambda *_: None

    # World

    def now(self) -> float:
        return time.monotonic()

    def wall(self) -> int:
        return time.time_ns() // 1_000_000

    def wake_at(self, cell: Cell, at: float) -> None:
        self._clock.wake_at(cell, at)

    def random_for(self, address: Address) -> Random:  # noqa: ARG002
        return _SYSTEM_RANDOM

    def log(self, level: str, address: Address, text: str, fields: dict[str, Any]) -> None:
        self._log(level, address, text, fields)

    def launch(self, cell: Cell) -> None:
        Shell.start(cell)

    def is_local(self, process: str) -> bool:
        return process == self.process

    def post_away(self, envelope: Envelope) -> bool:
        if envelope.route is not None:
            office: PostOffice | None = envelope.route.office
        else:
            office = self._offices.get(plane_of(envelope.to))
        if office is None:
            self.undelivered(envelope, AskFailure.UNREACHABLE, "", f"this process has no way to {envelope.to}")
            return False
        if envelope.kind is Kind.TELL and not office.reaches(process_of(envelope.to)):
            self.dead_letter(envelope, AskFailure.UNREACHABLE.value)
            return False
        return office.post(envelope)

    def ended(self, cell: Cell, kind: ExitKind, reason: str) -> None:
        super().ended(cell, kind, reason)
        self.on_end(cell.address, kind, reason)

    def deliver(self, envelope: Envelope) -> bool:
        if envelope.to == self.main.address:
            self.main.receive(envelope)
            return True
        return super().deliver(envelope)

    def process_report(self) -> ProcessReport:
        letters = dict(self.dead_letters)
        links = []
        for office in self._offices.values():
            links += office.rows()
            for what, count in office.counted.items():
                letters[what] = letters.get(what, 0) + count
        return ProcessReport(process=self.process, dead_letters=letters, links=links)

    # offices

    def reaches(self, process: str) -> bool:
        """Whether the control link to `process` is up."""
        office = self._offices.get("control")
        return office is not None and office.reaches(process)

    def attach(self, office: PostOffice) -> None:
        self._offices[office.plane] = office

    def undelivered(self, envelope: Envelope, failure: AskFailure, code: str, reason: str) -> None:
        """What an office could not send, or lost with a link: the asker is told, the rest is counted."""
        self.dead_letter(envelope, failure.value)
        if process_of(envelope.sender) == self.process:
            self.answer_failure(envelope, failure, code, reason)

    # the process

    def close(self) -> None:
        """Stop what is left, without waiting for actors that do not stop; say what is queued, then hang up."""
        for cell in list(self.cells.values()):
            cell.request_stop()
        for office in self._offices.values():
            office.close()
        self._clock.close()


def plane_of(address: str) -> str:
    """Which post office carries mail for an actor: whatever serves packages has a plane of its own."""
    return "packages" if address.partition("/")[2] == "packages" else "control"
