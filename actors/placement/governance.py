"""What the control plane asks the gate (P 6.2 step 5, P 6.8, G 2): default deny, and no answer is a denial."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from actors.actor import AskFailed, Context
from actors.placement.core import Core
from actors.placement.order import PlaneRefusal
from actors.placement.view import Node
from messages.control import Method
from messages.engine import GateDeny, GatePermit, GateVerdict
from messages.gate import (
    Action,
    Check,
    CheckAll,
    Decision,
    GateRefusal,
    GateVerdictOf,
    Network,
    NodeContext,
    PackageTrust,
    WorkloadContext,
)
from messages.packages import VerifiedWorkload
from messages.placement import PlacementRecord, PlaneError
from messages.workload_spec import TrustTier

FULL_CPU_PCT = 400


async def check_nodes(
    core: Core, ctx: Context, workload: VerifiedWorkload, nodes: Iterable[Node], *, emulated: bool = False
) -> dict[str, GateVerdict]:
    """May the workload be placed, for every node, in one message. Raises `PlaneRefusal` when there is no verdict."""
    contexts = [
        NodeContext(node_id=node.identity.node_id, context=_placing(workload, node.tier, emulated)) for node in nodes
    ]
    request = CheckAll(agent_id=core.node_id, action=Action.PLACE.value, contexts=contexts)
    try:
        judged = await ctx.ask(core.addresses.gate, request, core.settings.gate_timeout_s)
    except AskFailed as failure:
        raise _no_verdict(failure) from None
    return {node_id: _verdict(verdict) for node_id, verdict in judged.verdicts.items()}


async def check_instance(core: Core, ctx: Context, record: PlacementRecord, method: Method) -> None:
    """May this instance be started, stopped or unloaded. Raises `PlaneRefusal` (`governance`, `no_record`).

    A stop or an unload only shrinks what runs: what a lower tier or a revocation would forbid is waived by the gate.
    """
    node = core.view.nodes.get(record.node_id)
    context = context_of(record, None if node is None else node.tier)
    text = msgspec.json.encode({"node_id": record.node_id, "workload": context})
    request = Check(agent_id=core.node_id, action=method.value, context=text, teardown=method.is_teardown)
    try:
        verdict = await ctx.ask(core.addresses.gate, request, core.settings.gate_timeout_s)
    except AskFailed as failure:
        raise _no_verdict(failure) from None
    judged = _verdict(verdict.verdict)
    if isinstance(judged, GateDeny):
        raise PlaneRefusal(PlaneError.GOVERNANCE, f"{method.value} denied: {judged.reason}")


def context_of(record: PlacementRecord, tier: TrustTier | None) -> WorkloadContext:
    """What the gate judges of a placed instance; `tier` is None for a node that the directory does not list."""
    return WorkloadContext(
        kind=record.kind,
        package_trust=PackageTrust.PINNED_SIGNER,
        node_tier=TrustTier.DISCOVERED if tier is None else tier,
        network=Network.EGRESS,
        package_id=record.package_id,
        signer_keys=record.signer_keys,
        artifact_hashes=record.artifact_hashes,
    )


def _placing(workload: VerifiedWorkload, tier: TrustTier, emulated: bool) -> WorkloadContext:
    """A native workload has its host's network, so `egress` is declared whatever it would use (P 6.2)."""
    return WorkloadContext(
        kind=workload.kind,
        package_trust=PackageTrust.PINNED_SIGNER,
        node_tier=tier,
        network=Network.EGRESS,
        emulated=emulated,
        resource_cost=min(1.0, max(0.0, workload.limits.cpu_pct / FULL_CPU_PCT)),
        package_id=workload.package_id,
        signer_keys=list(workload.signer_keys),
        artifact_hashes=list(workload.artifact_hashes),
    )


def _verdict(verdict: GateVerdictOf) -> GateVerdict:
    match verdict.decision:
        case Decision.PERMIT:
            return GatePermit()
        case Decision.DENY:
            return GateDeny(reason=verdict.reason)
        case Decision.DEFER:
            return GateDeny(reason=f"deferred to a human (refused on this path): {verdict.reason}")


def _no_verdict(failure: AskFailed) -> PlaneRefusal:
    if failure.code == GateRefusal.NO_RECORD:
        return PlaneRefusal(PlaneError.NO_RECORD, f"the gate could not chain its judgement: {failure.reason}")
    return PlaneRefusal(PlaneError.GOVERNANCE, f"the gate gave no verdict, so it is a denial: {failure}")


__all__ = ["check_instance", "check_nodes", "context_of"]
