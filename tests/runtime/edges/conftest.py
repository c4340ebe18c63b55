"""Edges processes of one directory in one process: real rings, real sockets, workloads played by the test."""

from __future__ import annotations

import random
import select
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Condition
from typing import Any

import pytest
import zmq

from actors.edges.frames import Frame, Open, pack, parse
from actors.edges.records import RecordReader, pack_header
from messages.edge import DType, ObjectKind, ObjectSpec, RingDirection, RingLayout
from messages.edge_ports import (
    CloseStream,
    CutLink,
    HaltPump,
    PumpFaulted,
    PumpHalted,
    PumpReady,
    RingRef,
    StartReceive,
    StartSend,
    StreamEnded,
)
from runtime.cluster.keys import SecretSeed, transport_key
from runtime.edges.driver.driver import Driver
from runtime.edges.driver.pumps import readable
from runtime.edges.memory import NodeMemory
from runtime.edges.ring import RingConsumer, RingProducer
from runtime.office.admission import Admission
from runtime.office.sockets import Keys, Sockets

WAIT_S = 10.0
PAGE = 4096
ARENA_BYTES = 1 << 30
EGRESS, INGRESS = RingDirection.EGRESS, RingDirection.INGRESS


def records(seed: int, sizes: list[int]) -> bytes:
    """A whole stream: record n has `sizes[n]` bytes of payload."""
    source = random.Random(seed)
    return b"".join(pack_header(9000 + at, at, size) + source.randbytes(size) for at, size in enumerate(sizes))


class Process:
    """One edges process."""

    def __init__(self, net: Net, name: str) -> None:
        self.net = net
        self.name = name
        self.memory = NodeMemory()
        self.reports: list[Any] = []
        self.logs: list[str] = []
        self.changed = Condition()
        self.deaf = False
        self.rings = 0
        self.offset = 0
        self.held: list[RingProducer | RingConsumer] = []
        self.driver = Driver(
            name,
            self.memory,
            net.keys(name),
            listen=net.endpoints[name],
            dial={peer: endpoint for peer, endpoint in net.endpoints.items() if peer != name},
            report=self._reported,
            log=lambda level, text: self.logs.append(f"{level} {text}"),
        )
        self.driver.start()

    def _reported(self, report: Any) -> bool:
        with self.changed:
            if self.deaf:
                return False
            self.reports.append(report)
            self.changed.notify_all()
            return True

    # orders

    def send(self, edge: int, to: str, capacity: int = 1 << 16, *, run: int = 1, extent: int = 1 << 24) -> RingProducer:
        """Start the producer's end; returns the side of its workload."""
        ring = self.ring(capacity, run)
        self.order_send(edge, to, ring, run=run, extent=extent)
        return self._side(RingProducer, ring)

    def order_send(self, edge: int, to: str, ring: RingRef, *, run: int = 1, extent: int = 1 << 24) -> None:
        self.driver.order(StartSend(edge_id=edge, run_id=run, ring=ring, object_spec=spec(extent), consumer=to))

    def receive(
        self, edge: int, of: str, capacity: int = 1 << 16, *, run: int = 1, extent: int = 1 << 24
    ) -> RingConsumer:
        ring = self.ring(capacity, run)
        self.driver.order(StartReceive(edge_id=edge, run_id=run, ring=ring, object_spec=spec(extent), producer=of))
        return self._side(RingConsumer, ring)

    def ring(self, capacity: int, run: int) -> RingRef:
        self.rings += 1
        start = self.offset
        end = start + PAGE + capacity
        self.offset = -(-end // PAGE) * PAGE
        layout = RingLayout(
            start_offset=start, header_offset=start, data_offset=start + PAGE, end_offset=end, data_bytes=capacity,
            alignment=PAGE,
        )  # fmt: skip
        ref = RingRef(arena="w", ring_id=self.rings, generation=run, layout=layout)
        self.memory.format_ring(ref, ARENA_BYTES)
        return ref

    def _side(self, kind: type, ref: RingRef) -> Any:
        ring = self.memory.ring(ref.ring_id)
        side = kind(
            ring.header, ring.data, ring.capacity, ring.generation, data_fd=ring.data_fd, space_fd=ring.space_fd
        )
        self.held.append(side)
        return side

    def halt(self, edge: int, direction: RingDirection, ring_id: int = 1) -> None:
        self.driver.order(HaltPump(edge_id=edge, direction=direction, ring_id=ring_id))

    def close_stream(self, edge: int, *, clean: bool = True) -> None:
        self.driver.order(CloseStream(edge_id=edge, clean=clean))

    def cut(self, peer: str) -> None:
        self.driver.order(CutLink(peer=peer))

    # what is told

    def wait(self, condition: Callable[[], Any], what: str = "") -> Any:
        with self.changed:
            found = self.changed.wait_for(condition, WAIT_S)
        assert found, f"{self.name}: {what or 'not'} in {WAIT_S} s; told: {self.reports}; logged: {self.logs}"
        return found

    def told(self, kind: type, edge: int | None = None) -> list[Any]:
        return [one for one in list(self.reports) if isinstance(one, kind) and edge in (None, one.edge_id)]

    def wait_told(self, kind: type, edge: int, direction: RingDirection | None = None) -> Any:
        return self.wait(
            lambda: next((one for one in self.told(kind, edge) if direction in (None, one.direction)), None),
            f"no {kind.__name__} of edge {edge}",
        )

    def wait_ready(self, edge: int, direction: RingDirection | None = None) -> None:
        self.wait_told(PumpReady, edge, direction)

    def wait_fault(self, edge: int, direction: RingDirection | None = None) -> PumpFaulted:
        return self.wait_told(PumpFaulted, edge, direction)

    def wait_ended(self, edge: int, direction: RingDirection | None = None) -> None:
        self.wait_told(StreamEnded, edge, direction)

    def wait_halted(self, edge: int, direction: RingDirection | None = None) -> PumpHalted:
        return self.wait_told(PumpHalted, edge, direction)

    def wait_counted(self, what: str, count: int = 1) -> None:
        until = time.monotonic() + WAIT_S
        pause = select.poll()
        while self.driver.counted.get(what, 0) < count:
            assert time.monotonic() < until, f"{what} not counted: {self.driver.counted}"
            pause.poll(5)

    def progress(self, edge: int, direction: RingDirection) -> Any:
        """The newest that was told."""
        found = None
        for report in list(self.reports):
            for moved in getattr(report, "pumps", ()):
                if (moved.edge_id, moved.direction) == (edge, direction):
                    found = moved.progress
        return found

    def close(self) -> None:
        self.driver.close()
        for side in self.held:
            side.release()
        self.memory.close()


class Net:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seeds: dict[str, SecretSeed] = {}
        self.endpoints = {name: f"ipc://{folder}/{name}" for name in ("a", "b", "c")}
        self.closing: list[Any] = []

    def tcp(self) -> Net:
        for name in self.endpoints:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                self.endpoints[name] = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        return self

    def keys(self, name: str) -> Keys:
        for one in (*self.endpoints, name):
            self.seeds.setdefault(one, SecretSeed.generate())
        public = {one: transport_key(self.seeds[one].public_key) for one in self.seeds}
        return Keys(
            public=public[name],
            secret=self.seeds[name].transport_secret(),
            peers={one: public[one] for one in self.endpoints},
        )

    def process(self, name: str) -> Process:
        process = Process(self, name)
        self.closing.append(process)
        return process

    def stop(self, process: Process) -> None:
        self.closing.remove(process)
        process.close()

    def outlaw_server(self, name: str) -> OutlawServer:
        server = OutlawServer(self, name)
        self.closing.append(server)
        return server

    def outlaw(self, name: str, to: str) -> Outlaw:
        outlaw = Outlaw(self, name, to)
        self.closing.append(outlaw)
        return outlaw


class Outlaw:
    """A DEALER with a key that is listed (or is not), which says what the test wants."""

    def __init__(self, net: Net, name: str, to: str) -> None:
        self.sockets = Sockets(net.keys(name))
        self.socket, self.monitor = self.sockets.dealer(to, net.endpoints[to])

    def say(self, *pieces: bytes) -> None:
        self.say_parts(b"".join(pieces))

    def say_parts(self, *parts: bytes) -> None:
        self.socket.sndtimeo = int(WAIT_S * 1000)
        self.socket.send_multipart(parts)

    def hear(self, kind: type[Frame]) -> Any:
        until = time.monotonic() + WAIT_S
        while True:
            left = until - time.monotonic()
            assert left > 0, f"no {kind.__name__} heard"
            assert self.socket.poll(left * 1000), f"no {kind.__name__} heard"
            frame = parse(self.socket.recv())
            if isinstance(frame, kind):
                return frame

    def open(self, edge: int, *, run: int = 1, incarnation: int = 5, again: bool = False) -> None:
        self.say(pack(Open(edge, run, incarnation, 4096, again)))

    def wait_cut_off(self) -> None:
        assert self.monitor.poll(WAIT_S * 1000), "still connected"

    def close(self) -> None:
        self.monitor.close()
        self.socket.disable_monitor()
        self.sockets.close()


class OutlawServer:
    """A ROUTER with a listed key that says what the test wants to whoever spoke last."""

    def __init__(self, net: Net, name: str) -> None:
        keys = net.keys(name)
        self.sockets = Sockets(keys)
        admission = Admission(self.sockets.context, {key: peer for peer, key in keys.peers.items()}, lambda _: None)
        self.router, self.monitor = self.sockets.router(net.endpoints[name])
        self.poller = zmq.Poller()
        self.poller.register(admission.socket, zmq.POLLIN)
        self.poller.register(self.router, zmq.POLLIN)
        self.admission = admission
        self.peer = b""

    def hear(self, kind: type[Frame]) -> Any:
        until = time.monotonic() + WAIT_S
        while True:
            ready = dict(self.poller.poll(1000 * max(0.0, until - time.monotonic())))
            assert ready, f"no {kind.__name__} heard"
            if self.admission.socket in ready:
                self.admission.answer()
            if self.router in ready:
                self.peer, said = self.router.recv_multipart()
                frame = parse(said)
                if isinstance(frame, kind):
                    return frame

    def say(self, *parts: bytes) -> None:
        self.router.send_multipart([self.peer, *parts])

    def close(self) -> None:
        self.monitor.close()
        self.router.disable_monitor()
        self.sockets.close()


class Transfer:
    """Streams through rings: what workloads would do, all of them in one thread."""

    def __init__(self) -> None:
        self.flows: list[Flow] = []

    def add(self, tx: RingProducer, rx: RingConsumer, stream: bytes, **how: Any) -> Flow:
        self.flows.append(Flow(tx, rx, stream, **how))
        return self.flows[-1]

    def run(self, until: Callable[[], bool] | None = None, during: Callable[[], None] = lambda: None) -> None:
        poll = select.poll()
        for flow in self.flows:
            poll.register(flow.tx.space_fd, select.POLLIN)
            poll.register(flow.rx.data_fd, select.POLLIN)
        deadline = time.monotonic() + 3 * WAIT_S
        while not (until() if until is not None else all(flow.complete for flow in self.flows)):
            assert time.monotonic() < deadline, [(len(flow.arrived), len(flow.stream)) for flow in self.flows]
            during()
            if not sum(flow.step() for flow in self.flows):
                poll.poll(50)


class Flow:
    """`bite`: how much the consumer takes at a time; what arrives is checked at once and its records at the end."""

    def __init__(self, tx: RingProducer, rx: RingConsumer, stream: bytes, *, bite: int = 1 << 30) -> None:
        self.tx, self.rx, self.stream, self.bite = tx, rx, stream, bite
        self.written = 0
        self.arrived = bytearray()

    @property
    def complete(self) -> bool:
        return len(self.arrived) == len(self.stream)

    def write(self) -> int:
        if readable(self.tx.space_fd):
            self.tx.free()
        length = min(self.tx.known_free, len(self.stream) - self.written)
        if length:
            self.tx.write(0, self.stream[self.written : self.written + length])
            self.tx.commit(length)
            self.written += length
        return length

    def read(self) -> int:
        if readable(self.rx.data_fd):
            self.rx.readable()
        length = min(self.rx.known_readable, self.bite)
        if length:
            at = len(self.arrived)
            for span in self.rx.spans(0, length):
                self.arrived += span
            self.rx.consume(length)
            assert self.arrived[at:] == self.stream[at : at + length], f"other bytes from {at} on"
        return length

    def step(self) -> bool:
        return bool(self.write() + self.read())

    def check(self) -> None:
        reader = RecordReader(1 << 24)
        reader.feed(bytes(self.arrived))
        reader.end()
        assert bytes(self.arrived) == self.stream


def spec(extent: int) -> ObjectSpec:
    return ObjectSpec(kind=ObjectKind.ACTIVATION, dtype=DType.F16, max_extent_bytes=extent)


@pytest.fixture
def net(tmp_path: Path) -> Iterator[Net]:
    net = Net(tmp_path)
    yield net
    for one in reversed(net.closing):
        one.close()


@pytest.fixture
def transfer() -> Transfer:
    return Transfer()


@pytest.fixture
def make_records() -> Callable[[int, list[int]], bytes]:
    return records
