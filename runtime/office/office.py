"""One plane's post office (design 5): the one thread that touches its sockets.

Whoever is dialled listens on a ROUTER; whoever dials has one DEALER per peer, and answers and orders use the same
connection. A link is up when both ends have said HELLO; the name in it must be the one that the connection's key is
listed under. BEATs acknowledge what arrived. Nothing here waits for a mailbox, and nothing that left is sent twice.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from threading import Event, Thread, get_ident
from typing import Any

import zmq

from messages.base import Address, NodeName
from messages.system import AskFailure, KernelRefusal, LinkRow
from runtime.kernel.envelope import (
    BadFrame,
    Envelope,
    Kind,
    pack,
    process_of,
    unpack,
)
from runtime.office.admission import Admission
from runtime.office.link import Link
from runtime.office.links import Door, Links
from runtime.office.listen import IpcClaim
from runtime.office.outbox import BURST_ENVELOPES, Outbox
from runtime.office.revocation import Revocations
from runtime.office.sockets import Keys, Socket, Sockets, events_of, readable, user_of

OUTBOX_ENVELOPES = 10_000
"""Envelopes that wait to be sent: beyond, senders are refused."""

SETTLE_S = 0.02
"""After a connection broke, libzmq needs this long until a send to it fails."""

GREET_S = 0.002
"""A connection takes its first message a moment after its handshake."""


class PostOffice:
    """`receive` gets every good envelope and `failed` every one of ours that did not leave, on the office's thread.

    `peer_up(name, incarnation)` and `peer_down(name, incarnation, reason)` report links. Of a name the newest
    connection wins and ends the older one, except for those in `crowd`, who may connect several times.
    """

    def __init__(
        self,
        *,
        name: str,
        plane: str,
        incarnation: int,
        keys: Keys,
        listen: str | None,
        dial: Mapping[str, str],
        receive: Callable[[Envelope], object],
        failed: Callable[[Envelope, AskFailure, str, str], object],
        peer_up: Callable[[NodeName, int], object] = lambda *_: None,
        peer_down: Callable[[NodeName, int, str], object] = lambda *_: None,
        log: Callable[..., object] = lambda *_: None,
        beat_s: float = 1.0,
        crowd: frozenset[str] = frozenset(),
    ) -> None:
        self.name = name
        self.plane = plane
        self.incarnation = incarnation
        self._keys = keys
        self._listen = listen
        self._dial = dict(dial)
        self._receive = receive
        self._failed = failed
        self._peer_up = peer_up
        self._peer_down = peer_down
        self._log = log
        self._beat_s = beat_s
        self._crowd = crowd
        self._revocations = Revocations()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._sleeping = False
        self._closing = self._closed = False
        self._ready = Event()
        self._fault: BaseException | None = None
        self._thread = Thread(target=self._run, name=f"office-{plane}", daemon=True)
        self._links = Links(self)
        self._outbox = Outbox(incarnation, self._links, self._send, failed)
        self._counted: dict[str, int] = {}
        self._probe_at: float | None = None
        self._greeting = False

    # any thread

    def start(self) -> None:
        """Take the address and start the thread. Raises `ListenFault`."""
        self._thread.start()
        self._ready.wait()
        if self._fault is not None:
            self.close()
            raise self._fault

    def post(self, envelope: Envelope) -> bool:
        """Hand over for sending; a failure comes to `failed`, False when it did at once. Never blocks."""
        if self._closing:
            self._failed(envelope, AskFailure.UNREACHABLE, "", f"the {self.plane} office of {self.name} is closed")
            return False
        if len(self._outbox.waiting) >= OUTBOX_ENVELOPES and envelope.kind in (Kind.TELL, Kind.ASK):
            reason = f"{OUTBOX_ENVELOPES} envelopes wait to leave {self.name}"
            self._failed(envelope, AskFailure.REFUSED, KernelRefusal.OVERLOADED.value, reason)
            return False
        self._outbox.waiting.append(envelope)
        if self._sleeping:
            self._sleeping = False
            os.eventfd_write(self._wake, 1)
        return True

    def close(self, timeout_s: float = 2.0) -> None:
        """Send what is queued, then let go of everything. Called by one thread, which is not the office's."""
        if self._closed:
            return
        self._closed = self._closing = True
        os.eventfd_write(self._wake, 1)
        self._thread.join(timeout_s)
        if not self._thread.is_alive():
            os.close(self._wake)

    def revoke(self, name: str) -> None:
        """From this call on nothing that `name` says is heard, on any connection that its key has or tries to get.

        Its links end at once: asks to it are answered `died`. There is no way back in the life of this office.
        """
        self._revocations.revoke(name)
        if not self._closing:
            os.eventfd_write(self._wake, 1)

    def reaches(self, process: str) -> bool:
        """Whether a link to `process` is up now."""
        return self._links.reaches(process)

    def rows(self) -> list[LinkRow]:
        return self._links.rows(self.plane)

    @property
    def counted(self) -> dict[str, int]:
        """By name: bad frames, refused connections, late answers, and what links that are forgotten had counted."""
        return dict(self._counted)

    # the office's thread

    def _run(self) -> None:
        try:
            self._open()
        except BaseException as fault:
            self._fault = fault
            self._ready.set()
            self._shut()
            return
        self._ready.set()
        try:
            self._serve()
        except BaseException as fault:
            self._log("error", f"the {self.plane} office failed, its links are gone: {fault!r}")
            raise
        finally:
            self._closing = True
            self._hang_up()
            self._shut()

    def _hang_up(self) -> None:
        """Nobody waits for what this office will not bring."""
        for link in self._links.known:
            if link.up:
                self._ended(link, "this end closed")
        self._links.clear_guests()
        self._outbox.refuse_all(f"the {self.plane} office of {self.name} is closed")

    def _open(self) -> None:
        self._sockets = Sockets(self._keys)
        self._claim: IpcClaim | None = None
        self._admission: Admission | None = None
        self._router: Socket | None = None
        self._poller = zmq.Poller()
        self._poller.register(self._wake, zmq.POLLIN)
        if self._listen is not None:
            names = {key: peer for peer, key in self._keys.peers.items()}
            self._admission = Admission(
                self._sockets.context, names, lambda who: self._count("refused_connection", who)
            )
            self._poller.register(self._admission.socket, zmq.POLLIN)
            if self._listen.startswith("ipc://"):
                self._claim = IpcClaim(self._listen.removeprefix("ipc://"))
            self._router, self._router_monitor = self._sockets.router(self._listen)
            self._poller.register(self._router, zmq.POLLIN)
            self._poller.register(self._router_monitor, zmq.POLLIN)
        for peer, endpoint in self._dial.items():
            door = Door(peer, *self._sockets.dealer(peer, endpoint))
            self._links.doors[peer] = door
            self._poller.register(door.socket, zmq.POLLIN)
            self._poller.register(door.monitor, zmq.POLLIN)

    def _serve(self) -> None:
        handlers: dict[Any, Callable[[], None]] = {self._wake: self._woken}
        if self._router is not None:
            assert self._admission is not None
            handlers[self._admission.socket] = self._admission.answer
            handlers[self._router] = self._read_router
            handlers[self._router_monitor] = self._read_router_monitor
        for door in self._links.doors.values():
            handlers[door.socket] = self._reader_of(door)
            handlers[door.monitor] = self._monitor_reader_of(door)
        beat_at = time.monotonic() + self._beat_s
        while not self._closing:
            while self._revocations.due:
                self._cut_off(self._revocations.due.popleft())
            now = time.monotonic()
            if now >= beat_at:
                beat_at = now + self._beat_s
                self._beat(now)
            if self._probe_at is not None and now >= self._probe_at:
                self._probe_at = None
                self._beat_guests()
            until = beat_at if self._probe_at is None else min(beat_at, self._probe_at)
            if self._greet():
                until = min(until, now + GREET_S)
            self._sleeping = True
            wait_ms = 0 if self._outbox.waiting else max(0, round((until - now) * 1000) + 1)
            events = self._poller.poll(wait_ms)
            self._sleeping = False
            for socket, _ in events:
                handlers[socket]()
            if self._outbox.waiting:
                self._outbox.send_burst(time.monotonic())
        for _ in range(0, len(self._outbox.waiting), BURST_ENVELOPES):
            self._outbox.send_burst(time.monotonic())
        self._beat(time.monotonic())  # what was heard is acknowledged, or the other end would count it unconfirmed

    def _woken(self) -> None:
        os.eventfd_read(self._wake)

    # sending

    def _send(self, peer: str, identity: bytes, frame: bytes) -> bool:
        assert get_ident() == self._thread.ident, "the sockets of an office belong to its own thread"
        door = self._links.doors.get(peer)
        try:
            if door is not None:
                door.socket.send(frame, zmq.NOBLOCK)
            else:
                assert self._router is not None
                self._router.send_multipart([identity, frame], zmq.NOBLOCK)
        except zmq.Again:
            self._count("high_water", peer)
            return False
        except zmq.ZMQError as error:
            if error.errno == zmq.EHOSTUNREACH:
                self._guest_left(identity, "its connection is gone")
                return False
            raise
        return True

    def _greet(self) -> bool:
        """Say HELLO where a handshake is through; True while somebody is still to be greeted."""
        if not self._greeting:
            return False
        waiting = False
        for door in self._links.doors.values():
            if door.greeting:
                door.greeted_with = 0 if door.link is None else door.link.sent
                door.greeting = not self._control(Kind.HELLO, door.peer, b"", door.link)
                waiting = waiting or door.greeting
        self._greeting = waiting
        return waiting

    def _control(self, kind: Kind, peer: str, identity: bytes, link: Link | None) -> bool:
        """HELLO (its sequence says how much was sent before) or BEAT (its correlation acknowledges)."""
        envelope = Envelope(
            kind,
            Address(f"{peer}/office"),
            Address(f"{self.name}/office"),
            body=b"\xc0",
            correlation=0 if link is None else link.received,
        )
        sequence = 0 if link is None else link.sent
        return self._send(peer, identity, pack(envelope, sequence, self.incarnation, 0.0))

    # receiving

    def _read_router(self) -> None:
        assert self._router is not None
        for _ in range(BURST_ENVELOPES):
            if not readable(self._router):
                return
            frames = self._router.recv_multipart(zmq.NOBLOCK, copy=False)
            identity = frames[0].bytes
            link = self._links.guest(identity)
            name = user_of(frames[-1]) if link is None else link.peer
            if name in self._revocations.names:
                self._count("revoked", f"{name} goes on speaking")
                self._revocations.cut_stranger(identity, frames[-1])
                continue
            if len(frames) != 2:
                self._count("bad_frame", f"{name}: {len(frames)} parts")
                continue
            self._read(name, identity, frames[1].bytes)
            if link is None and self._links.guest(identity) is not None:
                self._revocations.entered(identity, frames[1])

    def _reader_of(self, door: Door) -> Callable[[], None]:
        def read() -> None:
            for _ in range(BURST_ENVELOPES):
                if not readable(door.socket):
                    return
                frames = door.socket.recv_multipart(zmq.NOBLOCK)
                if door.peer in self._revocations.names:
                    self._count("revoked", f"{door.peer} goes on speaking")
                    continue
                if len(frames) != 1:
                    self._count("bad_frame", f"{door.peer}: {len(frames)} parts")
                    continue
                self._read(door.peer, b"", frames[0])

        return read

    def _read(self, name: str, identity: bytes, frame: bytes) -> None:
        """Every envelope of one frame from the process that the connection's key is listed under."""
        try:
            for envelope, sequence, incarnation in unpack(frame, time.monotonic()):
                if process_of(envelope.sender) != name:
                    raise BadFrame(f"says it is from {envelope.sender}, its key is {name}'s")
                if envelope.kind is Kind.HELLO:
                    self._hello(name, identity, incarnation, sequence)
                    continue
                link = self._links.of(name, identity)
                if link is None or link.incarnation != incarnation:
                    raise BadFrame("spoke before its HELLO")
                if envelope.kind is Kind.BEAT:
                    link.acknowledge(envelope.correlation)
                    continue
                if not link.arrived(sequence):
                    continue
                kind = envelope.kind
                if kind is Kind.ANSWER or kind is Kind.FAILURE:
                    if link.asks.pop((envelope.to, envelope.correlation), None) is None:
                        self._add("late_answer", 1)  # nobody asked, or waits any longer
                        continue
                elif process_of(envelope.to) != self.name:
                    raise BadFrame(f"is for {envelope.to}, this is {self.name}")
                envelope.route = link.route
                self._receive(envelope)
        except BadFrame as bad:
            self._count("bad_frame", f"{name}: {bad}")

    def _hello(self, name: str, identity: bytes, incarnation: int, sequence: int) -> None:
        speaking = self._links.guest(identity)
        if speaking is not None and speaking.incarnation != incarnation:
            raise BadFrame("said HELLO as two incarnations on one connection")
        met = self._links.met(name, incarnation)
        if met is not None and met.up:
            self._ended(met, "a newer connection of the same process said HELLO")
        link = self._links.meet(name, incarnation, sequence)
        door = self._links.doors.get(name)
        if door is not None:
            previous = self._links.open_door(door, link)
            if previous is not None:
                self._ended(previous, "a new incarnation answers")
        else:
            older = self._links.enter(identity, link)
            if older is not None and name not in self._crowd:
                self._guest_left(older, "a newer connection of the same process said HELLO")
            self._control(Kind.HELLO, name, identity, link)
        for what, count in self._links.forget_ended(name).items():
            self._add(what, count)
        self._peer_up(NodeName(name), incarnation)

    # ends

    def _monitor_reader_of(self, door: Door) -> Callable[[], None]:
        def read() -> None:
            for event in events_of(door.monitor):
                if event & zmq.EVENT_HANDSHAKE_SUCCEEDED:
                    door.greeting = self._greeting = True
                elif event & zmq.EVENT_DISCONNECTED:
                    door.greeting = False
                    if door.link is not None and door.link.up:
                        self._ended(door.link, "the connection ended")
                elif not door.warned:
                    door.warned = True
                    why = "one of the two directories lists another key: compare directory.json at both ends"
                    self._count("handshake_failed", f"{door.peer}: {why}")

        return read

    def _read_router_monitor(self) -> None:
        for _ in events_of(self._router_monitor):
            self._probe_at = time.monotonic() + SETTLE_S

    def _cut_off(self, name: str) -> None:
        """The key of `name` was revoked: no new connection of it, and an end of those it has."""
        reason = "its key was revoked"
        self._log("warning", f"{name} is cut off on {self.plane}: {reason}")
        if self._admission is not None:
            self._admission.revoke(name)
        for identity in [identity for identity, link in self._links.guests if link.peer == name]:
            self._revocations.cut(identity)
            self._guest_left(identity, reason)
        door = self._links.doors.pop(name, None)
        if door is not None:
            door.socket.disable_monitor()
            for socket in (door.socket, door.monitor):
                self._poller.unregister(socket)
                socket.close()
            if door.link is not None and door.link.up:
                self._ended(door.link, reason)

    def _guest_left(self, identity: bytes, reason: str) -> None:
        self._revocations.left(identity)
        link = self._links.leave(identity)
        if link is not None:
            self._ended(link, reason)

    def _ended(self, link: Link, reason: str) -> None:
        """Count what is unconfirmed, and tell every asker that nothing is known."""
        lost = link.ended()
        if lost:
            self._log("warning", f"{lost} envelopes to {link.peer} stay unconfirmed: {reason}")
        asks, link.asks = link.asks, {}
        for envelope in asks.values():
            self._failed(envelope, AskFailure.DIED, "", f"the link to {link.peer} ended: {reason}")
        self._peer_down(NodeName(link.peer), link.incarnation, reason)

    def _beat(self, now: float) -> None:
        for door in self._links.doors.values():
            if door.link is not None and door.link.up:
                self._control(Kind.BEAT, door.peer, b"", door.link)
        self._beat_guests()
        for link in self._links.known:
            late = [key for key, ask in link.asks.items() if ask.deadline is not None and ask.deadline + 1 < now]
            for key in late:
                del link.asks[key]

    def _beat_guests(self) -> None:
        for identity, link in self._links.guests:
            self._control(Kind.BEAT, link.peer, identity, link)

    def _count(self, what: str, detail: str) -> None:
        """Count and say; of a flood only the first and each time it has doubled, or it would fill the log."""
        self._add(what, 1)
        count = self._counted[what]
        if count & (count - 1) == 0:
            self._log("warning", f"{what.replace('_', ' ')} on {self.plane} ({count} so far): {detail}")

    def _add(self, what: str, count: int) -> None:
        if count:
            self._counted[what] = self._counted.get(what, 0) + count

    def _shut(self) -> None:
        self._sockets.close()
        if self._claim is not None:
            self._claim.release()
