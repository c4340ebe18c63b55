"""The channel to a run: nothing waits, nothing is sent out of order, descriptors go out few at a time."""

from __future__ import annotations

import os
import socket
import struct
from contextlib import suppress

import pytest

from runtime.edges.workers import channel as module
from runtime.edges.workers.channel import INSTALLS_AT_ONCE, RECEIVED_AT_ONCE, Channel, ChannelEnded
from runtime.edges.workers.packets import PACKET_BYTES, Installed, Quiesced, Refused


class Pair:
    """A channel with rings that all have the same three descriptors; `missing` ones have none."""

    def __init__(self) -> None:
        self.fds = tuple(os.eventfd(0) for _ in range(3))
        self.missing = set()
        self.channel = Channel(self._rights)
        self.workload = self.channel.theirs.dup()
        self.workload.setblocking(False)
        self.channel.theirs.close()

    def _rights(self, ring):
        if ring in self.missing:
            raise KeyError(ring)
        return self.fds

    def install(self, *rings):
        for ring in rings:
            self.channel.put(ring, b"install %d" % ring, install=True)

    def read(self) -> list[tuple[bytes, int]]:
        """Every packet that has arrived, and how many descriptors came with it."""
        found = []
        while True:
            try:
                data, fds, _, _ = socket.recv_fds(self.workload, PACKET_BYTES, 8)
            except BlockingIOError:
                return found
            for fd in fds:
                os.close(fd)
            found.append((data, len(fds)))

    def close(self) -> None:
        self.channel.close()
        self.workload.close()
        for fd in self.fds:
            os.close(fd)


@pytest.fixture
def pair():
    pair = Pair()
    yield pair
    pair.close()


def test_nothing_leaves_before_the_workload_has_its_end(pair):
    pair.install(1)
    assert pair.channel.flush() == []
    assert pair.read() == []
    pair.channel.open()
    assert pair.channel.flush() == []
    assert pair.read() == [(b"install 1", 3)]


def test_orders_leave_as_they_were_given(pair):
    pair.channel.open()
    pair.install(1, 2)
    pair.channel.put(1, b"end 1")
    pair.channel.put(1, b"uninstall 1")
    pair.channel.flush()
    assert pair.read() == [(b"install 1", 3), (b"install 2", 3), (b"end 1", 0), (b"uninstall 1", 0)]


def test_so_many_installs_are_unanswered_at_once(pair):
    pair.channel.open()
    rings = range(1, INSTALLS_AT_ONCE + 4)
    pair.install(*rings)
    pair.channel.flush()
    pair.channel.flush()
    assert len(pair.read()) == INSTALLS_AT_ONCE
    assert not pair.channel.stuck, "it is the workload's turn"
    pair.channel.heard(Quiesced(ring=1))
    pair.channel.flush()
    assert pair.read() == [], "only the answer to an install makes room"
    pair.channel.heard(Installed(ring=1))
    pair.channel.heard(Refused(ring=2))
    pair.channel.heard(Refused(ring=2))
    pair.channel.flush()
    assert pair.read() == [(b"install %d" % ring, 3) for ring in rings[-3:-1]]
    assert pair.channel.unseen() == [rings[-1]]


def test_what_waits_about_a_ring_can_be_recalled(pair):
    pair.install(1, 2)
    pair.channel.put(1, b"end 1")
    assert pair.channel.recall(1)
    assert not pair.channel.recall(1)
    pair.channel.open()
    pair.channel.flush()
    assert not pair.channel.recall(2), "it has left"
    assert pair.read() == [(b"install 2", 3)]


def test_a_ring_that_is_no_more_is_not_sent(pair):
    pair.channel.open()
    pair.missing.add(1)
    pair.install(1, 2)
    assert pair.channel.flush() == [1]
    assert pair.read() == [(b"install 2", 3)]


def test_a_full_socket_holds_orders_back_and_loses_none(pair):
    pair.channel.open()
    sent = 0
    while not pair.channel.stuck:
        pair.channel.put(sent, b"%d" % sent)
        pair.channel.flush()
        sent += 1
        assert sent < 10_000
    pair.channel.put(sent, b"%d" % sent)
    first = pair.read()
    pair.channel.flush()
    assert [data for data, _ in first + pair.read()] == [b"%d" % number for number in range(sent + 1)]
    assert not pair.channel.stuck


@pytest.mark.parametrize("error", sorted(module._SCARCE))
def test_what_the_system_is_short_of_is_waited_for(pair, monkeypatch, error):
    pair.channel.open()
    pair.install(1)

    def short(*_):
        raise OSError(error, os.strerror(error))

    with monkeypatch.context() as patch:
        patch.setattr(socket, "send_fds", short)
        pair.channel.flush()
    assert pair.channel.scarce
    pair.channel.flush()
    assert not pair.channel.scarce
    assert pair.read() == [(b"install 1", 3)]


def test_a_closed_end_is_told_after_what_was_said_before(pair):
    pair.workload.send(b"one")
    pair.workload.send(b"two")
    pair.workload.close()
    packets = pair.channel.receive()
    assert [next(packets), next(packets)] == [b"one", b"two"]
    with pytest.raises(ChannelEnded):
        next(packets)


def test_what_was_said_before_the_end_is_heard_though_nothing_can_be_sent(pair):
    pair.workload.send(b"one")
    pair.workload.close()
    pair.channel.open()
    pair.install(1)
    assert pair.channel.flush() == pair.channel.flush() == []
    assert (pair.channel.deaf, pair.channel.unseen()) == (True, [1])
    packets = pair.channel.receive()
    assert next(packets) == b"one"
    with pytest.raises(ChannelEnded):
        next(packets)


def test_a_reader_that_closed_with_unread_orders_is_heard_to_its_end_too(pair):
    pair.channel.open()
    pair.channel.put(1, b"x")
    pair.channel.flush()
    pair.workload.send(b"one")
    pair.workload.close()
    packets = pair.channel.receive()
    assert next(packets) == b"one"
    with pytest.raises(ChannelEnded):
        list(pair.channel.receive())


def test_packets_are_taken_few_at_a_time_and_never_whole_when_giant(pair):
    pair.workload.send(b"x" * 100_000)
    for _ in range(RECEIVED_AT_ONCE):
        pair.workload.send(b"y")
    packets = list(pair.channel.receive())
    assert [len(one) for one in packets] == [PACKET_BYTES + 1] + [1] * (RECEIVED_AT_ONCE - 1)
    assert list(pair.channel.receive()) == [b"y"]


def test_descriptors_cannot_be_sent_or_are_closed(pair):
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with suppress(PermissionError):  # from Linux 6.16 on
            socket.send_fds(pair.workload, [b"x"], list(pair.fds))
    pair.workload.send(b"y")
    assert set(pair.channel.receive()) <= {b"x", b"y"}
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_socket_that_lingers_holds_nobody_up(pair):
    """Whoever drops its last descriptor waits until the other end has taken what was sent, or the time is over."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as ours:
        theirs, _ = server.accept()
        ours.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                ours.send(bytes(65536))
        ours.setblocking(True)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 30))
        try:
            socket.send_fds(pair.workload, [b"x"], [ours.fileno()])
        except PermissionError:
            return
        finally:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 0, 0))
            theirs.close()
    pytest.skip("this kernel lets descriptors be sent to whoever does not want them")


def test_closing_twice_is_harmless(pair):
    pair.channel.close()
    pair.channel.close()
