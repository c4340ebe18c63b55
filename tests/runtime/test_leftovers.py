"""Which processes belong to a cluster, and which only look like it."""

from __future__ import annotations

import os
import select
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from runtime.leftovers import Kind, kill_all, process_named, processes_of, sockets_in
from runtime.shim import client
from runtime.shim.client import LaunchSpec

SLEEPER = "import sys; print('ready', flush=True); sys.stdin.read()"
Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def folder() -> Iterator[Path]:
    with TemporaryDirectory(prefix="snt-") as path:
        yield Path(path)


@pytest.fixture
def start() -> Iterator[Start]:
    """A process that sits there with this command line and environment; it is gone after the test."""
    with ExitStack() as stack:

        def call(*words: object, cwd: Path | None = None, **environment: str) -> subprocess.Popen[bytes]:
            argv = [sys.executable, "-c", SLEEPER, *map(str, words)]
            child = subprocess.Popen(
                argv, env={**os.environ, **environment}, cwd=cwd, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            stack.enter_context(child)
            stack.callback(child.kill)
            assert child.stdout is not None
            assert child.stdout.readline() == b"ready\n"
            return child

        yield call


OWN = {
    "process": (Kind.PROCESS, "shed", ("-m", "runtime.process", "shed", "--cluster", "{}"), {}),
    "root": (Kind.PROCESS, "root", ("-m", "runtime.up", "{}"), {}),
    "foreground root": (Kind.PROCESS, "root", ("-m", "runtime.cli", "up", "--cluster", "{}"), {}),
    "shim": (Kind.SHIM, "a-1", ("/x/runtime/shim/shim.py", "run={}/state/shed/instances/a-1/run", "instance=a-1"), {}),
    "workload": (Kind.WORKLOAD, "a-1", (), {"SENNIT_DATA_DIR": "{}/state/x/data", "SENNIT_INSTANCE": "a-1"}),
}


@pytest.mark.parametrize("own", OWN.values(), ids=OWN)
@pytest.mark.parametrize("below", ["", "/inner"])
def test_what_the_cluster_started_is_found_and_killed(folder, start, own, below) -> None:
    kind, name, words, environment = own
    place = f"{folder}{below}"
    child = start(*(word.format(place) for word in words), **{k: v.format(place) for k, v in environment.items()})
    assert [(one.kind, one.name, one.pid) for one in processes_of(folder)] == [(kind, name, child.pid)]
    assert [one.pid for one in kill_all(folder)] == [child.pid]
    assert child.wait(10) == -9
    assert processes_of(folder) == []


STRANGERS = {
    "an editor": ((("vi", "{}/cluster.toml")), {}),
    "a shell that names the cluster": ((), {"SENNIT_CLUSTER": "{}"}),
    "a cluster whose path begins alike": (("-m", "runtime.process", "shed", "--cluster", "{}2"), {}),
    "a workload of that cluster": ((), {"SENNIT_DATA_DIR": "{}2/state/shed/instances/a/data"}),
    "a verb": (("-m", "runtime.cli", "status", "--cluster", "{}"), {}),
    "a workload that is told of the folder": (
        ("/x/runtime/shim/shim.py", "run=/elsewhere/run", "instance=b", "--", "tool", "run={}/x"),
        {},
    ),
}


@pytest.mark.parametrize(("words", "environment"), STRANGERS.values(), ids=STRANGERS)
def test_what_only_looks_like_it_is_left_alone(folder, start, words, environment) -> None:
    child = start(
        *(word.format(folder) for word in words), cwd=folder, **{k: v.format(folder) for k, v in environment.items()}
    )
    assert processes_of(folder) == []
    assert kill_all(folder) == []
    assert child.poll() is None


def test_a_process_of_the_cluster_is_found_by_its_name(folder, start) -> None:
    child = start("-m", "runtime.process", "shed", "--cluster", folder)
    assert process_named(folder, "shed") == child.pid
    assert process_named(folder, "attic") is None
    assert process_named(folder / "other", "shed") is None


def shim(folder: Path, *argv: str) -> tuple[Path, client.ShimHandle]:
    directory = folder / "state" / "shed" / "instances" / "a-1"
    (directory / "data").mkdir(parents=True)
    spec = LaunchSpec(
        instance_id="a-1",
        epoch="1.1",
        argv=argv,
        environment={
            "PATH": os.environ["PATH"], "SENNIT_INSTANCE": "a-1", "SENNIT_DATA_DIR": str(directory / "data")
        },
        ram_mb=256,
        output_limit=4096,
    )  # fmt: skip
    return directory, client.start(directory, spec)


def end(handle: client.ShimHandle) -> None:
    process = handle._process
    handle.kill()
    select.select([process.pidfd], [], [], 10)
    process.reap()
    os.close(process.pidfd)
    if process.stderr_fd is not None:
        os.close(process.stderr_fd)


def test_a_workload_without_its_environment_is_found_by_its_shim_and_after_it(folder) -> None:
    directory, handle = shim(folder, "/usr/bin/env", "-i", "/bin/sleep", "1000")
    try:
        found = {(one.kind, one.pid) for one in processes_of(folder)}
        assert found == {(Kind.SHIM, handle.shim_pid), (Kind.WORKLOAD, handle.pid)}
    finally:
        end(handle)
    client.collect(directory)
    assert processes_of(folder) == []


def test_a_copied_folder_does_not_own_what_the_original_runs(folder) -> None:
    directory, handle = shim(folder / "one", "/bin/sleep", "1000")
    try:
        shutil.copytree(folder / "one", folder / "two", ignore=shutil.ignore_patterns("control"))
        assert len(processes_of(folder / "one")) == 2
        assert processes_of(folder / "two") == []
    finally:
        end(handle)
        client.collect(directory)


def test_socket_files_are_found_below_the_folder(folder: Path) -> None:
    (folder / "run").mkdir()
    (folder / "run" / "plain").touch()
    assert sockets_in(folder) == []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "run" / "a.sock"))
        assert sockets_in(folder) == [folder / "run" / "a.sock"]
