"""Canonical JSON, and the strict parser that goes with it (G 4.2).

What is signed is the one byte form of a value: keys sorted by their UTF-8 bytes, no spaces, raw UTF-8, integers
within ±(2^53-1), no floats, at most 32 levels, bounded. The parser refuses whatever could mean two things to two
readers: duplicate keys (however escaped), floats, NaN, lone surrogates, a byte order mark, bytes after the value.
"""

from __future__ import annotations

import json
from typing import NoReturn, TypeAlias

from messages.packages import MANIFEST_LIMIT_BYTES

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | bool | None"

INTEGER_LIMIT = 2**53 - 1
DEPTH_LIMIT = 32


class JsonFault(ValueError):
    """The value or text is outside canonical JSON; the text says where."""


def canonical_json(value: object, limit_bytes: int = MANIFEST_LIMIT_BYTES) -> bytes:
    """The canonical bytes of `value`. Raises `JsonFault` for what has none or needs more than `limit_bytes`."""
    _check(value, 0)
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    data = text.encode()
    if len(data) > limit_bytes:
        raise JsonFault(f"canonical form is {len(data)} bytes, at most {limit_bytes} are allowed")
    return data


def parse_json(data: bytes, limit_bytes: int = MANIFEST_LIMIT_BYTES) -> Json:
    """The value of strict JSON text in UTF-8. Raises `JsonFault` naming what is wrong."""
    if len(data) > limit_bytes:
        raise JsonFault(f"larger than {limit_bytes} bytes")
    try:
        text = data.decode("utf-8", "strict")
        value: Json = json.loads(
            text,
            object_pairs_hook=_unique,
            parse_int=_integer,
            parse_float=_no_float,
            parse_constant=_no_float,
        )
    except UnicodeDecodeError as error:
        raise JsonFault(f"not UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise JsonFault(f"not JSON: {error.msg} at line {error.lineno} column {error.colno}") from None
    except RecursionError:
        raise JsonFault(f"nested deeper than {DEPTH_LIMIT} levels") from None
    _check(value, 0)
    return value


def _check(value: object, depth: int) -> None:
    if depth > DEPTH_LIMIT:
        raise JsonFault(f"nested deeper than {DEPTH_LIMIT} levels")
    match value:
        case None | bool():
            return
        case int():
            if abs(value) > INTEGER_LIMIT:
                raise JsonFault("integer beyond ±(2^53-1)")
        case str():
            _check_text(value)
        case dict():
            for key, member in value.items():
                if not isinstance(key, str):
                    raise JsonFault(f"key {key!r} is not text")
                _check_text(key)
                _check(member, depth + 1)
        case list() | tuple():
            for member in value:
                _check(member, depth + 1)
        case float():
            raise JsonFault("a float has no canonical form: use an integer or text")
        case _:
            raise JsonFault(f"{type(value).__name__} has no JSON form")


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise JsonFault("text holds a lone surrogate") from None


def _unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    members = dict(pairs)
    if len(members) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise JsonFault(f"key {twice[:32]!r} appears twice")
    return members


def _integer(digits: str) -> int:
    if len(digits) > len(str(-INTEGER_LIMIT)):  # before int(): its cost grows with the square of the digits
        raise JsonFault("integer beyond ±(2^53-1)")
    return int(digits)


def _no_float(text: str) -> NoReturn:
    raise JsonFault(f"number {text[:32]!r} is not an integer")
