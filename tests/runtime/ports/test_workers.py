"""The live `workers` port: real shims, tiny workloads that speak the channel by hand, real memory."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import queue
import select
import signal
import sys
import textwrap
import time
from pathlib import Path

import pytest

import runtime
from actors.actor import Actor, AskFailed
from actors.edges.records import pack_header
from messages.base import Address
from messages.control import Epoch
from messages.edge import DType, ObjectKind, ObjectSpec, RingDirection, RingLayout
from messages.edge_end import EdgeFaultCode, FindRun, RunFound
from messages.edge_ports import (
    EndStream,
    InstallRing,
    KillWorker,
    RingRef,
    UninstallRing,
    WorkerClosed,
    WorkerFaulted,
    WorkerGone,
    WorkerInstalled,
    WorkerQuiesced,
    WorkerReport,
)
from messages.ports import PortRefusal
from messages.system import ExitKind, GetState
from runtime.edges.memory import NodeMemory
from runtime.edges.ring import RingConsumer, RingProducer
from runtime.edges.workers import introduction, run_channel, run_end
from runtime.edges.workers.holders import holders
from runtime.kernel.envelope import Envelope, Kind, tag_of
from runtime.kernel.live import LiveWorld
from runtime.ports.workers import Workers
from runtime.processes import proc
from runtime.processes.exits import ExitWatch
from runtime.shim import client
from runtime.shim.client import LaunchSpec, ShimFailed, ShimHandle

ROOT = Path(runtime.__file__).parent.parent
PYTHON = os.path.realpath(sys.executable)
WORKERS, EDGES = Address("shed.edges/workers"), Address("shed.edges/edges")
ID = f"cam-0011aabb-n-{os.getpid():016x}"  # the sweep ends whoever bears it, also of another run of these tests
EPOCH = Epoch(term=1, number=4)
ARENA_BYTES, CAPACITY, RING_BYTES = 1 << 24, 8064, 8192
WAIT_S = 10

SPEAK = """
    import array, json, mmap, os, signal, socket, sys, time
    shim = socket.socket(fileno=int(os.environ["SENNIT_SHIM_FD"]))

    def channel():
        text, fds, _, _ = socket.recv_fds(shim, 100, 1)
        assert text == b"edges 1", text
        return socket.socket(fileno=fds[0])

    def wait():
        shim.recv(100)

    def wait_for_signal():
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
        tell("waiting")
        signal.sigwait({signal.SIGUSR1})

    def take(c):
        data, fds, _, _ = socket.recv_fds(c, 4097, 3)
        return (json.loads(data) if data else None), fds

    def say(c, **words):
        c.send(json.dumps(words).encode())

    def tell(text):
        fd = os.open("fifo", os.O_WRONLY)
        os.write(fd, text.encode() + b"\\n")
        os.close(fd)

    maps = {}

    def obey(c, order, fds):
        ring, do = order["ring"], order["do"]
        if do == "install":
            at = order["offset"]
            maps[ring] = mmap.mmap(fds[0], order["end"] - at, offset=at), fds[1:], order
            os.close(fds[0])
            say(c, did="installed", ring=ring)
        elif do == "uninstall":
            memory, events, _ = maps.pop(ring)
            memory.close()
            for fd in events:
                os.close(fd)
            say(c, did="quiesced", ring=ring)

    def serve(c):
        while True:
            order, fds = take(c)
            if order is None:
                return
            obey(c, order, fds)
"""


class Edges(Actor):
    """Keeps what the port reports."""

    mailbox = WorkerReport

    def __init__(self, reports):
        self._reports = reports

    def receive(self, message, ctx):
        self._reports.put(message)


class Node:
    """An edges process as far as the port sees it, and the workloads of its node."""

    def __init__(self, root: Path) -> None:
        self.instances = root / "instances"
        self.logged = []
        self.begin()
        self.handles = []
        self.ended = queue.Queue()
        self._fifos = {}
        self._heard = {}

    def begin(self, **options) -> None:
        """A new life of the edges process: nothing of the old is left but what the system keeps."""
        self.memory = NodeMemory()
        self.rings = 0
        self.reports = queue.Queue()
        self.exits = ExitWatch(lambda error: self.logged.append(("error", "watch", repr(error))))
        self.world = LiveWorld("shed.edges", lambda level, _, text, fields: self.logged.append((level, text, fields)))
        self.world.spawn(EDGES, lambda: Edges(self.reports))
        self.world.spawn(WORKERS, lambda: Workers(self.memory, self.instances, self.exits, **options))

    def end(self) -> None:
        ended = queue.Queue()
        self.world.on_end = lambda address, *_: ended.put(address)
        count = len(self.world.cells)
        self.world.close()
        for _ in range(count):
            ended.get(timeout=WAIT_S)
        self.exits.close()
        self.memory.close()

    def close(self) -> None:
        self.end()
        for fd in self._fifos.values():
            os.close(fd)
        for directory in self.instances.iterdir():
            with contextlib.suppress(ShimFailed, OSError, ValueError):
                found = client.adopt(directory)
                if isinstance(found, ShimHandle):
                    os.kill(found.shim_pid, signal.SIGKILL)
                    found.close()
                    client.sweep(json.loads((directory / "run/state.json").read_bytes()))

    # the agent's part

    def start(self, body: str, name: str = ID, epoch: Epoch = EPOCH, **options) -> ShimHandle:
        directory = self.instances / name
        if name not in self._fifos:
            (directory / "data").mkdir(parents=True)
            os.mkfifo(directory / "data" / "fifo")
            self._fifos[name] = os.open(directory / "data" / "fifo", os.O_RDWR | os.O_NONBLOCK)
            self._heard[name] = b""
        program = textwrap.dedent(SPEAK) + textwrap.dedent(body)
        spec = LaunchSpec(
            instance_id=name,
            epoch=str(epoch),
            argv=[PYTHON, "-I", "-S", "-c", program],
            environment={"PATH": "/usr/bin:/bin", "SENNIT_INSTANCE": name},
            **({"ram_mb": 512, "output_limit": 65536, "grace_ms": 300} | options),
        )
        handle = client.start(directory, spec)
        handle.watch(self.exits, self.ended.put)
        self.handles.append(handle)
        return handle

    def hear(self, name: str = ID) -> str:
        """The next line that the workload writes to its fifo."""
        while b"\n" not in self._heard[name]:
            ready = select.select([self._fifos[name]], [], [], WAIT_S)[0]
            assert ready, (self._heard[name], self.stderr(name), self.logged, "the workload is silent")
            self._heard[name] += os.read(self._fifos[name], 65536)
        line, _, self._heard[name] = self._heard[name].partition(b"\n")
        return line.decode()

    def stderr(self, name: str = ID) -> str:
        return client.read_output(self.instances / name, "stderr", 0, 65536)[0].decode()

    def collect(self, name: str = ID):
        self.ended.get(timeout=WAIT_S)
        return client.collect(self.instances / name)

    # orders and reports

    def tell(self, message) -> None:
        taken = self.world.deliver(Envelope(Kind.TELL, WORKERS, EDGES, message, tag=tag_of(type(message))))
        assert taken

    def ref(self, name: str = ID, *, formatted: bool = True, generation: int = 3) -> RingRef:
        self.rings += 1
        start = (self.rings - 1) * RING_BYTES
        layout = RingLayout(
            start_offset=start,
            header_offset=start,
            data_offset=start + 128,
            end_offset=start + RING_BYTES,
            data_bytes=CAPACITY,
            alignment=4096,
        )
        ref = RingRef(arena=name, ring_id=self.rings, generation=generation, layout=layout)
        if formatted:
            self.memory.format_ring(ref, ARENA_BYTES)
        return ref

    def install(
        self, ref: RingRef, name: str = ID, epoch: Epoch = EPOCH, direction=RingDirection.INGRESS, port="in"
    ) -> int:
        spec = ObjectSpec(kind=ObjectKind.ACTIVATION, dtype=DType.F16, max_extent_bytes=4096)
        self.tell(
            InstallRing(
                instance_id=name,
                epoch=epoch,
                edge_id=70 + ref.ring_id,
                ring=ref,
                port=port,
                direction=direction,
                object_spec=spec,
            )
        )
        return ref.ring_id

    def installed(self, name: str = ID) -> int:
        """A ring that the workload has."""
        ring = self.install(self.ref(name), name)
        assert self.report() == WorkerInstalled(instance_id=name, ring_id=ring)
        return ring

    def uninstall(self, ring: int, name: str = ID) -> None:
        self.tell(UninstallRing(instance_id=name, ring_id=ring, reason="the edge is stopped"))

    def report(self):
        try:
            return self.reports.get(timeout=WAIT_S)
        except queue.Empty:
            raise AssertionError(f"no report; logged {self.logged}") from None

    def state(self):
        """Also: every order before it was handled."""
        return self.world.main.ask(WORKERS, GetState(), timeout_s=WAIT_S).state

    def wait_logged(self, text: str) -> None:
        deadline = time.monotonic() + WAIT_S
        while not any(text in logged for _, logged, _ in self.logged):
            assert time.monotonic() < deadline, self.logged
            self.state()

    def passed(self, handle: ShimHandle) -> None:
        """Wait until the shim has passed a channel on, which nobody has read."""
        deadline = time.monotonic() + WAIT_S
        while not handle.status()["unread"]:
            assert time.monotonic() < deadline
        self.settle()

    def settle(self):
        """Everything that was ordered so far was handled, and nothing was reported."""
        self.state()
        assert self.reports.empty(), self.reports.get()


@pytest.fixture
def node(tmp_path):
    (tmp_path / "instances").mkdir()
    node = Node(tmp_path)
    yield node
    node.close()
    assert not [entry for entry in node.logged if "crashed" in entry[1] or entry[1] == "watch"]


def alive(pid: int) -> bool:
    found = proc.stat(pid)
    return found is not None and found.state != "Z"


def descriptors(pid: int | str = "self") -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def test_a_ring_reaches_the_memory_of_the_workload_with_all_that_describes_it(node):
    node.start(
        """
        c = channel()
        order, fds = take(c)
        obey(c, order, fds)
        memory, (data, space), _ = maps[order["ring"]]
        tell(json.dumps(order))
        at = order["data"] - order["offset"]
        tell(memory[at:at + os.eventfd_read(data)].decode())
        memory[at:at + 3] = b"DEF"
        os.eventfd_write(space, 3)
        memory.close()
        tell("done")
        serve(c)
        """
    )
    ref = node.ref()
    ring = node.memory.ring(ref.ring_id)
    ring.data[:3] = b"abc"
    os.eventfd_write(ring.data_fd, 3)
    node.install(ref)
    assert node.report() == WorkerInstalled(instance_id=ID, ring_id=ref.ring_id)
    assert json.loads(node.hear()) == {
        "do": "install",
        "ring": 1,
        "edge": 71,
        "port": "in",
        "direction": "ingress",
        "offset": 0,
        "header": 0,
        "data": 128,
        "end": 8192,
        "capacity": CAPACITY,
        "generation": 3,
        "max_extent": 4096,
        "alignment": 2,
    }
    assert (node.hear(), node.hear()) == ("abc", "done")
    assert os.eventfd_read(ring.space_fd) == 3
    assert bytes(ring.data[:3]) == b"DEF"


def test_a_ring_is_let_go_when_the_workload_has_unmapped_it(node):
    node.start("serve(channel())")
    ring = node.installed()
    node.uninstall(ring)
    assert node.report() == WorkerQuiesced(instance_id=ID, ring_id=ring)
    node.uninstall(ring)
    assert node.report() == WorkerQuiesced(instance_id=ID, ring_id=ring), "known to be let go: answered at once"


def test_one_channel_carries_all_rings_of_a_run(node):
    node.start("c = channel(); serve(c)")
    rings = [node.install(node.ref()) for _ in range(9)]
    assert [node.report().ring_id for _ in rings] == rings
    assert node.state()["runs"][ID]["rings"] == {str(ring): "installed" for ring in rings}


def test_a_ring_that_is_there_already_is_told_again(node):
    node.start("serve(channel())")
    ref = node.ref()
    for _ in range(2):
        node.install(ref)
        assert node.report() == WorkerInstalled(instance_id=ID, ring_id=ref.ring_id)


def test_the_end_of_the_stream_and_the_close_of_a_port_are_passed_on(node):
    node.start(
        """
        c = channel()
        obey(c, *take(c))
        order, _ = take(c)
        tell(json.dumps(order))
        say(c, did="closed", ring=order["ring"])
        serve(c)
        """
    )
    ring = node.installed()
    for _ in range(2):
        node.tell(EndStream(instance_id=ID, ring_id=ring))
    assert json.loads(node.hear()) == {"do": "end", "ring": ring}
    assert node.report() == WorkerClosed(instance_id=ID, ring_id=ring)
    node.uninstall(ring)
    assert node.report() == WorkerQuiesced(instance_id=ID, ring_id=ring), "the end was sent once"


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("ring_header_changed", EdgeFaultCode.RING_HEADER_CHANGED),
        ("edges_restarted", EdgeFaultCode.WORKER_REFUSED),
        ("no such code", EdgeFaultCode.WORKER_REFUSED),
    ],
)
def test_what_a_workload_complains_of_is_passed_on(node, code, told):
    node.start(
        f"""
        c = channel()
        order, _ = take(c)
        say(c, did="refused", ring=order["ring"], code={code!r}, text="no\\x1b[2J")
        obey(c, *take(c))
        for ring in maps:
            say(c, did="fault", ring=ring, code={code!r}, text="bad")
            say(c, did="fault", ring=ring, code={code!r}, text="bad again")
        serve(c)
        """
    )
    first = node.install(node.ref())
    refused = node.report()
    assert (type(refused), refused.ring_id, refused.code, refused.holds) == (WorkerFaulted, first, told, False)
    assert "\x1b" not in refused.text
    second = node.installed()
    fault = node.report()
    assert (type(fault), fault.ring_id, fault.code, fault.holds) == (WorkerFaulted, second, told, True)
    node.uninstall(second)
    assert node.report() == WorkerQuiesced(instance_id=ID, ring_id=second), "a fault is told once"


def test_a_ring_of_an_instance_that_is_not_there_is_refused(node):
    for name in ("nobody-here", "..", ".hidden", "a/b", ""):
        ref = node.ref(name)
        node.install(ref, name)
        fault = node.report()
        assert (fault.code, fault.holds) == (EdgeFaultCode.WORKER_NOT_RUNNING, False)
        node.uninstall(ref.ring_id, name)
        assert node.report() == WorkerQuiesced(instance_id=name, ring_id=ref.ring_id)


def test_a_ring_for_another_epoch_is_refused_and_the_workload_undisturbed(node):
    node.start("serve(channel())")
    for number in (3, 5):
        node.install(node.ref(), epoch=Epoch(term=1, number=number))
        fault = node.report()
        assert (fault.code, fault.holds) == (EdgeFaultCode.WORKER_NOT_RUNNING, False)
        assert f"1.{number}" in fault.text
    node.installed()


def find(node, name=ID, epoch=EPOCH):
    return node.world.main.ask(WORKERS, FindRun(instance_id=name, epoch=epoch), timeout_s=WAIT_S)


@pytest.mark.parametrize("known", [False, True])
def test_whether_a_run_lives_is_told_and_changes_nothing(node, known):
    assert find(node) == RunFound(runs=False)
    handle = node.start("serve(channel())")
    if known:
        node.installed()
    before, open_before = node.state(), descriptors()
    told = find(node)
    assert (told.runs, bool(told.run)) == (True, True)
    assert find(node, epoch=Epoch(term=1, number=5)) == RunFound(
        runs=False, run=told.run, detail=f"it runs in epoch {EPOCH}"
    )
    for _ in range(50):
        find(node)
    assert node.state() == before
    assert descriptors() < open_before + 50
    handle.stop(0)
    node.collect()
    deadline = time.monotonic() + WAIT_S
    while (told := find(node)).detail and time.monotonic() < deadline:
        assert not told.runs  # its last processes are looked for, at intervals
    assert told == RunFound(runs=False)


def test_of_what_cannot_be_told_it_is_not_said_that_it_does_not_run(node):
    for name in ("nobody-here", "..", ".hidden", "a/b", ""):
        assert find(node, name) == RunFound(runs=False)
    node.start("serve(channel())")
    (node.instances / "other").symlink_to(node.instances / ID)
    with pytest.raises(AskFailed) as failed:
        find(node, "other")
    assert (failed.value.code, ID in failed.value.reason) == (PortRefusal.INVALID_STATE, True)


def test_a_ring_that_is_not_laid_out_so_is_refused(node):
    node.start("serve(channel())", name="other")
    node.start("serve(channel())")
    unformatted = node.ref(formatted=False)
    stranger = node.ref("other")
    stale = node.ref()
    stale = RingRef(arena=ID, ring_id=stale.ring_id, generation=2, layout=stale.layout)
    for ref in (unformatted, stranger, stale):
        node.install(ref)
        fault = node.report()
        assert (fault.code, fault.holds) == (EdgeFaultCode.ARENA_FAILED, False)


def test_a_workload_that_ends_is_gone_with_all_its_rings(node):
    node.start("c = channel(); obey(c, *take(c)); obey(c, *take(c)); os._exit(3)")
    rings = [node.install(node.ref()) for _ in range(2)]
    reports = [node.report() for _ in range(3)]
    assert reports[-1] == WorkerGone(instance_id=ID, ring_ids=rings)
    assert node.state()["runs"] == {}
    node.uninstall(rings[0])
    assert node.report() == WorkerQuiesced(instance_id=ID, ring_id=rings[0])


def test_a_crashed_workload_is_gone_only_when_its_last_descendant_is(node):
    node.start(
        """
        c = channel()
        obey(c, *take(c))
        signal.signal(signal.SIGTERM, lambda *_: tell("asked to end"))
        if os.fork() == 0:
            os.setsid()
            c.close()
            tell(str(os.getpid()))
            while True:
                time.sleep(1000)
        wait()
        os.kill(os.getpid(), signal.SIGKILL)
        """,
        grace_ms=1500,
    )
    ring = node.installed()
    child = int(node.hear())
    node.handles[0].pass_descriptors("die", [])
    assert node.hear() == "asked to end"
    fault = node.report()
    assert (type(fault), fault.code, fault.holds) == (WorkerFaulted, EdgeFaultCode.WORKER_CRASHED, True)
    assert node.report() == WorkerGone(instance_id=ID, ring_ids=[ring])
    assert not alive(child), "told before the last was gone"


def test_a_killed_shim_frees_nothing_before_the_agent_has_swept(node):
    handle = node.start(
        """
        c = channel()
        obey(c, *take(c))
        if os.fork() == 0:
            os.setsid()
            tell(str(os.getpid()))
            time.sleep(1000)
        time.sleep(1000)
        """
    )
    ring = node.installed()
    child = int(node.hear())
    os.kill(handle.shim_pid, signal.SIGKILL)
    node.ended.get(timeout=WAIT_S)
    node.wait_logged("processes of it are left")
    assert alive(child)
    node.uninstall(ring)
    node.settle()
    client.collect(node.instances / ID)
    assert node.report() == WorkerGone(instance_id=ID, ring_ids=[ring])
    assert not alive(child)


HIDDEN = """
    def arena():
        for fd in range(4, 32):
            path = f"/proc/self/fd/{fd}"
            if os.path.lexists(path) and os.readlink(path).startswith("/memfd:"):
                return fd

    def forget_environment():
        start, end = map(int, open("/proc/self/stat").read().rpartition(")")[2].split()[47:49])
        with open("/proc/self/mem", "r+b", buffering=0) as memory:
            memory.seek(start)
            memory.write(bytes(end - start))

    c = channel()
    obey(c, *take(c))
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        c.close()
        {keep}
    time.sleep(1000)
"""
KEPT = {
    "mapped": "os.close(arena()); forget_environment(); tell(str(os.getpid()))",
    "open": """os.set_inheritable(arena(), True)
        os.execve("/bin/sh", ["sh", "-c", "echo $$ > fifo; exec sleep 1000"], {})
    """,
}


@pytest.mark.parametrize("kept", KEPT)
def test_a_descendant_that_nobody_finds_is_found_by_the_memory_it_has(node, kept):
    """It left its session, its parent and its environment before the shim was killed: no sweep sees it."""
    handle = node.start(HIDDEN.replace("{keep}", KEPT[kept]))
    ring = node.installed()
    child = int(node.hear())
    os.kill(handle.shim_pid, signal.SIGKILL)
    node.collect()
    assert alive(child), "the sweep does not find it"
    node.wait_logged("processes of it are left")
    node.uninstall(ring)
    node.settle()
    node.tell(KillWorker(instance_id=ID, ring_id=ring, reason="it does not let go"))
    assert node.report() == WorkerGone(instance_id=ID, ring_ids=[ring])
    assert not alive(child)


def test_nothing_is_free_while_it_is_impossible_to_look(node, monkeypatch):
    handle = node.start("serve(channel())")
    ring = node.installed()

    def out_of_descriptors(_):
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(run_end, "holders", out_of_descriptors)
        os.kill(handle.shim_pid, signal.SIGKILL)
        node.collect()
        node.wait_logged("cannot see what is left of a run")
        fault = node.report()
        assert (type(fault), fault.holds) == (WorkerFaulted, True)
        node.uninstall(ring)
        node.tell(KillWorker(instance_id=ID, ring_id=ring, reason="it does not let go"))
        node.settle()
    assert node.report() == WorkerGone(instance_id=ID, ring_ids=[ring])


def test_a_hidden_descendant_that_stopped_its_shim_ends_when_its_workload_is_killed(node, monkeypatch):
    """It stops its shim, so nobody ends it by asking; the shim's end does not reach it, and no sweep finds it."""
    monkeypatch.setattr(introduction, "REPLY_TIMEOUT_S", 0.3)
    keep = KEPT["mapped"].replace("tell(", f"os.kill(int(os.environ['SHIM']), {int(signal.SIGSTOP)}); tell(")
    node.start(HIDDEN.replace("os.fork() == 0:", "os.environ.update(SHIM=str(os.getppid())) or os.fork() == 0:", 1)
               .replace("{keep}", keep))  # fmt: skip
    ring = node.installed()
    child = int(node.hear())
    node.tell(KillWorker(instance_id=ID, ring_id=ring, reason="it does not let go"))
    assert node.report() == WorkerGone(instance_id=ID, ring_ids=[ring])
    assert not alive(child)


def test_a_directory_with_the_run_of_another_instance_is_not_asked_for_rings(node):
    node.start("serve(channel())")
    os.symlink(node.instances / ID, node.instances / "other")
    ring = node.install(node.ref("other"), "other")
    fault = node.report()
    assert (fault.ring_id, fault.code, fault.holds) == (ring, EdgeFaultCode.WORKER_REFUSED, False)
    os.unlink(node.instances / "other")
    node.installed()


def test_a_run_whose_shim_was_killed_is_gone_when_the_next_one_runs(node):
    """The new run bears the same mark: what it holds is not the old one's."""
    handle = node.start("c = channel(); serve(c)")
    ring = node.installed()
    os.kill(handle.shim_pid, signal.SIGKILL)
    node.ended.get(timeout=WAIT_S)
    node.start("serve(channel())")
    assert node.report() == WorkerGone(instance_id=ID, ring_ids=[ring])
    node.installed()


def test_the_next_run_of_an_instance_gets_a_channel_of_its_own(node):
    node.start("c = channel(); obey(c, *take(c)); wait(); sys.exit()")
    ring = node.installed()
    node.handles[-1].pass_descriptors("end", [])
    node.collect()
    node.start("serve(channel())")
    second = node.install(node.ref())
    assert node.report() == WorkerGone(instance_id=ID, ring_ids=[ring])
    assert node.report() == WorkerInstalled(instance_id=ID, ring_id=second)


@pytest.mark.parametrize("victim", ["workload", "shim"])
@pytest.mark.parametrize("after", range(4))
def test_wherever_a_run_dies_each_ring_is_free_once(node, victim, after):
    handle = node.start("serve(channel())")
    rings = [node.install(node.ref()) for _ in range(3)]
    free = set()
    for _ in range(after):
        assert isinstance(node.report(), WorkerInstalled)
    os.kill(handle.pid if victim == "workload" else handle.shim_pid, signal.SIGKILL)
    node.collect()
    while free != set(rings):
        match node.report():
            case WorkerInstalled():
                pass
            case WorkerFaulted(ring_id=ring_id, holds=holds):
                assert ring_id not in free
                free |= set() if holds else {ring_id}
            case WorkerGone(ring_ids=ring_ids):
                assert not free & set(ring_ids)
                free |= set(ring_ids)
    for ring in rings:
        node.uninstall(ring)
        assert node.report() == WorkerQuiesced(instance_id=ID, ring_id=ring)
    node.settle()


def test_a_closed_channel_is_no_proof(node):
    node.start("c = channel(); obey(c, *take(c)); c.close(); tell('closed'); wait()")
    ring = node.installed()
    assert node.hear() == "closed"
    fault = node.report()
    assert (type(fault), fault.ring_id, fault.code, fault.holds) == (
        WorkerFaulted,
        ring,
        EdgeFaultCode.WORKER_CRASHED,
        True,
    )
    node.uninstall(ring)
    node.install(node.ref())
    refused = node.report()
    assert (refused.code, refused.holds) == (EdgeFaultCode.WORKER_REFUSED, False)
    node.tell(KillWorker(instance_id=ID, ring_id=ring, reason="it does not let go"))
    assert node.report() == WorkerGone(instance_id=ID, ring_ids=[ring])


def test_a_workload_that_lets_go_of_its_rings_and_closes_its_channel_lives_on(node):
    """Nobody can be asked any more, and nobody has to be; another channel brings other rings."""
    handle = node.start(
        """
        c = channel()
        for _ in range(3):
            obey(c, *take(c))
        say(c, did="closed", ring=1)
        for ring in sorted(maps):
            obey(c, {"do": "uninstall", "ring": ring}, [])
        c.close()
        tell("closed")
        serve(channel())
        """
    )
    out = node.install(node.ref(), direction=RingDirection.EGRESS, port="out")
    assert node.report() == WorkerInstalled(instance_id=ID, ring_id=out)
    unread, left = node.installed(), node.installed()
    assert node.hear() == "closed"
    node.tell(EndStream(instance_id=ID, ring_id=left))
    assert node.report() == WorkerClosed(instance_id=ID, ring_id=out)
    for ring in (unread, left):
        fault = node.report()
        assert (type(fault), fault.ring_id, fault.holds) == (WorkerFaulted, ring, False), "its stream goes on"
        assert fault.code is EdgeFaultCode.WORKER_CRASHED
    for ring in (out, unread, left):
        node.uninstall(ring)
        assert node.report() == WorkerQuiesced(instance_id=ID, ring_id=ring)
        node.tell(KillWorker(instance_id=ID, ring_id=ring, reason="an order that comes late"))
        assert node.report() == WorkerQuiesced(instance_id=ID, ring_id=ring)
    node.installed()
    assert alive(handle.pid)


def test_a_workload_that_closed_an_empty_channel_gets_another(node):
    node.start("c = channel(); obey(c, *take(c)); obey(c, *take(c)); c.close(); serve(channel())")
    ring = node.installed()
    node.uninstall(ring)
    assert node.report() == WorkerQuiesced(instance_id=ID, ring_id=ring)
    deadline = time.monotonic() + WAIT_S
    while node.state()["runs"][ID]["channel"] == "open":
        assert time.monotonic() < deadline
    node.installed()


@pytest.mark.parametrize(
    "said",
    [
        "b'not json'",
        "b'{}'",
        "b'[1]'",
        "b'\\xff\\xfe'",
        'b\'{"did":"installed"}\'',
        'b\'{"did":"installed","ring":-1}\'',
        'b\'{"did":"installed","ring":1e3}\'',
        'b\'{"did":"installed","ring":18446744073709551616}\'',
        'b\'{"did":"installed","ring":1,"more":2}\'',
        'b\'{"did":"exploded","ring":1}\'',
        "b'[' * 4000",
        'b\'{"did":"fault","ring":1,"text":"\' + b"x" * 5000 + b\'"}\'',
        "b'x' * 100_000",
    ],
)
def test_a_workload_that_talks_nonsense_loses_its_channel_and_not_its_rings(node, said):
    node.start(f"c = channel(); obey(c, *take(c)); obey(c, *take(c)); c.send({said}); tell(str(take(c))); wait()")
    rings = [node.installed() for _ in range(2)]
    faults = [node.report() for _ in rings]
    assert [(one.ring_id, one.code, one.holds) for one in faults] == [
        (ring, EdgeFaultCode.WORKER_REFUSED, True) for ring in rings
    ]
    assert node.hear() == "(None, [])", "the channel is closed"
    node.tell(KillWorker(instance_id=ID, ring_id=rings[0], reason="test"))
    assert node.report() == WorkerGone(instance_id=ID, ring_ids=rings)


def test_answers_about_rings_that_nobody_asked_about_are_counted_and_a_flood_ends_the_channel(node):
    node.start(
        """
        c = channel()
        obey(c, *take(c))
        for did in ("installed", "quiesced", "refused", "closed", "fault"):
            say(c, did=did, ring=999)
        say(c, did="refused", ring=1)
        obey(c, *take(c))
        wait()
        while True:
            say(c, did="installed", ring=1)
        """
    )
    ring, other = node.installed(), node.installed()
    assert node.state()["counted"] == {"surplus": 6, "malformed": 0}
    assert node.state()["runs"][ID]["rings"] == {"1": "installed", "2": "installed"}
    node.handles[0].pass_descriptors("go on", [])
    faults = [node.report(), node.report()]
    assert [one.ring_id for one in faults] == [ring, other]
    assert node.state()["counted"] == {"surplus": run_channel.SURPLUS_AT_MOST + 1, "malformed": 1}
    assert node.report() == WorkerGone(instance_id=ID, ring_ids=[ring, other])


def test_a_ring_that_has_not_left_cannot_be_refused(node):
    """Ring numbers can be guessed. A ring that was given up while its install waits would be sent all the same."""
    node.start(
        """
        c = channel()
        orders = [take(c) for _ in range(4)]
        for did in ("refused", "fault", "closed", "installed", "quiesced"):
            say(c, did=did, ring=5)
        wait()
        for order, fds in orders:
            obey(c, order, fds)
        serve(c)
        """
    )
    rings = [node.install(node.ref()) for _ in range(5)]
    deadline = time.monotonic() + WAIT_S
    while node.state()["counted"]["surplus"] < 5:
        assert time.monotonic() < deadline
        assert node.reports.empty()
    node.handles[0].pass_descriptors("go on", [])
    assert [node.report() for _ in rings] == [WorkerInstalled(instance_id=ID, ring_id=ring) for ring in rings]


def test_descriptors_that_a_workload_sends_are_not_kept(node):
    node.start(
        """
        c = channel()
        for _ in range(3):
            order, fds = take(c)
            answer = json.dumps({"did": "installed", "ring": order["ring"]}).encode()
            try:
                socket.send_fds(c, [answer], fds * 20)
            except PermissionError:  # from Linux 6.16 on
                c.send(answer)
        take(c)
        """
    )
    node.installed()
    before = descriptors()
    for _ in range(2):
        node.installed()
    assert descriptors() == before + 2 * 3, "two eventfds and a mapping of each ring, and nothing else"


def test_a_program_without_ports_is_never_sent_a_ring_and_lives_on(node):
    """Nobody could take a ring back from a socket that nobody reads."""
    node.end()
    node.begin(take_s=0.1)
    handle = node.start("tell('here'); time.sleep(1000)")
    assert node.hear() == "here"
    for _ in range(3):
        ring = node.install(node.ref())
        fault = node.report()
        assert (fault.ring_id, fault.code, fault.holds) == (ring, EdgeFaultCode.WORKER_REFUSED, False)
        assert "did not take its channel" in fault.text
    ring = node.install(node.ref())
    node.uninstall(ring)
    assert node.report() == WorkerQuiesced(instance_id=ID, ring_id=ring), "it never left"
    assert alive(handle.pid)
    assert handle.status()["unread"], "one channel waits, not one for each ring"


def test_a_workload_that_is_slow_to_start_gets_its_rings_when_it_is_ready(node):
    handle = node.start("wait_for_signal(); serve(channel())")
    assert node.hear() == "waiting"
    rings = [node.install(node.ref()) for _ in range(2)]
    node.passed(handle)
    os.kill(handle.pid, signal.SIGUSR1)
    assert [node.report() for _ in rings] == [WorkerInstalled(instance_id=ID, ring_id=ring) for ring in rings]


def test_a_new_edges_process_waits_until_the_workload_has_read_what_the_old_one_passed(node):
    handle = node.start("wait_for_signal(); tell(str(take(channel()))); serve(channel())")
    assert node.hear() == "waiting"
    node.install(node.ref())
    node.passed(handle)
    node.end()
    node.begin()
    ring = node.install(node.ref())
    node.settle()
    os.kill(handle.pid, signal.SIGUSR1)
    assert node.hear() == "(None, [])", "nothing was sent over the old channel"
    assert node.report() == WorkerInstalled(instance_id=ID, ring_id=ring)


def test_a_silent_workload_blocks_nobody_and_is_killed_when_told(node):
    node.start("c = channel(); tell('here'); wait()")
    node.start("serve(channel())", name="other")
    rings = [node.install(node.ref()) for _ in range(9)]
    assert node.hear() == "here"
    node.installed("other")
    for ring in rings:
        node.uninstall(ring)
    unseen = [node.report() for _ in range(5)]
    assert unseen == [WorkerQuiesced(instance_id=ID, ring_id=ring) for ring in rings[4:]], "they never left"
    node.settle()
    node.tell(KillWorker(instance_id=ID, ring_id=rings[3], reason="it does not let go"))
    assert node.report() == WorkerGone(instance_id=ID, ring_ids=rings[:4])


CLINGING = {
    "stopped before it answers": "take(channel()); tell('now'); os.kill(os.getpid(), signal.SIGSTOP)",
    "stopped with its ring": "c = channel(); obey(c, *take(c)); tell('now'); os.kill(os.getpid(), signal.SIGSTOP)",
    "another program": """
        c = channel()
        order, fds = take(c)
        say(c, did="installed", ring=order["ring"])
        for fd in fds:
            os.set_inheritable(fd, True)
        tell("now")
        os.execv("/bin/sleep", ["sleep", "1000"])
    """,
    "a thread alone": """
        import ctypes, threading
        c = channel()
        obey(c, *take(c))
        threading.Thread(target=lambda: (tell("now"), time.sleep(1000))).start()
        ctypes.CDLL(None).syscall(60 if os.uname().machine == "x86_64" else 93, 0)
    """,
    "children that never stay": """
        c = channel()
        obey(c, *take(c))
        if os.fork() == 0:
            while True:
                os.setsid()
                if os.fork():
                    os._exit(0)
        tell("now")
        wait()
    """,
    "no signal heard": """
        c = channel()
        obey(c, *take(c))
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        tell("now")
        wait()
    """,
    "a descriptor flood": """
        c = channel()
        obey(c, *take(c))
        import contextlib
        with contextlib.suppress(OSError):
            while True:
                os.dup(0)
        os.close(4)
        tell("now")
        wait()
    """,
}


@pytest.mark.parametrize("how", CLINGING)
def test_whatever_clings_to_a_ring_is_ended_and_only_then_the_ring_is_free(node, how):
    node.start(CLINGING[how], grace_ms=100)
    ring = node.install(node.ref())
    assert node.hear() == "now"
    node.uninstall(ring)
    node.tell(KillWorker(instance_id=ID, ring_id=ring, reason="it does not let go"))
    reports = [node.report()]
    while not isinstance(reports[-1], WorkerGone):
        reports.append(node.report())
    assert reports.pop() == WorkerGone(instance_id=ID, ring_ids=[ring])
    assert not [one for one in reports if isinstance(one, WorkerQuiesced) or getattr(one, "holds", True) is False]
    assert not holders(node.memory.ring(ring).arena_fd)


def test_a_workload_has_room_for_as_many_rings_as_it_may_have(node):
    """Within the limits of every workload: 256 descriptors, its RAM as address space."""
    node.start("serve(channel())", ram_mb=64)
    rings = [node.install(node.ref()) for _ in range(run_channel.RINGS_AT_MOST)]
    assert [node.report() for _ in rings] == [WorkerInstalled(instance_id=ID, ring_id=ring) for ring in rings]
    surplus = node.install(node.ref())
    fault = node.report()
    assert (fault.ring_id, fault.code, fault.holds) == (surplus, EdgeFaultCode.WORKER_REFUSED, False)
    for ring in rings:
        node.uninstall(ring)
    assert [node.report() for _ in rings] == [WorkerQuiesced(instance_id=ID, ring_id=ring) for ring in rings]


def test_a_shim_that_does_not_answer_costs_its_own_rings_only(node):
    handle = node.start("serve(channel())")
    node.start("serve(channel())", name="other")
    os.kill(handle.shim_pid, signal.SIGSTOP)
    rings = [node.install(node.ref()) for _ in range(2)]
    other = node.install(node.ref("other"), "other")
    reports = {report.ring_id: report for report in (node.report() for _ in range(3))}
    assert reports.pop(other) == WorkerInstalled(instance_id="other", ring_id=other)
    assert sorted(reports) == rings
    for fault in reports.values():
        assert (fault.code, fault.holds) == (EdgeFaultCode.WORKER_REFUSED, False)
        assert "does not answer" in fault.text
    os.kill(handle.shim_pid, signal.SIGCONT)
    node.settle()


def test_a_silent_shim_is_killed_when_its_workload_must_end(node, monkeypatch):
    handle = node.start("serve(channel())")
    ring = node.installed()
    monkeypatch.setattr(introduction, "REPLY_TIMEOUT_S", 0.3)
    os.kill(handle.shim_pid, signal.SIGSTOP)
    node.tell(KillWorker(instance_id=ID, ring_id=ring, reason="it does not let go"))
    assert node.report() == WorkerGone(instance_id=ID, ring_ids=[ring])
    assert not alive(handle.pid)


def test_a_run_that_does_not_hold_the_ring_is_not_killed(node):
    """The order was about its predecessor, which is gone."""
    handle = node.start("serve(channel())")
    first = node.installed()
    os.kill(handle.pid, signal.SIGKILL)
    node.collect()
    while node.report() != WorkerGone(instance_id=ID, ring_ids=[first]):
        pass
    handle = node.start("tell('here'); serve(channel())")
    assert node.hear() == "here"
    for _ in range(2):
        node.tell(KillWorker(instance_id=ID, ring_id=first, reason="it does not let go"))
        assert node.report() == WorkerQuiesced(instance_id=ID, ring_id=first)
        node.installed()
    assert alive(handle.pid)


def test_killing_what_does_not_run_is_answered(node):
    node.tell(KillWorker(instance_id="nobody", ring_id=5, reason="test"))
    assert node.report() == WorkerQuiesced(instance_id="nobody", ring_id=5)


def test_a_new_edges_process_reaches_the_workloads_of_the_old(node):
    node.start(
        """
        while True:
            serve(channel())
            for memory, events, _ in maps.values():
                memory.close()
                for fd in events:
                    os.close(fd)
            maps.clear()
            tell("dropped")
        """
    )
    for _ in range(3):
        node.installed()
        node.end()
        assert node.hear() == "dropped"
        node.begin()


SDK = f"""
    sys.path.append({str(ROOT)!r})
    shim.detach()
    from runtime.workload import Ports
    ports = Ports.from_environment()
"""


def both_sides(ring):
    """What the driver has of an ingress ring (it produces) or an egress ring (it consumes)."""
    options = {"data_fd": ring.data_fd, "space_fd": ring.space_fd}
    return [
        side(ring.header, ring.data, ring.capacity, ring.generation, **options) for side in (RingProducer, RingConsumer)
    ]


def test_records_pass_through_a_workload_that_uses_the_python_ports(node):
    node.start(
        SDK
        + """
    out = ports.output("out")
    for record in ports.input("in"):
        out.send(bytes(record.payload)[::-1])
    """
    )
    first, last = node.ref(), node.ref()
    node.install(first)
    node.install(last, direction=RingDirection.EGRESS, port="out")
    assert {node.report().ring_id, node.report().ring_id} == {1, 2}
    producer, _ = both_sides(node.memory.ring(1))
    _, consumer = both_sides(node.memory.ring(2))
    for sequence, payload in enumerate((b"ab", b"cdef")):
        record = pack_header(sequence, sequence, len(payload), 0) + payload
        producer.commit(producer.write(0, record))
    node.tell(EndStream(instance_id=ID, ring_id=1))
    reports = [node.report() for _ in range(3)]
    assert WorkerClosed(instance_id=ID, ring_id=1) in reports
    assert WorkerClosed(instance_id=ID, ring_id=2) in reports
    assert reports[-1] == WorkerGone(instance_id=ID, ring_ids=[1, 2])
    assert consumer.readable() == 2 * 40 + 6
    stream = b"".join(map(bytes, consumer.spans(0, 86)))
    assert (stream[40:42], stream[82:]) == (b"ba", b"fedc")
    producer.release()
    consumer.release()


def test_a_workload_that_closes_its_python_ports_works_on_and_what_it_sent_stays(node):
    handle = node.start(
        SDK
        + """
    with ports:
        ports.output("out").send(b"last")
        record = ports.input("in").receive()
    tell("works on")
    time.sleep(1000)
    """
    )
    left, out = node.installed(), node.install(node.ref(), direction=RingDirection.EGRESS, port="out")
    assert node.report() == WorkerInstalled(instance_id=ID, ring_id=out)
    producer, _ = both_sides(node.memory.ring(left))
    _, consumer = both_sides(node.memory.ring(out))
    producer.commit(producer.write(0, pack_header(1, 0, 2, 0) + b"in"))
    assert node.hear() == "works on"
    assert node.report() == WorkerClosed(instance_id=ID, ring_id=out)
    fault = node.report()
    assert (fault.ring_id, fault.holds) == (left, False)
    assert consumer.readable() == 44
    for ring in (left, out):
        node.uninstall(ring)
        assert node.report() == WorkerQuiesced(instance_id=ID, ring_id=ring)
    ring = node.install(node.ref())
    refused = node.report()
    assert (refused.ring_id, refused.holds) == (ring, False), "it takes no channel any more"
    assert alive(handle.pid)
    producer.release()
    consumer.release()


def test_a_view_that_a_workload_keeps_keeps_the_ring(node):
    handle = node.start(
        SDK
        + """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    record = ports.input("in").receive()
    view = record.payload
    tell("kept")
    signal.sigwait({signal.SIGUSR1})
    del record, view
    time.sleep(1000)
    """
    )
    ring = node.installed()
    producer, _ = both_sides(node.memory.ring(ring))
    producer.commit(producer.write(0, pack_header(0, 0, 2, 0) + b"ab"))
    assert node.hear() == "kept"
    node.uninstall(ring)
    node.settle()
    os.kill(handle.pid, signal.SIGUSR1)
    assert node.report() == WorkerQuiesced(instance_id=ID, ring_id=ring)
    producer.release()


def test_a_port_that_starts_where_rings_are_out_already_does_not_start(node):
    """It could not tell who holds them."""
    node.ref()
    ends = queue.Queue()
    node.world.on_end = lambda address, kind, reason: ends.put((address, kind, reason))
    again = Address("shed.edges/again")
    node.world.spawn(again, lambda: Workers(node.memory, node.instances, node.exits))
    address, kind, reason = ends.get(timeout=WAIT_S)
    assert (address, kind) == (again, ExitKind.CRASHED)
    assert "start the edges process anew" in reason
    node.logged.clear()


def test_rounds_of_install_and_uninstall_leave_no_descriptor_behind(node):
    handle = node.start("serve(channel())")
    ref = node.ref()

    def once():
        node.install(ref)
        assert node.report() == WorkerInstalled(instance_id=ID, ring_id=ref.ring_id)
        node.uninstall(ref.ring_id)
        assert node.report() == WorkerQuiesced(instance_id=ID, ring_id=ref.ring_id)

    once()
    before = descriptors(), descriptors(handle.pid), descriptors(handle.shim_pid)
    for _ in range(200):
        once()
    assert (descriptors(), descriptors(handle.pid), descriptors(handle.shim_pid)) == before


def test_runs_leave_no_descriptor_behind(node):
    def once():
        node.start("c = channel(); obey(c, *take(c)); wait()")
        ring = node.installed()
        node.handles[-1].pass_descriptors("end", [])
        assert node.report() == WorkerGone(instance_id=ID, ring_ids=[ring])
        node.collect()
        node.memory.erase_ring(ring)

    once()
    before = descriptors()
    for _ in range(5):
        once()
    assert descriptors() == before
