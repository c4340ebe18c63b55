"""Wake-ups: an actor hears of its descriptors once each, and of all that matters."""

from __future__ import annotations

import os
import queue
import threading

import pytest

from runtime.edges.workers import wakeups as module
from runtime.edges.workers.wakeups import Wakeups

WAIT_S = 10


class Listener:
    """What an actor's mailbox does: `refusals` tells are refused first."""

    def __init__(self) -> None:
        self.refusals = 0
        self.told = queue.Queue()
        self.wakeups = Wakeups(self._tell)

    def _tell(self) -> bool:
        if self.refusals:
            self.refusals -= 1
            return False
        self.told.put(None)
        return True

    def hear(self) -> list[int]:
        self.told.get(timeout=WAIT_S)
        return self.wakeups.take()


@pytest.fixture
def listener():
    listener = Listener()
    yield listener
    listener.wakeups.close()


@pytest.fixture
def event():
    fd = os.eventfd(0, os.EFD_NONBLOCK)
    yield fd
    os.close(fd)


def test_a_descriptor_rings_once_until_it_is_armed_again(listener, event):
    listener.wakeups.arm(event, 5)
    os.eventfd_write(event, 1)
    assert listener.hear() == [5]
    listener.wakeups.ring(6)
    assert listener.hear() == [6], "still readable, and silent"
    listener.wakeups.arm(event, 7)
    assert listener.hear() == [7]


def test_a_descriptor_with_room_rings_only_for_who_wants_to_write(listener, event):
    listener.wakeups.arm(event, 5)
    listener.wakeups.ring(6)
    assert listener.hear() == [6]
    listener.wakeups.arm(event, 5, writing=True)
    assert listener.hear() == [5]


def test_one_message_is_under_way_however_much_rings(listener):
    listener.wakeups.ring(1)
    listener.told.get(timeout=WAIT_S)
    for key in range(1000):
        listener.wakeups.ring(key)
    assert listener.wakeups.take() == [1, 0, *range(2, 1000)]
    listener.wakeups.ring(2000)
    assert listener.hear() == [2000]
    assert listener.told.empty()


def test_a_full_mailbox_loses_nothing(listener):
    listener.refusals = 2
    listener.wakeups.ring(1)
    assert listener.hear() == [1]
    assert listener.refusals == 0


def test_what_is_dropped_is_silent_though_its_number_is_used_again(listener):
    first = os.eventfd(1)
    listener.wakeups.arm(first, 1, writing=False)
    listener.hear()
    listener.wakeups.drop(first)
    os.close(first)
    second = os.eventfd(0)
    assert second == first
    listener.wakeups.arm(second, 2)
    os.eventfd_write(second, 1)
    assert listener.hear() == [2]
    listener.wakeups.drop(second)
    listener.wakeups.drop(second)
    os.close(second)


def test_ringing_after_the_end_touches_no_descriptor():
    listener = Listener()
    before = threading.active_count()
    listener.wakeups.close()
    assert threading.active_count() == before - 1
    reused = [os.eventfd(0, os.EFD_NONBLOCK) for _ in range(4)]
    listener.wakeups.ring(1)
    for fd in reused:
        with pytest.raises(BlockingIOError):
            os.eventfd_read(fd)
        os.close(fd)
    assert module.AGAIN_S < 1
