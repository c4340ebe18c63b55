"""The gate of a cluster or of a node: judges by the policy and answers only what is on the chain (design 9, G 2).

A verdict leaves this actor after its record is durable; a chain that cannot write means no verdict (promise 2). One
message asks for every node of a placement: equal contexts are judged and chained once, in one transaction.

The record has source `workload` and the action as its kind (`workload.refuse` for an unknown action):
`decision, reason, agent_id, action, workload, effect, permit_rule, evaluated_rules, threshold_exceeded, revoked` of
G 2.6, and `gate` (the address that judged), `policy` (SHA-256 of the policy in force) and `nodes` (whom it holds for).
"""

from __future__ import annotations

from hashlib import sha256

import msgspec

from actors.actor import Actor, AskFailed, Context, Procedure
from actors.chain import canonical
from actors.gate.context import ContextFault, check_context, read_context
from actors.gate.decide import Judgement, judge, ungoverned
from actors.gate.policy import FAMILY, Policy
from messages.base import Address
from messages.chain import AppendAll, Entry
from messages.gate import (
    Check,
    CheckAll,
    Decision,
    GateMessage,
    GateRefusal,
    GateVerdictOf,
    GetPolicy,
    Judged,
    PolicyReport,
    Verdict,
    WorkloadContext,
)

GATE_SOURCE = "workload"
REFUSE_KIND = "workload.refuse"
CHAIN_TIMEOUT_S = 10.0
MAX_TEXT = 256
MAX_CONTEXTS = 65_536


class Gate(Actor[GateMessage]):
    """Same class for the cluster's gate and a node's; a node's records go to the cluster's chain too."""

    mailbox = GateMessage

    def __init__(self, policy: Policy, chain: Address, source: str = "built in") -> None:
        """`policy` is checked here; raises `PolicyFault`. `source` says where it came from, for reports."""
        self._policy = policy.check()
        self._chain = chain
        self._source = source
        self._policy_text = canonical.encode(msgspec.to_builtins(policy))
        self._policy_sha256 = sha256(self._policy_text).hexdigest()
        self._counts = dict.fromkeys((decision.value for decision in Decision), 0)
        self._unrecorded = 0

    def receive(self, message: GateMessage, ctx: Context) -> Procedure | None:
        match message:
            case Check():
                return self._check(message, ctx)
            case CheckAll():
                return self._check_all(message, ctx)
            case GetPolicy():
                ctx.reply(PolicyReport(policy=self._policy_text, sha256=self._policy_sha256, source=self._source))
        return None

    def state(self) -> object:
        return {
            "policy": self._policy_sha256,
            "source": self._source,
            "permits": [permit.id for permit in self._policy.permits],
            "threshold": self._policy.threshold,
            "judged": dict(self._counts),
            "unrecorded": self._unrecorded,
        }

    async def _check(self, check: Check, ctx: Context) -> None:
        verdicts = await self._judge(check.agent_id, check.action, [(read_context(check.context), [])], ctx)
        if verdicts is not None:
            ctx.reply(Verdict(verdict=verdicts[0]))

    async def _check_all(self, check: CheckAll, ctx: Context) -> None:
        nodes = [entry.node_id for entry in check.contexts]
        if len(set(nodes)) != len(nodes) or len(nodes) > MAX_CONTEXTS:
            ctx.refuse(GateRefusal.INVALID, f"name each node once, at most {MAX_CONTEXTS} of them")
            return
        alike: dict[bytes, tuple[WorkloadContext | ContextFault, list[str]]] = {}
        for entry in check.contexts:
            same = alike.setdefault(msgspec.msgpack.encode(entry.context), (_checked(entry.context), []))
            same[1].append(entry.node_id)
        groups = list(alike.values())
        verdicts = await self._judge(check.agent_id, check.action, groups, ctx)
        if verdicts is not None:
            ctx.reply(
                Judged(
                    verdicts={
                        node: verdict for (_, group), verdict in zip(groups, verdicts, strict=True) for node in group
                    }
                )
            )

    async def _judge(
        self, agent_id: str, action: str, groups: list[tuple[WorkloadContext | ContextFault, list[str]]], ctx: Context
    ) -> list[GateVerdictOf] | None:
        """One verdict for each group, all of them recorded; None when the asker was refused instead."""
        agent_id, action = agent_id[:MAX_TEXT], action[:MAX_TEXT]
        unknown = ungoverned(action)
        if unknown and not action.startswith(FAMILY):
            return [GateVerdictOf(decision=Decision.DENY, reason=unknown) for _ in groups]
        entries, judgements = [], []
        for context, nodes in groups:
            judgement = judge(self._policy, agent_id, action, context)
            try:
                payload = canonical.encode(self._payload(judgement, agent_id, action, nodes, ctx.address))
            except canonical.CanonicalFault as fault:
                ctx.refuse(GateRefusal.INVALID, f"the judgement cannot be recorded: {fault}")
                return None
            entries.append(Entry(source=GATE_SOURCE, kind=REFUSE_KIND if unknown else action, payload=payload))
            judgements.append(judgement)
        if not entries:
            return []
        try:
            appended = await ctx.ask(self._chain, AppendAll(entries=entries), timeout_s=CHAIN_TIMEOUT_S)
        except AskFailed as failure:
            self._unrecorded += len(entries)
            ctx.log("warning", "no verdict: the chain took no record", action=action, failure=str(failure))
            ctx.refuse(GateRefusal.NO_RECORD, f"the judgement could not be chained, so there is no verdict: {failure}")
            return None
        for judgement in judgements:
            self._counts[judgement.decision.value] += 1
        return [
            GateVerdictOf(decision=judgement.decision, reason=judgement.reason, chained=record.hash)
            for judgement, record in zip(judgements, appended.results, strict=True)
        ]

    def _payload(
        self, judgement: Judgement, agent_id: str, action: str, nodes: list[str], gate: Address
    ) -> dict[str, object]:
        workload, effect = judgement.workload, judgement.effect
        payload: dict[str, object] = {
            "decision": judgement.decision.value,
            "reason": judgement.reason or None,
            "agent_id": agent_id,
            "action": action,
            "workload": None if workload is None else msgspec.structs.asdict(workload),
            "effect": None if effect is None else msgspec.structs.asdict(effect),
            "permit_rule": judgement.permit_rule,
            "evaluated_rules": list(judgement.evaluated_rules),
            "threshold_exceeded": judgement.threshold_exceeded,
            "revoked": None,
            "gate": gate,
            "policy": self._policy_sha256,
        }
        if nodes:
            payload["nodes"] = sorted(nodes)
        return payload


def _checked(context: WorkloadContext) -> WorkloadContext | ContextFault:
    try:
        return check_context(context)
    except ContextFault as fault:
        return fault
