"""The mailbox: lanes, bounds, and no wake-up lost between any number of senders and the one owner."""

from __future__ import annotations

from queue import SimpleQueue
from threading import Thread

import pytest

from runtime.kernel.mailbox import Mailbox


def drained(mailbox: Mailbox[str]) -> list[str]:
    items = []
    while (item := mailbox.take()) is not None:
        items.append(item)
    return items


def test_control_overtakes_and_answers_come_before_ordinary_mail():
    mailbox: Mailbox[str] = Mailbox()
    mailbox.put("ordinary", 0), mailbox.put_reserved("answer"), mailbox.put_control("stop")
    assert drained(mailbox) == ["stop", "answer", "ordinary"]


@pytest.mark.parametrize(
    ("limits", "size"), [({"max_messages": 2}, 0), ({"max_bytes": 20}, 10)], ids=["number", "bytes"]
)
def test_ordinary_mail_is_bounded_and_room_comes_back_when_it_is_taken(limits, size):
    mailbox: Mailbox[str] = Mailbox(**limits)
    assert [mailbox.put(str(n), size) is not None for n in range(3)] == [True, True, False]
    assert mailbox.put_reserved("answer") is not None, "answers and timers have room of their own"
    assert mailbox.put("from the kernel", size, must=True) is not None
    assert drained(mailbox) == ["answer", "0", "1", "from the kernel"]
    assert mailbox.put("again", size) is not None
    assert mailbox.high == 3


def test_control_is_bounded_but_a_stop_is_always_taken():
    mailbox: Mailbox[str] = Mailbox(max_messages=1)
    assert mailbox.put_control("ping") is not None
    assert mailbox.put_control("ping") is None
    assert mailbox.put_control("stop", must=True) is not None


def test_suspended_holds_ordinary_mail_only():
    mailbox: Mailbox[str] = Mailbox()
    mailbox.suspended = True
    mailbox.put("ordinary", 0), mailbox.put_reserved("answer"), mailbox.put_control("ping")
    assert drained(mailbox) == ["ping", "answer"]
    assert mailbox.resume() is True
    assert drained(mailbox) == ["ordinary"]


def test_a_closed_mailbox_gives_back_what_was_left_and_takes_nothing_more():
    mailbox: Mailbox[str] = Mailbox()
    mailbox.put("ordinary", 0), mailbox.put_reserved("answer"), mailbox.put_control("stop")
    assert mailbox.close() == ["stop", "answer", "ordinary"]
    puts = [mailbox.put("x", 0), mailbox.put("x", 0, must=True), mailbox.put_reserved("x")]
    assert [*puts, mailbox.put_control("x", must=True)] == [None] * 4
    assert mailbox.close() == []


def test_the_owner_is_woken_once_until_it_found_nothing():
    mailbox: Mailbox[str] = Mailbox()
    assert [mailbox.put("a", 0), mailbox.put("b", 0), mailbox.put_control("c")] == [True, False, False]
    assert drained(mailbox) == ["c", "a", "b"]
    assert mailbox.put("d", 0) is True


def test_no_wake_up_is_lost_between_many_senders_and_the_owner():
    """The owner sleeps on the wake-ups alone; one that is lost leaves mail behind."""
    mailbox: Mailbox[int] = Mailbox(max_messages=1_000_000)
    wakes: SimpleQueue[None] = SimpleQueue()
    senders, each = 4, 3_000

    def send(first: int) -> None:
        for number in range(first, first + each):
            put = mailbox.put_reserved if number % 3 == 0 else lambda item: mailbox.put(item, 1)
            if put(number):
                wakes.put(None)

    threads = [Thread(target=send, args=(n * each,)) for n in range(senders)]
    for thread in threads:
        thread.start()
    taken: list[int] = []
    while len(taken) < senders * each:
        wakes.get(timeout=5)
        while (item := mailbox.take()) is not None:
            taken.append(item)
    for thread in threads:
        thread.join(5)
    assert sorted(taken) == list(range(senders * each))
