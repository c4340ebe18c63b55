"""Sockets as this project opens them (design 5): which options, which keys, what their monitors say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from struct import Struct

import zmq

from runtime.kernel.envelope import MAX_HEADER_BYTES, MAX_MESSAGE_BYTES
from runtime.office.admission import DOMAIN
from runtime.office.listen import ListenFault

HIGH_WATER = 10_000
"""ZeroMQ messages that a connection holds: beyond, senders are refused."""

RECONNECT_MS = 20
RECONNECT_MAX_MS = 500
HEARTBEAT_MS = 1_000
HEARTBEAT_TIMEOUT_MS = 3_000
FAREWELL_MS = 50
"""How long a closing office tries to get its last words out."""

_HANDSHAKE_FAILED = (
    zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
)
_EVENT = Struct("=HI")  # zmq_socket_monitor(3): event and value, in the order of the machine
_POLLIN, _EVENTS = int(zmq.POLLIN), int(zmq.EVENTS)  # the enums of pyzmq cost more than what they ask

Socket = zmq.Socket[bytes]


@dataclass(frozen=True, kw_only=True)
class Keys:
    """Curve25519: the own pair, and the public keys of every process that may be met (32 bytes each)."""

    public: bytes
    secret: bytes = field(repr=False)
    peers: Mapping[str, bytes]


class Sockets:
    """The sockets of one office: one context, made, used and ended by one thread.

    `high_water`: messages that a connection holds in each direction; `max_message_bytes`: a peer that sends a larger
    part loses its connection. By default those of an office.
    """

    def __init__(self, keys: Keys, *, high_water: int | None = None, max_message_bytes: int | None = None) -> None:
        self._keys = keys
        self._high_water = HIGH_WATER if high_water is None else high_water
        self._max_message_bytes = (
            MAX_MESSAGE_BYTES + MAX_HEADER_BYTES if max_message_bytes is None else max_message_bytes
        )
        self.context = zmq.Context(io_threads=1)
        self.context.linger = 0

    def router(self, endpoint: str) -> tuple[Socket, Socket]:
        """A listening socket and its monitor. Raises `ListenFault`."""
        router = self._socket(zmq.ROUTER)
        router.curve_server = True
        router.zap_domain = DOMAIN
        router.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
        router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        monitor = router.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        try:
            router.bind(endpoint)
        except zmq.ZMQError as error:
            raise ListenFault(
                f"cannot listen on {endpoint}: {error}; another program may use the port (ss -ltnp), "
                "or the host is not this one: set [endpoints] in cluster.toml"
            ) from None
        return router, monitor

    def dealer(self, peer: str, endpoint: str) -> tuple[Socket, Socket]:
        """A socket that dials `peer`, and its monitor."""
        dealer = self._socket(zmq.DEALER)
        dealer.setsockopt(zmq.IMMEDIATE, 1)
        dealer.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
        dealer.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MAX_MS)
        dealer.setsockopt(zmq.CURVE_SERVERKEY, self._keys.peers[peer])
        monitor = dealer.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | _HANDSHAKE_FAILED)
        dealer.connect(endpoint)
        return dealer, monitor

    def close(self) -> None:
        """With every socket that was opened, a half-open office's too."""
        self.context.destroy(linger=FAREWELL_MS)

    def _socket(self, kind: int) -> Socket:
        socket = self.context.socket(kind)
        socket.linger = 0
        socket.setsockopt(zmq.MAXMSGSIZE, self._max_message_bytes)
        socket.setsockopt(zmq.SNDHWM, self._high_water)
        socket.setsockopt(zmq.RCVHWM, self._high_water)
        socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS)
        socket.setsockopt(zmq.CURVE_PUBLICKEY, self._keys.public)
        socket.setsockopt(zmq.CURVE_SECRETKEY, self._keys.secret)
        return socket


def readable(socket: Socket) -> bool:
    """Cheaper than a read that is refused."""
    events = socket.getsockopt(_EVENTS)
    return isinstance(events, int) and bool(events & _POLLIN)


def user_of(frame: zmq.Frame) -> str:
    """The process whose key the connection has, as admission said."""
    user = frame.get("User-Id")
    return user if isinstance(user, str) else bytes(user).decode()


def events_of(monitor: Socket) -> list[int]:
    """What a monitor has seen since the last look."""
    found = []
    while True:
        try:
            # pyzmq has a parser for this, beside an asyncio that costs each process 4 MB and a quarter of its start
            found.append(_EVENT.unpack_from(monitor.recv_multipart(zmq.NOBLOCK)[0])[0])
        except zmq.Again:
            return found
