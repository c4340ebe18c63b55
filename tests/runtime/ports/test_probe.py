"""What the probe tells is what the engine matches and the agent uses."""

import os
import subprocess
import sys
from dataclasses import replace

from messages.capabilities import Capability, Provenance
from runtime.ports.probe import describe, measure, read_clock
from runtime.simulated.probe import BOARD, SimulatedMachine


def by_id(machine):
    return {capability.id: capability for capability in describe(machine).capabilities}


def test_this_machine_can_run_what_the_capability_names():
    told = by_id(measure())
    python = told["runtime.python"].attrs
    answer = subprocess.run(
        [python["path"], "-c", "import platform; print(platform.python_version())"],
        capture_output=True, text=True, timeout=30, check=True,
    )  # fmt: skip
    assert answer.stdout.strip() == python["version"]
    assert python["path"] == sys.executable
    assert told["cpu.cores"].attrs["count"] == len(os.sched_getaffinity(0))
    assert 0 < told["mem.system"].attrs["free"] <= told["mem.system"].attrs["total"]
    arch = told["runtime.native"].attrs["arches_native"][0]
    assert f"cpu.arch.{arch}" in told


def test_every_capability_is_in_the_vocabulary():
    for machine in (measure(), BOARD, replace(BOARD, node_class="dev-mac")):
        for told in describe(machine).capabilities:
            Capability(id=told.id, attrs=told.attrs, provenance=Provenance.PROBED).check()


def test_a_machine_without_python_does_not_claim_it():
    assert "runtime.python" not in by_id(replace(BOARD, interpreter=None))


def test_a_configured_class_wins_over_what_the_hardware_looks_like():
    assert "node.class.gateway" in by_id(measure("gateway"))


def test_the_clock_names_its_boot_and_never_goes_back():
    first, second = read_clock(), read_clock()
    assert len(first.boot_id) == 36
    assert first.boot_id == second.boot_id
    assert 0 < first.boottime_ms <= second.boottime_ms


def test_a_simulated_boot_starts_the_clock_anew():
    machine = SimulatedMachine()
    before = machine.clock(90.0)
    machine.boot(100.0)
    after = machine.clock(100.5)
    assert before.boot_id != after.boot_id
    assert after.boottime_ms == 500
