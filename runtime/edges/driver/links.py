"""The sockets of the data plane (design 5 and 7): whom they join, and whether anybody is there.

This process listens on a ROUTER; for each peer that it sends streams to it dials one DEALER, which all edges to that
peer share. Admission lets in the edges processes of the directory and binds each connection to a name, so a frame's
sender is known before its first byte is read. Of a peer's connections the newest that was heard is answered.

All of it belongs to the driver's thread. ZeroMQ's descriptors tell only of changes, and any call on a socket, also one
that fails, may take a change in: after each the socket's state is asked for before anybody sleeps (`restless`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import zmq

from actors.edges.frames import BEAT_FRAME, HEAD_BYTES, MAX_FRAME_BYTES, Beat, Frame, FrameFault, parse
from messages.edge import EdgeId
from runtime.edges.driver.pumps import CHUNK_BYTES, SendPump
from runtime.office.admission import Admission
from runtime.office.listen import IpcClaim
from runtime.office.revocation import Connection
from runtime.office.sockets import Keys, Socket, Sockets, events_of, user_of

HIGH_WATER = 16
"""Messages that wait in a connection: with chunks of half a MiB this bounds what a slow link holds."""

BURST = 64
"""Messages that are read from one socket before others have their turn."""

MAX_GUEST_CONNECTIONS = 8
SLACK_BYTES = 1024
"""What encryption adds to a message, amply."""

_POLLIN, _POLLOUT, _EVENTS = int(zmq.POLLIN), int(zmq.POLLOUT), int(zmq.EVENTS)
_NOBLOCK = int(zmq.NOBLOCK)


@dataclass(eq=False, slots=True)
class Link:
    """To one peer that this process dials. `pumps` share it; `waiting` are those it had no room for.

    `scratch`: where frames are put together.
    """

    scratch: memoryview
    peer: str
    endpoint: str
    socket: Socket
    monitor: Socket
    up: bool = False
    full: bool = False
    heard_at: float = 0.0
    said: bool = False
    warned: bool = False
    idle_since: float = 0.0
    pumps: dict[EdgeId, SendPump] = field(default_factory=dict)
    waiting: dict[EdgeId, SendPump] = field(default_factory=dict)
    control: deque[bytes] = field(default_factory=deque)

    def send(self, frame: bytes | memoryview) -> bool:
        """Hand one frame over, copied; False when the connection takes nothing now."""
        try:
            self.socket.send(frame, _NOBLOCK)
        except zmq.Again:
            self.full = True
            return False
        self.said = True
        return True

    def send_data(self, head: bytes, spans: list[memoryview]) -> bool:
        """Hand stream bytes over, copied; False when the connection takes nothing now."""
        at = len(head)
        self.scratch[:at] = head
        for span in spans:
            end = at + len(span)
            self.scratch[at:end] = span
            at = end
        return self.send(self.scratch[:at])

    def flush(self) -> bool:
        """What opens streams goes before their bytes; true when all of it has left."""
        while self.control:
            if not self.send(self.control[0]):
                return False
            self.control.popleft()
        return True


@dataclass(eq=False, slots=True)
class Guest:
    """A peer that dials this process. `route`: its newest connection; `connections`: those that may still speak."""

    peer: str
    route: bytes | None = None
    heard_at: float = 0.0
    said: bool = False
    connections: dict[bytes, Connection | None] = field(default_factory=dict)

    def entered(self, identity: bytes, frame: zmq.Frame) -> None:
        self.connections[identity] = Connection.of(frame)
        self.route = identity

    def left(self, identity: bytes) -> None:
        self.connections.pop(identity, None)
        if self.route == identity:
            self.route = next(reversed(self.connections), None)


class Owner(Protocol):
    """Who gets what the links hear. `count` counts and tells what is refused."""

    def from_consumer(self, link: Link, frame: Frame) -> None: ...

    def from_producer(self, guest: Guest, frame: Frame) -> None: ...

    def rubbish(self, guest: Guest, text: str) -> None:
        """What came is no frame."""

    def link_up(self, link: Link) -> None:
        """A new connection: nothing that was sent before arrives any more."""

    def link_down(self, link: Link) -> None: ...

    def room_again(self, link: Link) -> None:
        """Those in `waiting` may go on."""

    def count(self, what: str, detail: str) -> None: ...


class Links:
    """`now` is the loop's time, monotonic seconds; `watch(fd, handler)` has a descriptor looked after."""

    def __init__(
        self,
        keys: Keys,
        listen: str,
        dial: Mapping[str, str],
        *,
        owner: Owner,
        watch: Callable[[int, Callable[[], None]], None],
        unwatch: Callable[[int], None],
    ) -> None:
        """Takes the address. Raises `ListenFault`."""
        self.links: dict[str, Link] = {}
        self.guests: dict[str, Guest] = {}
        self.now = 0.0
        self._dial = dict(dial)
        self._revoked: set[str] = set()
        self._scratch = memoryview(bytearray(HEAD_BYTES + CHUNK_BYTES))
        self._owner = owner
        self._watch, self._unwatch = watch, unwatch
        self._identities: dict[bytes, Guest] = {}
        self._touched: dict[Link, None] = {}
        self._router_touched = True
        self._claim: IpcClaim | None = None
        self._sockets = Sockets(keys, high_water=HIGH_WATER, max_message_bytes=MAX_FRAME_BYTES + SLACK_BYTES)
        try:
            names = {key: peer for peer, key in keys.peers.items()}
            self._admission = Admission(self._sockets.context, names, partial(owner.count, "refused_connection"))
            if listen.startswith("ipc://"):
                self._claim = IpcClaim(listen.removeprefix("ipc://"))
            self._router, self._router_monitor = self._sockets.router(listen)
        except BaseException:
            self.close()
            raise
        watch(self._admission.socket.FD, self._admission.answer)
        watch(self._router.FD, self._router_stirred)
        watch(self._router_monitor.FD, self._drain_router_monitor)

    # towards consumers

    def to(self, peer: str) -> Link:
        """The link to `peer`, dialled now if there is none. Raises `LookupError` when nobody knows where it listens."""
        link = self.links.get(peer)
        if link is None:
            endpoint = self._dial.get(peer)
            if endpoint is None:
                raise LookupError(f"the directory does not say where {peer} listens")
            link = self.links[peer] = Link(
                self._scratch, peer, endpoint, *self._dialled(peer, endpoint), heard_at=self.now
            )
            self._watch_link(link)
        return link

    def touch(self, link: Link) -> None:
        """Something was sent on it: its descriptor may keep silent about what changed."""
        self._touched[link] = None

    def cut(self, peer: str) -> None:
        """End the connections with `peer`, both ways; what is in flight is lost. Ours is dialled again, as is its."""
        link = self.links.get(peer)
        if link is not None:
            self._drop_sockets(link)
            self._down(link)
            link.socket, link.monitor = self._dialled(peer, link.endpoint)
            self._watch_link(link)
        guest = self.guests.get(peer)
        if guest is not None:
            for connection in guest.connections.values():
                if connection is not None:
                    connection.cut()

    def revoke(self, peer: str) -> None:
        """Hear nothing that `peer` says any more, end its connections and let it make none."""
        self._revoked.add(peer)
        self._admission.revoke(peer)
        self.cut(peer)
        self._dial.pop(peer, None)
        link = self.links.get(peer)
        if link is not None:
            self.hang_up(link)

    def hang_up(self, link: Link) -> None:
        """Nobody needs it any more."""
        self._drop_sockets(link)
        self._touched.pop(link, None)
        del self.links[link.peer]

    # towards producers

    def answer(self, guest: Guest, frame: bytes) -> bool:
        """Tell a producer; False when it cannot be told now."""
        self._router_touched = True
        while guest.route is not None:
            try:
                self._router.send_multipart([guest.route, frame], _NOBLOCK)
            except zmq.Again:
                return False
            except zmq.ZMQError as error:
                if error.errno != zmq.EHOSTUNREACH:
                    raise
                self._identities.pop(guest.route, None)
                guest.left(guest.route)
                continue
            guest.said = True
            return True
        return False

    # the loop

    @property
    def restless(self) -> bool:
        """Somebody's state is to be asked for before anybody sleeps."""
        return self._router_touched or bool(self._touched)

    def work(self) -> None:
        """Read and unblock what is ready, a burst of each."""
        if self._router_touched:
            self._router_touched = False
            if self._read_router():
                self._router_touched = True  # answers meanwhile may have set it too
        if self._touched:
            touched, self._touched = self._touched, {}
            for link in touched:
                if self._work_link(link):
                    self._touched[link] = None

    def beat(self) -> None:
        """Say that this process lives where nothing else was said since the last time."""
        for link in self.links.values():
            if link.up and not link.said and not link.full:
                link.send(BEAT_FRAME)
                self.touch(link)
            link.said = False
        for guest in self.guests.values():
            if not guest.said:
                self.answer(guest, BEAT_FRAME)
            guest.said = False

    def close(self) -> None:
        """End every connection and give the address back."""
        self._sockets.close()
        if self._claim is not None:
            self._claim.release()

    def _dialled(self, peer: str, endpoint: str) -> tuple[Socket, Socket]:
        return self._sockets.dealer(peer, endpoint)

    def _watch_link(self, link: Link) -> None:
        self._watch(link.socket.FD, partial(self.touch, link))
        self._watch(link.monitor.FD, partial(self._read_monitor, link))
        self.touch(link)
        self._read_monitor(link)

    def _drop_sockets(self, link: Link) -> None:
        self._unwatch(link.socket.FD)
        self._unwatch(link.monitor.FD)
        link.socket.disable_monitor()
        link.monitor.close()
        link.socket.close()

    def _down(self, link: Link) -> None:
        link.up = link.full = False
        link.control.clear()
        self._owner.link_down(link)

    def _work_link(self, link: Link) -> bool:
        socket = link.socket
        for _ in range(BURST):
            events = _events(socket)
            if link.full and events & _POLLOUT:
                link.full = False
                if link.flush():
                    self._owner.room_again(link)
                self.touch(link)  # what was sent may have taken in more than these events told
            if not events & _POLLIN:
                return False
            parts = socket.recv_multipart(_NOBLOCK)
            link.heard_at = self.now
            try:
                frame = parse(parts[0]) if len(parts) == 1 else _torn(len(parts))
            except FrameFault as fault:
                self._owner.count(fault.code, f"{link.peer}: {fault.text}")
                continue
            if not isinstance(frame, Beat):
                self._owner.from_consumer(link, frame)
            if link.socket is not socket:
                return True  # cut while it was read
        return True

    def _read_monitor(self, link: Link) -> None:
        for event in events_of(link.monitor):
            if event & zmq.EVENT_HANDSHAKE_SUCCEEDED:
                link.up, link.heard_at, link.warned = True, self.now, False
                self._owner.link_up(link)
            elif event & zmq.EVENT_DISCONNECTED:
                self._down(link)
            elif not link.warned:
                link.warned = True
                why = "one of the two directories lists another key: compare directory.json at both ends"
                self._owner.count("handshake_failed", f"{link.peer}: {why}")
        self.touch(link)

    def _router_stirred(self) -> None:
        self._router_touched = True

    def _drain_router_monitor(self) -> None:
        events_of(self._router_monitor)

    def _read_router(self) -> bool:
        router = self._router
        for _ in range(BURST):
            if not _events(router) & _POLLIN:
                return False
            identity = part = router.recv(_NOBLOCK, False)
            parts = 0
            while part.more:
                part = router.recv(_NOBLOCK, False)
                parts += 1
            guest = self._guest(identity.bytes, part)
            if guest.peer in self._revoked:
                self._owner.count("revoked", f"{guest.peer} goes on speaking")
                continue
            guest.heard_at = self.now
            try:
                frame = parse(part.buffer) if parts == 1 else _torn(parts)
            except FrameFault as fault:
                self._owner.rubbish(guest, fault.text)
                continue
            if not isinstance(frame, Beat):
                self._owner.from_producer(guest, frame)
        return True

    def _guest(self, identity: bytes, frame: zmq.Frame) -> Guest:
        guest = self._identities.get(identity)
        if guest is None:
            name = user_of(frame)
            guest = self.guests.setdefault(name, Guest(name))
            guest.entered(identity, frame)
            self._identities[identity] = guest
            while len(guest.connections) > MAX_GUEST_CONNECTIONS:
                oldest = next(iter(guest.connections))
                del self._identities[oldest], guest.connections[oldest]
        return guest


def _torn(parts: int) -> Frame:
    raise FrameFault(f"{parts} parts, a frame has one")


def _events(socket: Any) -> int:
    events: int = socket.getsockopt(_EVENTS)
    return events
