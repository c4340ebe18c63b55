"""TOML that comes from outside: read in bounded time, into plain data that every check can walk.

`tomllib` itself is slow in the square of the parts of a dotted key, makes tables as deep as that key is long, and
takes integers of any size, whose mere display fails. Such text is refused before or right after it is parsed.
"""

from __future__ import annotations

import re
import tomllib
from typing import Any

KEY_PARTS_LIMIT = 16
DEPTH_LIMIT = 32
INTEGER_LIMIT = 2**63

_PART = r"""(?:[A-Za-z0-9_-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+"""
_LONG_KEY = re.compile(rf"(?<![A-Za-z0-9_-]){_PART}(?:\.[ \t]*+{_PART}){{{KEY_PARTS_LIMIT},}}+")


class TomlFault(ValueError):
    """The text is not TOML, or more than any file of ours needs; it says what and, where that is known, the line."""


def load_toml(text: str) -> dict[str, Any]:
    """The document. Raises `TomlFault` for bad syntax, for dotted keys (or what looks like one) of more than 16 parts,
    for more than 32 levels, and for integers beyond 64 bits."""
    long_key = _LONG_KEY.search(text)
    if long_key is not None:
        line = text.count("\n", 0, long_key.start()) + 1
        raise TomlFault(f"a dotted key of more than {KEY_PARTS_LIMIT} parts (at line {line})")
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise TomlFault(f"not TOML: {error}") from None
    except RecursionError:
        raise TomlFault(f"nested deeper than {DEPTH_LIMIT} levels") from None
    except ValueError:  # of `int`, for thousands of digits
        raise TomlFault("an integer beyond 64 bits") from None
    _check(document, 0)
    return document


def _check(value: object, depth: int) -> None:
    if depth > DEPTH_LIMIT:
        raise TomlFault(f"nested deeper than {DEPTH_LIMIT} levels")
    match value:
        case dict():
            for member in value.values():
                _check(member, depth + 1)
        case list():
            for member in value:
                _check(member, depth + 1)
        case int() if not -INTEGER_LIMIT <= value < INTEGER_LIMIT:
            raise TomlFault("an integer beyond 64 bits")
        case _:
            pass


__all__ = ["DEPTH_LIMIT", "KEY_PARTS_LIMIT", "TomlFault", "load_toml"]
