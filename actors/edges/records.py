"""Object records, the form in which objects lie on rings and on streams (E 4.4): `MO01`, 40 bytes, then the payload.

    offset  size  field          rule
    0       4     magic          ASCII `MO01`
    4       2     version        1
    6       2     header length  40
    8       8     object id      any
    16      8     sequence       per life of an edge, from 0, each one more than the last
    24      8     extent         bytes of payload that follow
    32      4     flags          bit 0 END_OF_SEQUENCE, bit 1 BEGIN_SEQUENCE, no other
    36      4     reserved       0

Little-endian; records follow each other without padding. Standard library only: workloads use this module too.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

HEADER = Struct("<4sHHQQQII")
HEADER_BYTES = HEADER.size
MAGIC = b"MO01"
VERSION = 1

END_OF_SEQUENCE = 1
BEGIN_SEQUENCE = 2
FLAGS = END_OF_SEQUENCE | BEGIN_SEQUENCE

U64_MAX = 2**64 - 1

WORDS = Struct("<5Q")
"""A header as words: what never changes, object id, sequence, extent, flags with the reserved half; quick to check."""

PREFIX: int = WORDS.unpack(HEADER.pack(MAGIC, VERSION, HEADER_BYTES, 0, 0, 0, 0, 0))[0]

UNSUPPORTED_MAGIC = "unsupported_magic"
UNSUPPORTED_VERSION = "unsupported_version"
MALFORMED_HEADER_LENGTH = "malformed_header_length"
MALFORMED_HEADER = "malformed_header"
EXTENT_EXCEEDS_MAX = "extent_exceeds_max"
EXTENT_ALIGNMENT_VIOLATION = "extent_alignment_violation"
SEQUENCE_VIOLATION = "sequence_violation"
EOF_BEFORE_FULL_PAYLOAD = "eof_before_full_payload"

CODES = (
    UNSUPPORTED_MAGIC,
    UNSUPPORTED_VERSION,
    MALFORMED_HEADER_LENGTH,
    MALFORMED_HEADER,
    EXTENT_EXCEEDS_MAX,
    EXTENT_ALIGNMENT_VIOLATION,
    SEQUENCE_VIOLATION,
    EOF_BEFORE_FULL_PAYLOAD,
)

_View = bytes | bytearray | memoryview


class RecordFault(Exception):
    """A record that is not one. `code` is one of `CODES`; object id and sequence where the header could tell them."""

    def __init__(self, code: str, text: str, object_id: int | None = None, sequence: int | None = None) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code
        self.text = text
        self.object_id = object_id
        self.sequence = sequence


def quantum_of(capacity: int) -> int:
    """How many bytes, committed or freed, of a ring of `capacity` bytes are worth a word to the other side: a quarter,
    and of a large ring no more than 512 KiB, or the other side would stand still while there is work."""
    return max(1, min(capacity // 4, 512 * 1024))


class ObjectHeader(NamedTuple):
    """What a header says. The record is `HEADER_BYTES + extent` bytes long."""

    object_id: int
    sequence: int
    extent: int
    flags: int


class ObjectRecord(NamedTuple):
    """A whole record, its payload copied."""

    header: ObjectHeader
    payload: bytes


def pack_header(object_id: int, sequence: int, extent: int, flags: int = 0) -> bytes:
    """The 40 bytes. Numbers are unsigned 64-bit, flags those of this module. Raises `ValueError`."""
    if not (0 <= object_id <= U64_MAX and 0 <= sequence <= U64_MAX and 0 <= extent <= U64_MAX):
        raise ValueError(f"object id {object_id}, sequence {sequence} and extent {extent} must be from 0 to 2^64-1")
    if flags & ~FLAGS:
        raise ValueError(f"flags {flags:#x} have bits other than BEGIN_SEQUENCE and END_OF_SEQUENCE")
    return HEADER.pack(MAGIC, VERSION, HEADER_BYTES, object_id, sequence, extent, flags, 0)


def parse_header(buffer: _View, max_extent: int, alignment: int = 0, offset: int = 0) -> ObjectHeader:
    """The header at `offset`, of which all 40 bytes must be there. Raises `RecordFault`, checked in E 4.4's order.

    `max_extent` in bytes; `alignment` in bytes, 0 for any.
    """
    magic, version, length, object_id, sequence, extent, flags, reserved = HEADER.unpack_from(buffer, offset)
    if magic != MAGIC:
        raise RecordFault(UNSUPPORTED_MAGIC, f"a record begins with {bytes(magic)!r}, not with {MAGIC!r}")
    if version != VERSION:
        raise RecordFault(UNSUPPORTED_VERSION, f"a record has version {version}, this reads version {VERSION}")
    if length != HEADER_BYTES:
        raise RecordFault(MALFORMED_HEADER_LENGTH, f"a header says it has {length} bytes, it has {HEADER_BYTES}")
    if reserved != 0 or flags & ~FLAGS:
        raise RecordFault(
            MALFORMED_HEADER, f"flags {flags:#x} and reserved {reserved:#x} have unknown bits", object_id, sequence
        )
    if extent > max_extent:
        raise RecordFault(
            EXTENT_EXCEEDS_MAX,
            f"object {object_id} announces {extent} bytes, this edge takes {max_extent}",
            object_id,
            sequence,
        )
    if alignment and extent % alignment:
        raise RecordFault(
            EXTENT_ALIGNMENT_VIOLATION,
            f"object {object_id} has {extent} bytes, not a multiple of {alignment}",
            object_id,
            sequence,
        )
    return ObjectHeader(object_id, sequence, extent, flags)


def out_of_sequence(header: ObjectHeader, expected: int) -> RecordFault:
    """The fault of a record that is not the next of its edge."""
    return RecordFault(
        SEQUENCE_VIOLATION,
        f"object {header.object_id} has sequence {header.sequence}, expected {expected}",
        header.object_id,
        header.sequence,
    )


class RecordTracker:
    """Follows the boundaries of a stream of records through chunks cut anywhere; payloads are never looked at.

    `objects` whole headers seen; `last_object_id` and `last_sequence` of the newest; `at_boundary` while no record is
    begun and unfinished. The stream's sequence runs from 0 without gaps.
    """

    __slots__ = ("_alignment", "_max_extent", "_partial", "_skip", "last_object_id", "objects")

    def __init__(self, max_extent: int, alignment: int = 0) -> None:
        self._max_extent = max_extent
        self._alignment = alignment
        self._skip = 0
        self._partial = bytearray()
        self.objects = 0
        self.last_object_id: int | None = None

    @property
    def last_sequence(self) -> int | None:
        return self.objects - 1 if self.objects else None

    @property
    def at_boundary(self) -> bool:
        return not self._skip and not self._partial

    def follow(self, chunk: _View) -> None:
        """Take the next bytes of the stream. Raises `RecordFault`; then the stream is not to be followed further."""
        size = len(chunk)
        at = self._skip
        if at >= size:
            self._skip = at - size
            return
        if self._partial:
            at = self._complete(chunk)
        objects, max_extent, alignment = self.objects, self._max_extent, self._alignment
        newest = self.last_object_id
        unpack, whole, plain = WORDS.unpack_from, size - HEADER_BYTES, alignment <= 1
        try:
            while at <= whole:
                prefix, object_id, sequence, extent, flags = unpack(chunk, at)
                if (
                    prefix != PREFIX
                    or sequence != objects
                    or extent > max_extent
                    or flags > FLAGS
                    or not (plain or extent % alignment == 0)
                ):
                    raise out_of_sequence(parse_header(chunk, max_extent, alignment, at), objects)
                objects += 1
                newest = object_id
                at += HEADER_BYTES + extent
        finally:
            self.objects, self.last_object_id = objects, newest
        if at >= size:
            self._skip = at - size
        else:
            self._skip = 0
            self._partial += chunk[at:]

    def end(self) -> None:
        """The stream is over. Raises `RecordFault` within a record."""
        if not self.at_boundary:
            raise _cut_short()

    def _complete(self, chunk: _View) -> int:
        """Finish a header that was cut; returns where its payload ends, or the chunk's end while it is still cut."""
        missing = HEADER_BYTES - len(self._partial)
        self._partial += chunk[:missing]
        if len(self._partial) < HEADER_BYTES:
            return len(chunk)
        header = parse_header(self._partial, self._max_extent, self._alignment)
        if header.sequence != self.objects:
            raise out_of_sequence(header, self.objects)
        self._partial.clear()
        self.objects += 1
        self.last_object_id = header.object_id
        return missing + header.extent


class RecordReader:
    """Makes records out of bytes cut anywhere, payloads copied. Buffers at most one record."""

    def __init__(self, max_extent: int, alignment: int = 0) -> None:
        self._max_extent = max_extent
        self._alignment = alignment
        self._buffer = bytearray()
        self._header: ObjectHeader | None = None
        self._expected = 0

    def feed(self, chunk: _View) -> list[ObjectRecord]:
        """The records that `chunk` completes. Raises `RecordFault` as soon as a header is whole and wrong."""
        self._buffer += chunk
        records: list[ObjectRecord] = []
        while True:
            if self._header is None:
                if len(self._buffer) < HEADER_BYTES:
                    return records
                header = parse_header(self._buffer, self._max_extent, self._alignment)
                if header.sequence != self._expected:
                    raise out_of_sequence(header, self._expected)
                self._header = header
                self._expected += 1
            end = HEADER_BYTES + self._header.extent
            if len(self._buffer) < end:
                return records
            records.append(ObjectRecord(self._header, bytes(self._buffer[HEADER_BYTES:end])))
            del self._buffer[:end]
            self._header = None

    def end(self) -> None:
        """The stream is over. Raises `RecordFault` within a record; between two it is a clean end."""
        if self._buffer:
            raise _cut_short()


def _cut_short() -> RecordFault:
    return RecordFault(EOF_BEFORE_FULL_PAYLOAD, "the stream ended within a record")
