"""What bounds an edge on this machine: copying memory, waking a process, and a bare ZeroMQ socket pair with CURVE.

    python -m runtime.bench.edge_limits pair ENDPOINT PUBLIC SECRET SIZE
    python -m runtime.bench.edge_limits relay FD FD

are the other ends: the first prints a line when it listens, and after each run the rate at which messages came; the
second adds to one eventfd whenever the other was added to.
"""

from __future__ import annotations

import mmap
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import zmq

LIMIT_S = 60.0
WINDOW_BYTES = 64 * 1024 * 1024
"""What a bare pair may have under way; libzmq counts messages, so small ones are counted, too."""

WINDOW_MESSAGES = 1_000
END = b""


def copied_per_s(size: int, region_bytes: int, seconds: float) -> float:
    """Bytes a second that one thread copies between two regions in shared memory, `size` bytes at a time."""
    with mmap.mmap(-1, region_bytes) as one, mmap.mmap(-1, region_bytes) as other:
        source, target = memoryview(one), memoryview(other)
        source[:], target[:] = bytes(region_bytes), bytes(region_bytes)  # every page is there before the clock runs
        at = copied = 0
        began = time.perf_counter()
        until = began + seconds
        while (now := time.perf_counter()) < until:
            for _ in range(16):
                target[at : at + size] = source[at : at + size]
                at = at + size if at + 2 * size <= region_bytes else 0
            copied += 16 * size
        source.release()
        target.release()
    return copied / (now - began)


class BarePair:
    """A DEALER here and a ROUTER in another process, CURVE between them, nothing else."""

    def __init__(self, endpoint: str, size: int) -> None:
        self._size = size
        public, secret = (key.decode() for key in zmq.curve_keypair())
        command = [sys.executable, "-P", "-m", "runtime.bench.edge_limits", "pair", endpoint, public, secret, str(size)]
        self._peer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._said()
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.linger = 0
        self._socket.sndtimeo = round(LIMIT_S * 1000)
        self._socket.sndhwm = window(size)
        self._socket.curve_publickey, self._socket.curve_secretkey = zmq.curve_keypair()
        self._socket.curve_serverkey = public.encode()
        self._socket.connect(endpoint)

    def bytes_per_s(self, seconds: float) -> float:
        """Send messages for so long; the rate at which they arrived."""
        payload = bytes(self._size)
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            for _ in range(4):
                self._socket.send(payload)
        self._socket.send(END)
        return float(self._said())

    def close(self) -> None:
        self._socket.close()
        self._context.term()
        self._peer.kill()
        self._peer.wait()
        assert self._peer.stdout is not None
        self._peer.stdout.close()

    def _said(self) -> str:
        assert self._peer.stdout is not None
        line: str = self._peer.stdout.readline()
        if not line:
            raise RuntimeError("the receiving end of the bare pair has ended")
        return line


@contextmanager
def bare_pair(endpoint: str, size: int) -> Iterator[BarePair]:
    pair = BarePair(endpoint, size)
    try:
        yield pair
    finally:
        pair.close()


def bare_per_s(endpoint: str, size: int, seconds: float, runs: int) -> float:
    """Median bytes a second over `runs`, after one that is not counted."""
    with bare_pair(endpoint, size) as pair:
        pair.bytes_per_s(seconds / 4)
        return statistics.median(pair.bytes_per_s(seconds) for _ in range(runs))


def window(size: int) -> int:
    """How many messages may wait."""
    return max(2, min(WINDOW_MESSAGES, WINDOW_BYTES // size))


def woken_us(count: int, period_s: float) -> tuple[float, float]:
    """Median and 99th percentile of two wake-ups, one after the other, on a machine that rests in between: a bare
    eventfd to another process and back. The bytes of an edge wake its pump and then its consumer."""
    fds = [os.eventfd(0, os.EFD_CLOEXEC) for _ in range(2)]
    command = [sys.executable, "-P", "-m", "runtime.bench.edge_limits", "relay", *map(str, fds)]
    peer = subprocess.Popen(command, pass_fds=fds)
    try:
        taken = []
        for _ in range(count):
            time.sleep(period_s)
            began = time.perf_counter()
            os.eventfd_write(fds[0], 1)
            os.eventfd_read(fds[1])
            taken.append((time.perf_counter() - began) * 1e6)
    finally:
        peer.kill()
        peer.wait()
        for fd in fds:
            os.close(fd)
    taken = sorted(taken[count // 10 :])
    return taken[len(taken) // 2], taken[int(len(taken) * 0.99)]


def relay(there: str, back: str) -> None:
    while True:
        os.eventfd_read(int(there))
        os.eventfd_write(int(back), 1)


def pair(endpoint: str, public: str, secret: str, size: str) -> None:
    context = zmq.Context()
    socket = context.socket(zmq.ROUTER)
    socket.linger = 0
    socket.rcvhwm = window(int(size))
    socket.rcvtimeo = round(LIMIT_S * 1000)
    socket.curve_server = True
    socket.curve_publickey, socket.curve_secretkey = public.encode(), secret.encode()
    socket.bind(endpoint)
    print("listening", flush=True)
    while True:
        began, received = 0.0, -1
        while frame := _next(socket):
            if received < 0:
                began, received = time.perf_counter(), 0  # the clock runs from the first message on
            else:
                received += len(frame)
        print(max(received, 0) / (time.perf_counter() - began), flush=True)


def _next(socket: zmq.Socket[bytes]) -> memoryview:
    return socket.recv_multipart(copy=False)[1].buffer


if __name__ == "__main__":
    (pair if sys.argv[1] == "pair" else relay)(*sys.argv[2:])
