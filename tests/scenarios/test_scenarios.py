"""The scenarios of the project, played on real processes as a user plays them, side by side."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

SCENARIOS = Path(__file__).parents[2] / "scenarios"
PASSING = ["first-light.toml", "hard-knocks.toml", "pipeline.toml", "edge-faults.toml"]
LIMIT_S = 120
Played = Callable[[str], tuple[int, Any]]

pytestmark = pytest.mark.timeout(150)


@pytest.fixture(scope="module")
def played() -> Iterator[Played]:
    """Exit code and document of a scenario that was started with the first one asked for."""
    with ExitStack() as stack:
        running = {
            name: stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-m", "runtime.cli", "scenario", "run", str(SCENARIOS / name), "--json"],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
            for name in (*PASSING, "caught.toml")
        }
        for player in running.values():
            stack.callback(player.terminate)

        def result(name: str) -> tuple[int, Any]:
            out, err = running[name].communicate(timeout=LIMIT_S)
            assert err == ""
            return running[name].returncode, json.loads(out)

        yield result


@pytest.mark.parametrize("name", PASSING)
def test_a_scenario_that_must_pass_passes(played: Played, name: str) -> None:
    code, told = played(name)
    assert told["failures"] == []
    assert (code, told["verdict"], told["as_expected"]) == (0, "pass", True)


def test_a_scenario_that_must_fail_is_caught_for_the_right_reason(played: Played) -> None:
    code, told = played("caught.toml")
    assert (code, told["verdict"], told["as_expected"]) == (0, "fail", True)
    assert len(told["failures"]) == 1
    assert "it was" in told["failures"][0]


def test_first_light_tells_its_refusals_by_code() -> None:
    text = (SCENARIOS / "first-light.toml").read_text()
    for code in ('"file-tampered"', '"untrusted-signer"', '"placement"', '"governance"'):
        assert code in text
