"""What an actor that talks to descriptors does later: when one is ready, or when a time has come.

Every action is called with the context of the turn it runs in, on the actor's own thread.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from actors.actor import Context
from messages.base import Message
from runtime.edges.workers.wakeups import Wakeups

Action = Callable[[Context], None]


class Woken(Message, frozen=True):
    """The actor's own: descriptors want attention."""


class Due(Message, frozen=True):
    """The actor's own timer."""

    key: int


class Later:
    """Actions by key. The actor hands `Woken` and `Due` to `act`."""

    def __init__(self, ctx: Context) -> None:
        self._count = count(1)
        self._actions: dict[int, Action] = {}
        self._wakeups = Wakeups(lambda: ctx.tell(ctx.address, Woken()))

    def on(self, action: Action) -> int:
        """A key for `action`, until `forget`."""
        key = next(self._count)
        self._actions[key] = action
        return key

    def forget(self, key: int) -> None:
        self._actions.pop(key, None)

    def after(self, delay_s: float, action: Action, ctx: Context) -> None:
        """Once, when `delay_s` seconds have passed; at 0 in a later turn."""

        def due(ctx: Context) -> None:
            self.forget(key)
            action(ctx)

        key = self.on(due)
        ctx.after(delay_s, Due(key=key))

    def when_ready(self, fd: int, key: int, *, writing: bool = False) -> None:
        """The action of `key`, the next time `fd` is readable, at its end or, when `writing`, has room."""
        self._wakeups.arm(fd, key, writing=writing)

    def drop(self, fd: int, key: int) -> None:
        """Watch `fd` no more, before it is closed."""
        self._wakeups.drop(fd)
        self.forget(key)

    def ring(self, key: int) -> None:
        """The action of `key` soon; from any thread."""
        self._wakeups.ring(key)

    def act(self, message: Woken | Due, ctx: Context) -> None:
        for key in [message.key] if isinstance(message, Due) else self._wakeups.take():
            action = self._actions.get(key)
            if action is not None:
                action(ctx)

    def close(self) -> None:
        self._wakeups.close()


__all__ = ["Action", "Due", "Later", "Woken"]
