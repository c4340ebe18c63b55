"""The chain's file: durable, never empty or shorter in silence, full and damaged disks (N68 to N72, N95, N99)."""

import fcntl
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from actors.chain import canonical
from actors.chain.record import genesis, make_record, verify
from messages.chain import Entry, RecordKey
from messages.ports import PortRefusal
from runtime.ports import chain_log
from runtime.ports.chain_log import DATABASE, HEAD, PAGE_BYTES, ChainLog, ChainLogFault
from runtime.ports.chain_rows import PLAIN_BYTES
from runtime.ports.chain_store import read_chain, verify_file
from runtime.ports.chain_wal import torn_bytes

WAL = DATABASE + "-wal"


def following(records, count, size=40):
    """`records` and `count` more, each with an idempotency key."""
    records = list(records) or [genesis("test", 0)]
    for number in range(len(records), len(records) + count):
        payload = canonical.encode({"n": number, "text": "ab" * (size // 2)})
        entry = Entry(source="plane", kind="workload.place", payload=payload, idempotency_key=f"key {number}")
        records.append(make_record("test", number, records[-1].hash, number, entry))
    return records


RECORDS = following([], 39)


def write_log(directory, records=RECORDS):
    log = ChainLog(directory, "test")
    log.write(records)
    log.close()


def opened(directory, chain_id="test"):
    """The newest record of the log, or the code of the refusal."""
    try:
        log = ChainLog(directory, chain_id)
    except ChainLogFault as fault:
        return fault.code
    last = log.last
    log.close()
    return last


@pytest.fixture(autouse=True)
def _nothing_held(monkeypatch):
    monkeypatch.setattr(chain_log, "LOCK_WAIT_S", 0.0)
    yield
    for log in list(chain_log._HELD.values()):
        log.close()


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "chain"


WRITER = """
import os
import signal
import sys
from pathlib import Path
from actors.chain import canonical
from actors.chain.record import genesis, make_record
from messages.chain import Entry
from runtime.ports.chain_log import ChainLog

log = ChainLog(Path(sys.argv[1]), "test")
if log.last is None:
    log.write([genesis("test", 0)])
while log.last.sequence < int(sys.argv[2]):
    batch, last = [], log.last
    for _ in range(last.sequence % 3 + 1):
        entry = Entry(source="plane", kind="x", payload=canonical.encode({"n": last.sequence + 1, "text": "ab" * 90}))
        last = make_record("test", last.sequence + 1, last.hash, 0, entry)
        batch.append(last)
    log.write(batch)
    for record in batch:
        sys.stdout.write(f"{record.sequence} {record.hash}\\n")
    sys.stdout.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def crashed(tmp_path_factory):
    """A log whose writer was killed with most of the chain in the write-ahead log: folder and records."""
    directory = tmp_path_factory.mktemp("crashed")
    with running(directory, last=60) as process:
        process.communicate(timeout=30)
    return directory, read_chain(directory)


def running(directory, last=10**9):
    """A process that appends up to a sequence, says each record once it was answered, and kills itself."""
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(directory), str(last)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    )


def copied(source, target):
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    (target / (DATABASE + "-shm")).unlink(missing_ok=True)
    return target


def head_says(directory, record):
    """Let the witness remember an older record, as after a power cut."""
    line = f"sennit.chain.head.v1 pid 1 chain test record {record.sequence} {record.hash}"
    (directory / HEAD).write_bytes(line.ljust(255).encode() + b"\n")


def test_what_was_written_is_read_after_reopening(directory):
    write_log(directory, RECORDS[:10])
    log = ChainLog(directory, "test")
    assert log.last == RECORDS[9]
    log.write(RECORDS[10:])
    assert log.read(-1, 1000) == RECORDS
    assert log.read(4, 3) == RECORDS[5:8]
    assert log.read(39, 10) == []
    log.close()
    assert read_chain(directory) == RECORDS
    assert verify_file(directory) == verify(RECORDS)


def test_a_record_is_found_by_sequence_hash_and_key(directory):
    write_log(directory)
    log = ChainLog(directory, "test")
    assert log.find(7, None) == [RECORDS[7]]
    assert log.find(99, None) == []
    for digits in (8, 9, 64):
        assert log.find(None, RECORDS[7].hash[:digits]) == [RECORDS[7]]
    assert len(log.find(None, "")) == 10
    keys = [RecordKey(source="plane", idempotency_key=key) for key in ("key 3", "none", "key 5")]
    assert log.find_keys([*keys, RecordKey(source="gate", idempotency_key="key 3")]) == [RECORDS[3], RECORDS[5]]


def test_a_key_cannot_be_stored_twice(directory):
    write_log(directory, RECORDS[:4])
    log = ChainLog(directory, "test")
    entry = Entry(source="plane", kind="x", payload=b"{}", idempotency_key="key 2")
    with pytest.raises(sqlite3.IntegrityError):
        log.write([make_record("test", 4, RECORDS[3].hash, 0, entry)])
    assert log.last == RECORDS[3]
    log.write([RECORDS[4]])


def test_large_records_come_in_parts_and_one_always_comes(directory):
    large = following([], 5, size=PAGE_BYTES // 2)
    write_log(directory, large)
    log = ChainLog(directory, "test")
    assert [len(log.read(after, 10)) for after in (-1, 1, 4)] == [2, 1, 1]
    found = log.find_keys([RecordKey(source="plane", idempotency_key=f"key {number}") for number in range(1, 6)])
    assert 1 <= len(found) < 5
    log.close()
    assert read_chain(directory) == large


def test_payloads_are_compressed_at_rest(directory):
    write_log(directory, following([], 1, size=100_000))
    assert sum(path.stat().st_size for path in directory.iterdir()) < 90_000


@pytest.mark.parametrize("size", [0, PLAIN_BYTES - 40, PLAIN_BYTES, PLAIN_BYTES + 1, 5_000])
def test_payloads_of_every_size_read_back(directory, size):
    records = following([], 2, size=size)
    write_log(directory, records)
    assert read_chain(directory) == records
    assert verify_file(directory).valid


@pytest.mark.parametrize("change", ["time_ms = time_ms + 1", "source = 'gate'", "payload_hash = zeroblob(32)"])
def test_a_log_whose_last_record_was_changed_is_refused(directory, change):
    write_log(directory)
    with sqlite3.connect(directory / DATABASE) as connection:
        connection.execute(f"UPDATE records SET {change} WHERE sequence = {len(RECORDS) - 1}")
    connection.close()
    assert opened(directory) is PortRefusal.DAMAGED


@pytest.mark.parametrize("record", [RECORDS[5], RECORDS[2], genesis("test", 0), genesis("other", 0)])
def test_only_the_next_link_is_written(directory, record):
    write_log(directory, RECORDS[:3])
    log = ChainLog(directory, "test")
    with pytest.raises(ValueError, match="goes on with record 3"):
        log.write([record])
    assert log.read(-1, 100) == RECORDS[:3]


def test_the_files_are_the_owners_alone(directory):
    log = ChainLog(directory, "test")
    log.write(RECORDS)
    assert {path.stat().st_mode & 0o777 for path in directory.iterdir()} == {0o600}
    assert directory.stat().st_mode & 0o777 == 0o700
    log.close()
    (directory / DATABASE).chmod(0o644)
    ChainLog(directory, "test").close()
    assert (directory / DATABASE).stat().st_mode & 0o777 == 0o600


def test_a_log_in_use_is_refused_naming_the_process(directory):
    write_log(directory)
    with (directory / HEAD).open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(ChainLogFault, match=f"in use by process {os.getpid()}"):
            ChainLog(directory, "test")
        for reading in (read_chain, verify_file):
            with pytest.raises(ChainLogFault) as fault:
                reading(directory)
            assert fault.value.code is PortRefusal.INVALID_STATE
    assert opened(directory) == RECORDS[-1]


def test_sqlite_itself_lets_nobody_else_in(directory):
    log = ChainLog(directory, "test")
    log.write(RECORDS)
    other = sqlite3.connect(directory / DATABASE, timeout=0)
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        other.execute("SELECT count(*) FROM records")
    other.close()


def test_the_next_incarnation_in_a_process_takes_over_the_log_of_the_crashed_one(directory):
    first = ChainLog(directory, "test")
    first.write(RECORDS[:5])
    second = ChainLog(directory, "test")
    assert second.last == RECORDS[4]
    with pytest.raises(ChainLogFault):
        first.write([RECORDS[5]])
    second.write([RECORDS[5]])


def test_reading_changes_no_record_and_needs_a_chain(directory, tmp_path):
    for reading in (read_chain, verify_file):
        with pytest.raises(ChainLogFault) as fault:
            reading(tmp_path / "nothing")
        assert fault.value.code is PortRefusal.NOT_FOUND
        directory.mkdir(exist_ok=True)
        with pytest.raises(ChainLogFault) as fault:
            reading(directory)
        assert fault.value.code is PortRefusal.NOT_FOUND
    assert list(directory.iterdir()) == []
    write_log(directory)
    before = {name: (directory / name).read_bytes() for name in (DATABASE, HEAD)}
    read_chain(directory)
    verify_file(directory)
    assert {name: (directory / name).read_bytes() for name in before} == before


def not_a_database(directory):
    (directory / DATABASE).write_bytes(b"not a database at all" * 400)


def another_database(directory):
    (directory / DATABASE).unlink()
    with sqlite3.connect(directory / DATABASE) as connection:
        connection.execute("CREATE TABLE t (x)")
    connection.close()


def without_tables(directory):
    (directory / DATABASE).unlink()
    with sqlite3.connect(directory / DATABASE) as connection:
        connection.execute("CREATE TABLE t (x)")
        connection.execute("DROP TABLE t")
    connection.close()


def newer_format(directory):
    with sqlite3.connect(directory / DATABASE) as connection:
        connection.execute("PRAGMA user_version = 2")
    connection.close()


def without_records(directory):
    with sqlite3.connect(directory / DATABASE) as connection:
        connection.execute("DROP TABLE records")
    connection.close()


def cut_records(directory):
    with sqlite3.connect(directory / DATABASE) as connection:
        connection.execute("DELETE FROM records WHERE sequence > 30")
    connection.close()


def all_records_cut(directory):
    with sqlite3.connect(directory / DATABASE) as connection:
        connection.execute("DELETE FROM records")
    connection.close()


def replaced_tail(directory):
    forged = RECORDS[:30]
    for number in range(30, 40):
        entry = Entry(source="plane", kind="forged", payload=b"{}")
        forged.append(make_record("test", number, forged[-1].hash, 0, entry))
    head = (directory / HEAD).read_bytes()
    shutil.rmtree(directory)
    write_log(directory, forged)
    (directory / HEAD).write_bytes(head)


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (not_a_database, "not a database"),
        (another_database, "not a chain of sennit"),
        (without_tables, "no tables"),
        (newer_format, "run the release that wrote it"),
        (without_records, "no such table"),
        (cut_records, "ends with record 30"),
        (all_records_cut, "the end was cut off"),
        (replaced_tail, "the end was replaced"),
        (lambda directory: (directory / DATABASE).write_bytes(b""), "missing or empty"),
        (lambda directory: (directory / DATABASE).unlink(), "missing or empty"),
    ],
)
def test_a_damaged_log_is_refused_with_a_remedy_and_left_alone(directory, damage, why):
    write_log(directory)
    damage(directory)
    with pytest.raises(ChainLogFault, match=why) as fault:
        ChainLog(directory, "test")
    assert fault.value.code is PortRefusal.DAMAGED
    assert ";" in fault.value.reason
    assert not verify_file(directory).valid


def test_the_log_of_another_cluster_is_refused(directory):
    write_log(directory)
    with pytest.raises(ChainLogFault, match=r"belongs to chain 'test'.*own directory"):
        ChainLog(directory, "other")
    assert opened(directory) == RECORDS[-1]


@pytest.mark.parametrize("witness", [None, b"", b"x", b"sennit.chain.head.v1 pid 1 chain test record 99\n"])
def test_a_witness_that_cannot_be_read_proves_nothing_against_records_that_are_there(directory, witness):
    write_log(directory)
    (directory / HEAD).unlink()
    if witness is not None:
        (directory / HEAD).write_bytes(witness)
    assert verify_file(directory).valid
    assert opened(directory) == RECORDS[-1]
    assert b"record 39 " in (directory / HEAD).read_bytes()


def test_a_witness_that_lags_is_no_fault(directory):
    write_log(directory)
    head_says(directory, RECORDS[20])
    assert verify_file(directory).valid
    assert opened(directory) == RECORDS[-1]


def test_a_creation_that_was_cut_short_begins_anew(directory):
    directory.mkdir()
    (directory / HEAD).write_bytes(b"")
    (directory / DATABASE).write_bytes(b"")
    assert opened(directory) is None
    write_log(directory)
    assert read_chain(directory) == RECORDS


def test_a_database_cut_at_any_place_is_never_taken_for_a_shorter_chain(directory, tmp_path):
    write_log(directory)
    size = (directory / DATABASE).stat().st_size
    for offset in [0, 1, 15, 16, 99, 100, *range(512, size, 1536), size - 1]:
        cut = copied(directory, tmp_path / "cut")
        os.truncate(cut / DATABASE, offset)
        verdict = verify_file(cut)
        assert not verdict.valid or read_chain(cut) == RECORDS, offset
        assert opened(cut) in (PortRefusal.DAMAGED, RECORDS[-1]), offset


def test_no_flipped_bit_in_the_database_passes_for_the_truth(directory, tmp_path):
    write_log(directory)
    content = bytearray((directory / DATABASE).read_bytes())
    random = Random(7)
    noticed = 0
    flipped = copied(directory, tmp_path / "flipped")
    for place in [*range(100), *(random.randrange(len(content)) for _ in range(300))]:
        bit = 1 << random.randrange(8)
        content[place] ^= bit
        (flipped / DATABASE).write_bytes(content)
        verdict = verify_file(flipped)
        noticed += not verdict.valid
        if verdict.valid:
            assert read_chain(flipped) == RECORDS, place
        content[place] ^= bit
    assert noticed > 50


def test_one_flipped_bit_of_a_stored_payload_names_its_record(directory):
    write_log(directory)
    connection = sqlite3.connect(directory / DATABASE)
    connection.execute("PRAGMA synchronous = OFF")
    for number in (0, 17, 39):
        [stored] = connection.execute("SELECT payload FROM records WHERE sequence = ?", (number,)).fetchone()
        for bit in range(0, len(stored) * 8, 9):
            changed = bytearray(stored)
            changed[bit // 8] ^= 1 << bit % 8
            with connection:
                connection.execute("UPDATE records SET payload = ? WHERE sequence = ?", (bytes(changed), number))
            verdict = verify_file(directory)
            assert (verdict.valid, verdict.first_bad, verdict.count) == (False, number, number), bit
        with connection:
            connection.execute("UPDATE records SET payload = ? WHERE sequence = ?", (stored, number))
    connection.close()
    assert verify_file(directory).valid


@pytest.mark.parametrize(
    "change",
    [
        "time_ms = time_ms + 1",
        "source = 'gate'",
        "kind = 'x'",
        "chain_id = 'other'",
        "idempotency_key = 'other'",
        "idempotency_key = NULL",
        "stored_crc = stored_crc + 1",
        "hash = zeroblob(32)",
        "prev_hash = zeroblob(32)",
        "payload_hash = zeroblob(31)",
        "time_ms = 'soon'",
        "kind = CAST(x'ff' AS TEXT)",
        "source = 7",
    ],
)
def test_a_changed_column_names_its_record(directory, change):
    write_log(directory)
    with sqlite3.connect(directory / DATABASE) as connection:
        connection.execute(f"UPDATE records SET {change} WHERE sequence = 12")
    connection.close()
    verdict = verify_file(directory)
    assert (verdict.valid, verdict.first_bad) == (False, 12)


def test_a_killed_writer_loses_nothing_that_was_answered(directory):
    random = Random(3)
    answered = []
    for _ in range(3):
        with running(directory) as process:
            answered += [process.stdout.readline() for _ in range(random.randrange(1, 120))]
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            answered += [line for line in process.stdout if line.endswith("\n")]
        assert verify_file(directory).valid
        stored = {f"{record.sequence} {record.hash}\n" for record in read_chain(directory)}
        assert set(answered) <= stored
        assert opened(directory).sequence == len(stored) - 1
    assert len(answered) > 3


def test_a_write_ahead_log_cut_anywhere_is_noticed_by_the_witness(crashed, tmp_path):
    source, records = crashed
    size = (source / WAL).stat().st_size
    for offset in [0, 1, 31, 32, 55, *range(100, size, 17_077), size - 1]:
        cut = copied(source, tmp_path / "cut")
        os.truncate(cut / WAL, offset)
        verdict = verify_file(cut)
        assert not verdict.valid, offset
        assert opened(cut) is PortRefusal.DAMAGED, offset
    assert opened(copied(source, tmp_path / "whole")) == records[-1]


def test_a_missing_write_ahead_log_is_noticed(crashed, tmp_path):
    cut = copied(crashed[0], tmp_path / "cut")
    (cut / WAL).unlink()
    assert opened(cut) is PortRefusal.DAMAGED


def test_a_torn_tail_is_dropped_counted_and_no_tampering(crashed, tmp_path):
    source, records = crashed
    torn = copied(source, tmp_path / "torn")
    size = (torn / WAL).stat().st_size
    os.truncate(torn / WAL, size - 100)  # the last commit was never completed
    with pytest.raises(ChainLogFault, match="cut off"):  # and yet somebody was answered
        ChainLog(torn, "test")
    head_says(torn, records[10])  # nobody was
    verdict = verify_file(torn)
    assert verdict.valid
    assert verdict.torn_tail > 0
    assert 10 < verdict.count <= len(records) - 1
    log = ChainLog(torn, "test")
    assert log.torn_tail == verdict.torn_tail
    log.write(following(records[: log.last.sequence + 1], 1)[-1:])
    log.close()
    assert verify_file(torn).torn_tail == 0


def test_a_flipped_bit_in_the_write_ahead_log_never_passes_for_the_truth(crashed, tmp_path):
    source, records = crashed
    random = Random(5)
    flipped = copied(source, tmp_path / "flipped")
    content = bytearray((source / WAL).read_bytes())
    noticed = 0
    for place in [0, 8, 16, 24, 33, *(random.randrange(len(content)) for _ in range(60))]:
        content[place] ^= 4
        (flipped / WAL).write_bytes(content)
        (flipped / (DATABASE + "-shm")).unlink(missing_ok=True)
        verdict = verify_file(flipped)
        noticed += not verdict.valid
        if verdict.valid:
            assert read_chain(flipped) == records, place
        content[place] ^= 4
    assert noticed > 30


@pytest.mark.parametrize(("content", "torn"), [(None, 0), (b"", 0), (b"x" * 10, 10), (b"x" * 100, 100)])
def test_what_is_no_write_ahead_log_was_never_committed(tmp_path, content, torn):
    if content is not None:
        (tmp_path / WAL).write_bytes(content)
    assert torn_bytes(tmp_path / WAL) == torn


def test_a_whole_write_ahead_log_has_no_torn_tail(crashed):
    source, _ = crashed
    assert (source / WAL).stat().st_size > 10_000
    assert torn_bytes(source / WAL) == 0


def fill(log, records):
    """Append until the disk is full; what the log holds then."""
    for _ in range(1_000):
        more = following(records, 5, size=2_000)
        try:
            log.write(more[len(records) :])
        except ChainLogFault as full:
            if full.code is not PortRefusal.DISK_FULL:
                raise
            return records
        records = more
    raise AssertionError("the disk is not small")


def test_a_full_disk_refuses_a_batch_whole_and_heals_by_itself(directory):
    write_log(directory)
    log = ChainLog(directory, "test")
    log._connection.execute("PRAGMA max_page_count = 30")
    records = fill(log, RECORDS)
    assert len(records) > len(RECORDS)
    assert log.last == records[-1]
    with pytest.raises(ChainLogFault, match="full"):
        log.write(following(records, 200, size=4_000)[len(records) :])
    assert log.read(-1, 1000) == records
    log._connection.execute("PRAGMA max_page_count = 1000000")
    more = following(records, 20, size=4_000)
    log.write(more[len(records) :])
    log.close()
    assert read_chain(directory) == more


@pytest.fixture
def small_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", disk], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip("needs the right to mount a small tmpfs")
    yield disk
    for log in list(chain_log._HELD.values()):
        log.close()
    subprocess.run(["umount", disk], check=True)


def test_a_disk_that_really_is_full_is_survived(small_disk):
    directory = small_disk / "chain"
    log = ChainLog(directory, "test")
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * 100_000)
    records = fill(log, RECORDS[:0])
    assert log.read(-1, 1000) == records
    log.close()
    assert opened(directory) in (PortRefusal.DISK_FULL, records[-1])
    ballast.unlink()
    log = ChainLog(directory, "test")
    assert log.last == records[-1]
    more = following(records, 5, size=2_000)
    log.write(more[len(records) :])
    log.close()
    assert read_chain(directory) == more


def test_a_log_cannot_begin_on_a_full_disk_but_later(small_disk):
    ballast = small_disk / "ballast"
    with pytest.raises(OSError, match="No space"):
        ballast.write_bytes(b"x" * 1_000_000)
    assert opened(small_disk / "chain") is PortRefusal.DISK_FULL
    ballast.unlink()
    write_log(small_disk / "chain")
    assert read_chain(small_disk / "chain") == RECORDS
