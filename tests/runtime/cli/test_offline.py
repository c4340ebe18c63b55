from __future__ import annotations

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TRACES = ROOT / "tests" / "golden" / "edge-traces.jsonl"

CONTEXT = {
    "workload": {
        "kind": "cog",
        "package_trust": "pinned_signer",
        "node_tier": "paired",
        "network": "lan",
        "resource_cost": 0.2,
        "package_id": "cog.hostwatch",
        "signer_keys": ["a" * 64],
        "artifact_hashes": ["b" * 64],
    }
}


@pytest.fixture
def package(sennit, reef, folder) -> Path:
    out = folder / "hostwatch.pkg"
    assert sennit("package", "pack", ROOT / "scenarios/packages/hostwatch", out).code == 0
    assert sennit("package", "sign", out, "--cluster", reef).code == 0
    return out


def test_init_prints_the_next_command_and_never_overwrites(sennit, folder) -> None:
    first = sennit("init", folder / "reef", "--node", "attic", "--json")
    assert first.code == 0
    document = first.document
    assert list(document["nodes"]) == ["attic"]
    assert document["next"] == f"sennit up --cluster {folder / 'reef'}"
    again = sennit("init", folder / "reef")
    assert again.code == 4
    assert "holds a cluster already" in again.err


def test_init_update_signs_a_change_anew(sennit, reef) -> None:
    file = reef / "cluster.toml"
    file.write_text(file.read_text() + '\n[[node]]\nname = "barn"\n')
    stale = sennit("status", "--cluster", reef)
    assert stale.code == 5
    assert f"sennit init {reef} --update" in stale.err
    updated = sennit("init", reef, "--update", "--json").document
    assert updated["version"] == 2
    assert "barn" in updated["nodes"]


def test_a_signed_package_verifies_and_a_changed_one_does_not(sennit, reef, package) -> None:
    verified = sennit("package", "verify", package, "--cluster", reef, "--json")
    assert verified.code == 0
    assert verified.document["workload"]["id"] == "hostwatch"
    payload = package / "noarch" / "cog-hostwatch"
    payload.write_bytes(payload.read_bytes().replace(b"hostwatch", b"hostwotch", 1))
    changed = sennit("package", "verify", package, "--cluster", reef, "--json")
    assert changed.code == 4
    assert changed.document["error"]["code"] == "file-tampered"
    assert "noarch/cog-hostwatch" in changed.document["error"]["text"]


def test_a_package_of_an_unknown_signer_is_refused(sennit, reef, folder) -> None:
    made = sennit("package", "keygen", folder / "stranger.key", "--json").document
    assert "private" not in json.dumps(made)
    assert (folder / "stranger.key").read_text().strip() not in json.dumps(made)
    out = folder / "strange.pkg"
    sennit("package", "pack", ROOT / "scenarios/packages/hostwatch", out)
    assert (
        sennit("package", "verify", out, "--cluster", reef, "--json").document["error"]["code"] == "missing-signature"
    )
    sennit("package", "sign", out, "--key", folder / "stranger.key")
    refused = sennit("package", "verify", out, "--cluster", reef, "--json")
    assert (refused.code, refused.document["error"]["code"]) == (4, "untrusted-signer")


def test_package_show_prints_what_it_says_of_itself(sennit, package) -> None:
    shown = sennit("package", "show", package)
    assert shown.code == 0
    assert "payload noarch" in shown.out
    assert sennit("package", "show", package, "--json").document["kind"] == "cog"


def test_pack_refuses_a_folder_that_is_not_empty(sennit, package) -> None:
    refused = sennit("package", "pack", ROOT / "scenarios/packages/hostwatch", package)
    assert refused.code == 64
    assert "not empty" in refused.err


def test_replay_checks_recorded_traces_and_names_the_first_difference(sennit, folder) -> None:
    assert sennit("replay", "machine", "edge-establisher", "--check", TRACES).code == 0
    lines = TRACES.read_text().splitlines()
    trace = json.loads(lines[0])
    trace["steps"][3]["lifecycle"] = [] if trace["steps"][3]["lifecycle"] else [{"type": "EdgeStopped", "edge_id": 1}]
    changed = folder / "traces.jsonl"
    changed.write_text(json.dumps(trace) + "\n")
    ended = sennit("replay", "machine", "edge-establisher", "--check", changed, "--json")
    assert ended.code == 1
    assert (ended.document["matched"], "step 4" in ended.document["difference"]) == (3, True)


def test_replay_without_check_completes_each_line(sennit) -> None:
    ended = sennit("replay", "machine", "edge-establisher", TRACES)
    assert ended.code == 0
    assert len(ended.out.splitlines()) == len(TRACES.read_text().splitlines())


def test_replay_as_one_document_holds_every_completed_line(sennit) -> None:
    lines = TRACES.read_text().splitlines()
    document = sennit("replay", "machine", "edge-establisher", TRACES, "--json").document
    assert len(document) == len(lines)
    assert [step["event"] for step in document[7]["steps"]] == [step["event"] for step in json.loads(lines[7])["steps"]]


def test_replay_follows_the_semantics_it_is_given(sennit, folder) -> None:
    strict = ("replay", "machine", "edge-establisher", "--semantics", "strict")
    completed = sennit(*strict, TRACES)
    assert completed.code == 0
    assert {key.partition("/")[2] for key in json.loads(completed.out.splitlines()[0])["steps"][0]["records"]} == {
        "egress",
        "ingress",
    }
    recorded = folder / "strict.jsonl"
    recorded.write_text(completed.out)
    assert sennit(*strict, "--check", recorded).code == 0
    mixed = sennit("replay", "machine", "edge-establisher", "--semantics", "seed", "--check", recorded)
    assert mixed.code == 64
    assert "is no key under seed" in mixed.err


def test_only_the_edge_establisher_has_semantics(sennit) -> None:
    refused = sennit("replay", "machine", "placement-engine", "--semantics", "strict", TRACES)
    assert refused.code == 64
    assert "has no strict semantics" in refused.err
    assert sennit("replay", "machine", "edge-establisher", "--semantics", "lax", TRACES).code == 64


@pytest.mark.parametrize("content", ["", "{}", "nonsense", "[1]"])
def test_replay_of_what_is_no_trace_ends_with_64(sennit, folder, content) -> None:
    file = folder / "x.jsonl"
    file.write_text(content)
    for machine in ("edge-establisher", "placement-engine"):
        ended = sennit("replay", "machine", machine, "--check", file)
        assert ended.code == 64
        assert str(file) in ended.err


def test_gate_check_judges_by_the_file_while_nothing_runs(sennit, reef, folder) -> None:
    context = folder / "context.json"
    context.write_text(json.dumps(CONTEXT))
    permitted = sennit("gate", "check", "workload.place", context, "--cluster", reef, "--json")
    assert (permitted.code, permitted.document["decision"]) == (0, "permit")
    denied = sennit("gate", "check", "workload.fly", context, "--cluster", reef, "--json")
    assert (denied.code, denied.document["decision"]) == (4, "deny")
    (reef / "policy.toml").write_text("format = 1\npermit = []\n")
    closed = sennit("gate", "check", "workload.place", context, "--cluster", reef)
    assert closed.code == 4
    assert "default deny" in closed.out


def test_a_broken_policy_is_named_with_its_key(sennit, reef, folder) -> None:
    (folder / "context.json").write_text(json.dumps(CONTEXT))
    (reef / "policy.toml").write_text("threshold = -1\n")
    ended = sennit("gate", "check", "workload.place", folder / "context.json", "--cluster", reef)
    assert ended.code == 64
    assert "threshold" in ended.err


def test_gate_policy_prints_the_file_while_nothing_runs(sennit, reef) -> None:
    assert sennit("gate", "policy", "--cluster", reef).out == (reef / "policy.toml").read_text()


@pytest.mark.parametrize("verb", [("verify",), ("tail",), ("show", "0")])
def test_a_cluster_that_never_ran_has_no_chain(sennit, reef, verb) -> None:
    ended = sennit("chain", *verb, "--cluster", reef)
    assert ended.code == 6
    assert "there is no chain yet" in ended.err


def test_scenario_check_reads_and_starts_nothing(sennit, folder) -> None:
    good = sennit("scenario", "check", ROOT / "scenarios/first-light.toml", "--json")
    assert good.code == 0
    assert good.document["expect"] == "pass"
    bad = folder / "bad.toml"
    bad.write_text((ROOT / "scenarios/first-light.toml").read_text().replace('pin = "shed"', 'pin = "shade"'))
    ended = sennit("scenario", "check", bad)
    assert ended.code == 64
    assert f"{bad}:" in ended.err
    assert "'shade' is not known here" in ended.err


def test_a_missing_file_ends_with_6_or_64_never_with_a_trace(sennit, folder) -> None:
    assert sennit("scenario", "check", folder / "none.toml").code in (6, 64)
    assert sennit("replay", "machine", "edge-establisher", folder / "none").code == 64
    assert sennit("package", "show", folder / "none").code == 4
