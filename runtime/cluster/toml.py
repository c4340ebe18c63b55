"""TOML files read strictly: what is wrong is told with file, line and key path (design 5, 10).

Values are converted straight into the given struct; unknown keys, missing keys and values out of range are refused.
`tomllib` keeps no positions, so the line of a key path is found again by a scan of the text.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from actors.toml import TomlFault, load_toml
from runtime.cluster.fault import ClusterFault, ClusterFaultCode, invalid

T = TypeVar("T")

LIMIT_BYTES = 1024 * 1024
REMEDY = "correct it, or restore the file from a copy"
TEXT_LIMIT = 500
"""Most characters of a key path, or of what is wrong there, that a fault shows."""

_HEADER = re.compile(r"\s*(\[\[?)([^\[\]]+)\]\]?\s*(#.*)?")
_KEY = re.compile(r"""\s*((?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*'))*)\s*=""")
_PART = re.compile(r"""[A-Za-z0-9_-]+|"[^"]*"|'[^']*'""")
_AT = re.compile(r"(?P<what>.*?)(?: - at `(?:key in )?\$(?P<path>[^`]*)`)?", re.DOTALL)
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]")
_NAMED = re.compile(r"(?:unknown|required) field `([^`]+)`")

KeyPath = tuple[str | int, ...]


def read_toml(path: Path, form: type[T]) -> T:
    """The file as `form`. Raises `ClusterFault` (`missing`, `invalid`)."""
    return parse_toml(read_text(path), form, str(path))


def read_text(path: Path) -> str:
    """The text of a file of at most 1 MiB. Raises `ClusterFault`."""
    try:
        with path.open("rb") as file:
            data = file.read(LIMIT_BYTES + 1)
    except FileNotFoundError:
        raise ClusterFault(ClusterFaultCode.MISSING, f"{path} does not exist: restore it from a copy") from None
    except OSError as error:
        raise invalid(f"{path} cannot be read: {error.strerror}") from None
    if len(data) > LIMIT_BYTES:
        raise invalid(f"{path} is larger than {LIMIT_BYTES} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise invalid(f"{path} is not UTF-8 at byte {error.start}; {REMEDY}") from None


def parse_toml(text: str, form: type[T], name: str) -> T:
    """`text` as `form`; `name` stands for the file in faults. Raises `ClusterFault` (`invalid`)."""
    try:
        value = load_toml(text)
    except TomlFault as fault:
        raise invalid(f"{name}: {fault}; {REMEDY}") from None
    _refuse_non_finite(value, (), text, name)
    try:
        return msgspec.convert(value, form)
    except msgspec.ValidationError as error:
        path, what = _explain(str(error))
        raise fault_at(text, name, path, what) from None


def fault_at(text: str, name: str, path: KeyPath, what: str) -> ClusterFault:
    """A fault at one key of a file: `file:line: key.path: what`."""
    line = line_of(text, path)
    place = name if line is None else f"{name}:{line}"
    key = dotted(path)[:TEXT_LIMIT]
    return invalid(f"{place}: {key}: {what[:TEXT_LIMIT]}" if path else f"{place}: {what[:TEXT_LIMIT]}")


def dotted(path: KeyPath) -> str:
    """`node[0].tier` for `("node", 0, "tier")`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def line_of(text: str, path: KeyPath) -> int | None:
    """The line, counted from 1, where `path` or the nearest of its parents is written; None when none is."""
    lines = _lines(text)
    for length in range(len(path), 0, -1):
        if path[:length] in lines:
            return lines[path[:length]]
    return None


def _lines(text: str) -> dict[KeyPath, int]:
    """Every header and key of the text with its line. Inline tables and arrays count as the line of their key."""
    found: dict[KeyPath, int] = {}
    counts: dict[KeyPath, int] = {}
    prefix: KeyPath = ()
    quote: str | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        if quote is not None:  # inside a string of several lines
            quote = None if quote in line else quote
            continue
        if (header := _HEADER.fullmatch(line)) and (parts := _parts(header[2])):
            prefix = _prefix(parts, header[1] == "[[", counts)
            found.setdefault(prefix, number)
            if isinstance(prefix[-1], int):
                found.setdefault(prefix[:-1], number)
        elif key := _KEY.match(line):
            path: KeyPath = (*prefix, *_parts(key[1]))
            for length in range(len(prefix) + 1, len(path) + 1):
                found.setdefault(path[:length], number)
            quote = next((mark for mark in ('"""', "'''") if line.count(mark) % 2), None)
    return found


def _prefix(parts: list[str], is_array: bool, counts: dict[KeyPath, int]) -> KeyPath:
    """The key path that a header opens; `counts` remembers how many tables each array of tables has so far."""
    path: KeyPath = ()
    for part in parts[:-1]:
        path = (*path, part)
        if path in counts:
            path = (*path, counts[path] - 1)
    path = (*path, parts[-1])
    if is_array:
        counts[path] = counts.get(path, 0) + 1
        return (*path, counts[path] - 1)
    return path


def _parts(dotted_key: str) -> list[str]:
    return [part.strip("\"'") for part in _PART.findall(dotted_key)]


def _explain(message: str) -> tuple[KeyPath, str]:
    """Split a message of msgspec into the key path and what is wrong there."""
    match = _AT.fullmatch(message)
    if match is None:
        return (), message
    path: KeyPath = tuple(
        int(index) if index.isdigit() else (name or index) for name, index in _STEP.findall(match["path"] or "")
    )
    what = match["what"]
    if named := _NAMED.search(what):
        path = (*path, named[1])
        what = "this key is not known here" if "unknown" in what else "this key is missing"
    return path, what[:1].lower() + what[1:]


def _refuse_non_finite(value: Any, path: KeyPath, text: str, name: str) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise fault_at(text, name, path, f"{value} is not a finite number")
    if isinstance(value, dict):
        for key, member in value.items():
            _refuse_non_finite(member, (*path, key), text, name)
    elif isinstance(value, list):
        for position, member in enumerate(value):
            _refuse_non_finite(member, (*path, position), text, name)
