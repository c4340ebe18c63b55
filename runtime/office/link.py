"""What two ends of a link know of each other (design 5): order, duplicates, gaps, acknowledgements.

Pure. Sequences count envelopes from one sender incarnation to one peer, from 1. They go on over a reconnect of the
same two incarnations, so what a broken connection swallowed shows as a gap at one end and as `unconfirmed` at the
other.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from messages.base import Address
from runtime.kernel.envelope import Envelope

AskKey = tuple[Address, int]


@dataclass(slots=True, eq=False)
class Link:
    """`incarnation` is the peer's. `asks` are those sent and not answered yet; `route` is where answers go."""

    peer: str
    incarnation: int
    up: bool = True
    sent: int = 0
    acknowledged: int = 0
    received: int = 0
    count_received: int = 0
    duplicates: int = 0
    gaps: int = 0
    unconfirmed: int = 0
    asks: dict[AskKey, Envelope] = field(default_factory=dict)
    route: object = None

    def left(self, envelopes: int) -> None:
        """So many, numbered on from `sent`, are with the socket now."""
        self.sent += envelopes

    def arrived(self, sequence: int) -> bool:
        """False for a duplicate, which is dropped. A jump is a gap of that many lost envelopes."""
        if sequence <= self.received:
            self.duplicates += 1
            return False
        self.gaps += sequence - self.received - 1
        self.received = sequence
        self.count_received += 1
        return True

    def acknowledge(self, sequence: int) -> None:
        """The peer has everything up to `sequence` (cumulative; a lie beyond what was sent counts as that)."""
        self.acknowledged = max(self.acknowledged, min(sequence, self.sent))

    def begin(self, sent: int, received: int) -> None:
        """The first connection of the two incarnations: both counts start where the HELLOs say."""
        self.sent = self.acknowledged = sent
        self.received = received

    def again(self, sent_by_peer: int) -> None:
        """A new connection of the same two: what the peer sent and we never saw is a gap.

        A peer that sent less than we saw has forgotten us meanwhile and counts anew; were it held to the old count,
        all that it says would be dropped as said before.
        """
        self.up = True
        self.gaps += max(0, sent_by_peer - self.received)
        self.received = sent_by_peer

    def ended(self) -> int:
        """The connection is gone. Returns how many envelopes stay unconfirmed; they are never sent again."""
        self.up = False
        lost = self.sent - self.acknowledged
        self.unconfirmed += lost
        self.acknowledged = self.sent
        return lost
