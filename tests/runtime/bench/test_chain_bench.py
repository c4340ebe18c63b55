"""The figures of the chain have their shape, on a run too small to mean anything."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from runtime.bench import chain as bench
from runtime.ports.chain_log import DATABASE
from runtime.ports.chain_store import read_chain


@pytest.fixture(scope="module")
def figures():
    return bench.run(rounds=1, single=3, grouped=60, clients=20)


def test_every_peer_has_its_figures_and_raw_sqlite_is_the_measure(figures):
    assert [made.name for made in figures.appends] == ["sennit", "no actors", "raw SQLite", "fdatasync"]
    for made in figures.appends:
        assert min(made.single_per_s, made.grouped_per_s, made.single_share, made.grouped_share) > 0
    raw = figures.appends[2]
    assert (raw.single_share, raw.grouped_share) == (1, 1)
    assert "Python" in figures.machine


def test_clients_that_wait_together_share_transactions(figures):
    ours, *others = figures.appends
    assert 1 < ours.batch <= 20
    assert [made.batch for made in others] == [ours.batch] * 3


def test_all_that_was_appended_is_verified(figures):
    judged, fetched = figures.verified
    assert (judged.records, fetched.records) == (1 + 2 * 63, 1 + 2 * 63)
    assert judged.per_s > 0
    assert fetched.share == 1


def test_the_bounds_write_the_same_rows(tmp_path):
    entries = [bench.entry("t", number) for number in range(7)]
    with bench.loop(tmp_path / "loop") as write:
        bench.in_batches(entries, 3, write)
    kept = read_chain(tmp_path / "loop")
    assert [record.payload for record in kept[1:]] == [entry.payload for entry in entries]
    with bench.raw(tmp_path / "raw") as write:
        bench.in_batches([bench.row_of(record) for record in kept], 3, write)
    with closing(sqlite3.connect(tmp_path / "raw" / DATABASE)) as connection:
        assert connection.execute("SELECT count(*) FROM records").fetchone() == (8,)
    assert read_chain(tmp_path / "raw") == kept
