"""`sennit bench restart` measures a whole restart, in the order in which it happens."""

from __future__ import annotations

from runtime.bench.restart import run


def test_a_restart_is_noticed_started_ready_and_serving_in_this_order_and_soon():
    measured = run(rounds=3)
    assert measured.rounds == 3
    assert 0 <= measured.noticed_median_ms < measured.started_median_ms < measured.ready_median_ms
    assert measured.ready_median_ms < measured.serving_median_ms + 10
    assert measured.processor_median_ms > 0
    # ten times the aims: what a busy machine does not explain, as polling for exits or a back-off of seconds
    assert measured.noticed_median_ms < 100
    assert measured.serving_median_ms < 5_000
