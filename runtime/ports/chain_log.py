"""The file that holds a chain: one SQLite database in WAL mode, and a small witness of its head (design 9).

    <directory>/chain.sqlite    records, and a table `meta` with format and chain id; mode 0600
    <directory>/chain.head      who holds the log (flock, pid), and sequence and hash of the newest answered record

What SQLite gives, with `synchronous=FULL`: a batch is one transaction, and it is on the disk when COMMIT returns. A
crash or power cut in the middle leaves frames without a valid commit behind it at the end of the WAL; SQLite drops
them on opening, and nothing of them was ever answered. That is a torn tail: counted before SQLite drops it, reported,
harmless.

What SQLite does not give: a WAL that is cut short or changed *later* is dropped from that place on in the same silence,
and an empty database file is a new database to it. Therefore the head is also written to `chain.head`, after each
COMMIT and without a sync of its own. It may lag behind the database after a power cut, never lead: a head that the
database does not reach, or that names another hash, means that answered records are gone, which is damage or
tampering and refuses the log. Whoever cuts both files alike is seen only by a copy of the head kept elsewhere.

Payloads of some size are compressed at rest; all carry a CRC of what is stored, so that a flipped bit that
decompression would not notice is noticed. Verification (`actors.chain.record`) names the first record that is not as
it was hashed; a page that SQLite cannot read is named by the sequence that should come next. The log is one file;
cutting it into segments waits until one of them is too large to copy.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from actors.chain.record import Stored, record_hash
from messages.chain import ChainRecord, RecordKey
from messages.ports import PortRefusal
from runtime.ports.chain_rows import INSERT, SELECT, TABLE, record_of, row_of, stored_of
from runtime.ports.chain_wal import torn_bytes

FORMAT = 1
APPLICATION_ID = 0x53454E43
DATABASE = "chain.sqlite"
HEAD = "chain.head"
PAGE_BYTES = 4 * 1024 * 1024
"""Payload bytes after which one reading ends, with at least one record."""

PRAGMAS = ("locking_mode = EXCLUSIVE", "journal_mode = WAL", "synchronous = FULL", "wal_autocheckpoint = 512")
"""Of the writer's connection, in this order."""

LOCK_WAIT_S = 2.0

_HEAD_BYTES = 256
_HEAD_LINE = re.compile(r"sennit\.chain\.head\.v1 pid (\d+) chain (\S+) record (\d+) (\S{64}) *\n", re.ASCII)
_PID = re.compile(rb"pid (\d+)")
_SCHEMA = f"""
    CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
    {TABLE};
    CREATE UNIQUE INDEX records_key ON records (source, idempotency_key) WHERE idempotency_key IS NOT NULL;
    CREATE INDEX records_hash ON records (hash);
    PRAGMA application_id = {APPLICATION_ID};
    PRAGMA user_version = {FORMAT};
"""
_SELECT_KEYS = f"""
    {SELECT} JOIN json_each(?) AS wanted
    ON source = json_extract(wanted.value, '$[0]') AND idempotency_key = json_extract(wanted.value, '$[1]')
"""

_HELD: dict[Path, ChainLog] = {}
"""Logs that this process holds. A store that crashed leaves its log to its next incarnation here, to nobody else."""


class ChainLogFault(Exception):
    """The log did not do what was asked, and nothing of it changed."""

    def __init__(self, code: PortRefusal, reason: str) -> None:
        super().__init__(f"{code.value}: {reason}")
        self.code = code
        self.reason = reason


class ChainLog:
    """One open log. `last` is its newest record, `torn_tail` the bytes that opening dropped.

    Methods raise `ChainLogFault` for a full disk and for damage; any other `sqlite3.Error` or `OSError` means that the
    state of the file is unknown: let it end the process.
    """

    def __init__(self, directory: Path, chain_id: str | None) -> None:
        """Open the log of `chain_id`, made if there is none; with None open what is there, for reading alone.

        Refused `invalid_state` while another process holds it, `damaged`, `disk_full`, and `not_found` for reading.
        """
        self.directory = directory.absolute()
        self.path = self.directory / DATABASE
        self.chain_id = chain_id or ""
        self.last: ChainRecord | None = None
        self.torn_tail = 0
        self._reading = chain_id is None
        self._lock = -1
        self._connection: sqlite3.Connection | None = None
        if self._reading and not self.directory.is_dir():
            raise self._fault(PortRefusal.NOT_FOUND, "there is no chain here; `sennit up` begins one")
        held = _HELD.get(self.directory)
        if held is not None and not self._reading:
            held.close()
        try:
            self._hold()
            with self._trouble():
                self._open()
        except BaseException:
            self.close()
            raise
        if not self._reading:
            _HELD[self.directory] = self

    @property
    def known(self) -> tuple[int, str] | None:
        """Sequence and hash of the newest record that was answered, as the witness remembers them."""
        return self._witness[1:] if self._witness is not None else None

    def write(self, records: Sequence[ChainRecord]) -> None:
        """Durable when it returns; nothing of it is written when it raises `ChainLogFault`."""
        expected, previous = (self.last.sequence + 1, self.last.hash) if self.last else (0, "0" * 64)
        for record in records:
            if (record.sequence, record.prev_hash, record.chain_id) != (expected, previous, self.chain_id):
                raise ValueError(f"the log goes on with record {expected} after {previous}, not with {record.sequence}")
            expected, previous = record.sequence + 1, record.hash
        with self._trouble():
            connection = self._database
            connection.execute("BEGIN IMMEDIATE")
            try:
                connection.executemany(
                    INSERT,
                    map(row_of, records),
                )
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
        if records:
            self.last = records[-1]
            self._write_witness()

    def read(self, after: int, limit: int) -> list[ChainRecord]:
        """Records above `after` in order: up to `limit`, up to about 4 MiB of payload, up to one that is unreadable.

        Raises `ChainLogFault` (`damaged`) when the first of them is unreadable.
        """
        return self._read(f"{SELECT} WHERE sequence > ? ORDER BY sequence LIMIT ?", (after, limit), after + 1)

    def stored(self) -> Iterator[Stored]:
        """Every record in order, in the form of the file: verification needs no more, and messages cost as much again.

        Raises `ChainLogFault` (`damaged`) when the next one cannot be read.
        """
        expected = 0
        try:
            for row in self._database.execute(f"{SELECT} ORDER BY sequence"):
                yield stored_of(row)
                expected += 1
        except (sqlite3.DatabaseError, ValueError) as error:
            if isinstance(error, sqlite3.DatabaseError) and not _is_damage(error):
                raise
            raise self._unreadable(expected, error) from None

    def find(self, sequence: int | None, hash_prefix: str | None) -> list[ChainRecord]:
        """The record of a sequence, or those whose hash begins so (at most 10)."""
        if sequence is not None:
            return self._read(f"{SELECT} WHERE sequence = ?", (sequence,), sequence)
        low, high = ((hash_prefix or "").ljust(64, digit) for digit in "0f")
        return self._read(
            f"{SELECT} WHERE hash BETWEEN ? AND ? ORDER BY sequence LIMIT 10",
            (bytes.fromhex(low), bytes.fromhex(high)),
            None,
        )

    def find_keys(self, keys: Sequence[RecordKey]) -> list[ChainRecord]:
        """The records that hold one of `keys`; about 4 MiB of payload at once, ask again for the rest."""
        wanted = json.dumps([(key.source, key.idempotency_key) for key in keys], ensure_ascii=False)
        return self._read(_SELECT_KEYS, (wanted,), None)

    def close(self) -> None:
        """Give the log up; what is committed is moved from the WAL into the database."""
        if _HELD.get(self.directory) is self:
            del _HELD[self.directory]
        connection, self._connection = self._connection, None
        lock, self._lock = self._lock, -1
        try:
            if connection is not None:
                connection.close()
        finally:
            if lock >= 0:
                os.close(lock)

    # opening

    def _hold(self) -> None:
        """Take the lock, on the witness's own file, and read what it says."""
        self._witness: tuple[str, int, str] | None = None
        self._witness_bytes = b""
        try:
            if not self._reading:
                self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            flags = os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_RDONLY if self._reading else os.O_RDWR | os.O_CREAT)
            self._lock = os.open(self.directory / HEAD, flags, 0o600)
            self._take_lock()
        except FileNotFoundError:  # reading a log whose witness is gone
            return
        except BlockingIOError:
            holder = _PID.search(os.pread(self._lock, _HEAD_BYTES, 0))
            who = f"process {holder[1].decode()}" if holder else "another process"
            raise self._fault(
                PortRefusal.INVALID_STATE, f"in use by {who}: ask the running cluster, or stop it"
            ) from None
        except OSError as error:
            code = PortRefusal.DISK_FULL if error.errno in (errno.ENOSPC, errno.EDQUOT) else PortRefusal.IO_ERROR
            raise self._fault(code, error.strerror or str(error)) from None
        self._witness_bytes = os.pread(self._lock, _HEAD_BYTES + 1, 0)
        found = _HEAD_LINE.fullmatch(self._witness_bytes.decode("ascii", "replace"))
        if found is not None:
            self._witness = (found[2], int(found[3]), found[4])

    def _take_lock(self) -> None:
        """A writer waits a little, for somebody may just be reading."""
        until = time.monotonic() + (0.0 if self._reading else LOCK_WAIT_S)
        while True:
            try:
                fcntl.flock(self._lock, (fcntl.LOCK_SH if self._reading else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= until:
                    raise
                time.sleep(0.02)
            else:
                return

    def _open(self) -> None:
        wal = self.path.with_name(DATABASE + "-wal")
        empty = not self.path.exists() or self.path.stat().st_size == 0
        if empty and (self._witness_bytes or (wal.exists() and wal.stat().st_size > 0)):
            raise self._damage("the database is missing or empty, but a chain was written here")
        if empty and self._reading:
            raise self._fault(PortRefusal.NOT_FOUND, "there is no chain here; `sennit up` begins one")
        self.torn_tail = torn_bytes(wal)
        if empty:
            os.close(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        else:
            self._judge()
        if self._reading:
            return
        self._connect_to_write()
        if self._is_bare():
            self._create()
        self._write_witness()
        os.fsync(self._lock)

    def _judge(self) -> None:
        """Look at what is there without changing it: a log that is refused stays as evidence, torn tail and all."""
        self._connect("ro")
        bare = self._is_bare()
        if bare and (self._witness_bytes or self._reading):
            raise self._damage("the database holds no tables, but a chain was written here")
        if not bare:
            self._check_meta()
        if not self._reading:
            if not bare:
                self.last = self._newest()
                self._check_witness()
            self._database.close()

    def _is_bare(self) -> bool:
        return bool(self._database.execute("SELECT count(*) = 0 FROM sqlite_master").fetchone()[0])

    def _connect(self, mode: str) -> None:
        # One thread at a time uses it, but the next incarnation of the store closes it from another.
        self._connection = sqlite3.connect(
            f"{self.path.as_uri()}?mode={mode}", uri=True, timeout=1.0, isolation_level=None, check_same_thread=False
        )
        self._connection.text_factory = bytes
        self._connection.execute("PRAGMA cell_size_check = ON")
        self._connection.execute("PRAGMA trusted_schema = OFF")

    def _connect_to_write(self) -> None:
        self.path.chmod(0o600)
        self._connect("rw")
        for pragma in PRAGMAS:
            self._database.execute(f"PRAGMA {pragma}")
        mode = self._database.execute("PRAGMA journal_mode").fetchone()[0]
        if bytes(mode) != b"wal":
            raise self._fault(PortRefusal.IO_ERROR, f"the file system does not take a write-ahead log ({mode!r})")

    def _create(self) -> None:
        connection = self._database
        connection.execute("BEGIN IMMEDIATE")
        try:
            for statement in _SCHEMA.split(";"):
                connection.execute(statement)
            connection.executemany(
                "INSERT INTO meta (name, value) VALUES (?, ?)",
                [("format", str(FORMAT)), ("chain_id", self.chain_id)],
            )
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        folder = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _check_meta(self) -> None:
        connection = self._database
        application = connection.execute("PRAGMA application_id").fetchone()[0]
        if application != APPLICATION_ID:
            raise self._damage("this is a database, but not a chain of sennit")
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        meta = {bytes(name): bytes(value) for name, value in connection.execute("SELECT name, value FROM meta")}
        if version != FORMAT or meta.get(b"format") != str(FORMAT).encode():
            raise self._damage(f"format {version}, this release reads {FORMAT}", "run the release that wrote it")
        chain_id = meta.get(b"chain_id", b"").decode("utf-8", "replace")
        if self._reading:
            self.chain_id = chain_id
        elif chain_id != self.chain_id:
            raise self._damage(
                f"it belongs to chain {chain_id!r}, not to {self.chain_id!r}", "give each cluster its own directory"
            )

    def _newest(self) -> ChainRecord | None:
        top = self._database.execute("SELECT max(sequence) FROM records").fetchone()[0]
        if top is None:
            return None
        newest = self.find(top, None)[0]
        if record_hash(newest) != newest.hash:
            raise self._damage(f"its last record ({top}) is not as it was written")
        return newest

    def _check_witness(self) -> None:
        """The database must reach what was answered. A witness that cannot be read is no proof either way."""
        if self._witness is None:
            return
        chain_id, sequence, digest = self._witness
        if chain_id != self.chain_id:
            raise self._damage(f"{HEAD} is of chain {chain_id!r}", "give each cluster its own directory")
        newest = -1 if self.last is None else self.last.sequence
        if sequence > newest:
            raise self._damage(f"it ends with record {newest}, but record {sequence} was written: the end was cut off")
        held = self.find(sequence, None)
        if not held or held[0].hash != digest:
            raise self._damage(f"record {sequence} is not the one that was written: the end was replaced")

    def _write_witness(self) -> None:
        if self.last is None:
            return
        line = (
            f"sennit.chain.head.v1 pid {os.getpid()} chain {self.chain_id} record {self.last.sequence} {self.last.hash}"
        )
        try:
            os.pwrite(self._lock, line.ljust(_HEAD_BYTES - 1).encode() + b"\n", 0)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):  # it may lag
                raise
        self._witness = (self.chain_id, self.last.sequence, self.last.hash)

    # reading

    @property
    def _database(self) -> sqlite3.Connection:
        if self._connection is None:
            raise self._fault(PortRefusal.INVALID_STATE, "the log is closed")
        return self._connection

    def _read(self, question: str, values: tuple[object, ...], first: int | None) -> list[ChainRecord]:
        records: list[ChainRecord] = []
        size = 0
        try:
            for row in self._database.execute(question, values):
                record = record_of(row)
                size += len(record.payload)
                if records and size > PAGE_BYTES:
                    break
                records.append(record)
        except (sqlite3.DatabaseError, ValueError) as error:
            if isinstance(error, sqlite3.DatabaseError) and not _is_damage(error):
                raise
            if not records:
                raise self._unreadable(first, error) from None
        return records

    @contextmanager
    def _trouble(self) -> Iterator[None]:
        """Say in the port's terms what SQLite says of a full disk and of damage; let the rest through."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            extended = getattr(error, "sqlite_errorcode", 0)
            code = extended & 0xFF
            # SHMSIZE: no room for the index that looking at a write-ahead log takes
            if code == sqlite3.SQLITE_FULL or extended == sqlite3.SQLITE_IOERR_SHMSIZE:
                raise self._fault(PortRefusal.DISK_FULL, "the disk is full") from error
            if code == sqlite3.SQLITE_BUSY:
                raise self._fault(PortRefusal.INVALID_STATE, "in use by another process: stop it first") from error
            if _is_damage(error):
                raise self._damage(str(error)) from error
            raise
        except UnicodeDecodeError as error:  # a message of SQLite that quotes what it found
            raise self._damage("its schema is not text") from error

    def _unreadable(self, sequence: int | None, error: Exception) -> ChainLogFault:
        return self._damage(f"{'a record' if sequence is None else f'record {sequence}'} cannot be read ({error})")

    def _damage(self, what: str, remedy: str = "") -> ChainLogFault:
        remedy = remedy or "keep it as it is and restore a copy, or move it away to begin a new chain"
        return self._fault(PortRefusal.DAMAGED, f"{what}; {remedy}")

    def _fault(self, code: PortRefusal, what: str) -> ChainLogFault:
        return ChainLogFault(code, f"{self.path}: {what}")


def _is_damage(error: sqlite3.DatabaseError) -> bool:
    """Corrupt pages, no database at all, or a schema that lost what it needs."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_ERROR,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_FORMAT,
        sqlite3.SQLITE_TOOBIG,
    )
