"""Which rings one run of a workload has, and what its words about them mean (design 7, E 6.1).

A ring is in the table from the moment its install is queued until it is proved that the workload does not hold it:
it refused it, it let go of it, asked or not, or it is gone. A fault takes nothing out.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from messages.base import Address
from messages.edge import RingId
from messages.edge_end import EdgeFaultCode
from messages.edge_ports import (
    WorkerClosed,
    WorkerFaulted,
    WorkerGone,
    WorkerInstalled,
    WorkerQuiesced,
    WorkerReport,
)
from runtime.edges.workers.packets import Closed, Fault, Installed, Quiesced, Refused, Reply, fault_of

Told = tuple[Address, WorkerReport]
"""A report, and whom it is for."""


class Holding(StrEnum):
    INSTALLING = "installing"
    INSTALLED = "installed"
    UNINSTALLING = "uninstalling"


@dataclass(eq=False, slots=True)
class HeldRing:
    """`owner` is told; the marks say what was told already, for everything is told once."""

    owner: Address
    holding: Holding = Holding.INSTALLING
    answered: bool = False
    faulted: bool = False
    closed: bool = False
    ending: bool = False


class HeldRings:
    """The table of one run. Each method returns what is to be told."""

    def __init__(self, instance_id: str) -> None:
        self._instance_id = instance_id
        self._rings: dict[RingId, HeldRing] = {}
        self.surplus = 0

    def __len__(self) -> int:
        return len(self._rings)

    def get(self, ring_id: RingId) -> HeldRing | None:
        return self._rings.get(ring_id)

    def ids(self) -> list[RingId]:
        return list(self._rings)

    def rows(self) -> dict[str, str]:
        return {str(ring_id): ring.holding.value for ring_id, ring in self._rings.items()}

    def add(self, ring_id: RingId, owner: Address) -> None:
        """Its install is about to be sent."""
        assert ring_id not in self._rings, "a ring is installed once"
        self._rings[ring_id] = HeldRing(owner)

    def let_go(self, ring_id: RingId) -> Told:
        """No view of it is left in the workload, or it never got there."""
        owner = self._rings.pop(ring_id).owner
        return owner, WorkerQuiesced(instance_id=self._instance_id, ring_id=ring_id)

    def not_installed(self, ring_id: RingId, code: EdgeFaultCode, text: str) -> Told:
        """It is not handed over after all, or was refused."""
        return self._rings.pop(ring_id).owner, self.fault(ring_id, code, text, holds=False)

    def fault_all(self, code: EdgeFaultCode, text: str) -> list[Told]:
        """The workload may hold them all still."""
        told: list[Told] = []
        for ring_id, ring in self._rings.items():
            if not ring.faulted:
                ring.faulted = True
                told.append((ring.owner, self.fault(ring_id, code, text, holds=True)))
        return told

    def gone(self) -> list[Told]:
        """No process of the run is left."""
        rings: dict[Address, list[RingId]] = {}
        for ring_id, ring in sorted(self._rings.items()):
            rings.setdefault(ring.owner, []).append(ring_id)
        self._rings.clear()
        return [
            (owner, WorkerGone(instance_id=self._instance_id, ring_ids=ring_ids)) for owner, ring_ids in rings.items()
        ]

    def take(self, reply: Reply) -> Told | None:
        """The workload says something of a ring. What answers nothing is surplus, counted."""
        ring_id = RingId(reply.ring)
        name = self._instance_id
        ring = self._rings.get(ring_id)
        match reply, ring:
            case Installed(), HeldRing(holding=Holding.INSTALLING):
                ring.holding, ring.answered = Holding.INSTALLED, True
                return ring.owner, WorkerInstalled(instance_id=name, ring_id=ring_id)
            case ((Installed() | Refused()), HeldRing(holding=Holding.UNINSTALLING, answered=False)):
                ring.answered = True  # it crossed our order to let go, which is answered next
                return None
            case Refused(), HeldRing(holding=Holding.INSTALLING):
                return self.not_installed(ring_id, *fault_of(reply))
            case Quiesced(), HeldRing(holding=Holding.UNINSTALLING):
                return self.let_go(ring_id)
            case Quiesced(), HeldRing(holding=Holding.INSTALLED):
                return self._let_go_unasked(ring_id, ring)
            case Fault(), HeldRing(faulted=False):
                ring.faulted = True
                code, text = fault_of(reply)
                return ring.owner, self.fault(ring_id, code, text, holds=True)
            case Closed(), HeldRing(closed=False):
                ring.closed = True
                return ring.owner, WorkerClosed(instance_id=name, ring_id=ring_id)
            case _:
                self.surplus += 1
                return None

    def _let_go_unasked(self, ring_id: RingId, ring: HeldRing) -> Told | None:
        """It has nothing more to do with the ring: all is well if it said before that it was done, or what is not."""
        del self._rings[ring_id]
        if ring.closed or ring.faulted:
            return None
        text = "the workload let go of the ring before its stream had ended"
        return ring.owner, self.fault(ring_id, EdgeFaultCode.WORKER_CRASHED, text, holds=False)

    def fault(self, ring_id: RingId, code: EdgeFaultCode, text: str, *, holds: bool) -> WorkerFaulted:
        return WorkerFaulted(instance_id=self._instance_id, ring_id=ring_id, code=code, text=text, holds=holds)


__all__ = ["HeldRing", "HeldRings", "Holding", "Told"]
