"""A source folder and a signed package on disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from actors.packages.keys import TrustAnchors
from messages.packages import PackageOrigin
from runtime.cluster.keys import SecretSeed
from runtime.packages.directory import pack, sign
from runtime.packages.keyfile import trust_key_of

COG_TOML = b'# as its author wrote it\n[cog]\nid = "air"\nversion = "1.2.0"\n'


@pytest.fixture
def seed() -> SecretSeed:
    return SecretSeed(bytes(range(32)))


@pytest.fixture
def anchors(seed: SecretSeed) -> TrustAnchors:
    return TrustAnchors.of([trust_key_of(seed)])


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "cog.toml").write_bytes(COG_TOML)
    (folder / "air-64").write_bytes(b"\x7fELF aarch64")
    (folder / "air-32").write_bytes(b"\x7fELF armv7")
    return folder


@pytest.fixture
def make_packed(source: Path, tmp_path: Path) -> Callable[[str], Path]:
    def make(name: str = "package") -> Path:
        out = tmp_path / name
        binaries = {"aarch64": source / "air-64", "armv7": source / "air-32"}
        pack(source, out, binaries=binaries, origin=PackageOrigin(commit="0123abc"))
        return out

    return make


@pytest.fixture
def package(make_packed: Callable[[str], Path], seed: SecretSeed) -> Path:
    out = make_packed("package")
    sign(out, seed)
    return out
