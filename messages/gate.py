"""The mailbox of a gate (design 9, G 2): is this act allowed, and why not."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec

from messages.base import Message, Record, Request
from messages.workload_spec import TrustTier


class Action(StrEnum):
    """The nine governed actions of G 2.2, and `workload.edge`: that data may flow from one placed instance to
    another, asked for both of them (design 7)."""

    INSTALL = "workload.install"
    PLACE = "workload.place"
    LOAD = "workload.load"
    START = "workload.start"
    STOP = "workload.stop"
    UNLOAD = "workload.unload"
    MIGRATE = "workload.migrate"
    REVOKE = "workload.revoke"
    NODE_BIND = "workload.node.bind"
    EDGE = "workload.edge"


class PackageTrust(StrEnum):
    """How a package's origin was proved, from least to most. Compare by `rank`."""

    UNSIGNED = "unsigned"
    PROJECT_CERT = "project_cert"
    SIGNED_UNPINNED = "signed_unpinned"
    OPERATOR_ATTESTED = "operator_attested"
    PINNED_SIGNER = "pinned_signer"

    @property
    def rank(self) -> int:
        return _PACKAGE_TRUST_RANK[self]


_PACKAGE_TRUST_RANK = {trust: rank for rank, trust in enumerate(PackageTrust)}


class Network(StrEnum):
    """How far a workload can reach, from least to most. Compare by `rank`."""

    NONE = "none"
    LAN = "lan"
    EGRESS = "egress"

    @property
    def rank(self) -> int:
        return _NETWORK_RANK[self]


_NETWORK_RANK = {network: rank for rank, network in enumerate(Network)}


class GateRefusal(StrEnum):
    """Why a gate gave no verdict at all; whoever asked does not act (promise 4)."""

    NO_RECORD = "no_record"
    INVALID = "invalid"


class WorkloadContext(Record, frozen=True):
    """What the gate judges (G 2.3). The effect vector is computed from it, never supplied."""

    kind: str
    package_trust: PackageTrust
    node_tier: TrustTier
    network: Network
    secrets: bool = False
    emulated: bool = False
    accelerator: str | None = None
    resource_cost: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0
    package_id: str | None = None
    signer_keys: list[str] = []
    artifact_hashes: list[str] = []


class Decision(StrEnum):
    PERMIT = "permit"
    DEFER = "defer"
    DENY = "deny"


class GateVerdictOf(Record, frozen=True):
    """`chained` is the hash of the record of this judgement; empty for what is not chained (not `workload.*`)."""

    decision: Decision
    reason: str = ""
    chained: str = ""


class Judged(Message, frozen=True):
    """One verdict for each node asked about, by node id."""

    verdicts: dict[str, GateVerdictOf]


class NodeContext(Record, frozen=True):
    node_id: str
    context: WorkloadContext


class CheckAll(Request[Judged], frozen=True):
    """The checks of one placement in one message: each distinct context is judged and chained once, naming its nodes.

    `action` is text: an unknown action is denied and chained, not refused as malformed. Refused with a
    `GateRefusal`: `no_record` when the chain cannot write, `invalid` when a node is named twice.
    """

    agent_id: str
    action: str
    contexts: list[NodeContext]


class Verdict(Message, frozen=True):
    verdict: GateVerdictOf


class Check(Request[Verdict], frozen=True):
    """One check of one context. `context` is raw JSON text: what does not parse is denied and chained (G 2.3).

    The text is `{"workload": {fields of WorkloadContext}}`; members beside `workload` are ignored, inside it unknown
    ones are denied. Refused with a `GateRefusal` when the chain cannot write.
    """

    agent_id: str
    action: str
    context: bytes
    teardown: bool = False


class PolicyReport(Message, frozen=True):
    """The policy in force as canonical JSON text, and its SHA-256."""

    policy: bytes
    sha256: str
    source: str


class GetPolicy(Request[PolicyReport], frozen=True):
    pass


GateMessage = CheckAll | Check | GetPolicy
