"""Ports in processes of their own: how a program gets them, what its end says, what its children inherit."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import runtime
from runtime.processes.exits import ExitWatch
from runtime.shim import client
from runtime.shim.client import LaunchSpec, ShimFailed
from runtime.workload import NotAWorkload, Ports
from runtime.workload import ports as module

ROOT = Path(runtime.__file__).parent.parent
WAIT_S = 20

ECHO = """
    from runtime.workload import Ports
    ports = Ports.from_environment()
    out = ports.output("out")
    for record in ports.input("in"):
        out.send(record.payload, object_id=record.object_id, flags=record.flags)
"""


def ended(process):
    out, err = process.communicate(timeout=WAIT_S)
    return process.returncode, out, err


def test_importing_it_needs_the_standard_library_only():
    code = """
import sys
before = set(sys.modules)
import runtime.workload
new = {name.partition(".")[0] for name in set(sys.modules) - before}
print(sorted(new - sys.stdlib_module_names), sorted(new & {"asyncio", "dataclasses", "inspect", "logging", "ctypes"}))
print(sorted(name for name in sys.modules if name.startswith(("runtime.", "actors."))))
"""
    said = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    first, second = said.splitlines()
    assert first == "['actors', 'runtime'] []"
    ours = {"actors.edges", "actors.edges.records", "runtime.edges", "runtime.edges.ring", "runtime.workload"}
    assert {name for name in eval(second) if not name.startswith("runtime.workload.")} == ours


@pytest.fixture
def fresh(monkeypatch):
    """A process that had no ports before."""
    monkeypatch.setattr(module, "_mine", None)


def test_a_process_that_is_no_workload_is_told_so(fresh):
    pipe, _other = os.pipe()
    plain, pair = socket.socketpair()
    with plain, pair:
        for value, text in (
            (None, "is not set"),
            ("three", "is no socket here"),
            ("-1", "is no socket here"),
            ("987654", "is no socket here"),
            (str(pipe), "is no socket here"),
            (str(plain.fileno()), "socket of another kind"),
        ):
            with pytest.raises(NotAWorkload, match=text):
                Ports.from_environment({} if value is None else {"SENNIT_SHIM_FD": value})
        plain.send(b"still open")
    os.close(pipe)
    os.close(_other)


def test_a_program_has_its_ports_once(edges, fresh):
    first = Ports.from_environment({"SENNIT_SHIM_FD": str(edges.theirs.dup().detach())})
    assert Ports.from_environment({}) is first
    first.close()
    with pytest.raises(NotAWorkload, match="closed, which is for good"):
        Ports.from_environment({"SENNIT_SHIM_FD": str(edges.theirs.fileno())})


def test_a_program_that_reads_to_the_end_ends_its_own_stream(edges, child):
    process = child(ECHO)
    inward, outward = edges.install("in", "ingress", capacity=300), edges.install("out", "egress", capacity=300)
    payloads = [bytes([number % 256]) * (number % 90) for number in range(500)]
    echoed = []
    for number in range(0, 500, 2):
        inward.push(*payloads[number : number + 2])
        echoed += outward.pull_some(2)
    edges.end(inward)
    assert {edges.hear()["did"] for _ in range(2)} == {"closed"}
    assert ended(process) == (0, "", "")
    assert [record.payload for record in echoed] == payloads
    assert [record.header.object_id for record in echoed] == list(range(1, 501))
    assert edges.channel.recv(100) == b""


@pytest.mark.parametrize(
    ("last_line", "code", "closed"),
    [("pass", 0, True), ("sys.exit(3)", 3, True), ("1 / 0", 1, False), ("os.kill(os.getpid(), 9)", -9, False)],
    ids=["in order", "by choice", "by an error", "by a signal"],
)
def test_only_a_program_that_ends_in_order_ends_its_streams(edges, child, last_line, code, closed):
    process = child(f"""
        import os, sys
        from runtime.workload import Ports
        out = Ports.from_environment().output("out")
        with out.batch():
            out.send(b"last")
        {last_line}
    """)
    ring = edges.install("out", "egress")
    assert [record.payload for record in ring.pull_some(1)] == [b"last"]
    if closed:
        assert edges.hear() == {"did": "closed", "ring": ring.number}
    assert edges.channel.recv(100) == b""
    assert ended(process)[0] == code


def test_a_waiting_program_hears_its_signals(edges, child):
    process = child("""
        import signal, sys
        from runtime.workload import Ports
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
        port = Ports.from_environment().input("in")
        print("ready", flush=True)
        port.receive()
    """)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    assert ended(process)[0] == 5


def test_a_program_started_by_a_workload_inherits_nothing_of_its_edges(edges, child):
    process = child("""
        import os, subprocess, sys
        from runtime.workload import NotAWorkload, Ports
        port = Ports.from_environment().input("in")
        port.receive()
        code = '''
        import os
        links = []
        for number in os.listdir("/proc/self/fd"):
            try:
                links.append(os.readlink("/proc/self/fd/" + number))
            except OSError:
                pass
        print([link for link in links if "memfd" in link or "eventfd" in link or "socket" in link])
        from runtime.workload import NotAWorkload, Ports
        try:
            Ports.from_environment()
        except NotAWorkload as error:
            print("only the program that the node started has ports" in str(error))
        '''
        import textwrap
        subprocess.run([sys.executable, "-c", textwrap.dedent(code)], close_fds=False, check=True)
    """)
    edges.install("in", "ingress").push(b"x")
    assert ended(process) == (0, "[]\nTrue\n", "")


@pytest.fixture
def exits():
    errors = []
    watch = ExitWatch(errors.append)
    yield watch
    watch.close()
    assert errors == []


def test_a_workload_under_a_real_shim_gets_its_channel(edges, exits, tmp_path):
    (tmp_path / "data").mkdir()
    script = tmp_path / "data" / "echo.py"
    script.write_text("\n".join(line[4:] for line in ECHO.splitlines()))
    spec = LaunchSpec(
        instance_id="echo-1",
        epoch="1.1",
        argv=[os.path.realpath(sys.executable), str(script)],
        environment={"PYTHONPATH": f"{ROOT}:{os.pathsep.join(filter(None, sys.path))}", "PATH": "/usr/bin:/bin"},
        ram_mb=512,
        output_limit=65536,
    )
    handle = client.start(tmp_path, spec)
    over = queue.Queue()
    handle.watch(exits, over.put)
    try:
        edges.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        edges.channel.settimeout(WAIT_S)
        with theirs:
            assert handle.pass_descriptors("edges 1", [theirs.fileno()]) == {"passed": 1}
        inward, outward = edges.install("in", "ingress"), edges.install("out", "egress")
        inward.push(b"through the shim")
        assert [record.payload for record in outward.pull_some(1)] == [b"through the shim"]
        edges.end(inward)
        assert {edges.hear()["did"] for _ in range(2)} == {"closed"}
        assert edges.channel.recv(100) == b"", client.read_output(tmp_path, "stderr", 0, 4096)
    finally:
        with contextlib.suppress(ShimFailed):
            handle.stop(0)
        over.get(timeout=WAIT_S)
    assert client.collect(tmp_path).exit_code == 0
