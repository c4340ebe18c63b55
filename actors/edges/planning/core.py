"""What the procedures of the edge planner share: its durable state, and its two ways to make something certain.

`save` makes the state durable, the ledger writes the chain. What permits an act is written before it, or there is no
act (promise 2); what has happened is owed and paid later. A state that cannot be trusted (unreadable, behind the chain)
orders nothing and closes nothing until it is repaired: running edges go on.
"""

from __future__ import annotations

from typing import Any

from actors.actor import AskFailed, Context
from actors.chain.canonical import decode
from actors.chain.ledger import Ledger, NotRecorded
from actors.document import StateDamaged
from actors.edges.planning.situation import PlanTimes
from actors.edges.planning.state import DOCUMENT, DesiredEdge, Life, PlanState
from actors.edges.planning.wish import MIB, PlanRefused
from messages.base import Address, Record
from messages.chain import ChainRecord
from messages.edge_end import EdgeParty
from messages.edge_plan import EdgePlanRefusal
from messages.ports import LoadDocument, PortRefusal, SaveDocument

SOURCE = "edges.planner"
PLAN = "edge.plan"
LIFE = "edge.life"
OPENING = "opening"

PAYING = "paying"
"""Whoever writes what is owed holds this turn, so that the chain has it in order."""

SAVING = "saving"
"""Whoever writes the state holds this turn."""


class PlannerSettings(Record, frozen=True):
    """Seconds, and bytes of ring memory of the largest node while none has told its own.

    `retry_s`: after something did not work; `denied_retry_s`: the gate is asked again about a pair that it denied, when
    it has not restarted since.
    """

    tick_s: float = 0.5
    write_timeout_s: float = 20.0
    gate_timeout_s: float = 20.0
    ask_timeout_s: float = 5.0
    start_timeout_s: float = 10.0
    remove_timeout_s: float = 25.0
    retry_s: float = 1.0
    denied_retry_s: float = 60.0
    arena_bytes: int = 256 * MIB
    times: PlanTimes = PlanTimes()


class PlannerAddresses(Record, frozen=True):
    """Who is asked."""

    chain: Address = Address("chain/chain")
    gate: Address = Address("gate/gate")
    plane: Address = Address("controller/plane")
    store: Address = Address("controller/store")


class PlanCore:
    """Shared by every procedure of one incarnation. `dirty` while the state in memory is ahead of the disk.

    A record goes to the chain only when the debt is on disk, so the chain never tells what the state would not know.
    """

    def __init__(self, agent_id: str, settings: PlannerSettings, addresses: PlannerAddresses) -> None:
        self.agent_id = agent_id
        self.settings = settings
        self.addresses = addresses
        self.ledger = Ledger(SOURCE, addresses.chain, settings.write_timeout_s)
        self.state = PlanState()
        self.loaded = False
        self.dirty = False
        self._known_edge_id = 0
        self._durable: set[str] = set()
        self._wanted = self._written = 0
        self._blocked: str | None = None
        self._not_compared = "the state of the edge planner was not compared with the chain yet"

    @property
    def distrust(self) -> str:
        """Why nothing may be ordered or closed; empty when the state is trusted."""
        if self._blocked is not None:
            return self._blocked
        if not self.loaded:
            return "the state of the edge planner is not loaded yet: its store does not answer"
        return "" if self.ledger.is_current() else self._not_compared

    def check_trusted(self) -> None:
        """Raises `PlanRefused` (`stale_state`)."""
        if self.distrust:
            raise PlanRefused(EdgePlanRefusal.STALE_STATE, self.distrust)

    async def load(self, ctx: Context) -> bool:
        """Read the state and raise the term, durably; True when that was done now. A state that cannot be read is left
        as it is and blocks."""
        if self.loaded or self._blocked is not None:
            return False
        timeout_s = self.settings.write_timeout_s
        try:
            document = await ctx.ask(self.addresses.store, LoadDocument(name=DOCUMENT), timeout_s)
            state = PlanState.decode(document.data)
            self._known_edge_id = state.last_edge_id
            state.term += 1
            await ctx.ask(self.addresses.store, SaveDocument(name=DOCUMENT, data=state.encode()), timeout_s)
        except StateDamaged as damage:
            self._blocked = f"{damage}; the file was left untouched: restore the last good one or move it away"
        except AskFailed as failure:
            if failure.code == PortRefusal.DAMAGED:
                self._blocked = f"the state of the edge planner is damaged: {failure.reason}"
            ctx.log("error", "the state of the edge planner could not be loaded", reason=str(failure))
        else:
            self.state, self.loaded = state, True
            self._durable = set(state.owed)
        return self.loaded

    async def compare(self, ctx: Context) -> None:
        """Compare the loaded state with the chain, once."""
        if not self.loaded or self._blocked is not None or self.ledger.is_current():
            return
        try:
            problem = await self.ledger.catch_up(ctx, self.state, self._behind)
        except NotRecorded as failure:
            self._not_compared = f"the state of the edge planner cannot be compared with the chain: {failure.reason}"
        else:
            self._blocked = self._blocked or problem

    def _behind(self, record: ChainRecord) -> str | None:
        told = decode(record.payload)
        if not isinstance(told, dict) or told.get("phase") != OPENING:
            return None
        edge_id = str(told.get("edge_id"))
        if edge_id.isdecimal() and int(edge_id) <= self._known_edge_id:
            return None
        return (
            f"the state is behind the chain: record {record.sequence} tells of edge id {edge_id[:20]}, the state gave "
            f"none above {self._known_edge_id}; restore the newest state of the controller before edges are opened"
        )

    async def save(self, ctx: Context) -> None:
        """Make the state durable. Raises `PlanRefused` (`no_record`); the disk then holds an earlier state.

        The state is one document, so whoever waits while it is written shares the next write.
        """
        self.dirty = True
        self._wanted += 1
        wanted = self._wanted
        try:
            async with ctx.exclusive(SAVING, self.settings.write_timeout_s):
                if self._written < wanted:
                    await self._write(ctx)
        except AskFailed as failure:
            raise PlanRefused(
                EdgePlanRefusal.NO_RECORD,
                f"the state could not be written ({failure}); nothing is ordered that a restart would not know of",
            ) from None

    async def _write(self, ctx: Context) -> None:
        data, owed, wanted = self.state.encode(), set(self.state.owed), self._wanted
        await ctx.ask(self.addresses.store, SaveDocument(name=DOCUMENT, data=data), self.settings.write_timeout_s)
        self._written = wanted
        self._durable = (self._durable | owed) & set(self.state.owed)
        self.dirty = self._wanted > wanted or data != self.state.encode()

    async def save_quietly(self, ctx: Context) -> None:
        """Save what has happened already; a failure is logged and the save repeated with the next tick."""
        try:
            await self.save(ctx)
        except PlanRefused as refused:
            ctx.log("error", "the state of the edge planner was not written", reason=refused.reason)

    def owe_plan(self, edge: DesiredEdge, phase: str, **more: Any) -> str:
        """What an edge that shall be, or shall be no more, is told as. Returns the key of the debt."""
        payload = {
            "phase": phase,
            "edge": edge.name,
            "max_extent_bytes": edge.sizes.max_extent_bytes,
            "ring_bytes": edge.sizes.ring_bytes,
            **more,
        }
        self.dirty = True
        return self.ledger.owe(self.state, PLAN, payload, spare="reason")

    def owe_life(self, edge: DesiredEdge, life: Life, phase: str, **more: Any) -> str:
        """What happens in one life of an edge. Returns the key of the debt."""
        payload = {
            "phase": phase,
            "edge": edge.name,
            "edge_id": str(life.edge_id),
            "epoch": str(life.run_id),
            "producer": _told(life.pair.producer),
            "consumer": _told(life.pair.consumer),
            **more,
        }
        self.dirty = True
        return self.ledger.owe(self.state, LIFE, payload, spare="text")

    async def pay(self, ctx: Context) -> bool:
        """Write what is owed and saved, oldest first. False when the chain does not take it now."""
        try:
            async with ctx.exclusive(PAYING, self.settings.write_timeout_s):
                if await self.ledger.pay(ctx, self.state, self._durable):
                    self.dirty = True
        except AskFailed:  # somebody else is at it, and slowly
            return False
        return self._durable.isdisjoint(self.state.owed)

    def withdraw(self, key: str) -> bool:
        """Take a debt back whose own save failed; False when another save or the chain has it already."""
        if key in self._durable or key not in self.state.owed:
            return False
        del self.state.owed[key]
        return True

    def is_recorded(self, edge: DesiredEdge) -> bool:
        """Whether the chain has all that permits what this edge does."""
        return edge.added_key not in self.state.owed and edge.permit_key not in self.state.owed


def _told(party: EdgeParty) -> dict[str, str]:
    return {
        "instance_id": party.instance_id,
        "epoch": str(party.epoch),
        "node": party.node_id,
        "port": party.port,
    }


__all__ = ["LIFE", "OPENING", "PLAN", "SOURCE", "PlanCore", "PlannerAddresses", "PlannerSettings"]
