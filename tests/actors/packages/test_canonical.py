"""Canonical JSON has one byte form, and the parser takes nothing that could mean two things."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.packages.canonical import DEPTH_LIMIT, INTEGER_LIMIT, JsonFault, canonical_json, parse_json

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
SCALARS = st.none() | st.booleans() | st.integers(-INTEGER_LIMIT, INTEGER_LIMIT) | TEXT
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4), max_leaves=20
)


def nested(levels: int) -> bytes:
    return b"[" * levels + b"]" * levels


@settings(max_examples=150)
@given(VALUES)
def test_every_value_comes_back_from_its_canonical_bytes(value: object) -> None:
    data = canonical_json(value)
    again = parse_json(data)
    assert again == value
    assert canonical_json(again) == data


@settings(max_examples=100)
@given(st.dictionaries(TEXT, SCALARS, max_size=6))
def test_keys_stand_in_the_order_of_their_utf8_bytes(value: dict[str, object]) -> None:
    keys = [key.encode() for key in json.loads(canonical_json(value))]
    assert keys == sorted(keys)


@settings(max_examples=200)
@given(st.binary(max_size=40) | st.text(alphabet='{}[]":,0123456789eE.-tfn\\u d8', max_size=40).map(str.encode))
def test_any_bytes_are_a_value_or_a_named_fault(data: bytes) -> None:
    try:
        value = parse_json(data)
    except JsonFault:
        return
    assert parse_json(canonical_json(value)) == value


def test_a_worked_example() -> None:
    value = {"b": [1, True, None], "a": {"é": "\n", "z": -(2**53) + 1}}
    assert canonical_json(value) == '{"a":{"z":-9007199254740991,"é":"\\n"},"b":[1,true,null]}'.encode()


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b'{"a":1,"a":2}', "'a' appears twice"),
        (b'{"run":1,"ru\\u006e":2}', "'run' appears twice"),
        (b'{"x":{"k":1,"k":1}}', "'k' appears twice"),
        (b"1.0", "not an integer"),
        (b"1e3", "not an integer"),
        (b"NaN", "not an integer"),
        (b"-Infinity", "not an integer"),
        (b"9007199254740992", "2^53"),
        (b"-9007199254740992", "2^53"),
        (b"18446744073709551616", "2^53"),
        (b"1" * 100_000, "2^53"),
        (b'"\\ud800"', "surrogate"),
        (b'{"\\udfff":1}', "surrogate"),
        (b'"\xff"', "not UTF-8 at byte 1"),
        (b"\xef\xbb\xbf{}", "not JSON"),
        (b"{} {}", "not JSON"),
        (b"", "not JSON"),
        (b"{'a':1}", "not JSON"),
        (nested(DEPTH_LIMIT + 2), "deeper than 32"),
        (nested(40), "deeper than 32"),
        (b"[" * 200_000, "deeper than 32"),
    ],
    ids=range(21),
)
def test_what_could_be_read_in_two_ways_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(JsonFault) as caught:
        parse_json(data)
    assert why in str(caught.value)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    "value", [1.5, {"a": [0.0]}, 2**53, {1: 2}, {("a",): 1}, b"x", {"a": {1, 2}}, "\ud800", json.loads(nested(40))]
)
def test_what_has_no_canonical_form_is_refused(value: object) -> None:
    with pytest.raises(JsonFault):
        canonical_json(value)


def test_true_is_not_one() -> None:
    assert canonical_json([True, 1]) == b"[true,1]"


def test_size_is_bounded_both_ways() -> None:
    assert parse_json(b'"abc"', 5) == "abc"
    with pytest.raises(JsonFault, match="larger than 4"):
        parse_json(b'"abc"', 4)
    with pytest.raises(JsonFault, match="at most 4"):
        canonical_json("abc", 4)


def test_thirty_two_levels_are_allowed() -> None:
    assert canonical_json(parse_json(nested(DEPTH_LIMIT + 1))) == nested(DEPTH_LIMIT + 1)
