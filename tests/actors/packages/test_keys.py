"""Which keys may be trusted, and when a signature holds (G 4.5, N78, N94, N109)."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from nacl.bindings import crypto_sign, crypto_sign_seed_keypair

from actors.packages.fault import PackageFault
from actors.packages.keys import (
    TRUST_LIMIT_BYTES,
    TRUST_SCHEMA,
    TrustAnchors,
    TrustKey,
    check_public_key,
    key_id_of,
    parse_public_key,
    parse_trust,
    render_trust,
    verifies,
)
from messages.packages import PackageErrorCode

VECTORS = Path(__file__).resolve().parents[3] / ".." / "shared" / "vectors" / "ed25519" / "wycheproof-151.json"
GROUP_ORDER = 2**252 + 27742317777372353535851937790883648493

SMALL_ORDER = {
    "identity": "01" + "00" * 31,
    "order 2": "ec" + "ff" * 30 + "7f",
    "order 4": "00" * 32,
    "order 4, odd": "00" * 31 + "80",
    "order 8, a": "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "order 8, a odd": "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
    "order 8, b": "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    "order 8, b odd": "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
    "identity, sign set": "01" + "00" * 30 + "80",
    "order 2, sign set": "ec" + "ff" * 31,
    "p": "ed" + "ff" * 30 + "7f",
    "p, sign set": "ed" + "ff" * 31,
    "p + 1": "ee" + "ff" * 30 + "7f",
    "p + 1, sign set": "ee" + "ff" * 31,
}


def pem(public_key: bytes, prefix: str = "302a300506032b6570032100") -> str:
    body = base64.b64encode(bytes.fromhex(prefix) + public_key).decode()
    return f"-----BEGIN PUBLIC KEY-----\n{body}\n-----END PUBLIC KEY-----\n"


@pytest.mark.parametrize("encoding", SMALL_ORDER.values(), ids=SMALL_ORDER)
def test_no_key_of_small_order_is_enrolled_in_any_encoding(encoding: str) -> None:
    raw = bytes.fromhex(encoding)
    for text in (encoding, pem(raw)):
        with pytest.raises(PackageFault, match="prime-order") as caught:
            TrustAnchors.of([TrustKey(key_id="k", public_key=text)])
        assert caught.value.code is PackageErrorCode.KEY_INVALID
    fixed_signature = bytes.fromhex(SMALL_ORDER["identity"]) + bytes(32)
    assert not verifies(raw, b"any message", fixed_signature)


@pytest.mark.parametrize("length", [0, 31, 33, 64])
def test_a_key_of_another_length_is_refused(length: int) -> None:
    with pytest.raises(PackageFault, match=f"has {length} bytes"):
        check_public_key(bytes(length))
    assert not verifies(bytes(length), b"", bytes(64))


def test_a_key_beside_the_curve_is_refused() -> None:
    with pytest.raises(PackageFault, match="prime-order"):
        parse_public_key("02" + "00" * 31)


def test_a_key_is_read_from_hex_and_from_pem(seed: bytes) -> None:
    public_key, _ = crypto_sign_seed_keypair(seed)
    assert parse_public_key(public_key.hex()) == public_key
    assert parse_public_key(pem(public_key)) == public_key


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ab" * 31,
        "ab" * 33,
        "AB" * 32,
        "-----BEGIN PUBLIC KEY-----\n!!!!\n-----END PUBLIC KEY-----\n",
        "-----BEGIN PUBLIC KEY-----\nAAA\n-----END PUBLIC KEY-----\n",
        "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
        pem(bytes(32), prefix="302a300506032b656e032100"),
        pem(bytes(31)),
    ],
    ids=range(9),
)
def test_other_texts_are_no_key(text: str) -> None:
    with pytest.raises(PackageFault) as caught:
        parse_public_key(text)
    assert caught.value.code is PackageErrorCode.KEY_INVALID


def test_a_trust_file_comes_back(trust: Callable[..., TrustKey], seed: bytes, other_seed: bytes) -> None:
    keys = [trust(seed), trust(other_seed, "workshop")]
    anchors = parse_trust(render_trust(keys))
    assert anchors.by_key == {keys[0].public_key: keys[0].key_id, keys[1].public_key: "workshop"}
    assert keys[0].key_id == key_id_of(bytes.fromhex(keys[0].public_key))


def test_a_key_counts_by_its_material(trust: Callable[..., TrustKey], seed: bytes, other_seed: bytes) -> None:
    again = TrustKey(key_id="other-name", public_key=pem(bytes.fromhex(trust(seed).public_key)))
    with pytest.raises(PackageFault, match="listed twice"):
        TrustAnchors.of([trust(seed), again])
    with pytest.raises(PackageFault, match="names two keys"):
        TrustAnchors.of([trust(seed, "k"), trust(other_seed, "k")])
    with pytest.raises(PackageFault, match="token"):
        TrustAnchors.of([trust(seed, "no spaces here")])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b'{"schema":"sennit.workload-trust.v1"}',
        b'{"schema":"sennit.workload-trust.v2","operator_keys":[]}',
        b'{"schema":"sennit.workload-trust.v1","operator_keys":[],"more":1}',
        b'{"schema":"sennit.workload-trust.v1","operator_keys":[],"operator_keys":[]}',
        b'{"schema":"sennit.workload-trust.v1","operator_keys":[{"key_id":"a"}]}',
        b'{"schema":"sennit.workload-trust.v1","operator_keys":[{"key_id":"a","public_key":1}]}',
        b" " * (TRUST_LIMIT_BYTES + 1),
    ],
    ids=range(9),
)
def test_a_malformed_trust_file_is_refused(data: bytes) -> None:
    with pytest.raises(PackageFault) as caught:
        parse_trust(data)
    assert caught.value.code is PackageErrorCode.KEY_INVALID


def test_an_empty_trust_file_trusts_nobody() -> None:
    data = json.dumps({"schema": TRUST_SCHEMA, "operator_keys": []}).encode()
    assert parse_trust(data).by_key == {}


def test_a_malleable_signature_is_refused(seed: bytes) -> None:
    public_key, secret_key = crypto_sign_seed_keypair(seed)
    signature = crypto_sign(b"text", secret_key)[:64]
    assert verifies(public_key, b"text", signature)
    shifted = int.from_bytes(signature[32:], "little") + GROUP_ORDER
    assert not verifies(public_key, b"text", signature[:32] + shifted.to_bytes(32, "little"))


def test_a_signature_with_a_point_of_small_order_is_refused(seed: bytes) -> None:
    public_key, _ = crypto_sign_seed_keypair(seed)
    for encoding in SMALL_ORDER.values():
        assert not verifies(public_key, b"text", bytes.fromhex(encoding) + bytes(32))


@pytest.mark.skipif(not VECTORS.exists(), reason="the public Ed25519 vectors are not beside this checkout")
def test_public_vectors_are_judged_as_they_say() -> None:
    groups = json.loads(VECTORS.read_text())["testGroups"]
    seen = 0
    for group in groups:
        public_key = bytes.fromhex(group["publicKey"]["pk"])
        for case in group["tests"]:
            verdict = verifies(public_key, bytes.fromhex(case["msg"]), bytes.fromhex(case["sig"]))
            assert verdict == (case["result"] == "valid"), f"case {case['tcId']}: {case['comment']}"
            seen += 1
    assert seen == 151
