"""The figures of placement have their shape, on runs too small to mean anything."""

from __future__ import annotations

import pytest

from actors.placement.engine import place as decide
from messages.engine import ClusterState
from runtime.bench import place as bench
from runtime.bench.fleet import SimulatedFleet, engine_fleet, engine_request


def test_the_engine_and_the_simulated_plane_have_their_figures():
    figures = bench.run(rounds=1, engine_nodes=(20,), simulated_nodes=(2,), live_nodes=())
    assert "Python" in figures.machine
    assert figures.live is None
    [engine], [simulated] = figures.engine, figures.simulated
    assert 0 < engine.eligible < engine.nodes == 20
    assert engine.decision_ms > 0
    assert engine.decisions_per_s == pytest.approx(1000 / engine.decision_ms, rel=0.1)
    assert simulated.nodes == 2
    assert min(simulated.dry_run_ms, simulated.place_ms, simulated.engine_ms) > 0


def test_an_engine_fleet_is_the_same_each_time_and_of_few_types():
    fleet = engine_fleet(200)
    assert fleet == engine_fleet(200)
    kinds = {tuple(one.id for one in node.capabilities) for node in fleet}
    assert 2 <= len(kinds) <= 7
    decision = decide(engine_request(), fleet, ClusterState(now_ms=0, instances=()))
    assert decision.placement is not None
    assert {report.eligible for report in decision.candidates} == {True, False}


def test_a_simulated_fleet_places_starts_and_unloads():
    fleet = SimulatedFleet(3)
    dry_run = fleet.place(dry_run=True)
    assert (dry_run.placed, len(dry_run.decision.candidates)) == (None, 3)
    for _ in range(2):
        placed = fleet.place(dry_run=False).placed
        assert placed.node_id == dry_run.decision.placement.node_id
        fleet.unload(placed.instance_id)


def test_a_live_cluster_has_its_figures_and_says_who_was_busy():
    figures = bench.live(("attic",), rounds=1)
    assert figures.nodes == 1
    assert min(figures.dry_run_ms, figures.place_ms, figures.bare_python_ms) > 0
    assert {"chain/store", "controller/plane"} <= set(figures.dry_run_busy_ms)
    assert {"chain/store", "node/launcher"} <= set(figures.place_busy_ms)
    assert figures.place_busy_ms["node/launcher"] > figures.dry_run_busy_ms.get("node/launcher", 0)
