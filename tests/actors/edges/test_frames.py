"""Frames of the data plane: what is packed is parsed, and rubbish is refused by name."""

from __future__ import annotations

import contextlib
import re
from struct import pack as raw

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.edges.frames import (
    BEAT_FRAME,
    HEAD_BYTES,
    MAX_CODE_BYTES,
    MAX_DATA_BYTES,
    MAX_TEXT_BYTES,
    U64_MAX,
    Beat,
    Credit,
    Data,
    Fin,
    FrameFault,
    Open,
    Refused,
    pack,
    pack_data,
    parse,
)

u64 = st.integers(0, U64_MAX)
some = st.integers(1, U64_MAX)
credits = st.builds(
    lambda edge, run, to, incarnation, pair, rewind, finished: Credit(
        edge, run, to, incarnation, min(pair), max(pair), rewind, finished
    ),
    u64, u64, u64, some, st.tuples(u64, u64), st.booleans(), st.booleans(),
)  # fmt: skip
frames = st.one_of(
    st.builds(Open, u64, u64, some, some, st.booleans()),
    st.builds(Fin, u64, u64, u64),
    credits,
    st.builds(Refused, u64, u64, st.text("abc_", max_size=MAX_CODE_BYTES), st.text(max_size=200)),
)


@settings(deadline=None)
@given(frames)
def test_a_frame_says_at_the_far_end_what_was_said(frame):
    assert parse(pack(frame)) == frame
    assert parse(memoryview(pack(frame))) == frame


@settings(deadline=None)
@given(st.integers(0, 2**63), st.binary(min_size=1, max_size=200))
def test_data_arrives_whole(offset, payload):
    found = parse(pack_data(7, 3, offset) + payload)
    assert isinstance(found, Data)
    assert (found.edge, found.run, found.offset, bytes(found.payload)) == (7, 3, offset, payload)


def test_a_beat_is_eight_bytes():
    assert len(BEAT_FRAME) == 8
    assert parse(BEAT_FRAME) == Beat()


def test_the_frames_of_the_documentation():
    assert pack(Fin(1, 2, 3)).hex(" ") == (
        "01 03 00 00 00 00 00 00 01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 03 00 00 00 00 00 00 00"
    )
    assert pack_data(1, 2, 3)[:2] == b"\x01\x02"
    assert len(pack_data(1, 2, 3)) == HEAD_BYTES == 32


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=80), st.integers(0, 8))
def test_rubbish_is_refused_and_nothing_else_happens(rubbish, kind):
    try:
        parse(bytes([1, kind]) + rubbish if kind < 8 else rubbish)
    except FrameFault as fault:
        said = (fault.code, bool(fault.text))
        assert said == ("malformed_frame", True)


@settings(max_examples=200, deadline=None)
@given(frames.map(pack), st.integers(0, 79), st.integers(0, 255), st.integers(-8, 8))
def test_a_damaged_frame_is_another_frame_or_refused(packed, at, byte, longer):
    damaged = bytearray(packed)
    damaged[at % len(damaged)] = byte
    damaged = damaged[:longer] if longer < 0 else damaged + bytes(longer)
    with contextlib.suppress(FrameFault):
        parse(bytes(damaged))


@pytest.mark.parametrize(
    ("frame", "says"),
    [
        (b"", "0 bytes"),
        (b"\x02" + BEAT_FRAME[1:], "version 2"),
        (raw("<BBHI", 1, 9, 0, 0), "kind 9"),
        (raw("<BBHI", 1, 0, 0, 0), "kind 0"),
        (BEAT_FRAME + b"x", "9 bytes"),
        (raw("<BBHI", 1, 6, 1, 0), "flags 0x1"),
        (raw("<BBHI", 1, 6, 0, 1), "reserved 0x1"),
        (raw("<BBHIQQQQ", 1, 1, 0, 0, 1, 1, 0, 1), "incarnation 0"),
        (raw("<BBHIQQQQ", 1, 1, 0, 0, 1, 1, 1, 0), "capacity 0"),
        (raw("<BBHIQQQQ", 1, 1, 2, 0, 1, 1, 1, 1), "flags 0x2"),
        (raw("<BBHIQQQQQQ", 1, 4, 0, 0, 1, 1, 1, 0, 0, 0), "incarnation 0"),
        (raw("<BBHIQQQQQQ", 1, 4, 0, 0, 1, 1, 1, 1, 5, 4), "5 committed"),
        (raw("<BBHIQQQQQQ", 1, 4, 4, 0, 1, 1, 1, 1, 0, 0), "flags 0x4"),
        (pack_data(1, 1, 0), "DATA of 32 bytes"),
        (pack_data(1, 1, 0)[:-1], "DATA of 31 bytes"),
        (pack_data(1, 1, 0) + bytes(MAX_DATA_BYTES + 1), "DATA of 1048609 bytes"),
        (pack_data(1, 1, U64_MAX) + b"x", "beyond 2^64"),
        (raw("<BBHIQQQ", 1, 2, 1, 0, 1, 1, 0) + b"x", "flags"),
        (raw("<BBHIQQHH", 1, 5, 0, 0, 1, 1, 64, 0) + b"x" * 64, "REFUSED"),
        (raw("<BBHIQQHH", 1, 5, 0, 0, 1, 1, 1, 1) + b"x", "REFUSED"),
        (raw("<BBHIQQHH", 1, 5, 0, 0, 1, 1, 0, 1) + b"\xff", "texts"),
        (raw("<BBHI", 1, 5, 0, 0), "at least"),
    ],
)
def test_what_is_wrong_with_a_frame_is_said(frame, says):
    with pytest.raises(FrameFault, match=re.escape(says)):
        parse(frame)


def test_texts_of_a_refusal_are_cut_to_what_travels():
    found = parse(pack(Refused(1, 2, "c" * 100, "é" * MAX_TEXT_BYTES)))
    assert found == Refused(1, 2, "c" * MAX_CODE_BYTES, "é" * (MAX_TEXT_BYTES // 2))
