"""A cluster as every process and the command line read it: who is in it, where each listens, where files are.

DIR/cluster.toml     settings (`settings.py`)
DIR/directory.json   who is who, signed by the operator (`directory.py`)
DIR/policy.toml      policy of the gates        DIR/trust.json   keys whose packages are accepted
DIR/keys/            one seed per process, mode 0600 (`keys.py`)
DIR/state/PROCESS/   what a process must find again      DIR/logs/PROCESS.jsonl
DIR/run/             sockets, mode 0700, nothing to keep
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from messages.base import NodeName
from messages.engine import TrustTier
from messages.identity import node_id
from runtime.cluster import directory as directory_file
from runtime.cluster import settings as settings_file
from runtime.cluster.directory import Directory, DirectoryEntry, open_directory
from runtime.cluster.fault import ClusterFault, ClusterFaultCode
from runtime.cluster.keys import SecretSeed, parse_key, read_key
from runtime.cluster.names import SIGNER, Role, edges_of, node_of
from runtime.cluster.settings import (
    IPC,
    ClusterSettings,
    EndpointSettings,
    NodeSettings,
    Restarts,
    Times,
    parse_settings,
)
from runtime.cluster.toml import read_text

MAX_IPC_PATH_BYTES = 107
"""What `sockaddr_un` holds, without its final zero byte."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessEntry:
    """One process of the directory. Endpoints are addresses for ZeroMQ; None: it does not listen on that plane."""

    name: NodeName
    role: Role
    public_key: bytes
    control: str | None
    packages: str | None
    edges: str | None
    tier: TrustTier | None

    @property
    def node_id(self) -> str:
        return node_id(self.public_key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A cluster directory, read and verified. `cluster_id` is also the id of its chain."""

    path: Path
    name: str
    cluster_id: str
    version: int
    operator_key: bytes
    processes: Mapping[str, ProcessEntry]
    nodes: Mapping[str, NodeSettings]
    times: Times
    restarts: Restarts
    run_dir: Path

    @property
    def policy_file(self) -> Path:
        return self.path / "policy.toml"

    @property
    def trust_file(self) -> Path:
        return self.path / "trust.json"

    @property
    def keys_dir(self) -> Path:
        return self.path / "keys"

    def process(self, name: str) -> ProcessEntry:
        """Raises `ClusterFault` (`not_found`) naming the processes there are."""
        if name not in self.processes:
            known = ", ".join(self.processes)
            raise ClusterFault(ClusterFaultCode.NOT_FOUND, f"cluster {self.name} has no {name!r}; it has {known}")
        return self.processes[name]

    def dials(self, name: str) -> tuple[ProcessEntry, ...]:
        """Whom a process dials (design 5): answers and orders come back on the same connection."""
        match self.process(name).role:
            case Role.ROOT:
                wanted: tuple[str, ...] = ()
            case Role.CHAIN:
                wanted = (Role.ROOT,)
            case Role.GATE:
                wanted = (Role.ROOT, Role.CHAIN)
            case Role.CONTROLLER:
                wanted = (Role.ROOT, Role.CHAIN, Role.GATE)
            case Role.NODE:
                wanted = (Role.ROOT, Role.CHAIN, Role.CONTROLLER)
            case Role.EDGES:
                wanted = (node_of(name), Role.CONTROLLER)
            case Role.OPERATOR:
                wanted = tuple(entry.name for entry in self.processes.values() if entry.control is not None)
        return tuple(self.processes[peer] for peer in wanted)

    def dialled_by(self, name: str) -> tuple[ProcessEntry, ...]:
        """Who may connect to the process: the keys its listener admits."""
        return tuple(
            entry for entry in self.processes.values() if any(peer.name == name for peer in self.dials(entry.name))
        )

    @property
    def supervised(self) -> tuple[ProcessEntry, ...]:
        """The processes that the root starts, in start order. A node starts its edges process itself."""
        others = (Role.ROOT, Role.OPERATOR, Role.EDGES)
        return tuple(entry for entry in self.processes.values() if entry.role not in others)

    @property
    def node_entries(self) -> tuple[ProcessEntry, ...]:
        return tuple(entry for entry in self.processes.values() if entry.role is Role.NODE)

    def by_node_id(self, wanted: str) -> ProcessEntry | None:
        """The node with this id, if the directory lists it."""
        return next((entry for entry in self.node_entries if entry.node_id == wanted), None)

    def key_file(self, name: str) -> Path:
        return self.keys_dir / f"{name}.key"

    def key(self, name: str) -> SecretSeed:
        """The key of a process of the directory. Raises `ClusterFault` if the file holds another key."""
        entry = self.process(name)
        seed = read_key(self.key_file(name))
        if seed.public_key != entry.public_key:
            raise ClusterFault(
                ClusterFaultCode.OUT_OF_DATE,
                f"{self.key_file(name)} is not the key that directory.json lists for {name!r}: put the right key back, "
                "or run sennit init DIR --update where the operator's key is",
            )
        return seed

    def signer_key(self) -> SecretSeed:
        """The key that signs packages."""
        return read_key(self.key_file(SIGNER))

    def state_dir(self, name: str) -> Path:
        return self.path / "state" / self.process(name).name

    def log_file(self, name: str) -> Path:
        return self.path / "logs" / f"{self.process(name).name}.jsonl"

    def socket_files(self) -> tuple[Path, ...]:
        """Every socket file that processes of this cluster make on this host."""
        endpoints = (end for one in self.processes.values() for end in (one.control, one.packages, one.edges))
        return tuple(Path(end.removeprefix("ipc://")) for end in endpoints if end is not None and end.startswith("ipc"))

    def prepare(self) -> None:
        """Make the folders that a running cluster needs; refuse a run directory that others can enter."""
        for folder in (self.run_dir, self.path / "state", self.path / "logs"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = self.run_dir.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise ClusterFault(
                ClusterFaultCode.UNSAFE,
                f"run directory {self.run_dir} must be a folder of your own with mode 0700, or others could take its "
                f"sockets: chmod 700 {self.run_dir}, or choose another with run_dir in cluster.toml",
            )


def load_cluster(path: Path | str) -> Cluster:
    """Read and verify a cluster directory. Raises `ClusterFault`; nothing is written."""
    folder = Path(os.path.abspath(path))
    file = folder / settings_file.FILE_NAME
    if not file.is_file():
        raise ClusterFault(
            ClusterFaultCode.NOT_FOUND,
            f"there is no cluster in {folder} (no {settings_file.FILE_NAME}): make one with sennit init {folder}, or "
            "name another with --cluster DIR or SENNIT_CLUSTER",
        )
    settings = parse_settings(read_text(file), str(file))
    signed = folder / directory_file.FILE_NAME
    directory = open_directory(read_text(signed).encode(), _operator_key(settings, file), str(signed))
    stale = differences(settings, directory)
    if stale:
        raise ClusterFault(
            ClusterFaultCode.OUT_OF_DATE,
            f"{signed} does not agree with {file}: {'; '.join(stale)}. Sign it anew with sennit init {folder} --update",
        )
    return _assemble(folder, settings, directory)


class Wanted(NamedTuple):
    """A process that the settings ask for. `endpoints` None: it does not listen.

    Where the edges process of a node takes bytes is written at the node, whose name needs no quotes.
    """

    name: str
    role: Role
    endpoints: EndpointSettings | None
    tier: TrustTier | None


def wanted_processes(settings: ClusterSettings) -> list[Wanted]:
    """The cluster's own processes, its nodes, and the operator, in start order."""
    own = ((role.value, role, None) for role in (Role.ROOT, Role.CHAIN, Role.GATE, Role.CONTROLLER))
    nodes = [(node.name, Role.NODE, node.tier) for node in settings.node]

    def endpoints(name: str) -> EndpointSettings:
        return settings.endpoints.get(name, EndpointSettings())

    return [
        *(Wanted(name, role, endpoints(name), tier) for name, role, tier in (*own, *nodes)),
        *(
            Wanted(edges_of(name), Role.EDGES, EndpointSettings(edges=endpoints(name).edges), None)
            for name, _, _ in nodes
        ),
        Wanted(Role.OPERATOR.value, Role.OPERATOR, None, None),
    ]


def entry_for(wanted: Wanted, public_key: str) -> DirectoryEntry:
    """Its entry in the directory. Only the controller serves packages, only edges processes take bytes of edges."""
    endpoints = wanted.endpoints
    return DirectoryEntry(
        name=wanted.name,
        role=wanted.role,
        public_key=public_key,
        control=endpoints.control if endpoints else None,
        packages=endpoints.packages if endpoints and wanted.role is Role.CONTROLLER else None,
        edges=endpoints.edges if endpoints and wanted.role is Role.EDGES else None,
        tier=wanted.tier,
    )


def differences(settings: ClusterSettings, directory: Directory) -> list[str]:
    """What the settings ask for and the directory does not say, as sentences; empty when they agree."""
    listed = {entry.name: entry for entry in directory.processes}
    found: list[str] = []
    if settings.name != directory.name:
        found.append(f"it is for a cluster called {directory.name!r}")
    for wanted in wanted_processes(settings):
        entry = listed.pop(wanted.name, None)
        if entry is None:
            found.append(f"it does not list {wanted.name!r}")
        elif entry.edges is None and wanted.role is Role.EDGES:
            found.append(f"it does not say where {wanted.name!r} listens for edges: an older sennit signed it")
        elif entry != entry_for(wanted, entry.public_key):
            found.append(f"it gives {wanted.name!r} another role, tier or endpoint")
    found.extend(f"it lists {name!r}" for name in listed)
    return found


def _operator_key(settings: ClusterSettings, file: Path) -> bytes:
    return parse_key(settings.operator_key, f"{file}: operator_key")


def _assemble(folder: Path, settings: ClusterSettings, directory: Directory) -> Cluster:
    run_dir = Path(os.path.abspath(folder / (settings.run_dir or "run")))
    processes = {
        entry.name: ProcessEntry(
            name=NodeName(entry.name),
            role=entry.role,
            public_key=bytes.fromhex(entry.public_key),
            control=_endpoint(entry.control, run_dir / f"{entry.name}.sock"),
            packages=_endpoint(entry.packages, run_dir / f"{entry.name}.packages.sock"),
            edges=_endpoint(entry.edges, run_dir / f"{entry.name}.data.sock"),
            tier=entry.tier,
        )
        for entry in directory.processes
    }
    return Cluster(
        path=folder,
        name=settings.name,
        cluster_id=directory.cluster_id,
        version=directory.version,
        operator_key=bytes.fromhex(settings.operator_key),
        processes=MappingProxyType(processes),
        nodes=MappingProxyType({node.name: node for node in settings.node}),
        times=settings.times,
        restarts=settings.restarts,
        run_dir=run_dir,
    )


def _endpoint(configured: str | None, socket_file: Path) -> str | None:
    if configured != IPC:
        return configured
    size = len(os.fsencode(socket_file))
    if size > MAX_IPC_PATH_BYTES:
        raise ClusterFault(
            ClusterFaultCode.PATH_TOO_LONG,
            f"socket path {socket_file} has {size} bytes, the kernel takes {MAX_IPC_PATH_BYTES}: set run_dir in "
            "cluster.toml to a short folder of your own (for example /run/user/UID/sennit), or move the cluster "
            "directory to a shorter path",
        )
    return f"ipc://{socket_file}"
