"""Nodes with the same relevant capabilities share one answer (design 8).

A fleet is a handful of machine types many times over. Within one decision a capability matters to matching only if the
request names its id; nodes that agree on those capabilities get the same `CapabilitySet` object, and whatever is worked
out for it once (routes, preferences, accelerator capacity) holds for all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from messages.capabilities import Capability, Requirement


class CapabilitySet:
    """The capabilities of a node that the request can ask about, in the node's order. Equal only to itself."""

    __slots__ = ("capabilities",)

    def __init__(self, capabilities: tuple[Capability, ...]) -> None:
        self.capabilities = capabilities


class CapabilitySets:
    """One instance per decision. `requirements` are all that will ever be matched against the sets."""

    def __init__(self, requirements: Iterable[Requirement]) -> None:
        self._selectors = list({(req.id, req.id_prefix): req for req in requirements}.values())
        self._relevant: dict[str, bool] = {}
        self._sets: dict[bytes, CapabilitySet] = {}

    def of(self, capabilities: Sequence[Capability]) -> CapabilitySet:
        relevant = tuple(capability for capability in capabilities if self._is_relevant(capability.id))
        try:
            key = msgspec.msgpack.encode(relevant)
        except (OverflowError, TypeError, ValueError):
            return CapabilitySet(relevant)  # values that could not come over the wire: matched, but not shared
        return self._sets.setdefault(key, CapabilitySet(relevant))

    def _is_relevant(self, capability_id: str) -> bool:
        known = self._relevant.get(capability_id)
        if known is None:
            known = any(selector.selects(capability_id) for selector in self._selectors)
            self._relevant[capability_id] = known
        return known


__all__ = ["CapabilitySet", "CapabilitySets"]
