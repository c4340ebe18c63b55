"""Two or more live worlds in one process, joined by real sockets; peers that keep no rule, and a wire that breaks."""

from __future__ import annotations

import itertools
import os
import selectors
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import Condition, Thread
from typing import Any

import pytest
import zmq

from messages.base import Address
from runtime.cluster.keys import SecretSeed, transport_key
from runtime.kernel.envelope import Envelope, Kind, pack, unpack
from runtime.kernel.live import LiveWorld
from runtime.office.office import PostOffice
from runtime.office.sockets import Keys


class Host:
    """One process's world with a control office."""

    def __init__(self, net: Net, name: str, listen: str | None, dial: list[str], **settings: Any) -> None:
        self.net = net
        self.name = name
        self.logs: list[str] = []
        self.events: list[tuple[str, str, int]] = []
        self.changed = Condition()
        through = settings.pop("through", {})
        self.world = LiveWorld(name, lambda *what: self._logged(what[0], str(what[1:])))
        self.office = PostOffice(
            name=name,
            plane="control",
            incarnation=self.world.incarnation,
            keys=net.keys(settings.pop("key_of", name), settings.pop("listed", None)),
            listen=listen,
            dial={peer: through.get(peer) or net.endpoint(peer) for peer in dial},
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
        self.others: list[Outlaw | Wire] = []

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

    def outlaw(self, name: str = "other", to: str = "server") -> Outlaw:
        """A peer with a listed key that says what the test wants."""
        self.others.append(Outlaw(self, name, to))
        return self.others[-1]

    def outlaw_server(self, name: str = "server") -> OutlawServer:
        self.others.append(OutlawServer(self, name))
        return self.others[-1]

    def wire(self, to: str) -> Wire:
        self.others.append(Wire(self.folder / f"wire-{to}.sock", self.folder / f"{to}.sock"))
        return self.others[-1]


class Outlaw:
    """A bare DEALER of process `name`. `say` takes bytes or fields of an envelope; `hear` waits for the next frame."""

    kind = zmq.DEALER

    def __init__(self, net: Net, name: str, to: str) -> None:
        self.name, self.to = name, to
        self.incarnation = 77
        keys = net.keys(name)
        self.context = zmq.Context()
        self.socket = self.context.socket(self.kind)
        self.socket.linger = 0
        self.socket.rcvhwm = 1
        self.socket.curve_publickey, self.socket.curve_secretkey = keys.public, keys.secret
        self.monitor = self.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._open(net, keys)

    def _open(self, net: Net, keys: Keys) -> None:
        self.socket.immediate = 1
        self.socket.curve_serverkey = keys.peers[self.to]
        self.socket.connect(net.endpoint(self.to))

    def frame(self, sequence: int, kind: Kind = Kind.TELL, **fields: Any) -> bytes:
        incarnation = fields.pop("incarnation", self.incarnation)
        given = {"to": f"{self.to}/echo", "sender": f"{self.name}/x", "body": b"\xc0", "tag": ""}
        return pack(Envelope(kind, **(given | fields)), sequence, incarnation, 0.0)

    def say(self, *frames: bytes, more: bool = False) -> None:
        assert self.socket.poll(5000, zmq.POLLOUT), "the connection takes nothing"
        self.socket.send_multipart(frames, zmq.SNDMORE if more else 0)

    def hear(self) -> list[Envelope]:
        assert self.socket.poll(5000), "nothing came"
        return [envelope for envelope, _, _ in unpack(self.socket.recv_multipart()[-1], 0.0)]

    def hello(self, sequence: int = 0, **fields: Any) -> None:
        """Say HELLO and wait for the answer."""
        self.say(self.frame(sequence, Kind.HELLO, **fields))
        while not any(envelope.kind is Kind.HELLO for envelope in self.hear()):
            pass

    def wait_cut_off(self) -> None:
        assert self.monitor.poll(5000), "still connected"

    def close(self) -> None:
        self.context.destroy(linger=0)


class OutlawServer(Outlaw):
    """A bare ROUTER that admits everyone and speaks to the last one it heard."""

    kind = zmq.ROUTER

    def __init__(self, net: Net, name: str) -> None:
        self.path = net.folder / f"{name}.sock"
        super().__init__(net, name, "client")

    def _open(self, net: Net, keys: Keys) -> None:
        self.socket.curve_server = True
        self.socket.bind(f"ipc://{self.path}")

    def say(self, *frames: bytes, more: bool = False) -> None:
        super().say(self.client, *frames, more=more)

    def hear(self) -> list[Envelope]:
        assert self.socket.poll(5000), "nothing came"
        self.client, frame = self.socket.recv_multipart()
        return [envelope for envelope, _, _ in unpack(frame, 0.0)]

    def greet(self) -> None:
        """Wait for a HELLO and answer it."""
        while not any(envelope.kind is Kind.HELLO for envelope in self.hear()):
            pass
        self.say(self.frame(0, Kind.HELLO))

    def close(self) -> None:
        super().close()
        self.path.unlink(missing_ok=True)


class Wire:
    """Passes bytes between two unix sockets. `stall` stops that without a word; `cut` ends what is connected."""

    def __init__(self, path: Path, to: Path) -> None:
        self.path, self.to = path, to
        self.endpoint = f"ipc://{path}"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._order_read, self._order_write = os.pipe()
        self._selector.register(self._order_read, selectors.EVENT_READ)
        self._others: dict[socket.socket, socket.socket] = {}
        self._stalled = False
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()

    def stall(self) -> None:
        os.write(self._order_write, b"s")

    def cut(self) -> None:
        os.write(self._order_write, b"c")

    def close(self) -> None:
        os.write(self._order_write, b"q")
        self._thread.join(5)
        self._listener.close()
        self._selector.close()
        os.close(self._order_read), os.close(self._order_write)
        self.path.unlink()

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._listener:
                    self._join()
                elif key.fileobj == self._order_read:
                    order = os.read(self._order_read, 1)
                    if order == b"s":
                        self._stalled = True
                        for end in self._others:
                            self._selector.unregister(end)
                    else:
                        for end in list(self._others):
                            self._drop(end)
                        self._stalled = False
                    if order == b"q":
                        return
                elif key.fileobj in self._others:
                    self._pass(key.fileobj)

    def _join(self) -> None:
        near, far = self._listener.accept()[0], socket.socket(socket.AF_UNIX)
        try:
            far.connect(str(self.to))
        except OSError:
            near.close(), far.close()
            return
        for end, other in ((near, far), (far, near)):
            self._others[end] = other
            if not self._stalled:
                self._selector.register(end, selectors.EVENT_READ)

    def _pass(self, end: socket.socket) -> None:
        try:
            data = end.recv(65536)
            self._others[end].sendall(data)
        except OSError:
            data = b""
        if not data:
            self._drop(end)

    def _drop(self, end: socket.socket) -> None:
        other = self._others.pop(end, None)
        with suppress(KeyError, ValueError):
            self._selector.unregister(end)
        end.close()
        if other is not None:
            self._drop(other)


_counter = itertools.count()


@pytest.fixture
def net(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Net]:
    net = Net(tmp_path_factory.mktemp(f"n{next(_counter)}"))
    yield net
    for other in net.others:
        other.close()
    for host in net.hosts:
        host.close()
    assert not list(net.folder.iterdir()), "no socket or lock file is left"


SERVER, CLIENT = Address("server/echo"), Address("client/asker")
