"""The content store: a name means its bytes, before and after a crash (K12, N68, N71, N72)."""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.packages.keys import TrustAnchors
from messages.packages import FileRef
from messages.ports import (
    BlobData,
    BlobInfo,
    ImportPackageFile,
    PackageFile,
    PortRefusal,
    ReadBlob,
    ReadPackageFile,
    SealBlob,
    StatBlob,
    WriteBlob,
)
from messages.system import Done
from runtime.packages.blobs import BlobFault, ContentStore
from runtime.packages.directory import verify

DATA = b"some bytes of a program" * 1000
DIGEST = sha256(DATA).hexdigest()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "blobs"


@pytest.fixture
def store(root: Path) -> ContentStore:
    return ContentStore(root)


def code_of(call: object, *arguments: object) -> PortRefusal:
    with pytest.raises(BlobFault) as caught:
        call(*arguments)  # type: ignore[operator]
    return caught.value.code


def names(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def test_a_blob_comes_back_in_pieces(store: ContentStore) -> None:
    assert store.put(DATA) == DIGEST
    assert store.size(DIGEST) == len(DATA)
    assert store.read(DIGEST, 0, 10) == (DATA[:10], len(DATA))
    assert store.read(DIGEST, len(DATA) - 3, 10) == (DATA[-3:], len(DATA))
    assert store.read(DIGEST, len(DATA), 10) == (b"", len(DATA))
    assert store.read(DIGEST, 2**40, 10) == (b"", len(DATA))


@settings(max_examples=25)
@given(st.lists(st.binary(max_size=50), max_size=6))
def test_staged_pieces_become_one_blob(tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes]) -> None:
    store = ContentStore(tmp_path_factory.mktemp("store"))
    whole = b"".join(pieces)
    digest = sha256(whole).hexdigest()
    store.stage(digest, 0, b"")
    offset = 0
    for piece in pieces:
        store.stage(digest, offset, piece)
        offset += len(piece)
    store.seal(digest, len(whole))
    assert store.read(digest, 0, 10_000) == (whole, len(whole))


def test_a_sealed_blob_is_read_only(store: ContentStore, root: Path) -> None:
    store.put(DATA)
    assert (root / DIGEST).stat().st_mode & 0o777 == 0o444
    assert names(root) == [DIGEST]


@pytest.mark.parametrize(
    ("staged", "size"),
    [(DATA[:-1], len(DATA)), (DATA[:-1] + b"!", len(DATA)), (DATA, len(DATA) - 1), (DATA + b"!", len(DATA)), (b"", 0)],
    ids=["short", "changed", "wrong size", "long", "empty"],
)
def test_what_is_not_its_name_is_dropped(store: ContentStore, root: Path, staged: bytes, size: int) -> None:
    store.stage(DIGEST, 0, staged)
    assert code_of(store.seal, DIGEST, size) is PortRefusal.MISMATCH
    assert store.size(DIGEST) is None
    assert names(root) == []


def test_a_gap_or_an_overlap_is_refused_and_zero_starts_anew(store: ContentStore) -> None:
    store.stage(DIGEST, 0, DATA[:100])
    for offset in (99, 101):
        assert code_of(store.stage, DIGEST, offset, b"x") is PortRefusal.INVALID
    store.stage(DIGEST, 100, DATA[100:200])
    store.stage(DIGEST, 0, DATA)
    store.seal(DIGEST, len(DATA))
    assert store.size(DIGEST) == len(DATA)


def test_sealing_nothing_is_not_found(store: ContentStore) -> None:
    assert code_of(store.seal, DIGEST, 1) is PortRefusal.NOT_FOUND
    assert code_of(store.stage, DIGEST, 5, b"x") is PortRefusal.NOT_FOUND
    assert code_of(store.read, DIGEST, 0, 1) is PortRefusal.NOT_FOUND


@pytest.mark.parametrize("digest", ["", "../../etc/passwd", "A" * 64, "0" * 63, "quarantine", "." * 64])
def test_a_name_that_is_no_digest_is_refused(store: ContentStore, digest: str, tmp_path: Path) -> None:
    file = FileRef(path="x", size=1, sha256=digest)
    for call, arguments in (
        (store.size, (digest,)),
        (store.read, (digest, 0, 1)),
        (store.stage, (digest, 0, b"x")),
        (store.seal, (digest, 1)),
        (store.import_file, (tmp_path, file)),
        (store.materialise, (digest, tmp_path / "out", 0o555)),
    ):
        assert code_of(call, *arguments) is PortRefusal.INVALID


def test_negative_ranges_are_refused(store: ContentStore) -> None:
    store.put(DATA)
    assert code_of(store.read, DIGEST, -1, 1) is PortRefusal.INVALID
    assert code_of(store.read, DIGEST, 0, -1) is PortRefusal.INVALID


def damage(root: Path) -> None:
    path = root / DIGEST
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    data[7] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("reopened", [False, True])
def test_a_damaged_blob_is_moved_aside_and_can_come_again(store: ContentStore, root: Path, reopened: bool) -> None:
    store.put(DATA)
    assert store.size(DIGEST) == len(DATA)
    damage(root)
    store = ContentStore(root) if reopened else store
    assert code_of(store.read, DIGEST, 0, 10) is PortRefusal.DAMAGED
    assert store.size(DIGEST) is None
    (kept,) = names(root)
    assert kept.startswith(f"quarantine/{DIGEST}.")
    store.put(DATA)
    assert store.read(DIGEST, 0, 4) == (DATA[:4], len(DATA))


@pytest.mark.parametrize("length", [0, 1, len(DATA) // 2, len(DATA) - 1])
def test_a_truncated_blob_is_not_held(store: ContentStore, root: Path, length: int) -> None:
    store.put(DATA)
    (root / DIGEST).chmod(0o644)
    os.truncate(root / DIGEST, length)
    assert ContentStore(root).size(DIGEST) is None


def test_what_was_staged_before_a_crash_is_gone_after_it(store: ContentStore, root: Path) -> None:
    store.stage(DIGEST, 0, DATA[:100])
    again = ContentStore(root)
    assert names(root) == []
    assert again.size(DIGEST) is None


def test_a_crash_before_the_rename_leaves_no_blob(
    store: ContentStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.stage(DIGEST, 0, DATA)

    def crash(self: Path, target: Path) -> Path:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", crash)
        with pytest.raises(KeyboardInterrupt):
            store.seal(DIGEST, len(DATA))
    assert ContentStore(root).size(DIGEST) is None
    assert names(root) == []


def test_a_full_disk_is_said_and_what_was_staged_stays(store: ContentStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.stage(DIGEST, 0, DATA[:100])
    real = os.write
    room = [50]

    def write(descriptor: int, data: bytes) -> int:
        if not room[0]:
            raise OSError(28, "No space left on device")
        taken = min(room[0], len(data))
        room[0] -= taken
        return real(descriptor, data[:taken])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write)
        assert code_of(store.stage, DIGEST, 100, DATA[100:]) is PortRefusal.DISK_FULL
    store.stage(DIGEST, 100, DATA[100:])
    store.seal(DIGEST, len(DATA))
    assert store.size(DIGEST) == len(DATA)


def test_the_bytes_that_run_are_the_bytes_that_were_verified(store: ContentStore, root: Path, tmp_path: Path) -> None:
    store.put(DATA)
    store.materialise(DIGEST, tmp_path / "program", 0o555)
    assert (tmp_path / "program").read_bytes() == DATA
    assert (tmp_path / "program").stat().st_mode & 0o777 == 0o555
    assert code_of(store.materialise, DIGEST, tmp_path / "program", 0o555) is PortRefusal.EXISTS
    damage(root)
    assert code_of(store.materialise, DIGEST, tmp_path / "again", 0o555) is PortRefusal.DAMAGED
    assert not (tmp_path / "again").exists()


def test_a_package_is_imported_and_verifies_from_a_reopened_store(
    store: ContentStore, root: Path, package: Path, anchors: TrustAnchors
) -> None:
    verified = verify(package, anchors)
    for file in verified.manifest.body.files():
        store.import_file(package, file)
    store.put((package / "manifest.json").read_bytes())
    again = ContentStore(root)
    held = [*verified.manifest.body.files()]
    assert len(held) == 3
    assert [again.size(file.sha256) for file in held] == [file.size for file in held]
    assert again.size(verified.workload.manifest_hash) is not None
    assert len(names(root)) == 4


def test_an_import_that_differs_from_the_manifest_stores_nothing(
    store: ContentStore, root: Path, package: Path
) -> None:
    data = (package / "cog.toml").read_bytes()
    good = FileRef(path="cog.toml", size=len(data), sha256=sha256(data).hexdigest())
    for bad in (
        FileRef(path="cog.toml", size=len(data) - 1, sha256=good.sha256),
        FileRef(path="cog.toml", size=len(data) + 1, sha256=good.sha256),
        FileRef(path="cog.toml", size=len(data), sha256="0" * 64),
    ):
        assert code_of(store.import_file, package, bad) is PortRefusal.MISMATCH
    assert names(root) == []


def test_a_link_is_not_imported(store: ContentStore, package: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").write_bytes(DATA)
    (package / "link").symlink_to(tmp_path / "outside")
    file = FileRef(path="link", size=len(DATA), sha256=DIGEST)
    assert code_of(store.import_file, package, file) is PortRefusal.IO_ERROR
    assert code_of(store.import_file, package, FileRef(path="none", size=1, sha256=DIGEST)) is PortRefusal.NOT_FOUND


def test_the_port_is_answered_message_by_message(store: ContentStore, package: Path) -> None:
    data = (package / "cog.toml").read_bytes()
    digest = sha256(data).hexdigest()
    folder = str(package)
    answers = [
        store.handle(message)
        for message in (
            StatBlob(sha256=digest),
            WriteBlob(sha256=digest, offset=0, data=data),
            SealBlob(sha256=digest, size=len(data)),
            StatBlob(sha256=digest),
            ReadBlob(sha256=digest, offset=1, length=3),
            ReadPackageFile(directory=folder, path="cog.toml", limit=1000),
            ImportPackageFile(directory=folder, path="cog.toml", sha256=digest, size=len(data)),
        )
    ]
    assert answers == [
        BlobInfo(size=None),
        Done(),
        Done(),
        BlobInfo(size=len(data)),
        BlobData(data=data[1:4], size=len(data)),
        PackageFile(data=data),
        Done(),
    ]
    assert code_of(store.handle, ReadPackageFile(directory=folder, path="../x", limit=9)) is PortRefusal.IO_ERROR
