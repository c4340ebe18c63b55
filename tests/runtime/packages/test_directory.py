"""Packages on disk: K1 to K11, K22; no links, no pipes, no way out (N85, N86)."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from actors.packages.fault import PackageFault
from actors.packages.keys import TrustAnchors, render_trust
from messages.packages import Arch, PackageErrorCode, PackageOrigin
from runtime.cluster.keys import SecretSeed
from runtime.packages.directory import pack, read_trust, show, sign, verify
from runtime.packages.files import read_inside
from runtime.packages.keyfile import generate, read_seed, trust_key_of

Code = PackageErrorCode


def verify_code(package: Path, anchors: TrustAnchors) -> PackageFault:
    with pytest.raises(PackageFault) as caught:
        verify(package, anchors)
    return caught.value


def test_a_packed_and_signed_package_verifies(package: Path, source: Path, anchors: TrustAnchors) -> None:
    verified = verify(package, anchors)
    assert (verified.workload.id, verified.workload.version) == ("air", "1.2.0")
    assert set(verified.workload.binaries) == {Arch.AARCH64, Arch.ARMV7}
    assert verified.workload.binaries[Arch.ARMV7].path == "armv7/cog-air"
    assert (package / "cog.toml").read_bytes() == (source / "cog.toml").read_bytes()
    assert [signer.public_key for signer in verified.signers] == list(anchors.by_key)
    assert verified.workload.manifest_hash == verified.manifest.manifest_hash


def test_modes_are_those_of_the_format(package: Path) -> None:
    modes = {
        str(path.relative_to(package)): path.stat().st_mode & 0o777 for path in package.rglob("*") if path.is_file()
    }
    assert modes == {"cog.toml": 0o644, "manifest.json": 0o644, "aarch64/cog-air": 0o755, "armv7/cog-air": 0o755}


def test_modes_do_not_depend_on_the_umask(make_packed: Callable[[str], Path]) -> None:
    before = os.umask(0o077)
    try:
        package = make_packed("masked")
    finally:
        os.umask(before)
    assert (package / "aarch64/cog-air").stat().st_mode & 0o777 == 0o755
    assert (package / "cog.toml").stat().st_mode & 0o777 == 0o644


def test_from_key_file_to_verified_package(make_packed: Callable[[str], Path], tmp_path: Path) -> None:
    key = generate(tmp_path / "signer.key")
    (tmp_path / "trust.json").write_bytes(render_trust([key.trust_key]))
    package = make_packed("package")
    sign(package, read_seed(tmp_path / "signer.key"))
    verified = verify(package, read_trust(tmp_path / "trust.json"))
    assert verified.signers[0].key_id == key.trust_key.key_id


def test_the_same_source_gives_the_same_package_id(make_packed: Callable[[str], Path]) -> None:
    assert show(make_packed("one"))["package_id"] == show(make_packed("two"))["package_id"]


def test_one_changed_byte_names_its_file(package: Path, anchors: TrustAnchors) -> None:
    payload = package / "armv7/cog-air"
    data = bytearray(payload.read_bytes())
    data[-1] ^= 1
    payload.write_bytes(bytes(data))
    fault = verify_code(package, anchors)
    assert fault.code is Code.FILE_TAMPERED
    assert "armv7/cog-air" in fault.text


@pytest.mark.parametrize("change", [b"", b"\x7fELF armv7 and more"], ids=["shorter", "longer"])
def test_another_size_is_tampering(package: Path, anchors: TrustAnchors, change: bytes) -> None:
    (package / "armv7/cog-air").write_bytes(change)
    fault = verify_code(package, anchors)
    assert fault.code is Code.FILE_TAMPERED
    assert f"got {len(change)} bytes" in fault.text


def edit_manifest(package: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    value = json.loads((package / "manifest.json").read_bytes())
    edit(value)
    (package / "manifest.json").write_text(json.dumps(value))


def test_the_four_ways_to_be_refused_are_distinct(
    package: Path, make_packed: Callable[[str], Path], anchors: TrustAnchors
) -> None:
    stranger = TrustAnchors.of([trust_key_of(SecretSeed(b"s" * 32))])
    codes = [verify_code(make_packed("unsigned"), anchors).code, verify_code(package, stranger).code]
    edit_manifest(package, lambda value: value["body"].update(version="1.3.0"))
    codes.append(verify_code(package, anchors).code)
    assert codes == [Code.MISSING_SIGNATURE, Code.UNTRUSTED_SIGNER, Code.BAD_SIGNATURE]


def test_signatures_come_before_files(package: Path) -> None:
    (package / "cog.toml").unlink()
    assert verify_code(package, TrustAnchors({})).code is Code.UNTRUSTED_SIGNER


def test_a_removed_file_is_missing(package: Path, anchors: TrustAnchors) -> None:
    (package / "cog.toml").unlink()
    fault = verify_code(package, anchors)
    assert (fault.code, fault.text) == (Code.FILE_MISSING, "package file missing: cog.toml")


def test_a_path_that_leads_outside_is_an_invalid_manifest(package: Path, anchors: TrustAnchors) -> None:
    edit_manifest(package, lambda value: value["body"]["binaries"]["armv7"].update(path="../../etc/passwd"))
    fault = verify_code(package, anchors)
    assert fault.code is Code.MANIFEST_INVALID
    assert 'unsafe path "../../etc/passwd"' in fault.text


def as_link(path: Path, outside: Path) -> None:
    outside.write_bytes(path.read_bytes())
    path.unlink()
    path.symlink_to(outside)


def as_pipe(path: Path, outside: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def as_folder(path: Path, outside: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("path", ["manifest.json", "cog.toml", "armv7/cog-air"])
@pytest.mark.parametrize("become", [as_link, as_pipe, as_folder])
def test_only_regular_files_are_read(
    package: Path, anchors: TrustAnchors, tmp_path: Path, path: str, become: Callable[[Path, Path], None]
) -> None:
    become(package / path, tmp_path / "outside")
    fault = verify_code(package, anchors)
    assert fault.code is Code.IO_ERROR
    assert path in fault.text


def test_a_folder_that_is_a_link_is_not_followed(package: Path, anchors: TrustAnchors, tmp_path: Path) -> None:
    (package / "armv7").rename(tmp_path / "elsewhere")
    (package / "armv7").symlink_to(tmp_path / "elsewhere")
    assert verify_code(package, anchors).code is Code.IO_ERROR


@pytest.mark.parametrize("path", ["../secret", "/etc/passwd", "a/../../secret", ".", "", "a//b", ".hidden"])
def test_no_reader_leaves_its_folder(tmp_path: Path, path: str) -> None:
    (tmp_path / "secret").write_text("s")
    (tmp_path / "in").mkdir()
    with pytest.raises(PackageFault, match="unsafe path"):
        read_inside(tmp_path / "in", path, 10)


def test_reading_is_bounded(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"12345")
    assert read_inside(tmp_path, "f", 5) == b"12345"
    with pytest.raises(PackageFault, match="larger than 4 bytes"):
        read_inside(tmp_path, "f", 4)


def test_a_file_that_grows_after_its_size_was_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "f").write_bytes(b"12345")
    real = os.fstat

    def smaller(descriptor: int) -> os.stat_result:
        fields = list(real(descriptor))
        fields[6] = 3
        return os.stat_result(fields)

    monkeypatch.setattr(os, "fstat", smaller)
    with pytest.raises(PackageFault, match="larger than 4 bytes"):
        read_inside(tmp_path, "f", 4)


# packing


def pack_fault(source: Path, out: Path, **more: Any) -> PackageFault:
    more.setdefault("origin", PackageOrigin(commit="0123abc"))
    more.setdefault("binaries", {"armv7": source / "air-32"})
    with pytest.raises(PackageFault) as caught:
        pack(source, out, **more)
    return caught.value


def test_an_output_folder_that_is_not_empty_is_left_alone(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine").write_text("keep")
    fault = pack_fault(source, out)
    assert fault.code is Code.INPUT_INVALID
    assert (out / "mine").read_text() == "keep"


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"binaries": {"mips": Path("x")}}, "unknown architecture 'mips'"),
        ({"binaries": {}}, "at least one architecture"),
        ({"binaries": None}, "name one per architecture"),
        ({"binaries": {"armv7": Path("/nowhere/at/all")}}, "cannot read /nowhere/at/all"),
        ({"binaries": {"armv7": Path("/dev/null")}}, "not a regular file"),
        ({"binaries": {"armv7": Path("/")}}, "not a regular file"),
        ({"origin": PackageOrigin(commit="nothex!")}, "7 to 64"),
        ({"origin": PackageOrigin(repo="r")}, "neither commit nor release_url"),
        ({"origin": None}, "where the package comes from"),
    ],
    ids=range(9),
)
def test_what_cannot_be_packed_is_refused_and_leaves_nothing(
    source: Path, tmp_path: Path, more: dict[str, Any], why: str
) -> None:
    fault = pack_fault(source, tmp_path / "out", **more)
    assert fault.code is Code.INPUT_INVALID
    assert why in fault.text
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())


def test_a_source_without_cog_toml_is_refused(source: Path, tmp_path: Path) -> None:
    (source / "cog.toml").unlink()
    assert pack_fault(source, tmp_path / "out").code is Code.FILE_MISSING


def test_a_malformed_cog_toml_is_refused_with_its_line(source: Path, tmp_path: Path) -> None:
    (source / "cog.toml").write_text('[cog]\nid = air"\n')
    fault = pack_fault(source, tmp_path / "out")
    assert fault.code is Code.COG_INVALID
    assert "at line 2" in fault.text


def test_payloads_named_in_cog_toml_stay_inside_the_source(source: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s")
    with (source / "cog.toml").open("a") as file:
        file.write('[package]\ncommit = "0123abc"\nbinaries = { noarch = "../secret" }\n')
    fault = pack_fault(source, tmp_path / "out", binaries=None, origin=None)
    assert "unsafe path" in fault.text


def test_a_payload_given_by_name_may_be_a_link_to_a_file(source: Path, tmp_path: Path, anchors: Any) -> None:
    (source / "latest").symlink_to(source / "air-32")
    binaries = {"armv7": source / "latest"}
    pack(source, tmp_path / "out", binaries=binaries, origin=PackageOrigin(commit="0123abc"))
    assert not (tmp_path / "out/armv7/cog-air").is_symlink()
    assert (tmp_path / "out/armv7/cog-air").read_bytes() == b"\x7fELF armv7"


# signing


def test_signing_again_replaces_and_signing_twice_adds(package: Path, seed: SecretSeed) -> None:
    before = show(package)
    assert len(sign(package, seed).signatures) == 1
    manifest = sign(package, SecretSeed(b"o" * 32))
    assert len(manifest.signatures) == 2
    assert manifest.package_id == before["package_id"]
    assert manifest.manifest_hash != before["manifest_hash"]


def test_what_does_not_lie_there_is_not_signed(make_packed: Callable[[str], Path], seed: SecretSeed) -> None:
    package = make_packed("package")
    (package / "armv7/cog-air").write_bytes(b"another prog")
    before = (package / "manifest.json").read_bytes()
    with pytest.raises(PackageFault) as caught:
        sign(package, seed)
    assert caught.value.code is Code.FILE_TAMPERED
    assert (package / "manifest.json").read_bytes() == before
    assert sorted(path.name for path in package.iterdir()) == ["aarch64", "armv7", "cog.toml", "manifest.json"]


def test_a_write_that_fails_leaves_the_old_manifest(
    make_packed: Callable[[str], Path], seed: SecretSeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = make_packed("package")
    before = (package / "manifest.json").read_bytes()

    def refuse(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(PackageFault, match="No space left"):
        sign(package, seed)
    assert (package / "manifest.json").read_bytes() == before
    assert sorted(path.name for path in package.iterdir()) == ["aarch64", "armv7", "cog.toml", "manifest.json"]


def test_show_says_what_the_package_says(package: Path, seed: SecretSeed) -> None:
    shown = show(package)
    assert shown["body"]["id"] == "air"
    assert shown["signatures"] == [{"key_id": trust_key_of(seed).key_id, "public_key": trust_key_of(seed).public_key}]
    json.dumps(shown)


@pytest.mark.parametrize("content", [None, b"{", b"x" * 300_000])
def test_a_trust_file_that_cannot_be_read_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "trust.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(PackageFault):
        read_trust(path)
