"""`sennit tree --lint`: bounds of the tables that `sennit up` starts, told without starting anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.supervision.lint import Tree, lint
from actors.supervision.policy import ChildSpec, Intensity
from runtime.bounds import bounds_of, tree_of
from runtime.cluster import Restarts, Times, load_cluster


@pytest.fixture
def one(sennit, folder):
    assert sennit("init", folder / "one", "--node", "shed").code == 0
    return folder / "one"


def edit(path: Path, **lines: object) -> None:
    """Set what `cluster.toml` has as a comment."""
    text = (path / "cluster.toml").read_text()
    for key, value in lines.items():
        found = [line for line in text.splitlines() if line.removeprefix("# ").startswith(f"{key} = ")]
        assert len(found) == 1, found
        text = text.replace(found[0], f"{key} = {value}")
    (path / "cluster.toml").write_text(text)


def test_a_cluster_of_one_node_as_it_is_made_has_no_findings(sennit, one):
    ended = sennit("tree", "--lint", "--cluster", one)
    assert ended.code == 0, ended
    assert "nothing found" in ended.out
    rows = {row["name"]: row for row in sennit("tree", "--lint", "--json", "--cluster", one).document["supervisors"]}
    assert list(rows) == ["root", "chain", "gate", "controller", "shed", "shed.edges"]
    assert rows["shed.edges"]["depth"] == 2
    assert rows["chain"]["lives"] == 1, "after a failed write the chain starts anew as a whole"
    assert rows["shed"]["shutdown_s"] <= 3 * 10
    assert rows["root"]["shutdown_s"] == 3 * (10 + 5) + 30 + 5


def test_nothing_is_started_or_written(sennit, one):
    before = sorted(one.rglob("*"))
    sennit("tree", "--lint", "--cluster", one)
    assert sorted(one.rglob("*")) == before


def test_a_stop_longer_than_systemd_waits_is_a_finding_and_ends_with_1(sennit, folder):
    names = ("a", "b", "c")
    nodes = [word for name in names for word in ("--node", name)]
    assert sennit("init", folder / "big", *nodes).code == 0
    ended = sennit("tree", "--lint", "--json", "--cluster", folder / "big")
    assert ended.code == 1
    (finding,) = ended.document["findings"]
    assert finding.startswith("root: an ordered stop may take 150 s and systemd kills after 90 s")
    assert "TimeoutStopSec=150" in finding


def test_a_budget_that_can_never_be_spent_is_found(sennit, one):
    edit(one, intensity=40, period_s=20)
    ended = sennit("tree", "--lint", "--cluster", one)
    assert ended.code == 1
    assert "! root: its budget can never be spent" in ended.out
    assert bounds_of(load_cluster(one))[0].gives_up_s is None


def test_a_node_killed_before_its_actors_can_stop_is_found(sennit, one):
    edit(one, stop_timeout_s=3.0)
    ended = sennit("tree", "--lint", "--cluster", one)
    assert ended.code == 1
    assert "! root: 'shed' is killed 9 s into a stop that may take it 22 s" in ended.out


def test_the_bounds_are_those_of_the_settings(sennit, one):
    edit(one, intensity=2)
    root = tree_of(load_cluster(one))
    assert root.intensity == Intensity(restarts=2, period_s=Restarts().period_s)
    assert [child.spec.shutdown_timeout_s for child in root.children if isinstance(child, Tree)] == [
        Times().stop_timeout_s * turns for turns in (1, 1, 1, 3)
    ]


def test_an_actor_that_does_not_stop_costs_no_patience_but_a_process_does():
    (threads,) = lint(Tree(name="a", children=(ChildSpec(name="x", shutdown_timeout_s=2),), actors=frozenset({"x"})))
    (processes,) = lint(Tree(name="a", children=(ChildSpec(name="x", shutdown_timeout_s=2),)))
    assert (threads.shutdown_s, processes.shutdown_s) == (2, 7)


@pytest.mark.parametrize(("below", "found"), [(False, 1), (True, 0)])
def test_a_supervisor_without_restarts_is_a_finding_only_where_nobody_starts_it_again(below, found):
    spec = ChildSpec(name="chain", shutdown_timeout_s=60) if below else None
    tree = Tree(name="chain", children=(ChildSpec(name="a"),), spec=spec, intensity=Intensity(restarts=0))
    (bounds,) = lint(tree)
    assert len(bounds.findings) == found
