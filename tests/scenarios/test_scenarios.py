"""The scenarios of the project, played on real processes as a user plays them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCENARIOS = Path(__file__).parents[2] / "scenarios"


def run(name: str) -> tuple[int, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "runtime.cli", "scenario", "run", str(SCENARIOS / name), "--json"],
        capture_output=True, text=True, timeout=120, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.stderr == ""
    return done.returncode, json.loads(done.stdout)


@pytest.mark.timeout(150)
@pytest.mark.parametrize("name", ["first-light.toml", "hard-knocks.toml"])
def test_a_scenario_that_must_pass_passes(name: str) -> None:
    code, told = run(name)
    assert told["failures"] == []
    assert (code, told["verdict"], told["as_expected"]) == (0, "pass", True)


@pytest.mark.timeout(150)
def test_a_scenario_that_must_fail_is_caught_for_the_right_reason() -> None:
    code, told = run("caught.toml")
    assert (code, told["verdict"], told["as_expected"]) == (0, "fail", True)
    assert len(told["failures"]) == 1
    assert "it was" in told["failures"][0]


def test_first_light_tells_its_refusals_by_code() -> None:
    text = (SCENARIOS / "first-light.toml").read_text()
    for code in ('"file-tampered"', '"untrusted-signer"', '"placement"', '"governance"'):
        assert code in text
