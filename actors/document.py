"""Durable state as one JSON document of a known form and version (design 3): written whole, read strictly."""

from __future__ import annotations

from typing import Protocol, TypeVar

import msgspec

_encode = msgspec.msgpack.Encoder().encode


class StateDamaged(ValueError):
    """The document is not one this version wrote; it is left untouched."""


class Document(Protocol):
    """What every form begins with."""

    @property
    def version(self) -> int: ...


D = TypeVar("D", bound=Document)


def encode_document(document: msgspec.Struct) -> bytes:
    """Indented, so that a person can read it where it lies."""
    return msgspec.json.format(msgspec.json.encode(document), indent=1)


def decode_document(data: bytes, form: type[D], version: int, whose: str) -> D:
    """The document, its form and version checked. Raises `StateDamaged`, which names `whose` state it is."""
    try:
        document = msgspec.json.decode(data, type=form)
        _encode(document)  # JSON may hold numbers that no message can carry
    except (msgspec.MsgspecError, OverflowError, ValueError, RecursionError) as error:
        raise StateDamaged(f"the state of {whose} cannot be read: {str(error)[:200]}") from None
    if document.version != version:
        raise StateDamaged(f"the state of {whose} has version {document.version}, this reads {version}")
    return document


__all__ = ["StateDamaged", "decode_document", "encode_document"]
