"""What edges processes say to each other on the data plane (design 7, E 5.1), byte by byte. Pure, stdlib only.

Every frame starts with eight bytes: version, kind, flags, then what the kind needs. All numbers are little-endian.
A frame is one ZeroMQ message of one part: libzmq 4.3 aborts the process when a socket is closed while it is within a
message of several.

    | kind    | says                                                  | from     | after the 8 bytes                |
    |---------|-------------------------------------------------------|----------|----------------------------------|
    | OPEN    | a pump wants to send (flag 1: it has sent before)     | producer | edge, run, incarnation, capacity |
    | DATA    | the stream's bytes from `offset` on                   | producer | edge, run, offset, up to 1 MiB   |
    | FIN     | the stream has `total` bytes, all of them sent        | producer | edge, run, total                 |
    | CREDIT  | how much is in the far ring, how far may be sent      | consumer | edge, run, both incarnations,    |
    |         | (flag 1: send again from there; flag 2: FIN is taken) |          | committed, limit                 |
    | REFUSED | nothing more is taken, and why                        | consumer | edge, run, two lengths u16, text |
    | BEAT    | this process lives                                    | both     |                                  |

Offsets, totals and limits count the bytes of a stream from its beginning: they never wrap, so a repeated or late frame
means what it meant.
"""

from __future__ import annotations

from struct import Struct
from struct import error as struct_error
from typing import NamedTuple

VERSION = 1
U64_MAX = 2**64 - 1
MAX_DATA_BYTES = 1024 * 1024
MAX_CODE_BYTES, MAX_TEXT_BYTES = 63, 1024

OPEN, DATA, FIN, CREDIT, REFUSED, BEAT = range(1, 7)
AGAIN = 1
"""OPEN: this pump has been given credit before."""

REWIND, FINISHED = 1, 2
"""CREDIT: send again from `committed`; the end of the stream is known and all of it committed."""

_PREFIX = Struct("<BBHI")  # version, kind, flags, reserved
_OPEN = Struct("<BBHIQQQQ")
_DATA = Struct("<BBHIQQQ")
_CREDIT = Struct("<BBHIQQQQQQ")
_REFUSED = Struct("<BBHIQQHH")
HEAD_BYTES = _DATA.size
MAX_FRAME_BYTES = HEAD_BYTES + MAX_DATA_BYTES

Buffer = bytes | bytearray | memoryview


class FrameFault(Exception):
    """Not a frame. `code` is a value of `EdgeFaultCode`, `text` says what is wrong with it."""

    code = "malformed_frame"

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


class Open(NamedTuple):
    """`incarnation`: of the sending pump, not 0. `capacity`: of its ring, bytes."""

    edge: int
    run: int
    incarnation: int
    capacity: int
    again: bool = False


class Data(NamedTuple):
    """`payload`: the bytes of the stream from `offset` on."""

    edge: int
    run: int
    offset: int
    payload: memoryview


class Fin(NamedTuple):
    edge: int
    run: int
    total: int


class Credit(NamedTuple):
    """`to`: the incarnation of the sending pump that it is for, `incarnation`: the receiving pump's.

    `committed`: what is in the far ring (and so acknowledged), `limit`: what may be sent at most; both from the start.
    """

    edge: int
    run: int
    to: int
    incarnation: int
    committed: int
    limit: int
    rewind: bool = False
    finished: bool = False


class Refused(NamedTuple):
    """`code`: a value of `EdgeFaultCode` if the peer is honest."""

    edge: int
    run: int
    code: str
    text: str


class Beat(NamedTuple):
    pass


Frame = Open | Data | Fin | Credit | Refused | Beat
BEAT_FRAME = _PREFIX.pack(VERSION, BEAT, 0, 0)


def pack(frame: Open | Fin | Credit | Refused) -> bytes:
    """One frame without stream bytes. Texts are cut to what travels."""
    match frame:
        case Open(edge, run, incarnation, capacity, again):
            return _OPEN.pack(VERSION, OPEN, AGAIN if again else 0, 0, edge, run, incarnation, capacity)
        case Fin(edge, run, total):
            return _DATA.pack(VERSION, FIN, 0, 0, edge, run, total)
        case Credit(edge, run, to, incarnation, committed, limit, rewind, finished):
            flags = (REWIND if rewind else 0) | (FINISHED if finished else 0)
            return _CREDIT.pack(VERSION, CREDIT, flags, 0, edge, run, to, incarnation, committed, limit)
        case Refused(edge, run, code, text):
            why = text.encode(errors="replace")[:MAX_TEXT_BYTES].decode(errors="ignore").encode()
            word = code.encode("ascii", errors="replace")[:MAX_CODE_BYTES]
            return _REFUSED.pack(VERSION, REFUSED, 0, 0, edge, run, len(word), len(why)) + word + why


def pack_data(edge: int, run: int, offset: int) -> bytes:
    """The head of a DATA frame; the bytes follow at `HEAD_BYTES`."""
    return _DATA.pack(VERSION, DATA, 0, 0, edge, run, offset)


def parse(frame: Buffer) -> Frame:
    """What one ZeroMQ message says. Raises `FrameFault`, whatever it holds."""
    try:
        version, kind, flags, reserved = _PREFIX.unpack_from(frame)
    except struct_error:
        raise FrameFault(f"{len(frame)} bytes, a frame has at least {_PREFIX.size}") from None
    if version != VERSION:
        raise FrameFault(f"version {version}, this is {VERSION}")
    if kind == DATA:
        return _parse_data(frame, flags | reserved)
    if reserved or flags & ~_FLAGS.get(kind, 0):
        raise FrameFault(f"kind {kind}: flags {flags:#x}, reserved {reserved:#x}")
    if kind == OPEN:
        _, _, _, _, edge, run, incarnation, capacity = _exactly(_OPEN, frame)
        if not incarnation or not capacity:
            raise FrameFault(f"OPEN with incarnation {incarnation} and capacity {capacity}")
        return Open(edge, run, incarnation, capacity, bool(flags))
    if kind == FIN:
        _, _, _, _, edge, run, total = _exactly(_DATA, frame)
        return Fin(edge, run, total)
    if kind == CREDIT:
        _, _, _, _, edge, run, to, incarnation, committed, limit = _exactly(_CREDIT, frame)
        if not incarnation or committed > limit:
            raise FrameFault(f"CREDIT of incarnation {incarnation} with {committed} committed and limit {limit}")
        return Credit(edge, run, to, incarnation, committed, limit, bool(flags & REWIND), bool(flags & FINISHED))
    if kind == REFUSED:
        return _parse_refused(frame)
    if kind == BEAT:
        _exactly(_PREFIX, frame)
        return Beat()
    raise FrameFault(f"kind {kind} is unknown")


_FLAGS = {OPEN: AGAIN, CREDIT: REWIND | FINISHED}


def _exactly(layout: Struct, head: Buffer) -> tuple[int, ...]:
    if len(head) != layout.size:
        raise FrameFault(f"{len(head)} bytes, this kind has {layout.size}")
    return layout.unpack(head)


def _parse_data(frame: Buffer, flags: int) -> Data:
    length = len(frame) - HEAD_BYTES
    if not 0 < length <= MAX_DATA_BYTES:
        raise FrameFault(f"DATA of {len(frame)} bytes, {HEAD_BYTES} and 1 to {MAX_DATA_BYTES} travel")
    if flags:
        raise FrameFault(f"DATA with flags {flags:#x}")
    _, _, _, _, edge, run, offset = _DATA.unpack_from(frame)
    if offset > U64_MAX - length:
        raise FrameFault(f"DATA of {length} bytes at {offset} ends beyond 2^64")
    return Data(edge, run, offset, memoryview(frame)[HEAD_BYTES:])


def _parse_refused(head: Buffer) -> Refused:
    size = _REFUSED.size
    if len(head) < size:
        raise FrameFault(f"{len(head)} bytes, REFUSED has at least {size}")
    _, _, _, _, edge, run, code_bytes, text_bytes = _REFUSED.unpack_from(head)
    if code_bytes > MAX_CODE_BYTES or text_bytes > MAX_TEXT_BYTES or len(head) != size + code_bytes + text_bytes:
        raise FrameFault(f"REFUSED of {len(head)} bytes with texts of {code_bytes} and {text_bytes}")
    try:
        code = bytes(head[size : size + code_bytes]).decode("ascii")
        text = bytes(head[size + code_bytes :]).decode()
    except UnicodeDecodeError:
        raise FrameFault("REFUSED with texts that are none") from None
    return Refused(edge, run, code, text)
