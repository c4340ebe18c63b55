"""Object records: every rule in its order, and any cut of the bytes (E 4.4)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.edges import records
from actors.edges.records import (
    BEGIN_SEQUENCE,
    CODES,
    END_OF_SEQUENCE,
    HEADER,
    HEADER_BYTES,
    RecordFault,
    RecordReader,
    RecordTracker,
    pack_header,
    parse_header,
)
from messages.edge_end import EdgeFaultCode

MAX = 100


GOOD = {"magic": b"MO01", "version": 1, "length": 40, "object_id": 7, "sequence": 0, "extent": 4, "flags": 0}


def header(**fields):
    return HEADER.pack(*({**GOOD, "reserved": 0} | fields).values())


def test_the_header_is_laid_out_byte_by_byte():
    packed = pack_header(0x0102030405060708, 2, 3, END_OF_SEQUENCE | BEGIN_SEQUENCE)
    assert packed.hex() == "4d4f303101002800080706050403020102000000000000000300000000000000" + "0300000000000000"
    assert len(packed) == HEADER_BYTES == 40


def test_what_a_header_says_is_read_back():
    assert parse_header(pack_header(9, 5, 16, END_OF_SEQUENCE), MAX, 8) == (9, 5, 16, END_OF_SEQUENCE)


# Each row breaks one rule and every later one too: the first is reported
BROKEN = [
    (records.UNSUPPORTED_MAGIC, {"magic": b"MO02", "version": 2}, None),
    (records.UNSUPPORTED_VERSION, {"version": 2, "length": 48}, None),
    (records.MALFORMED_HEADER_LENGTH, {"length": 48, "flags": 4}, None),
    (records.MALFORMED_HEADER, {"flags": 4, "extent": MAX + 1}, 7),
    (records.MALFORMED_HEADER, {"reserved": 1, "extent": MAX + 1}, 7),
    (records.EXTENT_EXCEEDS_MAX, {"extent": MAX + 1}, 7),
    (records.EXTENT_ALIGNMENT_VIOLATION, {"extent": MAX - 1, "sequence": 3}, 7),
    (records.SEQUENCE_VIOLATION, {"sequence": 1}, 7),
]


@pytest.mark.parametrize(("code", "fields", "object_id"), BROKEN)
@pytest.mark.parametrize("cut", [0, 1, 39])
@pytest.mark.parametrize("kind", [RecordReader, RecordTracker])
def test_a_bad_header_is_named_without_waiting_for_its_payload(code, fields, object_id, cut, kind):
    data = header(**fields)
    follower = kind(MAX, 4)
    take = follower.feed if kind is RecordReader else follower.follow
    take(data[:cut])
    with pytest.raises(RecordFault) as fault:
        take(data[cut:])
    assert (fault.value.code, fault.value.object_id) == (code, object_id)


def test_every_code_reaches_the_operator_under_its_own_name():
    assert set(CODES) <= {code.value for code in EdgeFaultCode}


@pytest.mark.parametrize("arguments", [(-1, 0, 0, 0), (0, 2**64, 0, 0), (0, 0, -1, 0), (0, 0, 0, 4)])
def test_a_header_that_cannot_be_said_is_refused(arguments):
    with pytest.raises(ValueError, match=r"must be|other than"):
        pack_header(*arguments)


payloads = st.lists(st.binary(max_size=60), max_size=8)


@given(payloads, st.lists(st.integers(1, 50), min_size=1, max_size=40))
def test_records_are_the_same_wherever_the_bytes_are_cut(contents, cuts):
    stream = b"".join(pack_header(100 + n, n, len(data)) + data for n, data in enumerate(contents))
    reader, tracker = RecordReader(60), RecordTracker(60)
    found, at = [], 0
    for step in (cuts[n % len(cuts)] for n in range(len(stream) + 1)):
        chunk = memoryview(stream)[at : at + step]
        at += step
        found += reader.feed(chunk)
        tracker.follow(chunk)
    assert [record.payload for record in found] == contents
    assert [record.header.sequence for record in found] == list(range(len(contents)))
    assert tracker.objects == len(contents)
    assert tracker.last_object_id == (99 + len(contents) if contents else None)
    reader.end()
    tracker.end()


@given(st.binary(min_size=1, max_size=60), st.integers(1, 99))
def test_a_stream_that_ends_within_a_record_is_no_clean_end(payload, missing):
    stream = pack_header(1, 0, len(payload)) + payload
    cut = stream[: max(1, len(stream) - missing)]
    reader, tracker = RecordReader(60), RecordTracker(60)
    assert reader.feed(cut) == []
    tracker.follow(cut)
    assert not tracker.at_boundary
    for follower in (reader, tracker):
        with pytest.raises(RecordFault) as fault:
            follower.end()
        assert fault.value.code == records.EOF_BEFORE_FULL_PAYLOAD


def test_a_fault_leaves_the_count_at_what_was_good():
    tracker = RecordTracker(MAX)
    with pytest.raises(RecordFault):
        tracker.follow(header(object_id=5, extent=0) + header(object_id=6, extent=0))
    assert (tracker.objects, tracker.last_object_id, tracker.last_sequence) == (1, 5, 0)
