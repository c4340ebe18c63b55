"""A live world without links: real threads, one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from queue import Queue
from typing import Any

import pytest

from actors.actor import Actor
from messages.base import Address
from messages.system import AwaitReady
from runtime.kernel.live import LiveWorld

WAIT_S = 5.0


class Live:
    """`ended` and `logs` are queues: a test waits on them with a deadline."""

    def __init__(self) -> None:
        self.logs: Queue[tuple[str, str, dict[str, Any]]] = Queue()
        self.ended: Queue[tuple[str, str, str]] = Queue()
        self.world = LiveWorld("one", self._log)
        self.world.on_end = lambda address, kind, reason: self.ended.put((address, kind.value, reason))

    def _log(self, level: str, source: str, text: str, fields: dict[str, Any]) -> None:
        if level != "debug":
            self.logs.put((level, text, fields))

    def spawn(self, name: str, factory: Callable[[], Actor[Any]], *, ready: bool = True) -> Address:
        address = Address(f"one/{name}")
        self.world.spawn(address, factory)
        if ready:
            self.ask(address, AwaitReady())
        return address

    def ask(self, to: Address, request: Any, timeout_s: float = WAIT_S) -> Any:
        return self.world.main.ask(to, request, timeout_s)


@pytest.fixture
def live() -> Iterator[Live]:
    live = Live()
    yield live
    live.world.close()
