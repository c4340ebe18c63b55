"""A file is checked while it streams: its size is known before, and not a byte more is taken (N90)."""

from __future__ import annotations

from hashlib import sha256

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.packages.fault import PackageFault
from actors.packages.stream import FileVerifier
from messages.packages import FileRef, PackageErrorCode


def verifier_of(data: bytes) -> FileVerifier:
    return FileVerifier(FileRef(path="x/cog-a", size=len(data), sha256=sha256(data).hexdigest()))


@settings(max_examples=60)
@given(st.lists(st.binary(max_size=9), max_size=8))
def test_the_same_bytes_pass_however_they_are_cut(pieces: list[bytes]) -> None:
    verifier = verifier_of(b"".join(pieces))
    for piece in pieces:
        verifier.feed(piece)
    assert verifier.missing == 0
    verifier.finish()


@settings(max_examples=60)
@given(st.binary(min_size=1, max_size=30), st.integers(0, 29), st.integers(1, 255))
def test_one_changed_byte_is_tampering(data: bytes, position: int, change: int) -> None:
    verifier = verifier_of(data)
    changed = bytearray(data)
    changed[position % len(data)] ^= change
    verifier.feed(bytes(changed))
    with pytest.raises(PackageFault, match="x/cog-a") as caught:
        verifier.finish()
    assert caught.value.code is PackageErrorCode.FILE_TAMPERED


def test_the_first_byte_too_many_is_refused() -> None:
    verifier = verifier_of(b"1234")
    verifier.feed(b"1234")
    with pytest.raises(PackageFault, match="more than 4 bytes"):
        verifier.feed(b"5")
    verifier.finish()  # the refused byte was not taken


def test_an_early_end_is_refused() -> None:
    verifier = verifier_of(b"1234")
    verifier.feed(b"123")
    with pytest.raises(PackageFault, match="expected 4 bytes, got 3 bytes"):
        verifier.finish()
