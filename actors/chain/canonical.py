"""The one encoder of chain payloads: canonical JSON, so one value has exactly one byte form (design 9).

The form: keys sorted by their UTF-8 bytes, no spaces, raw UTF-8, floats finite in their shortest form that reads back
(`-0.0` is written `0.0`, `100.0` keeps its `.0`), integers within ±(2^53-1), at most 32 levels, bounded in size.
Integers beyond that bound are refused rather than turned to text in silence, because readers in other languages would
round them: whoever records a 64-bit id or a byte count that may be larger gives it as text.

Packages are signed over a stricter form without floats (`actors.packages.canonical`); what is chained holds measured
values and scores, so floats are needed here.
"""

from __future__ import annotations

import json
from math import isfinite
from typing import NoReturn, TypeAlias

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"

INTEGER_LIMIT = 2**53 - 1
DEPTH_LIMIT = 32
PAYLOAD_LIMIT_BYTES = 4 * 1024 * 1024
"""Enough for a decision over two thousand nodes; four of them fit the largest message of the post office."""

_write = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode


class CanonicalFault(ValueError):
    """The value or text has no canonical form; the text says where. `too_large` tells size from shape."""

    def __init__(self, text: str, *, too_large: bool = False) -> None:
        super().__init__(text)
        self.too_large = too_large


def encode(value: object, limit_bytes: int = PAYLOAD_LIMIT_BYTES) -> bytes:
    """The canonical bytes of plain data: None, bool, int, float, str, list or tuple, dict with text keys.

    Raises `CanonicalFault` for anything else, and for more than `limit_bytes`.
    """
    plain = _canonical(value, (), 0)
    data = _write(plain).encode()
    _check_size(len(data), limit_bytes)
    return data


def decode(data: bytes, limit_bytes: int = PAYLOAD_LIMIT_BYTES) -> Json:
    """The value of JSON text that means one thing only. It need not be in canonical form.

    Raises `CanonicalFault` for a key given twice, NaN, a lone surrogate, an integer out of range, a float that is
    not finite, bytes that are not UTF-8, bytes after the value, or too much of anything.
    """
    _check_size(len(data), limit_bytes)
    try:
        value = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_unique,
            parse_int=_integer,
            parse_constant=_not_finite,
        )
    except UnicodeDecodeError as error:
        raise CanonicalFault(f"not UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise CanonicalFault(f"not JSON: {error.msg} at line {error.lineno} column {error.colno}") from None
    except RecursionError:
        raise CanonicalFault(f"nested deeper than {DEPTH_LIMIT} levels") from None
    return _canonical(value, (), 0)


def check_canonical(data: bytes, limit_bytes: int = PAYLOAD_LIMIT_BYTES) -> None:
    """Refuse bytes that `encode` would not have written. Raises `CanonicalFault`."""
    if len(data) <= limit_bytes and _is_surely_canonical(data):
        return
    if encode(decode(data, limit_bytes), limit_bytes) != data:
        raise CanonicalFault("JSON, but not in canonical form: write it with actors.chain.canonical.encode")


def _is_surely_canonical(data: bytes) -> bool:
    """Read and written once, all in C, in half the time. False proves nothing: then the whole check says what is wrong,
    if anything is. Left to look for is what such a round would keep: a negative zero, large integers, depth."""
    if b"-0.0" in data:
        return False
    try:
        value = _read(data.decode())
        if _write(value).encode() != data:
            return False
    except (ValueError, RecursionError):
        return False
    return data.count(b"[") + data.count(b"{") <= DEPTH_LIMIT or _is_nested_within(value, DEPTH_LIMIT)


def _is_nested_within(value: Json, levels: int) -> bool:
    level: list[Json] = [value]
    for _ in range(levels + 1):
        level = [
            member
            for holder in level
            if isinstance(holder, dict | list)
            for member in (holder.values() if isinstance(holder, dict) else holder)
        ]
        if not level:
            return True
    return False


_Path: TypeAlias = "tuple[()] | tuple[_Path, str | int]"
"""Where a value stands: the path of what holds it, and its key or place. Written out only when a fault needs it."""


def _canonical(value: object, path: _Path, depth: int) -> Json:
    if depth > DEPTH_LIMIT:
        raise CanonicalFault(f"nested deeper than {DEPTH_LIMIT} levels")
    match value:
        case str():
            return _text(value, path)
        case dict():
            return {_key(key, path): _canonical(member, (path, key), depth + 1) for key, member in value.items()}
        case list() | tuple():
            return [_canonical(member, (path, place), depth + 1) for place, member in enumerate(value)]
        case None | bool():
            return value
        case int():
            if abs(value) > INTEGER_LIMIT:
                raise CanonicalFault(f"{_written(path)}: integer beyond ±(2^53-1); give it as text")
            return int(value)
        case float():
            if not isfinite(value):
                raise CanonicalFault(f"{_written(path)}: {value} is not a finite number")
            return float(value) + 0.0  # -0.0 + 0.0 is 0.0
        case _:
            raise CanonicalFault(f"{_written(path)}: {type(value).__name__} has no JSON form")


def _written(path: _Path) -> str:
    """For example `$.nodes[2].score`; long keys are cut."""
    if not path:
        return "$"
    within, step = path
    return f"{_written(within)}[{step}]" if isinstance(step, int) else f"{_written(within)}.{step[:64]}"


def _key(key: object, path: _Path) -> str:
    if not isinstance(key, str):
        raise CanonicalFault(f"{_written(path)}: key {key!r} is not text")
    return _text(key, path)


def _text(text: str, path: _Path) -> str:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise CanonicalFault(f"{_written(path)}: text holds a lone surrogate") from None
    return str(text)  # an enum's text, not the enum


def _check_size(size: int, limit_bytes: int) -> None:
    if size > limit_bytes:
        raise CanonicalFault(f"{size} bytes, at most {limit_bytes} are allowed", too_large=True)


def _unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    members: dict[str, Json] = {}
    for key, member in pairs:
        if key in members:
            raise CanonicalFault(f"key {key[:32]!r} appears twice")
        members[key] = member
    return members


def _integer(digits: str) -> int:
    if len(digits) > len(str(-INTEGER_LIMIT)):  # before int(): its cost grows with the square of the digits
        raise CanonicalFault("integer beyond ±(2^53-1); give it as text")
    return int(digits)


def _safe_integer(digits: str) -> int:
    value = _integer(digits)
    if abs(value) > INTEGER_LIMIT:
        raise CanonicalFault("integer beyond ±(2^53-1); give it as text")
    return value


def _not_finite(text: str) -> NoReturn:
    raise CanonicalFault(f"{text} is not a finite number")


_read = json.JSONDecoder(parse_int=_safe_integer).decode
