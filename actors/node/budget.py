"""How many refusals of strangers reach the chain (P 7.10): they are all answered, and cannot grow it without limit."""

from __future__ import annotations


class RefusalBudget:
    """A fixed window; times are seconds of any clock that does not go back."""

    def __init__(self, limit: int = 16, window_s: float = 60.0) -> None:
        self._limit = limit
        self._window_s = window_s
        self._since: float | None = None
        self._taken = 0
        self.suppressed = 0

    def take(self, now_s: float) -> int | None:
        """How many were suppressed since the last one that was chained; None when this one is suppressed too."""
        if self._since is None or now_s - self._since >= self._window_s:
            self._since, self._taken = now_s, 0
        if self._taken >= self._limit:
            self.suppressed += 1
            return None
        self._taken += 1
        suppressed, self.suppressed = self.suppressed, 0
        return suppressed
