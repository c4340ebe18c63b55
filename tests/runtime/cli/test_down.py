"""`sennit down` after a cluster was killed: what it left is found, told and ended, and nothing else."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from runtime.cluster import load_cluster, lock_cluster
from runtime.leftovers import Kind, kill_all, processes_of
from runtime.shim import client
from runtime.shim.client import LaunchSpec

SLEEPER = "import sys; print('ready', flush=True); sys.stdin.read()"
DEAF = "import signal, sys; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); sys.stdin.read()"
INSTANCE = "hostwatch-1-n-2"


@pytest.fixture
def stack(folder) -> Iterator[ExitStack]:
    with ExitStack() as opened:
        opened.callback(kill_all, folder)
        yield opened


def left_process(stack: ExitStack, cluster: Path, name: str, program: str = SLEEPER) -> subprocess.Popen[bytes]:
    """Stands for a process of the cluster that outlived its root."""
    argv = [sys.executable, "-c", program, "-m", "runtime.process", name, "--cluster", str(cluster)]
    child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    stack.enter_context(child)
    stack.callback(child.kill)
    assert child.stdout is not None
    assert child.stdout.readline() == b"ready\n"
    return child


def left_workload(cluster: Path) -> client.ShimHandle:
    """A real shim with a workload, as a node starts one."""
    directory = cluster / "state" / "shed" / "instances" / INSTANCE
    (directory / "data").mkdir(parents=True)
    environment = {"SENNIT_INSTANCE": INSTANCE, "SENNIT_DATA_DIR": str(directory / "data")}
    spec = LaunchSpec(
        instance_id=INSTANCE,
        epoch="1.1",
        argv=["/bin/sleep", "1000"],
        environment=environment,
        ram_mb=256,
        output_limit=4096,
    )
    return client.start(directory, spec)


def reap(handle: client.ShimHandle) -> None:
    process = handle._process
    assert process.reap() is not None
    os.close(process.pidfd)
    os.close(process.stderr_fd)


def stale_socket(path: Path) -> None:
    path.parent.mkdir(mode=0o700, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
    Path(f"{path}.lock").touch(mode=0o600)


def test_a_cluster_that_left_nothing_is_not_up(sennit, reef):
    ended = sennit("down", "--cluster", reef)
    assert ended.code == 6
    assert "is not up" in ended.err


def test_processes_that_outlived_their_root_are_ended_in_reverse_start_order(sennit, reef, stack):
    children = {name: left_process(stack, reef, name) for name in ("chain", "controller", "shed", "shed.edges")}
    ended = sennit("down", "--json", "--cluster", reef)
    assert ended.code == 0, ended
    told = [(row["kind"], row["name"], row["pid"]) for row in ended.document["ended"]]
    assert told == [("process", name, children[name].pid) for name in ("shed.edges", "shed", "controller", "chain")]
    assert ended.document["stopped"] is None
    assert [child.wait(10) for child in children.values()] == [-signal.SIGTERM] * 4
    assert sennit("down", "--cluster", reef).code == 6


def test_one_that_is_stopped_or_deaf_is_ended_too(sennit, reef, stack, monkeypatch):
    monkeypatch.setattr("runtime.leftovers.GRACE_S", 0.2)
    stopped, deaf = left_process(stack, reef, "gate"), left_process(stack, reef, "chain", DEAF)
    stopped.send_signal(signal.SIGSTOP)
    ended = sennit("down", "--cluster", reef)
    assert ended.code == 0
    assert "was not up, but something of it was left" in ended.out
    assert (stopped.wait(10), deaf.wait(10)) == (-signal.SIGTERM, -signal.SIGKILL)


def test_another_cluster_is_never_touched(sennit, reef, stack):
    other = Path(f"{reef}2")
    assert sennit("init", other).code == 0
    child = left_process(stack, other, "chain")
    left_process(stack, reef, "chain")
    stale_socket(other / "run" / "chain.sock")
    ended = sennit("down", "--workloads", "--json", "--cluster", reef)
    assert len(ended.document["ended"]) == 1
    assert child.poll() is None
    assert (other / "run" / "chain.sock").exists()


def test_dead_sockets_and_their_locks_are_removed_and_held_ones_told(sennit, reef):
    run = reef / "run"
    for name in ("chain", "gate"):
        stale_socket(run / f"{name}.sock")
    with (run / "gate.sock.lock").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        ended = sennit("down", "--json", "--cluster", reef)
        assert ended.code == 3
        assert ended.document["removed"] == [str(run / "chain.sock"), str(run / "chain.sock.lock")]
        assert "gate.sock is in use" in ended.document["refused"][0]
    assert sennit("down", "--cluster", reef).code == 0
    assert list(run.iterdir()) == []


def test_workloads_go_on_and_are_told_with_how_to_end_them(sennit, reef, stack):
    handle = left_workload(reef)
    ended = sennit("down", "--cluster", reef)
    assert ended.code == 0
    assert f"goes on  workload  {INSTANCE}  {handle.pid}" in ended.out
    assert f"sennit down --workloads --cluster {reef}" in ended.out
    assert len(processes_of(reef)) == 2

    ended = sennit("down", "--workloads", "--json", "--cluster", reef)
    assert ended.code == 0, ended
    assert [row["kind"] for row in ended.document["ended"]] == [Kind.SHIM, Kind.WORKLOAD]
    assert processes_of(reef) == []
    record = client.ended(reef / "state" / "shed" / "instances" / INSTANCE)
    assert record is not None, "the node will read how it ended"
    assert record.signal == signal.SIGTERM
    reap(handle)


def test_a_workload_whose_shim_does_not_answer_is_swept(sennit, reef, stack, monkeypatch):
    monkeypatch.setattr(client, "REPLY_TIMEOUT_S", 0.2)
    handle = left_workload(reef)
    os.kill(handle.shim_pid, signal.SIGSTOP)
    ended = sennit("down", "--workloads", "--json", "--cluster", reef)
    assert ended.code == 0, ended
    assert processes_of(reef) == []
    reap(handle)


def test_nothing_is_cleared_while_somebody_brings_it_up(sennit, reef, stack):
    from runtime.cli.down import clear
    from runtime.cluster import ClusterFault

    child = left_process(stack, reef, "chain")
    cluster = load_cluster(reef)
    with lock_cluster(cluster), pytest.raises(ClusterFault, match="is up already"):
        clear(cluster, 1.0, workloads=True)
    assert child.poll() is None


def test_a_cluster_whose_root_was_killed_is_cleared_and_comes_up_again(sennit, folder, stack):
    reef = folder / "reef"
    assert sennit("init", reef, "--node", "shed").code == 0
    up = sennit("up", "--detach", "--json", "--cluster", reef)
    assert up.code == 0, up
    stuck = next(one for one in processes_of(reef) if one.name == "gate")
    os.kill(stuck.pid, signal.SIGSTOP)
    os.kill(up.document["root_pid"], signal.SIGKILL)
    os.waitpid(up.document["root_pid"], 0)
    cleared = sennit("down", "--json", "--cluster", reef)
    assert cleared.code == 0, cleared
    assert "gate" in [row["name"] for row in cleared.document["ended"]]
    assert processes_of(reef) == []
    assert list((reef / "run").iterdir()) == []
    assert sennit("up", "--detach", "--cluster", reef).code == 0
    assert sennit("down", "--cluster", reef).code == 0
