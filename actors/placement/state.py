"""What the placement control plane must find again (P 5.1 and 5.2, design 8): one document, replaced whole.

`dispatches` are written before a request leaves and removed in the write that records how it ended, so a crash at any
point leaves either a placement or something to settle. `owed` are chain records of what has happened already and could
not be written yet; each has an idempotency key, so paying twice writes once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from actors.chain.ledger import Owed
from actors.document import StateDamaged, decode_document, encode_document
from messages.base import U64, Record
from messages.capabilities import MemoryDemand
from messages.control import Epoch
from messages.placement import PlacementRecord, PlaceOrder

DOCUMENT = "plane"
STATE_VERSION = 1

T = TypeVar("T")


class Held(Record, frozen=True):
    """A placement, with what the engine and a later move need: the order, labels, memory, when (Unix ms).

    `unloading`: an unload was sent and its end is not known yet.
    """

    record: PlacementRecord
    order: PlaceOrder | None = None
    hardware_bound: bool = False
    labels: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    memory: MemoryDemand = MemoryDemand()
    placed_ms: U64 = 0
    unloading: bool = False


class Dispatch(Record, frozen=True):
    """A request that may have reached its node: the placement it would make (no instance id yet), since when.

    `undoing`: what it left is being taken down, perhaps by an order that comes late; it is not adopted any more.
    """

    held: Held
    since_ms: U64
    undoing: bool = False

    @property
    def decision_id(self) -> str:
        return self.held.record.decision_id

    @property
    def slot(self) -> str:
        return self.held.record.slot

    @property
    def node_id(self) -> str:
        return self.held.record.node_id


class _Document(Record, frozen=True):
    """`epochs` are the last numbers given per slot; `chain_sequence` and `chain_hash` the last record it wrote."""

    version: int
    term: U64
    chain_sequence: int
    chain_hash: str
    epochs: dict[str, U64]
    placements: list[Held]
    dispatches: list[Dispatch]
    owed: list[Owed]


class PlaneState:
    """The state in memory. Changes reach the disk with the next save of `encode()`."""

    def __init__(self) -> None:
        self.term = 0
        self.chain_sequence = -1
        self.chain_hash = ""
        self.epochs: dict[str, int] = {}
        self.placements: dict[str, Held] = {}
        self.dispatches: dict[str, Dispatch] = {}
        self.owed: dict[str, Owed] = {}

    def raise_term(self) -> None:
        """Begin a new incarnation. Epochs of slots that nobody holds are forgotten: a higher term exceeds them all."""
        self.term += 1
        kept = {held.record.slot for held in self.placements.values()}
        kept |= {dispatch.slot for dispatch in self.dispatches.values()}
        self.epochs = {slot: number for slot, number in self.epochs.items() if slot in kept}

    def next_epoch(self, slot: str) -> Epoch:
        """The lowest epoch of `slot` that was never given; not taken by asking."""
        return Epoch(term=self.term, number=self.epochs.get(slot, 0) + 1)

    def take_epoch(self, slot: str) -> Epoch:
        epoch = self.next_epoch(slot)
        self.epochs[slot] = epoch.number
        return epoch

    def holder(self, slot: str, instance: str | None = None) -> Held | None:
        """Who holds `slot`, or runs under the instance id that a pinned order would get."""
        for held in self.placements.values():
            if held.record.slot == slot or held.record.instance_id == instance:
                return held
        return None

    def unsettled(self, slot: str) -> list[Dispatch]:
        return [dispatch for dispatch in self.dispatches.values() if dispatch.slot == slot]

    def place(self, held: Held) -> None:
        """Record a placement; its dispatch is over."""
        assert held.record.instance_id, "a placement has an instance id"
        self.dispatches.pop(held.record.decision_id, None)
        self.placements[held.record.instance_id] = held

    def encode(self) -> bytes:
        document = _Document(
            version=STATE_VERSION,
            term=self.term,
            chain_sequence=self.chain_sequence,
            chain_hash=self.chain_hash,
            epochs=self.epochs,
            placements=list(self.placements.values()),
            dispatches=list(self.dispatches.values()),
            owed=list(self.owed.values()),
        )
        return encode_document(document)

    @classmethod
    def decode(cls, data: bytes | None) -> PlaneState:
        """The state out of the document, empty if there is none. Raises `StateDamaged`."""
        state = cls()
        if data is None:
            return state
        document = decode_document(data, _Document, STATE_VERSION, "the placement control plane")
        state.term = document.term
        state.chain_sequence, state.chain_hash = document.chain_sequence, document.chain_hash
        state.epochs = dict(document.epochs)
        state.placements = _by_key(document.placements, [held.record.instance_id for held in document.placements])
        state.dispatches = _by_key(document.dispatches, [dispatch.decision_id for dispatch in document.dispatches])
        state.owed = _by_key(document.owed, [owed.key for owed in document.owed])
        return state


def _by_key(rows: list[T], keys: Iterable[str]) -> dict[str, T]:
    table = dict(zip(keys, rows, strict=True))
    if len(table) != len(rows) or "" in table:
        raise StateDamaged("the state of the placement control plane lists something twice or without its id")
    return table


__all__ = ["DOCUMENT", "STATE_VERSION", "Dispatch", "Held", "PlaneState"]
