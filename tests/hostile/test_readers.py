"""Bytes from outside: every reader accepts, or raises its own typed fault; in bounded time, memory and words.

The readers are those of `tests/fuzz/targets.py`, which the fuzzer explores further than a test has time for.
"""

from __future__ import annotations

import json
import re
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import msgpack
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.fuzz.targets import TARGETS, Target

CPU_LIMIT_S = 1.5
"""Most processor time for one input of `BOMB_BYTES`; a cost that grows with the square of the size takes longer."""
BOMB_BYTES = 24 * 1024
MEMORY_PER_BYTE = 128
"""A JSON list or a TOML table of two bytes takes some 60 bytes each, and a reader may hold it twice."""
MEMORY_FLOOR_BYTES = 256 * 1024
STEPS = 150

each_target = pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
quick = settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))


@each_target
def test_a_valid_example_is_accepted(target: Target) -> None:
    for seed in target.seeds():
        assert target.run(seed) is None


@each_target
@quick
@given(data=st.binary(max_size=200))
@example(data=b"")
@example(data=b"\xff\xfe[\x00]\x00")
def test_any_bytes_are_refused_by_name_at_worst(target: Target, data: bytes) -> None:
    target.run(data)


@each_target
def test_a_valid_example_cut_short_anywhere_is_refused_by_name_at_worst(target: Target) -> None:
    for seed in target.seeds():
        for length in range(0, len(seed), max(1, len(seed) // STEPS)):
            target.run(seed[:length])


@each_target
@quick
@given(data=st.data())
def test_a_valid_example_with_damage_is_refused_by_name_at_worst(target: Target, data: st.DataObject) -> None:
    mutated = bytearray(data.draw(st.sampled_from(target.seeds())))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, max(0, len(mutated) - 1)))
        match data.draw(st.sampled_from(["flip", "insert", "cut", "repeat"])):
            case "flip" if mutated:
                mutated[at] ^= 1 << data.draw(st.integers(0, 7))
            case "insert":
                mutated[at:at] = data.draw(st.binary(min_size=1, max_size=9))
            case "cut":
                del mutated[at : at + data.draw(st.integers(1, 40))]
            case _:
                mutated[at:at] = mutated[at : at + data.draw(st.integers(1, 200))]
    target.run(bytes(mutated))


ODD = st.sampled_from([2**63 - 1, 2**63, 2**64 - 1, -(2**63), -1, 0, "", "\0", "../x", "n-0", b"", True, 1e308])
LEAVES = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=9) | ODD
VALUES = st.recursive(
    LEAVES | st.binary(max_size=40) | st.just(msgpack.Timestamp(1, 2)) | st.just(msgpack.ExtType(5, b"x")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container inside `value` with each of its keys."""
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from places(value[key])


def structured(target: Target) -> list[tuple[bytes, Any, Callable[[Any], bytes]]]:
    """The valid examples that are MessagePack or JSON: what stands in front, the value, and its encoder."""
    found: list[tuple[bytes, Any, Callable[[Any], bytes]]] = []
    for seed in target.seeds():
        with suppress(ValueError):
            value = json.loads(seed)
            found.append((b"", value, lambda changed: json.dumps(changed, default=repr).encode()))
            continue
        for front in (0, 1, 96):  # a message has its type in front, a signed object key and signature
            with suppress(ValueError, msgpack.UnpackException):
                value = msgpack.unpackb(seed[front:])
                if isinstance(value, dict | list):
                    found.append((seed[:front], value, msgpack.packb))
    return found


STRUCTURED = {name: target for name, target in TARGETS.items() if structured(target)}


@pytest.mark.parametrize("target", STRUCTURED.values(), ids=STRUCTURED)
@quick
@given(data=st.data())
def test_a_valid_example_with_another_value_in_one_place_is_refused_by_name_at_worst(
    target: Target, data: st.DataObject
) -> None:
    front, value, encode = data.draw(st.sampled_from(structured(target)))
    if all_places := list(places(value)):
        container, key = data.draw(st.sampled_from(all_places))
        if isinstance(container, dict) and data.draw(st.integers(0, 4)) == 0:
            del container[key]
        else:
            container[key] = data.draw(VALUES)
    target.run(front + encode(value))


def bombs(size: int) -> dict[str, bytes]:
    """Small grammars that cost a careless reader more than their size."""
    many = range(size // 10)
    return {
        "nested JSON lists": b"[" * size,
        "closed nested JSON lists": b"[" * (size // 2) + b"]" * (size // 2),
        "nested JSON objects": b'{"a":' * (size // 5),
        "nested MessagePack arrays": b"\x91" * size,
        "nested MessagePack maps": b"\x81\xa1a" * (size // 3),
        "MessagePack array that claims more than there is": b"\xdd\xff\xff\xff\xff" + b"\xc0" * size,
        "MessagePack text that claims more than there is": b"\xdb\xff\xff\xff\xff" + b"a" * size,
        "empty lists": b"[" + b"[]," * (size // 3) + b"[]]",
        "empty objects": b"[" + b"{}," * (size // 3) + b"{}]",
        "many members": b"{" + b",".join(b'"%d":0' % number for number in many) + b"}",
        "digits": b"9" * size,
        "digits in TOML": b"format = " + b"9" * size,
        "hexadecimal digits in TOML": b"format = 0x" + b"f" * size,
        "hexadecimal digits in TOML, negative threshold": b"threshold = 0x" + b"f" * 5000,
        "dotted key in TOML": b"a" + b".a" * (size // 2) + b" = 1",
        "dotted header in TOML": b"[a" + b".a" * (size // 2) + b"]\nb.c.d = 1",
        "many dotted keys in TOML": b"\n".join(b"a%d" % number + b".a" * 15 + b"=1" for number in many)[:size],
        "many long dotted keys in TOML": b"\n".join(b"a%d" % number + b".a" * 60 + b"=1" for number in many)[:size],
        "nested TOML lists": b"a = " + b"[" * size,
        "nested TOML tables": b"a = " + b"{a=" * (size // 3),
        "deep dotted tables in TOML": b"a = {" + b"a.a.a.a.a.a.a.a={" * (size // 17),
        "TOML lists that look like headers": b"format = [\n[" + b" " * size + b"\n],\n[{}]\n]",
        "many TOML tables": b"".join(b"[t%d]\n" % number for number in many),
        "many TOML tables in an array": b"[[node]]\n" * (size // 9),
        "many permits": b"[[permit]]\n" * (size // 11),
        "escapes": b'"' + b"\\u0041" * (size // 6) + b'"',
        "spaces": b" " * size,
        "line ends": b"\n" * size,
        "zeros": b"\0" * size,
        "lone surrogates": b'{"payload":"\\ud800","public_key":"\\ud800","signature":"\\ud800"}',
        "long key over a long list": b'{"' + b"k" * (size // 2) + b'":[' + b"1," * (size // 4) + b"1]}",
    }


@each_target
def test_what_grows_in_a_careless_reader_costs_little(target: Target) -> None:
    for name, data in bombs(BOMB_BYTES).items():
        assert cpu_seconds(target, data) < CPU_LIMIT_S, name
    for name, data in bombs(BOMB_BYTES // 4).items():
        assert peak_bytes(target, data) < MEMORY_PER_BYTE * len(data) + MEMORY_FLOOR_BYTES, name


def test_a_long_key_costs_its_length_once_and_not_per_value_below_it() -> None:
    data = b'{"' + b"k" * 200_000 + b'":[' + b"1," * 100_000 + b"1]}"
    assert cpu_seconds(TARGETS["canonical"], data) < CPU_LIMIT_S


def peak_bytes(target: Target, data: bytes) -> int:
    tracemalloc.start()
    try:
        target.run(data)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def cpu_seconds(target: Target, data: bytes) -> float:
    begun = time.process_time()
    target.run(data)
    return time.process_time() - begun


def puffed_up(seed: bytes) -> Iterator[bytes]:
    """The text `seed` with one text or number of it made large."""
    for found in re.finditer(rb'"[^"\n]*"|\b\d+\b', seed):
        if found[0].startswith(b'"'):
            fillings = [sign * (BOMB_BYTES // 2) for sign in (b" ", b"a", b".")]
            pem = b"-----BEGIN PUBLIC KEY-----" + b" " * (BOMB_BYTES // 2)
            replacements = [b'"' + filling + b'"' for filling in [*fillings, pem, b"-----END PUBLIC KEY-----\\ud800"]]
        else:
            replacements = [b"9" * 4000, b"9" * 5000, b"0x" + b"f" * 5000, b"-1", b"1e400", b"nan"]
        for replacement in replacements:
            yield seed[: found.start()] + replacement + seed[found.end() :]


TEXTS = {name: target for name, target in TARGETS.items() if all(seed.isascii() for seed in target.seeds())}


@pytest.mark.parametrize("target", TEXTS.values(), ids=TEXTS)
def test_a_member_of_any_size_is_refused_in_few_words(target: Target) -> None:
    for puffed in puffed_up(target.seeds()[0]):
        assert cpu_seconds(target, puffed) < CPU_LIMIT_S
