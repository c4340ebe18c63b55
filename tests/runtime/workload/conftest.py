"""The edges process's end of a workload's ports: real arenas, eventfds and channels, one step at a time."""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import select
import socket
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

import runtime
from actors.edges.records import RecordReader, pack_header
from runtime.edges.ring import HEADER_BYTES, RingConsumer, RingProducer, format_ring
from runtime.workload import Ports

ROOT = Path(runtime.__file__).parent.parent
WAIT_S = 20
PAGE = 4096
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class Ring:
    """One ring as the edges process has it; `side` is its RingProducer (ingress) or RingConsumer (egress)."""

    def __init__(self, arena, number, direction, *, start, capacity, generation, header=0, data=HEADER_BYTES):
        self.number, self.direction, self.capacity, self.generation = number, direction, capacity, generation
        self.arena = arena
        self.layout = {"offset": start, "header": start + header, "data": start + data, "end": start + data + capacity}
        first = start // PAGE * PAGE
        self.mapping = mmap.mmap(arena, self.layout["end"] - first, offset=first)
        whole = memoryview(self.mapping)
        self.header = whole[self.layout["header"] - first :][:HEADER_BYTES]
        self.data = whole[self.layout["data"] - first :][:capacity]
        self.data_fd, self.space_fd = (os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in range(2))
        format_ring(self.header, capacity, generation)
        kind = RingProducer if direction == "ingress" else RingConsumer
        self.side = kind(self.header, self.data, capacity, generation, data_fd=self.data_fd, space_fd=self.space_fd)
        self.reader = RecordReader(2**32)
        self.sequence = 0

    @property
    def fds(self):
        return [self.arena, self.data_fd, self.space_fd]

    # ingress: what a pump does with what came from far

    def push(self, *payloads, object_id=None, flags=0):
        """Commit whole records as they find room, a chunk at a time."""
        for payload in payloads:
            number = self.sequence + 1 if object_id is None else object_id
            self.push_bytes(pack_header(number, self.sequence, len(payload), flags) + payload)
            self.sequence += 1

    def push_bytes(self, data):
        deadline = time.monotonic() + WAIT_S
        while data:
            room = min(self.side.free(), len(data))
            if not room:
                assert wait(self.space_fd, deadline), "the workload gives no space back"
                continue
            self.side.write(0, data[:room])
            self.side.commit(room)
            data = data[room:]

    # egress: what a pump does with what a workload sent

    def pull(self):
        """The records that are committed now, given back at once."""
        size = self.side.readable()
        records = [record for span in self.side.spans(0, size) for record in self.reader.feed(span)]
        self.side.consume(size)
        return records

    def pull_some(self, count):
        """At least `count` records."""
        deadline, records = time.monotonic() + WAIT_S, self.pull()
        while len(records) < count:
            assert wait(self.data_fd, deadline), f"{len(records)} of {count} records came"
            records += self.pull()
        return records

    def close(self):
        self.side.release()
        self.header.release()
        self.data.release()
        self.mapping.close()
        os.close(self.data_fd)
        os.close(self.space_fd)


class EdgesEnd:
    """An edges process with one workload; `shim` is the socket on which its shim passes descriptors."""

    def __init__(self):
        self.shim, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.shim.settimeout(WAIT_S)
        self.arena = os.memfd_create("arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self.size = 64 << 20
        os.ftruncate(self.arena, self.size)
        fcntl.fcntl(self.arena, fcntl.F_ADD_SEALS, SEALS)
        self.next_byte, self.next_ring = 0, 1
        self.rings = []
        self.channel = None

    def open_channel(self):
        self.close_channel()
        self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.channel.settimeout(WAIT_S)
        with theirs:
            socket.send_fds(self.shim, [b"edges 1"], [theirs.fileno()])

    def close_channel(self):
        if self.channel is not None:
            self.channel.close()
            self.channel = None

    def lay_out(self, direction, *, capacity=4096, generation=7, start=None, header=0, data=HEADER_BYTES):
        if start is None:
            start = self.next_byte
        ring = Ring(
            self.arena, self.next_ring, direction,
            start=start, capacity=capacity, generation=generation, header=header, data=data,
        )  # fmt: skip
        self.next_ring += 1
        self.next_byte = -(-ring.layout["end"] // PAGE) * PAGE
        self.rings.append(ring)
        return ring

    def order(self, ring, port, *, fds=None, **changes):
        """The packet of an install, sent; a change to None leaves the member out."""
        packet = {
            "do": "install", "ring": ring.number, "edge": 100 + ring.number, "port": port,
            "direction": ring.direction, **ring.layout, "capacity": ring.capacity, "generation": ring.generation,
            "max_extent": ring.capacity - 40, "alignment": 0,
        }  # fmt: skip
        packet.update(changes)
        packet = {name: value for name, value in packet.items() if value is not None}
        self.tell(packet, ring.fds if fds is None else fds)

    def install(self, port, direction, *, capacity=4096, max_extent=None, alignment=0, **layout):
        ring = self.lay_out(direction, capacity=capacity, **layout)
        self.order(ring, port, alignment=alignment, max_extent=capacity - 40 if max_extent is None else max_extent)
        assert self.hear() == {"did": "installed", "ring": ring.number}
        return ring

    def uninstall(self, ring):
        self.tell({"do": "uninstall", "ring": ring.number, "reason": "test"})

    def end(self, ring):
        self.tell({"do": "end", "ring": ring.number})

    def tell(self, packet, fds=()):
        raw = packet if isinstance(packet, bytes) else json.dumps(packet).encode()
        socket.send_fds(self.channel, [raw], list(fds))

    def hear(self):
        return json.loads(self.channel.recv(65536))

    def silent(self):
        """True when nothing was said that was not heard."""
        return not select.select([self.channel], [], [], 0)[0]

    def mapped(self):
        """How often this process has the arena mapped, besides the double's own rings."""
        arena = os.fstat(self.arena)
        where = [f"{os.major(arena.st_dev):02x}:{os.minor(arena.st_dev):02x}", str(arena.st_ino)]
        lines = Path("/proc/self/maps").read_text().splitlines()
        return sum(line.split()[3:5] == where for line in lines) - sum(not ring.mapping.closed for ring in self.rings)

    def close(self):
        self.close_channel()
        self.shim.close()
        self.theirs.close()
        for ring in self.rings:
            ring.close()
        os.close(self.arena)


def wait(fd, deadline):
    return bool(select.select([fd], [], [], max(0.0, deadline - time.monotonic()))[0])


class Background:
    """A call in a thread of its own, the result or error of which is awaited with a deadline."""

    def __init__(self, call):
        self._call, self._outcome, self._error = call, None, None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        try:
            self._outcome = self._call()
        except BaseException as error:
            self._error = error

    def blocked(self):
        """Wait until the call waits in `poll`; False when it ended instead."""
        deadline = time.monotonic() + WAIT_S
        while self._thread.is_alive() and not asleep(self._thread.native_id):
            assert time.monotonic() < deadline, "the call does not come to rest"
        return self._thread.is_alive()

    def result(self):
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive(), "the call does not end"
        if self._error is not None:
            raise self._error
        return self._outcome


def asleep(thread):
    """True when the thread waits in `poll`, by the kernel's own word where it gives it."""
    task = Path(f"/proc/self/task/{thread}")
    try:
        state = (task / "stat").read_text().rpartition(")")[2].split()[0]
        call = (task / "syscall").read_text().split()[0]
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return not task.exists() or state == "S"
    return state == "S" and call in POLLS


POLLS = {"7", "271", "73"}
"""`poll` and `ppoll` on x86-64, `ppoll` on Arm."""


@pytest.fixture
def edges():
    end = EdgesEnd()
    yield end
    end.close()


@pytest.fixture
def ports(edges):
    """The workload's ports in this process, with a channel."""
    with Ports(edges.theirs.dup()) as opened:
        edges.open_channel()
        edges.tell({"do": "uninstall", "ring": 0, "reason": "to hear that the channel was taken"})
        assert edges.hear() == {"did": "quiesced", "ring": 0}
        yield opened


@pytest.fixture
def background():
    return Background


@pytest.fixture
def child(edges):
    """Run code as a workload in a process of its own; `edges` is what it speaks to."""
    started = []

    def run(code, **options):
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code)],
            pass_fds=[edges.theirs.fileno()],
            env={"SENNIT_SHIM_FD": str(edges.theirs.fileno()), "PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )
        started.append(process)
        edges.open_channel()
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()
