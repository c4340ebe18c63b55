from __future__ import annotations

import subprocess
import sys

import pytest

from runtime.cli.output import ExitCode


@pytest.mark.parametrize(
    "arguments",
    [
        ("nonsense",),
        ("package", "nonsense"),
        ("--nonsense",),
        ("package", "keygen"),
        ("package", "keygen", "a", "b"),
        ("chain", "tail", "-n", "0"),
        ("chain", "tail", "-n", "x"),
        ("chain", "tail", "--follow", "--json"),
        ("replay", "machine", "loom"),
        ("actor", "trace", "a/b", "--count", "1001"),
        ("place", "nowhere", "--interval", "0"),
        ("scenario", "check", "missing.toml", "--deep"),
        ("scenario", "check", "missing.toml"),
        ("scenario", "run", "missing.toml"),
        ("init", "/proc/nowhere"),
        ("init", "/proc/version"),
        ("init", "x" * 300),
    ],
)
def test_a_command_line_that_cannot_be_understood_ends_with_64(sennit, arguments) -> None:
    ended = sennit(*arguments)
    assert ended.code == ExitCode.USAGE
    if "--json" not in arguments:
        assert ended.out == ""
        assert ended.err.startswith("sennit: ")


def test_a_misspelt_verb_is_guessed(sennit) -> None:
    assert "Did you mean 'package'?" in sennit("pakage").err


def test_a_failure_with_json_is_one_document_on_standard_output(sennit, folder) -> None:
    ended = sennit("status", "--cluster", folder, "--json")
    assert (ended.code, ended.err) == (6, "")
    error = ended.document["error"]
    assert (error["code"], error["exit"]) == ("not_found", 6)
    assert "sennit init" in error["text"]


def test_no_cluster_named_says_how_to_name_one(sennit, folder, monkeypatch) -> None:
    monkeypatch.chdir(folder)
    ended = sennit("status")
    assert ended.code == 64
    assert "SENNIT_CLUSTER" in ended.err
    assert "sennit init DIR" in ended.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("status",),
        ("down",),
        ("tree",),
        ("instance", "ls"),
        ("node", "ls"),
        ("actor", "ls"),
        ("chain", "tail", "--follow"),
        ("actor", "state", "chain/chain"),
    ],
)
def test_a_cluster_that_is_not_up_ends_with_6_and_names_the_command(sennit, reef, arguments) -> None:
    ended = sennit(*arguments, "--cluster", reef)
    assert ended.code == 6
    assert f"sennit up --cluster {reef}" in ended.err


def test_the_environment_and_the_current_folder_name_the_cluster(sennit, reef, monkeypatch) -> None:
    monkeypatch.setenv("SENNIT_CLUSTER", str(reef))
    assert "try: sennit up\n" in sennit("status").err
    monkeypatch.delenv("SENNIT_CLUSTER")
    monkeypatch.chdir(reef)
    assert sennit("status").code == 6


def test_exit_codes_are_stable() -> None:
    assert {code.name: code.value for code in ExitCode} == {
        "DONE": 0, "DIFFERS": 1, "UNPLACEABLE": 2, "INDETERMINATE": 3, "REFUSED": 4, "DAMAGED": 5, "NO_CLUSTER": 6,
        "USAGE": 64,
    }  # fmt: skip


@pytest.mark.parametrize("arguments", [("actor", "state", "nope/x"), ("actor", "trace", "operator/x")])
def test_a_process_that_is_not_in_the_cluster_is_named_with_those_that_are(sennit, reef, arguments) -> None:
    ended = sennit(*arguments, "--cluster", reef)
    assert ended.code == ExitCode.USAGE
    assert "controller, attic, shed, loft" in ended.err


@pytest.mark.parametrize("lost", ["directory.json", "keys/operator.key"])
def test_a_lost_file_of_a_cluster_is_damage(sennit, reef, lost) -> None:
    (reef / lost).unlink()
    ended = sennit("init", reef, "--update")
    assert ended.code == ExitCode.DAMAGED
    assert f"{reef / lost} does not exist" in ended.err


def test_output_that_cannot_be_written_ends_without_a_trace() -> None:
    command = [sys.executable, "-m", "runtime.cli", "--help"]
    with open("/dev/full", "wb") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert ended.returncode == 4
    assert ended.stderr.startswith("sennit: standard output: No space left on device\n")
    assert "Traceback" not in ended.stderr
