"""Two or more live worlds in one process, joined by real sockets."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Condition
from typing import Any

import pytest

from messages.base import Address
from runtime.cluster.keys import SecretSeed, transport_key
from runtime.kernel.live import LiveWorld
from runtime.office.office import Keys, PostOffice


class Host:
    """One process's world with a control office."""

    def __init__(self, net: Net, name: str, listen: str | None, dial: list[str], **settings: Any) -> None:
        self.net = net
        self.name = name
        self.logs: list[str] = []
        self.events: list[tuple[str, str, int]] = []
        self.changed = Condition()
        self.world = LiveWorld(name, lambda *what: self.logs.append(str(what)))
        self.office = PostOffice(
            name=name,
            plane="control",
            incarnation=self.world.incarnation,
            keys=net.keys(settings.pop("key_of", name), settings.pop("listed", None)),
            listen=listen,
            dial={peer: net.endpoint(peer) for peer in dial},
            receive=self.world.deliver,
            failed=self.world.undelivered,
            peer_up=lambda peer, number: self._event("up", peer, number),
            peer_down=lambda peer, number, _: self._event("down", peer, number),
            log=self._logged,
            beat_s=settings.pop("beat_s", 0.2),
            **settings,
        )
        self.world.attach(self.office)
        self.office.start()

    def _logged(self, level: str, text: str) -> None:
        with self.changed:
            self.logs.append(f"{level} {text}")
            self.changed.notify_all()

    def wait_count(self, what: str) -> bool:
        return self.wait(lambda: self.office.counted.get(what, 0) > 0)

    def _event(self, what: str, peer: str, number: int) -> None:
        if what == "up":
            self.world.peer_up(peer, number)
        else:
            self.world.peer_down(peer, number, "")
        with self.changed:
            self.events.append((what, peer, number))
            self.changed.notify_all()

    def wait(self, condition: Callable[[], bool], timeout_s: float = 5.0) -> bool:
        with self.changed:
            return self.changed.wait_for(condition, timeout_s)

    def wait_event(self, what: str, peer: str, count: int = 1) -> bool:
        return self.wait(lambda: sum(event[:2] == (what, peer) for event in self.events) >= count)

    def close(self) -> None:
        self.world.close()


class Net:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seeds: dict[str, SecretSeed] = {}
        self.hosts: list[Host] = []

    def seed(self, name: str) -> SecretSeed:
        return self.seeds.setdefault(name, SecretSeed.generate())

    def keys(self, name: str, listed: list[str] | None = None) -> Keys:
        seed = self.seed(name)
        names = listed if listed is not None else ["server", "client", "other"]
        peers = {peer: transport_key(self.seed(peer).public_key) for peer in names}
        return Keys(public=transport_key(seed.public_key), secret=seed.transport_secret(), peers=peers)

    def endpoint(self, name: str) -> str:
        return f"ipc://{self.folder}/{name}.sock"

    def host(self, name: str, *, listens: bool = False, dial: list[str] | None = None, **settings: Any) -> Host:
        host = Host(self, name, self.endpoint(name) if listens else None, dial or [], **settings)
        self.hosts.append(host)
        return host


_counter = itertools.count()


@pytest.fixture
def net(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Net]:
    net = Net(tmp_path_factory.mktemp(f"n{next(_counter)}"))
    yield net
    for host in net.hosts:
        host.close()
    assert not list(net.folder.iterdir()), "no socket or lock file is left"


SERVER, CLIENT = Address("server/echo"), Address("client/asker")
