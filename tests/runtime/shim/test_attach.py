"""Looking at a run from outside: it is the right one or none, looking changes nothing, and gone means gone."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import queue
import select
import signal
import socket
import sys
import textwrap
import time
from pathlib import Path

import pytest

from runtime.processes import proc
from runtime.processes.exits import ExitWatch
from runtime.shim import client
from runtime.shim.attach import attach
from runtime.shim.client import LaunchSpec, ShimFailed, ShimHandle, ShimRefused

PYTHON = os.path.realpath(sys.executable)
WAIT_S = 10

OUTLIVE = """
    import ctypes, os, signal, threading, time

    def tell():
        with open("fifo", "w") as fifo:
            fifo.write("%d\\n" % os.getpid())

    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        {how}
    time.sleep(1000)
"""
DESCENDANTS = {
    "in a session of its own": "tell(); time.sleep(1000)",
    "whose first thread has ended": """threading.Thread(target=lambda: (
            select_zombie(), tell(), time.sleep(1000))).start()
        ctypes.CDLL(None).syscall(60 if os.uname().machine == "x86_64" else 93, 0)
    """,
}
ZOMBIE = """
    def select_zombie():
        while open("/proc/self/stat").read().rpartition(")")[2].split()[0] != "Z":
            time.sleep(0.001)
"""


class Host:
    """An instance directory as its launcher keeps it."""

    def __init__(self, directory: Path, exits: ExitWatch) -> None:
        self.directory, self.exits, self.ended = directory, exits, queue.Queue()
        (directory / "data").mkdir()
        os.mkfifo(directory / "data" / "fifo")
        self._fifo = os.open(directory / "data" / "fifo", os.O_RDWR | os.O_NONBLOCK)

    def start(self, argv, **options) -> ShimHandle:
        base = {"epoch": "1.1", "ram_mb": 512, "output_limit": 4096, "grace_ms": 300}
        environment = {"PATH": "/usr/bin:/bin", "SENNIT_INSTANCE": "cam-1"}
        handle = client.start(
            self.directory, LaunchSpec(instance_id="cam-1", argv=argv, environment=environment, **(base | options))
        )
        handle.watch(self.exits, self.ended.put)
        return handle

    def sh(self, script) -> ShimHandle:
        return self.start(["/bin/sh", "-c", script])

    def outlived(self, how: str) -> tuple[ShimHandle, int]:
        program = textwrap.dedent(ZOMBIE) + textwrap.dedent(OUTLIVE.format(how=DESCENDANTS[how]))
        handle = self.start([PYTHON, "-I", "-S", "-c", program])
        assert select.select([self._fifo], [], [], WAIT_S)[0], client.read_output(self.directory, "stderr", 0, 9999)
        return handle, int(os.read(self._fifo, 100))

    def rewrite(self, **changes) -> None:
        path = self.directory / "run/state.json"
        path.write_text(json.dumps(json.loads(path.read_bytes()) | changes))

    def attach(self):
        found = attach(self.directory)
        assert found is not None
        return found

    def close(self) -> None:
        os.close(self._fifo)
        with contextlib.suppress(ShimFailed, OSError, ValueError):
            found = client.adopt(self.directory)
            if isinstance(found, ShimHandle):
                os.kill(found.shim_pid, signal.SIGKILL)
                found.close()
                client.sweep(json.loads((self.directory / "run/state.json").read_bytes()))


@pytest.fixture
def host(tmp_path):
    errors = []
    exits = ExitWatch(errors.append)
    host = Host(tmp_path, exits)
    yield host
    host.close()
    exits.close()
    assert errors == []


def alive(pid: int) -> bool:
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        return not select.select([pidfd], [], [], 0)[0]
    finally:
        os.close(pidfd)


def reply(control: socket.socket) -> socket.socket:
    assert select.select([control], [], [], WAIT_S)[0]
    return control


def test_a_living_run_is_found_and_can_be_asked(host):
    handle = host.sh("sleep 1000")
    found = host.attach()
    assert (found.instance_id, found.epoch, found.shim_pid) == ("cam-1", "1.1", handle.shim_pid)
    assert found.shim_lives()
    assert not found.gone()
    with found.ask("status") as control:
        assert found.answer(reply(control))["pid"] == handle.pid
    with found.ask("nonsense") as control, pytest.raises(ShimRefused, match="unknown request"):
        found.answer(reply(control))
    found.close()


def test_looking_takes_nothing_from_the_launcher(host):
    handle = host.sh("sleep 1000")
    found = host.attach()
    handle.stop(0)
    host.ended.get(timeout=WAIT_S)
    host.sh("sleep 1000")
    assert found.gone()
    with pytest.raises(ShimFailed):
        found.ask("status")
    newer = host.attach()
    assert not newer.gone(), "the same instance, another run"
    found.close()
    newer.close()


@pytest.mark.parametrize(
    "changes",
    [
        {"pid": 0},
        {"boot_id": "another boot"},
        {"shim_start_ticks": 1},
        {"shim_pid": os.getpid()},
        {"shim_pid": 2**22 + 1},
    ],
)
def test_a_process_that_only_bears_the_number_is_not_the_run(host, changes):
    host.sh("sleep 1000")
    before = (host.directory / "run/state.json").read_bytes()
    host.rewrite(**changes)
    assert attach(host.directory) is None
    (host.directory / "run/state.json").write_bytes(before)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"pid":1,"shim_pid":"x"}', b"\xff", b"[" * 9000])
def test_a_state_that_says_nothing_sensible_is_a_failure(host, content):
    (host.directory / "run").mkdir()
    (host.directory / "run/state.json").write_bytes(content)
    count = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ShimFailed):
        attach(host.directory)
    assert len(os.listdir("/proc/self/fd")) == count
    (host.directory / "run/state.json").unlink()


@pytest.mark.parametrize("member", ["instance_id", "epoch", "boot_id", "pid", "start_ticks", "shim_pid"])
@pytest.mark.parametrize("value", [None, [], {}, 1.5])
def test_a_state_with_a_member_of_another_kind_is_a_failure(host, member, value):
    host.sh("sleep 1000")
    before = (host.directory / "run/state.json").read_bytes()
    host.rewrite(**{member: value or [0]})
    with pytest.raises(ShimFailed):
        attach(host.directory)
    (host.directory / "run/state.json").write_bytes(before)


def test_a_state_that_never_comes_is_not_waited_for(host):
    (host.directory / "run").mkdir()
    os.mkfifo(host.directory / "run/state.json")
    with pytest.raises(ShimFailed):
        attach(host.directory)
    (host.directory / "run/state.json").unlink()


@pytest.mark.parametrize("said", [b"1", b"null", b"[]", b'"error"', b"{", b"\xff", b"[" * 8000])
def test_nonsense_from_whoever_sits_on_the_control_socket_is_a_failure(host, said):
    host.sh("sleep 1000")
    found = host.attach()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.send(said)
    with ours, theirs, pytest.raises(ShimFailed, match="talks nonsense"):
        found.answer(ours)
    found.close()


def test_a_run_that_is_closed_reaches_no_other(host):
    host.sh("sleep 1000")
    found, other = host.attach(), host.attach()
    found.close()
    with pytest.raises(ShimFailed):
        found.ask("stop 0")
    other.ask("status").close()
    other.close()


def test_who_has_no_descriptor_left_to_look_with_does_not_say_that_nobody_is_left(host, monkeypatch):
    handle = host.sh("sleep 1000")
    found = host.attach()
    os.kill(handle.shim_pid, signal.SIGKILL)
    host.ended.get(timeout=WAIT_S)

    def out_of_descriptors(path, read=proc.read_file):
        if path.endswith("/environ"):
            raise OSError(errno.EMFILE, "Too many open files")
        return read(path)

    with monkeypatch.context() as patch:
        patch.setattr(proc, "read_file", out_of_descriptors)
        with pytest.raises(OSError, match="Too many open files"):
            found.gone()
    client.collect(host.directory)
    assert found.gone()
    found.close()


def test_where_nothing_runs_nothing_is_found(host):
    assert attach(host.directory / "nobody") is None
    assert attach(host.directory) is None
    (host.directory / "run").mkdir()
    assert attach(host.directory) is None
    (host.directory / "run").rmdir()
    (host.directory / "run").write_text("a file")
    assert attach(host.directory) is None
    (host.directory / "run").unlink()
    host.sh("true")
    host.ended.get(timeout=WAIT_S)
    assert attach(host.directory) is None


@pytest.mark.parametrize("how", DESCENDANTS)
def test_a_run_whose_shim_was_killed_is_gone_when_its_descendants_are(host, how):
    handle, child = host.outlived(how)
    found = host.attach()
    os.kill(handle.shim_pid, signal.SIGKILL)
    host.ended.get(timeout=WAIT_S)
    assert not found.shim_lives()
    assert not found.gone()
    assert alive(child)
    client.collect(host.directory)
    assert found.gone()
    assert not alive(child)
    found.close()


@pytest.mark.parametrize("how", DESCENDANTS)
def test_a_shim_ends_every_descendant(host, how):
    handle, child = host.outlived(how)
    handle.stop(0)
    host.ended.get(timeout=WAIT_S)
    assert client.ended(host.directory).killed
    assert not alive(child)


def test_a_silent_shim_can_be_killed(host):
    handle = host.sh("sleep 1000")
    found = host.attach()
    os.kill(handle.shim_pid, signal.SIGSTOP)
    with found.ask("status") as control, pytest.raises(ShimFailed):
        found.answer(control)  # nothing is there, and it does not wait
    found.kill()
    host.ended.get(timeout=WAIT_S)
    client.collect(host.directory)
    assert found.gone()
    found.kill()
    found.close()


def test_a_shim_that_takes_no_connection_is_not_waited_for(host):
    handle = host.sh("sleep 1000")
    found = host.attach()
    os.kill(handle.shim_pid, signal.SIGSTOP)
    asked = []

    def ask_often() -> None:
        for _ in range(100):
            asked.append(found.ask("status"))  # noqa: PERF401  # those before the failure are closed below

    with pytest.raises(ShimFailed, match="cannot be asked"):
        ask_often()
    os.kill(handle.shim_pid, signal.SIGCONT)
    for control in asked:
        control.close()
    found.close()


def test_a_shim_says_whether_all_that_it_passed_on_is_read(host):
    handle = host.start([PYTHON, "-I", "-S", "-c", "import os\nfor line in open('fifo'): os.read(3, 99)"])
    assert handle.status()["unread"] == 0
    for _ in range(2):
        handle.pass_descriptors("x", [])
    unread = handle.status()["unread"]
    assert unread > 0
    for last in (False, True):
        (host.directory / "data/fifo").write_text("read one\n")
        deadline = time.monotonic() + WAIT_S
        while (now := handle.status()["unread"]) == unread:
            assert time.monotonic() < deadline
        assert (now == 0) == last
        unread = now


def test_a_process_whose_first_thread_has_ended_is_no_zombie_and_bears_its_mark(host):
    _, child = host.outlived("whose first thread has ended")
    assert proc.stat(child).state != "Z"
    assert proc.has_mark(child, b"SENNIT_INSTANCE=cam-1")
    assert not proc.has_mark(child, b"SENNIT_INSTANCE=cam-2")
