"""The live store keeps the old content or the new, and never reads as empty what it cannot read."""

import contextlib
import resource
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from messages.ports import PortRefusal
from runtime.ports.store import Documents, StoreFault, unwrap, wrap

CLUSTER = "c-0123456789abcdef"


def documents(path: Path, cluster: str = CLUSTER, process: str = "shed") -> Documents:
    return Documents(path / "state", cluster, process)


def test_what_was_saved_is_loaded_by_the_next_process(tmp_path):
    first = documents(tmp_path)
    assert first.load("agent") is None
    first.save("agent", b"one")
    first.save("agent", b"two")
    first.close()
    assert documents(tmp_path).load("agent") == b"two"


def test_files_are_private_and_no_temporary_stays(tmp_path):
    store = documents(tmp_path)
    store.save("agent", b"x")
    file = tmp_path / "state" / "agent.doc"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert sorted(path.name for path in file.parent.iterdir()) == ["agent.doc", "lock"]


def test_a_temporary_left_by_a_crash_is_cleared_and_never_read(tmp_path):
    (tmp_path / "state").mkdir()
    leftover = tmp_path / "state" / ".agent.0011.tmp"
    leftover.write_bytes(b"half")
    assert documents(tmp_path).load("agent") is None
    assert not leftover.exists()


def test_a_file_cut_at_any_byte_is_refused_and_left(tmp_path):
    documents(tmp_path).save("agent", b"some state")
    file = tmp_path / "state" / "agent.doc"
    whole = file.read_bytes()
    for length in range(len(whole)):
        file.write_bytes(whole[:length])
        store = documents(tmp_path)
        for attempt in (lambda: store.load("agent"), lambda: store.save("agent", b"new")):  # noqa: B023
            with pytest.raises(StoreFault) as caught:
                attempt()
            assert caught.value.code is PortRefusal.DAMAGED
            assert "agent.doc" in caught.value.reason
        assert file.read_bytes() == whole[:length]


def test_a_bit_flipped_anywhere_is_refused():
    whole = wrap(b"some state", "agent", CLUSTER)
    for position in range(len(whole) * 8):
        flipped = bytearray(whole)
        flipped[position // 8] ^= 1 << position % 8
        with pytest.raises(StoreFault):
            unwrap(bytes(flipped), "agent", CLUSTER, "agent.doc")


@settings(max_examples=50)
@given(data=st.binary(max_size=200), more=st.binary(min_size=1, max_size=20))
def test_only_the_exact_bytes_are_read(data, more):
    whole = wrap(data, "agent", CLUSTER)
    assert unwrap(whole, "agent", CLUSTER, "agent.doc") == data
    with pytest.raises(StoreFault):
        unwrap(whole + more, "agent", CLUSTER, "agent.doc")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "empty"),
        (b"\0" * 64, "does not begin like"),
        (b'{"instances": []}' * 4, "does not begin like"),
        (wrap(b"x", "agent", CLUSTER)[:8] + b"\x00\x02" + wrap(b"x", "agent", CLUSTER)[10:], "format 2"),
        (wrap(b"x", "agent", "c-ffffffffffffffff"), "belongs to cluster c-ffffffffffffffff"),
        (wrap(b"x", "other", CLUSTER), "SHA-256"),
    ],
)
def test_damage_is_named_with_a_remedy(tmp_path, content, says):
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "agent.doc").write_bytes(content)
    with pytest.raises(StoreFault, match=says) as caught:
        documents(tmp_path).load("agent")
    assert caught.value.code is PortRefusal.DAMAGED
    assert "left as it is: " in caught.value.reason


def test_a_link_in_the_place_of_a_document_is_not_followed(tmp_path):
    (tmp_path / "state").mkdir()
    (tmp_path / "elsewhere").write_bytes(wrap(b"x", "agent", CLUSTER))
    (tmp_path / "state" / "agent.doc").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreFault) as caught:
        documents(tmp_path).load("agent")
    assert caught.value.code is PortRefusal.IO_ERROR


@pytest.mark.parametrize("name", ["", "a/b", "..", "A", "a.b", "é", "a" * 65])
def test_a_name_outside_the_pattern_is_refused(tmp_path, name):
    with pytest.raises(StoreFault) as caught:
        documents(tmp_path).save(name, b"x")
    assert caught.value.code is PortRefusal.INVALID


HOLDER = """
import os, sys
from pathlib import Path
from runtime.ports.store import Documents
Documents(Path(sys.argv[1]), "c-1", "attic").save("agent", b"x")
print(os.getpid(), flush=True)
sys.stdin.read()
"""


def test_a_second_process_is_told_who_holds_the_directory_and_gets_it_when_that_one_is_gone(tmp_path):
    arguments = [sys.executable, "-c", HOLDER, str(tmp_path / "state")]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        pid = holder.stdout.readline().strip()
        second = documents(tmp_path, cluster="c-1")
        with pytest.raises(StoreFault, match=f"held by attic of cluster c-1 \\(pid {pid}\\)") as caught:
            second.load("agent")
        assert caught.value.code is PortRefusal.INVALID_STATE
        holder.stdin.close()
        holder.wait(timeout=30)
    assert second.load("agent") == b"x"
    second.close()


def test_a_crashed_store_leaves_the_directory_to_its_next_incarnation(tmp_path):
    documents(tmp_path).save("agent", b"x")  # never closed
    assert documents(tmp_path).load("agent") == b"x"


FULL = """
import resource, signal, sys
from pathlib import Path
from runtime.ports.store import Documents, StoreFault
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = Documents(Path(sys.argv[1]), "c-0", "shed")
store.save("agent", b"old")
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
try:
    store.save("agent", b"n" * 10_000)
except StoreFault as fault:
    print(fault.code.value)
print(store.load("agent"))
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
store.save("agent", b"new")
print(store.load("agent"))
"""


def test_a_write_that_does_not_fit_is_refused_and_the_old_content_stays(tmp_path):
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path / "state")], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout.split() == ["disk_full", "b'old'", "b'new'"]
    assert sorted(path.name for path in (tmp_path / "state").iterdir()) == ["agent.doc", "lock"]


@pytest.fixture
def small_disk(tmp_path):
    place = tmp_path / "small"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", place]
    mounted = subprocess.run(command, capture_output=True, check=False)
    if mounted.returncode != 0:
        pytest.skip("no permission to mount a small file system")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def test_a_full_disk_is_told_and_recovers_by_itself(small_disk):
    store = Documents(small_disk / "state", CLUSTER, "shed")
    store.save("agent", b"old")
    ballast = small_disk / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    with pytest.raises(StoreFault) as caught:
        store.save("agent", b"n" * 10_000)
    assert caught.value.code is PortRefusal.DISK_FULL
    assert store.load("agent") == b"old"
    ballast.unlink()
    store.save("agent", b"new")
    assert store.load("agent") == b"new"
