"""One process of a cluster: its world, its post offices, its supervisor (design 6).

    python -m runtime.process NAME --cluster DIR --life N

It is ready when every actor has started; it leaves when told to (SIGTERM, in order), when its parent is gone, or when
its supervisor fails, and then says why on standard error. On SIGHUP it cuts off whom a directory that was signed anew
does not list any more.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, NoReturn

from actors.actor import Actor
from actors.supervision.supervisor import Supervisor
from messages.base import Address, Message, NodeName
from messages.supervision import Shutdown
from messages.system import ExitKind
from runtime.client import keys_of
from runtime.cluster.cluster import Cluster, load_cluster
from runtime.cluster.fault import ClusterFault
from runtime.cluster.lock import lock_state
from runtime.cluster.names import Role, node_of
from runtime.kernel.envelope import Envelope, Kind, tag_of
from runtime.kernel.live import LiveWorld
from runtime.log import open_log
from runtime.office.listen import ListenFault
from runtime.office.office import PostOffice
from runtime.processes.alive_pipe import watch_parent
from runtime.revoke import newer, pass_on, revoked

USAGE_EXIT = 64
FAILED_EXIT = 70
CONFIG_EXIT = 78
ROOT, OPERATOR = Role.ROOT.value, Role.OPERATOR.value


class Pulse:
    """Wakes the main thread: from signal handlers, and from other threads."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def beat(self, what: bytes) -> None:
        os.write(self._write, what)

    def on_signals(self) -> None:
        """Be woken by every signal that has a handler, whichever thread the kernel gives it to and even just before
        the wait begins; the handler runs then. Its number comes before what the handler sends.
        """
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)

    def wait(self, timeout_s: float | None = None) -> bytes:
        """One byte of those sent, or none when the time is over."""
        ready, _, _ = select.select([self._read], [], [], timeout_s)
        return os.read(self._read, 1) if ready else b""


TERM, ENDED, REREAD = b"T", b"E", b"R"


class Process:
    """The running parts of one process. `run` blocks until its supervisor has ended."""

    def __init__(self, cluster: Cluster, name: str, pulse: Pulse) -> None:
        self.cluster = cluster
        self.name = name
        self.pulse = pulse
        self.log = open_log(name, cluster.log_file(name))
        self.world = LiveWorld(name, self.log)
        self.world.on_end = self._actor_ended
        self.supervisor = Address(f"{name}/supervisor")
        self.outcome: tuple[ExitKind, str] | None = None
        self._offices: list[PostOffice] = []
        self._listed = cluster

    def open_offices(self) -> None:
        """Listen and dial on every plane that this process has. Raises `ListenFault`."""
        cluster, me = self.cluster, self.cluster.process(self.name)
        keys = keys_of(cluster, self.name)
        dials = cluster.dials(self.name)
        fetches = dials if me.role is Role.NODE else ()
        endpoints: list[tuple[str, str | None, dict[str, str]]] = [
            ("control", me.control, {e.name: e.control for e in dials if e.control is not None}),
            ("packages", me.packages, {e.name: e.packages for e in fetches if e.packages is not None}),
        ]
        for plane, listen, dial in endpoints:
            if listen is None and not dial:
                continue
            first = plane == "control"  # watchers are told of the link that carries orders
            office = PostOffice(
                name=self.name,
                plane=plane,
                incarnation=self.world.incarnation,
                keys=keys,
                listen=listen,
                dial=dial,
                receive=self.world.deliver,
                failed=self.world.undelivered,
                peer_up=self.world.peer_up if first else _ignore,
                peer_down=self.world.peer_down if first else _ignore,
                log=lambda level, text, plane=plane: self.log(level, f"{self.name}/office-{plane}", text, {}),
                beat_s=cluster.times.beat_s,
                crowd=frozenset({OPERATOR}),
            )
            office.start()
            self._offices.append(office)
            self.world.attach(office)

    def run(self, supervise: Callable[[], Actor[Any]], *, on_wait: Callable[[], float | None] = lambda: None) -> int:
        """Start the supervisor, wait for its end, hang up. `on_wait` runs between waits and bounds the next one."""
        self.log("info", self.supervisor, "process starts", {"pid": os.getpid()})
        self.world.spawn(self.supervisor, supervise)
        while self.outcome is None:
            match self.pulse.wait(on_wait()):
                case b"T":
                    self.shut_down("asked to by a signal")
                case b"R":
                    self.reread_directory()
                case _:
                    pass
        kind, reason = self.outcome
        self.log("info", self.supervisor, "process ends", {"kind": kind.value, "reason": reason})
        self.world.close()
        if kind is ExitKind.CRASHED:
            print(f"{self.name}: {reason}", file=sys.stderr, flush=True)
            return FAILED_EXIT
        return 0

    def shut_down(self, reason: str) -> None:
        self._tell(self.supervisor, Shutdown(reason=reason))

    def reread_directory(self) -> None:
        """Revoke who is gone from it or has another key; of newcomers a process learns when it starts."""
        try:
            after = newer(self._listed)
        except ClusterFault as fault:
            self.log("error", self.supervisor, "the directory was read again and nobody revoked", {"why": str(fault)})
        else:
            if after is not None:
                names = revoked(self._listed, after)
                self.log("info", self.supervisor, "a newer directory", {"version": after.version, "revoked": names})
                self._listed = after
                for office, name in product(self._offices, names):
                    office.revoke(name)
                if self.cluster.process(self.name).role is Role.EDGES:
                    self._revoke_on_edges(names)
        if self.cluster.process(self.name).role in (Role.ROOT, Role.NODE):
            from runtime.roles import PROCESSES

            pass_on(self.world.main.ask, Address(f"{self.name}/{PROCESSES}"))

    def _tell(self, to: Address, message: Message) -> None:
        here = Address(f"{self.name}/main")
        self.world.deliver(Envelope(Kind.TELL, to, here, message, tag=tag_of(type(message))))

    def _revoke_on_edges(self, names: list[str]) -> None:
        from messages.edge_ports import RevokePeer

        for name in names:
            self._tell(Address(f"{self.name}/driver"), RevokePeer(peer=NodeName(name)))

    def _actor_ended(self, address: Address, kind: ExitKind, reason: str) -> None:
        if address == self.supervisor:
            self.outcome = (kind, reason)
            self.pulse.beat(ENDED)


def _ignore(*_: object) -> None:
    pass


def handle_signals(pulse: Pulse, *ending: int) -> None:
    """Each signal in `ending` asks for an ordered stop, once; the terminal's Ctrl-C is the root's business.

    SIGHUP, where it does not end, has the directory read again.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, lambda *_: pulse.beat(REREAD))
    signal.signal(signal.SIGURG, _ignore)  # with a handler it interrupts a call, see runtime.edges.driver.overdue
    pulse.on_signals()
    for number in ending:
        signal.signal(number, lambda *_: pulse.beat(TERM))


def main(arguments: Sequence[str] | None = None) -> int:
    match sys.argv[1:] if arguments is None else arguments:
        case [name, "--cluster", folder, "--life", count] if count.isdigit():
            life = int(count)
        case _:  # argparse would cost every start its 10 ms, and supervisors are the only callers
            print("usage: python -m runtime.process NAME --cluster DIR --life N", file=sys.stderr)
            return USAGE_EXIT
    pulse = Pulse()
    watch_parent(os.environ, lambda: pulse.beat(TERM))
    handle_signals(pulse, signal.SIGTERM)
    try:
        cluster = load_cluster(folder)
        cluster.process(name)
        if cluster.process(name).role is Role.EDGES:
            raise_descriptor_limit()
        with lock_state(cluster, name):
            process = Process(cluster, name, pulse)
            process.open_offices()
            return process.run(lambda: process_supervisor(cluster, name, life))
    except (ClusterFault, ListenFault) as fault:
        print(f"{name}: {fault}", file=sys.stderr, flush=True)
        return CONFIG_EXIT


def raise_descriptor_limit() -> None:
    """As far as this user may: every ring takes three descriptors."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def process_supervisor(cluster: Cluster, name: str, life: int = 0) -> Supervisor:
    """The supervisor of one process's actors, as `main` starts it."""
    from actors.supervision.policy import Intensity
    from runtime.roles import PROCESSES, children_of

    entry = cluster.process(name)
    parent = node_of(name) if entry.role is Role.EDGES else ROOT
    return Supervisor(
        name,
        children_of(cluster, entry),
        incarnation=life,
        root=Address(f"{parent}/supervisor"),
        processes=Address(f"{name}/{PROCESSES}"),
        beat_s=cluster.times.beat_s,
        # Nobody knows what the disk holds after a write that failed, nor who uses which ring after one of those that
        # share their memory is gone: chain and edges start anew as a whole (design 7, 9)
        intensity=Intensity(restarts=0) if entry.role in (Role.CHAIN, Role.EDGES) else None,
    )


def leave(with_code_of: Callable[[], int]) -> NoReturn:
    """Run it and end the process with its code, or with its traceback. An actor that hangs does not keep the process:
    Python's own way out waits for locks that such a thread may hold.
    """
    code = FAILED_EXIT
    try:
        code = with_code_of()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    leave(main)
