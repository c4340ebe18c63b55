"""What a node writes on the chain, as `workload.host` (what it was asked and what followed) and as `workload.runtime`
(what its adapter did) (P 7.7 and 7.9).

Every one tells of something that has happened: the record that an act needs before it is done is the gate's verdict.
So these are owed, in order, and paid when the chain takes them.
"""

from __future__ import annotations

from typing import Any

from actors.chain.canonical import encode
from actors.node.instances import Instance
from messages.chain import Entry
from messages.control import LifeState, Method, Refusal
from messages.gate import Action
from messages.ports import RunEvidence

HOST = "workload.host"
RUNTIME = "workload.runtime"
REFUSE = "workload.refuse"
LIFECYCLE = "workload.lifecycle"

REASON_BYTES = 1024
"""Most of a reason that is recorded: it may come from elsewhere."""


class Records:
    """Entries of one node and one incarnation, numbered so that each is written once."""

    def __init__(self, node_id: str) -> None:
        self._node_id = node_id
        self._incarnation = ""
        self._count = 0

    def begin(self, incarnation: str) -> None:
        """`incarnation` differs for every start of the agent ever, or a record would be taken for one already there."""
        self._incarnation, self._count = incarnation, 0

    def placed(self, instance: Instance, *, started: bool) -> Entry:
        payload = {
            "phase": "placed",
            "node": self._node_id,
            "requester": instance.requester,
            "decision_id": instance.decision_id,
            "workload": instance.workload,
            "variant": instance.variant,
            "runtime": instance.runtime,
            "instance_id": instance.instance_id,
            "package_id": instance.package_id,
            "slot": instance.slot,
            "epoch": str(instance.epoch),
            "started": started,
        }
        return self._entry(HOST, Action.PLACE.value, payload)

    def refused(
        self,
        phase: str,
        refusal: Refusal,
        *,
        method: str | None = None,
        requester: str | None = None,
        decision_id: str | None = None,
        suppressed: int = 0,
    ) -> Entry:
        """`phase` is `verify` for a stranger's request and `handle` for one that was known to be the controller's."""
        payload = {
            "node": self._node_id,
            "phase": phase,
            "code": refusal.code.value,
            "reason": _clip(refusal.reason),
            "method": method,
            "requester": requester,
            "decision_id": decision_id,
            "suppressed": suppressed,
        }
        return self._entry(HOST, REFUSE, payload)

    def fenced(self, slot: str, floor: str, decision_id: str) -> Entry:
        payload = {"node": self._node_id, "slot": slot, "floor": floor, "decision_id": decision_id}
        return self._entry(HOST, Method.FENCE.value, payload)

    def lifecycle(self, instance: Instance, origin: LifeState, to: LifeState, reason: str) -> Entry:
        payload = {
            "phase": "supervise",
            "node": self._node_id,
            "instance_id": instance.instance_id,
            "workload": instance.workload,
            "from": origin.value,
            "to": to.value,
            "reason": _clip(reason),
        }
        return self._entry(HOST, LIFECYCLE, payload)

    def done(self, action: Action, instance: Instance, **more: Any) -> Entry:
        """The adapter did it."""
        return self._entry(RUNTIME, action.value, {**_subject(instance), "outcome": "ok", **more})

    def failed(self, action: Action, instance: Instance, code: str, reason: str) -> Entry:
        """The adapter did not do it; `code` is one of P 3.3."""
        failure = {"outcome": "error", "failed_action": action.value, "error_code": code, "reason": _clip(reason)}
        return self._entry(RUNTIME, REFUSE, {**_subject(instance), **failure})

    def _entry(self, source: str, kind: str, payload: dict[str, Any]) -> Entry:
        self._count += 1
        key = f"{self._node_id}/{self._incarnation}/{self._count}"
        return Entry(source=source, kind=kind, payload=encode(payload), idempotency_key=key)


def evidence_of(evidence: RunEvidence | None) -> dict[str, Any] | None:
    """Counts, never output. Byte totals as text: they may exceed what JSON readers keep exact."""
    if evidence is None:
        return None
    return {
        "exit_code": evidence.exit_code,
        "signal": evidence.signal,
        "killed": evidence.killed,
        "elapsed_ms": evidence.elapsed_ms,
        "stdout_bytes": str(evidence.stdout_bytes),
        "stderr_bytes": str(evidence.stderr_bytes),
        "truncated": evidence.truncated,
    }


def _subject(instance: Instance) -> dict[str, Any]:
    return {
        "runtime": instance.runtime,
        "workload_id": instance.workload,
        "version": instance.version,
        "instance_id": instance.instance_id,
        "epoch": str(instance.epoch),
    }


def _clip(text: str) -> str:
    return text.encode(errors="replace")[:REASON_BYTES].decode(errors="ignore")


__all__ = ["HOST", "LIFECYCLE", "REFUSE", "RUNTIME", "Records", "evidence_of"]
