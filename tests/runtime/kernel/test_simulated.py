"""The kernel's rules, on the virtual clock: procedures, asks, turns, deadlines, ends."""

from __future__ import annotations

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
from runtime.kernel.simulated import SimulatedWorld

A, B, C = Address("one/a"), Address("two/b"), Address("two/c")
PROBE = Address("test/probe")


class Text(Message, frozen=True):
    text: str


class Say(Request[Text], frozen=True):
    text: str


class Relay(Request[Text], frozen=True):
    """Ask each of `through` in turn, then `say` the texts joined."""

    through: list[Address]
    text: str
    timeout_s: float = 1.0
    together: bool = False


class Work(Request[Text], frozen=True):
    """Hold the turn on `key` for `seconds`."""

    key: str
    seconds: float


class Crash(Message, frozen=True):
    how: str


class Later(Message, frozen=True):
    text: str
    after_s: float


class Watch(Message, frozen=True):
    address: Address


class Silent(Request[Text], frozen=True):
    pass


class Echo(Actor[object]):
    mailbox = Say | Relay | Work | Crash | Later | Watch | Silent | Text | Down | PeerUp | PeerDown

    def __init__(self) -> None:
        self.seen: list[str] = []

    def receive(self, message: object, ctx: Context) -> Procedure | None:
        match message:
            case Say(text=text):
                self.seen.append(text)
                ctx.reply(Text(text=f"{ctx.address} {text}"))
            case Text(text=text):
                self.seen.append(text)
            case Relay():
                return self.relay(message, ctx)
            case Work():
                return self.work(message, ctx)
            case Crash(how="exit"):
                raise SystemExit(3)
            case Crash():
                return self.crash()
            case Later(text=text, after_s=after_s):
                ctx.after(after_s, Text(text=text))
            case Watch(address=address):
                ctx.watch(address)
                ctx.watch_peer(address.partition("/")[0])
            case Down() | PeerUp() | PeerDown():
                ctx.tell(PROBE, message)
        return None

    async def relay(self, relay: Relay, ctx: Context) -> None:
        asks = [ctx.ask(to, Say(text=relay.text), relay.timeout_s) for to in relay.through]
        if relay.together:
            results = await ctx.all_of(asks)
            texts = [r.failure.value if isinstance(r, AskFailed) else r.text for r in results]
        else:
            texts = [(await ask).text for ask in asks]
        ctx.reply(Text(text=", ".join(texts)))

    async def work(self, work: Work, ctx: Context) -> None:
        async with ctx.exclusive(work.key, timeout_s=5):
            self.seen.append(f"begin {work.key} {ctx.now():g}")
            await ctx.sleep(work.seconds)
            self.seen.append(f"end {work.key}")
        ctx.reply(Text(text="worked"))

    async def crash(self) -> None:
        raise ValueError("no good")

    def state(self) -> object:
        return {"seen": self.seen}


@pytest.fixture
def world() -> SimulatedWorld:
    world = SimulatedWorld(seed=1)
    for address in (A, B, C):
        world.spawn(address, Echo)
    world.run_idle()
    return world


def test_an_answer_comes_back_typed(world):
    assert world.ask(A, Say(text="hi")) == Text(text="one/a hi")


def test_a_procedure_reads_like_a_conversation(world):
    assert world.ask(A, Relay(through=[B, C], text="x")).text == "two/b x, two/c x"


def test_all_of_gives_results_in_order_and_failures_as_values(world):
    through = [B, Address("two/nobody"), C]
    assert world.ask(A, Relay(through=through, text="x", together=True)).text == "two/b x, refused, two/c x"


@pytest.mark.parametrize("through", [[A], [Address("two/b")]], ids=["itself", "cycle"])
def test_a_cycle_of_asks_is_refused_at_once_naming_it(world, through):
    class Cycle(Echo):
        async def relay(self, relay: Relay, ctx: Context) -> None:
            answer = await ctx.ask(A, Relay(through=[], text=""), timeout_s=1)
            ctx.reply(answer)

    class Asking(Echo):
        async def relay(self, relay: Relay, ctx: Context) -> None:
            ctx.reply(await ctx.ask(through[0], Relay(through=[], text=""), timeout_s=1))

    world.stop(A), world.stop(B)
    world.run_idle()
    world.spawn(A, Asking)
    world.spawn(B, Cycle)
    with pytest.raises(AskFailed) as failed:
        world.ask(A, Relay(through=[], text=""))
    assert failed.value.failure is AskFailure.REFUSED
    assert "one/a -> " in str(failed.value)
    assert world.now_s == 0, "refused at once, not by a deadline"


def test_an_ask_times_out_on_the_virtual_clock_and_nothing_is_known(world):
    pending = world.start_ask(A, Silent(), timeout_s=2)
    world.advance(1.9)
    assert not pending.done
    world.advance(0.2)
    with pytest.raises(AskFailed) as failed:
        pending.result()
    assert failed.value.failure is AskFailure.TIMEOUT
    assert not failed.value.nothing_happened


def test_a_late_answer_is_a_dead_letter(world):
    world.ask(B, Suspend())
    pending = world.start_ask(A, Relay(through=[B], text="x", timeout_s=0.5))
    world.advance(1)
    with pytest.raises(AskFailed) as failed:
        pending.result()
    assert failed.value.failure is AskFailure.DIED, "what the relay does not know, its asker does not know"
    world.ask(B, Resume())
    world.run_idle()
    assert world.dead_letters["late_answer"] == 1


def test_turns_on_one_key_are_first_come_first_served_and_keys_do_not_disturb_each_other(world):
    pending = [world.start_ask(A, Work(key=key, seconds=1)) for key in ("x", "x", "y")]
    world.advance(2)
    assert all(p.done for p in pending)
    assert world.actor(A).seen == ["begin x 0", "begin y 0", "end x", "begin x 1", "end y", "end x"]


def test_a_turn_that_does_not_come_in_time_is_refused_busy(world):
    world.start_ask(A, Work(key="x", seconds=60), timeout_s=100)
    late = world.start_ask(A, Work(key="x", seconds=1), timeout_s=100)
    world.advance(6)
    with pytest.raises(AskFailed) as failed:
        late.result()
    assert failed.value.code == "busy"
    world.advance(60)
    assert world.ask(A, Work(key="x", seconds=1)).text == "worked", "the queue is clean afterwards"


@pytest.mark.parametrize("how", ["exit", "procedure"])
def test_a_crash_ends_this_actor_only_and_answers_whoever_waits(world, how):
    world.tell(B, Watch(address=A))
    waiting = world.start_ask(A, Work(key="x", seconds=60), timeout_s=100)
    world.run_idle()
    world.tell(A, Crash(how=how))
    queued = world.start_ask(A, Say(text="queued"))
    world.run_idle()
    for pending in (waiting, queued):
        with pytest.raises(AskFailed) as failed:
            pending.result()
        assert failed.value.failure is AskFailure.DIED
    assert world.ask(B, Say(text="still here")).text
    (down,) = [message for message in world.inbox(PROBE) if isinstance(message, Down)]
    assert (down.address, down.kind) == (A, "crashed")
    assert world.dead_letters["died"] == 1


def test_the_asker_of_the_very_message_that_crashes_and_of_one_kept_for_later_are_answered_died(world):
    class Keeper(Echo):
        def receive(self, message: object, ctx: Context) -> Procedure | None:
            if isinstance(message, Silent):
                raise ValueError("no good")
            self.kept = ctx
            return None

    world.stop(A)
    world.run_idle()
    world.spawn(A, Keeper)
    kept = world.start_ask(A, Say(text="kept"))
    crashing = world.start_ask(A, Silent())
    world.run_idle()
    for pending in (kept, crashing):
        with pytest.raises(AskFailed) as failed:
            pending.result()
        assert failed.value.failure is AskFailure.DIED
    assert world.now_s == 0


def test_nothing_passes_to_the_next_incarnation(world):
    world.tell(A, Later(text="from the dead", after_s=1))
    world.run_idle()
    world.crash(A)
    world.spawn(A, Echo)
    world.advance(5)
    assert world.actor(A).seen == []


def test_effects_while_closing_are_discarded(world):
    class Loud(Echo):
        async def work(self, work: Work, ctx: Context) -> None:
            try:
                await ctx.sleep(60)
            finally:
                ctx.tell(PROBE, Text(text="from the grave"))

    world.stop(A)
    world.run_idle()
    world.spawn(A, Loud)
    world.start_ask(A, Work(key="x", seconds=1), timeout_s=100)
    world.run_idle()
    world.stop(A)
    world.run_idle()
    assert world.inbox(PROBE) == []
    assert A not in world.cells


def test_messages_wait_until_started_is_through(world):
    class Slow(Echo):
        def started(self, ctx: Context) -> Procedure | None:
            async def load() -> None:
                await ctx.sleep(3)
                self.seen.append("loaded")

            return load()

    world.stop(A)
    world.run_idle()
    world.spawn(A, Slow)
    pending = world.start_ask(A, Say(text="hi"))
    world.advance(2.9)
    assert not pending.done
    assert world.ask(A, Ping()) is not None, "the control lane overtakes"
    world.advance(0.2)
    assert world.actor(A).seen == ["loaded", "hi"]


def test_suspend_holds_ordinary_messages_and_resume_lets_them_go(world):
    world.ask(A, Suspend())
    pending = world.start_ask(A, Say(text="hi"))
    world.run_idle()
    assert not pending.done
    assert world.ask(A, GetStatistics()).mailbox == 1
    world.ask(A, Resume())
    world.run_idle()
    assert pending.result().text == "one/a hi"


def test_a_full_mailbox_refuses_and_never_blocks(world):
    world.ask(A, Suspend())
    limit = world.cells[A].mailbox.max_messages
    for number in range(limit):
        world.tell(A, Text(text=str(number)))
    with pytest.raises(AskFailed) as failed:
        world.ask(A, Say(text="one too many"))
    assert failed.value.code == "overloaded"
    assert failed.value.nothing_happened
    assert world.dead_letters["overloaded"] == 1
    assert world.ask(A, Ping()) is not None


def test_sight_into_an_actor(world):
    world.ask(A, Say(text="hi"))
    assert world.ask(A, GetState()).state == {"seen": ["hi"]}
    trace = world.start_ask(A, Trace(count=2))
    world.tell(A, Text(text="one"))
    world.tell(A, Text(text="two"))
    world.run_idle()
    assert [line.message for line in trace.result().lines] == ["Text(text='one')", "Text(text='two')"]


def test_what_the_mailbox_does_not_take_is_refused_by_name(world):
    class Stranger(Request[Text], frozen=True):
        pass

    with pytest.raises(AskFailed) as failed:
        world.ask(A, Stranger())
    assert failed.value.code == "not_in_mailbox"
    assert "Stranger" in failed.value.reason


def test_a_cut_link_is_unreachable_and_told_both_ways(world):
    world.tell(A, Watch(address=B))
    world.run_idle()
    world.cut("one", "two")
    with pytest.raises(AskFailed):
        world.ask(A, Relay(through=[B], text="x"))
    world.heal("one", "two")
    assert world.ask(A, Relay(through=[B], text="x")).text == "two/b x"
    assert [type(message) for message in world.inbox(PROBE)] == [PeerUp, PeerDown, PeerUp]


def test_the_same_seed_gives_the_same_stream_to_an_address_and_another_to_another():
    draws = [SimulatedWorld(seed).random_for(address).random() for seed in (1, 1, 2) for address in (A, B)]
    assert draws[:2] == draws[2:4]
    assert len(set(draws)) == 4


def test_what_is_killed_says_nothing_more(world):
    class Polite(Echo):
        def stopped(self, ctx: Context) -> None:
            ctx.tell(PROBE, Text(text="goodbye"))

    for address, end in ((Address("three/a"), world.stop), (Address("four/a"), lambda _: world.crash_process("four"))):
        world.spawn(address, Polite)
        world.run_idle()
        end(address)
        world.run_idle()
    assert world.inbox(PROBE) == [Text(text="goodbye")], "only the one that was told to stop"
