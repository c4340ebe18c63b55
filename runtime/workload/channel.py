"""The channel between a workload and its node's edges process: packets, read strictly (docs/edges.md).

Each packet of the SOCK_SEQPACKET socket is one JSON object of at most 4096 bytes; `install` brings three descriptors.
The node is told everything by `tell`, from any thread, and nobody ever waits for it.
"""

from __future__ import annotations

import json
import os
import re
import select
import socket
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from threading import Lock
from typing import TypeGuard

HELLO = b"edges 1"
"""The text with which a channel comes through `SENNIT_SHIM_FD`; the number is the version of all this."""

PACKET_BYTES = 4096
MAX_FDS = 8

INGRESS, EGRESS = "ingress", "egress"
WORKER_REFUSED = "worker_refused"

PORT_NAME = re.compile(r"[a-z0-9-]{1,63}")
_NUMBERS = (
    "ring", "edge", "offset", "header", "data", "end", "capacity", "generation", "max_extent", "alignment",
)  # fmt: skip
_MEMBERS = {
    "install": {"do", "port", "direction", *_NUMBERS},
    "uninstall": {"do", "ring", "reason"},
    "end": {"do", "ring"},
}
_TEXT_CHARACTERS = 300  # twelve bytes each at most, once escaped


class Refusal(Exception):
    """What the node asked for cannot be done. `code` and `text` are what it is told."""

    def __init__(self, text: str, code: str = WORKER_REFUSED) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class Packet:
    """One order of the node: `do` is install, uninstall or end, with every member of it checked for its type.

    `numbers` has what an install says, all unsigned 64-bit; `fds` belong to whoever took the packet.
    """

    __slots__ = ("direction", "do", "fds", "numbers", "port", "reason", "ring")

    def __init__(self, members: dict[str, object], fds: list[int]) -> None:
        self.fds = fds
        ring = members.get("ring")
        self.ring = ring if _is_u64(ring) else 0
        self.do = str(members.get("do"))
        expected = _MEMBERS.get(self.do)
        if expected is None:
            raise Refusal(f"unknown order {self.do!r}: {', '.join(_MEMBERS)}")
        if members.keys() != expected:
            odd = ", ".join(sorted(members.keys() ^ expected))
            raise Refusal(f"{self.do} has members missing or unknown: {odd}")
        self.numbers = {name: self._number(members, name) for name in _NUMBERS if name in expected}
        self.port = str(members.get("port", ""))
        self.direction = str(members.get("direction", ""))
        self.reason = str(members.get("reason", ""))
        if self.do == "install":
            if not PORT_NAME.fullmatch(self.port):
                raise Refusal(f"{self.port!r} cannot be a port: 1 to 63 lower-case letters, digits and hyphens")
            if self.direction not in (INGRESS, EGRESS):
                raise Refusal(f"direction {self.direction!r} is neither {INGRESS} nor {EGRESS}")

    @staticmethod
    def _number(members: dict[str, object], name: str) -> int:
        value = members[name]
        if not _is_u64(value):
            raise Refusal(f"{name} is {value!r}, it must be a number from 0 to 2^64-1")
        return value


class Channel:
    """This end of one channel. `receive` is for the one thread that serves it, `tell` for all."""

    def __init__(self, connection: socket.socket, on_unsent: Callable[[], None]) -> None:
        """`on_unsent` is called when packets wait for room: then `flush` is due once the socket is writable."""
        connection.setblocking(False)
        self._socket = connection
        self._on_unsent = on_unsent
        self._lock = Lock()
        self._unsent: deque[bytes] = deque()
        self.closed = False

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def unsent(self) -> bool:
        return bool(self._unsent)

    def receive(self) -> Packet | None:
        """The next order, None when there is none now. Raises `EOFError` when the edges process is gone.

        What is not an order is answered `refused` here, its descriptors closed, and skipped.
        """
        while True:
            try:
                raw, fds, flags = receive(self._socket, PACKET_BYTES + 1)
            except BlockingIOError:
                return None
            except OSError as error:
                raise EOFError(str(error)) from error
            if not raw:
                raise EOFError("the edges process closed the channel")
            members: dict[str, object] = {}
            try:
                if len(raw) > PACKET_BYTES:
                    raise Refusal(f"a packet has at most {PACKET_BYTES} bytes")
                members = _object(raw)
                if flags & socket.MSG_CTRUNC:  # the node waits for an answer about this ring
                    raise Refusal("descriptors were lost: too many came, or this process has no room for more")
                return Packet(members, fds)
            except Refusal as refusal:
                close_all(fds)
                ring = members.get("ring")
                self.refused(ring if _is_u64(ring) else 0, refusal)

    def tell(self, did: str, ring: int, **more: str) -> None:
        """Queue one packet for the node and send what can be sent."""
        packet: dict[str, object] = {"did": did, "ring": ring}
        packet.update({name: text[:_TEXT_CHARACTERS] for name, text in more.items()})
        with self._lock:
            if self.closed:
                return
            self._unsent.append(json.dumps(packet, separators=(",", ":")).encode("ascii"))
        self.flush()

    def refused(self, ring: int, refusal: Refusal) -> None:
        self.tell("refused", ring, code=refusal.code, text=refusal.text)

    def flush(self) -> None:
        with self._lock:
            while self._unsent and not self.closed:
                try:
                    self._socket.send(self._unsent[0])
                except BlockingIOError:
                    break
                except OSError:
                    self._unsent.clear()  # the node is gone; the end of the channel tells it
                    return
                self._unsent.popleft()
            blocked = bool(self._unsent)
        if blocked:
            self._on_unsent()

    def take_no_more(self) -> None:
        """Let no further order come: `receive` gives those that are here, then raises `EOFError`."""
        with suppress(OSError):  # the node is gone
            self._socket.shutdown(socket.SHUT_RD)

    def drain(self, timeout_s: float) -> None:
        """Wait until all is sent, or the node is gone, or the time is over."""
        deadline = time.monotonic() + timeout_s
        while self._unsent and (left_s := deadline - time.monotonic()) > 0:
            poller = select.poll()
            with suppress(ValueError):  # closed meanwhile
                poller.register(self._socket, select.POLLOUT)
            poller.poll(left_s * 1000)
            self.flush()

    def close(self) -> None:
        with self._lock:
            self.closed = True
            self._unsent.clear()
            self._socket.close()

    def forked(self) -> None:
        """In a fork: close this copy, without the lock, whose holder may not exist here."""
        self.closed = True
        self._socket.close()


def receive(connection: socket.socket, size: int) -> tuple[bytes, list[int], int]:
    """One packet of at most `size` bytes, the descriptors with it, closed on exec, and the flags of `recvmsg`."""
    data, control, flags, _ = connection.recvmsg(size, socket.CMSG_SPACE(4 * MAX_FDS), socket.MSG_CMSG_CLOEXEC)
    fds = [
        int.from_bytes(raw[at : at + 4], sys.byteorder)
        for level, kind, raw in control
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS
        for at in range(0, len(raw) - len(raw) % 4, 4)
    ]
    return data, fds, flags


def close_all(fds: list[int]) -> None:
    while fds:
        os.close(fds.pop())


def _is_u64(value: object) -> TypeGuard[int]:
    return type(value) is int and 0 <= value < 2**64


def _object(raw: bytes) -> dict[str, object]:
    try:
        found = json.loads(raw.decode("utf-8"), object_pairs_hook=_unique)
    except ValueError as error:  # bad UTF-8 too
        raise Refusal(f"a packet is not JSON: {error}") from error
    except RecursionError:
        raise Refusal("a packet is nested too deeply") from None
    if not isinstance(found, dict):
        raise Refusal("a packet is one JSON object")
    return found


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise Refusal("a packet has a member twice")
    return members


__all__ = [
    "EGRESS", "HELLO", "INGRESS", "MAX_FDS", "PACKET_BYTES", "PORT_NAME", "WORKER_REFUSED", "Channel", "Packet",
    "Refusal", "close_all", "receive",
]  # fmt: skip
