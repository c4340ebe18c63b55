"""What every message keeps: bounds of numbers and texts, no unknown fields, its tag, its answer."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from messages.base import U64, U64_MAX, Message, Record, Request, answer_type, check_u64

encode, decode = msgspec.msgpack.encode, msgspec.msgpack.decode


class Part(Record, frozen=True):
    name: str = "x"
    tags: list[str] = []


class Count(Message, frozen=True):
    number: U64
    text: str = ""
    part: Part = Part()
    anything: Any = None


class Ask(Request[Count], frozen=True):
    pass


class Nested(Ask, frozen=True):
    pass


def wire(**fields: object) -> bytes:
    return encode({"type": "Count", "number": 1} | fields)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, U64_MAX), st.text(st.characters(codec="utf-8")), st.lists(st.text(max_size=5), max_size=3))
def test_what_is_said_is_read_again(number, text, tags):
    said = Count(number=number, text=text, part=Part(tags=[tag for tag in tags if tag.isprintable()]))
    assert decode(encode(said), type=Count) == said


@pytest.mark.parametrize("number", [0, 2**63 - 1, 2**63, U64_MAX])
def test_all_64_bits_travel(number):
    assert decode(encode(Count(number=number)), type=Count).number == number
    assert check_u64(number, "number") == number


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"number": -1}, r"\$\.number"),
        ({"number": -(2**63)}, r"\$\.number"),
        ({"number": 1.5}, r"\$\.number"),
        ({"number": True}, r"\$\.number"),
        ({"number": "1"}, r"\$\.number"),
        ({"number": None}, r"\$\.number"),
        ({"text": b"bytes"}, r"\$\.text"),
        ({"part": {"name": 1}}, r"\$\.part\.name"),
        ({"part": {"tags": ["a", 2]}}, r"\$\.part\.tags\[1\]"),
        ({"part": {"nmae": "x"}}, r"unknown field `nmae`.*\$\.part"),
        ({"extra": 1}, "unknown field `extra`"),
        ({"type": "Other"}, r"\$\.type"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused_naming_the_field(fields, named):
    with pytest.raises(msgspec.ValidationError, match=named):
        decode(wire(**fields), type=Count)


def test_a_message_without_a_field_or_its_tag_is_refused():
    with pytest.raises(msgspec.ValidationError, match="number"):
        decode(encode({"type": "Count"}), type=Count)
    with pytest.raises(msgspec.ValidationError, match="type"):
        decode(encode({"number": 1}), type=Count | Ask)


@pytest.mark.parametrize("number", [2**64, -1, -(2**63) - 1, True])
def test_a_number_from_json_or_toml_that_is_no_u64_is_refused_by_name(number):
    with pytest.raises(ValueError, match="seats"):
        check_u64(number, "seats")


@pytest.mark.parametrize(
    "value",
    [2**64, -(2**63) - 1, "\udcff", {"\udcff": 1}, {(1, "\udcff"): 1}, object()],
    ids=ascii,
)
def test_what_messagepack_cannot_carry_is_not_said(value):
    with pytest.raises((OverflowError, ValueError, TypeError)):
        encode(Count(number=1, anything=value))


@pytest.mark.parametrize(
    "bytes_",
    [b"", wire()[:-1], wire() + b"\xc0", b"\xc1", b"\xa1\xff", encode("x"), b"\x81\xa4type\xa1\xff"],
    ids=["empty", "truncated", "trailing", "reserved", "not utf8", "text", "tag not utf8"],
)
def test_bytes_that_are_no_message_are_refused(bytes_):
    with pytest.raises(msgspec.MsgspecError):
        decode(bytes_, type=Count)


@pytest.mark.parametrize("depth", [100, 100_000])
def test_depth_is_bounded_with_a_clean_error(depth):
    deep = wire(anything=0)[:-1] + b"\x91" * depth + b"\xc0"
    try:
        decode(deep, type=Count)
    except RecursionError:
        assert depth > 500
    else:
        assert depth == 100


def test_a_message_cannot_be_changed_and_its_defaults_are_its_own():
    one, other = Count(number=1), Count(number=2)
    with pytest.raises(AttributeError):
        one.number = 2
    assert Part().tags is not Part().tags
    assert one.part == other.part


def test_a_record_leaves_out_what_is_at_its_default():
    assert encode(Part()) == b"\x80"
    assert decode(b"\x80", type=Part) == Part()


def test_a_question_names_its_answer():
    assert answer_type(Ask) is answer_type(Nested) is Count
    with pytest.raises(TypeError, match="answer"):
        answer_type(Request)
