"""Output in bounded files: the newest is kept, everything is counted, every byte keeps its offset."""

from __future__ import annotations

import errno
import os
import tempfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.shim.output import Segments, read_stream


@settings(max_examples=60)
@given(parts=st.lists(st.binary(max_size=40), max_size=20), limit=st.integers(1, 32), asked=st.integers(1, 50))
def test_the_last_bytes_are_kept_at_their_offsets_and_no_more_than_twice_the_limit(parts, limit, asked):
    with tempfile.TemporaryDirectory() as folder:
        segments = Segments(folder, "stdout", limit)
        for part in parts:
            segments.write(part)
        segments.close()
        whole = b"".join(parts)
        kept = sum(entry.stat().st_size for entry in os.scandir(folder))
        assert min(len(whole), limit) <= kept <= 2 * limit
        assert segments.total == len(whole)
        assert segments.truncated is (kept < len(whole))
        data, end = read_stream(folder, "stdout", -1, min(asked, limit))
        assert (data, end) == (whole[-min(asked, limit) :] if whole else b"", len(whole))
        offset, followed = 0, b""
        while True:
            data, offset = read_stream(folder, "stdout", offset, asked)
            if not data:
                break
            followed += data
        assert followed == whole[len(whole) - kept :]


def test_a_reader_that_follows_gets_each_byte_once(tmp_path):
    segments = Segments(str(tmp_path), "stderr", 10)
    offset, seen = 0, b""
    for number in range(20):
        segments.write(b"line %d\n" % number)
        data, offset = read_stream(str(tmp_path), "stderr", offset, 100)
        seen += data
    assert seen == b"".join(b"line %d\n" % number for number in range(20))
    assert read_stream(str(tmp_path), "stderr", offset + 999, 10) == (b"", offset)


def test_streams_do_not_mix_and_nothing_written_reads_as_nothing(tmp_path):
    Segments(str(tmp_path), "stdout", 10).write(b"out")
    assert read_stream(str(tmp_path), "stderr", -1, 10) == (b"", 0)


def test_a_full_disk_loses_bytes_not_the_count_and_what_follows_has_its_true_offset(tmp_path, monkeypatch):
    segments = Segments(str(tmp_path), "stdout", 100)
    segments.write(b"before")
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left on device")))
        segments.write(b"lost")
    segments.write(b"after")
    assert (segments.total, segments.truncated) == (15, True)
    assert read_stream(str(tmp_path), "stdout", 0, 100) == (b"before", 6)
    assert read_stream(str(tmp_path), "stdout", 6, 100) == (b"after", 15)


def test_a_segment_that_goes_while_it_is_read_is_not_an_error(tmp_path, monkeypatch):
    segments = Segments(str(tmp_path), "stdout", 4)
    segments.write(b"aaaabbbb")
    real, first = os.listdir, [True]

    def listing(path):
        names = real(path)
        if first:
            first.clear()
            segments.write(b"cccc")
        return names

    monkeypatch.setattr(os, "listdir", listing)
    assert read_stream(str(tmp_path), "stdout", 0, 100) == (b"bbbbcccc", 12)


@pytest.mark.parametrize("limit", [1, 3])
def test_a_write_larger_than_the_limit_leaves_its_end(tmp_path, limit):
    segments = Segments(str(tmp_path), "stdout", limit)
    segments.write(bytes(range(200)))
    assert read_stream(str(tmp_path), "stdout", -1, limit)[0] == bytes(range(200))[-limit:]
