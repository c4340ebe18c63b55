"""A set of ids that are handed out one after the other: it keeps spans, so it stays small however many there were."""

from __future__ import annotations

from bisect import bisect_right


class IdSpans:
    """Whole numbers as half-open spans, ascending and never touching each other."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def __contains__(self, number: int) -> bool:
        place = bisect_right(self._starts, number) - 1
        return place >= 0 and number < self._ends[place]

    def __len__(self) -> int:
        """How many spans there are."""
        return len(self._starts)

    def add(self, number: int) -> None:
        if number in self:
            return
        place = bisect_right(self._starts, number)
        follows = place > 0 and self._ends[place - 1] == number
        precedes = place < len(self._starts) and self._starts[place] == number + 1
        if follows and precedes:
            self._ends[place - 1] = self._ends[place]
            del self._starts[place], self._ends[place]
        elif follows:
            self._ends[place - 1] = number + 1
        elif precedes:
            self._starts[place] = number
        else:
            self._starts.insert(place, number)
            self._ends.insert(place, number + 1)

    def discard(self, number: int) -> None:
        if number not in self:
            return
        place = bisect_right(self._starts, number) - 1
        start, end = self._starts[place], self._ends[place]
        spans = [(start, number), (number + 1, end)]
        self._starts[place : place + 1] = [start for start, end in spans if start < end]
        self._ends[place : place + 1] = [end for start, end in spans if start < end]
