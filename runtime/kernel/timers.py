"""The timers of one actor: what is due when, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush

KEPT = 64
"""Cancelled timers beyond this and twice those that count are swept out."""


class Timers:
    def __init__(self) -> None:
        self._works: dict[int, Callable[[], None]] = {}
        self._heap: list[tuple[float, int]] = []
        self._last = 0

    def add(self, at: float, work: Callable[[], None]) -> int:
        """Have `work` done at `at` (monotonic seconds); returns a number for `cancel`."""
        self._last += 1
        self._works[self._last] = work
        heappush(self._heap, (at, self._last))
        return self._last

    def cancel(self, timer: int) -> None:
        self._works.pop(timer, None)
        if len(self._heap) > KEPT + 2 * len(self._works):
            self._heap = [entry for entry in self._heap if entry[1] in self._works]
            heapify(self._heap)

    def due(self, now: float) -> Iterator[Callable[[], None]]:
        """What is due, one after the other; each may add and cancel."""
        while self._heap and self._heap[0][0] <= now:
            work = self._works.pop(heappop(self._heap)[1], None)
            if work is not None:
                yield work

    def earliest(self) -> float | None:
        while self._heap and self._heap[0][1] not in self._works:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def clear(self) -> None:
        self._works.clear()
        self._heap.clear()

    def __len__(self) -> int:
        return len(self._works)
