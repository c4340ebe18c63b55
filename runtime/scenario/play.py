"""Plays a scenario on real processes and tells its story (design 10).

Steps run one after the other; the first that fails ends the play. `[[finally]]` is checked when the cluster has gone
down, whatever happened before.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from actors.actor import AskFailed
from runtime.client import Client
from runtime.scenario.format import Check, Scenario, SignedBy, Verdict
from runtime.scenario.player import Player, StepFailed
from runtime.scenario.stage import SETTLE_LIMIT_S, START_LIMIT_S, Stage, StageFault, wait_until
from runtime.scenario.story import Story, Tone

_SIGNED = {
    SignedBy.SIGNER: "signed by the cluster's signer",
    SignedBy.STRANGER: "signed by a key that nobody trusts",
    SignedBy.NOBODY: "not signed",
}


@dataclass
class Result:
    """How a play ended. `as_expected`: the verdict is the one that the scenario wants."""

    scenario: Scenario
    failures: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        return "fail" if self.failures else "pass"

    @property
    def as_expected(self) -> bool:
        expect = self.scenario.expect
        if expect.verdict is Verdict.PASS:
            return not self.failures
        return any(expect.says is None or expect.says in failure for failure in self.failures)

    def as_document(self, story: Story) -> dict[str, Any]:
        lines = [{"at_s": line.at_s, "what": line.what, "text": line.text} for line in story.lines]
        return {
            "title": self.scenario.title,
            "verdict": self.verdict,
            "expected": self.scenario.expect.verdict.value,
            "as_expected": self.as_expected,
            "failures": self.failures,
            "story": lines,
        }


def play(scenario: Scenario, base: Path, story: Story, *, keep: bool = False) -> Result:
    """Play it once. `base`: the folder that the packages' folders are relative to."""
    result = Result(scenario)
    story.title(scenario.title)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # an end in order, as by Ctrl-C
    stage = Stage(scenario)
    try:
        try:
            _play(scenario, base, story, stage, result)
        except (StepFailed, StageFault, AskFailed) as fault:
            result.failures.append(str(fault))
            story.tell("FAILED", str(fault), Tone.BAD)
        try:
            stage.stop()
            story.tell("down", "the cluster has stopped")
        except StageFault as fault:
            result.failures.append(str(fault))
            story.tell("FAILED", str(fault), Tone.BAD)
        for final in scenario.final:
            _check_finally(final.check, stage, story, result)
    finally:
        killed = stage.close(keep=keep)
    if killed:
        story.tell("killed", ", ".join(f"{found.pid} ({' '.join(found.command)[:80]})" for found in killed), Tone.BAD)
    if keep:
        story.tell("kept", str(stage.cluster.path))
    good = result.as_expected
    wanted = scenario.expect.verdict.value.replace("_", " ")
    story.tell("verdict", f"{result.verdict}, expected: {wanted}", Tone.GOOD if good else Tone.BAD)
    return result


def _play(scenario: Scenario, base: Path, story: Story, stage: Stage, result: Result) -> None:
    nodes = ", ".join(node.name for node in scenario.cluster.nodes)
    story.tell("cluster", f"nodes {nodes}; keys made, policy written")
    for part in scenario.package:
        manifest = stage.make_package(part, base)
        changed = f", then one byte of {part.tamper} changed" if part.tamper else ""
        story.tell("package", f"{part.name} ({manifest.package_id[:16]}), {_SIGNED[part.signed_by]}{changed}")
    stage.start()
    with Client.connect(stage.cluster) as client:
        player = Player(scenario, stage, client, story)
        player.wait_ready(START_LIMIT_S)
        try:
            player.play()
        finally:
            problems = player.stop_instances()
            if any(final.check.arenas is not None for final in scenario.final):
                problems += filter(None, [player.check_arenas()])
            for problem in problems:
                result.failures.append(problem)
                story.tell("FAILED", problem, Tone.BAD)


def _check_finally(check: Check, stage: Stage, story: Story, result: Result) -> None:
    """After the end: what is left, and what the chain's file says."""
    if check.processes is not None:
        wanted = check.processes
        wait_until(lambda: len(stage.processes()) <= wanted, SETTLE_LIMIT_S)
    problems = stage.problems(check)
    if check.chain is not None:
        from runtime.cli.chain import verify_chain

        verdict = verify_chain(stage.cluster, offline=True)
        if not verdict.valid:
            problems.append(f"the chain does not verify: record {verdict.first_bad}: {verdict.problem}")
        else:
            story.tell("finally", f"the chain verifies: {verdict.count} records", Tone.GOOD)
    counted = [
        f"{getattr(check, name)} {what} left"
        for name, what in (("processes", "processes"), ("sockets", "socket files"), ("shared_memory", "shared memory"))
        if getattr(check, name) is not None
    ]
    if counted and not problems:
        story.tell("finally", ", ".join(counted), Tone.GOOD)
    for problem in problems:
        result.failures.append(problem)
        story.tell("FAILED", problem, Tone.BAD)
