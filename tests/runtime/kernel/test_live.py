"""The kernel's rules where threads are real: what dies dies alone and is told, and nothing waits for ever."""

from __future__ import annotations

import os
import time
import warnings
from queue import Empty, Queue
from threading import Event, Thread, current_thread

import pykka
import pytest

from actors.actor import Actor, AskFailed, Context, Procedure
from messages.base import Address, Message, Request
from messages.system import (
    AskFailure,
    Down,
    GetState,
    GetStatistics,
    PeerDown,
    PeerUp,
    Ping,
    Resume,
    Suspend,
    Trace,
)
from runtime.kernel.caller import Caller
from runtime.kernel.envelope import Envelope, Kind, tag_of
from runtime.kernel.live import LiveWorld

WAIT_S = 5.0
GATE_S = 30.0
MAIN = Address("one/main")


class Text(Message, frozen=True):
    text: str


class Say(Request[Text], frozen=True):
    text: str


class Relay(Request[Text], frozen=True):
    """Ask `through[0]` to relay to the rest; the last one says its name."""

    through: list[Address]
    timeout_s: float = WAIT_S


class Do(Request[Text], frozen=True):
    """Do what `how` names."""

    how: str


class Watch(Message, frozen=True):
    address: Address


class Worker(Actor[object]):
    mailbox = Text | Say | Relay | Do | Watch | Down | PeerUp | PeerDown

    def __init__(self, heard: Queue[object] | None = None, gate: Event | None = None) -> None:
        self.heard: Queue[object] = Queue() if heard is None else heard
        self.gate = gate
        self.kept: list[Context] = []

    def receive(self, message: object, ctx: Context) -> Procedure | None:
        match message:
            case Say(text="wait"):
                assert self.gate is not None
                self.gate.wait(GATE_S)
                ctx.reply(Text(text="waited"))
            case Say(text="keep"):
                self.kept.append(ctx)
                self.heard.put("kept")
            case Say(text=text):
                ctx.reply(Text(text=text))
            case Relay():
                return self.relay(message, ctx)
            case Do(how=how):
                return getattr(self, how)(ctx)
            case Watch(address=address):
                ctx.watch(address)
            case _:
                if self.gate is not None:
                    self.gate.wait(GATE_S)
                self.heard.put(message)
        return None

    async def relay(self, relay: Relay, ctx: Context) -> None:
        if not relay.through:
            ctx.reply(Text(text=ctx.address))
            return
        first, *rest = relay.through
        ctx.reply(await ctx.ask(first, Relay(through=rest, timeout_s=relay.timeout_s), relay.timeout_s))

    def exit(self, ctx: Context) -> None:
        raise SystemExit(3)

    def fail(self, ctx: Context) -> None:
        raise ValueError("no good")

    def fail_unspeakably(self, ctx: Context) -> None:
        class Unspeakable(Exception):
            def __str__(self) -> str:
                raise RuntimeError("and cannot even say so")

        raise Unspeakable

    async def exit_later(self, ctx: Context) -> None:
        await ctx.sleep(0.001)
        raise SystemExit(3)

    async def fail_while_closed(self, ctx: Context) -> None:
        try:
            self.heard.put("sleeping")
            await ctx.sleep(60)
        finally:
            raise SystemExit("while it was closed")

    def far(self, ctx: Context) -> None:
        ctx.after(1e300, Text(text="never"))
        ctx.reply(Text(text="far"))

    def soon(self, ctx: Context) -> None:
        ctx.after(0.001, Text(text="soon"))
        ctx.reply(Text(text="armed"))

    def state(self) -> object:
        return {"kept": len(self.kept)}


def tell(live, to, message, sender=MAIN) -> bool:
    return live.world.deliver(Envelope(Kind.TELL, to, sender, message, tag=tag_of(type(message))))


def failure_of(live, to, request, timeout_s=WAIT_S) -> AskFailed:
    with pytest.raises(AskFailed) as failed:
        live.ask(to, request, timeout_s)
    return failed.value


# cycles


@pytest.mark.parametrize(
    ("through", "cycle"),
    [(["a"], "one/a -> one/a"), (["b", "a"], "one/a -> one/b -> one/a"), (["b", "c", "b"], "one/b -> one/c -> one/b")],
    ids=["itself", "two", "not the first"],
)
def test_a_cycle_of_asks_is_refused_at_once_with_the_names_in_it(live, through, cycle):
    for name in "abc":
        live.spawn(name, Worker)
    began = time.monotonic()
    failed = failure_of(live, Address("one/a"), Relay(through=[Address(f"one/{name}") for name in through]))
    assert (failed.failure, failed.code) == (AskFailure.REFUSED, "would_deadlock")
    assert f"{cycle} would wait" in failed.reason
    assert time.monotonic() - began < WAIT_S / 2, "by the rule, not by a deadline"


def test_too_many_waiting_in_a_row_are_refused_for_what_they_are(live):
    names = [live.spawn(f"w{n}", Worker) for n in range(40)]
    failed = failure_of(live, names[0], Relay(through=names[1:]))
    assert "wait in a row" in failed.reason


# deaths


@pytest.mark.parametrize("how", ["exit", "fail", "exit_later", "fail_unspeakably"])
def test_whatever_a_handler_raises_ends_its_actor_alone_and_its_asker_is_answered(live, how):
    a, b = live.spawn("a", Worker), live.spawn("b", Worker)
    watching: Queue[object] = Queue()
    watcher = live.spawn("watcher", lambda: Worker(watching))
    tell(live, watcher, Watch(address=a))
    live.ask(watcher, Ping())
    failed = failure_of(live, a, Do(how=how))
    assert failed.failure is AskFailure.DIED
    down = watching.get(timeout=WAIT_S)
    assert (down.address, down.kind.value) == (a, "crashed")
    address, kind, reason = live.ended.get(timeout=WAIT_S)
    assert (address, kind) == (a, "crashed")
    assert reason
    assert live.ask(b, Say(text="still here")).text == "still here"
    assert a not in live.world.cells


@pytest.mark.parametrize("error", [SystemExit(3), ValueError("no good"), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("where", ["made", "started", "procedure"])
def test_what_cannot_start_is_told_and_whoever_waits_for_it_is_answered(live, error, where):
    class Broken(Worker):
        def __init__(self) -> None:
            if where == "made":
                raise error
            super().__init__()

        def started(self, ctx: Context) -> Procedure | None:
            if where == "started":
                raise error
            return self.load(ctx)

        async def load(self, ctx: Context) -> None:
            await ctx.sleep(0.001)
            raise error

    a = live.spawn("a", Broken, ready=False)
    address, kind, reason = live.ended.get(timeout=WAIT_S)
    assert (address, kind) == (a, "crashed")
    assert type(error).__name__ in reason
    assert live.spawn("a", Worker) == a, "the address is free for its next life"


def test_who_starts_an_actor_is_told_its_end_however_soon_it_came(live):
    def broken() -> Worker:
        raise OSError("the file is not there")

    class Parent(Worker):
        def began(self, ctx: Context) -> None:
            ctx.spawn(Address("one/child"), broken)
            assert live.ended.get(timeout=WAIT_S)[0] == "one/child", "it is over before anything else is said"
            ctx.reply(Text(text="began"))

    heard: Queue[object] = Queue()
    live.ask(live.spawn("a", lambda: Parent(heard)), Do(how="began"))
    down = heard.get(timeout=WAIT_S)
    assert isinstance(down, Down)
    assert down.kind == "crashed"
    assert "the file is not there" in down.reason


def test_an_actor_told_to_stop_by_itself_while_it_starts_ends_without_hanging(live):
    class Quitter(Worker):
        def started(self, ctx: Context) -> None:
            ctx.stop(ctx.address)

    live.spawn("a", Quitter, ready=False)
    assert live.ended.get(timeout=WAIT_S)[:2] == ("one/a", "shutdown")


def test_a_procedure_that_raises_while_it_is_closed_keeps_nobody_else_waiting(live):
    heard: Queue[object] = Queue()
    a, b = live.spawn("a", lambda: Worker(heard)), live.spawn("b", Worker)
    failures: Queue[AskFailed] = Queue()
    asking = [Do(how="fail_while_closed"), Say(text="keep")]
    for request in asking:
        caller = Thread(target=lambda request=request: failures.put(failure_of(live, a, request)))
        caller.start()
        heard.get(timeout=WAIT_S)
    live.world.stop(a)
    assert [failures.get(timeout=WAIT_S).failure for _ in asking] == [AskFailure.DIED] * 2
    assert live.ended.get(timeout=WAIT_S)[:2] == (a, "shutdown")
    assert live.ask(b, Say(text="still here")).text


def test_what_stopped_starts_is_discarded(live):
    class Restless(Worker):
        def stopped(self, ctx: Context) -> None:
            ctx.run(self.exit_later(ctx))

    a = live.spawn("a", Restless)
    live.world.stop(a)
    assert live.ended.get(timeout=WAIT_S)[:2] == (a, "shutdown")
    with pytest.raises(Empty):
        live.logs.get_nowait()


def test_an_answer_to_an_earlier_life_is_not_taken_for_one_to_this(live):
    """Both lives ask the same actor as their first question; the answer to the first comes late."""
    heard: Queue[object] = Queue()

    class Slow(Worker):
        def receive(self, message: object, ctx: Context) -> None:
            if isinstance(message, Relay):
                self.kept.append(ctx)
                heard.put(message)
            elif isinstance(message, Text):
                for context, text in zip(self.kept, ("for the dead", "for the living"), strict=True):
                    context.reply(Text(text=text))

    slow = live.spawn("slow", Slow)
    a = live.spawn("a", Worker)
    answers: Queue[object] = Queue()

    def ask() -> None:
        try:
            answers.put(live.ask(a, Relay(through=[slow])).text)
        except AskFailed as failed:
            answers.put(failed.failure)

    Thread(target=ask).start()
    heard.get(timeout=WAIT_S)
    live.world.stop(a)
    assert live.ended.get(timeout=WAIT_S)[0] == a
    assert answers.get(timeout=WAIT_S) is AskFailure.DIED
    live.spawn("a", Worker)
    Thread(target=ask).start()
    heard.get(timeout=WAIT_S)
    tell(live, slow, Text(text="answer both"))
    assert answers.get(timeout=WAIT_S) == "for the living"
    assert live.world.dead_letters["late_answer"] == 1


def test_a_thread_that_cannot_be_had_leaves_the_address_free(live, monkeypatch):
    def no_thread(self, cell):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(LiveWorld, "launch", no_thread)
        with pytest.raises(RuntimeError, match="thread"):
            live.spawn("a", Worker)
    assert live.spawn("a", Worker)


# bounds


def test_a_slow_consumer_is_told_no_more_than_fits_and_every_refusal_is_counted(live):
    gate = Event()
    heard: Queue[object] = Queue()
    a = live.spawn("a", lambda: Worker(heard, gate))
    word = Envelope(Kind.TELL, a, MAIN, Text(text="x"), tag=tag_of(Text))
    many = 40_000
    taken = sum(map(live.world.deliver, [word] * many))
    limit = live.world.cells[a].mailbox.max_messages
    assert limit <= taken <= limit + 1
    assert live.world.dead_letters["overloaded"] == many - taken
    assert failure_of(live, a, Say(text="x")).code == "overloaded"
    gate.set()
    for _ in range(taken):
        heard.get(timeout=WAIT_S)
    assert live.ask(a, GetStatistics()).mailbox == 0


def test_the_end_of_a_watched_actor_is_told_even_to_a_full_mailbox(live):
    gate = Event()
    heard: Queue[object] = Queue()
    watcher, a = live.spawn("watcher", lambda: Worker(heard, gate)), live.spawn("a", Worker)
    live.world.watch(watcher, a)
    live.world.watch_peer(watcher, "two")
    while tell(live, watcher, Text(text="x")):
        pass
    live.world.stop(a)
    live.ended.get(timeout=WAIT_S)
    live.world.peer_up("two", 7)
    gate.set()
    told = [heard.get(timeout=WAIT_S)]
    while not isinstance(told[-1], PeerUp):
        told.append(heard.get(timeout=WAIT_S))
    assert [type(message) for message in told[-2:]] == [Down, PeerUp]


def test_a_stop_is_heard_however_full_the_mailbox_is(live):
    gate = Event()
    a = live.spawn("a", lambda: Worker(None, gate))
    tell(live, a, Say(text="wait"))
    ping = Envelope(Kind.TELL, a, MAIN, Ping(), tag=tag_of(Ping))
    while live.world.deliver(ping):
        pass
    live.world.stop(a)
    gate.set()
    assert live.ended.get(timeout=WAIT_S)[0] == a


# timers


def test_a_timer_beyond_what_a_lock_can_wait_stops_no_other(live):
    heard: Queue[object] = Queue()
    a = live.spawn("a", lambda: Worker(heard))
    live.ask(a, Do(how="far"))
    live.ask(a, Do(how="soon"))
    assert heard.get(timeout=WAIT_S) == Text(text="soon")


def test_a_trace_of_absurd_length_ends_when_it_has_seen_enough(live):
    a = live.spawn("a", Worker)
    traced: Queue[object] = Queue()
    Thread(target=lambda: traced.put(live.ask(a, Trace(count=1, seconds=1e300)))).start()
    while traced.empty() and live.ask(a, Say(text="seen")):
        pass
    assert "seen" in traced.get(timeout=WAIT_S).lines[0].message
    assert live.ask(a, GetStatistics()).timers == 0, "its own timer went with it"


# sight


def test_suspend_holds_and_resume_lets_go(live):
    heard: Queue[object] = Queue()
    a = live.spawn("a", lambda: Worker(heard))
    live.ask(a, Suspend())
    tell(live, a, Text(text="held"))
    assert live.ask(a, GetStatistics()).mailbox == 1
    assert heard.empty()
    live.ask(a, Resume())
    assert heard.get(timeout=WAIT_S) == Text(text="held")


@pytest.mark.parametrize(
    "state", [object(), ValueError("no good"), {"x": {1, "a", object()}}], ids=["object", "raises", "set"]
)
def test_looking_at_an_actor_does_not_end_it(live, state):
    class Opaque(Worker):
        def state(self) -> object:
            if isinstance(state, Exception):
                raise state
            return state

    a = live.spawn("a", Opaque)
    assert failure_of(live, a, GetState()).code == "malformed"
    assert live.ask(a, Say(text="still here")).text


# threads


def test_actors_may_be_made_watched_and_ended_from_many_threads_at_once(live):
    """Each watcher hears of each end exactly once, whether it watched before or after."""
    heard: Queue[object] = Queue()
    watcher = live.spawn("watcher", lambda: Worker(heard))
    rounds, threads = 30, 4

    def churn(number: int) -> None:
        for turn in range(rounds):
            address = Address(f"one/w{number}-{turn}")
            live.world.spawn(address, Worker)
            live.world.watch_peer(address, "two")
            Thread(target=live.world.stop, args=(address,)).start()
            live.world.watch(watcher, address)

    running = [Thread(target=churn, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    for turn in range(200):
        live.world.peer_up("two", turn)
        live.world.actor_list()
    for thread in running:
        thread.join(WAIT_S)
    downs = [heard.get(timeout=WAIT_S) for _ in range(rounds * threads)]
    assert len({down.address for down in downs}) == rounds * threads
    assert heard.empty()
    assert list(live.world.cells) == [watcher]


def test_of_two_who_make_the_same_actor_one_is_refused(live):
    outcomes: Queue[str] = Queue()

    def make() -> None:
        try:
            live.world.spawn(Address("one/a"), Worker)
            outcomes.put("made")
        except ValueError as error:
            outcomes.put(str(error))

    for _ in range(4):
        Thread(target=make).start()
    assert sorted(outcomes.get(timeout=WAIT_S) for _ in range(4)) == ["made", *["one/a exists already"] * 3]


@pytest.mark.parametrize("address", ["one", "one/A", "one/a b", "one/a/b/c"])
def test_an_actor_has_an_address_or_is_not_made(live, address):
    with pytest.raises(ValueError, match="no address"):
        live.world.spawn(Address(address), Worker)


def test_a_stopped_actor_leaves_no_thread_behind(live):
    threads: Queue[Thread] = Queue()

    class Here(Worker):
        def started(self, ctx: Context) -> None:
            threads.put(current_thread())

    for _ in range(20):
        a = live.spawn("a", Here)
        live.world.stop(a)
        live.ended.get(timeout=WAIT_S)
        thread = threads.get(timeout=WAIT_S)
        thread.join(WAIT_S)
        assert not thread.is_alive()


def test_a_forked_child_has_no_actors_to_stop(live):
    """Threads do not cross a fork: a child that stopped all would wait for ever."""
    live.spawn("a", Worker)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        os._exit(len(pykka.ActorRegistry._actor_refs))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# asking from outside


def test_nobody_answers_a_caller_for_another():
    asked: Queue[Envelope] = Queue()
    caller = Caller(Address("operator/cli-1"), asked.put)
    answers: Queue[object] = Queue()
    Thread(target=lambda: answers.put(caller.ask(Address("two/b"), Say(text="who?"), WAIT_S))).start()
    ask = asked.get(timeout=WAIT_S)
    for sender, text in ((Address("evil/b"), "forged"), (ask.to, "honest")):
        answer = Text(text=text)
        caller.receive(Envelope(Kind.ANSWER, ask.sender, sender, answer, correlation=ask.correlation))
    assert answers.get(timeout=WAIT_S) == Text(text="honest")


@pytest.mark.parametrize("body", [b"\xc1", b"\xc0", b"\x81\xa4type\xa4Nope", b"\x91" * 5000])
def test_an_answer_that_cannot_be_read_is_a_failed_ask(body):
    def answer(ask: Envelope) -> None:
        caller.receive(Envelope(Kind.ANSWER, ask.sender, ask.to, body=body, correlation=ask.correlation))

    caller = Caller(Address("operator/cli-1"), answer)
    with pytest.raises(AskFailed) as failed:
        caller.ask(Address("two/b"), Say(text="?"), WAIT_S)
    assert (failed.value.failure, failed.value.code) == (AskFailure.DIED, "malformed")


def test_a_caller_that_is_not_answered_gives_up_and_forgets():
    caller = Caller(Address("operator/cli-1"), lambda ask: None)
    with pytest.raises(AskFailed) as failed:
        caller.ask(Address("two/b"), Say(text="?"), 0.01)
    assert failed.value.failure is AskFailure.TIMEOUT
    assert not caller._waiting
    assert not caller._answers
