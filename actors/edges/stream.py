"""What the two ends of a stream decide (design 7, E 5.3): what may be sent, what is taken, what is told. Pure.

Standard library only; one object per pump. All counters are bytes since the stream began, so nothing wraps and
repetition is harmless. Nothing is sent before the first credit, never beyond the limit it tells, and the sending ring
keeps every byte until the far ring has it. A broken connection costs nothing: the sender opens again and goes on where
the receiver is. Only two pumps that have known each other from the start go on: another incarnation ends the edge.
"""

from __future__ import annotations

from actors.edges.frames import Credit, Fin, Open
from actors.edges.records import quantum_of


class StreamViolation(Exception):
    """The peer broke the rules or is another; the edge ends. `code` is a value of `EdgeFaultCode`."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code
        self.text = text


class OpenRefused(StreamViolation):
    """Somebody may not open this stream; the edge itself is unharmed."""


class SendWindow:
    """The sending end. `acknowledged <= sent <= highest <= min(committed, limit)`.

    `committed`: what the own ring was given; `sent`: up to where the stream is on its way; `highest`: the furthest that
    ever was; `acknowledged`: what the far ring has, and so the own ring may forget.
    """

    __slots__ = (
        "_clean", "_fin_sent", "acknowledged", "awaiting", "capacity", "closing", "committed", "edge", "far",
        "finished", "highest", "incarnation", "limit", "resumed", "run", "sent",
    )  # fmt: skip

    def __init__(self, edge: int, run: int, incarnation: int, capacity: int) -> None:
        self.edge = edge
        self.run = run
        self.incarnation = incarnation
        self.capacity = capacity
        self.committed = self.sent = self.highest = self.acknowledged = self.limit = 0
        self.far: int | None = None
        self.awaiting = True
        self.resumed = 0
        self.closing = self._clean = self._fin_sent = self.finished = False

    @property
    def established(self) -> bool:
        """The far end has taken the stream."""
        return self.far is not None

    def open(self) -> Open:
        """Said on every new connection, and again until it is answered: nothing is sent before the answer."""
        self.awaiting = True
        return Open(self.edge, self.run, self.incarnation, self.capacity, self.far is not None)

    def commit(self, total: int) -> None:
        """So many bytes were put into the own ring so far."""
        assert self.committed <= total <= self.acknowledged + self.capacity
        self.committed = total

    def close(self, clean: bool) -> None:
        """Nothing is committed any more. Only a `clean` end is told to the far end."""
        self.closing = True
        self._clean = clean

    def lost(self) -> None:
        """The connection is gone: what is on its way may never arrive."""
        self.awaiting = True

    def sendable(self) -> int:
        """How many bytes from `sent` on may go now."""
        return 0 if self.awaiting else min(self.committed, self.limit) - self.sent

    def went(self, length: int) -> None:
        """So many of them are with the socket."""
        assert 0 < length <= self.sendable()
        self.sent += length
        self.highest = max(self.highest, self.sent)

    @property
    def stalled(self) -> bool:
        """There is something to send and the far ring has no room."""
        return not self.awaiting and self.sent == self.limit < self.committed

    def fin(self) -> Fin | None:
        """The end of the stream, when all before it is on its way; `fin_went` when it is too."""
        due = self._clean and not (self.awaiting or self._fin_sent or self.finished) and self.sent == self.committed
        return Fin(self.edge, self.run, self.committed) if due else None

    def fin_went(self) -> None:
        self._fin_sent = True

    @property
    def ended(self) -> bool:
        """All that was committed is acknowledged, and nothing more comes."""
        return self.closing and self.acknowledged == self.committed and (self.finished or not self._clean)

    def credit(self, credit: Credit) -> int:
        """Take in a credit; returns how many more bytes are acknowledged. Raises `StreamViolation`.

        One for another incarnation of this pump says nothing, nor do numbers older than those known.
        """
        if credit.to != self.incarnation or credit.run != self.run:
            return 0
        if self.far is None:
            self.far = credit.incarnation
        elif credit.incarnation != self.far:
            raise StreamViolation("peer_restarted", "another pump answers at the far end: it does not know the stream")
        elif self.awaiting:
            self.resumed += 1
        if credit.committed > self.highest:
            raise StreamViolation(
                "malformed_frame", f"{credit.committed} bytes acknowledged, only {self.highest} were ever sent"
            )
        if credit.finished and not (self._clean and credit.committed == self.committed):
            raise StreamViolation("malformed_frame", "the end of the stream is acknowledged before it was told")
        more = max(0, credit.committed - self.acknowledged)
        self.acknowledged += more
        self.limit = max(self.limit, credit.limit)
        self.finished = self.finished or credit.finished
        if self.awaiting or credit.rewind:
            self.sent = max(credit.committed, self.acknowledged)
            self._fin_sent = False
            self.awaiting = False
        else:
            self.sent = max(self.sent, self.acknowledged)
        return more


class ReceiveWindow:
    """The receiving end. `consumed <= committed <= told_limit <= consumed + capacity`.

    `committed`: what is in the own ring, in order, and so what comes next; `told_*`: what the last credit said.
    """

    __slots__ = (
        "_forced", "_gap_at", "_quantum", "_rewind", "_step", "capacity", "committed", "consumed", "duplicates", "edge",
        "far", "finished", "incarnation", "producer", "resumed", "run", "told_committed", "told_limit",
    )  # fmt: skip

    def __init__(self, edge: int, run: int, incarnation: int, capacity: int, producer: str) -> None:
        self.edge = edge
        self.run = run
        self.incarnation = incarnation
        self.capacity = capacity
        self.producer = producer
        self.far: int | None = None
        self.committed = self.consumed = self.told_committed = self.told_limit = 0
        self.duplicates = self.resumed = 0
        self.finished = False
        self._forced = self._rewind = False
        self._gap_at: int | None = None
        self._step = self._quantum = quantum_of(capacity)

    def open(self, frame: Open, process: str) -> None:
        """A pump of `process` wants to send. Raises `OpenRefused` or `StreamViolation`."""
        self.check(process, frame.run)
        if self.far is None and frame.again:
            raise StreamViolation("peer_restarted", "the stream is in its middle, and this end is new")
        if self.far not in (None, frame.incarnation):
            raise StreamViolation("peer_restarted", "another pump of the producer begins the stream again")
        self.resumed += frame.again
        self.far = frame.incarnation
        self._quantum = quantum_of(min(self.capacity, frame.capacity))
        self._gap_at = None
        self._forced = True

    def check(self, process: str, run: int) -> None:
        """Is `process` the producer and `run` this epoch? Raises `OpenRefused`."""
        if process != self.producer:
            raise OpenRefused("not_the_producer", f"{process} is not the producer, {self.producer} is")
        if run < self.run:
            raise OpenRefused("stale_epoch", f"epoch {run} of the edge is over, {self.run} has begun")
        if run > self.run:
            raise OpenRefused("malformed_frame", f"this end of the edge is of epoch {self.run}, not {run}")

    def data(self, offset: int, length: int) -> tuple[int, int]:
        """What to take of these bytes: skip so many, take so many. Raises `StreamViolation`.

        What is known already is a duplicate; of bytes after a gap none are taken, and the sender is told once.
        """
        end = offset + length
        if self.far is None:
            raise StreamViolation("malformed_frame", "data before the stream was opened")
        if end > self.told_limit:
            raise StreamViolation("credit_exceeded", f"data up to {end}, the limit is {self.told_limit}")
        if end <= self.committed:
            self.duplicates += 1
            return length, 0
        if self.finished:
            raise StreamViolation("malformed_frame", f"data up to {end}, the stream ended at {self.committed}")
        if offset > self.committed:
            self._gap()
            return length, 0
        if offset < self.committed:
            self.duplicates += 1
        return self.committed - offset, end - self.committed

    def _gap(self) -> None:
        if self._gap_at != self.committed:
            self._gap_at = self.committed
            self._forced = self._rewind = True

    def commit(self, length: int) -> None:
        """What was to be taken is in the ring."""
        self.committed += length
        assert self.committed <= self.told_limit

    def consume(self, total: int) -> None:
        """The consumer has let go of so many bytes so far."""
        assert self.consumed <= total <= self.committed
        self.consumed = total

    def fin(self, total: int) -> bool:
        """The stream has `total` bytes; true when that makes it complete now. Raises `StreamViolation`."""
        if self.far is None:
            raise StreamViolation("malformed_frame", "the end of a stream that was not opened")
        if total < self.committed or (self.finished and total > self.committed):
            raise StreamViolation("malformed_frame", f"the end at {total}, {self.committed} bytes are here")
        if total > self.committed:
            if total > self.told_limit:
                raise StreamViolation("credit_exceeded", f"the end at {total}, the limit is {self.told_limit}")
            self._gap()
            return False
        first, self.finished, self._forced = not self.finished, True, True
        return first

    @property
    def due(self) -> bool:
        """A credit is to be told at once: it was asked for, lets go of a good part of the far ring, or the sender runs
        short and there is a good part more."""
        return (
            self._forced
            or self.committed - self.told_committed >= self._quantum
            or (
                self.told_limit - self.committed < self.capacity // 2
                and self.consumed + self.capacity - self.told_limit >= self._step
                and self.far is not None
            )
        )

    @property
    def owing(self) -> bool:
        """A credit is to be told when nothing else happens: the sender has not heard of all that is here."""
        return self.far is not None and self.committed != self.told_committed

    @property
    def withheld(self) -> bool:
        """The sender stands still for want of room and there is a little: it is told in a moment, together with what
        comes till then, else every small record would be answered. Were it never told, a record as large as the ring
        would wait for ever."""
        stands = self.far is not None and not self.finished and self.committed == self.told_limit
        return stands and self.told_limit < self.consumed + self.capacity

    def credit(self) -> Credit:
        """What there is to tell; `told` when it has left."""
        assert self.far is not None
        return Credit(
            self.edge, self.run, self.far, self.incarnation, self.committed, self.consumed + self.capacity,
            self._rewind, self.finished,
        )  # fmt: skip

    def told(self, credit: Credit) -> None:
        self.told_committed = credit.committed
        self.told_limit = credit.limit
        self._forced = self._rewind = False
