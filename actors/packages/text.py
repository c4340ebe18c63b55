"""The text rules that several formats of packages share: tokens, hexadecimal, relative paths (G 4.2, G 4.3)."""

from __future__ import annotations

import re

_TOKEN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+:-]*", re.ASCII)
_HEX = re.compile(r"[0-9a-f]+", re.ASCII)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*", re.ASCII)

PATH_LIMIT_BYTES = 256
COMPONENT_LIMIT_BYTES = 128


def is_token(text: str, limit_bytes: int) -> bool:
    """A letter or digit, then letters, digits and `._+:-`; ASCII, at most `limit_bytes`."""
    return len(text) <= limit_bytes and _TOKEN.fullmatch(text) is not None


def is_hex(text: str, digits: int) -> bool:
    """Exactly `digits` lower-case hexadecimal digits."""
    return len(text) == digits and _HEX.fullmatch(text) is not None


def is_lower_hex(text: str) -> bool:
    return _HEX.fullmatch(text) is not None


def is_cog_id(text: str) -> bool:
    """Lower-case letters and digits separated by single hyphens, at most 64."""
    return len(text) <= 64 and _ID.fullmatch(text) is not None


def has_control(text: str) -> bool:
    return _CONTROL.search(text) is not None


def is_safe_path(path: str) -> bool:
    """Relative, `/`-separated, every component a token; so no `.`, `..`, empty or hidden component exists."""
    return 1 <= len(path) <= PATH_LIMIT_BYTES and all(
        is_token(component, COMPONENT_LIMIT_BYTES) for component in path.split("/")
    )
