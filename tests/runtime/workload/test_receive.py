"""What an input hands out: every object once, in order, as it lies in the ring."""

from __future__ import annotations

from pickle import PickleBuffer

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from actors.edges.records import pack_header
from runtime.workload import (
    BEGIN_SEQUENCE,
    END_OF_SEQUENCE,
    EndOfStream,
    PortClosed,
    PortTimeout,
    ViewHeld,
)

WAIT_S = 20


def test_records_come_whole_with_identity_sequence_flags_and_edge(edges, ports):
    port = ports.input("in")
    ring = edges.install("in", "ingress")
    ring.push(b"one", object_id=9, flags=BEGIN_SEQUENCE)
    ring.push(b"", object_id=2**64 - 1, flags=END_OF_SEQUENCE)
    seen = []
    for _ in range(2):
        record = port.receive(WAIT_S)
        seen.append((bytes(record.payload), record.object_id, record.sequence, record.flags, record.edge))
    assert seen == [
        (b"one", 9, 0, BEGIN_SEQUENCE, 100 + ring.number),
        (b"", 2**64 - 1, 1, END_OF_SEQUENCE, 100 + ring.number),
    ]


@pytest.mark.parametrize("capacity", [43, 97, 128])
def test_records_wrap_at_every_offset(edges, ports, background, capacity):
    port = ports.input("in")
    ring = edges.install("in", "ingress", capacity=capacity)
    payloads = [bytes((number + at) % 251 for at in range(number % (capacity - 39))) for number in range(3 * capacity)]
    pushed = background(lambda: ring.push(*payloads))
    assert [bytes(port.receive(WAIT_S).payload) for _ in payloads] == payloads
    pushed.result()


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.lists(st.integers(1, 90), min_size=1), sizes=st.lists(st.integers(0, 150), min_size=1, max_size=8))
def test_records_are_joined_from_bytes_committed_anywhere(edges, ports, cuts, sizes):
    port = ports.input("in")
    ring = edges.install("in", "ingress", capacity=200)
    payloads = [bytes([number]) * size for number, size in enumerate(sizes)]
    stream = b"".join(pack_header(0, number, len(payload)) + payload for number, payload in enumerate(payloads))
    got, at, turn = [], 0, 0
    while len(got) < len(payloads):
        size = min(cuts[turn % len(cuts)], ring.side.free(), len(stream) - at)
        turn += 1
        ring.side.write(0, stream[at : at + size])
        ring.side.commit(size)
        at += size
        try:
            while True:
                got.append(bytes(port.receive(0).payload))
        except PortTimeout:
            assert len(got) < len(payloads) or at == len(stream)
    assert got == payloads
    edges.uninstall(ring)
    assert edges.hear() == {"did": "quiesced", "ring": ring.number}


def test_a_payload_is_the_ring_s_own_memory_and_cannot_be_written(edges, ports):
    port = ports.input("in")
    ring = edges.install("in", "ingress")
    ring.push(b"abcd")
    record = port.receive(WAIT_S)
    ring.data[40:44] = b"wxyz"
    assert record.payload == b"wxyz"
    with pytest.raises(TypeError):
        record.payload[0] = 1


def test_only_a_payload_that_wraps_is_copied(edges, ports):
    port = ports.input("in")
    ring = edges.install("in", "ingress", capacity=100)
    ring.push(bytes(30))
    port.receive(WAIT_S).release()
    ring.push(b"q" * 30)  # its header ends at 110: only the header wraps
    record = port.receive(WAIT_S)
    ring.data[10] = ord("r")
    assert record.payload == b"r" + b"q" * 29
    record.release()
    ring.push(b"s" * 30)  # bytes 80 to 110
    record = port.receive(WAIT_S)
    ring.data[:] = bytes(100)
    assert record.payload == b"s" * 30


def test_a_view_ends_with_the_next_call_or_its_release(edges, ports):
    port = ports.input("in")
    ring = edges.install("in", "ingress")
    ring.push(b"one", b"two", b"three")
    first, second = port.receive(WAIT_S), port.receive(WAIT_S)
    with pytest.raises(ValueError, match="released"):
        bytes(first.payload)
    second.release()
    second.release()
    with pytest.raises(ValueError, match="released"):
        bytes(second.payload)
    third = port.receive(WAIT_S)
    first.release()
    assert third.payload == b"three", "releasing an old record says nothing of the one that is out"


def test_space_comes_back_only_after_the_record_is_dropped(edges, ports):
    port = ports.input("in")
    ring = edges.install("in", "ingress", capacity=200)
    ring.push(bytes(160))
    record = port.receive(WAIT_S)
    assert ring.side.free() == 0
    record.release()
    assert ring.side.free() == 200


def test_space_comes_back_in_batches_and_before_a_wait(edges, ports):
    port = ports.input("in")
    ring = edges.install("in", "ingress", capacity=1000)
    ring.push(*[bytes(10)] * 20)
    returned = []
    for _ in range(20):
        port.receive(WAIT_S)
        free = ring.side.free()
        if not returned or free != returned[-1]:
            returned.append(free)
    assert returned == [0, 250, 500, 750], "a quarter at a time"
    with pytest.raises(PortTimeout):
        port.receive(0)
    assert ring.side.free() == 1000


def hold(record):
    """What an array library does with a payload: take a buffer of it, and keep it as long as the array lives."""
    return PickleBuffer(record.payload)


def test_an_array_made_of_a_payload_keeps_its_bytes_until_it_goes(edges, ports):
    port = ports.input("in")
    ring = edges.install("in", "ingress", capacity=400)
    ring.push(b"a" * 60, b"b" * 60, b"c" * 60, b"d" * 60)
    first = hold(port.receive(WAIT_S))
    for _ in range(3):
        port.receive(WAIT_S)
    with pytest.raises(ViewHeld, match="copy what is to be kept"):
        port.receive(0)
    assert ring.side.free() == 0, "space returns in order"
    assert first.raw() == b"a" * 60
    del first
    with pytest.raises(PortTimeout):
        port.receive(0)
    assert ring.side.free() == 400


def test_an_array_replaced_in_each_turn_of_a_loop_does_not_stop_the_edge(edges, ports, background):
    port = ports.input("in")
    ring = edges.install("in", "ingress", capacity=2 * 140)
    payloads = [bytes([number]) * 100 for number in range(50)]
    pushed = background(lambda: ring.push(*payloads))
    for payload in payloads:
        kept = hold(port.receive(WAIT_S))
        assert kept.raw() == payload
    pushed.result()


def test_two_edges_are_read_in_turn_and_each_stays_in_order(edges, ports):
    port = ports.input("in")
    rings = [edges.install("in", "ingress") for _ in range(2)]
    for ring in rings:
        ring.push(*[bytes(8)] * 10)
    seen = [(record.edge, record.sequence) for record in (port.receive(WAIT_S) for _ in range(20))]
    for ring in rings:
        assert [number for edge, number in seen if edge == 100 + ring.number] == list(range(10))
    rings[0].push(b"again")
    rings[1].push(b"more")
    rings[0].push(b"again")
    assert {port.receive(WAIT_S).edge for _ in range(3)} == {100 + ring.number for ring in rings}


def test_a_busy_edge_does_not_keep_another_from_being_read(edges, ports):
    port = ports.input("in")
    busy, quiet = edges.install("in", "ingress", capacity=200), edges.install("in", "ingress", capacity=200)
    busy.push(b"1", b"2", b"3", b"4")
    quiet.push(b"here")
    seen = []
    while len(seen) < 10:
        seen.append(port.receive(WAIT_S).edge)
        if busy.side.free() >= 41:
            busy.push(b"next")
    assert 100 + quiet.number in seen


def test_a_wait_ends_with_the_first_object(edges, ports, background):
    port = ports.input("in")
    ring = edges.install("in", "ingress")
    waiting = background(lambda: bytes(port.receive(WAIT_S).payload))
    assert waiting.blocked()
    ring.push(b"late")
    assert waiting.result() == b"late"


@pytest.mark.parametrize("timeout_s", [0, 0.01])
def test_a_wait_has_an_end(edges, ports, timeout_s):
    port = ports.input("in")
    with pytest.raises(PortTimeout, match="no edge was installed"):
        port.wait_connected(timeout_s)
    edges.install("in", "ingress")
    port.wait_connected(timeout_s)
    with pytest.raises(PortTimeout, match="port in: no object came"):
        port.receive(timeout_s)
    with pytest.raises(TimeoutError):
        port.receive(timeout_s)


def said_while_waiting(edges, port):
    """What a call tells the node and then goes on waiting."""
    while edges.silent():
        with pytest.raises(PortTimeout):
            port.receive(0.01)
    return edges.hear()


def test_a_stream_ends_when_its_producer_closed_it_and_all_is_read(edges, ports):
    port = ports.input("in")
    ring = edges.install("in", "ingress")
    ring.push(b"one", b"two")
    edges.end(ring)
    assert [bytes(record.payload) for record in port] == [b"one", b"two"]
    assert edges.hear() == {"did": "closed", "ring": ring.number}
    assert ring.side.free() == ring.capacity
    edges.uninstall(ring)
    assert edges.hear() == {"did": "quiesced", "ring": ring.number}


def test_an_end_wakes_who_waits_for_more(edges, ports, background):
    port = ports.input("in")
    ring = edges.install("in", "ingress")
    waiting = background(lambda: list(port))
    assert waiting.blocked()
    edges.end(ring)
    assert waiting.result() == []


def test_a_merged_stream_ends_with_the_last_of_its_producers(edges, ports):
    port = ports.input("in")
    first, second = (edges.install("in", "ingress") for _ in range(2))
    edges.end(first)
    assert said_while_waiting(edges, port) == {"did": "closed", "ring": first.number}
    second.push(b"still here")
    assert port.receive(WAIT_S).payload == b"still here"
    edges.end(second)
    with pytest.raises(EndOfStream):
        port.receive(WAIT_S)
    assert edges.hear() == {"did": "closed", "ring": second.number}


def test_after_an_end_the_port_takes_the_next_edge(edges, ports):
    port = ports.input("in")
    ring = edges.install("in", "ingress")
    edges.end(ring)
    assert list(port) == []
    assert edges.hear()["did"] == "closed"
    again = edges.install("in", "ingress")
    again.push(b"second stream")
    edges.end(again)
    assert [(bytes(record.payload), record.sequence) for record in port] == [(b"second stream", 0)]


def test_a_stream_that_ends_within_a_record_is_a_fault(edges, ports):
    port = ports.input("in")
    ring = edges.install("in", "ingress")
    ring.push_bytes(pack_header(1, 0, 100) + bytes(99))
    edges.end(ring)
    said = said_while_waiting(edges, port)
    assert (said["did"], said["ring"], said["code"]) == ("fault", ring.number, "eof_before_full_payload")


def test_a_closed_input_reads_no_more_and_says_so(edges, ports):
    port = ports.input("in")
    ring = edges.install("in", "ingress")
    ring.push(b"unread")
    port.close()
    port.close()
    with pytest.raises(PortClosed, match="the workload closed it"):
        port.receive()
    assert edges.hear() == {
        "did": "fault", "ring": ring.number, "code": "worker_refused", "text": "the workload closed its input in",
    }  # fmt: skip
    edges.order(edges.lay_out("ingress"), "in")
    assert edges.hear()["code"] == "worker_refused"
