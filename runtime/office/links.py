"""Who an office is linked with (design 5): peers that it dials, and guests that dialled it, by connection and by name.

Of a guest's name the newest connection takes its mail. A link is known by peer and incarnation and stays in the table
after its end, since the same two incarnations may meet again; when another incarnation comes, what it counted is kept.
One thread changes the table; `reaches` and `rows` may be called by any.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from messages.base import NodeName
from messages.system import LinkRow
from runtime.kernel.envelope import Envelope, process_of
from runtime.office.link import Link
from runtime.office.sockets import Socket

COUNTED = ("duplicates", "gaps", "unconfirmed")


@dataclass(slots=True)
class Door:
    """A DEALER to one peer that this process dials."""

    peer: str
    socket: Socket
    monitor: Socket
    link: Link | None = None
    greeting: bool = False
    greeted_with: int = 0
    warned: bool = False


@dataclass(slots=True, frozen=True)
class Route:
    """Where an envelope came in; its answer leaves by the same connection, and to the same life of the peer only.

    `office` is whose table this is: links of several offices lead to one process.
    """

    office: object
    peer: str
    identity: bytes
    incarnation: int


class Links:
    """The table. `doors` by peer; a guest's connection is named by its routing id."""

    def __init__(self, office: object) -> None:
        self._office = office
        self.doors: dict[str, Door] = {}
        self._guests: dict[bytes, Link] = {}
        self._newest: dict[str, bytes] = {}
        self._known: dict[tuple[str, int], Link] = {}

    # any thread

    def reaches(self, process: str) -> bool:
        """Whether a link to `process` is up now."""
        door = self.doors.get(process)
        if door is not None:
            return door.link is not None and door.link.up
        return process in self._newest

    def rows(self, plane: str) -> list[LinkRow]:
        return [
            LinkRow(
                process=NodeName(link.peer),
                plane=plane,
                up=link.up,
                incarnation=link.incarnation,
                sent=link.sent,
                received=link.count_received,
                unacknowledged=link.sent - link.acknowledged,
                duplicates=link.duplicates,
                gaps=link.gaps,
                unconfirmed=link.unconfirmed,
            )
            for link in [*self._known.values()]
        ]

    # the office's thread

    @property
    def known(self) -> list[Link]:
        return list(self._known.values())

    @property
    def guests(self) -> list[tuple[bytes, Link]]:
        return list(self._guests.items())

    def guest(self, identity: bytes) -> Link | None:
        return self._guests.get(identity)

    def of(self, peer: str, identity: bytes) -> Link | None:
        """Whose frames come from there."""
        door = self.doors.get(peer)
        return self._guests.get(identity) if door is None else door.link

    def way_to(self, envelope: Envelope) -> tuple[str, bytes, Link] | None:
        """Peer, connection (empty for a door) and link that an envelope leaves by; None while there is none."""
        route: Route | None = envelope.route
        peer = process_of(envelope.to) if route is None else route.peer
        door = self.doors.get(peer)
        if door is not None:
            identity, link = b"", door.link
        else:
            identity = self._newest.get(peer, b"") if route is None else route.identity
            link = self._guests.get(identity)
        if link is None or not link.up or (route is not None and route.incarnation != link.incarnation):
            return None
        return peer, identity, link

    def met(self, peer: str, incarnation: int) -> Link | None:
        """The link of an incarnation that was met before and is not forgotten."""
        return self._known.get((peer, incarnation))

    def meet(self, peer: str, incarnation: int, sequence: int) -> Link:
        """A peer said HELLO and had sent `sequence` envelopes before it: its link, up."""
        link = self._known.get((peer, incarnation))
        if link is not None:
            link.again(sequence)
            return link
        door = self.doors.get(peer)
        link = self._known[(peer, incarnation)] = Link(peer, incarnation)
        link.begin(0 if door is None else door.greeted_with, sequence)
        return link

    def open_door(self, door: Door, link: Link) -> Link | None:
        """The peer behind a door has answered; returns the link to its incarnation before, if that was still up."""
        previous, door.link, door.warned = door.link, link, False
        link.route = Route(self._office, door.peer, b"", link.incarnation)
        return previous if previous is not None and previous is not link and previous.up else None

    def enter(self, identity: bytes, link: Link) -> bytes | None:
        """A guest has come in; returns its older connection, if there is one."""
        older = self._newest.get(link.peer)
        self._guests[identity] = link
        self._newest[link.peer] = identity
        link.route = Route(self._office, link.peer, identity, link.incarnation)
        return older if older != identity else None

    def leave(self, identity: bytes) -> Link | None:
        """A guest's connection is gone; returns its link when that was the last one it had."""
        link = self._guests.pop(identity, None)
        if link is None:
            return None
        if self._newest.get(link.peer) == identity:
            del self._newest[link.peer]
        return link if link not in self._guests.values() else None

    def forget_ended(self, peer: str) -> Counter[str]:
        """Drop the links to ended incarnations of a peer; returns what they had counted."""
        counted: Counter[str] = Counter()
        for key, link in list(self._known.items()):
            if key[0] == peer and not link.up:
                del self._known[key]
                counted.update({what: getattr(link, what) for what in COUNTED})
        return counted

    def clear_guests(self) -> None:
        self._guests.clear()
        self._newest.clear()


__all__ = ["Door", "Links", "Route"]
