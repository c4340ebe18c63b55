"""What a check says, and of what (design 11): every finding that needs attention names its remedy."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from runtime.cluster import Cluster


class Level(StrEnum):
    """`note`: worth knowing, nothing to be done. `attention`: something will not work as it should."""

    OK = "ok"
    NOTE = "note"
    ATTENTION = "attention"


@dataclass(frozen=True, kw_only=True)
class Finding:
    check: str
    level: Level
    text: str
    remedy: str = ""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is looked at: this machine, and a cluster directory if one is named.

    `folder` without `cluster`: the directory could not be read as a cluster.
    """

    folder: Path | None = None
    cluster: Cluster | None = None


Check = Callable[[Subject], Iterable[Finding]]


def ok(check: str, text: str) -> Finding:
    return Finding(check=check, level=Level.OK, text=text)


def note(check: str, text: str, remedy: str = "") -> Finding:
    return Finding(check=check, level=Level.NOTE, text=text, remedy=remedy)


def attention(check: str, text: str, remedy: str) -> Finding:
    return Finding(check=check, level=Level.ATTENTION, text=text, remedy=remedy)


__all__ = ["Check", "Finding", "Level", "Subject", "attention", "note", "ok"]
