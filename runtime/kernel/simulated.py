"""The small simulated world (design 4): every actor in one thread, a virtual clock, links in memory.

The tests of every actor run on it. Messages are delivered in the order they were sent and always pass the codec, so
an actor sees what it would see off the wire.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from hashlib import sha256
from heapq import heappop, heappush
from random import Random
from typing import Any, TypeVar

from actors.actor import AskFailed
from messages.base import Address, Message, NodeName, Request, answer_type
from messages.system import AskFailure, ExitKind, PeerDown, PeerUp, ProcessReport
from runtime.kernel.cell import Cell
from runtime.kernel.envelope import Envelope, Failure, Kind, answer_decoder, process_of, tag_of
from runtime.kernel.world import World

A = TypeVar("A")

PROBE = Address("test/probe")
WALL_START_MS = 1_700_000_000_000
STEPS_AT_MOST = 1_000_000
"""More messages than this without the clock moving is a livelock, and an error."""


class Pending:
    """An ask from outside the actors. `result()` raises `AskFailed`, or `RuntimeError` while it is not done."""

    def __init__(self, to: Address, answer: Any) -> None:
        self.to = to
        self.done = False
        self._answer = answer
        self._outcome: Any = None

    def settle(self, outcome: Any) -> None:
        if not self.done:
            self.done, self._outcome = True, outcome

    def settle_with(self, envelope: Envelope) -> None:
        if envelope.failure is not None:
            failure = envelope.failure
            self.settle(AskFailed(failure.failure, self.to, failure.code, failure.reason))
        else:
            self.settle(answer_decoder(self._answer).decode(envelope.body))

    def result(self) -> Any:
        if not self.done:
            raise RuntimeError(f"{self.to} has not answered")
        if isinstance(self._outcome, AskFailed):
            raise self._outcome
        return self._outcome


class SimulatedWorld(World):
    operators = World.operators | {"test"}  # the outside of this world, which no directory lists

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.seed = seed
        self.now_s = 0.0
        self.logs: list[tuple[str, Address, str, dict[str, Any]]] = []
        self.sent: list[Envelope] = []
        self._runnable: deque[Cell] = deque()
        self._alarms: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._inboxes: dict[Address, list[Message]] = {}
        self._pending: dict[int, Pending] = {}
        self._cuts: set[frozenset[str]] = set()
        self._losses: list[list[Any]] = []

    @property
    def wall_ms(self) -> int:
        return self.wall()

    # World

    def now(self) -> float:
        return self.now_s

    def wall(self) -> int:
        return WALL_START_MS + round(self.now_s * 1000)

    def wake_at(self, cell: Cell, at: float) -> None:
        self._alarm(at, cell.timer_due)

    def random_for(self, address: Address) -> Random:
        return Random(sha256(f"{self.seed}/{address}".encode()).digest())  # noqa: S311 (the same run again is the point)

    def log(self, level: str, address: Address, text: str, fields: dict[str, Any]) -> None:
        self.logs.append((level, address, text, fields))

    def launch(self, cell: Cell) -> None:
        cell.wake = lambda: self._runnable.append(cell)
        process = NodeName(process_of(cell.address))
        newcomer = not any(process_of(other) == process for other in self.cells if other != cell.address)
        self._starting(cell, process, newcomer)

    def _starting(self, cell: Cell, process: NodeName, newcomer: bool) -> None:
        def start() -> None:
            if not cell.ended:
                cell.start()
                if newcomer:
                    self._process_up(process)

        self._alarm(self.now_s, start)

    def is_local(self, process: str) -> bool:  # noqa: ARG002
        return True

    def post_away(self, envelope: Envelope) -> bool:
        raise NotImplementedError("the simulated world has no other processes")

    def post(self, envelope: Envelope) -> bool:
        """Encode, then lose, refuse or deliver."""
        envelope.encoded()
        for loss in self._losses:
            if loss[1] > 0 and loss[0](envelope):
                loss[1] -= 1
                self.dead_letter(envelope, "lost")
                return True
        if self._is_cut(envelope.sender, envelope.to):
            self.dead_letter(envelope, "unreachable")
            if envelope.kind is Kind.ASK:
                reason = f"no link to {process_of(envelope.to)}"
                self._deliver_decoded(
                    Envelope(
                        Kind.FAILURE,
                        envelope.sender,
                        envelope.to,
                        correlation=envelope.correlation,
                        failure=Failure(AskFailure.UNREACHABLE, "", reason),
                    )
                )
            return False
        self.sent.append(envelope)
        return self._deliver_decoded(envelope)

    def _deliver_decoded(self, envelope: Envelope) -> bool:
        if envelope.to in self._inboxes or envelope.to.startswith("test/"):
            self._to_test(envelope)
            return True
        wire = Envelope(
            envelope.kind, envelope.to, envelope.sender, None, envelope.body, envelope.tag, envelope.correlation,
            envelope.deadline, envelope.waiting, envelope.failure,
        )  # fmt: skip
        return self.deliver(wire)

    def process_report(self) -> ProcessReport:
        return ProcessReport(process=NodeName("simulated"), dead_letters=dict(self.dead_letters), links=[])

    def ended(self, cell: Cell, kind: ExitKind, reason: str) -> None:
        super().ended(cell, kind, reason)
        process = process_of(cell.address)
        if not any(process_of(other) == process for other in self.cells):
            self._process_down(NodeName(process), "the process ended")

    # links

    def cut(self, one: str, other: str) -> None:
        """Nothing passes between two processes until `heal`; watchers are told `PeerDown`."""
        self._cuts.add(frozenset((one, other)))
        for watched, watching in ((one, other), (other, one)):
            self._tell_watchers(NodeName(watched), watching, up=False)

    def heal(self, one: str, other: str) -> None:
        self._cuts.discard(frozenset((one, other)))
        for watched, watching in ((one, other), (other, one)):
            self._tell_watchers(NodeName(watched), watching, up=True)

    def lose(self, matching: Callable[[Envelope], bool], count: int = 1) -> None:
        """Lose the next `count` envelopes that match; `message` is None for a failure on its way back."""
        self._losses.append([matching, count])

    def _is_cut(self, sender: str, to: str) -> bool:
        return frozenset((process_of(sender), process_of(to))) in self._cuts

    def _process_up(self, process: NodeName) -> None:
        self._count += 1
        self._peers_up[process] = self._count
        for watcher in list(self._peer_watchers.get(process, [])):
            self._tell_watchers(process, process_of(watcher), up=True)

    def _process_down(self, process: NodeName, reason: str) -> None:
        incarnation = self._peers_up.get(process)
        if incarnation is not None:
            self.peer_down(process, incarnation, reason)

    def _tell_watchers(self, process: NodeName, watching: str, *, up: bool) -> None:
        incarnation = self._peers_up.get(process)
        if incarnation is None:
            return
        for watcher in list(self._peer_watchers.get(process, [])):
            if process_of(watcher) == watching:
                self._notify_link(watcher, process, incarnation, up)

    def _notify_link(self, watcher: Address, process: NodeName, incarnation: int, up: bool) -> None:
        if up:
            self._notify(watcher, PeerUp(process=process, incarnation=incarnation))
        else:
            self._notify(watcher, PeerDown(process=process, incarnation=incarnation, reason="link cut"))

    def watch_peer(self, watcher: Address, process: NodeName) -> None:
        known = self._peers_up
        if self._is_cut(watcher, process):
            self._peers_up = {name: number for name, number in known.items() if name != process}
        super().watch_peer(watcher, process)
        self._peers_up = known

    # what a test does

    def actor(self, address: Address) -> Any:
        return self.cells[address].actor

    def tell(self, to: Address, message: Message, sender: Address = PROBE) -> None:
        self.post(Envelope(Kind.TELL, to, sender, message, tag=tag_of(type(message))))

    def start_ask(self, to: Address, request: Request[A], timeout_s: float = 5.0, sender: Address = PROBE) -> Pending:
        self._count += 1
        number = self._count
        pending = self._pending[number] = Pending(to, answer_type(type(request)))
        deadline = self.now_s + timeout_s
        self._alarm(deadline, lambda: pending.settle(AskFailed(AskFailure.TIMEOUT, to, "", "no answer in time")))
        self.post(
            Envelope(Kind.ASK, to, sender, request, tag=tag_of(type(request)), correlation=number, deadline=deadline)
        )
        return pending

    def ask(self, to: Address, request: Request[A], timeout_s: float = 5.0, sender: Address = PROBE) -> A:
        """Run until it is answered. Raises `AskFailed`."""
        pending = self.start_ask(to, request, timeout_s, sender)
        self.run_until(lambda: pending.done, limit_s=timeout_s + 1)
        answer: A = pending.result()
        return answer

    def inbox(self, address: Address = PROBE) -> list[Message]:
        """What was told to an address that is no actor (any `test/...`, or one named here before)."""
        return self._inboxes.setdefault(address, [])

    def crash(self, address: Address, reason: str = "killed by the test") -> None:
        """End it as an exception would."""
        cell = self.cells[address]
        cell.crashed = True
        cell.end(ExitKind.CRASHED, reason)

    def crash_process(self, process: str) -> None:
        """End every actor of a process at once, as SIGKILL would: nobody is answered by it any more."""
        cells = [cell for address, cell in self.cells.items() if process_of(address) == process]
        for cell in cells:
            cell.crashed = True
            cell.end(ExitKind.KILLED, "the process was killed")

    def run_idle(self) -> None:
        """Handle every pending message; timers that are not due stay."""
        for _ in range(STEPS_AT_MOST):
            if not self._step():
                return
        raise RuntimeError("the actors do not come to rest")

    def advance(self, seconds: float) -> None:
        """Move the clock, firing what is due in order."""
        target = self.now_s + seconds
        self.run_idle()
        while self._alarms and self._alarms[0][0] <= target:
            self.now_s = max(self.now_s, self._alarms[0][0])
            self.run_idle()
        self.now_s = target

    def run_until(self, condition: Callable[[], bool], limit_s: float = 60.0) -> None:
        """Run, moving the clock as needed, until `condition()`; `AssertionError` when `limit_s` have passed."""
        end = self.now_s + limit_s
        steps = 0
        while not condition():
            if self._step():
                steps += 1
                if steps > STEPS_AT_MOST:
                    raise RuntimeError("the actors do not come to rest")
                continue
            if not self._alarms or self._alarms[0][0] > end:
                raise AssertionError(f"did not happen within {limit_s} simulated seconds")
            self.now_s = max(self.now_s, self._alarms[0][0])

    def _step(self) -> bool:
        if self._alarms and self._alarms[0][0] <= self.now_s:
            heappop(self._alarms)[2]()
            return True
        while self._runnable:
            cell = self._runnable[0]
            if cell.ended or not cell.step():
                self._runnable.popleft()
                continue
            return True
        return False

    def _alarm(self, at: float, work: Callable[[], None]) -> None:
        self._count += 1
        heappush(self._alarms, (at, self._count, work))

    def _to_test(self, envelope: Envelope) -> None:
        if envelope.kind in (Kind.ANSWER, Kind.FAILURE):
            pending = self._pending.pop(envelope.correlation, None)
            if pending is not None:
                pending.settle_with(envelope)
        elif envelope.message is not None:
            self._inboxes.setdefault(envelope.to, []).append(envelope.message)
