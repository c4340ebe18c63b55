"""The scenarios of the project, played on real processes as a user plays them, a few side by side."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

SCENARIOS = Path(__file__).parents[2] / "scenarios"
PASSING = ["edge-faults.toml", "hard-knocks.toml", "pipeline.toml", "first-light.toml"]
SIDE_BY_SIDE = 3
"""More would make a small machine so busy that processes count as hung."""

LIMIT_S = 120
Played = Callable[[str], tuple[int, Any]]

pytestmark = pytest.mark.timeout(200)


@pytest.fixture(scope="module")
def played() -> Iterator[Played]:
    """Exit code and document of a scenario; all of them are begun with the first one asked for."""
    started: list[subprocess.Popen[str]] = []

    def play(name: str) -> tuple[int, str, str]:
        player = subprocess.Popen(
            [sys.executable, "-m", "runtime.cli", "scenario", "run", str(SCENARIOS / name), "--json"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(player)
        out, err = player.communicate(timeout=LIMIT_S)
        return player.returncode, out, err

    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(SIDE_BY_SIDE))
        stack.callback(lambda: [player.terminate() for player in started if player.poll() is None])
        stack.callback(pool.shutdown, wait=False, cancel_futures=True)
        playing = {name: pool.submit(play, name) for name in (*PASSING, "caught.toml")}

        def result(name: str) -> tuple[int, Any]:
            code, out, err = playing[name].result(LIMIT_S + LIMIT_S / 2)
            assert err == ""
            return code, json.loads(out)

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
