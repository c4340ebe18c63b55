"""The wire form: what is said arrives as it was said, and no bytes at all do more than be refused."""

from __future__ import annotations

import tracemalloc

import msgpack
import msgspec
import pytest
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from messages.base import Address
from messages.system import AskFailure
from runtime.kernel.envelope import (
    LONGEST_WAIT_MS,
    MAX_MESSAGE_BYTES,
    MAX_TEXT_BYTES,
    MAX_WAITING,
    UNSAYABLE,
    BadFrame,
    Envelope,
    Failure,
    Kind,
    check_address,
    encode_body,
    pack,
    unpack,
)

few = hypothesis_settings(max_examples=40, deadline=None)

A, B = Address("one/a"), Address("two/b")
HEADER = [1, 0, "two/b", "one/a", "m.Text", 1, 7, 0, -1, [], b"\xc0"]
FIELDS = [
    "version", "kind", "to", "from", "tag", "sequence", "incarnation", "correlation", "remaining", "waiting", "body",
]  # fmt: skip


def envelope(**changes) -> Envelope:
    given = {"kind": Kind.TELL, "to": B, "sender": A, "body": b"\xc0", "tag": "m.Text"}
    return Envelope(**(given | changes))


def header(**changes) -> bytes:
    return msgpack.packb([changes.get(name, value) for name, value in zip(FIELDS, HEADER, strict=True)])


def read(frame: bytes, now: float = 0.0):
    return list(unpack(frame, now))


def fault_of(frame: bytes) -> str | None:
    try:
        read(frame)
    except BadFrame as bad:
        return str(bad)
    return None


texts = st.text(st.characters(codec="utf-8"), max_size=40)
envelopes = st.builds(
    Envelope,
    kind=st.sampled_from([Kind.TELL, Kind.ANSWER, Kind.HELLO, Kind.BEAT]),
    to=texts,
    sender=texts,
    message=st.none(),
    body=st.binary(min_size=1, max_size=200),
    tag=texts,
    correlation=st.integers(0, 2**64 - 1),
    waiting=st.lists(texts, max_size=MAX_WAITING).map(tuple),
)


@few
@given(st.lists(st.tuples(envelopes, st.integers(0, 2**64 - 1)), max_size=5))
def test_what_is_said_arrives_as_it_was_said_however_many_share_a_frame(said):
    frame = b"".join(pack(one, sequence, 9, 0.0) for one, sequence in said)
    assert read(frame) == [(one, sequence, 9) for one, sequence in said]


@pytest.mark.parametrize(("deadline", "left"), [(10.5, 3.5), (7.0, 0.0), (1.0, 0.0), (1e9, 1e9 - 7)])
def test_a_deadline_travels_as_the_time_that_is_left(deadline, left):
    """The two clocks differ; what passed before sending is gone, and a deadline that is over stays over."""
    ((arrived, _, _),) = read(pack(envelope(kind=Kind.ASK, deadline=deadline), 1, 7, now=7.0), now=100.0)
    assert arrived.deadline == pytest.approx(100.0 + left)


def test_the_longest_wait_that_a_header_can_say_is_cut_to_one_that_can_be_passed_on():
    frame = msgpack.packb([1, 1, "b/b", "a/a", "x.Y", 1, 7, 3, 2**64 - 2_000, [], b"\x80"])
    ((arrived, sequence, incarnation),) = read(frame, now=0.0)
    assert arrived.deadline == LONGEST_WAIT_MS / 1000
    assert list(read(pack(arrived, sequence, incarnation, 0.0), now=0.0))


def test_an_ask_that_does_not_say_how_long_it_waits_is_refused():
    with pytest.raises(BadFrame, match="how long"):
        read(header(kind=int(Kind.ASK)))


def test_a_failure_says_why():
    failure = Failure(AskFailure.REFUSED, "busy", "another holds it")
    ((arrived, _, _),) = read(pack(envelope(kind=Kind.FAILURE, body=b"", failure=failure), 1, 7, 0.0))
    assert arrived.failure == failure


# what is no envelope


@few
@given(st.binary(max_size=300))
@example(b"\xc1")
@example(b"\xc7\x00\xff")
@example(b"\xd4\xff\x00")
def test_any_bytes_are_envelopes_or_a_bad_frame(frame):
    fault = fault_of(frame)
    assert fault is None or 0 < len(fault) < 1000


@few
@given(st.data())
def test_a_frame_with_one_byte_changed_is_envelopes_or_a_bad_frame(data):
    frame = bytearray(pack(envelope(kind=Kind.ASK, deadline=1.0, waiting=(A,)), 5, 7, 0.0) * 2)
    frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    assert fault_of(bytes(frame)) != ""


def test_a_truncated_frame_gives_what_is_whole_and_then_is_refused():
    one = pack(envelope(), 1, 7, 0.0)
    for cut in range(1, len(one)):
        arriving = unpack(one + one[:cut], 0.0)
        next(arriving)
        with pytest.raises(BadFrame, match="trailing"):
            next(arriving)


@pytest.mark.parametrize("trailing", [b"\xc0", b"\x00", b"\xc1", b"\x90", b"more"])
def test_bytes_after_the_last_envelope_are_refused(trailing):
    with pytest.raises(BadFrame):
        read(pack(envelope(), 1, 7, 0.0) + trailing)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"version": 2}, "version 2"),
        ({"kind": 99}, "kind 99"),
        ({"kind": True}, "kind is int, not bool"),
        ({"to": 5}, "to is str, not int"),
        ({"from": None}, "from is str, not NoneType"),
        ({"tag": b"x"}, "tag is str, not bytes"),
        ({"sequence": 1.0}, "sequence is int, not float"),
        ({"incarnation": "7"}, "incarnation is int, not str"),
        ({"waiting": [1]}, "addresses"),
        ({"waiting": ["a/b"] * (MAX_WAITING + 1)}, "max_array_len"),
        ({"to": "x" * (MAX_TEXT_BYTES + 1)}, "max_str_len"),
        ({"body": {}}, "body is bytes, not dict"),
        ({"body": {1: 2}}, "max_map_len"),
        ({"body": msgpack.ExtType(4, b"1")}, "max_ext_len"),
        ({"body": msgpack.Timestamp(2**40, 0)}, "max_ext_len"),
        ({"kind": int(Kind.FAILURE), "body": b"\x93\xa3odd\xa0\xa0"}, "not a failure"),
        ({"kind": int(Kind.FAILURE), "body": b"\x94\xa4died\xa0\xa0" + b"\x91" * 5000}, "not a failure"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_field_of_the_wrong_shape_is_refused_by_name(changes, named):
    with pytest.raises(BadFrame, match=named):
        read(header(**changes))


def test_a_text_that_is_not_utf8_is_refused():
    frame = header().replace(b"two/b", b"two/\xff")
    with pytest.raises(BadFrame):
        read(frame)


def _tree(bytes_at_least: int) -> bytes:
    """Arrays of 32 arrays: one byte of it is one list of 56 bytes in memory."""
    tree = b"\x90"
    while len(tree) < bytes_at_least:
        tree = b"\xdc\x00\x20" + tree * 32
    return tree


@pytest.mark.parametrize(
    "frame",
    [
        b"\x91" * 2_000_000,
        b"\x9b" + _tree(1_000_000),
        b"\x9b" + b"\x01" * 9 + _tree(1_000_000),
        b"\xdd\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\x9b" + b"\x9b" * 100_000,
        b"\xa0" * 2_000_000,
    ],
    ids=["deep", "tree", "tree as waiting", "array", "bytes", "text", "map", "deep envelopes", "texts"],
)
def test_no_frame_costs_more_memory_than_a_few_times_its_size(frame):
    tracemalloc.start()
    try:
        with pytest.raises(BadFrame):
            read(frame)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3 * len(frame) + 500_000


def test_a_frame_beyond_the_limit_is_refused_before_it_is_read():
    with pytest.raises(BadFrame, match="larger than"):
        read(bytes(MAX_MESSAGE_BYTES + 1024 * 1024))


def test_the_largest_body_travels_with_the_longest_header():
    body = bytes(MAX_MESSAGE_BYTES)
    waiting = (Address("w" * MAX_TEXT_BYTES),) * (MAX_WAITING - 1)
    ((arrived, _, _),) = read(pack(envelope(body=body, waiting=waiting), 1, 7, 0.0))
    assert len(arrived.body) == len(body)


# what cannot be said


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1, "\udc80", object(), [[]]], ids=repr)
def test_what_messagepack_cannot_carry_is_refused_when_said(value):
    if value == [[]]:
        for _ in range(5000):
            value = [value]
    with pytest.raises(UNSAYABLE):
        encode_body(value)


@pytest.mark.parametrize("value", [0, 2**63, 2**64 - 1, -1, -(2**63)])
def test_the_bounds_of_messagepack_travel(value):
    assert msgspec.msgpack.decode(encode_body(value)) == value


@pytest.mark.parametrize(
    "changes",
    [
        {"to": Address("one/\udcff")},
        {"to": Address("x" * (MAX_TEXT_BYTES + 1))},
        {"deadline": float("inf")},
        {"deadline": float("nan")},
        {"deadline": 1e300},
        {"correlation": 2**64},
    ],
    ids=str,
)
def test_an_envelope_that_cannot_travel_is_refused_when_packed(changes):
    with pytest.raises(UNSAYABLE):
        pack(envelope(**changes), 1, 7, 0.0)


# addresses


@pytest.mark.parametrize("address", ["one/a", "node-a/agent", "shed.edges/edge/17", "a/b/c", "x" * 63 + "/y"])
def test_an_address_is_a_process_an_actor_and_perhaps_a_child(address):
    check_address(address)


@pytest.mark.parametrize(
    "address",
    ["", "one", "one/", "/a", "one/a/b/c", "one//a", "One/a", "one/A", "é/a", "e\u0301/a", "\u0430/a",
     "one/\N{GRINNING FACE}", "./a", "../a", "one/..", "one/a ", "one/a\n", "\none/a", "one\\a", "-one/a", "one-/a",
     "one/-a", "x" * 64 + "/a", "a.b.c/d", ".edges/a", "one/\x00", "\uff41/a", "one/٣"],
    ids=ascii,
)  # fmt: skip
def test_what_is_no_address_is_refused_and_not_rewritten(address):
    with pytest.raises(ValueError, match="is no address"):
        check_address(address)
