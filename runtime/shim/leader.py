"""The step from a shim's fork to the workload's program: group, user, limits, signals, descriptors (G 5.6)."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # the typed `signal` costs a megabyte
import fcntl
import os
import resource

from runtime.shim import linux

SIGHUP, SIGINT, SIGKILL, SIGPIPE, SIGTERM, SIGCHLD, SIGXFSZ = 1, 2, 9, 13, 15, 17, 25

SHIM_FD = 3
"""The workload's end of the socket on which its shim hands it descriptors; `SENNIT_SHIM_FD` names it."""

NOFILE, FILE_SIZE = 256, 64 * 1024 * 1024


class Options:
    """The words of the command line. Numbers are integers, an absent or empty one is None."""

    def __init__(self, words: list[str]) -> None:
        cut = words.index("--")
        self._values = dict(word.split("=", 1) for word in words[:cut])
        self.argv = words[cut + 1 :]

    def text(self, name: str) -> str:
        return self._values[name]

    def number(self, name: str) -> int | None:
        text = self._values.get(name, "")
        return int(text) if text else None

    def need(self, name: str) -> int:
        return int(self._values[name])


def become_leader(
    options: Options,
    environment: dict[str, str],
    *,
    shim_pid: int,
    shim_fd: int,
    stdout: int,
    stderr: int,
    failed: int,
) -> None:
    """In the fork: become the workload, or say to `failed` why not. Does not return.

    The shim has one thread, so this fork is sound, and the leader is sent SIGKILL when the shim ends.
    """
    failed_fd = failed
    argv, environment = options.argv, environment | {"SENNIT_SHIM_FD": str(SHIM_FD)}
    try:
        _signal.set_wakeup_fd(-1)
        for number in (SIGHUP, SIGINT, SIGTERM, SIGCHLD, SIGPIPE, SIGXFSZ):
            _signal.signal(number, _signal.SIG_DFL)
        os.setpgid(0, 0)
        os.chdir(options.text("data"))
        null = os.open("/dev/null", os.O_RDONLY)
        failed_fd = fcntl.fcntl(failed, fcntl.F_DUPFD_CLOEXEC, 64)
        copies = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 65) for fd in (null, stdout, stderr, shim_fd)]
        for number, fd in enumerate(copies):
            os.dup2(fd, number)
        os.closerange(len(copies), failed_fd)
        uid, gid = options.number("uid"), options.number("gid")
        if uid is not None and gid is not None:
            os.setgroups([])
            os.setgid(gid)
            os.setuid(uid)
        linux.give_up_new_privileges()
        linux.die_with_parent(SIGKILL)
        if os.getppid() != shim_pid:
            os._exit(1)  # the shim was gone before the signal was armed
        os.umask(0o077)
        _limit(resource.RLIMIT_CORE, 0)
        _limit(resource.RLIMIT_FSIZE, FILE_SIZE)
        cpu_s = options.number("cpu_s")
        if cpu_s is not None:
            _limit(resource.RLIMIT_CPU, cpu_s)
        _limit(resource.RLIMIT_NOFILE, NOFILE)
        _limit(resource.RLIMIT_AS, options.need("ram_mb") * 1024 * 1024)
        os.execve(argv[0], argv, environment)  # noqa: S606
    except OSError as error:
        os.write(failed_fd, f"{error.errno} {error.strerror}: {argv[0]}".encode()[:512])
    except BaseException as error:
        os.write(failed_fd, f"0 {error!r}".encode()[:512])
    os._exit(127)


def _limit(what: int, value: int) -> None:
    hard = resource.getrlimit(what)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(what, (value, value))


__all__ = ["SHIM_FD", "Options", "become_leader"]
