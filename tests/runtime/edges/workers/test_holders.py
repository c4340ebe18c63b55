"""Whoever has the memory of an arena is found, mapped or open, and nobody else."""

from __future__ import annotations

import errno
import mmap
import os
import subprocess
import sys

import pytest

from runtime.edges.workers.holders import holders, kill
from runtime.processes import proc

CHILD = """
import mmap, os, sys, threading
kept = mmap.mmap(int(sys.argv[1]), 4096) if "mapped" in sys.argv else None
if "open" not in sys.argv:
    os.closerange(3, 4096)
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def arenas():
    fds = [os.memfd_create("sennit-cam") for _ in range(2)]
    for fd in fds:
        os.ftruncate(fd, 8192)
    yield fds
    for fd in fds:
        os.close(fd)


@pytest.mark.parametrize("how", [("mapped",), ("open",), ("mapped", "open"), ()])
def test_a_process_is_found_while_it_has_the_memory(arenas, how):
    mine = mmap.mmap(arenas[0], 4096)
    argv = [sys.executable, "-I", "-S", "-c", CHILD, str(arenas[0]), *how]
    with subprocess.Popen(argv, stdin=-1, stdout=-1, pass_fds=arenas[:1]) as child:
        assert child.stdout.readline() == b"ready\n"
        found = holders(arenas[0])
        assert [one.pid for one in found] == ([child.pid] if how else [])
        assert holders(arenas[1]) == []
        kill(found)
        if not how:
            child.stdin.close()
        child.wait(10)
        kill(found)
    assert holders(arenas[0]) == []
    mine.close()


@pytest.mark.parametrize("what", ["maps", "fd"])
def test_who_cannot_look_does_not_say_that_nobody_is_there(arenas, monkeypatch, what):
    """Without a descriptor left every process would look as if it had nothing: memory in use would be released."""

    def out_of_descriptors(path, *_):
        if f"/{what}" in path:
            raise OSError(errno.EMFILE, "Too many open files")
        return b"" if what == "fd" else []

    monkeypatch.setattr("runtime.processes.proc.read_file", lambda path, read=proc.read_file: (
        out_of_descriptors(path) if path.endswith("/maps") else read(path)
    ))  # fmt: skip
    monkeypatch.setattr("os.listdir", lambda path, listdir=os.listdir: (
        out_of_descriptors(path) if path.endswith("/fd") else listdir(path)
    ))  # fmt: skip
    with pytest.raises(OSError, match="Too many open files"):
        holders(arenas[0])
