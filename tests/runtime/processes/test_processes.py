"""Real processes: exits are seen, children go with their parent, groups die whole."""

from __future__ import annotations

import contextlib
import gc
import os
import queue
import select
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

import runtime
from runtime.processes import proc
from runtime.processes.alive_pipe import ORPHANED_EXIT, AlivePipe, watch_parent
from runtime.processes.exits import ExitWatch, describe
from runtime.processes.spawn import SpawnFailed, check_child_signal, spawn

ROOT = Path(runtime.__file__).parent.parent
ENVIRONMENT = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}


def python(code: str) -> list[str]:
    return [sys.executable, "-S", "-c", textwrap.dedent(code)]


def gone_within(pidfd: int, seconds: float) -> bool:
    return bool(select.select([pidfd], [], [], seconds)[0])


def read_line(fd: int, seconds: float = 10) -> str:
    line = b""
    while not line.endswith(b"\n"):
        assert select.select([fd], [], [], seconds)[0], f"no line in {seconds} s, got {line!r}"
        part = os.read(fd, 1)
        assert part, f"closed after {line!r}"
        line += part
    return line.decode().strip()


@pytest.fixture
def watch():
    errors = []
    watch = ExitWatch(errors.append)
    watch.errors = errors
    yield watch
    watch.close()


@pytest.fixture
def pipe():
    read_fd, write_fd = os.pipe()
    yield read_fd, write_fd
    for fd in (read_fd, write_fd):
        with contextlib.suppress(OSError):
            os.close(fd)


def test_an_exit_is_reported_with_code_and_stderr_tail_and_reaped(watch):
    exits = queue.Queue()
    handle = spawn(python("import sys; sys.stderr.write('x' * 20000 + 'no such key\\n'); sys.exit(3)"), ENVIRONMENT)
    watch.watch(handle, exits.put)
    seen = exits.get(timeout=10)
    assert (seen.pid, seen.code) == (handle.pid, 3)
    assert seen.stderr_tail.endswith("xxxno such key\n")
    assert len(seen.stderr_tail) == 8192
    assert proc.stat(handle.pid) is None, "left a zombie"
    assert describe(seen.code) == "exit code 3"
    assert handle.send_signal(signal.SIGKILL) is False


def test_an_exit_is_noticed_within_milliseconds(watch):
    handle = spawn(python("import time; time.sleep(60)"), ENVIRONMENT)
    seen = queue.Queue()
    watch.watch(handle, lambda exit: seen.put((time.monotonic(), exit)))
    pidfd = os.dup(handle.pidfd)
    handle.send_signal(signal.SIGKILL)
    assert gone_within(pidfd, 10)
    at = time.monotonic()
    noticed, exit = seen.get(timeout=10)
    os.close(pidfd)
    assert exit.code == -signal.SIGKILL
    assert describe(exit.code) == "killed by signal 9"
    assert noticed - at < 0.05  # typically far below 10 ms; a loaded machine gets some room


def test_an_error_in_a_callback_is_surfaced_and_the_next_exit_is_still_seen(watch):
    def fail(_exit):
        raise RuntimeError("trouble")

    seen = queue.Queue()
    watch.watch(spawn(["/bin/true"], ENVIRONMENT), fail)
    watch.watch(spawn(["/bin/false"], ENVIRONMENT), lambda exit: seen.put(exit.code))
    assert seen.get(timeout=10) == 1
    later = queue.Queue()
    watch.watch(spawn(["/bin/true"], ENVIRONMENT), later.put)
    later.get(timeout=10)
    assert [str(error) for error in watch.errors] == ["trouble"]


def test_the_group_of_a_child_dies_with_it_and_nobody_else(watch, pipe):
    read_fd, write_fd = pipe
    code = f"""
        import os, time
        if os.fork() == 0:
            os.write({write_fd}, b"%d\\n" % os.getpid())
            time.sleep(60)
        os._exit(0) if os.read(0, 1) == b"x" else time.sleep(60)
    """
    handle = spawn(python(code), ENVIRONMENT, pass_fds=[write_fd])
    seen = queue.Queue()
    watch.watch(handle, seen.put)
    helper = os.pidfd_open(int(read_line(read_fd)))
    handle.send_signal(signal.SIGTERM)  # the leader only
    assert seen.get(timeout=10).code == -signal.SIGTERM
    assert gone_within(helper, 10)
    os.close(helper)


def test_signal_group_reaches_children_that_the_leader_forgot(watch, pipe):
    read_fd, write_fd = pipe
    code = f"import os, time; os.fork(); os.write({write_fd}, b'%d\\n' % os.getpid()); time.sleep(60)"
    handle = spawn(python(code), ENVIRONMENT, pass_fds=[write_fd])
    seen = queue.Queue()
    pidfds = [os.pidfd_open(int(read_line(read_fd))) for _ in range(2)]
    watch.watch(handle, seen.put)
    assert handle.signal_group(signal.SIGKILL)
    assert all(gone_within(pidfd, 10) for pidfd in pidfds)
    seen.get(timeout=10)
    for pidfd in pidfds:
        os.close(pidfd)


def test_a_missing_program_is_a_failed_start_that_names_it():
    with pytest.raises(SpawnFailed, match="cannot start /no/such/program: No such file"):
        spawn(["/no/such/program"], ENVIRONMENT)


def test_running_out_of_descriptors_is_a_failed_start_and_recovers(watch):
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(int(fd) for fd in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used, hard))
    try:
        held = []
        while True:  # fill the gaps below the limit
            try:
                held.append(os.open("/dev/null", os.O_RDONLY))
            except OSError:
                break
        with pytest.raises(SpawnFailed, match="Too many open files"):
            spawn(["/bin/true"], ENVIRONMENT)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in held:
            os.close(fd)
    seen = queue.Queue()
    watch.watch(spawn(["/bin/true"], ENVIRONMENT), seen.put)
    assert seen.get(timeout=10).code == 0


def test_children_inherit_only_the_descriptors_named(watch, pipe):
    _, write_fd = pipe
    extra = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(extra, True)
    code = f"import os; os.write({write_fd}, (' '.join(sorted(os.listdir('/proc/self/fd'), key=int)) + '\\n').encode())"
    handle = spawn(python(code), ENVIRONMENT, pass_fds=[write_fd])
    seen = queue.Queue()
    watch.watch(handle, seen.put)
    fds = [int(fd) for fd in read_line(pipe[0]).split()]
    os.close(extra)
    seen.get(timeout=10)
    assert fds[:3] == [0, 1, 2]
    assert write_fd in fds
    assert extra not in fds
    assert len(fds) == 5  # and the one that lists the folder


def test_an_ignored_child_signal_is_refused_at_start_up():
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with pytest.raises(RuntimeError, match="SIGCHLD is ignored"):
            check_child_signal()
    finally:
        signal.signal(signal.SIGCHLD, before)
    check_child_signal()


PARENT = """
    import os, sys, time
    from runtime.processes.alive_pipe import AlivePipe
    from runtime.processes.spawn import spawn

    out = int(sys.argv[1])
    child = '''
    import os, time
    from runtime.processes.alive_pipe import watch_parent
    {setup}
    watch_parent(os.environ, lambda: {on_death})
    os.write(''' + str(out) + ''', b"%d\\\\n" % os.getpid())
    time.sleep(60)
    '''
    import textwrap
    alive = AlivePipe()
    for _ in range({count}):
        spawn([sys.executable, "-S", "-c", textwrap.dedent(child)], dict(os.environ), alive=alive, pass_fds=[out])
    {after}
"""


def start_parent(write_fd, *, on_death="None", setup="", after="time.sleep(60)", count=1):
    code = textwrap.dedent(PARENT).format(on_death=on_death, setup=setup, after=after, count=count)
    argv = [sys.executable, "-S", "-c", code, str(write_fd)]
    return subprocess.Popen(argv, env=ENVIRONMENT, pass_fds=[write_fd], stderr=subprocess.DEVNULL)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["SIGKILL", "SIGTERM without a handler"])
@pytest.mark.parametrize("on_death", ["None", "os._exit(0)"], ids=["a child that hangs", "a child that leaves"])
def test_children_leave_within_a_second_of_their_parents_death(pipe, number, on_death):
    read_fd, write_fd = pipe
    with start_parent(write_fd, on_death=on_death) as parent:
        pidfd = os.pidfd_open(int(read_line(read_fd)))
        parent.send_signal(number)
    assert gone_within(pidfd, 1.5)
    os.close(pidfd)


def test_a_child_goes_away_whose_parent_died_before_it_looked(pipe):
    read_fd, write_fd = pipe
    setup = f"os.write({write_fd}, b'%d\\\\n' % os.getpid()); os.read(int(os.environ['SENNIT_PARENT_FD']), 1)"
    with start_parent(write_fd, setup=setup, after="os._exit(0)"):
        pid = int(read_line(read_fd))
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    assert gone_within(pidfd, 5)
    os.close(pidfd)


def test_a_parent_killed_in_a_burst_of_spawns_leaves_nobody(pipe):
    read_fd, write_fd = pipe
    with start_parent(write_fd, count=30) as parent:
        read_line(read_fd)
        parent.kill()
    os.close(write_fd)
    deadline = time.monotonic() + 20
    # The write end is inherited by every child: its end of file says that the last of them is gone
    while select.select([read_fd], [], [], max(0.0, deadline - time.monotonic()))[0]:
        if not os.read(read_fd, 65536):
            return
    pytest.fail("a child outlived its parent")


def test_a_child_outlives_the_thread_that_spawned_it(watch, pipe):
    handles = []
    code = f"import os; os.write({pipe[1]}, b'up\\n'); os.read(0, 1); __import__('time').sleep(60)"
    alive = AlivePipe()
    thread = threading.Thread(
        target=lambda: handles.append(spawn(python(code), ENVIRONMENT, alive=alive, pass_fds=[pipe[1]]))
    )
    thread.start()
    thread.join(10)
    (handle,) = handles
    assert read_line(pipe[0]) == "up"
    assert not gone_within(handle.pidfd, 0.1)
    seen = queue.Queue()
    watch.watch(handle, seen.put)
    handle.signal_group(signal.SIGKILL)
    seen.get(timeout=10)
    alive.close()


def test_the_terminals_interrupt_does_not_reach_children(watch):
    handle = spawn(python("import time; time.sleep(60)"), ENVIRONMENT)
    found = proc.stat(handle.pid)
    assert found.session == handle.pid != os.getsid(0)
    seen = queue.Queue()
    watch.watch(handle, seen.put)
    handle.signal_group(signal.SIGKILL)
    seen.get(timeout=10)


def test_a_process_without_a_parent_pipe_watches_nobody_and_a_bad_one_is_refused():
    assert watch_parent({}, lambda: None) is None
    with pytest.raises(ValueError, match="start this process by its parent"):
        watch_parent({"SENNIT_PARENT_FD": "9999"}, lambda: None)
    assert ORPHANED_EXIT == 71


@pytest.mark.parametrize(
    ("ticks", "boot", "found"),
    [(0, "same", True), (1, "same", False), (0, "other", False)],
    ids=["the same process", "the pid was given to another", "from before a reboot"],
)
def test_a_pid_means_the_same_process_only_with_its_start_time_and_boot(ticks, boot, found):
    mine = proc.stat(os.getpid())
    pidfd = proc.open_same(os.getpid(), mine.start_ticks + ticks, proc.boot_id() if boot == "same" else "x")
    assert (pidfd is not None) is found
    if pidfd is not None:
        os.close(pidfd)


def test_descendants_are_found_parents_first():
    class Row:
        def __init__(self, pid, ppid):
            self.pid, self.ppid = pid, ppid

    rows = [Row(5, 4), Row(4, 2), Row(3, 2), Row(9, 1), Row(2, 1)]
    assert [row.pid for row in proc.descendants(2, rows)] == [4, 3, 5]


def test_nobody_but_the_watch_reaps(watch):
    """The library that spawns collects forgotten children at its next use; ours must not be among them."""
    handle = spawn(["/bin/sh", "-c", "exit 6"], ENVIRONMENT)
    assert gone_within(handle.pidfd, 10)
    gc.collect()
    subprocess.run(["/bin/true"], check=True)
    seen = queue.Queue()
    watch.watch(handle, seen.put)
    assert seen.get(timeout=10).code == 6


def test_process_one_of_a_container_collects_orphans_and_keeps_the_exits_of_its_own():
    code = """
        import os, select, sys, time
        from runtime.processes import exits, proc
        from runtime.shim.linux import become_subreaper

        exits.ORPHANS_EVERY_S = 0.05
        become_subreaper()  # what process 1 is by nature
        from runtime.processes.spawn import spawn

        watch = exits.ExitWatch(print, collect_orphans=True)
        fork = "import os; os._exit(0) if os.fork() else os._exit(3)"
        child = spawn([sys.executable, "-S", "-c", fork], {})
        select.select([child.pidfd], [], [], 10)
        seen = []
        watch.watch(child, seen.append)
        deadline = time.monotonic() + 10
        while any(one.ppid == os.getpid() for one in proc.processes()) or not seen:
            assert time.monotonic() < deadline, [(one.pid, one.state) for one in proc.processes()]
        print(seen[0].code)
    """
    out = subprocess.run(python(code), env=ENVIRONMENT, capture_output=True, check=False, text=True)
    assert (out.stdout, out.stderr) == ("0\n", "")
