"""Who may connect: the ZAP handler of a listening post office (design 5, RFC 27/ZAP).

Without a handler, or with a handler and no domain, libzmq admits everyone; so the handler is bound before any server
socket and `ZAP_ENFORCE_DOMAIN` is set. The user id of an admitted connection is the process name its key belongs to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import zmq

DOMAIN = b"sennit"
ENDPOINT = "inproc://zeromq.zap.01"


class Admission:
    """`names` maps transport keys (32 bytes) to process names; nobody else gets in."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], names: Mapping[bytes, str], refused: Callable[[str], None]
    ) -> None:
        self._names = dict(names)
        self._refused = refused
        self.socket = context.socket(zmq.ROUTER)
        self.socket.linger = 0
        self.socket.bind(ENDPOINT)

    def answer(self) -> None:
        """Judge every waiting request."""
        while True:
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            route, _, version, request, domain, address, _, mechanism, *credentials = [*frames, b"", b"", b"", b""][
                : max(9, len(frames))
            ]
            name = None
            if version == b"1.0" and domain == DOMAIN and mechanism == b"CURVE" and len(credentials) >= 1:
                name = self._names.get(credentials[0])
            if name is None:
                self._refused(f"{address.decode(errors='replace') or 'ipc'}: its key is not in the directory")
                reply = [b"400", b"key not listed", b"", b""]
            else:
                reply = [b"200", b"OK", name.encode(), b""]
            self.socket.send_multipart([route, b"", b"1.0", request, *reply])

    def revoke(self, name: str) -> None:
        """Its key is not listed any more."""
        self._names = {key: listed for key, listed in self._names.items() if listed != name}

    def close(self) -> None:
        self.socket.close()
