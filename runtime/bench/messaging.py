"""`sennit bench messaging`: tells and asks between two processes, beside raw pyzmq and, where installed, xoscar.

Everything in one run, the rounds of the three taking turns: figures of a shared machine mean little alone, ratios do.
Ours and raw use the same sockets (ROUTER and DEALER over ipc, CURVE) and the same sizes; xoscar speaks TCP in clear.

* ask: one after the other, each answered with its own text.
* tell, single: each sent for itself. Ours: an actor that tells once per message it handles; raw: one send each;
  xoscar: one awaited tell each.
* tell, bursts: `BURST` at a time. Ours: that many tells in one turn; raw: as singly, for a socket knows no bursts;
  xoscar: that many tells at once.
* batch: `BURST` that travel as one. Raw: one ZeroMQ message; xoscar: one call of its `batch`, which is one message to
  one actor that must be made for it. Ours has none: what to put into one message is the actor's business.

After every `WINDOW` tells the sender asks how many have arrived, so nothing is counted that did not arrive.
"""

from __future__ import annotations

import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import zmq

from actors.actor import Actor, Context, Procedure
from messages.base import Address, Message, Request
from runtime.bench import xoscar_peer
from runtime.bench.rounds import (
    ASKS,
    BURST,
    ROUNDS,
    TELLS,
    TEXT,
    TIMEOUT_S,
    WINDOW,
    Figures,
    Round,
    figures,
    serving,
)
from runtime.cluster.keys import SecretSeed, transport_key
from runtime.kernel.envelope import process_of
from runtime.kernel.live import LiveWorld
from runtime.office.office import PostOffice
from runtime.office.sockets import Keys

ECHO, DRIVER = Address("server/echo"), Address("client/driver")


def run(rounds: int = ROUNDS) -> list[Figures]:
    """Ours, raw and, where installed, xoscar. Raises `RuntimeError` when a peer does not answer."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sb-")))
        peers: list[tuple[str, Callable[[], Round]]] = [
            ("sennit", stack.enter_context(ours(folder))),
            ("raw pyzmq", stack.enter_context(raw(folder))),
        ]
        if xoscar_peer.installed():
            peers.append(("xoscar", stack.enter_context(xoscar_peer.peer(folder))))
        taken: dict[str, list[Round]] = {name: [] for name, _ in peers}
        for number in range(rounds + 1):
            for name, measure in peers:
                measured = measure()
                if number > 0:  # the first is a warm-up
                    taken[name].append(measured)
        return [figures(name, measured) for name, measured in taken.items()]


# ours


class Say(Message, frozen=True):
    text: str


class Ask(Request[Say], frozen=True):
    text: str


class Counted(Message, frozen=True):
    count: int


class Count(Request[Counted], frozen=True):
    pass


class Measured(Message, frozen=True):
    asks_s: list[float]
    single_per_s: float
    burst_per_s: float


class Measure(Request[Measured], frozen=True):
    pass


class Next(Message, frozen=True):
    """One tell a turn."""

    left: int


class Echo(Actor[Say | Ask | Count]):
    mailbox = Say | Ask | Count

    def __init__(self) -> None:
        self.count = 0

    def receive(self, message: Say | Ask | Count, ctx: Context) -> None:
        match message:
            case Say():
                self.count += 1
            case Ask(text=text):
                ctx.reply(Say(text=text))
            case Count():
                ctx.reply(Counted(count=self.count))


class Driver(Actor[Measure | Next]):
    mailbox = Measure | Next

    def __init__(self) -> None:
        self.told = 0

    def receive(self, message: Measure | Next, ctx: Context) -> Procedure | None:
        if isinstance(message, Measure):
            return self.measure(ctx)
        ctx.tell(ECHO, Say(text=TEXT))
        self.told += 1
        if message.left > 1:
            ctx.tell(DRIVER, Next(left=message.left - 1))
        return None

    async def measure(self, ctx: Context) -> None:
        asks = []
        for _ in range(ASKS):
            began = time.perf_counter()
            await ctx.ask(ECHO, Ask(text=TEXT), timeout_s=TIMEOUT_S)
            asks.append(time.perf_counter() - began)
        single = await self.tells(ctx, burst=1)
        burst = await self.tells(ctx, burst=BURST)
        ctx.reply(Measured(asks_s=asks, single_per_s=single, burst_per_s=burst))

    async def tells(self, ctx: Context, burst: int) -> float:
        counted = await ctx.ask(ECHO, Count(), timeout_s=TIMEOUT_S)
        expected = counted.count
        began = time.perf_counter()
        for _ in range(TELLS // WINDOW):
            expected += WINDOW
            if burst == 1:
                ctx.tell(DRIVER, Next(left=WINDOW))
            else:
                for _ in range(WINDOW // burst):
                    for _ in range(burst):
                        ctx.tell(ECHO, Say(text=TEXT))
            while counted.count < expected:
                counted = await ctx.ask(ECHO, Count(), timeout_s=TIMEOUT_S)
        return TELLS / (time.perf_counter() - began)


_SEEDS = {"server": bytes(range(32)), "client": bytes(range(1, 33))}
"""Both ends are ours and live in a 0700 folder for seconds: what is measured is the encryption, not a secret."""


def _keys(name: str) -> Keys:
    seeds = {who: SecretSeed(seed) for who, seed in _SEEDS.items()}
    peers = {who: transport_key(seed.public_key) for who, seed in seeds.items()}
    return Keys(public=peers[name], secret=seeds[name].transport_secret(), peers=peers)


def _world(name: str, folder: Path) -> LiveWorld:
    world = LiveWorld(name, lambda *_: None)
    endpoint = f"ipc://{folder}/ours"
    office = PostOffice(
        name=name,
        plane="control",
        incarnation=world.incarnation,
        keys=_keys(name),
        listen=endpoint if name == "server" else None,
        dial={} if name == "server" else {"server": endpoint},
        receive=world.deliver,
        failed=world.undelivered,
        peer_up=world.peer_up,
        peer_down=world.peer_down,
    )
    office.start()
    world.attach(office)
    return world


@contextmanager
def ours(folder: Path) -> Iterator[Callable[[], Round]]:
    with serving("runtime.bench.server", "ours", str(folder)):
        world = _world("client", folder)
        try:
            world.spawn(DRIVER, Driver)
            until = time.monotonic() + TIMEOUT_S
            while not world.reaches(process_of(ECHO)):
                if time.monotonic() > until:
                    raise RuntimeError("the server's link does not come up")

            def measure() -> Round:
                got = world.main.ask(DRIVER, Measure(), timeout_s=TIMEOUT_S)
                return Round(got.asks_s, got.single_per_s, got.burst_per_s)

            yield measure
        finally:
            world.close()


def serve_ours(folder: Path) -> None:
    world = _world("server", folder)
    world.spawn(ECHO, Echo)
    print("ready", flush=True)
    signal.pause()


# raw pyzmq: the limit


def _raw_socket(context: Any, kind: int, name: str) -> Any:
    keys = _keys(name)
    socket = context.socket(kind)
    socket.linger = 0
    socket.setsockopt(zmq.SNDHWM, 10_000)
    socket.setsockopt(zmq.RCVHWM, 10_000)
    socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.public)
    socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret)
    if kind == zmq.DEALER:
        socket.setsockopt(zmq.CURVE_SERVERKEY, keys.peers["server"])
    else:
        socket.curve_server = True
    return socket


def serve_raw(folder: Path) -> None:
    context: Any = zmq.Context()
    router = _raw_socket(context, zmq.ROUTER, "server")
    router.bind(f"ipc://{folder}/raw")
    print("ready", flush=True)
    count = 0
    while True:
        identity, frame = router.recv_multipart()
        match frame[:1]:
            case b"t":
                count += 1
            case b"b":
                count += BURST
            case b"a":
                router.send_multipart([identity, frame])
            case _:
                router.send_multipart([identity, b"%d" % count])


@contextmanager
def raw(folder: Path) -> Iterator[Callable[[], Round]]:
    with serving("runtime.bench.server", "raw", str(folder)):
        context: Any = zmq.Context()
        dealer = _raw_socket(context, zmq.DEALER, "client")
        dealer.rcvtimeo = round(TIMEOUT_S * 1000)
        dealer.connect(f"ipc://{folder}/raw")
        text = TEXT.encode()

        def count() -> int:
            dealer.send(b"c")
            return int(dealer.recv())

        def tells(frame: bytes, worth: int) -> float:
            expected = count()
            began = time.perf_counter()
            for _ in range(TELLS // WINDOW):
                expected += WINDOW
                for _ in range(WINDOW // worth):
                    dealer.send(frame)
                while count() < expected:
                    pass
            return TELLS / (time.perf_counter() - began)

        def measure() -> Round:
            asks = []
            for _ in range(ASKS):
                began = time.perf_counter()
                dealer.send(b"a" + text)
                dealer.recv()
                asks.append(time.perf_counter() - began)
            single, batch = tells(b"t" + text, 1), tells(b"b" + text * BURST, BURST)
            return Round(asks, single, single, batch)

        try:
            yield measure
        finally:
            context.destroy(linger=0)
