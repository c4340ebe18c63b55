"""A bounded mailbox with lanes (design 3): control overtakes, replies and timers have reserved room.

Filled by any thread, emptied by the one thread of its actor. It never blocks: what does not fit is refused to the
sender.
"""

from __future__ import annotations

from collections import deque
from threading import Lock
from typing import Generic, TypeVar

Item = TypeVar("Item")

MAX_MESSAGES = 1_000
MAX_BYTES = 64 * 1024 * 1024


class Mailbox(Generic[Item]):
    """`put*` return True when the owner must be woken, None when nothing was taken: full, or closed for good.

    Ordinary items are bounded in number and bytes, control items in number; what the kernel itself `must` say (a
    stop, the end of a watched actor) is always taken.
    """

    def __init__(self, max_messages: int = MAX_MESSAGES, max_bytes: int = MAX_BYTES) -> None:
        self.max_messages = max_messages
        self.max_bytes = max_bytes
        self.suspended = False
        self.closed = False
        self.high = 0
        self._control: deque[Item] = deque()
        self._reserved: deque[Item] = deque()
        self._ordinary: deque[tuple[Item, int]] = deque()
        self._bytes = 0
        self._awake = False
        self._lock = Lock()

    def put_control(self, item: Item, *, must: bool = False) -> bool | None:
        with self._lock:
            if self.closed or (len(self._control) >= self.max_messages and not must):
                return None
            self._control.append(item)
            return self._wake()

    def put_reserved(self, item: Item) -> bool | None:
        """For answers and timers: as many as the actor asked for, so bounded by itself."""
        with self._lock:
            if self.closed:
                return None
            self._reserved.append(item)
            return self._wake()

    def put(self, item: Item, size: int, *, must: bool = False) -> bool | None:
        with self._lock:
            full = len(self._ordinary) >= self.max_messages or self._bytes + size > self.max_bytes
            if self.closed or (full and not must):
                return None
            self._ordinary.append((item, size))
            self._bytes += size
            self.high = max(self.high, len(self._ordinary))
            return self._wake()

    def take(self) -> Item | None:
        """The next item, or None; after None the next `put` wakes the owner again."""
        with self._lock:
            if self._control:
                return self._control.popleft()
            if self._reserved:
                return self._reserved.popleft()
            if self._ordinary and not self.suspended:
                item, size = self._ordinary.popleft()
                self._bytes -= size
                return item
            self._awake = False
            return None

    def close(self) -> list[Item]:
        """Take nothing more; what was left comes back, control first."""
        with self._lock:
            self.closed = True
            items = [*self._control, *self._reserved, *(item for item, _ in self._ordinary)]
            self._control.clear()
            self._reserved.clear()
            self._ordinary.clear()
            self._bytes = 0
            return items

    def resume(self) -> bool:
        with self._lock:
            self.suspended = False
            return self._wake()

    def __len__(self) -> int:
        return len(self._ordinary)

    def _wake(self) -> bool:
        if self._awake:
            return False
        self._awake = True
        return True
