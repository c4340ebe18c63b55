"""The signed envelope: what is refused, in which order, and whose signature counts (G 4.2, 4.3, 4.6; K1 to K19)."""

from __future__ import annotations

import json
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nacl.bindings import crypto_sign, crypto_sign_seed_keypair

from actors.packages.canonical import canonical_json
from actors.packages.fault import PackageFault
from actors.packages.keys import TrustAnchors, TrustKey
from actors.packages.manifest import (
    ATTESTATION_LIMIT,
    DOMAIN,
    SCHEMA,
    SIGNATURE_LIMIT,
    parse_manifest,
    render_manifest,
    sign_manifest,
    verify_signatures,
)
from messages.packages import FILE_LIMIT_BYTES, MANIFEST_LIMIT_BYTES, Arch, PackageErrorCode

Code = PackageErrorCode
DIGEST = "a" * 64


def edited(manifest: bytes, edit: Callable[[dict[str, Any]], object]) -> bytes:
    value = json.loads(manifest)
    edit(value)
    return json.dumps(value).encode()


def code_of(manifest: bytes, anchors: TrustAnchors | None = None) -> PackageErrorCode:
    with pytest.raises(PackageFault) as caught:
        verify_signatures(parse_manifest(manifest), anchors or TrustAnchors({}))
    assert len(caught.value.text) < 400
    return caught.value.code


def test_a_signed_package_verifies(package: Any) -> None:
    manifest = parse_manifest(package.manifest)
    (signer,) = verify_signatures(manifest, package.anchors)
    assert (manifest.body.id, manifest.body.version) == ("air", "1.2.0")
    assert manifest.body.binaries[Arch.ARMV7].path == "armv7/cog-air"
    assert signer.key_id == manifest.signatures[0].key_id
    assert manifest.manifest_hash == sha256(package.manifest).hexdigest()
    assert package.manifest.endswith(b"}\n")


def test_signed_are_the_domain_tag_and_the_canonical_statement(package: Any, seed: bytes) -> None:
    manifest = parse_manifest(package.manifest)
    body = json.loads(package.manifest)["body"]
    statement = canonical_json({"schema": SCHEMA, "kind": "cog", "body": body})
    public_key, secret_key = crypto_sign_seed_keypair(seed)
    signature = crypto_sign(b"sennit.workload-manifest.v1\0" + statement, secret_key)[:64]
    assert manifest.signatures[0].signature == signature.hex()
    assert manifest.package_id == sha256(statement).hexdigest()
    assert DOMAIN.endswith(b"\0")
    assert manifest.signatures[0].public_key == public_key.hex()


def test_a_second_signature_keeps_the_package_id(package: Any, trust: Any, seed: bytes, other_seed: bytes) -> None:
    twice = sign_manifest(package.manifest, other_seed)
    one, two = parse_manifest(package.manifest), parse_manifest(twice)
    assert two.package_id == one.package_id
    assert two.manifest_hash != one.manifest_hash
    both = TrustAnchors.of([trust(seed), trust(other_seed)])
    assert len(verify_signatures(two, both)) == 2


def test_signing_again_with_the_same_key_replaces_its_entry(package: Any, seed: bytes) -> None:
    again = parse_manifest(sign_manifest(package.manifest, seed, "renamed"))
    assert [entry.key_id for entry in again.signatures] == ["renamed"]


def test_unsigned_unknown_edited_and_misnamed_are_told_apart(make_package: Any, trust: Any, other_seed: bytes) -> None:
    package = make_package()
    unsigned = make_package(signed=False)
    newer = edited(package.manifest, lambda value: value["body"].update(version="1.3.0"))
    misnamed = TrustAnchors(dict.fromkeys(package.anchors.by_key, "somebody"))
    codes = [
        code_of(unsigned.manifest, package.anchors),
        code_of(package.manifest, TrustAnchors.of([trust(other_seed)])),
        code_of(newer, package.anchors),
        code_of(package.manifest, misnamed),
    ]
    assert codes == [Code.MISSING_SIGNATURE, Code.UNTRUSTED_SIGNER, Code.BAD_SIGNATURE, Code.BAD_SIGNATURE]


def test_an_untrusted_signature_beside_a_trusted_one_does_not_matter(package: Any, other_seed: bytes) -> None:
    both = sign_manifest(package.manifest, other_seed)
    assert len(verify_signatures(parse_manifest(both), package.anchors)) == 1


def test_a_forged_signature_of_a_pinned_key_is_fatal_beside_a_good_one(
    package: Any, trust: Any, seed: bytes, other_seed: bytes
) -> None:
    both = sign_manifest(package.manifest, other_seed)
    forged = edited(both, lambda value: value["signatures"][0].update(signature="0" * 128))
    assert code_of(forged, TrustAnchors.of([trust(seed), trust(other_seed)])) is Code.BAD_SIGNATURE


@pytest.mark.parametrize(
    "change",
    [{"public_key": "zz"}, {"public_key": "AB" * 32}, {"signature": "short"}, {"signature": "A" * 128}],
    ids=["key text", "key in capitals", "signature text", "signature in capitals"],
)
def test_garbage_neither_admits_nor_vetoes(package: Any, other_seed: bytes, change: dict[str, str]) -> None:
    alone = edited(package.manifest, lambda value: value["signatures"][0].update(change))
    assert code_of(alone, package.anchors) is Code.UNTRUSTED_SIGNER

    def put_before(value: dict[str, Any]) -> None:
        value["signatures"].insert(0, {**value["signatures"][0], **change})

    assert verify_signatures(parse_manifest(edited(package.manifest, put_before)), package.anchors)


def test_another_algorithm_is_refused_even_beside_a_good_signature(package: Any) -> None:
    def add(value: dict[str, Any]) -> None:
        value["signatures"].append({**value["signatures"][0], "algorithm": "none"})

    assert code_of(edited(package.manifest, add), package.anchors) is Code.MANIFEST_INVALID


def test_one_key_counts_once(package: Any) -> None:
    doubled = edited(package.manifest, lambda value: value["signatures"].append(value["signatures"][0]))
    assert len(verify_signatures(parse_manifest(doubled), package.anchors)) == 1


def test_a_pinned_id_on_another_key_admits_nothing(make_package: Any, seed: bytes, other_seed: bytes) -> None:
    package = make_package(signed=False)
    (pinned_id,) = package.anchors.by_key.values()
    borrowed = sign_manifest(package.manifest, other_seed, pinned_id)
    assert code_of(borrowed, package.anchors) is Code.UNTRUSTED_SIGNER


def test_untrusted_signers_are_named(package: Any) -> None:
    with pytest.raises(PackageFault, match=r"saw: ed25519:[0-9a-f]{16}"):
        verify_signatures(parse_manifest(package.manifest), TrustAnchors({}))


def set_body(**members: object) -> Callable[[dict[str, Any]], object]:
    return lambda value: value["body"].update(members)


def set_file(**members: object) -> Callable[[dict[str, Any]], object]:
    return lambda value: value["body"]["binaries"]["armv7"].update(members)


def attest(kind: str, path: str, count: int = 1) -> Callable[[dict[str, Any]], object]:
    files = [{"kind": kind, "file": {"path": path + "x" * n, "size": 1, "sha256": DIGEST}} for n in range(count)]
    return set_body(attestations=files)


REFUSED: list[tuple[str, Callable[[dict[str, Any]], object], str]] = [
    ("other schema", lambda value: value.update(schema="other"), "schema 'other'"),
    ("long schema", lambda value: value.update(schema="s" * 500), "schema"),
    ("kind with a blank", lambda value: value.update(kind="a b"), "not a token"),
    ("long kind", lambda value: value.update(kind="k" * 33), "not a token"),
    ("unknown kind", lambda value: value.update(kind="project"), 'unknown workload kind "project"'),
    ("unknown member", lambda value: value.update(more=1), "unknown field `more`"),
    ("Kind in capitals", lambda value: value.update(Kind="cog"), "unknown field `Kind`"),
    ("no body", lambda value: value.pop("body"), "missing required field `body`"),
    ("body is a list", lambda value: value.update(body=[]), "Expected `object`"),
    ("no signatures", lambda value: value.pop("signatures"), "missing required field"),
    ("odd key id", lambda value: value["signatures"][0].update(key_id="a b"), "key id"),
    ("empty key id", lambda value: value["signatures"][0].update(key_id=""), "key id"),
    ("unknown signature member", lambda value: value["signatures"][0].update(note=""), "unknown field `note`"),
    ("id in capitals", set_body(id="Air"), "id 'Air'"),
    ("id with two hyphens", set_body(id="a--b"), "id 'a--b'"),
    ("id too long", set_body(id="a" * 65), "id 'a"),
    ("empty version", set_body(version=""), "version ''"),
    ("version is a number", set_body(version=1), "Expected `str`"),
    ("unknown body member", set_body(redistributable=True), "unknown field"),
    ("spelled-out default", set_body(attestations=[]), "left out when absent"),
    ("null member", lambda value: value["body"]["source"].update(repo=None), "left out when absent"),
    ("no payload", set_body(binaries={}), "no payload"),
    ("unknown architecture", lambda value: value["body"]["binaries"].update(mips={}), "Invalid enum value"),
    ("payload elsewhere", set_file(path="armv7/cog-other"), "expected armv7/cog-air"),
    ("payload of another architecture", set_file(path="aarch64/cog-air"), "listed twice"),
    ("path upwards", set_file(path="../../etc/passwd"), 'unsafe path "../../etc/passwd"'),
    ("absolute path", set_file(path="/etc/passwd"), "unsafe path"),
    ("empty component", set_file(path="armv7//cog-air"), "unsafe path"),
    ("dot component", set_file(path="armv7/./cog-air"), "unsafe path"),
    ("backslash", set_file(path="armv7\\cog-air"), "unsafe path"),
    ("line end in path", set_file(path="armv7/cog-air\n"), "unsafe path"),
    ("long path", set_file(path="a/" * 128 + "b"), "unsafe path"),
    ("cog.toml elsewhere", lambda value: value["body"]["cog_toml"].update(path="cog2.toml"), "expected cog.toml"),
    ("negative size", set_file(size=-1), "allowed are"),
    ("size as a boolean", set_file(size=True), "Expected `int`"),
    ("size as text", set_file(size="1"), "Expected `int`"),
    ("size too large", set_file(size=FILE_LIMIT_BYTES + 1), "allowed are"),
    ("digest in capitals", set_file(sha256="A" * 64), "64 lower hex"),
    ("short digest", set_file(sha256="a" * 63), "64 lower hex"),
    ("file with more members", set_file(mode=1), "unknown field"),
    ("no origin", set_body(source={"repo": "r"}), "neither commit nor release_url"),
    ("short commit", set_body(source={"commit": "abcdef"}), "7 to 64"),
    ("commit in capitals", set_body(source={"commit": "ABCDEF0"}), "7 to 64"),
    ("control character", set_body(source={"release_url": "a\u0007"}), "control characters"),
    ("empty origin", set_body(source={"release_url": ""}), "1 to 512"),
    ("long origin", set_body(source={"release_url": "é" * 257}), "1 to 512"),
    ("attestation elsewhere", attest("k", "notes/a"), "not under attestations/"),
    ("attestation over cog.toml", attest("k", "cog.toml"), "listed twice"),
    ("odd attestation kind", attest("a b", "attestations/a"), "attestation kind"),
    ("too many attestations", attest("k", "attestations/a", ATTESTATION_LIMIT + 1), "at most 32"),
]


@pytest.mark.parametrize(("edit", "why"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_a_manifest_outside_the_format_is_refused(package: Any, edit: Any, why: str) -> None:
    with pytest.raises(PackageFault) as caught:
        parse_manifest(edited(package.manifest, edit))
    assert caught.value.code is Code.MANIFEST_INVALID
    assert why in caught.value.text
    assert len(caught.value.text) < 250


def test_the_longest_echo_of_an_unknown_kind_is_short(package: Any) -> None:
    for member in ("kind", "schema"):
        with pytest.raises(PackageFault) as caught:
            parse_manifest(edited(package.manifest, lambda value, member=member: value.update({member: "x" * 5000})))
        assert len(caught.value.text) < 120


@pytest.mark.parametrize(
    ("twice", "once"),
    [('"kind": "cog"', '"kind": "cog", "kind": "cog"'), ('"id": "air"', '"id": "air", "i\\u0064": "b"')],
)
def test_a_key_given_twice_is_refused_however_it_is_written(package: Any, twice: str, once: str) -> None:
    text = package.manifest.decode()
    assert twice in text
    with pytest.raises(PackageFault, match="appears twice"):
        parse_manifest(text.replace(twice, once).encode())


def test_frame_checks_come_in_order(package: Any) -> None:
    def spoil(value: dict[str, Any]) -> None:
        value.update(schema="other", kind="a b", signatures=value["signatures"] * 20)

    with pytest.raises(PackageFault, match="schema"):
        parse_manifest(edited(package.manifest, spoil))
    with pytest.raises(PackageFault, match="larger than"):
        parse_manifest(b"x" * (MANIFEST_LIMIT_BYTES + 1))
    with pytest.raises(PackageFault, match="20 signatures"):
        parse_manifest(edited(package.manifest, lambda value: value.update(signatures=value["signatures"] * 20)))


def test_every_truncation_is_a_clean_refusal(package: Any) -> None:
    data = package.manifest.rstrip()
    for length in range(len(data)):
        with pytest.raises(PackageFault) as caught:
            parse_manifest(data[:length])
        assert caught.value.code is Code.MANIFEST_INVALID


@settings(max_examples=150)
@given(st.data())
def test_a_manifest_with_a_flipped_bit_is_never_another_package(data: st.DataObject) -> None:
    original = MANIFEST
    position = data.draw(st.integers(0, len(original) - 1))
    bit = data.draw(st.integers(0, 7))
    changed = bytearray(original)
    changed[position] ^= 1 << bit
    try:
        manifest = parse_manifest(bytes(changed))
        verify_signatures(manifest, ANCHORS)
    except PackageFault:
        return
    assert manifest.package_id == parse_manifest(original).package_id  # white space, or the name of an unknown key


def test_seventeen_signatures_are_too_many(make_package: Any) -> None:
    manifest = make_package(signed=False).manifest
    for number in range(SIGNATURE_LIMIT):
        manifest = sign_manifest(manifest, bytes([number]) * 32)
    with pytest.raises(PackageFault) as caught:
        sign_manifest(manifest, b"x" * 32)
    assert caught.value.code is Code.INPUT_INVALID
    assert sign_manifest(manifest, bytes(32))  # one of the sixteen may sign again


@pytest.mark.parametrize("length", [0, 31, 33, 64])
def test_a_seed_of_another_length_does_not_sign(package: Any, length: int) -> None:
    with pytest.raises(PackageFault) as caught:
        sign_manifest(package.manifest, bytes(length))
    assert caught.value.code is Code.INPUT_INVALID


def test_a_body_that_would_not_be_read_back_is_not_written(package: Any) -> None:
    with pytest.raises(PackageFault, match="id"):
        render_manifest(msgspec.structs.replace(package.body, id="No Such Id"))


def test_all_a_package_can_be_revoked_by_fits_the_engine(package: Any) -> None:
    most_files = 1 + len(Arch) + ATTESTATION_LIMIT
    assert 1 + SIGNATURE_LIMIT + most_files <= 64


def test_trust_by_pem_and_by_hex_is_the_same_trust(package: Any) -> None:
    (public_key,) = package.anchors.by_key
    key_id = package.anchors.by_key[public_key]
    assert TrustAnchors.of([TrustKey(key_id=key_id, public_key=public_key)]) == package.anchors


def _module_package() -> tuple[bytes, TrustAnchors]:
    """Made once: hypothesis draws many times from it."""
    from messages.packages import CogBody, FileRef, PackageOrigin

    ref = FileRef(path="cog.toml", size=1, sha256=DIGEST)
    payload = FileRef(path="noarch/cog-x", size=1, sha256=DIGEST)
    body = CogBody(
        id="x", version="1", cog_toml=ref, binaries={Arch.NOARCH: payload}, source=PackageOrigin(commit="a" * 7)
    )
    seed = b"s" * 32
    manifest = sign_manifest(render_manifest(body), seed)
    entry = parse_manifest(manifest).signatures[0]
    return manifest, TrustAnchors.of([TrustKey(key_id=entry.key_id, public_key=entry.public_key)])


MANIFEST, ANCHORS = _module_package()
