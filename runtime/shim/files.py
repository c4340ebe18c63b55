"""Small files of a shim: flat JSON, written by hand because `json` costs memory, replaced whole and durably."""

from __future__ import annotations

import os

Plain = str | int | bool | None


def encode(values: dict[str, Plain]) -> bytes:
    """A flat JSON object on one line, ASCII."""
    words = []
    for name, value in values.items():
        if isinstance(value, str):
            text = '"' + "".join(_escape(one) for one in value) + '"'
        elif value is None or isinstance(value, bool):
            text = "null" if value is None else str(value).lower()
        else:
            text = str(value)
        words.append(f'"{name}":{text}')
    return ("{" + ",".join(words) + "}\n").encode()


def _escape(one: str) -> str:
    if one in '"\\':
        return "\\" + one
    if " " <= one <= "~":
        return one
    code = ord(one)
    if code > 0xFFFF:
        code -= 0x10000
        return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"
    return f"\\u{code:04x}"


def write_durably(name: str, data: bytes) -> None:
    """Replace a file of the working directory: old or new after a power cut, never a mixture."""
    fd = os.open(name + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, data)
        os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(name + ".new", name)
    sync_directory()


def sync_directory() -> None:
    folder = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


__all__ = ["Plain", "encode", "sync_directory", "write_durably"]
