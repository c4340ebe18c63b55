"""From what a probe saw to the signed facts of a node (P 9.1, G 1.2). `actors.placement.view` reads them."""

from __future__ import annotations

from collections.abc import Sequence

from actors.placement.signed import Signer
from actors.placement.view import MAX_FACTS_BYTES, sign_facts
from messages.capabilities import (
    AttrValue,
    Capability,
    CapabilityId,
    CapabilityState,
    Provenance,
    VocabularyError,
    family,
)
from messages.control import SignedObject
from messages.facts import FACTS_VERSION, MAX_NOTE_BYTES, MAX_NOTES, FactsCode, FactsError, FactsNote, NodeFacts
from messages.ports import Probed

_STATES = {state.value: state for state in CapabilityState}


def capabilities_of(probed: Probed, claimed: Sequence[str]) -> tuple[tuple[Capability, ...], tuple[FactsNote, ...]]:
    """What was probed, then what the operator claims for the node; what breaks a rule becomes a note instead."""
    kept: dict[str, Capability] = {}
    notes = [FactsNote(probe="probe", text=text[: MAX_NOTE_BYTES // 4]) for text in probed.notes]

    def add(source: str, name: str, make: Capability) -> None:
        try:
            make.check()
            if family(name) == "trust":
                raise ValueError("trust is assigned by the receiver, never stated by the node")
        except (VocabularyError, ValueError) as error:
            text = f"{name[:64]} was left out: {error}".encode()[:MAX_NOTE_BYTES].decode(errors="ignore")
            notes.append(FactsNote(probe=source, text=text))
        else:
            kept.setdefault(name, make)

    for told in probed.capabilities:
        attrs: dict[str, AttrValue] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in told.attrs.items()
        }
        state = _STATES.get(told.state, CapabilityState.DEGRADED)
        capability = Capability(id=CapabilityId(told.id), attrs=attrs, provenance=Provenance.PROBED, state=state)
        add("probe", told.id, capability)
    for name in claimed:
        add("configuration", name, Capability(id=CapabilityId(name), provenance=Provenance.CLAIMED))
    return tuple(kept.values()), tuple(notes[:MAX_NOTES])


def issue(
    signer: Signer,
    capabilities: tuple[Capability, ...],
    notes: tuple[FactsNote, ...],
    *,
    issued_at_s: int,
    ttl_s: int,
    seq: int,
) -> SignedObject:
    """Facts signed by the node they are about. Raises `FactsError` for what no receiver would take."""
    facts = NodeFacts(
        version=FACTS_VERSION,
        node_id=signer.node_id,
        issued_at=issued_at_s,
        ttl_secs=ttl_s,
        seq=seq,
        capabilities=capabilities,
        notes=notes,
    )
    signed = sign_facts(signer, facts)
    if len(signed.payload) > MAX_FACTS_BYTES:
        raise FactsError(FactsCode.INVALID, f"{len(signed.payload)} bytes, at most {MAX_FACTS_BYTES} are sent")
    return signed


def attribute(capabilities: Sequence[Capability], capability_id: str, name: str) -> object:
    """An attribute of an available capability, None when there is none."""
    for capability in capabilities:
        if capability.id == capability_id and capability.state is CapabilityState.AVAILABLE:
            return capability.attrs.get(name)
    return None


__all__ = ["attribute", "capabilities_of", "issue"]
