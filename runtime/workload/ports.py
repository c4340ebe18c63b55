"""The ports of this workload, and the thread that lets its node install and uninstall their rings.

The node's edges process opens a channel by passing one end of it through the workload's shim, at any time and again
after its own restart. Each install names a port; a port exists as soon as either side names it, so nothing is lost
that arrives before the program asks for its port.
"""

from __future__ import annotations

import atexit
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from runtime.workload.channel import (
    EGRESS,
    HELLO,
    INGRESS,
    PACKET_BYTES,
    PORT_NAME,
    Channel,
    Packet,
    Refusal,
    close_all,
    receive,
)
from runtime.workload.errors import InvalidPort, NotAWorkload
from runtime.workload.input import InputPort
from runtime.workload.link import Link
from runtime.workload.output import OutputPort
from runtime.workload.port import Port
from runtime.workload.sink import Sink
from runtime.workload.source import Source

SHIM_FD = "SENNIT_SHIM_FD"
MAX_RINGS = 64
"""Each takes three descriptors of the 256 that a workload has."""

RETRY_MS = 20
"""While a view of an uninstalled ring is held: how often it is tried again to unmap it."""

LAST_WORDS_S = 1.0
_STACK_BYTES = 256 * 1024
"""Of the serving thread: a workload's address space is limited."""

Ring = tuple[Port[Any], Link]


class Ports:
    """All ports of one process. Made by `from_environment`; closing it ends every output's stream."""

    def __init__(self, shim: socket.socket) -> None:
        """`shim`: the SEQPACKET socket on which channels are passed; it is taken over."""
        shim.setblocking(False)
        self._shim: socket.socket | None = shim
        self._channel: Channel | None = None
        self._lock = threading.Lock()
        self._ports: dict[str, InputPort | OutputPort] = {}
        self._rings: dict[int, Ring] = {}
        self._closing = False
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._serve, name="sennit-ports", daemon=True)
        before = threading.stack_size(_STACK_BYTES)
        try:
            self._thread.start()
        finally:
            threading.stack_size(before)
        _open.add(self)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Ports:
        """The ports of this process, made at the first call. Raises `NotAWorkload`, also once they are closed."""
        global _mine  # noqa: PLW0603  # there is one descriptor in the process, so there is one of this
        if _mine is not None and _mine._closing:
            raise NotAWorkload(f"{_CLOSED}, which is for good: close them when no more edges are wanted")
        if _mine is None:
            _mine = cls(_shim_socket(os.environ if environment is None else environment))
        return _mine

    def input(self, name: str) -> InputPort:
        """The input `name`: 1 to 63 lower-case letters, digits and hyphens. Raises `InvalidPort`."""
        port = self._port(name, INGRESS)
        assert isinstance(port, InputPort), "its direction says so"
        return port

    def output(self, name: str) -> OutputPort:
        """The output `name`; see `input`."""
        port = self._port(name, EGRESS)
        assert isinstance(port, OutputPort), "its direction says so"
        return port

    def close(self) -> None:
        """Close every port, end every output's stream and let go of all rings; the program may go on without ports.

        The payload of the newest record of each input is no longer valid. A ring of which another view is kept, such
        as an array, stays mapped until that is dropped. The node cannot be told then: once it wants the memory back it
        ends the program. Drop such views before.
        """
        self._finish()
        self._closing = True
        self._wake()
        if self._thread is not threading.current_thread():
            self._thread.join()
        _open.discard(self)

    def _finish(self) -> None:
        """End the streams of all outputs; returns when the node was told, or a second is over."""
        for port in self._all():
            if isinstance(port, OutputPort):
                port.close()
        channel = self._channel
        if channel is not None:
            channel.drain(LAST_WORDS_S)

    def __enter__(self) -> Ports:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _all(self) -> list[InputPort | OutputPort]:
        with self._lock:
            return list(self._ports.values())

    def _port(self, name: str, direction: str) -> InputPort | OutputPort:
        if not PORT_NAME.fullmatch(name):
            raise InvalidPort(f"{name!r} cannot be a port: use 1 to 63 lower-case letters, digits and hyphens")
        with self._lock:
            port = self._ports.get(name)
            if port is None:
                port = self._ports[name] = InputPort(name) if direction == INGRESS else OutputPort(name)
        if isinstance(port, InputPort) != (direction == INGRESS):
            found = "an input" if isinstance(port, InputPort) else "an output"
            raise InvalidPort(f"port {name} is {found} already; use another name for the other direction")
        return port

    # The serving thread

    def _serve(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # they are the main thread's
        try:
            while not self._closing:
                self._turn()
        finally:
            for port in self._all():
                port.shut(_CLOSED)
            if self._channel is not None:
                self._channel.take_no_more()
                self._hear(self._channel)
                self._drop_channel()
            for port in self._all():
                port.dispose()
            if self._shim is not None:
                self._shim.close()
            with self._lock:
                os.close(self._wake_fd)
                self._wake_fd = -1

    def _turn(self) -> None:
        """Wait for something, and answer it."""
        poller = select.poll()
        poller.register(self._wake_fd, select.POLLIN)
        if self._shim is not None:
            poller.register(self._shim, select.POLLIN)
        if self._channel is not None:
            poller.register(self._channel, select.POLLIN | (select.POLLOUT if self._channel.unsent else 0))
        waiting = [port for port in self._all() if not port.let_go()]
        for fd, _ in poller.poll(RETRY_MS if waiting else None):
            if fd == self._wake_fd:
                os.eventfd_read(fd)
        if self._channel is not None:
            self._hear(self._channel)
        self._take_channels()

    def _take_channels(self) -> None:
        """Channels that came through the shim; a new one takes the place of the one before."""
        while self._shim is not None:
            try:
                text, fds, _ = receive(self._shim, PACKET_BYTES)
            except BlockingIOError:
                return
            except OSError:
                text, fds = b"", []
            if not text and not fds:
                self._shim.close()
                self._shim = None
            elif text == HELLO and len(fds) == 1:
                self._drop_channel()
                self._channel = Channel(socket.socket(fileno=fds[0]), self._wake)
                self._hear(self._channel)
            else:
                close_all(fds)  # for whoever sent them that is an end of file
                print(f"sennit: what came through {SHIM_FD} is not {HELLO.decode()!r}: {text!r}", file=sys.stderr)

    def _hear(self, channel: Channel) -> None:
        channel.flush()
        try:
            while (packet := channel.receive()) is not None:
                self._obey(packet, channel)
        except EOFError:
            self._drop_channel()

    def _drop_channel(self) -> None:
        """The edges process is gone, and its rings with it; or the ports are closed, and it is told what is let go."""
        channel, self._channel = self._channel, None
        if channel is None:
            return
        for port, link in self._rings.values():
            port.uninstalled(link)
        self._rings.clear()
        channel.drain(LAST_WORDS_S)
        channel.close()

    def _obey(self, packet: Packet, channel: Channel) -> None:
        self._rings = {number: ring for number, ring in self._rings.items() if not ring[1].closed}
        try:
            if packet.do == "install":
                self._install(packet, channel)
            elif packet.do == "uninstall":
                self._uninstall(packet, channel)
            else:
                self._end(packet)
        except Refusal as refusal:
            close_all(packet.fds)
            channel.refused(packet.ring, refusal)
        finally:
            close_all(packet.fds)

    def _install(self, packet: Packet, channel: Channel) -> None:
        known = self._rings.get(packet.ring)
        if known is not None:
            if known[1].retired:
                raise Refusal(f"ring {packet.ring} was uninstalled and is still looked at")
            close_all(packet.fds)
            channel.tell("installed", packet.ring)
            return
        if self._closing:
            raise Refusal(_CLOSED)
        if len(self._rings) >= MAX_RINGS:
            raise Refusal(f"a workload has at most {MAX_RINGS} rings")
        link: Link = Source(packet, channel) if packet.direction == INGRESS else Sink(packet, channel)
        try:
            port: Port[Any] = self._port(packet.port, packet.direction)
            port.installed(link)
        except (InvalidPort, Refusal) as error:
            link.abandon()
            raise error if isinstance(error, Refusal) else Refusal(str(error)) from error
        self._rings[packet.ring] = (port, link)

    def _uninstall(self, packet: Packet, channel: Channel) -> None:
        known = self._rings.get(packet.ring)
        if known is None:
            channel.tell("quiesced", packet.ring)  # nothing of it is mapped
            return
        known[0].uninstalled(known[1])

    def _end(self, packet: Packet) -> None:
        known = self._rings.get(packet.ring)
        if known is None or known[1].retired:
            return  # the end crossed with the workload's own letting go
        port, link = known
        if not isinstance(port, InputPort) or not isinstance(link, Source):
            raise Refusal(f"ring {packet.ring} is an output: only this workload ends its stream")
        port.ended(link)

    def _wake(self) -> None:
        with self._lock:
            if self._wake_fd >= 0:
                os.eventfd_write(self._wake_fd, 1)

    def _forked(self) -> None:
        """In a fork, which has no serving thread: the rings stay the workload's."""
        self._closing = True
        self._lock = threading.Lock()
        for port in self._ports.values():
            _kept.extend(port.forked())
        _kept.extend(kept for _, link in self._rings.values() if (kept := link.abandon()) is not None)
        self._rings.clear()
        os.close(self._wake_fd)
        self._wake_fd = -1
        if self._shim is not None:
            self._shim.close()
        if self._channel is not None:
            self._channel.forked()


_CLOSED = "the ports of this process are closed"

_mine: Ports | None = None
_open: set[Ports] = set()
_kept: list[object] = []
"""In a fork: mappings that are not there, and must not be unmapped either."""


def _shim_socket(environment: Mapping[str, str]) -> socket.socket:
    text = environment.get(SHIM_FD)
    if text is None:
        raise NotAWorkload(
            f"{SHIM_FD} is not set: this program is not run by a node; place it with `sennit place`, or hand the ports "
            "of a test to it"
        )
    try:
        shim = socket.socket(fileno=int(text))
    except (OSError, ValueError) as error:
        raise NotAWorkload(
            f"{SHIM_FD} is {text!r}, which is no socket here ({error}): only the program that the node started has "
            "ports, not the programs that it starts itself"
        ) from None
    if shim.family != socket.AF_UNIX or shim.type != socket.SOCK_SEQPACKET:
        shim.detach()
        raise NotAWorkload(f"{SHIM_FD} is {text!r}, which is a socket of another kind; unset it")
    os.set_inheritable(shim.fileno(), False)
    return shim


def _at_exit() -> None:
    """A program that ends in order ends its streams; one that died of an exception leaves them unfinished."""
    if getattr(sys, "last_value", None) is None:
        for ports in list(_open):
            ports._finish()


def _in_fork() -> None:
    global _mine  # noqa: PLW0603
    _mine = None
    for ports in list(_open):
        ports._forked()
    _open.clear()


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_in_fork)

__all__ = ["MAX_RINGS", "Ports"]
