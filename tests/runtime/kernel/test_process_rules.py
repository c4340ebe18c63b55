"""What a process with actors does as a process: it ends when told, whatever its actors do, and says who may do what."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from queue import Queue
from threading import Event

import pytest

import runtime
from actors.actor import Actor, Context
from messages.base import Address, Message
from runtime.kernel.envelope import Envelope, Kind, tag_of
from runtime.process import FAILED_EXIT

ROOT = Path(runtime.__file__).parent.parent
ENVIRONMENT = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
WAIT_S = 10.0

HANGING = """
    import signal, sys
    from threading import Event
    from actors.actor import Actor
    from messages.base import Address
    from runtime.kernel.live import LiveWorld
    from runtime.process import leave

    class Hanging(Actor):
        mailbox = Event

        def started(self, ctx):
            print("hangs", flush=True)
            Event().wait()

    def main():
        signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to end"))
        LiveWorld("one", lambda *_: None).spawn(Address("one/hanging"), Hanging)
        {main}

    leave(main)
"""


@pytest.mark.parametrize(
    ("main", "words"),
    [("sys.stdin.read()", "told to end"), ("sys.stdin.readline(); raise ValueError('no good')", "ValueError: no good")],
    ids=["a handler of SIGTERM exits", "the main thread raises"],
)
def test_an_actor_that_hangs_does_not_keep_a_process_that_is_over(main, words):
    arguments = [sys.executable, "-c", textwrap.dedent(HANGING).format(main=main)]
    pipe = subprocess.PIPE
    with subprocess.Popen(arguments, env=ENVIRONMENT, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout.readline() == "hangs\n"
        if words == "told to end":
            process.send_signal(signal.SIGTERM)
        else:
            process.stdin.write("\n")
            process.stdin.flush()
        try:
            assert process.wait(WAIT_S) == FAILED_EXIT
            assert words in process.stderr.read()
        finally:
            process.kill()


def test_an_actor_that_takes_a_signal_is_told_at_its_start_that_only_the_main_thread_may(live):
    class Greedy(Actor[Message]):
        mailbox = Message

        def started(self, ctx: Context) -> None:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)

    before = signal.getsignal(signal.SIGTERM)
    live.spawn("greedy", Greedy, ready=False)
    address, kind, reason = live.ended.get(timeout=WAIT_S)
    assert (address, kind) == ("one/greedy", "crashed")
    assert "main thread" in reason
    assert signal.getsignal(signal.SIGTERM) is before


class Go(Message, frozen=True):
    pass


class Echo(Message, frozen=True):
    number: int


def test_an_actor_that_fills_its_own_mailbox_is_refused_and_goes_on(live):
    """A bound that made the sender wait would wait for itself here."""
    heard: Queue[int] = Queue()
    told = Event()

    class Talker(Actor[object]):
        mailbox = Go | Echo

        def receive(self, message: object, ctx: Context) -> None:
            match message:
                case Go():
                    for number in range(limit + 100):
                        ctx.tell(ctx.address, Echo(number=number))
                    told.set()
                case Echo(number=number):
                    heard.put(number)

    address = live.spawn("talker", Talker)
    limit = live.world.cells[address].mailbox.max_messages
    live.world.deliver(Envelope(Kind.TELL, address, Address("one/main"), Go(), tag=tag_of(Go)))
    assert told.wait(WAIT_S)
    assert [heard.get(timeout=WAIT_S) for _ in range(limit)] == list(range(limit))
    assert live.world.dead_letters["overloaded"] == 100
