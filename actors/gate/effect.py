"""The effect of a request: five numbers that the gate computes from the context and never takes from a caller (G 2.4).

Worked values: pinned signer, paired, lan, cost 0.2 is (0.1, 0.2, 0, 0, 0.4), magnitude 0.4583; the controller's own
request (pinned signer, paired, egress, cost 0.25) has 0.6874, emulated 0.8140.
"""

from __future__ import annotations

from math import sqrt

from messages.base import Record
from messages.gate import Network, PackageTrust, WorkloadContext
from messages.workload_spec import TrustTier

_RISK = {
    PackageTrust.UNSIGNED: 0.9,
    PackageTrust.SIGNED_UNPINNED: 0.6,
    PackageTrust.OPERATOR_ATTESTED: 0.3,
    PackageTrust.PROJECT_CERT: 0.2,
    PackageTrust.PINNED_SIGNER: 0.1,
}
_TIER_SECURITY = {TrustTier.DISCOVERED: 0.8, TrustTier.PAIRED: 0.3, TrustTier.PINNED: 0.1}
_NETWORK_SECURITY = {Network.NONE: 0.0, Network.LAN: 0.1, Network.EGRESS: 0.3}


class Effect(Record, frozen=True):
    """Each component within 0..1."""

    risk: float
    fairness: float
    privacy: float
    novelty: float
    security: float

    @property
    def magnitude(self) -> float:
        """Euclidean norm, summed in the order of the fields: a fixed order gives every reader the same bits."""
        total = self.risk * self.risk
        total += self.fairness * self.fairness
        total += self.privacy * self.privacy
        total += self.novelty * self.novelty
        total += self.security * self.security
        return sqrt(total)


def effect_of(context: WorkloadContext) -> Effect:
    """The effect of a checked context."""
    return Effect(
        risk=_clamp(_RISK[context.package_trust] + (0.1 if context.emulated else 0.0)),
        fairness=_clamp(context.resource_cost),
        privacy=_clamp((0.5 if context.secrets else 0.0) + (0.2 if context.network is Network.EGRESS else 0.0)),
        novelty=_clamp((0.4 if context.emulated else 0.0) + (0.2 if context.accelerator is not None else 0.0)),
        security=_clamp(_TIER_SECURITY[context.node_tier] + _NETWORK_SECURITY[context.network]),
    )


def _clamp(value: float) -> float:
    return min(max(value, 0.0), 1.0)
