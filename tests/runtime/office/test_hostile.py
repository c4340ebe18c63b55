"""Peers with a listed key that keep no rule: they harm their own link, and nobody else notices."""

from __future__ import annotations

from queue import Queue
from random import Random
from threading import Thread

import pytest

from actors.actor import Actor, AskFailed, Context, Procedure
from messages.base import Address, Message, Request
from messages.system import AskFailure, Done, PeerDown
from runtime.kernel.envelope import Kind, encode_body, tag_of
from runtime.office import sockets as sockets_module

SERVER, CLIENT = Address("server/echo"), Address("client/keeper")
WAIT_S = 5.0


class Word(Message, frozen=True):
    text: str


class Question(Request[Word], frozen=True):
    text: str


class Release(Request[Done], frozen=True):
    """Answer what was kept."""


class Echo(Actor[object]):
    """Says everything it hears into `heard`; keeps a question that says "keep"."""

    mailbox = Word | Question | Release | PeerDown

    def __init__(self, heard: Queue[object]) -> None:
        self.heard = heard
        self.kept: list[Context] = []

    def receive(self, message: object, ctx: Context) -> Procedure | None:
        match message:
            case Question(text="keep"):
                self.kept.append(ctx)
                self.heard.put("kept")
            case Question(text=text):
                ctx.reply(Word(text=text))
            case Release():
                for kept in self.kept:
                    kept.reply(Word(text="at last"))
                ctx.reply(Done())
            case _:
                self.heard.put(message)
        return None


class Server:
    def __init__(self, net) -> None:
        self.heard: Queue[object] = Queue()
        self.host = net.host("server", listens=True)
        self.host.world.spawn(SERVER, lambda: Echo(self.heard))
        self.office = self.host.office

    def row(self, name: str):
        (row,) = [row for row in self.office.rows() if row.process == name]
        return row


@pytest.fixture
def server(net) -> Server:
    return Server(net)


@pytest.fixture
def honest(net, server):
    client = net.host("client", dial=["server"])
    assert client.wait_event("up", "server")
    yield client
    assert client.world.main.ask(SERVER, Question(text="hi"), WAIT_S) == Word(text="hi")
    assert [event for event in client.events if event[0] == "down"] == []


def word(text: str) -> dict[str, object]:
    return {"body": encode_body(Word(text=text)), "tag": tag_of(Word)}


LIES = {
    "before its HELLO": lambda outlaw: [outlaw.frame(1, **word("lie"))],
    "in another name": lambda outlaw: [hello(outlaw), outlaw.frame(1, sender="client/asker", **word("lie"))],
    "HELLO in another name": lambda outlaw: [outlaw.frame(0, Kind.HELLO, sender="client/office")],
    "in no name": lambda outlaw: [hello(outlaw), outlaw.frame(1, sender="", **word("lie"))],
    "as another life": lambda outlaw: [hello(outlaw), outlaw.frame(1, incarnation=78, **word("lie"))],
    "HELLO of two lives": lambda outlaw: [hello(outlaw), outlaw.frame(0, Kind.HELLO, incarnation=78)],
    "for somebody else": lambda outlaw: [hello(outlaw), outlaw.frame(1, to="client/asker", **word("lie"))],
    "half a frame": lambda outlaw: [hello(outlaw), outlaw.frame(1, **word("lie"))[:-1]],
}


def hello(outlaw) -> bytes:
    return outlaw.frame(0, Kind.HELLO)


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_a_lie_is_counted_and_not_heard(net, server, honest, lie):
    for frame in lie(outlaw := net.outlaw()):
        outlaw.say(frame)
    assert server.host.wait_count("bad_frame")
    assert server.office.counted["bad_frame"] == 1
    assert server.heard.empty()


def test_a_frame_of_two_parts_is_counted_and_not_heard(net, server, honest):
    outlaw = net.outlaw()
    outlaw.hello()
    outlaw.say(outlaw.frame(1, **word("lie")), b"more")
    assert server.host.wait_count("bad_frame")
    assert server.heard.empty()


def test_a_frame_said_again_is_heard_once(net, server, honest):
    outlaw = net.outlaw()
    outlaw.hello()
    captured = outlaw.frame(1, **word("one"))
    outlaw.say(captured), outlaw.say(captured), outlaw.say(captured + outlaw.frame(2, **word("two")))
    assert [server.heard.get(timeout=WAIT_S).text for _ in range(2)] == ["one", "two"]
    assert (server.row("other").duplicates, server.row("other").gaps) == (2, 0)


@pytest.mark.parametrize("jump", [2, 1000, 2**63, 2**64 - 1])
def test_a_jump_is_a_gap_and_what_comes_before_it_later_is_a_duplicate(net, server, honest, jump):
    outlaw = net.outlaw()
    outlaw.hello()
    outlaw.say(outlaw.frame(jump, **word("jumped")))
    outlaw.say(outlaw.frame(1, **word("late")))
    outlaw.say(b"the end")
    assert server.heard.get(timeout=WAIT_S).text == "jumped"
    assert server.host.wait_count("bad_frame")
    assert (server.row("other").duplicates, server.row("other").gaps) == (1, jump - 1)
    report = server.host.world.process_report()
    assert encode_body(report), "whatever was said, it can be told"


def test_what_a_link_counted_is_kept_when_the_peer_lives_again(net, server, honest):
    outlaw = net.outlaw()
    outlaw.hello()
    outlaw.say(outlaw.frame(4, **word("jumped")))
    server.heard.get(timeout=WAIT_S)
    outlaw.close()
    again = net.outlaw()
    again.hello(incarnation=78)
    assert server.host.wait_event("up", "other", 2)
    assert server.office.counted["gaps"] == 3
    assert server.host.world.process_report().dead_letters["gaps"] == 3


@pytest.mark.parametrize("acknowledged", [2**64 - 1, -(2**63), 0])
def test_a_lie_about_what_arrived_is_bounded_by_what_was_sent(net, server, honest, acknowledged):
    outlaw = net.outlaw()
    outlaw.hello()
    outlaw.say(outlaw.frame(0, Kind.BEAT, correlation=acknowledged))
    outlaw.say(outlaw.frame(1, **word("after")))
    server.heard.get(timeout=WAIT_S)
    assert server.row("other").unacknowledged == 0


def test_answers_that_nobody_asked_for_reach_no_mailbox(net, server, honest):
    outlaw = net.outlaw()
    outlaw.hello()
    answers = [outlaw.frame(n, Kind.ANSWER, correlation=n, **word("lie")) for n in range(1, 2001)]
    outlaw.say(b"".join(answers))
    outlaw.say(outlaw.frame(2001, **word("after")))
    assert server.heard.get(timeout=WAIT_S).text == "after"
    assert server.office.counted["late_answer"] == 2000
    assert server.host.world.dead_letters["late_answer"] == 0


def test_another_process_speaks_for_no_kernel_but_its_own(net, server, honest):
    outlaw = net.outlaw()
    outlaw.hello()
    down = PeerDown(process="client", incarnation=1, reason="so I say")
    outlaw.say(
        outlaw.frame(1, body=encode_body(down), tag=tag_of(PeerDown)),
    )
    outlaw.say(outlaw.frame(2, **word("after")))
    assert server.heard.get(timeout=WAIT_S) == Word(text="after")
    assert server.host.world.dead_letters["not_in_mailbox"] == 1


def test_half_a_message_of_a_peer_that_goes_is_nobodys(net, server, honest):
    outlaw = net.outlaw()
    outlaw.hello()
    outlaw.say(outlaw.frame(1, **word("half")), more=True)
    outlaw.close()
    assert server.host.wait_event("down", "other")
    again = net.outlaw()
    again.hello()
    again.say(again.frame(1, **word("whole")))
    assert server.heard.get(timeout=WAIT_S).text == "whole"
    assert "bad_frame" not in server.office.counted


def test_a_message_beyond_the_limit_costs_its_sender_the_connection(net, monkeypatch):
    """Its length is judged before any of it is read."""
    monkeypatch.setattr(sockets_module, "MAX_MESSAGE_BYTES", 100_000)
    server = Server(net)
    client = net.host("client", dial=["server"])
    assert client.wait_event("up", "server")
    outlaw = net.outlaw()
    outlaw.hello()
    outlaw.say(bytes(100_000 + sockets_module.MAX_HEADER_BYTES + 1))
    outlaw.wait_cut_off()
    assert server.host.wait_event("down", "other")
    assert client.world.main.ask(SERVER, Question(text="hi"), WAIT_S) == Word(text="hi")
    assert [event for event in client.events if event[0] == "down"] == []


def test_a_peer_that_does_not_read_keeps_nobody_waiting(net, monkeypatch):
    monkeypatch.setattr(sockets_module, "HIGH_WATER", 20)
    server = Server(net)
    client = net.host("client", dial=["server"])
    assert client.wait_event("up", "server")
    outlaw = net.outlaw()
    outlaw.hello()
    question = {"body": encode_body(Question(text="x" * 50_000)), "tag": tag_of(Question)}
    number = 0
    while "high_water" not in server.office.counted:
        assert number < 2000, "no bound was met"
        number += 1
        outlaw.say(outlaw.frame(number, Kind.ASK, correlation=number, deadline=9.0, **question))
        assert client.world.main.ask(SERVER, Question(text="hi"), WAIT_S) == Word(text="hi")
    assert server.host.wait(lambda: server.host.world.dead_letters["unreachable"] >= 1)


def test_a_life_says_hello_as_often_as_it_likes(net, server, honest):
    outlaw = net.outlaw()
    for _ in range(50):
        outlaw.hello()
    outlaw.say(outlaw.frame(1, **word("one")))
    assert server.heard.get(timeout=WAIT_S).text == "one"
    assert len(server.office.rows()) == 2


def test_noise_is_counted_and_the_link_of_its_sender_lives(net, server, honest):
    outlaw, random = net.outlaw(), Random(7)
    outlaw.hello()
    good = outlaw.frame(1, **word("one"))
    for _ in range(300):
        noise = bytearray(good)
        for _ in range(random.randrange(1, 6)):
            noise[random.randrange(len(noise))] = random.randrange(256)
        outlaw.say(bytes(noise[: random.randrange(1, len(noise))]))
    outlaw.say(outlaw.frame(2**32, **word("after")))
    while server.heard.get(timeout=WAIT_S) != Word(text="after"):
        pass
    assert server.office.counted["bad_frame"] > 250
    said = [line for line in server.host.logs if "bad frame" in line]
    assert len(said) < 20, "a flood does not fill the log"


# whoever is dialled may be the liar


@pytest.fixture
def keeper(net):
    """A client that dials a server without rules; what it hears is in `heard`."""
    outlaw = net.outlaw_server()
    client = net.host("client", dial=["server"])
    client.heard = Queue()
    client.world.spawn(CLIENT, lambda: Echo(client.heard))
    outlaw.greet()
    assert client.wait_event("up", "server")
    return outlaw, client


def test_an_answer_goes_to_the_life_that_asked_and_to_no_later_one(net, keeper):
    outlaw, client = keeper
    question = {"body": encode_body(Question(text="keep")), "tag": tag_of(Question)}
    outlaw.say(outlaw.frame(1, Kind.ASK, to=CLIENT, correlation=5, deadline=60.0, **question))
    assert client.heard.get(timeout=WAIT_S) == "kept"
    outlaw.close()
    assert client.wait_event("down", "server")
    later = net.outlaw_server()
    later.incarnation = 78
    later.greet()
    assert client.wait_event("up", "server", 2)
    client.world.main.ask(CLIENT, Release(), WAIT_S)
    assert client.wait(lambda: client.world.dead_letters["unreachable"] == 1)
    later.say(later.frame(1, to=CLIENT, **word("speak")))
    assert client.heard.get(timeout=WAIT_S).text == "speak"
    heard = [kind for envelope in later.hear() if (kind := envelope.kind) is not Kind.BEAT]
    assert heard == []


def test_an_ask_is_answered_by_whom_it_was_asked_of(keeper):
    outlaw, client = keeper
    forged: Queue[object] = Queue()

    def ask() -> None:
        try:
            forged.put(client.world.main.ask(Address("server/honest"), Question(text="?"), 0.2))
        except AskFailed as failed:
            forged.put(failed.failure)

    Thread(target=ask).start()
    asked = []
    while not asked:
        asked = [envelope for envelope in outlaw.hear() if envelope.kind is Kind.ASK]
    lie = {"to": asked[0].sender, "correlation": asked[0].correlation, "sender": "server/liar"}
    outlaw.say(outlaw.frame(1, Kind.ANSWER, **lie, **word("lie")))
    assert forged.get(timeout=WAIT_S) is AskFailure.TIMEOUT


def test_a_key_may_be_listed_but_only_for_its_own_name(net, server):
    """The bytes of another process's HELLO do not make its connection."""
    outlaw = net.outlaw()
    outlaw.say(outlaw.frame(0, Kind.HELLO, sender="client/office", to="server/office"))
    assert server.host.wait_count("bad_frame")
    assert not server.office.reaches("client")
    assert not server.office.reaches("other")
