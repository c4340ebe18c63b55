"""Ports through which objects come in."""

from __future__ import annotations

from collections.abc import Iterator

from runtime.edges.ring import RingFault
from runtime.workload.channel import WORKER_REFUSED, Refusal
from runtime.workload.errors import EndOfStream, ViewHeld
from runtime.workload.port import Port
from runtime.workload.source import Record, Source


class InputPort(Port[Source]):
    """Objects of all edges that lead here, each once and in the order of its edge.

    Of several edges the port reads in turn, each as far as it is filled. A record that breaks the rules ends the life
    of its edge and is never shown: the node is told, `faults` counts it, and the next life begins with sequence 0.

    Views are valid until the next call. One that this program still uses then, such as an array made of a payload,
    keeps its bytes from being given back and stays good; rings have room for two of the largest objects, so an array
    that is replaced in each turn of a loop costs nothing, and a growing list of them stops the edge.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._source: Source | None = None
        """Of the newest record; the one that is read until it has no more."""
        self._ended = 0

    def __iter__(self) -> Iterator[Record]:
        """Records until every producer has closed its port and all is read. Raises `PortClosed`, `ViewHeld`."""
        while True:
            try:
                record = self.receive()
            except EndOfStream:
                return
            yield record

    def receive(self, timeout_s: float | None = None) -> Record:
        """The next object; without a limit of time it is waited for, also through the lives of an edge.

        Raises `PortTimeout`, `EndOfStream`, `PortClosed`, `ViewHeld`.
        """
        with self._lock:
            source = self._source
            record = source.take() if source is not None else None
        if record is not None:
            return record
        return self._await(self._next, timeout_s, "no object came")

    def close(self) -> None:
        """Read no more. Edges that lead here fault, so that their producers do not wait for ever."""
        with self._lock:
            if self._over:
                return
            if self._source is not None:
                self._source.drop()
            self._over = "the workload closed it"
            for source in self._links:
                source.fault(RingFault(WORKER_REFUSED, f"the workload closed its input {self.name}"))
            self._prune()
            self._let_go()
            self._changed()

    def shut(self, why: str) -> None:
        with self._lock:
            if self._source is not None:
                self._source.drop()
        super().shut(why)

    def dispose(self) -> None:
        super().dispose()
        self._source = None

    def ended(self, link: Source) -> None:
        """All of its stream is in the ring."""
        with self._lock:
            link.end_told = True
            self._changed()

    def _admit(self, link: Source) -> None:
        if self._over:
            raise Refusal(f"input {self.name} is closed: {self._over}")
        link.lock = self._lock

    def _next(self) -> Record | None:
        source = self._source
        if source is not None:
            record = source.take()
            if record is not None:
                return record
            source.drop()
        return self._look()

    def _look(self) -> Record | None:
        """Go on with the next edge that has something."""
        self._let_go()
        sources = self._links
        first = sources.index(self._source) + 1 if self._source in sources else 0
        for source in sources[first:] + sources[:first]:
            source.refill()
            record = source.take()
            if record is not None:
                self._source = source
                return record
        self._settle()
        return None

    def _settle(self) -> None:
        """There is nothing to read: give everything back, and see whether anything is to be waited for."""
        for source in list(self._links):
            source.give_back()
            if source.usable and source.end_told:
                cut = source.cut_short()
                if cut is not None:
                    source.fault(cut)
                    continue
                self._links = [other for other in self._links if other is not source]
                self._ended += 1
                source.channel.tell("closed", source.ring_id)
        self._prune()
        self._check_open()
        if self._ended and not self._links and not self._lost:
            self._ended = 0
            raise EndOfStream(f"port {self.name}: every producer has closed its end, and all of it was read")
        if any(source.stuck() for source in self._links):
            raise ViewHeld(
                f"port {self.name}: this program still uses views of records that fill the whole ring; drop them, or "
                "copy what is to be kept with bytes(record.payload)"
            )

    def _waits_for(self, link: Source) -> int | None:
        return link.data_fd


__all__ = ["InputPort"]
