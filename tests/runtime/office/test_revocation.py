"""A revoked key: not heard from the call on, cut off at once, not let in again; nobody else notices."""

from __future__ import annotations

import os
import socket
from queue import Queue
from threading import Thread

import pytest
import zmq
from zmq.utils.monitor import recv_monitor_message

from actors.actor import Actor, AskFailed, Context
from messages.base import Address, Message, Request
from messages.system import AskFailure
from runtime.kernel.envelope import Kind, encode_body, tag_of
from runtime.office.revocation import Connection

SERVER, CLIENT = Address("server/echo"), Address("client/echo")
WAIT_S = 5.0


class Word(Message, frozen=True):
    text: str


class Question(Request[Word], frozen=True):
    text: str


class Echo(Actor[object]):
    """Says what it hears into `heard`; never answers "never"."""

    mailbox = Word | Question

    def __init__(self, heard: Queue[str]) -> None:
        self.heard = heard

    def receive(self, message: object, ctx: Context) -> None:
        self.heard.put(message.text)
        if isinstance(message, Question) and message.text != "never":
            ctx.reply(Word(text=message.text))


class Server:
    def __init__(self, net) -> None:
        self.heard: Queue[str] = Queue()
        self.host = net.host("server", listens=True)
        self.host.world.spawn(SERVER, lambda: Echo(self.heard))
        self.office = self.host.office


def tcp_endpoint() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{free.getsockname()[1]}"


@pytest.fixture(params=["ipc", "tcp"])
def server(net, request, monkeypatch) -> Server:
    if request.param == "tcp":
        endpoint = tcp_endpoint()
        monkeypatch.setattr(net, "endpoint", lambda _: endpoint)
    return Server(net)


@pytest.fixture
def honest(net, server):
    """A client that is not revoked: it works before and after, over the link that it had."""
    client = net.host("client", dial=["server"])
    assert client.wait_event("up", "server")
    yield client
    assert client.world.main.ask(SERVER, Question(text="still here"), WAIT_S) == Word(text="still here")
    assert [event for event in client.events if event[0] == "down"] == []


def word(outlaw, sequence: int) -> bytes:
    return outlaw.frame(sequence, body=encode_body(Word(text="too late")), tag=tag_of(Word))


def link(office, name: str):
    return [row for row in office.rows() if row.process == name]


def test_its_connection_ends_at_once_and_it_is_not_let_in_again(net, server, honest):
    outlaw = net.outlaw()
    outlaw.hello()
    assert server.host.wait_event("up", "other")
    server.office.revoke("other")
    outlaw.wait_cut_off()
    assert server.host.wait_event("down", "other")
    assert not server.office.reaches("other")
    assert server.host.wait_count("refused_connection")
    assert [row.up for row in link(server.office, "other")] == [False]


def test_what_is_under_way_is_not_heard_from_the_call_on(net, server, honest):
    outlaw = net.outlaw()
    outlaw.hello()
    with server.host.changed:  # the office's thread waits here, with what it has to say about the first of these
        outlaw.say(b"rubbish")
        for sequence in range(1, 101):
            outlaw.say(word(outlaw, sequence))
        server.office.revoke("other")
    outlaw.wait_cut_off()
    assert honest.world.main.ask(SERVER, Question(text="after"), WAIT_S) == Word(text="after")
    assert server.heard.get(timeout=WAIT_S) == "after"
    assert server.heard.empty()


def test_a_connection_that_was_let_in_before_and_speaks_after_is_cut_and_not_heard(net, server, honest):
    outlaw = net.outlaw()
    assert outlaw.socket.poll(int(WAIT_S * 1000), zmq.POLLOUT), "not let in"
    server.office.revoke("other")
    outlaw.say(outlaw.frame(0, Kind.HELLO))
    outlaw.wait_cut_off()
    assert server.host.wait_count("revoked")
    assert link(server.office, "other") == []
    assert server.heard.empty()


def test_who_asks_it_is_told_that_nothing_is_known(net, server, honest):
    heard: Queue[str] = Queue()
    other = net.host("other", dial=["server"])
    other.world.spawn(Address("other/echo"), lambda: Echo(heard))
    assert server.host.wait_event("up", "other")
    failed: Queue[AskFailed] = Queue()

    def ask() -> None:
        try:
            server.host.world.main.ask(Address("other/echo"), Question(text="never"), WAIT_S)
        except AskFailed as why:
            failed.put(why)

    asking = Thread(target=ask)
    asking.start()
    assert heard.get(timeout=WAIT_S) == "never"
    server.office.revoke("other")
    why = failed.get(timeout=WAIT_S)
    asking.join()
    assert why.failure is AskFailure.DIED
    assert "revoked" in str(why)
    with pytest.raises(AskFailed) as again:
        server.host.world.main.ask(Address("other/echo"), Question(text="hi"), WAIT_S)
    assert again.value.failure is AskFailure.UNREACHABLE


def test_every_connection_of_a_name_that_may_have_several_is_cut(net):
    server = net.host("server", listens=True, crowd=frozenset({"other"}))
    outlaws = [net.outlaw(), net.outlaw()]
    for number, outlaw in enumerate(outlaws):
        outlaw.incarnation += number
        outlaw.hello()
    assert server.wait_event("up", "other", 2)
    server.office.revoke("other")
    for outlaw in outlaws:
        outlaw.wait_cut_off()
    assert server.wait_event("down", "other", 2)


def test_twice_and_of_a_stranger_is_harmless(net, server, honest):
    outlaw = net.outlaw()
    outlaw.hello()
    for name in ("other", "other", "nobody"):
        server.office.revoke(name)
    outlaw.wait_cut_off()
    assert server.host.wait_event("down", "other")
    server.office.revoke("other")
    assert server.host.wait_count("refused_connection")
    assert sum(event[:2] == ("down", "other") for event in server.host.events) == 1


def test_one_that_this_process_dials_is_dialled_no_more(net, server):
    client = net.host("client", dial=["server"])
    client.world.spawn(CLIENT, lambda: Echo(Queue()))
    assert client.wait_event("up", "server")
    assert server.host.wait_event("up", "client")
    client.office.revoke("server")
    assert client.wait_event("down", "server")
    assert server.host.wait_event("down", "client")
    with pytest.raises(AskFailed) as failed:
        client.world.main.ask(SERVER, Question(text="hi"), WAIT_S)
    assert failed.value.failure is AskFailure.UNREACHABLE
    assert not client.office.reaches("server")
    assert sum(event[:2] == ("up", "server") for event in client.events) == 1


def test_a_closed_office_takes_a_revocation(net, server):
    server.office.close()
    server.office.revoke("other")


# the descriptor


@pytest.fixture
def pair():
    ends = socket.socketpair()
    yield ends
    for end in ends:
        end.close()


def at(descriptor: int) -> Connection:
    return Connection(descriptor, os.fstat(descriptor).st_ino)


def test_a_cut_ends_both_directions_and_closes_nothing(pair):
    ours, theirs = pair
    assert at(ours.fileno()).cut()
    theirs.settimeout(WAIT_S)
    assert theirs.recv(1) == b""
    assert ours.recv(1) == b""
    assert at(ours.fileno()).cut(), "once more is harmless"


def test_a_number_that_is_anothers_by_now_is_left_alone(pair):
    before = at(pair[0].fileno())
    fresh, peer = socket.socketpair()
    with fresh, peer:
        number = before.descriptor
        os.dup2(fresh.fileno(), number)
        assert not before.cut()
        peer.send(b"x")
        assert fresh.recv(1) == b"x"


def test_a_number_that_is_closed_is_left_alone():
    ours, theirs = socket.socketpair()
    before = at(ours.fileno())
    ours.close()
    theirs.close()
    assert not before.cut()


def test_a_frame_names_the_descriptor_it_came_on():
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router, context.socket(zmq.DEALER) as dealer:
        router.linger = dealer.linger = 0
        monitor = router.get_monitor_socket(zmq.EVENT_ACCEPTED)
        port = router.bind_to_random_port("tcp://127.0.0.1")
        dealer.connect(f"tcp://127.0.0.1:{port}")
        dealer.send(b"hi")
        assert router.poll(WAIT_S * 1000)
        frame = router.recv_multipart(copy=False)[-1]
        found = Connection.of(frame)
        assert found is not None
        assert monitor.poll(WAIT_S * 1000)
        assert found.descriptor == recv_monitor_message(monitor)["value"]
        router.disable_monitor()
        monitor.close()
