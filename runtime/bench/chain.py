"""`sennit bench chain`: appends and verification of the chain, beside what bounds them.

Everything in one run, the rounds of the peers taking turns: figures of a shared machine mean little alone, ratios do.

* `sennit`: the Chain actor and its SQLite store in one live world, no network. Singly: one client that waits for each
  answer. Grouped: `CLIENTS` clients that each wait for theirs, so the chain cuts batches out of what came meanwhile.
  Every entry has an idempotency key, as those of the control plane have.
* `no actors`: the same work on the same entries in a loop of one thread: check, look the keys up, link, write.
* `raw SQLite`: the same rows, made beforehand, inserted into the same tables under the same pragmas.
* `fdatasync`: the bytes of those rows appended to a file.

The last three commit singly, and grouped in transactions of the mean size that the chain reached in the same round.

Verification reads the file that was written, as `sennit chain verify` does when no cluster runs. Its bound fetches the
same columns and computes two SHA-256 a record, judging nothing.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from statistics import median
from typing import Any

from actors.actor import Actor, Context, Procedure
from actors.chain.batch import key_of, link, objection
from actors.chain.canonical import encode
from actors.chain.chain import Chain
from actors.chain.record import genesis
from messages.base import Address, Message, Request
from messages.chain import Append, ChainRecord, Entry
from messages.system import GetState
from runtime.bench.machine import machine
from runtime.kernel.live import LiveWorld
from runtime.ports.chain_log import DATABASE, PRAGMAS, ChainLog
from runtime.ports.chain_rows import INSERT, SELECT, row_of
from runtime.ports.chain_store import SqliteChainStore, verify_file

CHAIN_ID = "c-bench"
CHAIN, STORE, DRIVER = Address("chain/chain"), Address("chain/store"), Address("chain/driver")
ROUNDS = 9
SINGLE = 100
GROUPED = 5_000
CLIENTS = 500
TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Appends:
    """Medians over the rounds: records a second, records a grouped transaction, and the shares of what raw SQLite did
    in the same round."""

    name: str
    single_per_s: float
    grouped_per_s: float
    batch: float
    single_share: float
    grouped_share: float


@dataclass(frozen=True)
class Verified:
    """Medians over the rounds: records a second, and the share of its bound in the same round."""

    name: str
    records: int
    per_s: float
    share: float


@dataclass(frozen=True)
class ChainFigures:
    machine: str
    appends: list[Appends]
    verified: list[Verified]


Rates = tuple[float, float, float]
"""What one round measured: records a second singly (out of the median wait) and grouped, and the mean size of a grouped
transaction."""

RAW = "raw SQLite"

Write = Callable[[Sequence[Any]], object]
"""Makes what it is given durable in one transaction."""


def run(rounds: int = ROUNDS, single: int = SINGLE, grouped: int = GROUPED, clients: int = CLIENTS) -> ChainFigures:
    """Ours first, then what bounds it. Raises `AskFailed` when an append is refused."""
    taken: dict[str, list[Rates]] = {name: [] for name in ("sennit", "no actors", RAW, "fdatasync")}
    with tempfile.TemporaryDirectory(prefix="sb-") as where:
        folder = Path(where)
        with (
            ours(folder / "ours") as (append, batches),
            loop(folder / "loop") as by_loop,
            raw(folder / "raw") as to_sqlite,
            plain(folder / "plain") as to_file,
        ):
            last = genesis(CHAIN_ID, 0)
            for number in range(rounds + 1):
                entries = [entry(f"round-{number}", place) for place in range(single + grouped)]
                records, _ = linked(entries, last)
                last = records[-1]
                rows = [row_of(record) for record in records]
                lines = [b"|".join(str(column).encode() for column in row) for row in rows]
                bounds: list[tuple[Sequence[Any], Write]] = [(entries, by_loop), (rows, to_sqlite), (lines, to_file)]

                waits_s: list[list[float]] = [[] for _ in taken]
                for place in range(single):  # in turn, for others sync disks too
                    waits_s[0].append(append(entries[place : place + 1], 1))
                    for waits, (work, write) in zip(waits_s[1:], bounds, strict=True):
                        waits.append(in_batches(work[place : place + 1], 1, write))
                before = batches()
                took_s = [append(entries[single:], clients)]
                batch = grouped / (batches() - before)
                took_s += [in_batches(work[single:], max(1, round(batch)), write) for work, write in bounds]
                if number > 0:  # the first is a warm-up
                    for name, waits, all_s in zip(taken, waits_s, took_s, strict=True):
                        taken[name].append((1 / median(waits), grouped / all_s, batch))
        appends = [_appends(name, rates, taken[RAW]) for name, rates in taken.items()]
        return ChainFigures(machine(), appends, verification(folder / "ours", rounds))


def entry(turn: str, number: int) -> Entry:
    """What a dispatch is recorded as, about 360 bytes of payload."""
    decision = sha256(f"{turn}.{number}".encode()).hexdigest()
    slot = f"cog-hostwatch-{decision[:16]}"
    told = {
        "phase": "dispatching",
        "decision_id": decision,
        "workload": "hostwatch",
        "instance_id": f"{slot}-n-{decision[16:32]}",
        "slot": slot,
        "epoch": f"1.{number}",
        "node_id": f"n-{decision[16:32]}",
        "manifest_hash": sha256(b"manifest").hexdigest(),
    }
    key = f"{turn}.{number}"
    return Entry(source="workload.placement", kind="workload.place", payload=encode(told), idempotency_key=key)


def _appends(name: str, rates: list[Rates], bound: list[Rates]) -> Appends:
    single, grouped, batch = (median(column) for column in zip(*rates, strict=True))
    shares = [(mine[0] / raw[0], mine[1] / raw[1]) for mine, raw in zip(rates, bound, strict=True)]
    single_share, grouped_share = (median(column) for column in zip(*shares, strict=True))
    return Appends(name, single, grouped, batch, single_share, grouped_share)


# ours


class Took(Message, frozen=True):
    seconds: float


class AppendThem(Request[Took], frozen=True):
    """Append each of `requests`, through `clients` that each wait for an answer before they take the next."""

    requests: list[Append]
    clients: int


class Driver(Actor[AppendThem]):
    mailbox = AppendThem

    def receive(self, message: AppendThem, ctx: Context) -> Procedure | None:
        requests, clients = iter(message.requests), [message.clients]
        began = time.perf_counter()

        async def client() -> None:
            for request in requests:
                await ctx.ask(CHAIN, request, timeout_s=TIMEOUT_S)
            clients[0] -= 1
            if not clients[0]:
                ctx.reply(Took(seconds=time.perf_counter() - began))

        for _ in range(message.clients):
            ctx.run(client())
        return None


@contextmanager
def ours(folder: Path) -> Iterator[tuple[Callable[[Sequence[Entry], int], float], Callable[[], int]]]:
    """How to append entries through so many clients (the seconds it took them), and how many batches there were."""
    world = LiveWorld("chain", lambda *_: None)
    try:
        world.spawn(STORE, lambda: SqliteChainStore(folder))
        world.spawn(CHAIN, lambda: Chain(CHAIN_ID))
        world.spawn(DRIVER, Driver)

        def append(entries: Sequence[Entry], clients: int) -> float:
            request = AppendThem(requests=[Append(entry=each) for each in entries], clients=clients)
            return world.main.ask(DRIVER, request, TIMEOUT_S).seconds

        yield append, lambda: int(world.main.ask(CHAIN, GetState(), TIMEOUT_S).state["batches"])
    finally:
        world.close()
        ChainLog(folder, CHAIN_ID).close()  # takes the file over from the store, and leaves it whole


# what bounds it


def in_batches(work: Sequence[Any], batch: int, write: Write) -> float:
    """Seconds."""
    began = time.perf_counter()
    for place in range(0, len(work), batch):
        write(work[place : place + batch])
    return time.perf_counter() - began


def linked(entries: Sequence[Entry], last: ChainRecord) -> tuple[list[ChainRecord], object]:
    """As records behind `last`."""
    made = link(entries, last, {}, 1_700_000_000_000)
    assert made is not None, "no key is taken"
    return made


@contextmanager
def loop(folder: Path) -> Iterator[Write]:
    with closing(ChainLog(folder, CHAIN_ID)) as log:
        log.write([genesis(CHAIN_ID, 0)])

        def write(entries: Sequence[Entry]) -> None:
            for each in entries:
                assert objection([each], len(each.payload)) is None
            assert log.last is not None
            assert not log.find_keys([key_of(each) for each in entries])
            log.write(linked(entries, log.last)[0])

        yield write


@contextmanager
def raw(folder: Path) -> Iterator[Write]:
    ChainLog(folder, CHAIN_ID).close()  # the same tables
    with closing(sqlite3.connect(folder / DATABASE, isolation_level=None)) as connection:
        for pragma in PRAGMAS:
            connection.execute(f"PRAGMA {pragma}")

        def write(rows: Sequence[tuple[object, ...]]) -> None:
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(INSERT, rows)
            connection.execute("COMMIT")

        yield write


@contextmanager
def plain(file: Path) -> Iterator[Write]:
    with file.open("wb", buffering=0) as out:

        def write(lines: Sequence[bytes]) -> None:
            out.write(b"".join(lines))
            os.fdatasync(out.fileno())

        yield write


# verification


def verification(folder: Path, rounds: int) -> list[Verified]:
    """Read the log in `folder` `rounds` times, judging it, and as often only fetching and hashing."""
    rates: list[tuple[float, float]] = []
    records = 0
    for _ in range(rounds):
        began = time.perf_counter()
        verdict = verify_file(folder)
        between = time.perf_counter()
        fetch_and_hash(folder)
        ended = time.perf_counter()
        if not verdict.valid:
            raise RuntimeError(f"the log that was just written is not valid: {verdict.problem}")
        records = verdict.count
        rates.append((records / (between - began), records / (ended - between)))
    mine, bound = (median(column) for column in zip(*rates, strict=True))
    share = median(one / other for one, other in rates)
    return [Verified("sennit", records, mine, share), Verified("fetch and hash", records, bound, 1.0)]


def fetch_and_hash(folder: Path) -> None:
    with closing(sqlite3.connect((folder / DATABASE).as_uri() + "?mode=ro", uri=True)) as connection:
        for row in connection.execute(SELECT):
            sha256(row[8]).digest()
            sha256(row[8]).digest()
