"""The byte ring: exactly once, in order, across its end; the header is never trusted (E 4.5, E 10.4)."""

import errno
import os
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.edges.ring import (
    CURSOR_BEYOND_CAPACITY,
    HEADER_BYTES,
    RING_HEADER_CHANGED,
    NoRoom,
    RingConsumer,
    RingFault,
    RingProducer,
    format_ring,
)


class Pair:
    """Both sides of one ring in plain memory."""

    def __init__(self, capacity: int, generation: int = 1) -> None:
        self.memory = memoryview(bytearray(HEADER_BYTES + capacity))
        self.header, self.data = self.memory[:HEADER_BYTES], self.memory[HEADER_BYTES:]
        format_ring(self.header, capacity, generation)
        self.fds = [os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in range(2)]
        fds = {"data_fd": self.fds[0], "space_fd": self.fds[1]}
        self.producer = RingProducer(self.header, self.data, capacity, generation, **fds)
        self.consumer = RingConsumer(self.header, self.data, capacity, generation, **fds)

    def read(self, length: int) -> bytes:
        return b"".join(self.consumer.spans(0, length))


@pytest.fixture
def ring_of():
    pairs = []

    def make(capacity: int, generation: int = 1) -> Pair:
        pairs.append(Pair(capacity, generation))
        return pairs[-1]

    yield make
    for pair in pairs:
        for fd in pair.fds:
            os.close(fd)


def test_a_fresh_header_is_laid_out_byte_by_byte(ring_of):
    pair = ring_of(0x1234, generation=7)
    assert bytes(pair.header).hex() == "5357524701000000" + "3412000000000000" + "0700000000000000" + "00" * 104


def test_cursors_are_shown_in_the_header(ring_of):
    pair = ring_of(8)
    pair.producer.write(0, b"abcde")
    pair.producer.commit(5)
    pair.consumer.readable()
    pair.consumer.consume(2)
    assert bytes(pair.header[24:40]).hex() == "0500000000000000" + "0200000000000000"


def test_what_is_not_committed_cannot_be_seen(ring_of):
    pair = ring_of(8)
    pair.producer.write(0, b"abcdef")
    assert pair.consumer.readable() == 0
    pair.producer.commit(6)
    assert pair.consumer.readable() == 6
    assert pair.read(6) == b"abcdef"


def test_bytes_wrap_at_the_end_and_stay_in_order(ring_of):
    pair = ring_of(8)
    pair.producer.write(0, b"abcdef")
    pair.producer.commit(6)
    pair.consumer.readable()
    pair.consumer.consume(6)
    assert pair.producer.free() == 8
    pair.producer.write(0, b"ghijk")
    pair.producer.commit(5)
    assert (pair.producer.committed, pair.producer.committed % 8) == (11, 3)
    pair.consumer.readable()
    assert [bytes(span) for span in pair.consumer.spans(0, 5)] == [b"gh", b"ijk"]


def test_space_returns_only_when_it_is_given_back(ring_of):
    pair = ring_of(8)
    pair.producer.write(0, bytes(8))
    pair.producer.commit(8)
    with pytest.raises(NoRoom, match="1 bytes are wanted, 0 of 8 are free"):
        pair.producer.write(0, b"x")
    pair.consumer.readable()
    pair.read(8)
    assert pair.producer.free() == 0
    pair.consumer.consume(3)
    assert pair.producer.free() == 3
    with pytest.raises(NoRoom):
        pair.producer.spans(1, 3)


def test_nobody_reads_or_gives_back_more_than_is_committed(ring_of):
    pair = ring_of(8)
    pair.producer.commit(3)
    assert pair.consumer.readable() == 3
    with pytest.raises(NoRoom):
        pair.consumer.spans(0, 4)
    with pytest.raises(NoRoom):
        pair.consumer.consume(4)
    with pytest.raises(NoRoom):
        pair.producer.commit(6)


@pytest.mark.parametrize(
    ("offset", "value", "what"),
    [(0, b"X", "magic"), (4, b"\x02", "version"), (6, b"\x01", "reserved"), (8, b"\x09", "capacity"),
     (16, b"\x02", "generation")],
)  # fmt: skip
def test_a_changed_header_is_named(ring_of, offset, value, what):
    pair = ring_of(8)
    pair.header[offset : offset + 1] = value
    for side in (pair.producer, pair.consumer):
        with pytest.raises(RingFault, match=what) as fault:
            side.check()
        assert fault.value.code == RING_HEADER_CHANGED
    with pytest.raises(RingFault, match=what):
        RingConsumer(pair.header, pair.data, 8, 1, data_fd=pair.fds[0], space_fd=pair.fds[1])


def test_a_ring_of_another_generation_is_not_taken_for_this_one(ring_of):
    pair = ring_of(8, generation=3)
    with pytest.raises(RingFault, match="generation"):
        RingProducer(pair.header, pair.data, 8, 2, data_fd=pair.fds[0], space_fd=pair.fds[1])


def test_cursors_in_the_header_are_believed_by_nobody(ring_of):
    pair = ring_of(8)
    pair.header[24:40] = b"\xff" * 16
    pair.producer.check()
    pair.producer.write(0, b"ok")
    pair.producer.commit(2)
    assert (pair.consumer.readable(), pair.read(2), pair.producer.free()) == (2, b"ok", 6)


@pytest.mark.parametrize("lie", [9, 2**40, 2**64 - 2])
def test_a_sum_beyond_the_capacity_is_a_fault(ring_of, lie):
    pair = ring_of(8)
    os.eventfd_write(pair.fds[0], lie)
    with pytest.raises(RingFault) as fault:
        pair.consumer.readable()
    assert fault.value.code == CURSOR_BEYOND_CAPACITY
    os.eventfd_write(pair.fds[1], lie)
    with pytest.raises(RingFault) as fault:
        pair.producer.free()
    assert fault.value.code == CURSOR_BEYOND_CAPACITY


def test_an_eventfd_that_the_other_side_filled_is_a_fault_not_a_hang(ring_of):
    pair = ring_of(8)
    os.eventfd_write(pair.fds[0], 2**64 - 2)
    with pytest.raises(RingFault, match="filled"):
        pair.producer.commit(1)


@pytest.mark.parametrize(("capacity", "generation"), [(0, 1), (8, 0), (-1, 1), (2**64, 1), (8, 2**64)])
def test_a_ring_that_cannot_be_is_not_made(capacity, generation):
    with pytest.raises(ValueError, match="must be"):
        format_ring(memoryview(bytearray(HEADER_BYTES)), capacity, generation)


@pytest.mark.parametrize("takes", [0, 1])
def test_a_signal_handler_that_raises_when_a_sum_was_read_makes_nobody_forget_it(ring_of, monkeypatch, takes):
    pair = ring_of(8)
    pair.producer.write(0, b"abcdef")
    pair.producer.commit(6)
    if takes:
        assert pair.consumer.readable() == 6
        pair.consumer.consume(6)
    look, there = ((pair.consumer.readable, 6), (pair.producer.free, 8))[takes]
    read = os.preadv

    def interrupted(*arguments):
        read(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "preadv", interrupted)
        with pytest.raises(KeyboardInterrupt):
            look()
    assert [look(), look()] == [there, there]


def test_a_system_without_reads_that_do_not_wait_still_has_rings(ring_of, monkeypatch):
    def unsupported(*_):
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(os, "preadv", unsupported)
    pair = ring_of(8)
    assert pair.consumer.readable() == 0
    pair.producer.write(0, b"abcdef")
    pair.producer.commit(6)
    assert [pair.consumer.readable(), pair.consumer.readable()] == [6, 6]


def test_released_sides_hold_no_memory(ring_of):
    memory = bytearray(HEADER_BYTES + 8)
    view = memoryview(memory)
    format_ring(view[:HEADER_BYTES], 8, 1)
    fds = ring_of(8).fds
    side = RingConsumer(view[:HEADER_BYTES], view[HEADER_BYTES:], 8, 1, data_fd=fds[0], space_fd=fds[1])
    view.release()
    with pytest.raises(BufferError):
        memory.append(0)
    side.release()
    memory.append(0)


@given(st.integers(1, 33), st.lists(st.binary(min_size=1, max_size=40), max_size=20), st.integers(1, 13))
def test_any_bytes_pass_any_ring_once_and_in_order(capacity, chunks, step):
    pair = Pair(capacity)
    try:
        sent, received = b"".join(chunks), b""
        pending = memoryview(sent)
        while len(received) < len(sent):
            room = min(pair.producer.free(), len(pending), step)
            pair.producer.write(0, pending[:room])
            pair.producer.commit(room)
            pending = pending[room:]
            there = min(pair.consumer.readable(), step + 2)
            received += pair.read(there)
            pair.consumer.consume(there)
        assert received == sent
    finally:
        for fd in pair.fds:
            os.close(fd)


def test_two_threads_move_a_megabyte_through_a_small_ring(ring_of):
    pair = ring_of(1021)
    for fd in pair.fds:
        os.set_blocking(fd, True)
    total = 1 << 20
    sent = os.urandom(total)
    received = bytearray()

    def consume() -> None:
        while len(received) < total:
            there = pair.consumer.readable()
            received.extend(pair.read(there))
            pair.consumer.consume(there)

    reader = threading.Thread(target=consume, daemon=True)
    reader.start()
    at = 0
    while at < total:
        room = min(pair.producer.known_free or pair.producer.free(), total - at)
        at += pair.producer.write(0, sent[at : at + room])
        pair.producer.commit(room)
    reader.join(20)
    assert bytes(received) == sent
