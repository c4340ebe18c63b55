"""One peer with a listed key does everything at once that it should not, and the others are served meanwhile."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count
from threading import Event, Thread

import msgspec
import pytest
import zmq

from actors.actor import Actor, Context
from messages.base import Address, Message, Request
from runtime.kernel.envelope import Failure, Kind, encode_body, tag_of
from tests.runtime.office.conftest import Host, Net, Outlaw

SERVER = Address("server/echo")
ASKS, SETTLED_ASKS = 30, 10
SAID = 2_000
"""So many frames at least the peer must get rid of meanwhile."""

WAIT_S = 5.0
"""Far more than any of these asks takes, far less than what the peer could hold up."""


class Word(Message, frozen=True):
    text: str


class Question(Request[Word], frozen=True):
    text: str


class Echo(Actor[object]):
    mailbox = Word | Question

    def receive(self, message: object, ctx: Context) -> None:
        if isinstance(message, Question):
            ctx.reply(Word(text=message.text))


@pytest.fixture
def net(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Net]:
    net = Net(tmp_path_factory.mktemp("h"))
    yield net
    for one in (*net.others, *net.hosts):
        one.close()


class Nuisance:
    """Says everything that `Outlaw` can say wrong, over and over, as fast as it is taken; reads nothing."""

    def __init__(self, outlaw: Outlaw) -> None:
        outlaw.hello()
        self._outlaw = outlaw
        self._over = Event()
        self.said = 0
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        outlaw = self._outlaw
        word = {"body": encode_body(Word(text="x" * 500)), "tag": tag_of(Word)}
        question = {"body": encode_body(Question(text="y" * 20_000)), "tag": tag_of(Question)}
        large = {"body": encode_body(Word(text="z" * 1_000_000)), "tag": tag_of(Word)}
        for number in count(1):
            frames = [
                b"\x9b" + b"\x91" * 900,  # rubbish
                b"\xdd\xff\xff\xff\xff",
                outlaw.frame(number, **word)[:-7],
                outlaw.frame(number, sender="client/main", **word),  # lies
                outlaw.frame(number, sender="server/echo", **word),
                outlaw.frame(number, incarnation=78, **word),
                outlaw.frame(number, to="client/main", **word),
                outlaw.frame(number, Kind.HELLO, sender="client/office"),
                outlaw.frame(2 * number, Kind.ASK, correlation=number, deadline=9.0, **question),  # answers pile up
                outlaw.frame(2 * number + 1, **word),  # a flood
                outlaw.frame(2 * number + 1, **word),  # said again
                outlaw.frame(number // 2, **word),
                outlaw.frame(0, Kind.ANSWER, correlation=number, **word),  # nobody asked
                outlaw.frame(0, Kind.BEAT, correlation=2**63),
            ]
            if number % 50 == 0:
                frames.append(outlaw.frame(2 * number + 2, **large))
            for frame in frames:
                while not outlaw.socket.poll(50, zmq.POLLOUT):  # held back, as it should be
                    if self._over.is_set():
                        return
                outlaw.socket.send(frame, zmq.NOBLOCK)
                self.said += 1
            if self._over.is_set():
                return


def settle(server: Host, client: Host) -> None:
    """Until everything that was said is heard: libzmq can abort when a peer leaves whose input it has held back."""

    def heard() -> int:
        rows = {row.process: row for row in server.office.rows()}
        return server.office.counted["bad_frame"] + rows["other"].received + rows["other"].duplicates

    before = -1
    while (now := heard()) != before:
        before = now
        for number in range(SETTLED_ASKS):
            client.world.main.ask(SERVER, Question(text=str(number)), WAIT_S)


def test_everybody_else_is_served_while_one_peer_keeps_no_rule(net: Net) -> None:
    server = net.host("server", listens=True)
    server.world.spawn(SERVER, Echo)
    client = net.host("client", dial=["server"])
    assert client.wait_event("up", "server")
    nuisance = Nuisance(net.outlaw())
    until = time.monotonic() + WAIT_S
    asks = 0
    while asks < ASKS or (nuisance.said < SAID and time.monotonic() < until):
        asks += 1
        # Raises `AskFailed` when it is refused, or not answered in time.
        answer = client.world.main.ask(SERVER, Question(text=str(asks)), WAIT_S)
        assert answer == Word(text=str(asks))
    nuisance.stop()
    settle(server, client)
    assert nuisance.said >= SAID, "it was not heard much"
    assert server.office.counted["bad_frame"] > SAID // 20
    rows = {row.process: row for row in server.office.rows()}
    assert rows["other"].duplicates > 0
    assert (rows["client"].duplicates, rows["client"].gaps, rows["client"].unconfirmed) == (0, 0, 0)
    assert [event for event in client.events if event[0] == "down"] == []


def test_a_malformed_message_is_refused_in_few_words_however_large_it_is(net: Net) -> None:
    server = net.host("server", listens=True)
    server.world.spawn(SERVER, Echo)
    outlaw = net.outlaw()
    outlaw.hello()
    body = msgspec.msgpack.encode({"type": "Question", "u" * 1_000_000: 1})
    outlaw.say(outlaw.frame(1, Kind.ASK, correlation=5, deadline=9.0, body=body, tag=tag_of(Question)))
    refusals: list[Failure] = []
    while not refusals:
        refusals = [envelope.failure for envelope in outlaw.hear() if envelope.failure is not None]
    assert refusals[0].code == "malformed"
    assert len(refusals[0].reason) < 1_000
