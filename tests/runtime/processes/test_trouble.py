"""Trouble on the way: a child is told of and started again whatever else goes wrong, and none is left behind."""

from __future__ import annotations

import errno
import os
import queue
import select
import sys
from threading import Event

import pytest

from actors.actor import Actor, Context
from messages.base import Address
from messages.ports import ProcessExited, StartProcess
from messages.system import AwaitReady
from runtime.kernel.envelope import Envelope, Kind, tag_of
from runtime.kernel.live import LiveWorld
from runtime.ports.processes import Processes
from runtime.processes import exits, proc, spawn
from runtime.processes.exits import ExitWatch

WAIT_S = 10.0
ENVIRONMENT = {"PATH": os.environ["PATH"]}
NAP = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)"]


@pytest.mark.parametrize("where", ["_drain", "finish"])
def test_an_error_in_the_handling_of_output_is_surfaced_and_the_exit_still_told(monkeypatch, where):
    def fail(_tail: object) -> None:
        raise MemoryError("no room for the output")

    errors: queue.Queue[BaseException] = queue.Queue()
    seen: queue.Queue[exits.Exit] = queue.Queue()
    monkeypatch.setattr(exits._Tail, where, fail)
    watch = ExitWatch(errors.put)
    watch.watch(spawn.spawn(["/bin/sh", "-c", "echo oops >&2; exit 4"], ENVIRONMENT), seen.put)
    assert seen.get(timeout=WAIT_S).code == 4
    assert "no room" in str(errors.get(timeout=WAIT_S))
    watch.close()
    assert errors.qsize() <= 2, "told once, not over and over"


@pytest.mark.parametrize("what", ["dup", "pidfd_open"])
def test_a_child_that_cannot_be_held_is_a_failed_start_and_not_left_behind(monkeypatch, what):
    def full(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    def children() -> set[int]:
        return {one.pid for one in proc.processes() if one.ppid == os.getpid()}

    before, others = sorted(os.listdir("/proc/self/fd")), children()
    with monkeypatch.context() as patched:
        patched.setattr(spawn.os, what, full)
        with pytest.raises(spawn.SpawnFailed, match="Too many open files"):
            spawn.spawn(NAP, ENVIRONMENT)
    assert children() <= others
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_a_port_stopped_in_a_burst_of_starts_leaves_no_process():
    """More starts are ordered than can be made before the stop; those made are killed, the others never are."""
    some, over = Event(), Event()
    made = 0

    class Owner(Actor[ProcessExited]):
        mailbox = ProcessExited

        def receive(self, message: ProcessExited, ctx: Context) -> None:
            raise AssertionError("nobody ends before the stop")

    def command(order: StartProcess) -> list[str]:
        nonlocal made
        made += 1
        if made == 5:
            some.set()
        return NAP

    mark = f"SENNIT_TEST_BURST={os.getpid()}"
    name, _, value = mark.partition("=")
    world = LiveWorld("one", lambda *_: None)
    world.on_end = lambda address, *_: over.set() if address == "one/processes" else None
    port, owner = Address("one/processes"), Address("one/owner")
    world.spawn(owner, Owner)
    world.spawn(port, lambda: Processes(command, ENVIRONMENT | {name: value}))
    world.main.ask(port, AwaitReady(), WAIT_S)
    for number in range(300):
        order = StartProcess(name=f"child-{number}", role="node", incarnation=1)
        ask = Envelope(Kind.ASK, port, owner, order, tag=tag_of(StartProcess), correlation=number + 1, deadline=1e9)
        world.deliver(ask)
    assert some.wait(WAIT_S)
    world.stop(port)
    assert over.wait(WAIT_S)
    world.close()
    assert made < 300, "the stop came in the middle"
    for one in proc.processes():
        pidfd = proc.open_same(one.pid, one.start_ticks, proc.boot_id())
        if pidfd is not None:
            left = proc.has_mark(one.pid, mark.encode())
            gone = bool(select.select([pidfd], [], [], 5 if left else 0)[0])
            os.close(pidfd)
            assert gone or not left, f"process {one.pid} was left"
