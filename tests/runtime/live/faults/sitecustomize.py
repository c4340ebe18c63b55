"""Faults on order in real processes: Python imports this where the folder is on PYTHONPATH, so only under a test.

A file `ADDRESS.MESSAGE` (`gate:gate.GetPolicy`) in the folder $SENNIT_TEST_FAULTS holds `FAULT COUNT`: the next COUNT
messages of that type that the actor takes meet the fault. MESSAGE `started` means the actor's start.
"""

import os
import sys
from pathlib import Path
from threading import Event

from actors.actor import Actor

FOLDER = Path(os.environ["SENNIT_TEST_FAULTS"])


async def break_later(ctx):
    await ctx.sleep(0.01)
    raise ValueError("a fault of the test")


def meet(fault, ctx):
    match fault:
        case "exit":
            sys.exit("a fault of the test")
        case "raise":
            raise ValueError("a fault of the test")
        case "block":
            Event().wait()
        case "procedure":
            return break_later(ctx)
    raise AssertionError(fault)


def ordered(ctx, message):
    """The fault that this message meets, if any. An address has one thread, so nobody counts beside it."""
    file = FOLDER / f"{ctx.address.replace('/', ':')}.{message}"
    try:
        fault, count = file.read_text().split()
        if int(count) > 1:
            left = file.with_suffix(".left")
            left.write_text(f"{fault} {int(count) - 1}")
            left.rename(file)
        else:
            file.unlink()
    except FileNotFoundError:
        return None
    return fault


def watch(cls, **options):
    super(Actor, cls).__init_subclass__(**options)
    if "receive" in vars(cls):
        receive = cls.receive

        def faulty_receive(self, message, ctx):
            fault = ordered(ctx, type(message).__name__)
            return receive(self, message, ctx) if fault is None else meet(fault, ctx)

        cls.receive = faulty_receive
    started = cls.started

    def faulty_started(self, ctx):
        fault = ordered(ctx, "started")
        return started(self, ctx) if fault is None else meet(fault, ctx)

    cls.started = faulty_started


Actor.__init_subclass__ = classmethod(watch)
