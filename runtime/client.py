"""The command line's end of a running cluster: dials what it asks, asks, and hangs up (design 5, 11)."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from types import TracebackType
from typing import TypeVar

from messages.base import Address, Request
from runtime.cluster.cluster import Cluster, ProcessEntry
from runtime.cluster.keys import transport_key
from runtime.cluster.names import Role
from runtime.kernel.caller import Caller
from runtime.kernel.envelope import Envelope, process_of
from runtime.office.office import PostOffice
from runtime.office.sockets import Keys

A = TypeVar("A")

OPERATOR = Role.OPERATOR.value
LINK_TIMEOUT_S = 3.0


def keys_of(cluster: Cluster, name: str, peers: Iterable[ProcessEntry] | None = None) -> Keys:
    """The transport keys of one process: its own pair, and those of `peers`, by default everybody of the directory."""
    seed = cluster.key(name)
    met = cluster.processes.values() if peers is None else peers
    return Keys(
        public=transport_key(seed.public_key),
        secret=seed.transport_secret(),
        peers={str(entry.name): transport_key(entry.public_key) for entry in met},
    )


class Client:
    """Speaks as the operator. Asks raise `AskFailed`; `unreachable` means that the process does not answer at all."""

    def __init__(self, cluster: Cluster, processes: Iterable[str] | None = None) -> None:
        listening = {str(entry.name): entry.control for entry in cluster.dials(OPERATOR) if entry.control is not None}
        wanted = {name: listening[name] for name in (listening if processes is None else processes)}
        self.refused: str | None = None
        self._caller = Caller(Address(f"{OPERATOR}/cli-{os.getpid()}"), self._post)
        self._office = PostOffice(
            name=OPERATOR,
            plane="control",
            incarnation=secrets.randbits(63),
            keys=keys_of(cluster, OPERATOR),
            listen=None,
            dial=wanted,
            receive=self._caller.receive,
            failed=self._caller.failed,
            peer_up=self._caller.notify,
            peer_down=self._caller.notify,
            log=self._log,
        )
        self._office.start()

    @classmethod
    def connect(cls, cluster: Cluster, processes: Iterable[str] | None = None) -> Client:
        """Dial every process that may run, or only those named. Links come up as they answer."""
        return cls(cluster, processes)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._office.close()

    def wait_link(self, process: str, timeout_s: float = LINK_TIMEOUT_S) -> bool:
        """Whether `process` answers within `timeout_s`."""
        return self._caller.wait(lambda: self._office.reaches(process), timeout_s)

    def ask(self, to: Address, request: Request[A], timeout_s: float = 10.0) -> A:
        """Ask and wait. Before that the link may take up to `LINK_TIMEOUT_S` to come up. Raises `AskFailed`."""
        self.wait_link(process_of(to), min(timeout_s, LINK_TIMEOUT_S))
        return self._caller.ask(to, request, timeout_s)

    def _post(self, envelope: Envelope) -> None:
        self._office.post(envelope)

    def _log(self, _: str, text: str) -> None:
        self.refused = text
        self._caller.notify()
