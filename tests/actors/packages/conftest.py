"""One package in memory, small enough to read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256

import pytest
from nacl.bindings import crypto_sign_seed_keypair

from actors.packages.keys import TrustAnchors, TrustKey, key_id_of
from actors.packages.manifest import parse_manifest, payload_path, render_manifest, sign_manifest
from messages.packages import Arch, Attestation, CogBody, FileRef, PackageOrigin

SEED = bytes(range(32))
OTHER_SEED = bytes(range(1, 33))


def file_ref(path: str, data: bytes) -> FileRef:
    return FileRef(path=path, size=len(data), sha256=sha256(data).hexdigest())


def trust_key(seed: bytes, key_id: str | None = None) -> TrustKey:
    public_key, _ = crypto_sign_seed_keypair(seed)
    return TrustKey(key_id=key_id or key_id_of(public_key), public_key=public_key.hex())


@dataclass
class SamplePackage:
    """Files by path, and a manifest signed by `SEED`."""

    files: dict[str, bytes]
    body: CogBody
    manifest: bytes
    anchors: TrustAnchors = field(default_factory=lambda: TrustAnchors.of([trust_key(SEED)]))

    @property
    def hash(self) -> str:
        return parse_manifest(self.manifest).manifest_hash


@pytest.fixture
def make_package() -> Callable[..., SamplePackage]:
    def make(
        payloads: dict[Arch, bytes] | None = None,
        *,
        cog_id: str = "air",
        cog_toml: bytes | None = None,
        attestation: bytes | None = None,
        signed: bool = True,
    ) -> SamplePackage:
        payloads = payloads or {Arch.AARCH64: b"aarch64 program", Arch.ARMV7: b"armv7 program"}
        cog_toml = cog_toml or f'[cog]\nid = "{cog_id}"\nversion = "1.2.0"\n'.encode()
        files = {"cog.toml": cog_toml, **{payload_path(arch, cog_id): data for arch, data in payloads.items()}}
        attestations: tuple[Attestation, ...] = ()
        if attestation is not None:
            files["attestations/build.json"] = attestation
            attestations = (Attestation(kind="build", file=file_ref("attestations/build.json", attestation)),)
        body = CogBody(
            id=cog_id,
            version="1.2.0",
            cog_toml=file_ref("cog.toml", cog_toml),
            binaries={arch: file_ref(payload_path(arch, cog_id), data) for arch, data in payloads.items()},
            source=PackageOrigin(commit="0123abc"),
            attestations=attestations,
        )
        manifest = render_manifest(body)
        return SamplePackage(files, body, sign_manifest(manifest, SEED) if signed else manifest)

    return make


@pytest.fixture
def package(make_package: Callable[..., SamplePackage]) -> SamplePackage:
    return make_package()


@pytest.fixture
def seed() -> bytes:
    return SEED


@pytest.fixture
def other_seed() -> bytes:
    return OTHER_SEED


@pytest.fixture
def trust() -> Callable[..., TrustKey]:
    return trust_key
