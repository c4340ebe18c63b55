"""Signer key files: private, never overwritten, never shown."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from actors.packages.fault import PackageFault
from messages.packages import PackageErrorCode
from runtime.packages.keyfile import generate, read_seed, trust_key_of


def key_fault(path: Path) -> str:
    with pytest.raises(PackageFault) as caught:
        read_seed(path)
    assert caught.value.code is PackageErrorCode.KEY_INVALID
    return caught.value.text


def test_a_new_key_is_private_and_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "signer.key"
    key = generate(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert re.fullmatch(rb"[0-9a-f]{64}\n", path.read_bytes())
    assert trust_key_of(read_seed(path)) == key.trust_key
    assert path.read_text().strip() not in repr(key) + repr(read_seed(path)) + str(read_seed(path))


def test_a_key_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "signer.key"
    generate(path)
    before = path.read_bytes()
    with pytest.raises(PackageFault, match="exists"):
        generate(path)
    assert path.read_bytes() == before


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(PackageFault, match="cannot write key file"):
        generate(tmp_path / "nowhere" / "signer.key")


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o602, 0o610])
def test_a_key_that_others_can_reach_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "signer.key"
    generate(path)
    path.chmod(mode)
    assert "chmod 600" in key_fault(path)


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"ab" * 31, b"ab" * 33, b"AB" * 32, b"ab" * 32 + b"\n\n", b"\xff" * 64, b"x" * 10_000]
)
def test_another_content_is_no_key(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "signer.key"
    path.write_bytes(content)
    path.chmod(0o600)
    text = key_fault(path)
    assert "64 lower-case hexadecimal digits" in text
    assert "ab" * 31 not in text


def test_a_link_is_not_followed_to_a_key(tmp_path: Path) -> None:
    generate(tmp_path / "real.key")
    (tmp_path / "link.key").symlink_to(tmp_path / "real.key")
    assert "cannot be read" in key_fault(tmp_path / "link.key")


def test_a_missing_key_names_the_remedy(tmp_path: Path) -> None:
    assert "sennit package keygen" in key_fault(tmp_path / "none.key")
