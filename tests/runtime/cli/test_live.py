"""The verbs against one cluster that is up; what they change, they change back."""

from __future__ import annotations

import contextlib
import io
import json
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest

from runtime.cli.main import run
from runtime.leftovers import kill_all, processes_of

ROOT = Path(__file__).parents[3]
LIMIT_S = 60


class Ended(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


class Cluster(NamedTuple):
    path: Path
    package: Path

    def sennit(self, *arguments: object) -> Ended:
        """One command line, run in this process."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run([str(argument) for argument in arguments])
        return Ended(int(code), out.getvalue(), err.getvalue())

    def until(self, *arguments: object, code: int = 0) -> Ended:
        """The same command line again until it ends with `code`."""
        deadline = time.monotonic() + LIMIT_S / 2
        while (ended := self.sennit(*arguments)).code != code:
            assert time.monotonic() < deadline, ended
        return ended


@pytest.fixture(scope="module")
def up() -> Iterator[Cluster]:
    with TemporaryDirectory(prefix="snt-") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SENNIT_CLUSTER", str(Path(folder) / "reef"))
        cluster = Cluster(Path(folder) / "reef", Path(folder) / "hostwatch.pkg")
        try:
            assert cluster.sennit("init", cluster.path, "--node", "attic", "--node", "shed").code == 0
            assert cluster.sennit("package", "pack", ROOT / "scenarios/packages/hostwatch", cluster.package).code == 0
            assert cluster.sennit("package", "sign", cluster.package).code == 0
            started = cluster.sennit("up", "--detach", "--json")
            assert started.code == 0, started
            assert [child["name"] for child in started.document["tree"]["children"]][:3] == [
                "chain",
                "gate",
                "controller",
            ]
            cluster.until("status")
            yield cluster
            down = cluster.sennit("down", "--json")
            assert down.code == 0, down
            assert down.document["stopped"] == started.document["root_pid"]
            assert cluster.sennit("status").code == 6
            assert cluster.sennit("chain", "verify").out.startswith("valid: ")
        finally:
            kill_all(Path(folder))
        assert processes_of(Path(folder)) == []


def test_a_life_of_an_instance(up: Cluster) -> None:
    planned = up.sennit("plan", up.package, "--interval", 1, "--avoid", "attic", "--json")
    assert planned.code == 0, planned
    assert planned.document["placed"] is None
    assert up.sennit("instance", "ls", "--json").document["instances"] == []

    placed = up.sennit("place", up.package, "--interval", 1, "--pin", "shed", "--json")
    assert placed.code == 0, placed
    instance = placed.document["placed"]["instance_id"]
    told = up.sennit("explain", placed.document["decision_id"][:16])
    assert told.code == 0
    assert "workload hostwatch (kind cog)" in told.out
    assert "workload.place/placed" in told.out

    held = up.sennit("place", up.package, "--interval", 1, "--pin", "shed")
    assert held.code == 4
    assert "slot_held" in held.err
    assert "sennit instance" in held.err

    rows = up.sennit("instance", "ls", "--json").document["instances"]
    assert [(row["instance_id"], row["node"], row["state"]) for row in rows] == [(instance, "shed", "running")]
    assert up.sennit("instance", "show", instance[:16]).out.startswith("instance_id")

    deadline = time.monotonic() + 20
    while "memory_available_bytes" not in (logs := up.sennit("instance", "logs", "hostwatch@shed")).out:
        assert time.monotonic() < deadline, logs
    sample = json.loads(logs.out.splitlines()[0])
    assert sample["memory_total_bytes"] > sample["memory_available_bytes"] > 0
    assert "stdout_next" in up.sennit("instance", "logs", "hostwatch@shed", "--json").document

    assert up.sennit("instance", "stop", "hostwatch@shed", "--grace", 1).code == 0
    assert up.sennit("instance", "ls", "--json").document["instances"][0]["state"] == "stopped"
    followed = up.sennit("instance", "logs", "hostwatch@shed", "--follow")  # it has ended, so this ends too
    assert followed.code == 0
    assert up.sennit("instance", "start", "hostwatch@shed", "--json").document["result"]["pid"] > 0
    assert up.sennit("instance", "unload", "hostwatch@shed").code == 0
    assert up.sennit("instance", "ls", "--json").document["instances"] == []


def test_an_edge_waits_for_its_workloads_until_it_is_stopped(up: Cluster) -> None:
    added = up.sennit("edge", "add", "hostwatch@shed.out", "trend.in", "--max-object", "64KiB")
    assert added.code == 0, added
    assert added.out.startswith("hostwatch@shed.out -> trend.in: waiting")
    assert up.sennit("edge", "add", "hostwatch@shed.out", "trend.in", "--json").document["phase"] == "waiting"
    other = up.sennit("edge", "add", "hostwatch@shed.out", "trend.in", "--max-object", "4KiB")
    assert (other.code, other.out) == (4, "")
    assert "sennit edge stop" in other.err
    rows = up.sennit("edge", "ls", "--json").document["edges"]
    assert [(row["source"], row["target"], row["lives"]) for row in rows] == [("hostwatch@shed.out", "trend.in", 0)]
    assert "trend" in up.sennit("edge", "show", "hostwatch@shed.out", "trend.in").out
    assert "edges      1 waiting" in up.until("status").out
    assert up.sennit("edge", "stop", "trend.in").out == "stopped: hostwatch@shed.out -> trend.in\n"
    assert up.sennit("edge", "ls", "--json").document["edges"] == []


def test_samples_flow_over_an_edge_and_are_seen_to(up: Cluster, tmp_path: Path) -> None:
    trend = tmp_path / "trend.pkg"
    assert up.sennit("package", "pack", ROOT / "scenarios/packages/trend", trend).code == 0
    assert up.sennit("package", "sign", trend).code == 0
    assert up.sennit("place", up.package, "--interval", 1, "--pin", "shed").code == 0
    assert up.sennit("place", trend, "--interval", 1, "--pin", "attic").code == 0
    assert up.sennit("edge", "add", "hostwatch.out", "trend.in").code == 0

    def seen() -> Any:
        """The edge as it is shown, once objects of it were reported."""
        deadline = time.monotonic() + LIMIT_S / 2
        while True:
            told = up.sennit("edge", "show", "hostwatch.out", "trend.in", "--json").document
            if told["edge"]["consumer"] is not None and told["edge"]["consumer"]["progress"]["objects"] > 1:
                return told
            assert time.monotonic() < deadline, told

    told = seen()
    edge = told["edge"]
    assert [edge[name] for name in ("phase", "run_id", "producer_node", "consumer_node")] == [
        "ready",
        1,
        "shed",
        "attic",
    ]
    assert edge["consumer"]["progress"]["last_object_id"] > 1
    assert [(node["process"], node["arena"]["active_leases"]) for node in told["nodes"]] == [
        ("attic.edges", 1),
        ("shed.edges", 1),
    ]
    assert "1 ready" in up.until("status").out
    deadline = time.monotonic() + LIMIT_S / 2
    while not (logs := up.sennit("instance", "logs", "trend@attic").out):
        assert time.monotonic() < deadline
    report = json.loads(logs.splitlines()[-1])
    assert 0 <= report["cpu_busy"]["mean"] <= 1
    assert report["memory_total_gib"]["mean"] >= report["memory_available_gib"]["mean"] > 0
    assert "EDGES  1 ready" in up.sennit("top", "--once", "--interval", "0.2").out

    assert up.sennit("edge", "stop", "hostwatch.out", "trend.in").code == 0
    listed = up.sennit("edge", "ls", "--json").document
    assert listed["edges"] == []
    for instance in ("hostwatch@shed", "trend@attic"):
        assert up.sennit("instance", "unload", instance).code == 0
    assert "ENDS" in up.sennit("edge", "ls").out


def test_what_cannot_be_placed_ends_with_2_and_says_why(up: Cluster, tmp_path: Path) -> None:
    package = tmp_path / "feed.pkg"
    up.sennit("package", "pack", ROOT / "scenarios/packages/feed", package)
    up.sennit("package", "sign", package)
    for verb in ("plan", "place", "explain"):
        ended = up.sennit(verb, package)
        assert ended.code == 2, ended
        assert "feed.csi: not advertised" in ended.out
    pinned = up.sennit("place", package, "--pin", "attic")
    assert pinned.code == 2
    assert "feed.csi" in pinned.err


def test_a_package_that_changed_is_refused_with_4(up: Cluster, tmp_path: Path) -> None:
    package = tmp_path / "changed.pkg"
    up.sennit("package", "pack", ROOT / "scenarios/packages/hostwatch", package)
    up.sennit("package", "sign", package)
    (package / "noarch" / "cog-hostwatch").write_bytes(b"#")
    ended = up.sennit("place", package, "--json")
    assert ended.code == 4
    error = ended.document["error"]
    assert error["code"] == "package"
    assert "file-tampered" in error["text"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("status",), "all is well"),
        (("tree",), "controller"),
        (("node", "ls"), "attic"),
        (("node", "show", "shed"), "os.linux"),
        (("actor", "ls"), "controller/plane"),
        (("actor", "ls", "shed"), "shed/agent"),
        (("actor", "state", "controller/plane"), "term"),
        (("actor", "trace", "controller/plane", "--count", "4", "--seconds", "5"), "NodeBeat"),
        (("chain", "tail", "-n", "1000"), "genesis"),
        (("chain", "show", "0"), "genesis"),
        (("chain", "verify"), "valid: "),
        (("gate", "policy"), "permit"),
        (("edge", "ls"), "no edges: sennit edge add"),
    ],
)
def test_every_verb_that_only_looks_has_text_and_a_document(up: Cluster, arguments: tuple[str, ...], says: str) -> None:
    text = up.until(*arguments)
    assert says in text.out
    assert text.err == ""
    assert up.sennit(*arguments, "--json").document is not None


def test_a_second_up_is_refused_naming_the_first(up: Cluster) -> None:
    for arguments in (("up",), ("up", "--detach")):
        ended = up.sennit(*arguments)
        assert ended.code == 4, ended
        assert "is up already (process " in ended.err


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("instance", "stop", "nobody@shed"), 64),
        (("node", "show", "barn"), 64),
        (("actor", "ls", "barn"), 64),
        (("actor", "state", "controller/nobody"), 64),
        (("chain", "show", "999999"), 64),
        (("explain", "ffffffffffff"), 64),
        (("edge", "show", "a.out", "b.in"), 64),
        (("edge", "stop", "a.out->b.in"), 64),
        (("edge", "add", "a", "b.in"), 64),
        (("edge", "add", "a@barn.out", "b.in"), 64),
        (("place", "nowhere"), 64),
    ],
)
def test_what_is_not_there_is_named(up: Cluster, arguments: tuple[str, ...], code: int) -> None:
    ended = up.sennit(*arguments)
    assert ended.code == code, ended
    assert ended.out == ""
    assert ended.err.startswith("sennit: ")


def test_the_running_gate_judges_and_chains(up: Cluster, tmp_path: Path) -> None:
    context = tmp_path / "context.json"
    context.write_text("{}")
    ended = up.sennit("gate", "check", "workload.place", context, "--json")
    assert (ended.code, ended.document["decision"]) == (4, "deny")
    assert up.sennit("chain", "show", ended.document["chained"][:16]).code == 0


def test_a_process_that_cannot_start_is_told_with_its_reason_and_not_waited_for(folder: Path) -> None:
    cluster = Cluster(folder / "reef", folder / "none")
    key = cluster.path / "keys" / "gate.key"
    try:
        assert cluster.sennit("init", cluster.path, "--node", "attic").code == 0
        key.chmod(0o644)
        ended = cluster.sennit("up", "--detach", "--cluster", cluster.path)
        assert ended.code == 1
        assert f"chmod 600 {key}" in ended.err
        assert cluster.sennit("down", "--cluster", cluster.path).code == 0
    finally:
        kill_all(folder)


def test_a_damaged_chain_is_told_by_every_verb_that_reads_it(folder: Path) -> None:
    cluster = Cluster(folder / "reef", folder / "none")
    named = ("--cluster", cluster.path)
    chain = cluster.path / "state" / "chain"
    try:
        assert cluster.sennit("init", cluster.path, "--node", "attic").code == 0
        chain.mkdir(parents=True, exist_ok=True)
        (chain / "chain.sqlite").write_bytes(b"no database" * 1000)
        assert cluster.sennit("up", "--detach", *named).code == 0
        for verb in (("chain", "tail"), ("chain", "show", "0"), ("chain", "verify"), ("explain", "0" * 16)):
            assert cluster.sennit(*verb, *named).code == 5, verb
        assert "the chain is closed" in cluster.until("status", *named, code=1).out
        assert cluster.sennit("down", *named).code == 0
    finally:
        kill_all(folder)
