"""A package as a directory: pack, sign, verify, show (G 4.1, G 4.4, G 4.6).

    manifest.json            signed envelope
    cog.toml                 unmodified
    <arch>/cog-<id>          one payload per architecture
    attestations/<name>      optional

Files that the manifest does not list are not looked at.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from actors.packages.cog import Cog, parse_cog
from actors.packages.fault import PackageFault, file_tampered, input_invalid, io_error
from actors.packages.keys import TRUST_LIMIT_BYTES, TrustAnchors, parse_trust
from actors.packages.manifest import (
    COG_TOML_PATH,
    MANIFEST_PATH,
    Manifest,
    Signer,
    check_origin,
    parse_manifest,
    payload_path,
    render_manifest,
    sign_manifest,
    verify_signatures,
)
from actors.packages.stream import FileVerifier
from actors.packages.workload import verified_workload
from messages.packages import (
    COG_TOML_LIMIT_BYTES,
    FILE_LIMIT_BYTES,
    MANIFEST_LIMIT_BYTES,
    Arch,
    CogBody,
    FileRef,
    PackageOrigin,
    VerifiedWorkload,
)
from runtime.cluster.keys import SecretSeed
from runtime.packages.files import chunks, create_new, open_inside, read_inside, replace, sync_directory, write_all


@dataclass(frozen=True, slots=True)
class VerifiedPackage:
    """A package whose signatures and every listed file were verified."""

    directory: Path
    manifest: Manifest
    signers: tuple[Signer, ...]
    workload: VerifiedWorkload


def pack(
    source: Path,
    out: Path,
    *,
    binaries: Mapping[str, Path] | None = None,
    origin: PackageOrigin | None = None,
) -> Manifest:
    """Make the unsigned package `out` (absent or empty) out of the folder `source`, which holds `cog.toml`.

    `binaries` (architecture to file; links are followed to regular files) and `origin` default to what `[package]`
    of `cog.toml` says. Files are created new: 0644, payloads 0755. Raises `PackageFault`.
    """
    cog_toml = read_inside(source, COG_TOML_PATH, COG_TOML_LIMIT_BYTES)
    cog = parse_cog(cog_toml)
    origin = origin or cog.packing.origin
    if origin is None:
        raise input_invalid("where the package comes from is unknown; name a commit or a release URL")
    try:
        check_origin(origin)
    except PackageFault as fault:
        raise input_invalid(fault.text.removeprefix("manifest invalid: ")) from None
    payloads = _payloads(source, cog, binaries)
    _make_empty(out)
    try:
        return _write_package(out, cog, cog_toml, origin, payloads)
    except BaseException as error:
        shutil.rmtree(out, ignore_errors=True)  # half a package is none, and would be in the way of the next try
        if not isinstance(error, OSError):
            raise
        raise io_error(str(error.filename or out), error.strerror or str(error)) from None


def sign(package: Path, seed: SecretSeed, key_id: str | None = None) -> Manifest:
    """Add (or replace) the signature of `seed`, in place. Raises `PackageFault`.

    What is signed must be what lies there: every listed file is checked first.
    """
    data = read_inside(package, MANIFEST_PATH, MANIFEST_LIMIT_BYTES)
    for file in parse_manifest(data).body.files():
        verify_file(package, file)
    signed = sign_manifest(data, seed.reveal(), key_id)
    try:
        replace(package / MANIFEST_PATH, signed, 0o644)
    except OSError as error:
        raise io_error(MANIFEST_PATH, error.strerror or str(error)) from None
    return parse_manifest(signed)


def verify(package: Path, anchors: TrustAnchors) -> VerifiedPackage:
    """Signatures before files, then every listed file (G 4.6). Raises `PackageFault`."""
    manifest = parse_manifest(read_inside(package, MANIFEST_PATH, MANIFEST_LIMIT_BYTES))
    signers = verify_signatures(manifest, anchors)
    for file in manifest.body.files():
        verify_file(package, file)
    cog_toml = read_inside(package, COG_TOML_PATH, COG_TOML_LIMIT_BYTES)
    return VerifiedPackage(package, manifest, signers, verified_workload(manifest, signers, cog_toml))


def show(package: Path) -> dict[str, Any]:
    """What the package says of itself, as plain data. Nothing of it is verified."""
    manifest = parse_manifest(read_inside(package, MANIFEST_PATH, MANIFEST_LIMIT_BYTES))
    return {
        "kind": manifest.kind,
        "package_id": manifest.package_id,
        "manifest_hash": manifest.manifest_hash,
        "body": msgspec.to_builtins(manifest.body),
        "signatures": [{"key_id": entry.key_id, "public_key": entry.public_key} for entry in manifest.signatures],
    }


def read_trust(path: Path) -> TrustAnchors:
    """The anchors in a trust file. Raises `PackageFault` naming it."""
    try:
        with path.open("rb") as file:
            data = file.read(TRUST_LIMIT_BYTES + 1)
    except OSError as error:
        raise io_error(str(path), error.strerror or str(error)) from None
    try:
        return parse_trust(data)
    except PackageFault as fault:
        raise PackageFault(fault.code, f"{path}: {fault.text}; correct it, or restore the file from a copy") from None


def verify_file(package: Path, file: FileRef) -> None:
    """Read `file` once, never beyond its signed size. Raises `PackageFault`."""
    verifier = FileVerifier(file)
    with open_inside(package, file.path) as descriptor:
        size = os.fstat(descriptor).st_size
        if size != file.size:  # said before a byte is read, however large the file is
            raise file_tampered(file.path, f"{file.size} bytes", f"{size} bytes")
        for data in chunks(descriptor, file.path, file.size + 1):
            verifier.feed(data)
    verifier.finish()


def _payloads(source: Path, cog: Cog, binaries: Mapping[str, Path] | None) -> dict[Arch, tuple[Path, str | None]]:
    """Per architecture a folder and a path inside it, or a file named outright (None inside)."""
    if binaries is None:
        if not cog.packing.binaries:
            raise input_invalid("no payload: name one per architecture, or list them under [package] binaries")
        return {arch: (source, path) for arch, path in cog.packing.binaries.items()}
    if not binaries:
        raise input_invalid("no payload: at least one architecture is needed")
    for name in binaries:
        if name not in Arch.__members__.values():
            raise input_invalid(f"unknown architecture {name[:32]!r}; known are {', '.join(Arch)}")
    return {Arch(name): (path, None) for name, path in binaries.items()}


def _make_empty(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
        taken = next(out.iterdir(), None)
    except OSError as error:
        raise input_invalid(f"cannot write to {out}: {error.strerror}") from None
    if taken is not None:
        raise input_invalid(f"{out} is not empty ({taken.name}); a package is packed into a new or empty folder")


def _write_package(
    out: Path, cog: Cog, cog_toml: bytes, origin: PackageOrigin, payloads: Mapping[Arch, tuple[Path, str | None]]
) -> Manifest:
    create_new(out / COG_TOML_PATH, cog_toml, 0o644)
    binaries: dict[Arch, FileRef] = {}
    for arch, (where, inside) in payloads.items():
        path = payload_path(arch, cog.id)
        (out / path).parent.mkdir()
        with _payload(where, inside) as descriptor:
            binaries[arch] = _copy(descriptor, out, path)
    body = CogBody(
        id=cog.id,
        version=cog.version,
        cog_toml=FileRef(path=COG_TOML_PATH, size=len(cog_toml), sha256=sha256(cog_toml).hexdigest()),
        binaries=binaries,
        source=origin,
    )
    data = render_manifest(body)
    create_new(out / MANIFEST_PATH, data, 0o644)
    return parse_manifest(data)


@contextmanager
def _payload(where: Path, inside: str | None) -> Iterator[int]:
    if inside is not None:
        with open_inside(where, inside) as descriptor:
            yield descriptor
        return
    try:
        descriptor = os.open(where, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise input_invalid(f"cannot read {where}: {error.strerror}") from None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise input_invalid(f"{where} is not a regular file")
        yield descriptor
    finally:
        os.close(descriptor)


def _copy(source: int, out: Path, path: str) -> FileRef:
    """Copy a payload to `out / path` and tell size and digest of the bytes that were written."""
    digest, size = sha256(), 0
    target = os.open(out / path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o755)
    try:
        os.fchmod(target, 0o755)
        for data in chunks(source, path, FILE_LIMIT_BYTES + 1):
            size += len(data)
            if size > FILE_LIMIT_BYTES:
                raise input_invalid(f"payload for {path} is larger than {FILE_LIMIT_BYTES} bytes")
            digest.update(data)
            write_all(target, data)
        os.fsync(target)
    finally:
        os.close(target)
    sync_directory((out / path).parent)
    return FileRef(path=path, size=size, sha256=digest.hexdigest())
