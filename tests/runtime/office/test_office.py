"""Real sockets: links come up and end, keys bind, duplicates and gaps are seen, nothing hangs."""

from __future__ import annotations

from queue import Queue
from threading import Event

import pytest
import zmq

from actors.actor import Actor, AskFailed, Context, Procedure
from messages.base import Address, Message, Request
from messages.system import AskFailure
from runtime.kernel.envelope import Envelope, Kind, pack
from runtime.office.listen import IpcClaim, ListenFault

SERVER, CLIENT = Address("server/echo"), Address("client/asker")


class Word(Message, frozen=True):
    text: str


class Question(Request[Word], frozen=True):
    text: str


class Silence(Request[Word], frozen=True):
    pass


class Echo(Actor[object]):
    mailbox = Word | Question | Silence

    def __init__(self, heard: Queue[str]) -> None:
        self.heard = heard

    def receive(self, message: object, ctx: Context) -> None:
        match message:
            case Word(text=text):
                self.heard.put(text)
            case Question(text=text):
                ctx.reply(Word(text=f"{ctx.sender}: {text}"))
            case Silence():
                self.heard.put("silence")


class Asker(Actor[object]):
    """Asks whatever it is told to and puts the outcome into `outcomes`."""

    mailbox = Word | Question | Silence

    def __init__(self, outcomes: Queue[object]) -> None:
        self.outcomes = outcomes

    def receive(self, message: object, ctx: Context) -> Procedure | None:
        if isinstance(message, Word):
            ctx.tell(SERVER, message)
            return None
        return self.ask(message, ctx)

    async def ask(self, request, ctx: Context) -> None:
        try:
            self.outcomes.put((await ctx.ask(SERVER, request, timeout_s=10)).text)
        except AskFailed as failed:
            self.outcomes.put(failed)


class Pair:
    def __init__(self, net, **settings):
        self.heard: Queue[str] = Queue()
        self.outcomes: Queue[object] = Queue()
        self.server = net.host("server", listens=True)
        self.server.world.spawn(SERVER, lambda: Echo(self.heard))
        self.client = net.host("client", dial=["server"], **settings)
        self.client.world.spawn(CLIENT, lambda: Asker(self.outcomes))

    def say(self, message):
        self.client.world.deliver(Envelope(Kind.TELL, CLIENT, CLIENT, message, tag=_tag(message)))

    def ask(self, message):
        self.say(message)
        return self.outcomes.get(timeout=5)


def _tag(message):
    return f"{type(message).__module__}.{type(message).__name__}"


@pytest.fixture
def pair(net):
    pair = Pair(net)
    assert pair.client.wait_event("up", "server")
    return pair


def test_an_ask_crosses_and_its_answer_returns_on_the_same_connection(pair):
    assert pair.ask(Question(text="hi")) == "client/asker: hi"


def test_tells_arrive_once_and_in_order_and_are_acknowledged(pair):
    for number in range(2_000):
        pair.say(Word(text=str(number)))
        if number % 200 == 199:
            assert pair.ask(Question(text="")) is not None
    assert [pair.heard.get(timeout=5) for _ in range(2_000)] == [str(number) for number in range(2_000)]
    (row,) = pair.server.office.rows()
    assert (row.duplicates, row.gaps) == (0, 0)


def test_an_ask_to_a_process_that_is_not_there_is_unreachable_at_once(net):
    client = net.host("client", dial=["server"])
    outcomes: Queue[object] = Queue()
    client.world.spawn(CLIENT, lambda: Asker(outcomes))
    client.world.deliver(Envelope(Kind.TELL, CLIENT, CLIENT, Question(text=""), tag=_tag(Question(text=""))))
    failed = outcomes.get(timeout=5)
    assert isinstance(failed, AskFailed)
    assert failed.failure is AskFailure.UNREACHABLE


def test_a_server_that_goes_answers_its_askers_died_and_comes_back_under_the_same_address(net, pair):
    pair.say(Silence())
    assert pair.heard.get(timeout=5) == "silence"
    pair.server.office.close()
    failed = pair.outcomes.get(timeout=5)
    assert isinstance(failed, AskFailed)
    assert failed.failure is AskFailure.DIED
    assert pair.client.wait_event("down", "server")
    again = net.host("server", listens=True)
    again.world.spawn(SERVER, lambda: Echo(pair.heard))
    assert pair.client.wait_event("up", "server", 2)
    assert pair.ask(Question(text="hi")) == "client/asker: hi"


def test_a_client_that_goes_is_noticed_without_anyone_speaking(pair):
    assert pair.server.wait_event("up", "client")
    pair.client.office.close()
    assert pair.server.wait_event("down", "client")


def test_of_one_name_the_newest_connection_wins(net, pair):
    newer = net.host("client", dial=["server"])
    assert newer.wait_event("up", "server")
    assert pair.server.wait_event("up", "client", 2)
    kinds = [event[0] for event in pair.server.events]
    assert kinds == ["up", "down", "up"], "the old one ended before the new one was announced"


def test_a_key_that_is_not_listed_gets_in_nowhere_and_is_counted(net):
    server = net.host("server", listens=True, listed=["server", "other"])
    stranger = net.host("client", dial=["server"])
    assert server.wait_count("refused_connection")
    assert stranger.wait_count("handshake_failed")
    assert not stranger.office.reaches("server")


def test_a_wrong_server_key_is_visible(net):
    net.host("server", listens=True, key_of="impostor")
    client = net.host("client", dial=["server"])
    assert client.wait_count("handshake_failed")


def test_who_speaks_in_another_name_is_not_heard(net, pair):
    outsider = net.host("other", dial=["server"])
    assert outsider.wait_event("up", "server")
    for sender, text in (("client/asker", "forged"), ("other/x", "honest")):
        word = Word(text=text)
        outsider.office.post(Envelope(Kind.TELL, SERVER, Address(sender), word, tag=_tag(word)))
        assert pair.server.wait_count("bad_frame")
    assert pair.heard.get(timeout=5) == "honest"
    assert pair.server.office.counted["bad_frame"] == 1


@pytest.mark.parametrize("frame", [b"", b"\xc1", b"\x93\x01\x02\x03", b"x" * 100, pack(
    Envelope(Kind.TELL, SERVER, Address("client/x"), body=b"\xc1", tag=_tag(Word(text=""))), 1, 7, 0.0)],
    ids=["empty", "reserved", "short", "text", "wrong incarnation"])  # fmt: skip
def test_rubbish_is_counted_and_nobody_else_notices(net, pair, frame):
    client = pair.client.office
    posted = Event()
    door = client._links.doors["server"]

    def rubbish() -> None:
        door.socket.send(frame, zmq.NOBLOCK)
        posted.set()

    client._greet, real = (lambda: rubbish() or real()), client._greet
    assert posted.wait(5)
    client._greet = real
    assert pair.ask(Question(text="hi")) == "client/asker: hi"


def test_a_duplicate_is_dropped_and_a_gap_is_counted(pair):
    from runtime.office.link import Link

    link = Link("peer", 1)
    assert [link.arrived(number) for number in (1, 2, 2, 5)] == [True, True, False, True]
    assert (link.duplicates, link.gaps) == (1, 2)


def test_what_is_not_acknowledged_when_a_link_ends_is_unconfirmed():
    from runtime.office.link import Link

    link = Link("peer", 1)
    link.left(5)
    link.acknowledge(3)
    assert link.ended() == 2
    link.again(0)
    assert link.ended() == 0, "never counted twice"


def test_a_message_too_large_is_refused_by_name_and_the_link_lives(pair):
    failed = pair.ask(Question(text="x" * (17 * 1024 * 1024)))
    assert isinstance(failed, AskFailed)
    assert failed.code == "too_large"
    assert pair.ask(Question(text="hi")) == "client/asker: hi"


def test_a_path_in_use_a_file_and_a_long_path_are_refused_with_the_remedy(tmp_path):
    claim = IpcClaim(str(tmp_path / "a.sock"))
    with pytest.raises(ListenFault, match="in use"):
        IpcClaim(str(tmp_path / "a.sock"))
    claim.release()
    (tmp_path / "file.sock").write_text("mine")
    with pytest.raises(ListenFault, match="not a socket"):
        IpcClaim(str(tmp_path / "file.sock"))
    assert (tmp_path / "file.sock").read_text() == "mine"
    with pytest.raises(ListenFault, match="run_dir"):
        IpcClaim("/tmp/" + "x" * 120)


def test_a_socket_left_by_a_killed_process_is_taken_over(tmp_path):
    import socket

    path = str(tmp_path / "a.sock")
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(path)
    dead.close()
    IpcClaim(path).release()


def test_a_port_in_use_is_refused_with_the_remedy(net):
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        net.endpoint = lambda name: f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ListenFault, match=r"ss -ltnp"):
            net.host("server", listens=True)
