"""What idle processes cost: memory by its proportional share, and no module that they have no use for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from messages.base import Address
from messages.supervision import ChildState, ShowChildren, StartChild, StopChild
from messages.system import GetState

PROCESS_LIMIT_KB = 25 * 1024
SHIM_LIMIT_KB = 8 * 1024


def pss_kb(pid):
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1])
    raise AssertionError("no Pss in smaps_rollup")


def test_an_idle_process_takes_at_most_25_mb_and_a_shim_8(shared):
    line = shared.place()
    shared.wait_alive()
    taken = {name: pss_kb(pid) for name, pid in {**shared.pids(), "root": shared.root.pid}.items()}
    shim = pss_kb(shared.shim_of(line.pid).pid)
    shared.unload(line.instance_id)
    assert {name: kb for name, kb in taken.items() if kb > PROCESS_LIMIT_KB} == {}, taken
    assert shim <= SHIM_LIMIT_KB


def test_an_idle_edges_process_takes_at_most_25_mb(shared):
    supervisor, processes = Address("loft/supervisor"), Address("loft/processes")
    shared.ask(supervisor, StartChild(name="loft.edges"))
    shared.until(lambda: shared.ask(supervisor, ShowChildren()).children[-1].state is ChildState.RUNNING)
    pid = shared.ask(processes, GetState()).state["loft.edges"]["pid"]
    taken = pss_kb(pid)
    shared.ask(supervisor, StopChild(name="loft.edges"))
    shared.until(lambda: shared.ask(supervisor, ShowChildren()).children[-1].state is ChildState.STOPPED)
    assert taken <= PROCESS_LIMIT_KB


def test_processes_keep_bytecode_even_where_the_root_was_told_not_to(shared):
    """Or each of them compiles everything at every restart."""
    for pid in shared.pids().values():
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        assert b"PYTHONDONTWRITEBYTECODE=1" not in environment


@pytest.mark.parametrize("program", ["runtime.process", "runtime.up"])
def test_processes_load_nothing_that_only_the_command_line_or_others_need(program):
    useless = {"asyncio", "ssl", "typer", "rich", "click", "argparse", "sqlite3", "unittest", "email", "http"}
    code = f"import sys, runtime.roles, {program}; print(*sorted({useless!r} & sys.modules.keys()))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == []
