"""Real shims, real signals: no process of a workload is left, and how it ended is known."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import select
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

import runtime
from runtime.processes import proc
from runtime.processes.exits import ExitWatch
from runtime.shim import client
from runtime.shim.client import ExitRecord, LaunchSpec, ShimFailed, ShimHandle

ROOT = Path(runtime.__file__).parent.parent
PYTHON = os.path.realpath(sys.executable)
WAIT_S = 10


def boottime_ms() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


class Host:
    """One instance directory, and what a test needs to see of it."""

    def __init__(self, directory: Path, exits: ExitWatch) -> None:
        self.directory = directory
        (directory / "data").mkdir()
        self.fifo = directory / "data" / "fifo"
        os.mkfifo(self.fifo)
        self._fifo = os.open(self.fifo, os.O_RDWR | os.O_NONBLOCK)
        self._heard = b""
        self.exits, self.ended = exits, queue.Queue()
        self.handle: ShimHandle | None = None

    def spec(self, argv, **options):
        environment = {"PATH": "/usr/bin:/bin", "SENNIT_INSTANCE": "cam-1"} | options.pop("environment", {})
        base = {"epoch": "1.1", "ram_mb": 512, "output_limit": 4096, "grace_ms": 300}
        return LaunchSpec(instance_id="cam-1", argv=argv, environment=environment, **(base | options))

    def sh(self, script, **options):
        return self.start(["/bin/sh", "-c", script], **options)

    def python(self, code, **options):
        return self.start([PYTHON, "-I", "-S", "-c", textwrap.dedent(code)], **options)

    def start(self, argv, **options):
        self.handle = client.start(self.directory, self.spec(argv, **options))
        self.handle.watch(self.exits, self.ended.put)
        return self.handle

    def hear(self) -> str:
        """The next line that the workload writes to `fifo`."""
        while b"\n" not in self._heard:
            assert select.select([self._fifo], [], [], WAIT_S)[0], f"the workload is silent, heard {self._heard!r}"
            self._heard += os.read(self._fifo, 65536)
        line, _, self._heard = self._heard.partition(b"\n")
        return line.decode()

    def record(self) -> ExitRecord:
        """Wait for the end of the shim."""
        self.ended.get(timeout=WAIT_S)
        return client.collect(self.directory)

    def marked(self) -> list[int]:
        return [one.pid for one in proc.processes() if proc.has_mark(one.pid, b"SENNIT_INSTANCE=cam-1")]

    def close(self) -> None:
        os.close(self._fifo)
        with contextlib.suppress(ShimFailed, OSError, ValueError):
            found = client.adopt(self.directory)
            if isinstance(found, ShimHandle):
                os.kill(found.shim_pid, signal.SIGKILL)
                client.sweep(json.loads((self.directory / "run/state.json").read_bytes()))


@pytest.fixture
def exits():
    errors = []
    watch = ExitWatch(errors.append)
    yield watch
    watch.close()
    assert errors == []


@pytest.fixture
def host(tmp_path, exits):
    host = Host(tmp_path, exits)
    yield host
    host.close()


def gone(*pids: int) -> bool:
    """Wait until none of the pids is a living process."""
    for pid in pids:
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            if not select.select([pidfd], [], [], WAIT_S)[0]:
                return False
        finally:
            os.close(pidfd)
    return True


def alive(pid: int) -> bool:
    found = proc.stat(pid)
    return found is not None and found.state != "Z"


@pytest.mark.parametrize(
    ("script", "code", "number"),
    [("echo out; echo err >&2; exit 3", 3, None), ("kill -11 $$", None, 11), ("true", 0, None)],
)
def test_how_a_workload_ended_is_recorded(host, script, code, number):
    host.sh(script)
    record = host.record()
    assert (record.instance_id, record.epoch, record.exit_code, record.signal) == ("cam-1", "1.1", code, number)
    assert (record.reason, record.killed) == ("exited", False)
    if code == 3:
        assert (record.stdout_bytes, record.stderr_bytes) == (4, 4)
        assert client.read_output(host.directory, "stdout", 0, 100) == (b"out\n", 4)
        assert client.read_output(host.directory, "stderr", 0, 100) == (b"err\n", 4)


def test_a_workload_gets_its_contract_and_nothing_else(host, monkeypatch):
    monkeypatch.setenv("SECRET", "of the agent")
    code = """
        import json, os, resource
        status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
        stat = open("/proc/self/stat").read().rpartition(")")[2].split()
        print(json.dumps({
            "environment": dict(os.environ), "cwd": os.getcwd(), "stdin": os.read(0, 1).decode(),
            "fds": sorted(map(int, os.listdir("/proc/self/fd")))[:-1],
            "group": os.getpgrp() == os.getpid(), "session": os.getsid(0) == os.getppid(),
            "no_new_privs": status["NoNewPrivs"].strip(), "ignored": status["SigIgn"].strip(),
            "blocked": status["SigBlk"].strip(),
            "limits": [resource.getrlimit(getattr(resource, "RLIMIT_" + name))[1]
                       for name in ("AS", "NOFILE", "FSIZE", "CORE", "CPU")],
        }))
    """
    host.start(
        [PYTHON, "-S", "-c", textwrap.dedent(code)], ram_mb=300, cpu_s=16, environment={"PYTHONCOERCECLOCALE": "0"}
    )
    assert host.record().exit_code == 0, client.read_output(host.directory, "stderr", 0, 4096)
    seen = json.loads(client.read_output(host.directory, "stdout", 0, 4096)[0])
    assert seen["environment"] == {
        "PATH": "/usr/bin:/bin",
        "SENNIT_INSTANCE": "cam-1",
        "SENNIT_SHIM_FD": "3",
        "PYTHONCOERCECLOCALE": "0",
    }
    assert seen["cwd"] == str(host.directory / "data")
    assert seen["stdin"] == ""
    assert seen["fds"] == [0, 1, 2, 3]
    assert (seen["group"], seen["session"], seen["no_new_privs"]) == (True, True, "1")
    assert int(seen["blocked"], 16) == 0
    # Python itself ignores SIGPIPE and SIGXFSZ; 32 and 33 are the C library's own, nobody else can set them
    assert int(seen["ignored"], 16) & ~(1 << 12 | 1 << 24 | 3 << 31) == 0
    assert seen["limits"] == [300 * 1024**2, 256, 64 * 1024**2, 0, 16]


def test_stop_lets_the_workload_end_by_itself(host):
    handle = host.sh("trap 'echo bye; exit 7' TERM; echo ready > fifo; while :; do sleep 0.01; done")
    assert host.hear() == "ready"
    assert handle.stop(5000)["phase"] == "stopping"
    record = host.record()
    assert (record.exit_code, record.reason, record.killed) == (7, "stopped", False)
    assert client.read_output(host.directory, "stdout", 0, 100)[0] == b"bye\n"


def test_a_workload_that_ignores_the_stop_is_killed_when_its_grace_is_over(host):
    handle = host.sh("trap '' TERM; echo ready > fifo; while :; do sleep 100; done")
    assert host.hear() == "ready"
    handle.stop(100)
    record = host.record()
    assert (record.signal, record.reason, record.killed) == (9, "stopped", True)


ESCAPING = """
    import os, signal, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def report():
        with open("fifo", "w") as fifo:
            fifo.write("%d\\n" % os.getpid())

    def child(*steps):
        if os.fork() == 0:
            for step in steps:
                step()
            report()
            time.sleep(1000)

    def fork_again():
        if os.fork():
            os._exit(0)

    def forget():
        os.closerange(0, 3)
        os.execve("/bin/sh", ["sh", "-c", "trap '' TERM; echo $$ > fifo; while :; do sleep 100; done"], {})

    child()                                     # in the group
    child(os.setpgrp)                           # in a group of its own
    child(os.setsid, fork_again)                # a daemon
    child(os.setsid, fork_again, forget)        # a daemon without the environment mark
    report()
"""


def test_after_a_stop_no_descendant_is_left_however_it_hid(host):
    handle = host.python(ESCAPING + "    time.sleep(1000)")
    pids = [int(host.hear()) for _ in range(5)]
    assert len(set(pids)) == 5
    assert handle.pid in pids
    handle.stop(100)
    record = host.record()
    assert record.killed
    assert not any(alive(pid) for pid in pids), "told before the last was gone"
    assert host.marked() == []


def test_when_the_leader_ends_what_it_left_is_ended_before_the_exit_is_told(host):
    host.python(ESCAPING + "    os._exit(5)", grace_ms=50)
    pids = [int(host.hear()) for _ in range(5)]
    record = host.record()
    assert (record.exit_code, record.reason) == (5, "exited")
    assert not any(alive(pid) for pid in pids)


def test_descendants_that_keep_forking_are_caught(host):
    code = """
        import os, signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if os.fork() == 0:
            os.setsid()
            open("fifo", "w").write("go\\n")
            while True:
                if os.fork():
                    os._exit(0)   # the child goes on, orphaned, under a new number
                time.sleep(0.002)
        time.sleep(1000)
    """
    handle = host.python(code)
    assert host.hear() == "go"
    handle.stop(0)
    host.record()
    assert host.marked() == []


def test_no_socket_is_left_however_a_run_ended(host):
    control = host.directory / "run/control"
    host.sh("true")
    host.record()
    assert not control.exists()
    handle = host.sh("exec sleep 1000")
    assert control.exists()
    os.kill(handle.shim_pid, signal.SIGKILL)
    host.record()
    assert not control.exists()
    with pytest.raises(ShimFailed):
        host.start(["/no/such/program"])
    assert not control.exists()


def test_a_killed_shim_takes_the_leader_along_and_collect_sweeps_the_rest(host):
    handle = host.python(ESCAPING + "    time.sleep(1000)")
    pids = [int(host.hear()) for _ in range(5)]
    os.kill(handle.shim_pid, signal.SIGKILL)
    assert gone(handle.pid), "PDEATHSIG did not reach the leader"
    record = host.record()
    assert (record.exit_code, record.signal, record.killed, record.reason) == (None, 9, True, "shim_lost")
    # In its own session, without the mark and without the shim nothing ties the last daemon to the run
    untraceable = [pid for pid in pids if alive(pid)]
    assert len(untraceable) <= 1
    for pid in untraceable:
        assert not proc.has_mark(pid, b"SENNIT_INSTANCE=cam-1")
        os.kill(pid, signal.SIGKILL)


def test_a_start_after_a_lost_shim_clears_what_it_left_first(host):
    handle = host.python(ESCAPING.replace("child(os.setsid, fork_again, forget)", "pass") + "    time.sleep(1000)")
    pids = [int(host.hear()) for _ in range(4)]
    os.kill(handle.shim_pid, signal.SIGKILL)
    host.ended.get(timeout=WAIT_S)
    host.sh("true")
    assert not any(alive(pid) for pid in pids)
    assert host.record().exit_code == 0


AGENT = """
    import os, sys
    from pathlib import Path
    from runtime.shim.client import LaunchSpec, start

    spec = LaunchSpec(
        instance_id="cam-1", epoch="1.7", argv=["/bin/sh", "-c", "echo up > fifo; exec sleep 1000"],
        environment={"PATH": "/usr/bin:/bin", "SENNIT_INSTANCE": "cam-1"}, ram_mb=64, output_limit=4096,
    )
    handle = start(Path(sys.argv[1]), spec)
    print(handle.shim_pid, handle.pid, flush=True)
    sys.stdin.read()
"""


def test_shim_and_workload_outlive_their_agent_and_the_next_one_adopts_them(host):
    argv = [sys.executable, "-c", textwrap.dedent(AGENT), str(host.directory)]
    with subprocess.Popen(
        argv, env={"PYTHONPATH": str(ROOT)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as agent:
        shim_pid, pid = map(int, agent.stdout.readline().split())
        assert host.hear() == "up"
        agent.kill()
    assert alive(shim_pid)
    assert alive(pid)
    with pytest.raises(ShimFailed, match="stop it, or adopt it"):
        host.sh("true")
    found = client.adopt(host.directory)
    assert isinstance(found, ShimHandle)
    assert (found.shim_pid, found.pid, found.epoch) == (shim_pid, pid, "1.7")
    assert found.status()["phase"] == "running"
    found.watch(host.exits, host.ended.put)
    found.stop(1000)
    record = host.record()
    assert (record.epoch, record.signal, record.reason) == ("1.7", 15, "stopped")
    assert gone(pid, shim_pid)
    assert client.adopt(host.directory) == record


def test_where_nothing_ran_there_is_nothing_to_adopt(host):
    assert client.adopt(host.directory) is None
    assert client.read_output(host.directory, "stdout", 0, 10) == (b"", 0)


def _ticks_now() -> int:
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


def test_a_pid_given_to_another_process_is_neither_adopted_nor_killed(host):
    host.sh("true")
    host.record()
    (host.directory / "run/exit.json").unlink()
    state = json.loads((host.directory / "run/state.json").read_bytes())
    ticks = {value for name, value in state.items() if name.endswith("start_ticks")}
    assert ticks
    while _ticks_now() <= max(ticks):
        pass  # start times are told in hundredths of a second: the bystander's must be another
    with subprocess.Popen(["/bin/sleep", "1000"], start_new_session=True) as bystander:
        state |= {"shim_pid": bystander.pid, "pid": bystander.pid}  # with the start times of others
        (host.directory / "run/state.json").write_text(json.dumps(state))
        found = client.adopt(host.directory)
        assert isinstance(found, ExitRecord)
        assert found.reason == "shim_lost"
        assert bystander.poll() is None
        bystander.kill()


def test_a_run_of_another_boot_is_over_and_nobody_is_killed_for_it(host):
    host.sh("true")
    host.record()
    (host.directory / "run/exit.json").unlink()
    state = json.loads((host.directory / "run/state.json").read_bytes())
    with subprocess.Popen(
        ["/bin/sleep", "1000"], start_new_session=True, env={"SENNIT_INSTANCE": "cam-1"}
    ) as bystander:
        (host.directory / "run/state.json").write_text(json.dumps(state | {"boot_id": "before"}))
        assert client.adopt(host.directory).reason == "shim_lost"
        assert bystander.poll() is None
        bystander.kill()


def test_a_missing_program_is_a_failed_start_that_leaves_nothing(host):
    with pytest.raises(ShimFailed, match="No such file or directory: /no/such/program"):
        host.start(["/no/such/program"])
    assert host.marked() == []
    host.sh("exit 0")  # the lock is free
    assert host.record().exit_code == 0


def test_a_workload_that_floods_its_output_fills_no_disk_and_can_be_stopped(host):
    handle = host.sh("echo up > fifo; exec yes 'all work and no play'", output_limit=8192)
    assert host.hear() == "up"
    deadline = time.monotonic() + WAIT_S
    while handle.status()["stdout_bytes"] < 1_000_000:
        assert time.monotonic() < deadline
    handle.stop(1000)
    record = host.record()
    assert record.truncated
    kept = sum(one.stat().st_size for one in (host.directory / "run").glob("stdout.*"))
    assert kept <= 2 * 8192
    tail, end = client.read_output(host.directory, "stdout", -1, 100)
    assert end == record.stdout_bytes > 1_000_000
    assert b"no play\nall work" in tail


def test_a_lease_that_is_not_renewed_ends_the_workload_before_its_deadline(host):
    deadline = boottime_ms() + 1500
    host.sh("trap '' TERM; while :; do sleep 100; done", deadline_ms=deadline, grace_ms=100)
    record = host.record()
    assert boottime_ms() < deadline
    assert (record.reason, record.killed) == ("lease_over", True)


def test_a_renewed_lease_goes_on_and_a_late_renewal_is_refused(host):
    first = boottime_ms() + 1200
    handle = host.sh("exec sleep 1000", deadline_ms=first, grace_ms=100)
    second = first + 600
    assert handle.renew(second)["deadline_ms"] == second
    with pytest.raises(ShimFailed, match="the right is over"):
        handle.renew(boottime_ms() + 10)
    assert host.record().reason == "lease_over"
    assert first < boottime_ms() < second


def test_without_a_lease_a_workload_ends_when_its_agent_is_silent_for_too_long(host):
    host.sh("exec sleep 1000", orphan_after_ms=200)
    assert host.record().reason == "orphaned"


def test_a_run_that_exceeds_its_time_is_stopped(host):
    host.sh("exec sleep 1000", run_for_ms=100)
    record = host.record()
    assert (record.reason, record.signal) == ("runtime_over", 15)


def test_sigterm_ends_a_shim_in_order_and_the_terminals_signals_do_not(host):
    handle = host.sh("exec sleep 1000")
    for number in (signal.SIGINT, signal.SIGHUP):
        os.kill(handle.shim_pid, number)
    assert handle.status()["phase"] == "running"
    os.kill(handle.shim_pid, signal.SIGTERM)
    assert host.record().reason == "shim_terminated"


def test_descriptors_reach_a_running_workload(host):
    code = """
        import array, os, socket
        link = socket.socket(fileno=int(os.environ["SENNIT_SHIM_FD"]))
        text, fds, _, _ = socket.recv_fds(link, 4096, 8)
        os.write(fds[0], b"got " + text)
    """
    handle = host.python(code)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(WAIT_S)
        assert handle.pass_descriptors("arena 7", [theirs.fileno()]) == {"passed": 1}
        assert ours.recv(100) == b"got arena 7"
        assert host.record().exit_code == 0
        theirs.close()
        assert ours.recv(100) == b"", "the shim kept the descriptor"


@pytest.mark.parametrize(
    ("request_text", "error"),
    [("dance", "unknown request 'dance'"), ("stop soon", "takes a number"), ("deadline -1", "takes a number")],
)
def test_a_request_the_shim_does_not_know_is_refused_by_name(host, request_text, error):
    handle = host.sh("exec sleep 1000")
    with pytest.raises(ShimFailed, match=error):
        handle._ask(request_text)
    handle.stop(0)
    host.record()


def test_a_crowd_of_idle_connections_does_not_lock_the_agent_out(host):
    handle = host.sh("exec sleep 1000")
    idle = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(20)]
    for one in idle:
        client._connect(one, handle.run)
        one.send(b"status")
        one.recv(4096)
    assert handle.status()["phase"] == "running"
    for one in idle:
        one.close()
    handle.stop(0)
    host.record()


def test_a_shim_is_small(host):
    handle = host.sh("exec sleep 1000")
    handle.status()
    lines = Path(f"/proc/{handle.shim_pid}/smaps_rollup").read_text().splitlines()
    sizes = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines[1:])}
    assert sizes["Pss"] <= 8 * 1024, sizes
    handle.stop(0)
    host.record()


def test_a_shim_loads_no_large_module():
    code = "import sys; sys.path.append(sys.argv[1]); import runtime.shim.loop; print(*sys.modules)"
    out = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, str(ROOT)], capture_output=True, check=True, text=True
    )
    assert not {"enum", "re", "json", "signal", "socket", "subprocess", "typing", "threading", "msgspec"} & set(
        out.stdout.split()
    )


def test_a_long_directory_name_is_no_obstacle(tmp_path, exits):
    directory = tmp_path / ("d" * 120)
    directory.mkdir()
    host = Host(directory, exits)
    handle = host.sh("exec sleep 1000")
    assert handle.status()["phase"] == "running"
    handle.stop(0)
    host.record()
    host.close()


@pytest.mark.skipif(os.getuid() != 0, reason="only root may become another user")
def test_a_workload_runs_as_the_user_given_and_still_dies_with_its_shim(host):
    os.chown(host.directory / "data", 65534, 65534)
    os.chown(host.fifo, 65534, 65534)
    host.directory.chmod(0o755)
    handle = host.sh("id -u > fifo; exec sleep 1000", user=(65534, 65534))
    assert host.hear() == "65534"
    os.kill(handle.shim_pid, signal.SIGKILL)
    assert gone(handle.pid)
    host.record()


def test_many_shims_started_and_killed_at_once_leave_nobody(tmp_path, exits):
    ended, handles = queue.Queue(), []
    for number in range(12):
        directory = tmp_path / str(number)
        (directory / "data").mkdir(parents=True)
        spec = LaunchSpec(
            instance_id="cam-1",
            epoch="1.1",
            argv=["/bin/sh", "-c", "sleep 1000 & sleep 1000"],
            environment={"PATH": "/usr/bin:/bin", "SENNIT_INSTANCE": f"cam-many-{number}"},
            ram_mb=64,
            output_limit=4096,
        )
        handles.append(client.start(directory, spec))
        handles[-1].watch(exits, ended.put)
    for handle in handles:
        handle.stop(2000)
    for _ in handles:
        ended.get(timeout=WAIT_S)
    marks = [f"SENNIT_INSTANCE=cam-many-{number}".encode() for number in range(12)]
    assert [one.pid for one in proc.processes() if any(proc.has_mark(one.pid, mark) for mark in marks)] == []


def test_a_shim_that_dies_at_its_start_while_its_child_lives_is_told_and_reaped(host, tmp_path, monkeypatch):
    """As when it is killed between its fork and the leader's program: the leader holds its standard error a while."""
    script = tmp_path / "dying.py"
    script.write_text(
        textwrap.dedent(
            """
            import os, sys
            if os.fork() == 0:
                for word in sys.argv:
                    if word.startswith("ready_fd="):
                        os.close(int(word.partition("=")[2]))
                os.setpgid(0, 0)
                held = os.open(sys.argv[-1], os.O_RDONLY | os.O_NONBLOCK)
                os.set_blocking(held, True)
                os.read(held, 1)  # until the test lets go
                os._exit(0)
            os._exit(1)
            """
        )
    )
    held = tmp_path / "held"
    os.mkfifo(held)
    hold = os.open(held, os.O_RDWR)
    monkeypatch.setattr(client, "SHIM", str(script))
    before = sorted(os.listdir("/proc/self/fd"))
    with pytest.raises(ShimFailed, match=r"shim \d+ died at its start: without a word") as failed:
        client.start(host.directory, host.spec([str(held)]))
    assert sorted(os.listdir("/proc/self/fd")) == before
    os.close(hold)  # the child of the shim ends
    pid = int(re.search(r"shim (\d+)", str(failed.value))[1])
    assert proc.stat(pid) is None, "it was not reaped"
