"""What travels between actors: an envelope, and its form on the wire (design 5).

On the wire an envelope is one MessagePack array, readable without our types:

    [version, kind, to, from, tag, sequence, incarnation, correlation, remaining_ms, [waiting, ...], body]

`body` is MessagePack of the message itself, decoded by the receiving actor straight into its mailbox's type. Several
envelopes may follow each other in one ZeroMQ message.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cache
from types import UnionType
from typing import Any, Union, get_args, get_origin

import msgpack
import msgspec

from messages.base import Address, Message
from messages.system import AskFailure, SystemRequest

WIRE_VERSION = 1
MAX_MESSAGE_BYTES = 16 * 1024 * 1024
MAX_WAITING = 32
LONGEST_WAIT_MS = 2**40
"""A wait that is said to be longer ends after this: 34 years."""

MAX_TEXT_BYTES = 512
MAX_HEADER_BYTES = 64 * 1024
"""More than any header takes: addresses, tag and the actors that wait."""

UNSAYABLE = (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError)
"""What encoding a message raises that MessagePack cannot carry."""

encode_body = msgspec.msgpack.Encoder().encode


class Kind(IntEnum):
    TELL = 0
    ASK = 1
    ANSWER = 2
    FAILURE = 3
    HELLO = 4
    BEAT = 5


class Failure(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The body of a FAILURE: how an ask failed, and the refuser's code and reason."""

    failure: AskFailure
    code: str
    reason: str


class BadFrame(Exception):
    """Bytes that are no envelope; the text says why."""


@dataclass(slots=True)
class Envelope:
    """One message on its way. Either `message` or `body` is set; `deadline` is this process's monotonic time.

    `waiting` are the actors that wait for this ask, outermost first. `route` is the connection it came in on, where
    its answer goes.
    """

    kind: Kind
    to: Address
    sender: Address
    message: Message | None = None
    body: bytes = b""
    tag: str = ""
    correlation: int = 0
    deadline: float | None = None
    waiting: tuple[Address, ...] = ()
    failure: Failure | None = None
    route: Any = field(default=None, repr=False)

    def encoded(self) -> bytes:
        """The body as bytes; raises `UNSAYABLE`."""
        if not self.body:
            self.body = encode_body(self.failure if self.kind is Kind.FAILURE else self.message)
        return self.body


_NAME = "[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_ADDRESS = re.compile(rf"{_NAME}(\.{_NAME})?(/{_NAME}){{1,2}}", re.ASCII)


def check_address(address: str) -> None:
    """Refuse what is no `process/actor[/child]`; nothing is folded or trimmed. Raises `ValueError`."""
    if _ADDRESS.fullmatch(address) is None:
        raise ValueError(f"{address!r} is no address: process/actor[/child], each of small letters, digits, hyphens")


def process_of(address: str) -> str:
    return address.partition("/")[0]


@cache
def tag_of(message: type[Message]) -> str:
    """`module.Class`, the module without its package."""
    return f"{message.__module__.removeprefix('messages.')}.{message.__name__}"


class Mail:
    """The types that a mailbox takes, by tag, with a decoder each."""

    def __init__(self, mailbox: Any) -> None:
        self.types: dict[str, type[Message]] = {tag_of(kind): kind for kind in _members(mailbox)}
        self._decoders = {tag: msgspec.msgpack.Decoder(kind) for tag, kind in self.types.items()}

    def decode(self, tag: str, body: bytes) -> Message:
        """Raises `KeyError` for a tag that is not taken, `msgspec.MsgspecError` for a malformed body."""
        message: Message = self._decoders[tag].decode(body)
        return message


def _members(mailbox: Any) -> Iterator[type[Message]]:
    if get_origin(mailbox) in (Union, UnionType):
        for member in get_args(mailbox):
            yield from _members(member)
    elif mailbox is not None:
        yield mailbox


@cache
def mail_of(mailbox: Any) -> Mail:
    return Mail(mailbox)


SYSTEM_MAIL = mail_of(SystemRequest)
SYSTEM_TYPES = frozenset(SYSTEM_MAIL.types.values())


@cache
def answer_decoder(answer: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(answer)


failure_decoder = msgspec.msgpack.Decoder(Failure)


def pack(envelope: Envelope, sequence: int, incarnation: int, now: float) -> bytes:
    """The wire form, with the number and the incarnation that the link gives it. Raises `UNSAYABLE`."""
    if len(envelope.to) > MAX_TEXT_BYTES:
        raise ValueError(f"an address has at most {MAX_TEXT_BYTES} bytes, this one {len(envelope.to)}")
    remaining = -1 if envelope.deadline is None else max(0, round((envelope.deadline - now) * 1000))
    packed: bytes = msgpack.packb(
        [
            WIRE_VERSION, int(envelope.kind), envelope.to, envelope.sender, envelope.tag, sequence, incarnation,
            envelope.correlation, remaining, envelope.waiting, envelope.encoded(),
        ]
    )  # fmt: skip
    return packed


_SHAPE = {
    "version": int,
    "kind": int,
    "to": str,
    "from": str,
    "tag": str,
    "sequence": int,
    "incarnation": int,
    "correlation": int,
    "remaining": int,
    "waiting": list,
    "body": bytes,
}


_TYPES = tuple(_SHAPE.values())
_WAITING_AT = list(_SHAPE).index("waiting")
_KINDS = {int(kind): kind for kind in Kind}


def unpack(frame: bytes, now: float) -> Iterator[tuple[Envelope, int, int]]:
    """The envelopes of one ZeroMQ frame, each with its sequence and its sender's incarnation.

    Raises `BadFrame`; what came before the bad one was yielded.
    """
    unpacker = msgpack.Unpacker(
        list_hook=_flat if len(frame) > MAX_HEADER_BYTES else None,
        read_size=min(len(frame) or 1, MAX_MESSAGE_BYTES),  # or it takes a megabyte for every frame
        max_buffer_size=MAX_MESSAGE_BYTES + MAX_HEADER_BYTES,
        max_array_len=max(len(_SHAPE), MAX_WAITING),
        max_map_len=0,
        max_str_len=MAX_TEXT_BYTES,
        max_bin_len=MAX_MESSAGE_BYTES,
        max_ext_len=0,
        raw=False,
        strict_map_key=True,
    )
    try:
        unpacker.feed(frame)
    except msgpack.BufferFull:
        raise BadFrame(f"frame of {len(frame)} bytes is larger than {MAX_MESSAGE_BYTES}") from None
    while (start := unpacker.tell()) != len(frame):
        try:
            header = unpacker.unpack()
        except msgpack.OutOfData:
            raise BadFrame(f"{len(frame) - start} trailing bytes are no whole envelope") from None
        except (ValueError, msgpack.UnpackException, RecursionError) as error:
            raise BadFrame(f"not an envelope: {str(error) or type(error).__name__}") from None
        if type(header) is not list or tuple(map(type, header)) != _TYPES:
            raise _misshapen(header)
        version, number, to, sender, tag, sequence, incarnation, correlation, remaining, waiting, body = header
        if version != WIRE_VERSION:
            raise BadFrame(f"envelope version {version}, this program speaks {WIRE_VERSION}: bring both to one release")
        kind = _KINDS.get(number)
        if kind is None:
            raise BadFrame(f"no envelope is of kind {number}")
        if waiting and not all(type(address) is str for address in waiting):
            raise BadFrame("waiting of an envelope holds addresses")
        failure = None
        if kind is Kind.ASK:
            if remaining < 0:
                raise BadFrame("an ask says how long its asker waits")
        elif kind is Kind.FAILURE:
            try:
                failure = failure_decoder.decode(body)
            except (ValueError, RecursionError, msgspec.MsgspecError) as error:
                raise BadFrame(f"not a failure: {error}") from None
        deadline = None if remaining < 0 else now + min(remaining, LONGEST_WAIT_MS) / 1000
        envelope = Envelope(kind, to, sender, None, body, tag, correlation, deadline, tuple(waiting), failure)
        yield envelope, sequence, incarnation


def _flat(array: list[object]) -> list[object]:
    """Only where an envelope has `waiting` may an array hold another: a byte of nesting costs 60 of memory."""
    if list in map(type, array[:_WAITING_AT]) or list in map(type, array[_WAITING_AT + 1 :]):
        raise ValueError("arrays in arrays")
    return array


def _misshapen(header: object) -> BadFrame:
    if type(header) is not list or len(header) != len(_SHAPE):
        return BadFrame(f"an envelope is an array of {len(_SHAPE)}, this is {type(header).__name__}")
    wrong = [
        f"{name} is {shape.__name__}, not {type(value).__name__}"
        for value, (name, shape) in zip(header, _SHAPE.items(), strict=True)
        if type(value) is not shape
    ]
    return BadFrame("not an envelope: " + ", ".join(wrong))
