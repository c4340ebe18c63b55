"""The base of everything that can be said: frozen, tagged, validated messages (design 3 and 5).

A message is a frozen `msgspec.Struct` whose tag is its class name. A question is a `Request[Answer]`, so the
type checker knows what an ask returns, and `answer_type` tells the post office how to decode it.
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, Generic, NewType, TypeVar, get_args, get_origin

import msgspec

U64_MAX = 2**64 - 1

U64 = Annotated[int, msgspec.Meta(ge=0)]
"""Unsigned 64-bit on the wire: MessagePack cannot carry more, and `Meta` bounds must fit a signed 64-bit number.
Where JSON or TOML enters, `check_u64` adds the upper bound."""

NodeName = NewType("NodeName", str)
"""A configured process or node name, `[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?`."""

Address = NewType("Address", str)
"""`process/actor[/child]`, for example `controller/plane`. Survives restarts."""

Answer = TypeVar("Answer")


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag=True):
    """One thing that can be said. Unknown fields are refused; the tag `type` is the class name."""


class Request(Message, Generic[Answer], frozen=True, kw_only=True):
    """A question; `Answer` is the type (or union) of what comes back."""


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A value inside messages: untagged, unknown fields refused, members at their default omitted on the wire."""


@cache
def answer_type(request: type[Request[Any]]) -> Any:
    """The type between the brackets of `Request[...]` in the bases of `request`."""
    for base in getattr(request, "__orig_bases__", ()):
        origin = get_origin(base)
        if isinstance(origin, type) and issubclass(origin, Request):
            return get_args(base)[0]
    raise TypeError(f"{request.__name__} does not name its answer: derive it from Request[Answer]")


def check_u64(value: int, what: str) -> int:
    """Refuse what does not fit unsigned 64 bits. Raises `ValueError` naming `what`."""
    if isinstance(value, bool) or not 0 <= value <= U64_MAX:
        raise ValueError(f"{what}: {value!r} is not an unsigned 64-bit number (0..{U64_MAX})")
    return value


__all__ = [
    "U64", "U64_MAX", "Address", "Answer", "Message", "NodeName", "Record", "Request", "answer_type", "check_u64",
]  # fmt: skip
