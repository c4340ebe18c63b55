"""Asking the gate whether two instances may be joined (design 7, design 9).

Each is judged as it is placed; a verdict on both is a grant of the pair, and no answer is a denial (promise 4).
"""

from __future__ import annotations

from collections.abc import Mapping

from actors.actor import AskFailed, Context
from actors.edges.planning.core import PlanCore
from actors.edges.planning.situation import node_of
from actors.edges.planning.state import Pair
from actors.edges.planning.view import EdgeWork, Hold, PlanView
from actors.placement.governance import context_of
from messages.gate import Action, CheckAll, Decision, NodeContext
from messages.identity import Identity
from messages.workload_spec import TrustTier


class PairJudge:
    """`nodes`: by node id."""

    def __init__(self, core: PlanCore, view: PlanView, nodes: Mapping[str, Identity]) -> None:
        self._core = core
        self._view = view
        self._nodes = nodes

    async def judge(self, ctx: Context, work: EdgeWork, pair: Pair) -> None:
        """Have the edge's `granted` be the pair, or hold it back with the reason."""
        settings = self._core.settings
        parties = (pair.producer, pair.consumer)
        asks = []
        for owner in parties:
            row = self._view.rows.get(owner.instance_id)
            if row is None:
                return  # unloaded this instant
            identity = self._nodes.get(owner.node_id)
            tier = None if identity is None else TrustTier(identity.tier)
            contexts = [NodeContext(node_id=owner.node_id, context=context_of(row.record, tier))]
            request = CheckAll(agent_id=self._core.agent_id, action=Action.EDGE.value, contexts=contexts)
            asks.append(ctx.ask(self._core.addresses.gate, request, settings.gate_timeout_s))
        for owner, judged in zip(parties, await ctx.all_of(asks), strict=True):
            who = f"{owner.instance_id} on {node_of(owner)}"
            if isinstance(judged, AskFailed):
                reason = f"the gate gave no verdict on {who}, so it is a denial: {judged}"
                work.hold = Hold(ctx.now() + settings.retry_s, reason, pair=pair)
                return
            verdict = judged.verdicts.get(owner.node_id)
            if verdict is None or verdict.decision is not Decision.PERMIT:
                said = "no verdict" if verdict is None else f"{verdict.decision.value}: {verdict.reason}"
                reason = f"the gate does not permit {Action.EDGE.value} for {who}: {said}"
                work.hold = Hold(ctx.now() + settings.denied_retry_s, reason, pair=pair, denied=True)
                return
        work.granted = pair


__all__ = ["PairJudge"]
