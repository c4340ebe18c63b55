"""Packages on the wire: names that never change, records that come back as they went."""

from __future__ import annotations

import msgspec
import pytest

from messages.base import answer_type
from messages.packages import (
    BLOCK_BYTES,
    Arch,
    Block,
    CogArgument,
    CogLimits,
    FileRef,
    GetBlock,
    GetManifest,
    ManifestBytes,
    Offer,
    Offered,
    PackageErrorCode,
    PackagesMailbox,
    VerifiedWorkload,
    Withdraw,
    Withdrawn,
)


def test_error_codes_are_stable_and_distinct() -> None:
    assert [code.value for code in PackageErrorCode] == [
        "manifest-invalid",
        "missing-signature",
        "untrusted-signer",
        "bad-signature",
        "file-missing",
        "file-tampered",
        "io-error",
        "cog-invalid",
        "key-invalid",
        "input-invalid",
    ]


def test_architectures_are_stable() -> None:
    assert [arch.value for arch in Arch] == ["aarch64", "armv7", "x86_64", "wasm", "noarch"]


@pytest.mark.parametrize(
    "message",
    [
        GetManifest(manifest_hash="0" * 64),
        GetBlock(sha256="f" * 64, offset=3 * BLOCK_BYTES),
        Offer(manifest_hash="a" * 64),
        Withdraw(manifest_hash="b" * 64),
    ],
    ids=lambda message: type(message).__name__,
)
def test_every_question_decodes_into_the_mailbox(message: object) -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=PackagesMailbox) == message


def test_each_question_names_its_answer() -> None:
    answers = {GetManifest: ManifestBytes, GetBlock: Block, Offer: Offered, Withdraw: Withdrawn}
    assert {question: answer_type(question) for question in answers} == answers


def test_a_negative_offset_is_refused_on_the_wire() -> None:
    data = msgspec.msgpack.encode({"type": "GetBlock", "sha256": "f" * 64, "offset": -1})
    with pytest.raises(msgspec.ValidationError, match="offset"):
        msgspec.msgpack.decode(data, type=PackagesMailbox)


def test_a_verified_workload_travels_whole() -> None:
    workload = VerifiedWorkload(
        kind="cog",
        id="hostwatch",
        version="1.0",
        package_id="1" * 64,
        manifest_hash="2" * 64,
        signer_keys=("3" * 64,),
        limits=CogLimits(ram_mb=64, arguments=(CogArgument(name="--label", takes_value=True),)),
        binaries={Arch.NOARCH: FileRef(path="noarch/cog-hostwatch", size=7, sha256="4" * 64)},
        artifact_hashes=("4" * 64, "5" * 64),
    )
    data = msgspec.msgpack.encode(workload)
    assert msgspec.msgpack.decode(data, type=VerifiedWorkload) == workload
    assert workload.revocable_refs() == ("1" * 64, "3" * 64, "4" * 64, "5" * 64)
