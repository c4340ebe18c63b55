"""Every message is made of plain data: what one side packs is what the other unpacks, whatever it is written in."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

import msgspec
import pytest
from msgspec import inspect

import messages
from messages.base import Message, Record

LOSSY = (inspect.DateTimeType, inspect.DateType, inspect.TimeType, inspect.TimeDeltaType, inspect.DecimalType)
"""No form of their own in MessagePack, or one that loses the offset: times are whole numbers with their unit."""


def kinds(base: type) -> Iterator[type]:
    for kind in base.__subclasses__():
        if kind.__module__.startswith("messages."):
            yield kind
        yield from kinds(kind)


def all_types() -> list[type]:
    for module in pkgutil.walk_packages(messages.__path__, "messages."):
        importlib.import_module(module.name)
    return sorted({*kinds(Message), *kinds(Record)}, key=lambda kind: f"{kind.__module__}.{kind.__qualname__}")


def parts(kind: object, seen: set[object]) -> Iterator[inspect.Type]:
    """A type and all that it is made of, each struct once."""
    if isinstance(kind, inspect.StructType):
        if kind.cls in seen:
            return
        seen.add(kind.cls)
    if isinstance(kind, inspect.Type):
        yield kind
        for name in kind.__struct_fields__:
            value = getattr(kind, name)
            for one in value if isinstance(value, tuple) else (value,):
                yield from parts(one.type if isinstance(one, inspect.Field) else one, seen)


@pytest.mark.parametrize("kind", all_types(), ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_no_field_holds_a_time_without_its_unit_or_a_table_whose_keys_are_not_text(kind):
    if getattr(kind, "__parameters__", ()):
        return
    for part in parts(inspect.type_info(kind), set()):
        assert not isinstance(part, LOSSY), part
        if isinstance(part, inspect.DictType):
            assert isinstance(part.key_type, inspect.StrType | inspect.EnumType | inspect.LiteralType), part


class Aged(Message, frozen=True):
    at: int = 0
    anything: dict[str, int] = {}


@pytest.mark.parametrize(
    "value",
    [b"\xd6\xff\x00\x00\x00\x01", b"\xc7\x0c\xff" + b"\x00" * 4 + b"\x7f" + b"\xff" * 7],
    ids=["timestamp", "a timestamp beyond every date"],
)
def test_a_timestamp_is_no_number(value):
    wire = b"\x82\xa4type\xa4Aged\xa2at" + value
    with pytest.raises(msgspec.MsgspecError):
        msgspec.msgpack.decode(wire, type=Aged)


@pytest.mark.parametrize("keys", [b"\x81\x01\x02", b"\x81\x92\x01\x02\x03"], ids=["number", "array"])
def test_a_table_whose_keys_are_not_text_is_refused(keys):
    with pytest.raises(msgspec.MsgspecError, match=r"\$\.anything"):
        msgspec.msgpack.decode(b"\x82\xa4type\xa4Aged\xa8anything" + keys, type=Aged)
