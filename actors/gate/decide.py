"""May this be done? One pure function, deny by default (G 2.5).

In order: the action must be governed; the context must read; secrets need a pinned node; the first permit that
matches, else denied; the effect must not exceed the ceiling. What was looked at comes with the answer, so that the
record on the chain explains it alone.
"""

from __future__ import annotations

from actors.gate.context import ContextFault
from actors.gate.effect import Effect, effect_of
from actors.gate.policy import FAMILY, Policy
from messages.base import Record
from messages.gate import Action, Decision, WorkloadContext
from messages.workload_spec import TrustTier

DEFAULT_DENY = "WORKLOAD-DEFAULT-DENY"
EFFECT_CEILING = "WORKLOAD-EFFECT-CEILING"
OBJECTIONS_SHOWN = 4


class Judgement(Record, frozen=True):
    """A decision and how it came about. `reason` is empty on a permit; `effect` None when there was no context."""

    decision: Decision
    reason: str = ""
    workload: WorkloadContext | None = None
    effect: Effect | None = None
    permit_rule: str | None = None
    evaluated_rules: tuple[str, ...] = ()
    threshold_exceeded: bool = False


def ungoverned(action: str) -> str:
    """Why an action that is not governed is denied; empty for a governed one."""
    if not action.startswith(FAMILY):
        return f"this gate only governs workload.* actions, got '{action}'"
    if action not in _GOVERNED:
        return f"unknown workload action '{action}'; governed actions: {', '.join(_GOVERNED)}"
    return ""


def judge(policy: Policy, principal: str, action: str, context: WorkloadContext | ContextFault) -> Judgement:
    """Judge an act by its name. What is not governed is denied unread."""
    unknown = ungoverned(action)
    if unknown:
        return Judgement(decision=Decision.DENY, reason=unknown)
    return decide(policy, principal, Action(action), context)


def decide(
    policy: Policy,
    principal: str,
    action: Action,
    context: WorkloadContext | ContextFault,
    project: str | None = None,
) -> Judgement:
    """Judge a governed action. `context` is checked, or the fault that reading it raised.

    `project` is the verified project of the request, None when nothing verified one.
    """
    if isinstance(context, ContextFault):
        return Judgement(decision=Decision.DENY, reason=f"invalid workload context: {context}")
    effect = effect_of(context)
    if context.secrets and context.node_tier.rank < TrustTier.PINNED.rank:
        return Judgement(
            decision=Decision.DENY,
            reason=f"workloads carrying secrets require a pinned node, this one is {context.node_tier.value}",
            workload=context,
            effect=effect,
        )
    objections = []
    for permit in policy.permits:
        if not permit.covers(action, context):
            continue
        objection = permit.objection(principal, context, project)
        if not objection:
            return _under_ceiling(policy, context, effect, permit.id)
        objections.append(f"permit '{permit.id}': {objection}")
    what = f"'{action.value}' for kind '{context.kind}'"
    reason = f"default deny: no workload permit rule matches {what} (rule {DEFAULT_DENY})"
    if objections:
        more = len(objections) - OBJECTIONS_SHOWN
        reason += "; " + "; ".join(objections[:OBJECTIONS_SHOWN]) + (f"; and {more} more" if more > 0 else "")
    return Judgement(
        decision=Decision.DENY, reason=reason, workload=context, effect=effect, evaluated_rules=(DEFAULT_DENY,)
    )


def _under_ceiling(policy: Policy, context: WorkloadContext, effect: Effect, permit_rule: str) -> Judgement:
    exceeded = effect.magnitude > policy.threshold
    decision, reason = Decision.PERMIT, ""
    if exceeded:
        decision = Decision.DEFER if policy.human_approval else Decision.DENY
        reason = f"rule '{EFFECT_CEILING}': effect magnitude {effect.magnitude:.2f} > threshold {policy.threshold:.2f}"
    return Judgement(
        decision=decision,
        reason=reason,
        workload=context,
        effect=effect,
        permit_rule=permit_rule,
        evaluated_rules=(EFFECT_CEILING,),
        threshold_exceeded=exceeded,
    )


_GOVERNED = tuple(action.value for action in Action)
