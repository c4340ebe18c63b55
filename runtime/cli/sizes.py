"""Sizes in bytes as people write them, `64KiB`, and as they read them, `64.0 KiB`."""

from __future__ import annotations

import re

import typer

_UNITS = {"": 1, "b": 1, "kib": 1024, "mib": 1024**2, "gib": 1024**3}
_SIZE = re.compile(r"([0-9]{1,20}) ?([A-Za-z]*)", re.ASCII)
_LARGEST = 2**63 - 1


def parse_size(text: str) -> int:
    """Bytes, from 1. Raises `typer.BadParameter`, for KB and MB too, by which some mean 1000 and some 1024."""
    match = _SIZE.fullmatch(text.strip())
    factor = _UNITS.get(match[2].lower()) if match is not None else None
    if match is None or factor is None:
        raise typer.BadParameter(
            f"{text!r} is no size: give bytes, or a whole number with KiB, MiB or GiB, as in 64KiB"
        )
    size = int(match[1]) * factor
    if not 1 <= size <= _LARGEST:
        raise typer.BadParameter(f"{text!r} is out of range: 1 byte to {_LARGEST} bytes")
    return size


def size_text(size: float) -> str:
    """At most four digits and a unit; whole bytes below 1 KiB."""
    if size < 1024:
        return f"{size:.0f} B"
    units: tuple[str, ...] = ("KiB", "MiB", "GiB")
    size /= 1024
    while size >= 999.95 and len(units) > 1:
        size, units = size / 1024, units[1:]
    return f"{size:.1f} {units[0]}"


__all__ = ["parse_size", "size_text"]
