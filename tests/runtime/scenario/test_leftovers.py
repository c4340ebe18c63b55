from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from runtime.scenario.leftovers import kill_all, process_named, processes_of, sockets_in

SLEEPER = "import sys; print('ready', flush=True); sys.stdin.read()"


@pytest.fixture
def folder() -> Iterator[Path]:
    with TemporaryDirectory(prefix="snt-") as path:
        yield Path(path)


@pytest.mark.parametrize("mark", ["command", "environment", "directory"])
def test_a_process_that_names_the_folder_anywhere_is_found_and_killed(folder: Path, mark: str) -> None:
    argv = [sys.executable, "-c", SLEEPER] + ([str(folder / "x")] if mark == "command" else [])
    environment = {**os.environ, **({"STATE": str(folder)} if mark == "environment" else {})}
    cwd = folder if mark == "directory" else None
    with subprocess.Popen(argv, env=environment, cwd=cwd, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        assert [found.pid for found in processes_of(folder)] == [child.pid]
        assert [found.pid for found in kill_all(folder)] == [child.pid]
        assert child.wait(10) == -9
    assert processes_of(folder) == []


def test_a_process_of_the_cluster_is_found_by_its_name(folder: Path) -> None:
    argv = [sys.executable, "-c", SLEEPER, "-m", "runtime.process", "shed", "--cluster", str(folder)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert process_named(folder, "shed") == child.pid
        assert process_named(folder, "attic") is None
        assert process_named(folder / "other", "shed") is None
        child.kill()


def test_socket_files_are_found_below_the_folder(folder: Path) -> None:
    (folder / "run").mkdir()
    (folder / "run" / "plain").touch()
    assert sockets_in(folder) == []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "run" / "a.sock"))
        assert sockets_in(folder) == [folder / "run" / "a.sock"]
