"""What the edge planner must find again (design 7): one document, replaced whole.

Edge ids and epochs are counted here and never given twice. A life is written before its ends are ordered, and removed
in the write that says how it ended; so a crash at any point leaves either no end, or a life to look after. `owed` are
chain records; those that permit something (`added_key`, `permit_key`) are paid before it is done.
"""

from __future__ import annotations

from enum import StrEnum

from actors.chain.ledger import Owed
from actors.document import StateDamaged, decode_document, encode_document
from actors.edges.planning.wish import PlanRefused, Sizes, edge_name, parse_port
from messages.base import U64, U64_MAX, Record
from messages.edge import EdgeId, RunId
from messages.edge_end import EdgeFaultCode, EdgeParty

DOCUMENT = "edges"
STATE_VERSION = 1


class Pair(Record, frozen=True):
    """Two placed instances, each at its epoch, that an edge joins: what the gate judges."""

    producer: EdgeParty
    consumer: EdgeParty


class Closing(StrEnum):
    """Why a life is being closed.

    `stopped`: an instance was, by order; `withdrawn`: it could not be made durable, so it was never ordered.
    """

    FAULT = "fault"
    FINISHED = "finished"
    MOVED = "moved"
    REMOVED = "removed"
    STOPPED = "stopped"
    WITHDRAWN = "withdrawn"


class Life(Record, frozen=True):
    """One life of an edge. `ready`: it was once; `closing` with `reason`: it is being torn down.

    `producer_run`: which run of the producer it began with.
    """

    edge_id: EdgeId
    run_id: RunId
    pair: Pair
    producer_run: str = ""
    ready: bool = False
    closing: Closing | None = None
    reason: str = ""


class DesiredEdge(Record, frozen=True):
    """An edge that shall be. `run_id`: the last epoch given; `fault*`: of the newest life that faulted.

    `permitted`: the pair that the gate permitted, told by the record `permit_key`; `finished`: the pair whose stream
    ended, in the run `finished_run` of its producer; `removing`: it shall end. `since_ms`: Unix milliseconds.
    """

    source: str
    target: str
    sizes: Sizes
    added_key: str
    since_ms: U64
    run_id: RunId
    lives: U64 = 0
    faults: U64 = 0
    fault: EdgeFaultCode | None = None
    fault_text: str = ""
    permitted: Pair | None = None
    permit_key: str = ""
    finished: Pair | None = None
    finished_run: str = ""
    life: Life | None = None
    removing: bool = False

    @property
    def name(self) -> str:
        return edge_name(self.source, self.target)


class _Document(Record, frozen=True):
    version: int
    term: U64
    chain_sequence: int
    chain_hash: str
    last_edge_id: U64
    run_floor: U64
    edges: list[DesiredEdge]
    owed: list[Owed]


class PlanState:
    """The state in memory. Changes reach the disk with the next save of `encode()`."""

    def __init__(self) -> None:
        self.term = 0
        self.chain_sequence = -1
        self.chain_hash = ""
        self.last_edge_id = 0
        self.run_floor = 0
        self.edges: dict[str, DesiredEdge] = {}
        self.owed: dict[str, Owed] = {}

    def next_life(self, edge: DesiredEdge, pair: Pair, producer_run: str) -> Life:
        """A life of that edge with an edge id never given before and the next epoch. Not yet the edge's."""
        if self.last_edge_id >= U64_MAX or edge.run_id >= U64_MAX:
            raise OverflowError("every edge id was given")
        self.last_edge_id += 1
        return Life(
            edge_id=EdgeId(self.last_edge_id), run_id=RunId(edge.run_id + 1), pair=pair, producer_run=producer_run
        )

    def forget(self, name: str) -> None:
        """The edge shall be no more; if it comes back, its epochs go on."""
        self.run_floor = max(self.run_floor, self.edges.pop(name).run_id)

    def encode(self) -> bytes:
        document = _Document(
            version=STATE_VERSION,
            term=self.term,
            chain_sequence=self.chain_sequence,
            chain_hash=self.chain_hash,
            last_edge_id=self.last_edge_id,
            run_floor=self.run_floor,
            edges=list(self.edges.values()),
            owed=list(self.owed.values()),
        )
        return encode_document(document)

    @classmethod
    def decode(cls, data: bytes | None) -> PlanState:
        """The state out of the document, empty if there is none. Raises `StateDamaged`."""
        state = cls()
        if data is None:
            return state
        document = decode_document(data, _Document, STATE_VERSION, "the edge planner")
        state.term = document.term
        state.chain_sequence, state.chain_hash = document.chain_sequence, document.chain_hash
        state.last_edge_id, state.run_floor = document.last_edge_id, document.run_floor
        _check_names(document.edges)
        state.edges = {edge.name: edge for edge in document.edges}
        state.owed = {owed.key: owed for owed in document.owed}
        if len(state.edges) != len(document.edges) or len(state.owed) != len(document.owed):
            raise StateDamaged("the state of the edge planner lists something twice")
        _check_counters(state)
        return state


def _check_names(edges: list[DesiredEdge]) -> None:
    """Every edge has a name, and so has each of its ends."""
    try:
        for edge in edges:
            parse_port(edge.source, "source")
            parse_port(edge.target, "target")
            edge_name(edge.source, edge.target)
    except PlanRefused as refused:
        raise StateDamaged(f"the state of the edge planner holds an edge that cannot be: {refused.reason}") from None


def _check_counters(state: PlanState) -> None:
    """No life may have a number that would be given again."""
    lives = [edge.life for edge in state.edges.values() if edge.life is not None]
    ids = {life.edge_id for life in lives}
    if len(ids) != len(lives) or any(edge_id > state.last_edge_id for edge_id in ids):
        raise StateDamaged("the state of the edge planner holds an edge id twice, or one that it has not given yet")
    if any(edge.life is not None and edge.life.run_id != edge.run_id for edge in state.edges.values()):
        raise StateDamaged("the state of the edge planner holds a life whose epoch is not its edge's last")


__all__ = ["DOCUMENT", "STATE_VERSION", "Closing", "DesiredEdge", "Life", "Pair", "PlanState"]
