"""Signed control objects between controller and nodes (P 2.3 to 2.9, design 5): what is signed, refused, answered.

The payload is the exact MessagePack bytes that were signed; nobody re-encodes them to verify.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import msgspec

from messages.base import U64, Message, Record, Request

REQUEST_DOMAIN = b"sennit.workload_ctl.request.v1\0"
RESPONSE_DOMAIN = b"sennit.workload_ctl.response.v1\0"
PROTOCOL_VERSION = 1
MAX_REQUEST_BYTES = 262_144
MAX_RESPONSE_BYTES = 4_194_304
MAX_LIFETIME_MS = 300_000
MAX_SKEW_MS = 30_000
REQUEST_TTL_MS = 290_000
NONCES_REMEMBERED = 8_192
ANY_TARGET = "*"


class RefusalCode(StrEnum):
    """The thirteen of P 3.1, then ours (design 8). Stable names; a test guards them."""

    SIGNATURE = "signature"
    EXPIRED = "expired"
    REPLAY = "replay"
    NOT_FOR_ME = "not_for_me"
    UNAUTHORIZED = "unauthorized"
    UNKNOWN_METHOD = "unknown_method"
    INVALID_REQUEST = "invalid_request"
    GOVERNANCE = "governance"
    ADMISSION = "admission"
    FETCH = "fetch"
    VERIFY = "verify"
    RUNTIME = "runtime"
    UNKNOWN_INSTANCE = "unknown_instance"
    SLOT_HELD = "slot_held"
    STALE_EPOCH = "stale_epoch"
    STALE_TERM = "stale_term"
    LEASE_OVER = "lease_over"
    FENCED = "fenced"
    OVERLOADED = "overloaded"


class Method(StrEnum):
    """The eight methods of P 2.9, and the fence of design 8."""

    DESCRIBE = "workload.describe"
    PLACE = "workload.place"
    LOAD = "workload.load"
    START = "workload.start"
    STOP = "workload.stop"
    UNLOAD = "workload.unload"
    STATUS = "workload.status"
    LOGS = "workload.logs"
    FENCE = "workload.fence"

    @property
    def mutates(self) -> bool:
        return self not in (Method.DESCRIBE, Method.STATUS, Method.LOGS)

    @property
    def is_teardown(self) -> bool:
        return self in (Method.STOP, Method.UNLOAD)


class Refusal(Record, frozen=True):
    code: RefusalCode
    reason: str

    def __str__(self) -> str:
        return f"{self.code.value} refused: {self.reason}"


class SignedObject(Record, frozen=True):
    """`payload` bounded by direction; `public_key` 32 bytes, `signature` 64 bytes, Ed25519 over domain || payload."""

    payload: bytes
    public_key: bytes
    signature: bytes


class Epoch(Record, frozen=True, order=True):
    """The right to run a slot: the controller's term, then a number within the slot. Compared in that order."""

    term: U64
    number: U64

    def __str__(self) -> str:
        return f"{self.term}.{self.number}"


class ControlRequest(Record, frozen=True):
    """P 2.4. Times in Unix milliseconds; `nonce` 32 lower-case hex; `decision_id` 64 lower-case hex."""

    version: int
    method: str
    requester: str
    target: str
    nonce: str
    issued_at_ms: U64
    expires_at_ms: U64
    term: U64
    decision_id: str | None = None
    body: Any = None


class Accepted(Record, frozen=True, tag_field="outcome", tag="ok"):
    result: Any = None


class Refused(Record, frozen=True, tag_field="outcome", tag="refused"):
    refusal: Refusal


class ControlResponse(Record, frozen=True):
    """P 2.5."""

    version: int
    method: str
    responder: str
    request_nonce: str
    outcome: Accepted | Refused


class ControlAnswer(Message, frozen=True):
    response: SignedObject


class ControlCall(Request[ControlAnswer], frozen=True):
    """A signed request to a node's agent; `method` must equal the signed one."""

    method: str
    request: SignedObject


# bodies


class Once(Record, frozen=True, tag_field="mode", tag="once"):
    """Run to the end: `--once`."""


class Interval(Record, frozen=True, tag_field="mode", tag="interval"):
    """`--interval secs`, 1..=3600."""

    secs: int


class Listener(Record, frozen=True, tag_field="mode", tag="listener"):
    """Wait for the feed on `csi_port`; no flag."""


RunMode = Once | Interval | Listener


class CtlConfig(Record, frozen=True):
    """Place-time configuration (G 5.1). `csi_port`: UDP port of the feed."""

    mode: RunMode
    args: list[str] = []
    csi_port: Annotated[int, msgspec.Meta(ge=0, le=65_535)] = 5006


class PlaceBody(Record, frozen=True):
    """P 2.9.2, with the slot and its epoch (design 8)."""

    name: str
    manifest_hash: str
    variant: str
    config: CtlConfig
    slot: str
    epoch: Epoch
    start: bool = False
    project_id: str | None = None


class InstanceBody(Record, frozen=True):
    """P 2.9.3. Without `instance_id` only `status` is answered, with a listing. Offsets are for `logs`.

    `epoch` binds a start, stop or unload to one life of the instance: for another it is refused (`stale_epoch`), so an
    order that comes late cannot take down what was placed since.
    """

    instance_id: str | None = None
    epoch: Epoch | None = None
    grace_ms: Annotated[int, msgspec.Meta(ge=0, le=60_000)] | None = None
    include_departed: bool = False
    stdout_offset: int | None = None
    stderr_offset: int | None = None


class FenceBody(Record, frozen=True):
    """Store `floor` as the lowest epoch this node will take for `slot`, then report the rows of `decision_id`."""

    slot: str
    floor: Epoch
    decision_id: str


# results


class AdapterState(StrEnum):
    LOADED = "loaded"
    RUNNING = "running"
    EXITED = "exited"
    DEGRADED = "degraded"
    UNKNOWN = "unknown"


class RunStatus(Record, frozen=True):
    """`pid` of the workload's leader while it runs."""

    state: AdapterState
    exit_code: int | None = None
    detail: str | None = None
    pid: int | None = None


class LifeState(StrEnum):
    """The sixteen states of P 8.1."""

    REQUESTED = "requested"
    PLACED = "placed"
    FETCHING = "fetching"
    VERIFIED = "verified"
    LOADED = "loaded"
    RUNNING = "running"
    UNHEALTHY = "unhealthy"
    RESTARTING = "restarting"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FINISHED = "finished"
    FAILED = "failed"
    LOST = "lost"
    RESCHEDULED = "rescheduled"
    REVOKED = "revoked"
    UNLOADED = "unloaded"


class PlaceResult(Record, frozen=True):
    instance_id: str
    runtime: str
    variant: str
    package_id: str
    status: RunStatus
    node: str
    epoch: Epoch
    ingest: str = "none"


class InFlightRow(Record, frozen=True, tag_field="row", tag="in_flight"):
    decision_id: str
    slot: str


class HeldRow(Record, frozen=True, tag_field="row", tag="held"):
    """An instance this node holds."""

    instance_id: str
    workload: str
    variant: str
    decision_id: str
    slot: str
    epoch: Epoch
    status: RunStatus
    lifecycle: LifeState
    restarts: int = 0
    ingest: str = "none"
    lease_stopped: bool = False


class DepartedRow(Record, frozen=True, tag_field="row", tag="departed"):
    """What was taken down on purpose: `reason` is `unloaded` or `revoked`."""

    departed_instance: str
    reason: str


StatusRow = InFlightRow | HeldRow | DepartedRow


class StatusListing(Record, frozen=True):
    rows: list[StatusRow]


class FenceResult(Record, frozen=True):
    """The floor is durable on the node. `rows` are those of the decision asked about."""

    floor: Epoch
    rows: list[StatusRow]


class LogsResult(Record, frozen=True):
    """Output of the present or last run from the asked offsets on; texts at most 65,536 bytes a stream."""

    instance_id: str
    stdout: str
    stderr: str
    stdout_next: int
    stderr_next: int
    exit_code: int | None
    running: bool
    truncated: bool


class StoppedResult(Record, frozen=True):
    stopped: str
    exit_code: int | None = None
    signal: int | None = None
    killed: bool = False


class StartedResult(Record, frozen=True):
    started: str
    pid: int


class UnloadedResult(Record, frozen=True):
    unloaded: str


class Advertisement(Record, frozen=True):
    """What a node's agent offers (P 2.9.1): `routes` are adapter names."""

    node_id: str
    methods: list[str]
    routes: list[str]
    last_updated: int
    version: str = "1"
    ingest: str = "none"


class DescribeResult(Record, frozen=True):
    """`facts` is the signed node facts object (P 9.1), None when the node has none yet."""

    facts: SignedObject | None
    advertisement: Advertisement
    term_seen: int
