"""Clusters of real processes: started as `sennit up` starts them, killed as machines kill them."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from actors.actor import AskFailed
from messages.base import Address, Request
from messages.control import CtlConfig, Interval, Method
from messages.placement import InstanceLine, InstanceOrder, ListInstances, ListNodes, PlaceOrder
from messages.supervision import ChildState, ChildView, ShowChildren, SupervisorView
from messages.system import GetState
from runtime.client import Client
from runtime.cluster import Cluster, init_cluster
from runtime.cluster.settings import Restarts, Times
from runtime.leftovers import Found, kill_all, processes_of, sockets_in
from runtime.packages.directory import pack, sign
from runtime.processes import proc

REPOSITORY = Path(__file__).parents[3]
SUPERVISOR = Address("root/supervisor")
PROCESSES = Address("root/processes")
PLANE = Address("controller/plane")
LIMIT_S = 20.0
"""For what takes a second on an idle machine: the suite may share one."""

_POLL_S = 0.01
_never = Event()


def until(condition: Callable[[], Any], limit_s: float = LIMIT_S, what: str = "") -> Any:
    """The first true value of `condition`. Where there is no event to wait for; asks that fail count as not yet."""
    deadline = time.monotonic() + limit_s
    last: object = None
    while time.monotonic() < deadline:
        try:
            last = condition()
        except (AskFailed, NotYet) as failed:
            last = failed
        else:
            if last:
                return last
        _never.wait(_POLL_S)  # leave the processor to those who are waited for
    raise AssertionError(f"not within {limit_s:g} s{': ' + what if what else ''}; last seen: {last!r}")


class NotYet(Exception):
    """What a condition of `until` saw instead of what it waits for."""


class Life:
    """One process, by its pidfd: another one of the same number is not mistaken for it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._fd = os.pidfd_open(pid)
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)

    def kill(self, number: int = signal.SIGKILL) -> None:
        signal.pidfd_send_signal(self._fd, number)

    def wait_end(self, limit_s: float = LIMIT_S) -> bool:
        return bool(self._poll.poll(limit_s * 1000))

    def lives(self) -> bool:
        return not self._poll.poll(0)

    def close(self) -> None:
        os.close(self._fd)


class Live:
    """A cluster directory and, while it is up, its root process and a client."""

    def __init__(self, folder: Path, package: Path, nodes: Sequence[str], **settings: Any) -> None:
        self.folder = folder
        self.cluster: Cluster = init_cluster(folder / "c", nodes, **settings)
        self.package = folder / "hostwatch"
        pack(package, self.package)
        sign(self.package, self.cluster.signer_key())
        self.root: subprocess.Popen[bytes] | None = None
        self._client: Client | None = None
        self._lives: list[Life] = []
        self._labels = 0

    # the root

    def launch(self, **environment: str) -> subprocess.Popen[bytes]:
        """Start a root, with more in its environment, and leave it alone."""
        with (self.folder / "up.err").open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "runtime.up", str(self.cluster.path)],
                cwd=REPOSITORY,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def up(self, **environment: str) -> Live:
        """Until every process runs and every node is alive."""
        self.root = self.launch(**environment)
        self.wait_running()
        self.wait_alive()
        return self

    def words(self) -> str:
        return (self.folder / "up.err").read_text(errors="replace")

    def wait_running(self) -> SupervisorView:
        def seen() -> SupervisorView | None:
            assert self.root is not None
            assert self.root.poll() is None, self.words()
            view = self.tree()
            return view if all(child.state is ChildState.RUNNING for child in view.children) else None

        return until(seen, what="every process runs")

    def wait_alive(self) -> None:
        until(lambda: all(node.liveness == "alive" for node in self.ask(PLANE, ListNodes()).nodes), what="nodes")

    def end(self, number: int = signal.SIGTERM) -> int:
        """Signal the root; its exit code."""
        assert self.root is not None
        self.hang_up()
        self.root.send_signal(number)
        return self.wait_root()

    def wait_root(self) -> int:
        assert self.root is not None
        root, self.root = self.root, None
        return root.wait(LIMIT_S)

    def close(self) -> None:
        self.hang_up()
        if self.root is not None:
            self.root.kill()
            self.root.wait(LIMIT_S)
        for life in self._lives:
            life.close()
        kill_all(self.folder)
        until(lambda: not processes_of(self.folder), what="nothing is left to kill")

    # asking

    @property
    def client(self) -> Client:
        if self._client is None:
            self._client = Client.connect(self.cluster)
        return self._client

    def hang_up(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def ask(self, to: Address, request: Request[Any], timeout_s: float = 5.0) -> Any:
        return self.client.ask(to, request, timeout_s)

    def tree(self) -> SupervisorView:
        return self.ask(SUPERVISOR, ShowChildren(), 2.0)

    def child(self, name: str) -> ChildView:
        return next(child for child in self.tree().children if child.name == name)

    def wait_child(self, name: str, condition: Callable[[ChildView], bool], limit_s: float = LIMIT_S) -> ChildView:
        def seen() -> ChildView | None:
            child = self.child(name)
            return child if condition(child) else None

        return until(seen, limit_s, f"{name} is as expected")

    until = staticmethod(until)

    # processes

    def pids(self) -> dict[str, int]:
        """What the root started and has not reaped."""
        state = self.ask(PROCESSES, GetState(), 2.0).state
        return {name: row["pid"] for name, row in state.items()}

    def life(self, name_or_pid: str | int) -> Life:
        life = Life(self.pids()[name_or_pid] if isinstance(name_or_pid, str) else name_or_pid)
        self._lives.append(life)
        return life

    def left(self) -> list[Found]:
        return processes_of(self.folder)

    def sockets(self) -> list[Path]:
        return sockets_in(self.folder)

    def shim_of(self, workload_pid: int) -> Life:
        found = proc.stat(workload_pid)
        assert found is not None
        return self.life(found.ppid)

    # workloads

    def place(self, pin: str = "shed") -> InstanceLine:
        """A new instance, of a configuration of its own, until it runs."""
        self._labels += 1
        config = CtlConfig(mode=Interval(secs=1), args=["--label", f"l{self._labels}"])
        order = PlaceOrder(package_dir=str(self.package), config=config, pin=pin)
        # A process that runs again may have links to make still; until then every act is refused, and nothing happens
        placed = until(lambda: self.ask(PLANE, order, 30.0).placed, what="placed")
        return self.wait_instance(placed.instance_id)

    def wait_instance(self, instance: str, condition: Callable[[InstanceLine], bool] = lambda _: True) -> InstanceLine:
        """Until it runs on a node that answers, and the condition holds."""

        def seen() -> InstanceLine:
            lines = self.ask(PLANE, ListInstances())
            for line in lines.instances:
                if line.instance_id == instance and line.reachable and line.state == "running" and condition(line):
                    return line
            raise NotYet(lines)

        return until(seen, what=f"{instance} runs")

    def order(self, method: Method, instance: str, timeout_s: float = 10.0) -> Any:
        return self.ask(PLANE, InstanceOrder(method=method.value, instance=instance), timeout_s).result

    def unload(self, instance: str) -> None:
        for method in (Method.STOP, Method.UNLOAD):
            until(lambda method=method: self.order(method, instance), what=f"{method} {instance}")

    def check_serves(self) -> None:
        """Place, look, read output, stop and unload: the whole way through every process."""
        self.wait_running()
        self.wait_alive()
        line = self.place()
        rows = self.order(Method.STATUS, line.instance_id)
        assert rows["status"]["pid"] == line.pid
        until(lambda: '"sample": 1' in self.order(Method.LOGS, line.instance_id)["stdout"], what="output")
        self.unload(line.instance_id)


MakeCluster = Callable[..., Live]


def _making(package: Path) -> Iterator[MakeCluster]:
    with ExitStack() as stack:

        def make(nodes: Sequence[str] = ("shed",), **settings: Any) -> Live:
            # a short path: that of a socket has at most 107 bytes
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="sennit-live-"))
            live = Live(Path(folder).resolve(), package, nodes, **settings)
            stack.callback(live.close)
            return live

        yield make


@pytest.fixture(scope="session")
def hostwatch_dir() -> Path:
    return REPOSITORY / "scenarios" / "packages" / "hostwatch"


@pytest.fixture
def make_cluster(hostwatch_dir: Path) -> Iterator[MakeCluster]:
    yield from _making(hostwatch_dir)


@pytest.fixture(scope="module")
def make_module_cluster(hostwatch_dir: Path) -> Iterator[MakeCluster]:
    yield from _making(hostwatch_dir)


@pytest.fixture(scope="package")
def shared(hostwatch_dir: Path) -> Iterator[Live]:
    """One cluster for the tests that leave it as they found it; its budget outlasts all of them."""
    making = _making(hostwatch_dir)
    make = next(making)
    live = make(("attic", "shed", "loft"), restarts=Restarts(intensity=1000), times=Times(stop_grace_s=2.0))
    yield live.up(PYTHONDONTWRITEBYTECODE="1")
    making.close()
