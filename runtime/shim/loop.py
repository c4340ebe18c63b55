"""The shim at work: start the leader, carry out `Decisions`, capture output, answer its agent (design 6, G 5.6).

One thread, one poll. Memory counts, since every workload has a shim: `signal` and `socket` are wrappers that load
`enum` for a megabyte, so their C modules are used; JSON is written by hand and never read. Options come as
`name=value` words, the workload's command after `--`; the shim's own environment is the workload's.

In the run directory, which is its working directory:

    control         socket (SEQPACKET) of its agent: one packet a request, one JSON object a reply
    state.json      who it is: pids, start times, boot id
    stdout.N ...    output, see `runtime.shim.output`
    exit.json       how the workload ended; there when no process of it is left

`lock_fd` is a locked descriptor that it only keeps: the lock lasts as long as the shim.

Requests: `status`, `stop GRACE_MS`, `deadline BOOTTIME_MS`, and `pass TEXT` with descriptors, which hands both on to
the workload's `SENNIT_SHIM_FD`; `unread` in an answer is 0 when the workload has read all that was passed on.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # the typed `signal` costs a megabyte
import _socket
import fcntl
import os
import select
import sys
import time

from runtime.processes import proc
from runtime.shim import linux
from runtime.shim.decisions import ENDED, KILL, RECORD, TERMINATE, Decisions
from runtime.shim.files import Plain, encode, sync_directory, write_durably
from runtime.shim.leader import Options, become_leader
from runtime.shim.output import Segments

TYPE_CHECKING = False  # `typing` costs memory too
if TYPE_CHECKING:
    from collections.abc import Callable

SIGHUP, SIGINT, SIGKILL, SIGTERM, SIGCHLD = 1, 2, 9, 15, 17

CONTROL, STATE, EXIT = "control", "state.json", "exit.json"
CHUNK = 65536
CONNECTIONS = 8
MAX_FDS = 8
EXIT_ROOM = 4096
TOO_MANY: dict[str, Plain] = {"error": f"at most {MAX_FDS} descriptors at once"}
_CMSG_CLOEXEC = 0x40000000
_SIOCOUTQ = 0x5411


def now_ms() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


class Shim:
    """One workload's process group, from start to exit record."""

    def __init__(self, options: Options, environment: dict[str, str]) -> None:
        self._options = options
        self._environment = environment
        self._pid = os.getpid()
        self._poll = select.poll()
        self._timer = linux.BootTimer()
        self._wake_fd, wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        for number in (SIGCHLD, SIGTERM):
            _signal.signal(number, _woken)
        for number in (SIGINT, SIGHUP):
            _signal.signal(number, _signal.SIG_IGN)
        _signal.set_wakeup_fd(wake_write)
        linux.become_subreaper()
        limit = options.need("output_limit")
        self._outputs: dict[int, Segments] = {}
        self._stdout, self._stderr = Segments(".", "stdout", limit), Segments(".", "stderr", limit)
        self._listener = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET | _socket.SOCK_CLOEXEC)
        self._listener.bind(CONTROL)
        self._listener.listen(CONNECTIONS)
        self._listener.setblocking(False)
        self._clients: dict[int, _socket.socket] = {}
        self._leader = 0
        self._leader_ticks = 0
        self._leader_dead = False
        self._leader_reaped = False
        self._workload: _socket.socket | None = None
        self._exit_fd = os.open(EXIT + ".new", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.posix_fallocate(self._exit_fd, 0, EXIT_ROOM)  # a full disk must not lose how it ended
        self._decisions = Decisions(
            now_ms(),
            deadline_ms=options.number("deadline_ms"),
            orphan_after_ms=options.number("orphan_after_ms"),
            run_for_ms=options.number("run_for_ms"),
            grace_ms=options.need("grace_ms"),
        )

    # Start

    def start(self) -> None:
        """Run the leader. Raises `OSError` when it cannot be run."""
        self._save_state()  # from here on a restarted agent finds us
        ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET | _socket.SOCK_CLOEXEC)
        ours.setblocking(False)
        self._workload = ours
        out_read, out_write = os.pipe2(os.O_CLOEXEC)
        err_read, err_write = os.pipe2(os.O_CLOEXEC)
        failed_read, failed_write = os.pipe2(os.O_CLOEXEC)
        self._leader = os.fork()
        if self._leader == 0:
            become_leader(
                self._options,
                self._environment,
                shim_pid=self._pid,
                shim_fd=theirs.fileno(),
                stdout=out_write,
                stderr=err_write,
                failed=failed_write,
            )
        for fd in (out_write, err_write, failed_write):
            os.close(fd)
        theirs.close()
        failure = os.read(failed_read, 512)  # end of file: the program runs
        os.close(failed_read)
        if failure:
            os.waitpid(self._leader, 0)
            code, _, what = failure.decode().partition(" ")
            raise OSError(int(code), what)
        found = proc.stat(self._leader)
        self._leader_ticks = found.start_ticks if found is not None else 0
        self._save_state()
        for fd, segments in ((out_read, self._stdout), (err_read, self._stderr)):
            os.set_blocking(fd, False)
            self._outputs[fd] = segments
            self._poll.register(fd, select.POLLIN)
        for fd in (self._wake_fd, self._timer.fd, self._listener.fileno()):
            self._poll.register(fd, select.POLLIN)

    def _save_state(self) -> None:
        mine = proc.stat(self._pid)
        assert mine is not None
        write_durably(
            STATE,
            encode(
                {
                    "instance_id": self._options.text("instance"),
                    "epoch": self._options.text("epoch"),
                    "boot_id": proc.boot_id(),
                    "shim_pid": self._pid,
                    "shim_start_ticks": mine.start_ticks,
                    "pid": self._leader,
                    "start_ticks": self._leader_ticks,
                    "orphan_after_ms": self._decisions.orphan_after_ms,
                }
            ),
        )

    def started(self) -> bytes:
        return encode({"pid": self._leader, "start_ticks": self._leader_ticks})

    # Run

    def run(self) -> None:
        """Until the exit record is written."""
        self._reap()  # it may have ended before we listened
        while self._decisions.phase != ENDED:
            self._timer.set(self._decisions.due_ms())
            for fd, _ in self._poll.poll():
                self._ready(fd)
            self._carry_out(self._decisions.tick(now_ms()))

    def _ready(self, fd: int) -> None:
        if fd in self._outputs:
            self._capture(fd)
        elif fd in self._clients:
            self._answer(fd)
        elif fd == self._listener.fileno():
            self._accept()
        elif fd == self._timer.fd:
            self._timer.clear()
        elif fd == self._wake_fd:
            if bytes([SIGTERM]) in os.read(fd, 4096):
                self._carry_out(self._decisions.told_to_stop(now_ms(), self._decisions.grace_ms, "shim_terminated"))
            self._reap()

    def _carry_out(self, actions: list[str]) -> None:
        for action in actions:
            if action == TERMINATE:
                self._signal_all(SIGTERM)
            elif action == KILL:
                self._signal_all(SIGKILL)
            elif action == RECORD:
                self._record()

    def _signal_all(self, number: int) -> None:
        """The list first: what the leader's group does not hold are descendants in sessions of their own."""
        group = 0 if self._leader_reaped else self._leader
        others = [one for one in proc.descendants(self._pid) if one.pgrp != group and one.state != "Z"]
        if group:
            _send(os.killpg, group, number)  # an unreaped leader keeps the number from being given to others
        boot = proc.boot_id() if others else ""
        for one in others:
            pidfd = proc.open_same(one.pid, one.start_ticks, boot)
            if pidfd is not None:
                _send(_signal.pidfd_send_signal, pidfd, number)
                os.close(pidfd)

    def _reap(self) -> None:
        """Collect the dead, the leader last, and say when nobody is left.

        Every descendant that lost its parent is our child, so "no child" is the proof that none is left.
        """
        while self._decisions.phase != ENDED:
            try:
                dead = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                self._carry_out(self._decisions.emptied())
                return
            if dead is None:
                return
            if dead.si_pid != self._leader:
                os.waitpid(dead.si_pid, 0)
                continue
            others = self._others()
            if not self._leader_dead:
                self._leader_dead = True
                code = dead.si_status if dead.si_code == os.CLD_EXITED else None
                actions = self._decisions.leader_exited(now_ms(), code, dead.si_status if code is None else None)
                self._carry_out(actions if others else [])
            if others:
                return
            os.waitpid(self._leader, 0)
            self._leader_reaped = True

    def _others(self) -> bool:
        """Collect dead children other than the leader; True while one of them lives."""
        alive = False
        for one in proc.processes():
            if one.ppid == self._pid and one.pid != self._leader:
                alive |= os.waitpid(one.pid, os.WNOHANG)[0] == 0
        return alive

    # Output and record

    def _capture(self, fd: int) -> bool:
        """Take one chunk, so that a flood leaves room for requests. False when there is none now."""
        try:
            data = os.read(fd, CHUNK)
        except BlockingIOError:
            return False
        if data:
            self._outputs[fd].write(data)
            return True
        self._poll.unregister(fd)
        del self._outputs[fd]
        os.close(fd)
        return False

    def _record(self) -> None:
        for fd in list(self._outputs):
            for _ in range(16):  # what the pipe held, and no more: a stranger may hold the other end
                if not self._capture(fd):
                    break
        decisions = self._decisions
        record = encode(
            {
                "instance_id": self._options.text("instance"),
                "epoch": self._options.text("epoch"),
                "exit_code": decisions.exit_code,
                "signal": decisions.signal,
                "elapsed_ms": now_ms() - decisions.started_ms,
                "stdout_bytes": self._stdout.total,
                "stderr_bytes": self._stderr.total,
                "truncated": self._stdout.truncated or self._stderr.truncated,
                "killed": decisions.killed,
                "reason": decisions.reason,
            }
        )
        os.pwrite(self._exit_fd, record, 0)
        os.ftruncate(self._exit_fd, len(record))
        os.fsync(self._exit_fd)
        os.rename(EXIT + ".new", EXIT)
        os.unlink(CONTROL)
        sync_directory()

    # The agent

    def _accept(self) -> None:
        try:
            fd, _ = self._listener._accept()  # type: ignore[attr-defined]
        except OSError:
            return
        if len(self._clients) == CONNECTIONS:
            self._hang_up(next(iter(self._clients)))
        client = _socket.socket(fileno=fd)
        client.setblocking(False)
        self._clients[fd] = client
        self._poll.register(fd, select.POLLIN)

    def _hang_up(self, fd: int) -> None:
        self._poll.unregister(fd)
        self._clients.pop(fd).close()

    def _answer(self, fd: int) -> None:
        client = self._clients[fd]
        try:
            data, control, flags, _ = client.recvmsg(4096, _socket.CMSG_SPACE(4 * MAX_FDS), _CMSG_CLOEXEC)
        except BlockingIOError:
            return
        except OSError:
            data, control, flags = b"", [], 0
        if not data:
            self._hang_up(fd)
            return
        fds = [
            int.from_bytes(raw[at : at + 4], sys.byteorder)
            for level, kind, raw in control
            if level == _socket.SOL_SOCKET and kind == _socket.SCM_RIGHTS
            for at in range(0, len(raw) - len(raw) % 4, 4)
        ]
        try:
            verb, _, argument = data.decode("ascii", "replace").strip().partition(" ")
            reply = self._request(verb, argument, fds) if not flags & _socket.MSG_CTRUNC else dict(TOO_MANY)
        finally:
            for passed in fds:
                os.close(passed)
        try:
            client.send(encode(reply))
        except OSError:
            self._hang_up(fd)

    def _request(self, verb: str, argument: str, fds: list[int]) -> dict[str, Plain]:
        now, decisions = now_ms(), self._decisions
        if verb == "pass":
            decisions.contacted(now)
            return self._pass_on(argument, fds)
        if verb in ("stop", "deadline") and not argument.isdigit():
            return {"error": f"{verb} takes a number of milliseconds, not {argument!r}"}
        if verb == "stop":
            self._carry_out(decisions.told_to_stop(now, int(argument)))
        elif verb == "deadline":
            if not decisions.renewed(now, int(argument)):
                return {"error": f"the right is over: {decisions.reason or 'its deadline leaves no time to stop'}"}
        elif verb == "status":
            decisions.contacted(now)
        else:
            return {"error": f"unknown request {verb!r}: status, stop, deadline or pass"}
        return {
            "phase": decisions.phase,
            "reason": decisions.reason,
            "pid": self._leader,
            "start_ticks": self._leader_ticks,
            "elapsed_ms": now - decisions.started_ms,
            "deadline_ms": decisions.deadline_ms,
            "stdout_bytes": self._stdout.total,
            "stderr_bytes": self._stderr.total,
            "unread": self._unread(),
        }

    def _unread(self) -> int:
        assert self._workload is not None
        return int.from_bytes(fcntl.ioctl(self._workload.fileno(), _SIOCOUTQ, bytes(4)), sys.byteorder)

    def _pass_on(self, text: str, fds: list[int]) -> dict[str, Plain]:
        assert self._workload is not None
        raw = b"".join(fd.to_bytes(4, sys.byteorder) for fd in fds)
        rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, raw)] if fds else []
        try:
            self._workload.sendmsg([text.encode()], rights)
        except OSError as error:
            return {"error": f"the workload did not take it: {error.strerror}"}
        return {"passed": len(fds)}


def main(words: list[str]) -> None:
    """Run one workload. Exit code 1 when it could not be started; the reason goes to `ready_fd`."""
    options = Options(words)
    ready_fd = options.need("ready_fd")
    for fd in (ready_fd, options.need("lock_fd")):
        os.set_inheritable(fd, False)
    os.chdir(options.text("run"))
    environment = dict(os.environ)
    environment.pop("LC_CTYPE", None)  # Python's own, not the contract's
    try:
        shim = Shim(options, environment)
        shim.start()
    except OSError as error:
        _tell(ready_fd, encode({"error": error.strerror or str(error), "errno": error.errno}))
        sys.exit(1)
    _tell(ready_fd, shim.started())
    shim.run()


def _tell(ready_fd: int, line: bytes) -> None:
    try:
        os.write(ready_fd, line)
    except BrokenPipeError:
        return  # the agent is gone; a later one adopts us
    finally:
        os.close(ready_fd)


def _send(send: Callable[[int, int], object], target: int, number: int) -> None:
    try:
        send(target, number)
    except ProcessLookupError:
        return  # gone meanwhile; a leader that joined another group is among the others


def _woken(_number: int, _frame: object) -> None:
    """The wake-up descriptor tells the loop."""
