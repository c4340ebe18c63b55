"""The messaging benchmark measures what it says it does, between two real processes."""

from __future__ import annotations

from runtime.bench import messaging, xoscar_peer


def test_ours_and_raw_are_measured_in_turns_and_everything_told_arrived(monkeypatch):
    monkeypatch.setattr(messaging, "ASKS", 20)
    monkeypatch.setattr(messaging, "TELLS", 1_000)
    monkeypatch.setattr(xoscar_peer, "installed", lambda: False)
    ours, raw = messaging.run(rounds=1)
    assert (ours.name, raw.name) == ("sennit", "raw pyzmq")
    for figures in (ours, raw):
        assert 0 < figures.ask_p50_us <= figures.ask_p99_us
        assert figures.single_per_s > 0
        assert figures.burst_per_s > 0
    assert ours.batch_per_s is None
    assert raw.batch_per_s > raw.single_per_s, "one message for many is faster than many"
