"""The sample workloads do what their packages promise: real figures, whole lines, a clean end on SIGTERM."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from actors.packages.cog import check_arguments
from actors.packages.keys import TrustAnchors
from actors.packages.spec import workload_spec
from messages.packages import Arch
from runtime.cluster.keys import SecretSeed
from runtime.packages.directory import VerifiedPackage, pack, sign, verify
from runtime.packages.keyfile import trust_key_of

PACKAGES = Path(__file__).resolve().parents[2] / "scenarios" / "packages"
DEADLINE_S = 20


@pytest.fixture(params=["hostwatch", "feed", "source", "transform", "sink", "trend"])
def sample(request: pytest.FixtureRequest, tmp_path: Path) -> VerifiedPackage:
    return verified(request.param, tmp_path)


def verified(name: str, tmp_path: Path) -> VerifiedPackage:
    seed = SecretSeed.generate()
    pack(PACKAGES / name, tmp_path / name)
    sign(tmp_path / name, seed)
    return verify(tmp_path / name, TrustAnchors.of([trust_key_of(seed)]))


@contextmanager
def running(name: str, tmp_path: Path, *arguments: str, bind: str | None = None) -> Iterator[subprocess.Popen[str]]:
    """The packed script as a node runs it: interpreter, bare environment, the memory that `cog.toml` asks for."""
    package = verified(name, tmp_path)
    program = package.directory / package.workload.binaries[Arch.NOARCH].path
    limit_kib = package.workload.limits.ram_mb * 1024
    environment = {} if bind is None else {"SENNIT_CSI_BIND": bind}
    process = subprocess.Popen(
        ["/bin/sh", "-c", f'ulimit -v {limit_kib}; exec "$0" "$@"', sys.executable, str(program), *arguments],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=DEADLINE_S)


def next_line(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.endswith("\n"), process.stderr.read() if process.stderr else ""
    value: dict[str, Any] = json.loads(line)
    return value


def free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_sample_is_a_placeable_script_with_a_behaviour_in_the_simulator(sample: VerifiedPackage) -> None:
    assert list(sample.workload.binaries) == [Arch.NOARCH]
    assert [variant.name for variant in workload_spec(sample.workload).requirements.variants] == ["noarch-native"]
    assert sample.workload.limits.behaviour == sample.workload.id


def test_only_the_feed_is_bound_to_hardware(tmp_path: Path) -> None:
    assert verified("feed", tmp_path).workload.limits.hardware == ("feed.csi",)
    assert verified("hostwatch", tmp_path).workload.limits.hardware == ()


def test_hostwatch_measures_its_node_once(tmp_path: Path) -> None:
    with running("hostwatch", tmp_path, "--once", "--label", "attic") as process:
        line = next_line(process)
        assert process.wait(DEADLINE_S) == 0
        assert process.stdout is not None
        assert process.stdout.read() == ""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < line["memory_total_bytes"] <= pages * 1.1
    assert 0 < line["memory_available_bytes"] <= line["memory_total_bytes"]
    assert line["processors"] == os.cpu_count()
    assert line["context_switches"] > 0
    assert 0 <= line["cpu_busy"] <= 1
    assert line["load_1m"] >= 0
    assert (line["sample"], line["label"]) == (1, "attic")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_hostwatch_ends_cleanly_when_asked(tmp_path: Path, number: signal.Signals) -> None:
    with running("hostwatch", tmp_path, "--interval", "1") as process:
        assert next_line(process)["sample"] == 1
        process.send_signal(number)
        rest, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0
    assert errors == ""
    assert all(json.loads(line) for line in rest.splitlines())


@pytest.mark.parametrize("arguments", [[], ["--interval", "0"], ["--interval", "3601"], ["--once", "--interval", "1"]])
def test_hostwatch_refuses_other_modes(tmp_path: Path, arguments: list[str]) -> None:
    with running("hostwatch", tmp_path, *arguments) as process:
        assert process.wait(DEADLINE_S) == 2


def test_hostwatch_declares_its_argument(tmp_path: Path) -> None:
    check_arguments(verified("hostwatch", tmp_path).workload.limits, ["--label", "attic"])


def test_feed_reports_what_arrived_and_sums_up_at_the_end(tmp_path: Path) -> None:
    bind = f"127.0.0.1:{free_port()}"
    with running("feed", tmp_path, "--interval", "3600", bind=bind) as process:
        assert next_line(process) == {"listening": bind}
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for size in (0, 1, 1000):
                sender.sendto(b"x" * size, ("127.0.0.1", int(bind.rpartition(":")[2])))
        process.send_signal(signal.SIGTERM)
        line = next_line(process)
        assert process.wait(DEADLINE_S) == 0
    assert (line["datagrams_total"], line["bytes_total"], line["ended"]) == (3, 1001, True)
    assert line["last"]["bytes"] == 1000


def test_feed_once_ends_with_the_first_datagram(tmp_path: Path) -> None:
    port = free_port()
    with running("feed", tmp_path, "--once", bind=f"127.0.0.1:{port}") as process:
        next_line(process)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.sendto(b"hello", ("127.0.0.1", port))
        assert next_line(process)["bytes_total"] == 5
        assert process.wait(DEADLINE_S) == 0


@pytest.mark.parametrize("bind", [None, "5006", "127.0.0.1:0", "127.0.0.1:99999", "127.0.0.1:x"])
def test_feed_says_which_address_it_needs(tmp_path: Path, bind: str | None) -> None:
    with running("feed", tmp_path, bind=bind) as process:
        _, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 1
    assert "SENNIT_CSI_BIND" in errors


def test_a_second_feed_on_the_port_says_so(tmp_path: Path) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        bind = f"127.0.0.1:{taken.getsockname()[1]}"
        with running("feed", tmp_path, bind=bind) as process:
            _, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 1
    assert f"cannot listen on {bind}" in errors
