"""The driver of an edges process: the one thread that touches its data sockets and pumps (design 5 and 7, E 5).

It sleeps on the eventfds of the rings, on its order queue and on the sockets. Pumps that have something to move take
turns, a chunk each, so no edge waits for another; one whose far ring is full has no turn until it has room.
"""

from __future__ import annotations

import math
import os
import select
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Event, Thread

from messages.base import NodeName
from messages.edge_ports import DriverMessage, DriverReport
from runtime.edges.driver.ends import Ends, Sink, Source
from runtime.edges.driver.links import Links
from runtime.edges.driver.local import LocalSink
from runtime.edges.driver.overdue import Overdue
from runtime.edges.driver.pumps import Pump, ReceivePump
from runtime.edges.memory import NodeMemory
from runtime.office.sockets import Keys

TICK_S = 0.25
BEAT_S = 1.0


@dataclass(frozen=True)
class Revoke:
    peer: str


class Driver:
    """Pumps of `process`. `keys` lists the edges processes of the directory and nobody else; `dial` says where they
    listen. `report` is called on the driver's thread and says False when it could not take a report now; reports come
    in order and none is lost while the driver lives. `died` is called, once, when its thread ends by an error.
    """

    def __init__(
        self,
        process: NodeName,
        memory: NodeMemory,
        keys: Keys,
        *,
        listen: str,
        dial: Mapping[str, str],
        report: Callable[[DriverReport], object],
        log: Callable[..., object] = lambda *_: None,
        died: Callable[[BaseException], object] = lambda _: None,
    ) -> None:
        self.now = time.monotonic()
        self._keys = keys
        self._listen = listen
        self._dial = dict(dial)
        self._report = report
        self._log = log
        self._died = died
        self._ends = Ends(process, memory, self)
        self._orders: deque[DriverMessage | Revoke] = deque()
        self._untold: deque[DriverReport] = deque()
        self._turns: deque[Source] = deque()
        self._later: dict[Sink, float] = {}
        self._later_at, self._beat_at = math.inf, 0.0
        self._counted: dict[str, int] = {}
        self._handlers: dict[int, Callable[[], None]] = {}
        self._epoll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._closing = self._closed = False
        self._opened = Event()
        self._fault: BaseException | None = None
        self._thread = Thread(target=self._run, name="driver", daemon=True)
        self._overdue = Overdue()

    # any thread

    def start(self) -> None:
        """Take the address and start the thread. Raises `ListenFault`."""
        self._thread.start()
        self._overdue.start(self._thread)
        self._opened.wait()
        if self._fault is not None:
            self.close()
            raise self._fault

    def order(self, order: DriverMessage) -> None:
        """Queue an order; what becomes of it is reported. Never blocks."""
        self._queue(order)

    def revoke(self, peer: str) -> None:
        """The key of `peer` is not listed any more: streams with it fault `link_lost`, its connections end."""
        self._queue(Revoke(peer))

    def _queue(self, order: DriverMessage | Revoke) -> None:
        self._orders.append(order)
        if not self._closed:
            os.eventfd_write(self._wake, 1)

    def close(self, timeout_s: float = 5.0) -> None:
        """Let go of all rings and sockets, without reports. Called by one thread, which is not the driver's."""
        if self._closed:
            return
        self._closing = True
        os.eventfd_write(self._wake, 1)
        self._thread.join(timeout_s)
        self._overdue.close()
        self._closed = True
        if not self._thread.is_alive():
            self._epoll.close()
            os.close(self._wake)

    @property
    def counted(self) -> dict[str, int]:
        """By name: what was refused, dropped or ignored."""
        return dict(self._counted)

    # the loop, as the ends see it

    def watch(self, fd: int, handler: Callable[[], None], *, listening: bool = True) -> None:
        self._handlers[fd] = handler
        self._epoll.register(fd, select.EPOLLIN if listening else 0)

    def listen(self, fd: int, listening: bool) -> None:
        if fd in self._handlers:
            self._epoll.modify(fd, select.EPOLLIN if listening else 0)

    def unwatch(self, fd: int) -> None:
        if self._handlers.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def wake(self, source: Source) -> None:
        if not source.queued and source.fault is None:
            source.queued = True
            self._turns.append(source)

    def later(self, sink: Sink, delay_s: float) -> None:
        due = self.now + delay_s
        if due < self._later.get(sink, math.inf):
            self._later[sink] = due
            self._later_at = min(self._later_at, due)

    def forget(self, pump: Pump) -> None:
        if isinstance(pump, ReceivePump | LocalSink):
            self._later.pop(pump, None)
        elif pump.queued:
            self._turns = deque(source for source in self._turns if source is not pump)

    def report(self, report: DriverReport) -> None:
        self._untold.append(report)
        self._tell()

    def count(self, what: str, detail: str) -> None:
        """Count and say; of a flood only the first and each time it has doubled, or it would fill the log."""
        count = self._counted[what] = self._counted.get(what, 0) + 1
        if count & (count - 1) == 0:
            self._log("warning", f"{what.replace('_', ' ')} on edges ({count} so far): {detail}")

    # the driver's thread

    def _run(self) -> None:
        try:
            self._epoll.register(self._wake, select.EPOLLIN)
            self._handlers[self._wake] = self._take_orders
            streams = self._ends.streams
            streams.links = self._links = Links(
                self._keys, self._listen, self._dial, owner=streams, watch=self.watch, unwatch=self.unwatch
            )
        except BaseException as fault:
            self._fault = fault
            self._opened.set()
            return
        self._opened.set()
        try:
            self._serve()
        except BaseException as fault:
            self._log("error", f"the driver failed, its streams are gone: {fault!r}")
            self._died(fault)
        finally:
            self._ends.close()
            self._links.close()

    def _serve(self) -> None:
        links, ends, handlers, poll = self._links, self._ends, self._handlers, self._epoll.poll
        overdue = self._overdue
        streams = ends.streams
        tick_at = time.monotonic() + TICK_S
        while not self._closing:
            self.now = links.now = streams.now = now = time.monotonic()
            if links.restless:
                links.work()
            for _ in range(len(self._turns)):
                source = self._turns.popleft()
                source.queued = False
                if ends.turn(source):
                    self.wake(source)
            if now >= self._later_at:
                self._catch_up()
            if now >= tick_at:
                self._tick(max(0.0, now - tick_at))
                tick_at = now + TICK_S
            busy = links.restless or self._turns
            wait_s = 0.0 if busy else max(0.0, min(tick_at, self._later_at) - now)
            overdue.ended()
            ready = poll(wait_s)
            overdue.begun()
            for fd, _ in ready:
                handler = handlers.get(fd)
                if handler is not None:  # it may have gone with one before it
                    handler()

    def _take_orders(self) -> None:
        os.eventfd_read(self._wake)
        while self._orders:
            order = self._orders.popleft()
            if isinstance(order, Revoke):
                self._ends.streams.revoke(order.peer)
            else:
                self._ends.order(order)

    def _catch_up(self) -> None:
        """With what was put off until now."""
        due = [sink for sink, at in self._later.items() if at <= self.now]
        for sink in due:
            del self._later[sink]
        self._later_at = min(self._later.values(), default=math.inf)
        for sink in due:
            self._ends.soon(sink)

    def _tick(self, late_s: float) -> None:
        if self._untold:
            self._tell()
        self._ends.streams.tick(late_s if late_s > BEAT_S else 0.0)
        if self.now >= self._beat_at:
            self._beat_at = self.now + BEAT_S
            self._links.beat()
            moved = None if self._untold else self._ends.progress()
            if moved is not None:
                self.report(moved)

    def _tell(self) -> None:
        while self._untold:
            if self._report(self._untold[0]) is False:
                return
            self._untold.popleft()
