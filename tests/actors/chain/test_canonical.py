"""One value, one byte form: what the encoder of chain payloads writes and what it refuses."""

import json
from enum import StrEnum

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.chain.canonical import DEPTH_LIMIT, INTEGER_LIMIT, CanonicalFault, check_canonical, decode, encode


class Colour(StrEnum):
    RED = "red"


def nested(depth):
    value = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (0.1, "0.1"),
        (100.0, "100.0"),
        (-0.0, "0.0"),
        (1e300, "1e+300"),
        (INTEGER_LIMIT, "9007199254740991"),
        (Colour.RED, '"red"'),
        ({"b": 1, "a": [2, {"d": None, "c": "é"}]}, '{"a":[2,{"c":"é","d":null}],"b":1}'),
        ({"\U0001f600": 1, "\uffff": 2}, '{"\uffff":2,"\U0001f600":1}'),
        ("a\n\"\\\x00/", '"a\\n\\"\\\\\\u0000/"'),
        ((1, 2), "[1,2]"),
    ],
)  # fmt: skip
def test_a_value_has_this_form(value, text):
    assert encode(value) == text.encode()


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (float("nan"), "finite"),
        (float("inf"), "finite"),
        ({"a": [1, float("-inf")]}, r"\$\.a\[1\]"),
        (INTEGER_LIMIT + 1, "give it as text"),
        (-INTEGER_LIMIT - 1, "give it as text"),
        ({"edge": 2**64 - 1}, r"\$\.edge"),
        ("\ud800", "surrogate"),
        ({"\udfff": 1}, "surrogate"),
        ({1: 2}, "not text"),
        (b"bytes", "no JSON form"),
        ({1, 2}, "no JSON form"),
        (nested(DEPTH_LIMIT + 1), "deeper"),
    ],
)
def test_a_value_without_a_form_is_refused_by_name(value, why):
    with pytest.raises(CanonicalFault, match=why):
        encode(value)


def test_depth_is_allowed_up_to_the_limit():
    assert decode(encode(nested(DEPTH_LIMIT))) == nested(DEPTH_LIMIT)


def test_size_is_bounded_and_told_from_shape():
    assert encode("abc", limit_bytes=5) == b'"abc"'
    with pytest.raises(CanonicalFault) as refused:
        encode("abcd", limit_bytes=5)
    assert refused.value.too_large
    with pytest.raises(CanonicalFault) as refused:
        encode(b"")
    assert not refused.value.too_large


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b'{"a":1,"a":2}', "twice"),
        (b'{"a":1,"\\u0061":2}', "twice"),
        (b"[NaN]", "finite"),
        (b"-Infinity", "finite"),
        (b"1e999", "finite"),
        (b'"\\ud800"', "surrogate"),
        (b'"\xff"', "UTF-8"),
        (b"\xef\xbb\xbf{}", "not JSON"),
        (b"{} {}", "not JSON"),
        (b"", "not JSON"),
        (b"9007199254740992", "text"),
        (b"9" * 100_000, "text"),
        (b"[" * 100_000, "deeper"),
        (b"[" * 40 + b"]" * 40, "deeper"),
    ],
)
def test_text_that_two_readers_could_read_differently_is_refused(text, why):
    with pytest.raises(CanonicalFault, match=why):
        decode(text)


@pytest.mark.parametrize("text", [b'{"b":1,"a":2}', b'{"a": 1}', b"-0.0", b'"\\u00e9"', b"1E2", b"1.00"])
def test_text_in_another_form_is_not_canonical(text):
    decode(text)
    with pytest.raises(CanonicalFault, match="canonical form"):
        check_canonical(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b'{"a":1,"a":1}', "twice"),
        (b'{"a":-0.0}', "canonical form"),
        (b'{"a":9007199254740992}', "text"),
        (b"[NaN]", "finite"),
        (b"1e999", "finite"),
        (b'"\\ud800"', "surrogate"),
        (b"[" * 33 + b"1" + b"]" * 33, "deeper"),
        (b"[" * 34 + b"]" * 34, "deeper"),
        (b'{"a":' * 33 + b"1" + b"}" * 33, "deeper"),
        (b"[" * 100_000, "deeper"),
    ],
)
def test_the_short_way_lets_nothing_pass_that_the_long_one_refuses(text, why):
    with pytest.raises(CanonicalFault, match=why):
        check_canonical(text)


@pytest.mark.parametrize("text", [b"[" * 32 + b"1" + b"]" * 32, b"[" + b",".join([b"[]"] * 99) + b"]"])
def test_many_brackets_are_not_depth(text):
    check_canonical(text)


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-INTEGER_LIMIT, INTEGER_LIMIT)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=12,
)


@given(plain)
@settings(max_examples=150, deadline=None)
def test_what_is_encoded_reads_back_and_is_canonical(value):
    data = encode(value)
    assert decode(data) == value
    assert json.loads(data) == value
    assert encode(decode(data)) == data
    check_canonical(data)


@given(st.dictionaries(st.text(max_size=5), st.integers(0, 9), max_size=6), st.randoms())
@settings(max_examples=50, deadline=None)
def test_the_order_in_which_members_were_given_does_not_show(members, random):
    pairs = list(members.items())
    random.shuffle(pairs)
    assert encode(dict(pairs)) == encode(members)
