"""The bench of edges measures real objects through real clusters; small here, so that it works when it is needed."""

from __future__ import annotations

import pytest

from runtime.bench import edges
from runtime.bench.edge_limits import bare_per_s, copied_per_s, window, woken_us

KIB = 1024


@pytest.mark.timeout(120)
def test_objects_of_a_source_are_counted_at_its_sink_on_one_node():
    measured = edges.run(rounds=1, seconds=0.1, sizes=(4 * KIB,), paths=("one node",), sources=0)
    (flow,) = measured.flows
    assert flow.path == "one node"
    assert flow.objects_per_s > 0
    assert flow.bytes_per_s == flow.objects_per_s * flow.object_bytes
    assert flow.made_bytes_per_s == flow.made_objects_per_s * flow.object_bytes
    assert flow.share == pytest.approx(flow.bytes_per_s * (1 + 40 / flow.object_bytes) / flow.limit_bytes_per_s)
    (latency,) = measured.latencies
    assert 0 < latency.p50_us <= latency.p99_us
    (bounded,) = measured.bounded
    assert 0 < bounded.waiting_bytes <= bounded.bound_bytes
    assert measured.beside is None


def test_the_limits_are_measured(tmp_path):
    assert copied_per_s(4 * KIB, 64 * KIB, 0.01) > 0
    p50_us, p99_us = woken_us(20, 0.001)
    assert 0 < p50_us <= p99_us
    assert bare_per_s(f"ipc://{tmp_path}/bare", 4 * KIB, 0.05, 1) > 0


@pytest.mark.parametrize(("size", "messages"), [(4 * KIB, 1_000), (1024 * KIB, 64), (256 * 1024 * KIB, 2)])
def test_a_bare_pair_holds_as_much_as_its_window(size, messages):
    assert window(size) == messages
