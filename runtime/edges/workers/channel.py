"""The channel of an edges process to one run of a workload: SEQPACKET, made once, used for all its rings (design 7).

Nothing here waits. What the workload does not take stays in a backlog, which the number of its rings bounds. Installs
go out few at a time: descriptors in flight count against the user that sends them, so a workload that reads nothing
could keep every other one from getting its own.
"""

from __future__ import annotations

import errno
import socket
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from messages.edge import RingId
from runtime.edges.workers.packets import PACKET_BYTES, Installed, Refused, Reply

INSTALLS_AT_ONCE = 4
"""Installs that the workload has not answered yet."""

RECEIVED_AT_ONCE = 32
"""Packets taken before others have their turn."""

_SO_PASSRIGHTS = 83
"""Linux 6.16; `socket` does not name it yet."""

_SCARCE = frozenset({errno.ENOBUFS, errno.ENOMEM, errno.ETOOMANYREFS})
"""The system is short of something; nothing tells when it has more."""

Rights = Callable[[RingId], tuple[int, int, int]]
"""Descriptors of a ring: arena, `data`, `space`. Raises `KeyError` when there is no such ring (any more)."""


class ChannelEnded(Exception):
    """The workload's end is closed."""


@dataclass(frozen=True, slots=True)
class _Order:
    ring: RingId
    packet: bytes
    install: bool


class Channel:
    """`theirs` is the workload's end, to be passed on and closed. Silent until `open` is called.

    After a `flush`, orders wait for room in the socket (`stuck`) or for the system (`scarce`), or for nothing any more
    (`deaf`): the workload takes none. What it said before may still be to be read, and only its end ends the channel.
    """

    def __init__(self, rights: Rights) -> None:
        self._socket, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setblocking(False)
        with suppress(OSError):  # an older kernel
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_PASSRIGHTS, 0)
        self._rights = rights
        self._backlog: deque[_Order] = deque()
        self._unanswered: set[RingId] = set()
        self._open = False
        self.stuck = False
        self.scarce = False
        self.deaf = False

    def fileno(self) -> int:
        return self._socket.fileno()

    def open(self) -> None:
        """The workload has taken its end: orders may go out with the next `flush`."""
        self._open = True

    def put(self, ring: RingId, packet: bytes, *, install: bool = False) -> None:
        """Send `packet` about `ring` after those before it, with the next `flush`."""
        self._backlog.append(_Order(ring, packet, install))

    def recall(self, ring: RingId) -> bool:
        """Forget what waits about `ring`. True: its install was among it, so the workload never saw the ring."""
        unseen = ring in self.unseen()
        self._backlog = deque(one for one in self._backlog if one.ring != ring)
        return unseen

    def unseen(self) -> list[RingId]:
        """Rings whose install waits still."""
        return [one.ring for one in self._backlog if one.install]

    def heard(self, reply: Reply) -> None:
        """Take note of which install it answers: there is room for another then."""
        if isinstance(reply, Installed | Refused):
            self._unanswered.discard(RingId(reply.ring))

    def flush(self) -> list[RingId]:
        """Send what can be sent; returns rings whose install was dropped since they are no more."""
        dropped: list[RingId] = []
        self.stuck = self.scarce = False
        while self._backlog and self._open and not self.deaf:
            order = self._backlog[0]
            if order.install and len(self._unanswered) >= INSTALLS_AT_ONCE:
                break
            try:
                fds = self._rights(order.ring) if order.install else ()
                socket.send_fds(self._socket, [order.packet], list(fds))
            except KeyError:
                dropped.append(order.ring)
            except BlockingIOError:
                self.stuck = True
                break
            except OSError as error:
                if error.errno in _SCARCE:
                    self.scarce = True
                else:
                    self.deaf = True
                break
            else:
                if order.install:
                    self._unanswered.add(order.ring)
            self._backlog.popleft()
        return dropped

    def receive(self) -> Iterator[bytes]:
        """A few packets, cut to one byte more than a packet may have. Raises `ChannelEnded` at the end of them all.

        A workload cannot send descriptors: to drop the last one of a socket that lingers would wait as long as it
        lingers. Before Linux 6.16 it can, and the kernel closes them here.
        """
        for _ in range(RECEIVED_AT_ONCE):
            try:
                packet = self._socket.recv(PACKET_BYTES + 1)
            except BlockingIOError:
                return
            except ConnectionResetError:
                continue  # it closed without reading all; what it said before that comes next
            except OSError as error:
                raise ChannelEnded(f"the channel to the workload failed: {error.strerror}") from error
            if not packet:
                raise ChannelEnded("the workload has closed its channel")
            yield packet

    def close(self) -> None:
        for one in (self._socket, self.theirs):
            with suppress(OSError):
                one.close()


__all__ = ["Channel", "ChannelEnded", "Rights"]
