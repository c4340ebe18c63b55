"""What an output does with objects: whole or not at all, to every edge, as fast as the slowest."""

from __future__ import annotations

import array
import os
import select
import signal
from contextlib import suppress
from pathlib import Path
from pickle import PickleBuffer

import pytest

import runtime
from runtime.workload import (
    BEGIN_SEQUENCE,
    END_OF_SEQUENCE,
    ObjectMisaligned,
    ObjectTooLarge,
    PortClosed,
    PortTimeout,
    ReservationOpen,
    ViewHeld,
)

WAIT_S = 20


def told(records):
    return [(record.header.object_id, record.header.sequence, record.payload) for record in records]


def test_objects_are_numbered_from_one_unless_they_have_a_number(edges, ports):
    port = ports.output("out")
    ring = edges.install("out", "egress")
    assert [port.send(b"a"), port.send(b"b", object_id=77), port.send(b"c"), port.send(b"d", object_id=0)] == [
        1, 77, 2, 0,
    ]  # fmt: skip
    assert told(ring.pull()) == [(1, 0, b"a"), (77, 1, b"b"), (2, 2, b"c"), (0, 3, b"d")]


def test_flags_travel_and_others_are_refused(edges, ports):
    port = ports.output("out")
    ring = edges.install("out", "egress")
    port.send(b"x", flags=BEGIN_SEQUENCE | END_OF_SEQUENCE)
    assert ring.pull()[0].header.flags == 3
    for send in (port.send, port.offer, lambda data, **more: port.reserve(1, **more)):
        with pytest.raises(ValueError, match="flags 0x4"):
            send(b"x", flags=4)
        with pytest.raises(ValueError, match="object id"):
            send(b"x", object_id=2**64)
    assert ring.pull() == []


@pytest.mark.parametrize(
    "data",
    [
        bytearray(b"12345678"),
        memoryview(b"12345678"),
        memoryview(b"1-2-3-4-5-6-7-8-")[::2],
        array.array("I", [0x34333231, 0x38373635]),
        memoryview(b"12345678").cast("B", (2, 4)),
        memoryview(b"12345678").cast("Q"),
    ],
    ids=["bytearray", "view", "strided", "array", "two dimensions", "words"],
)
def test_anything_with_the_buffer_protocol_is_sent(edges, ports, data):
    port = ports.output("out")
    ring = edges.install("out", "egress", capacity=49)
    for _ in range(3):
        port.send(data, timeout_s=WAIT_S)
        assert [record.payload for record in ring.pull()] == [b"12345678"]


def test_an_empty_object_of_any_shape_is_sent(edges, ports):
    port = ports.output("out")
    ring = edges.install("out", "egress")
    for data in (b"", bytearray(), array.array("d"), memoryview(b"")):
        port.send(data)
    assert [record.payload for record in ring.pull()] == [b""] * 4


def test_text_is_no_bytes(edges, ports):
    edges.install("out", "egress")
    with pytest.raises(TypeError):
        ports.output("out").send("text")


@pytest.mark.parametrize("capacity", [43, 97, 128])
def test_objects_wrap_at_every_offset(edges, ports, background, capacity):
    port = ports.output("out")
    ring = edges.install("out", "egress", capacity=capacity)
    payloads = [bytes((number + at) % 251 for at in range(number % (capacity - 39))) for number in range(3 * capacity)]

    def send_all():
        for number, payload in enumerate(payloads):
            if number % 3:
                port.send(payload, timeout_s=WAIT_S)
            else:
                with port.reserve(len(payload), timeout_s=WAIT_S) as view:
                    view[:] = payload

    sent = background(send_all)
    records = ring.pull_some(len(payloads))
    sent.result()
    assert told(records) == [(number + 1, number, payload) for number, payload in enumerate(payloads)]


def test_a_full_ring_blocks_and_goes_on(edges, ports, background):
    port = ports.output("out")
    ring = edges.install("out", "egress", capacity=300)
    while port.offer(bytes(60)):
        pass
    assert not port.offer(b""), "not even a header has room"
    waiting = background(lambda: port.send(b"next", timeout_s=WAIT_S))
    assert waiting.blocked()
    assert [len(record.payload) for record in ring.pull()] == [60, 60, 60]
    assert waiting.result() == 4
    assert told(ring.pull_some(1)) == [(4, 3, b"next")]


@pytest.mark.parametrize("timeout_s", [0, 0.01])
def test_a_wait_for_room_or_for_an_edge_has_an_end(edges, ports, timeout_s):
    port = ports.output("out")
    assert not port.offer(b"x")
    assert not port.connected
    with pytest.raises(PortTimeout, match="there was no edge, or one had no room"):
        port.send(b"x", timeout_s=timeout_s)
    ring = edges.install("out", "egress", capacity=80)
    assert port.connected
    assert port.send(bytes(30)) == 1, "what was not sent took no number"
    with pytest.raises(PortTimeout):
        port.send(bytes(30), timeout_s=timeout_s)
    with pytest.raises(PortTimeout), port.reserve(30, timeout_s=timeout_s):
        raise AssertionError("there was no room")
    assert len(ring.pull()) == 1
    assert port.send(bytes(30)) == 2


def test_every_object_goes_to_each_edge_and_the_slowest_is_waited_for(edges, ports, background):
    port = ports.output("out")
    slow, fast = edges.install("out", "egress", capacity=100), edges.install("out", "egress", capacity=4096)
    port.send(b"s" * 50)
    assert not port.offer(b"t" * 50)
    assert told(fast.pull()) == [(1, 0, b"s" * 50)], "an object goes to all edges or to none"
    waiting = background(lambda: port.send(b"t" * 50, timeout_s=WAIT_S))
    assert waiting.blocked()
    assert fast.pull() == []
    slow.pull()
    waiting.result()
    assert told(slow.pull()) == told(fast.pull()) == [(2, 1, b"t" * 50)]


def test_an_edge_that_comes_later_begins_with_the_next_object(edges, ports):
    port = ports.output("out")
    first = edges.install("out", "egress")
    port.send(b"early")
    second = edges.install("out", "egress")
    port.send(b"both")
    assert told(first.pull()) == [(1, 0, b"early"), (2, 1, b"both")]
    assert told(second.pull()) == [(2, 0, b"both")]


def test_an_object_too_large_for_one_of_the_edges_is_sent_to_none(edges, ports):
    port = ports.output("out")
    rings = [edges.install("out", "egress", max_extent=limit) for limit in (200, 100, 300)]
    for send in (port.send, port.offer, lambda data: port.reserve(len(data)).__enter__()):
        with pytest.raises(ObjectTooLarge, match="send at most 100") as caught:
            send(bytes(250))
        assert caught.value.max_extent == 100
    assert [ring.pull() for ring in rings] == [[], [], []]
    port.send(bytes(100))
    assert [len(ring.pull()) for ring in rings] == [1, 1, 1]


def test_an_object_out_of_alignment_is_refused(edges, ports):
    port = ports.output("out")
    ring = edges.install("out", "egress", alignment=4)
    with pytest.raises(ObjectMisaligned, match="multiples of 4 bytes, not 6"):
        port.send(bytes(6))
    port.send(bytes(8))
    assert len(ring.pull()) == 1


def test_a_reservation_is_the_ring_s_own_memory_and_unseen_until_it_is_left(edges, ports):
    port = ports.output("out")
    ring = edges.install("out", "egress")
    with port.reserve(4, object_id=5) as view:
        view[:] = b"abcd"
        assert ring.data[40:44] == b"abcd"
        assert ring.pull() == []
    assert told(ring.pull()) == [(5, 0, b"abcd")]
    with pytest.raises(ValueError, match="released"):
        view[0] = 1


def test_a_reservation_left_with_an_error_sends_nothing(edges, ports):
    port = ports.output("out")
    ring = edges.install("out", "egress")
    with pytest.raises(TypeError), port.reserve(4) as view:
        view[:] = "text"
    assert ring.pull() == []
    port.send(b"after")
    assert told(ring.pull()) == [(1, 0, b"after")]


def test_nothing_else_is_sent_while_a_reservation_is_open(edges, ports):
    port = ports.output("out")
    ring = edges.install("out", "egress")
    with port.reserve(4):
        for send in (lambda: port.send(b"x"), lambda: port.offer(b"x"), lambda: port.reserve(1).__enter__()):
            with pytest.raises(ReservationOpen):
                send()
    assert len(ring.pull()) == 1


def test_a_reserved_view_that_is_kept_sends_nothing(edges, ports):
    port = ports.output("out")
    ring = edges.install("out", "egress")
    with pytest.raises(ViewHeld, match="nothing was sent"), port.reserve(4) as view:
        kept = PickleBuffer(view)
    assert ring.pull() == []
    del kept


def test_a_reservation_for_several_edges_goes_to_each(edges, ports):
    port = ports.output("out")
    rings = [edges.install("out", "egress") for _ in range(2)]
    with port.reserve(4) as view:
        view[:] = b"abcd"
    late = []
    with port.reserve(4) as view:
        view[:] = b"efgh"
        late.append(edges.install("out", "egress"))
    assert [told(ring.pull()) for ring in rings] == [[(1, 0, b"abcd"), (2, 1, b"efgh")]] * 2
    assert told(late[0].pull()) == [(2, 0, b"efgh")]


def test_an_edge_that_comes_while_a_reservation_is_in_the_ring_gets_the_object_too(edges, ports):
    port = ports.output("out")
    first = edges.install("out", "egress")
    with port.reserve(4) as view:
        view[:] = b"abcd"
        second = edges.install("out", "egress")
    assert told(first.pull()) == told(second.pull()) == [(1, 0, b"abcd")]


def published(ring):
    return bool(select.select([ring.data_fd], [], [], 0)[0])


def test_a_batch_is_published_as_one_and_at_the_latest_when_it_is_left(edges, ports):
    port = ports.output("out")
    ring = edges.install("out", "egress", capacity=4096)
    with port.batch() as same:
        assert same is port
        for _ in range(10):
            port.send(b"x")
        assert not published(ring)
    assert os.eventfd_read(ring.data_fd) == 410


def test_a_batch_that_is_large_is_published_a_quarter_of_the_ring_at_a_time(edges, ports, background):
    port = ports.output("out")
    ring = edges.install("out", "egress", capacity=400)

    def send_all():
        with port.batch(), port.batch():
            for number in range(200):
                port.send(bytes(number % 60), timeout_s=WAIT_S)

    sent = background(send_all)
    assert [len(record.payload) for record in ring.pull_some(200)] == [number % 60 for number in range(200)]
    sent.result()


def test_a_batch_left_with_an_error_publishes_what_was_sent(edges, ports):
    port = ports.output("out")
    ring = edges.install("out", "egress")
    with pytest.raises(TypeError), port.batch():
        port.send(b"whole") and port.send("text")
    assert told(ring.pull()) == [(1, 0, b"whole")]


def test_closing_publishes_ends_the_stream_and_refuses_more(edges, ports):
    port = ports.output("out")
    ring = edges.install("out", "egress")
    batch = port.batch()
    batch.__enter__()
    port.send(b"last")
    port.close()
    port.close()
    batch.__exit__(None, None, None)
    assert edges.hear() == {"did": "closed", "ring": ring.number}
    assert told(ring.pull()) == [(1, 0, b"last")]
    for call in (lambda: port.send(b"x"), lambda: port.offer(b"x"), lambda: port.reserve(1).__enter__()):
        with pytest.raises(PortClosed, match="the workload closed it"):
            call()
    later = edges.install("out", "egress")
    assert edges.hear() == {"did": "closed", "ring": later.number}, "a later life of a stream that is over ends at once"
    assert edges.silent()


def test_a_wait_for_room_ends_when_the_port_is_closed(edges, ports, background):
    port = ports.output("out")
    waiting = background(lambda: port.send(b"x"))
    assert waiting.blocked()
    port.close()
    with pytest.raises(PortClosed):
        waiting.result()


def test_a_program_that_a_signal_ends_has_sent_what_it_was_told_was_sent(edges, ports):
    """The exception may come up anywhere within the call; what then closes the port must not publish half of one."""

    class Ended(Exception):
        pass

    def end(_number, frame):
        if Path(frame.f_code.co_filename).is_relative_to(Path(runtime.__file__).parent):
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            raise Ended

    before = signal.signal(signal.SIGVTALRM, end)
    try:
        for turn in range(12):
            port = ports.output(f"out-{turn}")
            ring = edges.install(f"out-{turn}", "egress", capacity=1 << 20)
            sent = 0
            signal.setitimer(signal.ITIMER_VIRTUAL, 0.0001, 0.0001)
            with suppress(Ended), port.batch():
                while port.offer(b"x" * (sent % 50)):
                    sent += 1
            port.close()
            records = ring.pull()
            assert len(records) in (sent, sent + 1)
            assert [record.header.sequence for record in records] == list(range(len(records)))
            assert [len(record.payload) for record in records] == [number % 50 for number in range(len(records))]
            assert edges.hear() == {"did": "closed", "ring": ring.number}
            edges.uninstall(ring)
            assert edges.hear()["did"] == "quiesced"
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
