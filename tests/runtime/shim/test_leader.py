"""The step between a shim's fork and the workload's program, by itself."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import runtime

ROOT = Path(runtime.__file__).parent.parent
FORK = """
    import os, sys
    from runtime.shim.leader import Options, become_leader

    shim_pid = {shim_pid}
    said, failed, spare = os.pipe(), os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        words = [f"data={{sys.argv[1]}}", "ram_mb=512", "--", "/bin/echo", "ran"]
        become_leader(
            Options(words), {{}}, shim_pid=shim_pid, shim_fd=spare[1], stdout=said[1], stderr=said[1], failed=failed[1]
        )
    for end in (said[1], failed[1]):
        os.close(end)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), os.read(said[0], 99), os.read(failed[0], 99))
"""


@pytest.mark.parametrize(
    ("shim_pid", "told"), [("os.getpid()", "0 b'ran\\n' b''"), ("os.getpid() + 1", "1 b'' b''")], ids=["lives", "gone"]
)
def test_a_workload_whose_shim_was_gone_before_the_signal_of_its_death_was_armed_never_runs(tmp_path, shim_pid, told):
    """Its parent is another one by then, and that one's death would say nothing of the shim's."""
    code = textwrap.dedent(FORK).format(shim_pid=shim_pid)
    done = subprocess.run(
        [sys.executable, "-S", "-c", code, str(tmp_path)],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert (done.stdout.strip(), done.stderr) == (told, "")
