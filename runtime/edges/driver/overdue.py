"""Ends a system call that a workload made to wait for ever.

A workload has the eventfds of its rings and can make them block and fill them up. There is no way to write to an
eventfd that cannot wait then, so a thread that writes to them is looked after: when one turn of it lasts too long, a
signal interrupts whatever it waits in. `eventfd_write` fails by that; calls that Python or ZeroMQ makes go on.
"""

from __future__ import annotations

import signal
import threading
from contextlib import suppress

SIGNAL = signal.SIGURG
"""It interrupts only a process that has a handler for it; without one it is ignored."""

LOOK_S = 0.1


class Overdue:
    """`begun` and `ended` are called by the thread that is looked after, around each of its turns."""

    def __init__(self) -> None:
        self._turn = 0
        self._in_turn = False
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, looked_after: threading.Thread) -> None:
        self._thread = threading.Thread(target=self._look, args=[looked_after], name="overdue", daemon=True)
        self._thread.start()

    def begun(self) -> None:
        self._turn += 1
        self._in_turn = True

    def ended(self) -> None:
        self._in_turn = False

    def close(self) -> None:
        self._closing.set()
        if self._thread is not None:
            self._thread.join()

    def _look(self, thread: threading.Thread) -> None:
        seen = 0
        while not self._closing.wait(LOOK_S) and thread.is_alive():
            turn = self._turn
            if self._in_turn and turn == seen and thread.ident is not None:
                with suppress(ProcessLookupError):
                    signal.pthread_kill(thread.ident, SIGNAL)
            seen = turn


__all__ = ["SIGNAL", "Overdue"]
