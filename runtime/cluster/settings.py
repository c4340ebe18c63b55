"""`cluster.toml`: what an operator may set, with its defaults (design 8, 11).

Unknown keys are refused. Durations are seconds (`_s`). Secrets and keys are not here, but in `keys/`; what the
processes trust is `directory.json`, which the operator's key signs over the nodes and endpoints of this file.

Nodes stand behind what may be left out. They must be there and be those of the directory, so a file that was cut short
is never taken for one that leaves times and restarts at their defaults.
"""

from __future__ import annotations

import re
from typing import Annotated

import msgspec

from actors.toml import load_toml
from messages.engine import TrustTier
from runtime.cluster.fault import ClusterFault
from runtime.cluster.names import Role, check_name, check_node_name, edges_of, node_of
from runtime.cluster.toml import KeyPath, fault_at, parse_toml

FORMAT = 1
FILE_NAME = "cluster.toml"
IPC = "ipc"
DEFAULTED = ("run_dir", "times", "restarts")
"""What may be left out and is not in the directory either."""

ARENA_MB = 256

Seconds = Annotated[float, msgspec.Meta(gt=0, le=86_400)]
FirstBackoff = Annotated[float, msgspec.Meta(gt=0, le=0.1)]
Count = Annotated[int, msgspec.Meta(ge=1, le=1_000)]
ArenaMb = Annotated[int, msgspec.Meta(ge=1, le=65_536)]

_TCP = re.compile(r"tcp://([A-Za-z0-9.-]+|\[[0-9A-Fa-f:]+\]):([0-9]{1,5})", re.ASCII)


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One table of the file."""


class NodeSettings(Settings, frozen=True):
    """A node. `tier`: how far the operator trusts it; `facts`: capability ids it claims besides what it probes.

    `run_as`: the account of its workloads. Absent: the agent's own, which must then not be root.
    `arena_mb`: MiB that the rings of its edges may take, all together; none of it is taken before a ring is there.
    """

    name: str
    tier: TrustTier = TrustTier.PAIRED
    facts: tuple[str, ...] = ()
    run_as: str | None = None
    arena_mb: ArenaMb = ARENA_MB


class EndpointSettings(Settings, frozen=True):
    """Where a process listens: `ipc` (a socket in the run directory) or `tcp://host:port`.

    `edges`, of a node: where the edges processes of other nodes send to the one of this node.
    """

    control: str = IPC
    packages: str = IPC
    edges: str = IPC


class Times(Settings, frozen=True):
    """Deadlines and periods, in seconds, as every process of the cluster uses them."""

    beat_s: Seconds = 1.0
    """Period of beats: nodes to the controller, processes to the root."""
    dead_after_s: Seconds = 5.0
    """Silence after which a node counts as unreachable."""
    hung_after_s: Seconds = 3.0
    """Silence of a process's mailbox loop after which the root restarts it."""
    start_timeout_s: Seconds = 10.0
    """A started process must be ready by then."""
    stop_timeout_s: Seconds = 10.0
    """A stopped process must be gone by then (a node, with its edges process: three times that), or is killed."""
    gate_timeout_s: Seconds = 5.0
    """A judgement of the gate, its chain record included."""
    call_timeout_s: Seconds = 10.0
    """One signed call to a node that fetches nothing."""
    fetch_timeout_s: Seconds = 60.0
    """A node's fetch of one package."""
    place_timeout_s: Seconds = 90.0
    """A whole placement, as the command line waits for it."""
    stop_grace_s: Seconds = 5.0
    """From the polite signal to a workload until the kill."""
    orphan_after_s: Seconds = 600.0
    """A workload ends this long after its node's agent was last heard of."""


class Restarts(Settings, frozen=True):
    """When processes come back: `intensity` restarts within `period_s`, then parked and tried at the ceiling."""

    intensity: Count = 5
    period_s: Seconds = 60.0
    backoff_first_s: FirstBackoff = 0.05
    backoff_ceiling_s: Seconds = 10.0


class ClusterSettings(Settings, frozen=True):
    """The whole file. `run_dir`: where sockets live, default `run` in the cluster directory."""

    format: int
    name: str
    operator_key: str
    node: tuple[NodeSettings, ...]
    run_dir: str | None = None
    endpoints: dict[str, EndpointSettings] = {}
    times: Times = Times()
    restarts: Restarts = Restarts()


def parse_settings(text: str, file: str) -> ClusterSettings:
    """The settings of a `cluster.toml`. Raises `ClusterFault` with file, line and key path."""
    settings = parse_toml(text, ClusterSettings, file)

    def refuse(path: KeyPath, what: str) -> ClusterFault:
        return fault_at(text, file, path, what)

    if settings.format != FORMAT:
        raise refuse(("format",), f"this sennit reads format {FORMAT}, not {settings.format}")
    try:
        check_name(settings.name, "cluster name")
    except ClusterFault as fault:
        raise refuse(("name",), fault.text) from None
    if not settings.node:
        raise refuse(("node",), "a cluster needs at least one node")
    written = list(load_toml(text))
    for late in written[written.index("node") :]:
        if late in DEFAULTED:
            raise refuse((late,), "write it above the first [[node]]: a file cut short before it would lose it")
    names: set[str] = set()
    for position, node in enumerate(settings.node):
        try:
            check_node_name(node.name)
        except ClusterFault as fault:
            raise refuse(("node", position, "name"), fault.text) from None
        if node.name in names:
            raise refuse(("node", position, "name"), f"two nodes are called {node.name!r}: give each its own name")
        names.add(node.name)
    listeners = names | {Role.ROOT, Role.CHAIN, Role.GATE, Role.CONTROLLER}
    taken: dict[str, str] = {}
    for process, endpoints in settings.endpoints.items():
        if process not in listeners:
            owner = node_of(process)
            where = f": where its edges listen stands in [endpoints.{owner}]" if edges_of(owner) == process else ""
            raise refuse(("endpoints", process), f"no process of this cluster is called {process!r}{where}")
        for plane in EndpointSettings.__struct_fields__:
            endpoint = getattr(endpoints, plane)
            if endpoint != IPC and not _is_tcp(endpoint):
                raise refuse(
                    ("endpoints", process, plane),
                    f"{endpoint!r} is neither {IPC!r} nor tcp://HOST:PORT (port 1..65535)",
                )
            if endpoint != IPC and endpoint in taken:
                raise refuse(("endpoints", process, plane), f"{endpoint!r} is taken by {taken[endpoint]}")
            if endpoint != IPC and plane == "edges" and process not in names:
                raise refuse(("endpoints", process, plane), f"only nodes have edges, and {process!r} is none")
            taken[endpoint] = f"{process}.{plane}"
    if settings.times.dead_after_s < 2 * settings.times.beat_s:
        raise refuse(("times", "dead_after_s"), "must be at least two beats (beat_s), or one late beat is a death")
    if settings.restarts.backoff_ceiling_s < settings.restarts.backoff_first_s:
        raise refuse(("restarts", "backoff_ceiling_s"), "must be at least backoff_first_s, the shortest wait")
    return settings


def _is_tcp(endpoint: str) -> bool:
    match = _TCP.fullmatch(endpoint)
    return match is not None and 1 <= int(match[2]) <= 65_535


def render_settings(settings: ClusterSettings) -> str:
    """The text of a new `cluster.toml`: everything that is set, and the defaults as comments."""
    lines = [
        "# A cluster of sennit. After a change of nodes or endpoints sign the directory anew: sennit init DIR --update",
        f"format = {settings.format}",
        f'name = "{settings.name}"',
        f'operator_key = "{settings.operator_key}"  # the key that signs directory.json',
    ]
    if settings.run_dir is not None:
        lines.append(f"run_dir = {quote(settings.run_dir)}")
    for title, table in (("times", settings.times), ("restarts", settings.restarts)):
        lines += ["", f"[{title}]"]
        defaults = type(table)()
        for field in table.__struct_fields__:
            value, default = getattr(table, field), getattr(defaults, field)
            lines.append(f"{'# ' if value == default else ''}{field} = {value}")
    for node in settings.node:
        lines += [
            "",
            "[[node]]",
            f'name = "{node.name}"',
            f'tier = "{node.tier.value}"  # discovered, paired or pinned',
        ]
        if node.facts:
            lines.append(f"facts = [{', '.join(quote(fact) for fact in node.facts)}]")
        if node.run_as is not None:
            lines.append(f"run_as = {quote(node.run_as)}  # the account that workloads run as")
        if node.arena_mb != ARENA_MB:
            lines.append(f"arena_mb = {node.arena_mb}  # MiB for the rings of its edges")
    for process, endpoints in settings.endpoints.items():
        lines += ["", f"[endpoints.{process}]"]
        for plane in endpoints.__struct_fields__:
            lines.append(f"{plane} = {quote(getattr(endpoints, plane))}")
    return "\n".join(lines) + "\n"


def quote(text: str) -> str:
    """A TOML basic string."""
    escaped = "".join(
        {"\\": "\\\\", '"': '\\"'}.get(sign, sign if sign.isprintable() else f"\\U{ord(sign):08x}") for sign in text
    )
    return f'"{escaped}"'
