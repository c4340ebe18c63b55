"""The live launcher: real workloads, staged, run, stopped and found again by the next agent."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import queue
import select
import signal
import stat
import sys
import time
from pathlib import Path

import pytest

from actors.actor import Actor, AskFailed
from messages.base import Address
from messages.launching import RenewInstance
from messages.ports import (
    AdoptInstances,
    InstanceEnded,
    LauncherMessage,
    PortRefusal,
    ReadOutput,
    RemoveInstance,
    RunLimits,
    StageInstance,
    StartInstance,
    StopInstance,
)
from runtime.kernel.live import LiveWorld
from runtime.packages.blobs import ContentStore
from runtime.ports import launcher as port
from runtime.ports.launcher import Launcher
from runtime.processes import proc
from runtime.processes.exits import ExitWatch
from runtime.shim.client import sweep

LAUNCHER = Address("shed/launcher")
AGENT = Address("shed/agent")
ID = "cam-0011aabb-n-0123456789abcdef"
LIMITS = RunLimits(ram_mb=512, max_runtime_s=15, output_limit_bytes=4096)
WAIT_S = 10


class Agent(Actor):
    """Asks the launcher on behalf of a test and keeps what it is told."""

    mailbox = LauncherMessage | RenewInstance | InstanceEnded

    def __init__(self, ended):
        self._ended = ended

    def receive(self, message, ctx):
        if isinstance(message, InstanceEnded):
            self._ended.put(message.evidence)
            return None
        return self._ask(message, ctx)

    async def _ask(self, message, ctx):
        ctx.reply(await ctx.ask(LAUNCHER, message, timeout_s=WAIT_S))


class Node:
    """A process of a node as far as the launcher sees it. `crash` leaves the shims, as SIGKILL would."""

    def __init__(self, root: Path, **options) -> None:
        self.root, self.options = root, {"root_allowed": True} | options
        self.store = ContentStore(root / "blobs")
        self.instances = root / "instances"
        self.begin()

    def begin(self) -> None:
        self.ended = queue.Queue()
        self.logged = []
        self.exits = ExitWatch(lambda error: self.logged.append(("error", repr(error))))
        self.world = LiveWorld("shed", lambda level, _, text, fields: self.logged.append((level, text, fields)))
        self.world.spawn(LAUNCHER, lambda: Launcher(self.instances, self.store.materialise, self.exits, **self.options))
        self.world.spawn(AGENT, lambda: Agent(self.ended))

    def crash(self) -> None:
        self.world.close()
        self.exits.close()

    def ask(self, message):
        return self.world.main.ask(AGENT, message, timeout_s=WAIT_S)

    def refusal(self, message) -> tuple[str, str]:
        with pytest.raises(AskFailed) as caught:
            self.ask(message)
        return caught.value.code, caught.value.reason

    def stage(self, program: str | bytes, **options):
        data = program.encode() if isinstance(program, str) else program
        order = {
            "instance_id": ID,
            "sha256": self.store.put(data),
            "arch": "noarch",
            "interpreter": "/bin/sh",
            "program_name": "cam",
            "limits": LIMITS,
        }
        message = StageInstance(**(order | options))
        self.ask(message)
        return message

    def start(self, **options):
        order = {"instance_id": ID, "arguments": [], "environment": {}, "once": False, "epoch": "1.4"}
        environment = {"SENNIT_INSTANCE": ID, "SENNIT_EPOCH": "1.4"} | options.pop("environment", {})
        return self.ask(StartInstance(**(order | options | {"environment": environment})))

    def output(self, stdout_offset=-1, stderr_offset=-1, limit=65536):
        return self.ask(
            ReadOutput(instance_id=ID, stdout_offset=stdout_offset, stderr_offset=stderr_offset, limit=limit)
        )

    def wait_output(self, text: bytes):
        deadline = time.monotonic() + WAIT_S
        while text not in (chunk := self.output()).stdout:
            assert time.monotonic() < deadline, chunk
        return chunk


@pytest.fixture
def node(tmp_path):
    node = Node(tmp_path)
    yield node
    for state in node.instances.glob("*/run/state.json"):
        sweep(json.loads(state.read_bytes()))
    node.crash()


def died(pid: int) -> bool:
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([pidfd], [], [], WAIT_S)[0])
    finally:
        os.close(pidfd)


def test_an_instance_is_laid_out_with_the_modes_of_its_parts(node):
    node.stage("echo hello")
    folder = node.instances / ID
    modes = {name: stat.S_IMODE((folder / name).stat().st_mode) for name in (".", "data", "cam")}
    assert modes == {".": 0o755, "data": 0o700, "cam": 0o555}
    rows = node.ask(AdoptInstances()).rows
    assert [(row.instance_id, row.running, row.last) for row in rows] == [(ID, None, None)]


def test_a_run_is_started_with_its_contract_and_its_end_is_told(node):
    node.stage('echo "$SENNIT_INSTANCE $SENNIT_EPOCH $SENNIT_DATA_DIR $PATH $1"; pwd; echo oops >&2; exit 4')
    started = node.start(arguments=["--label"])
    assert started.pid > started.shim_pid > 1
    evidence = node.ended.get(timeout=WAIT_S)
    assert (evidence.instance_id, evidence.exit_code, evidence.signal, evidence.killed) == (ID, 4, None, False)
    data = node.instances / ID / "data"
    chunk = node.output()
    assert chunk.stdout.decode() == f"{ID} 1.4 {data} {port.PATH} --label\n{data}\n"
    assert (chunk.stderr, chunk.exit_code, chunk.running, chunk.truncated) == (b"oops\n", 4, False, False)
    assert (evidence.stdout_bytes, evidence.stderr_bytes) == (chunk.stdout_next, chunk.stderr_next)
    assert node.ask(AdoptInstances()).rows[0].last == evidence


def test_a_native_program_runs_and_one_for_another_machine_is_not_admitted(node):
    here = {"x86_64": "x86_64", "aarch64": "aarch64", "armv7l": "armv7"}[platform.machine()]
    program = Path("/bin/true").read_bytes()
    node.stage(program, arch=here, interpreter=None)
    node.start()
    assert node.ended.get(timeout=WAIT_S).exit_code == 0
    other = "aarch64" if here == "x86_64" else "x86_64"
    bad = StageInstance(
        instance_id="other",
        sha256=node.store.put(program),
        arch=other,
        interpreter=None,
        program_name="cam",
        limits=LIMITS,
    )
    code, reason = node.refusal(bad)
    assert code == PortRefusal.ADMISSION
    assert other in reason


@pytest.mark.parametrize(
    ("program", "options", "said"),
    [
        (b"#!/bin/sh\n", {"arch": platform.machine(), "interpreter": None}, "no ELF file"),
        (b"", {"arch": platform.machine(), "interpreter": None}, "no ELF file"),
        (
            b"\x7fELF\x01\x01" + bytes(12) + b"\x28\x00",
            {"arch": platform.machine(), "interpreter": None},
            "ELF class 1",
        ),
        (b"x", {"interpreter": None}, "needs the interpreter"),
        (b"x", {"interpreter": "/no/such/python"}, "cannot be run here"),
        (b"x", {"interpreter": "python3"}, "cannot be run here"),
        (b"x", {"program_name": "../cam"}, "cannot be the name"),
        (b"x", {"program_name": "run"}, "cannot be the name"),
    ],
)
@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="names this machine's architecture")
def test_what_cannot_run_here_is_not_admitted_and_leaves_nothing(node, program, options, said):
    with pytest.raises(AskFailed, match=said) as caught:
        node.stage(program, **options)
    assert caught.value.code == PortRefusal.ADMISSION
    assert list(node.instances.iterdir()) == []


def test_a_program_that_is_not_held_is_not_found(node):
    with pytest.raises(AskFailed) as caught:
        node.stage("true", sha256=hashlib.sha256(b"other").hexdigest())
    assert caught.value.code == PortRefusal.NOT_FOUND
    assert list(node.instances.iterdir()) == []


def test_an_id_that_is_a_path_is_refused(node):
    for name in ("../x", "a/b", "", ".hidden", "x" * 300):
        assert node.refusal(RemoveInstance(instance_id=name))[0] == PortRefusal.INVALID


def test_a_second_stage_start_or_remove_while_it_runs_is_refused_by_name(node):
    order = node.stage("exec sleep 1000")
    assert node.refusal(order)[0] == PortRefusal.EXISTS
    node.start()
    with pytest.raises(AskFailed) as caught:
        node.start()
    assert caught.value.code == PortRefusal.INVALID_STATE
    assert node.refusal(RemoveInstance(instance_id=ID))[0] == PortRefusal.INVALID_STATE
    node.ask(StopInstance(instance_id=ID, grace_ms=1000))
    node.ask(RemoveInstance(instance_id=ID))
    assert list(node.instances.iterdir()) == []
    assert node.refusal(RemoveInstance(instance_id=ID))[0] == PortRefusal.NOT_FOUND
    assert node.refusal(StopInstance(instance_id=ID, grace_ms=0))[0] == PortRefusal.NOT_FOUND


def test_a_stop_is_answered_with_evidence_when_nobody_is_left_and_told_once(node):
    node.stage("trap 'exit 9' TERM; sleep 1000 & echo up; while :; do sleep 0.01; done")
    started = node.start()
    node.wait_output(b"up")
    evidence = node.ask(StopInstance(instance_id=ID, grace_ms=5000))
    assert (evidence.exit_code, evidence.killed) == (9, False)
    assert not proc.stat(started.pid)
    assert node.ended.get(timeout=WAIT_S) == evidence
    assert node.refusal(StopInstance(instance_id=ID, grace_ms=0))[0] == PortRefusal.INVALID_STATE
    assert node.ended.empty()


def test_a_stopped_instance_starts_again_with_fresh_output(node):
    node.stage('echo "run $1"')
    for run in ("1", "2"):
        node.start(arguments=[run])
        assert node.ended.get(timeout=WAIT_S).exit_code == 0
        assert node.output().stdout == f"run {run}\n".encode()


def test_a_shim_that_does_not_answer_is_killed_by_a_stop_and_its_workload_with_it(node, monkeypatch):
    monkeypatch.setattr("runtime.shim.client.REPLY_TIMEOUT_S", 0.2)
    node.stage("exec sleep 1000")
    started = node.start()
    os.kill(started.shim_pid, signal.SIGSTOP)
    evidence = node.ask(StopInstance(instance_id=ID, grace_ms=1000))
    assert (evidence.signal, evidence.killed) == (9, True)
    assert died(started.pid)


def test_a_shim_that_is_killed_is_told_as_an_end_after_the_sweep(node):
    node.stage("trap '' TERM HUP; (trap '' TERM HUP; echo $$; exec sleep 1000) & echo up; wait")
    started = node.start()
    node.wait_output(b"up")
    os.kill(started.shim_pid, signal.SIGKILL)
    assert node.ended.get(timeout=WAIT_S).killed
    mark = f"SENNIT_INSTANCE={ID}".encode()
    assert not [one.pid for one in proc.processes() if proc.has_mark(one.pid, mark)]


def test_the_next_agent_adopts_what_lives_and_hears_of_its_end(node):
    node.stage("echo up; exec sleep 1000")
    started = node.start(orphan_after_s=600)
    node.wait_output(b"up")
    node.crash()
    node.begin()
    (row,) = node.ask(AdoptInstances()).rows
    assert row.running == started
    assert node.output().stdout == b"up\n"
    os.kill(started.pid, signal.SIGTERM)
    evidence = node.ended.get(timeout=WAIT_S)
    assert evidence.signal == signal.SIGTERM
    node.start()
    node.ask(StopInstance(instance_id=ID, grace_ms=1000))


def test_what_ended_while_the_agent_was_away_is_in_the_row_and_not_told_again(node):
    node.stage("echo up; read line < gate; exit 3")
    os.mkfifo(node.instances / ID / "data" / "gate")
    started = node.start()
    node.wait_output(b"up")
    node.crash()
    (node.instances / ID / "data" / "gate").write_text("go\n")
    assert died(started.shim_pid)
    node.begin()
    (row,) = node.ask(AdoptInstances()).rows
    assert row.running is None
    assert (row.last.exit_code, row.last.killed) == (3, False)
    assert node.ended.empty()


def test_an_instance_that_was_not_adopted_yet_is_neither_started_twice_nor_removed(node):
    node.stage("exec sleep 1000")
    node.start()
    node.crash()
    node.begin()
    with pytest.raises(AskFailed) as caught:
        node.start()
    assert caught.value.code == PortRefusal.INVALID_STATE
    assert node.refusal(RemoveInstance(instance_id=ID))[0] == PortRefusal.INVALID_STATE
    node.ask(AdoptInstances())
    node.ask(StopInstance(instance_id=ID, grace_ms=0))


def test_a_launcher_that_restarts_in_its_process_goes_on_with_the_runs(node):
    node.stage("exec sleep 1000")
    started = node.start()
    node.world.stop(LAUNCHER)
    deadline = time.monotonic() + WAIT_S
    while LAUNCHER in node.world.cells:
        assert time.monotonic() < deadline
    node.world.spawn(LAUNCHER, lambda: Launcher(node.instances, node.store.materialise, node.exits, root_allowed=True))
    assert node.ask(AdoptInstances()).rows[0].running == started
    node.ask(StopInstance(instance_id=ID, grace_ms=1000))
    assert died(started.shim_pid)
    assert [entry for entry in node.logged if entry[0] == "error"] == []


def test_while_the_agent_lives_its_workloads_are_no_orphans(node):
    node.stage("exec sleep 1000")
    started = node.start(orphan_after_s=0.6)
    pidfd = os.pidfd_open(started.shim_pid)
    assert not select.select([pidfd], [], [], 1.3)[0]
    node.crash()
    assert select.select([pidfd], [], [], WAIT_S)[0]
    os.close(pidfd)
    node.begin()
    assert node.ask(AdoptInstances()).rows[0].running is None


def test_a_lease_is_renewed_and_a_renewal_too_late_or_of_nothing_is_refused(node):
    now_ms = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
    node.stage("exec sleep 1000")
    late = RenewInstance(instance_id=ID, deadline_boottime_ms=now_ms)
    assert node.refusal(late)[0] == PortRefusal.INVALID_STATE
    node.start(deadline_boottime_ms=now_ms + 60_000)
    node.ask(RenewInstance(instance_id=ID, deadline_boottime_ms=now_ms + 90_000))
    code, reason = node.refusal(late)
    assert code == PortRefusal.INVALID_STATE
    assert "the right is over" in reason
    node.ask(StopInstance(instance_id=ID, grace_ms=0))


def test_a_once_run_is_bounded_in_time(node):
    node.stage("exec sleep 1000", limits=RunLimits(ram_mb=64, max_runtime_s=1, output_limit_bytes=100))
    node.start(once=True)
    evidence = node.ended.get(timeout=WAIT_S)
    assert evidence.signal == signal.SIGTERM
    assert 1000 <= evidence.elapsed_ms < 4000


def test_a_reader_that_lags_is_told_that_bytes_were_dropped(node):
    node.stage(
        "i=0; while [ $i -lt 200 ]; do echo line $i; i=$((i+1)); done",
        limits=RunLimits(ram_mb=64, max_runtime_s=15, output_limit_bytes=256),
    )
    node.start()
    evidence = node.ended.get(timeout=WAIT_S)
    assert evidence.truncated
    chunk = node.output(stdout_offset=0, stderr_offset=0)
    assert chunk.truncated
    assert chunk.stdout_next == evidence.stdout_bytes
    assert 256 <= len(chunk.stdout) <= 512
    again = node.output(stdout_offset=chunk.stdout_next, stderr_offset=0)
    assert (again.stdout, again.truncated) == (b"", False)


@pytest.mark.skipif(os.geteuid() != 0, reason="about an agent that is root")
def test_a_root_agent_runs_no_workload_as_root_unless_told_so(tmp_path):
    refusing = Node(tmp_path, root_allowed=False)
    try:
        with pytest.raises(AskFailed, match="would run as root"):
            refusing.stage("true")
    finally:
        refusing.crash()


def test_a_noarch_program_is_run_by_the_interpreter_named(node):
    node.stage("import sys; print(sys.version_info[0], sys.argv[1:])", interpreter=sys.executable)
    node.start(arguments=["--once"], once=True)
    assert node.ended.get(timeout=WAIT_S).exit_code == 0, node.output()
    assert node.output().stdout == b"3 ['--once']\n"
