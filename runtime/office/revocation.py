"""Revoked keys (design 5): what they say is dropped from the moment of the call, their connections are cut.

libzmq cannot end one connection of a ROUTER. It does tell on which descriptor a message came, and a socket that is
shut down ends the connection at both ends at once.
"""

from __future__ import annotations

import os
import socket
import stat
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field

import zmq


@dataclass(frozen=True, slots=True)
class Connection:
    """The descriptor that libzmq reads a peer from and the socket behind it: numbers of descriptors are used again."""

    descriptor: int
    inode: int

    @classmethod
    def of(cls, frame: zmq.Frame) -> Connection | None:
        """Where a frame came from; None when that is closed already."""
        descriptor = int(frame.get(zmq.SRCFD))
        inode = _inode(descriptor)
        return None if inode is None else cls(descriptor, inode)

    def cut(self) -> bool:
        """Shut the socket down for both directions; False when it is closed, or its number is another's now."""
        try:
            same = os.dup(self.descriptor)  # from here on nobody else can take the number
        except OSError:
            return False
        if _inode(same) != self.inode:
            os.close(same)
            return False
        with socket.socket(fileno=same) as ours, suppress(OSError):  # the peer may have left
            ours.shutdown(socket.SHUT_RDWR)
        return True


def _inode(descriptor: int) -> int | None:
    """None unless it is an open socket."""
    try:
        status = os.fstat(descriptor)
    except OSError:
        return None
    return status.st_ino if stat.S_ISSOCK(status.st_mode) else None


@dataclass(slots=True)
class Revocations:
    """Whose key is revoked, and on which connection each guest (by its routing id) is.

    `names` and `due` may be used by any thread, the rest by the office's.
    """

    names: set[str] = field(default_factory=set)
    due: deque[str] = field(default_factory=deque)
    """Revoked, and the office has not acted yet."""

    _connections: dict[bytes, Connection] = field(default_factory=dict)
    _cut: set[bytes] = field(default_factory=set)

    def revoke(self, name: str) -> None:
        if name not in self.names:
            self.names.add(name)
            self.due.append(name)

    def entered(self, identity: bytes, frame: zmq.Frame) -> None:
        """A guest said HELLO with this frame."""
        connection = Connection.of(frame)
        if connection is not None:
            self._connections[identity] = connection

    def left(self, identity: bytes) -> None:
        self._connections.pop(identity, None)

    def cut(self, identity: bytes) -> None:
        """End the connection of a guest."""
        self._cut.add(identity)
        connection = self._connections.pop(identity, None)
        if connection is not None:
            connection.cut()

    def cut_stranger(self, identity: bytes, frame: zmq.Frame) -> None:
        """End a connection that was admitted before the revocation and first spoke after it.

        More of its frames may follow, when its descriptor is another's: that one is left alone.
        """
        if identity not in self._cut:
            self._cut.add(identity)
            connection = Connection.of(frame)
            if connection is not None and connection not in self._connections.values():
                connection.cut()
