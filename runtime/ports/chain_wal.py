"""How much of a SQLite write-ahead log was never committed: read before SQLite drops it in silence.

The format is SQLite's own ("WAL-index format" in its file format documentation): a header of 32 bytes, then frames of
24 bytes and a page. A frame counts when its salts are the header's and the running checksum agrees; what follows the
last frame with a commit mark and still bears the salts was being written when the writer died.
"""

from __future__ import annotations

import struct
from pathlib import Path

_HEADER = struct.Struct(">8I")
_FRAME = struct.Struct(">6I")
_MAGIC_LITTLE, _MAGIC_BIG = 0x377F0682, 0x377F0683
_MASK = 0xFFFFFFFF
_MAX_PAGE = 65_536


def torn_bytes(path: Path) -> int:
    """Bytes behind the last commit of the log at `path`; 0 when there is none, or no log."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return 0
    if len(data) < _HEADER.size:
        return len(data)
    magic, _, page_bytes, _, salt_one, salt_two, sum_one, sum_two = _HEADER.unpack_from(data)
    if magic not in (_MAGIC_LITTLE, _MAGIC_BIG) or not 512 <= page_bytes <= _MAX_PAGE or page_bytes % 8:
        return len(data)
    order = "<" if magic == _MAGIC_LITTLE else ">"
    checksum = _checksum(data[:24], order, (0, 0))
    if checksum != (sum_one, sum_two):
        return len(data)
    frame_bytes = _FRAME.size + page_bytes
    committed = at = _HEADER.size
    intact = True
    while at + _FRAME.size <= len(data):
        _, pages_after, one, two, frame_one, frame_two = _FRAME.unpack_from(data, at)
        if (one, two) != (salt_one, salt_two):
            break
        if intact:
            page = data[at + _FRAME.size : at + frame_bytes]
            intact = len(page) == page_bytes
            if intact:
                checksum = _checksum(page, order, _checksum(data[at : at + 8], order, checksum))
                intact = checksum == (frame_one, frame_two)
        at += frame_bytes
        if intact and pages_after:
            committed = at
    return min(at, len(data)) - committed


def _checksum(data: bytes, order: str, start: tuple[int, int]) -> tuple[int, int]:
    one, two = start
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for even, odd in zip(words[::2], words[1::2], strict=True):
        one = (one + even + two) & _MASK
        two = (two + odd + one) & _MASK
    return one, two
