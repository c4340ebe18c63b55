"""Links over time: they break, come back, are closed; what was lost is counted, and nobody waits for it."""

from __future__ import annotations

import gc
import os
import threading
from queue import Queue
from threading import Event, Thread

import pytest
import zmq
from zmq.utils.monitor import parse_monitor_message

from actors.actor import Actor, AskFailed, Context, Procedure
from messages.base import U64, Address, Message, Request
from messages.system import (
    AskFailure,
    AwaitReady,
    GetProcess,
    GetState,
    GetStatistics,
    ListActors,
    Ping,
    Resume,
    Suspend,
    Trace,
)
from runtime.kernel.envelope import MAX_MESSAGE_BYTES, MAX_TEXT_BYTES, Envelope, Kind, tag_of
from runtime.office import admission as admission_module
from runtime.office import listen as listen_module
from runtime.office import office as office_module
from runtime.office import sockets as sockets_module
from runtime.office.admission import Admission
from runtime.office.listen import IpcClaim, ListenFault

SERVER, CLIENT = Address("server/worker"), Address("client/worker")
WAIT_S = 5.0


class Word(Message, frozen=True):
    text: str


class Number(Message, frozen=True):
    value: U64


class Question(Request[Word], frozen=True):
    text: str


class Relay(Request[Word], frozen=True):
    through: list[Address]


class Big(Request[Word | Number], frozen=True):
    """Answered with what cannot be said: `size` letters, or a number of `bits`."""

    size: int = 0
    bits: int = 0


class Worker(Actor[object]):
    mailbox = Word | Number | Question | Relay | Big

    def __init__(self, heard: Queue[object]) -> None:
        self.heard = heard

    def receive(self, message: object, ctx: Context) -> Procedure | None:
        match message:
            case Question(text="never"):
                self.heard.put("asked")
            case Question(text=text):
                ctx.reply(Word(text=text))
            case Relay():
                return self.relay(message, ctx)
            case Big(size=size, bits=0):
                ctx.reply(Word(text="x" * size))
            case Big(bits=bits):
                ctx.reply(Number(value=2**bits))
            case _:
                self.heard.put(message)
        return None

    async def relay(self, relay: Relay, ctx: Context) -> None:
        first, *rest = relay.through
        ctx.reply(await ctx.ask(first, Relay(through=rest) if rest else Question(text=ctx.address), WAIT_S))

    def state(self) -> object:
        return {"heard": self.heard.qsize()}


class Pair:
    """`client` dials `server`; each has a worker, whose words are in `heard[name]`."""

    def __init__(self, net, **settings) -> None:
        self.net = net
        self.heard: dict[str, Queue[object]] = {"server": Queue(), "client": Queue()}
        self.server = net.host("server", listens=True, **settings.pop("server", {}))
        self.server.world.spawn(SERVER, lambda: Worker(self.heard["server"]))
        self.client = self.new_client(**settings)

    def new_client(self, **settings):
        client = self.net.host("client", dial=["server"], **settings)
        client.world.spawn(CLIENT, lambda: Worker(self.heard["client"]))
        assert client.wait_event("up", "server")
        assert self.server.wait(lambda: self.server.office.reaches("client"))
        return client

    def ask(self, request, timeout_s: float = WAIT_S, to: Address = SERVER):
        return self.client.world.main.ask(to, request, timeout_s)

    def ask_aside(self, request) -> Queue[object]:
        """Ask on a thread of its own; the answer or the failure comes into the queue."""
        outcome: Queue[object] = Queue()

        def ask() -> None:
            try:
                outcome.put(self.ask(request, 60.0))
            except AskFailed as failed:
                outcome.put(failed)

        Thread(target=ask, daemon=True).start()
        return outcome


@pytest.fixture
def pair(net) -> Pair:
    return Pair(net)


def row_of(host, name):
    (row,) = [row for row in host.office.rows() if row.process == name]
    return row


def failure_of(pair, request, to: Address = SERVER) -> AskFailed:
    with pytest.raises(AskFailed) as failed:
        pair.ask(request, to=to)
    return failed.value


# asking across


def test_a_cycle_of_asks_across_processes_is_refused_naming_it(pair):
    failed = failure_of(pair, Relay(through=[SERVER, CLIENT, SERVER]), CLIENT)
    assert (failed.failure, failed.code) == (AskFailure.REFUSED, "would_deadlock")
    assert f"{CLIENT} -> {SERVER} -> {CLIENT} would wait for itself" in failed.reason


def test_a_deadline_travels_as_the_time_that_is_left(pair, monkeypatch):
    seen: Queue[Envelope] = Queue()
    office = pair.server.office
    deliver = office._receive
    monkeypatch.setattr(office, "_receive", lambda envelope: (seen.put(envelope), deliver(envelope)))
    before = pair.server.world.now()
    pair.ask(Question(text="hi"), timeout_s=30.0)
    asked = seen.get(timeout=WAIT_S)
    assert before + 25 < asked.deadline <= pair.server.world.now() + 30.001


def test_only_the_operator_and_the_root_hold_or_trace_an_actor_of_another_process(pair):
    for request in (Suspend(), Resume(), Trace(count=1)):
        with pytest.raises(AskFailed) as failed:
            pair.ask(request)
        assert failed.value.code == "not_allowed"
    assert not pair.ask(GetStatistics()).suspended


def test_sight_into_an_actor_of_another_process(pair):
    pair.server.world.operators |= {"client"}
    assert pair.ask(Ping())
    assert pair.ask(AwaitReady())
    pair.ask(Suspend())
    assert pair.ask(GetStatistics()).suspended
    waiting = pair.ask_aside(Question(text="held"))
    tell(pair.client, SERVER, Word(text="held"))
    while pair.ask(GetStatistics()).mailbox < 2:
        pass
    assert pair.ask(GetState()).state == {"heard": 0}
    traced = pair.ask_aside(Trace(count=2))
    while traced.empty() and pair.ask(Resume()):
        tell(pair.client, SERVER, Word(text="traced"))
    assert waiting.get(timeout=WAIT_S) == Word(text="held")
    assert len(traced.get(timeout=WAIT_S).lines) == 2
    assert [row.address for row in pair.ask(ListActors()).actors] == [SERVER]
    report = pair.ask(GetProcess())
    assert [(row.process, row.up, row.gaps) for row in report.links] == [("client", True, 0)]


def tell(host, to: Address, message: Message) -> bool:
    sender = Address(f"{host.name}/main")
    return host.world.post(Envelope(Kind.TELL, to, sender, message, tag=tag_of(type(message))))


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (Question(text="\udcff"), "malformed"),
        (Question(text="x" * (MAX_MESSAGE_BYTES + 1)), "too_large"),
        (Relay(through=[SERVER] * 3 + [2**64]), "malformed"),
    ],
    ids=["lone surrogate", "large", "number"],
)
def test_what_cannot_be_said_is_refused_where_it_was_to_be_said(pair, request_, code):
    failed = failure_of(pair, request_)
    assert (failed.failure, failed.code) == (AskFailure.REFUSED, code)
    assert failed.nothing_happened
    assert pair.ask(Question(text="hi"))


@pytest.mark.parametrize(
    ("request_", "code"),
    [(Big(bits=64), "malformed"), (Big(size=MAX_MESSAGE_BYTES + 1), "too_large")],
    ids=["number", "large"],
)
def test_the_asker_of_what_cannot_be_answered_is_told_and_knows_nothing(pair, request_, code):
    failed = failure_of(pair, request_)
    assert (failed.failure, failed.code) == (AskFailure.DIED, code)
    assert pair.ask(Question(text="hi"))


@pytest.mark.parametrize(
    "address",
    ["server/\udcff", "server/" + "x" * MAX_TEXT_BYTES, "server/nobody", "server", "nobody/worker", "", "/"],
    ids=ascii,
)
def test_an_ask_to_no_actor_is_refused_and_the_link_lives(pair, address):
    assert failure_of(pair, Question(text="?"), Address(address)).nothing_happened
    assert pair.ask(Question(text="hi"))
    assert "bad_frame" not in pair.server.office.counted


@pytest.mark.parametrize("timeout_s", [1e300, float("inf")])
def test_an_ask_without_end_is_refused(pair, timeout_s):
    ask = Envelope(
        Kind.ASK, SERVER, CLIENT, Question(text="?"), tag=tag_of(Question), correlation=1, deadline=timeout_s
    )
    pair.client.world.post(ask)
    assert pair.ask(Question(text="hi"))
    assert pair.client.world.dead_letters["refused"] == 1


# breaks


def flush(pair) -> None:
    """Until what was told has left: what is refused comes after what was told before it, or in the burst of it."""
    for _ in range(2):
        assert failure_of(pair, Question(text="?"), Address("nobody/worker")).failure is AskFailure.UNREACHABLE


def test_what_a_broken_connection_swallowed_is_a_gap_there_and_unconfirmed_here(net):
    wire = net.wire("server")
    pair = Pair(net, through={"server": wire.endpoint})
    tell(pair.client, SERVER, Word(text="before"))
    assert pair.heard["server"].get(timeout=WAIT_S)
    wire.stall()
    lost = pair.ask_aside(Question(text="lost"))
    for number in range(100):
        assert tell(pair.client, SERVER, Word(text=str(number)))
    flush(pair)
    wire.cut()
    assert pair.client.wait_event("up", "server", 2)
    failed = lost.get(timeout=WAIT_S)
    assert failed.failure is AskFailure.DIED, "whether it arrived is not known"
    assert pair.ask(Question(text="after"))
    here, there = row_of(pair.client, "server"), row_of(pair.server, "client")
    assert there.gaps > 0
    assert there.received + there.gaps == here.sent
    assert here.unconfirmed >= there.gaps
    assert there.duplicates == 0


def test_a_connection_without_a_word_is_given_up_by_both_ends(net, monkeypatch):
    """As when a cable is pulled: no end of the connection is seen, only silence."""
    monkeypatch.setattr(sockets_module, "HEARTBEAT_MS", 50)
    monkeypatch.setattr(sockets_module, "HEARTBEAT_TIMEOUT_MS", 150)
    wire = net.wire("server")
    pair = Pair(net, through={"server": wire.endpoint})
    wire.stall()
    assert pair.client.wait_event("down", "server")
    assert pair.server.wait_event("down", "client")
    wire.cut()
    assert pair.client.wait_event("up", "server", 2)
    assert pair.ask(Question(text="hi"))


def test_one_of_a_crowd_that_was_forgotten_while_it_was_away_is_answered_when_it_is_back(net, monkeypatch):
    """A server that stood still for long: it finds all of a crowd gone, and forgets them when the first is back."""
    monkeypatch.setattr(sockets_module, "HEARTBEAT_MS", 50)
    monkeypatch.setattr(sockets_module, "HEARTBEAT_TIMEOUT_MS", 150)
    wire = net.wire("server")
    pair = Pair(net, server={"crowd": frozenset({"client"})}, through={"server": wire.endpoint})
    for _ in range(5):
        assert pair.ask(Question(text="before"))
    wire.stall()
    assert pair.client.wait_event("down", "server")
    assert pair.server.wait_event("down", "client")
    another = net.host("client", dial=["server"])
    assert another.wait_event("up", "server")
    wire.cut()
    assert pair.client.wait_event("up", "server", 2)
    assert pair.ask(Question(text="after"))
    assert row_of(pair.client, "server").duplicates == 0


def test_a_peer_that_lives_again_while_it_is_spoken_to_loses_nothing_uncounted(net):
    """Every word told was heard, or somebody counted it; none was heard twice."""
    pair = Pair(net)
    told, gone = 0, []
    for _ in range(4):
        for _ in range(500):
            tell(pair.server, CLIENT, Number(value=told))
            told += 1
        pair.client.close()
        gone.append(pair.client.world.dead_letters)
        for _ in range(50):
            tell(pair.server, CLIENT, Number(value=told))
            told += 1
        assert pair.server.wait_event("down", "client")
        pair.client = pair.new_client()
    tell(pair.server, CLIENT, Word(text="last"))
    heard = []
    while not isinstance(message := pair.heard["client"].get(timeout=WAIT_S), Word):
        heard.append(message.value)
    assert heard == sorted(set(heard))
    report = pair.server.world.process_report()
    unconfirmed = report.dead_letters.get("unconfirmed", 0) + sum(row.unconfirmed for row in report.links)
    here = unconfirmed + report.dead_letters.get("unreachable", 0)
    assert pair.server.wait(lambda: told - len(heard) <= here + sum(sum(letters.values()) for letters in gone))


def test_a_process_told_to_stop_says_so_to_whoever_waits(pair):
    waiting = pair.ask_aside(Question(text="never"))
    assert pair.heard["server"].get(timeout=WAIT_S) == "asked"
    pair.client.office.close()
    failed = waiting.get(timeout=WAIT_S)
    assert (failed.failure, "this end closed" in failed.reason) == (AskFailure.DIED, True)
    assert not pair.client.office.reaches("server")
    assert failure_of(pair, Question(text="?")).failure is AskFailure.UNREACHABLE
    assert tell(pair.client, SERVER, Word(text="x")) is False


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_office_that_fails_says_so_and_leaves_nobody_waiting(pair, monkeypatch):
    waiting = pair.ask_aside(Question(text="never"))
    assert pair.heard["server"].get(timeout=WAIT_S) == "asked"

    def fail() -> bool:
        raise MemoryError("no more")

    monkeypatch.setattr(pair.client.office, "_greet", fail)
    assert waiting.get(timeout=WAIT_S).failure is AskFailure.DIED
    assert pair.client.wait(lambda: any("MemoryError" in line for line in pair.client.logs))
    assert failure_of(pair, Question(text="?")).failure is AskFailure.UNREACHABLE


def test_what_waits_to_leave_is_bounded(pair, monkeypatch):
    monkeypatch.setattr(office_module, "OUTBOX_ENVELOPES", 100)
    held, gate = Event(), Event()
    office = pair.client.office
    real = office._greet
    monkeypatch.setattr(office, "_greet", lambda: held.set() or (gate.wait(WAIT_S) and real()))
    assert held.wait(WAIT_S)
    taken = [tell(pair.client, SERVER, Word(text="x")) for _ in range(150)]
    gate.set()
    assert taken == [True] * 100 + [False] * 50
    assert pair.client.world.dead_letters["refused"] == 50
    for _ in range(100):
        pair.heard["server"].get(timeout=WAIT_S)
    assert pair.ask(Question(text="hi"))


def test_offices_opened_and_closed_leave_no_descriptor_and_no_thread(net):
    def used() -> tuple[int, int]:
        gc.collect()
        return len(os.listdir("/proc/self/fd")), threading.active_count()

    server = net.host("server", listens=True)
    net.host("client", dial=["server"]).close()
    before = used()
    for turn in range(50):
        client = net.host("client", dial=["server"])
        assert client.wait_event("up", "server")
        client.close()
        net.hosts.remove(client)
        assert server.wait_event("down", "client", turn + 1)
    fds, threads = used()
    assert fds <= before[0] + 2
    assert threads <= before[1] + 2
    assert len(server.office.rows()) <= 2


# who may do what


def test_the_sockets_of_an_office_belong_to_its_own_thread(pair):
    with pytest.raises(AssertionError, match="own thread"):
        pair.client.office._send("server", b"", b"x")


@pytest.mark.parametrize("how", ["gone", "silent"])
def test_without_a_handler_that_admits_nobody_gets_in(net, monkeypatch, how):
    if how == "gone":
        monkeypatch.setattr(admission_module, "ENDPOINT", "inproc://elsewhere")
    else:
        monkeypatch.setattr(Admission, "answer", lambda self: self.socket.recv_multipart())
    server = net.host("server", listens=True)
    outlaw = net.outlaw()
    assert outlaw.socket.poll(300, zmq.POLLOUT) == 0
    assert server.office.rows() == []


def test_a_dead_endpoint_is_tried_less_and_less_often(net):
    keys = net.keys("client")
    sockets = sockets_module.Sockets(keys)
    try:
        dealer, monitor = sockets.dealer("server", net.endpoint("server"))
        dealer.disable_monitor()
        monitor.close()
        dealer.monitor("inproc://retries", zmq.EVENT_CONNECT_RETRIED)
        monitor = sockets.context.socket(zmq.PAIR)
        monitor.connect("inproc://retries")
        waits = []
        while len(waits) < 5:
            assert monitor.poll(5000)
            waits.append(parse_monitor_message(monitor.recv_multipart())["value"])
    finally:
        sockets.close()
    assert waits[-1] >= 4 * waits[0]
    assert max(waits) <= 2 * sockets_module.RECONNECT_MAX_MS


def test_a_lock_that_its_holder_has_just_removed_is_no_lock(tmp_path, monkeypatch):
    path = tmp_path / "a.sock"
    real = listen_module.fcntl.flock

    def removed(descriptor: int, how: int) -> None:
        (tmp_path / "a.sock.lock").unlink()
        real(descriptor, how)

    with monkeypatch.context() as patched:
        patched.setattr(listen_module.fcntl, "flock", removed)
        with pytest.raises(ListenFault, match="in use"):
            IpcClaim(str(path))
    IpcClaim(str(path)).release()
