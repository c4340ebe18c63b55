"""What the procedures of the control plane share: state, view, identity, and the three ways to act on the world.

`save` makes the state durable, `call` asks a node, the audit (`audit.py`) writes the chain. What cannot be written
stops the act (promise 2). State that cannot be trusted (unreadable, behind the chain, behind a node's term) blocks
every grant until it is repaired (design 8).
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any, TypeVar

from actors.actor import AskFailed, Context
from actors.chain.ledger import Ledger
from actors.document import StateDamaged
from actors.packages.keys import TrustAnchors
from actors.placement.calls import Call, CallOutcome, CallRefused, CallUnreachable
from actors.placement.order import PlaneRefusal
from actors.placement.signed import Signer
from actors.placement.state import DOCUMENT, PlaneState
from actors.placement.view import View
from messages.base import Address, Record
from messages.control import Method, Refusal, RefusalCode
from messages.engine import ScoringWeights
from messages.placement import PlaneError
from messages.ports import LoadDocument, PortRefusal, SaveDocument

SOURCE = "workload.placement"

T = TypeVar("T")


class PlaneSettings(Record, frozen=True):
    """Deadlines and periods in seconds (P 4.2, design 8), and the engine's weights."""

    place_timeout_s: float = 280.0
    read_timeout_s: float = 20.0
    gate_timeout_s: float = 20.0
    write_timeout_s: float = 20.0
    dead_after_s: float = 5.0
    settle_every_s: float = 2.0
    weights: ScoringWeights = ScoringWeights()


class PlaneAddresses(Record, frozen=True):
    """Who is asked."""

    chain: Address = Address("chain/chain")
    gate: Address = Address("gate/gate")
    packages: Address = Address("controller/packages")
    store: Address = Address("controller/store")
    blobs: Address = Address("controller/blobs")


class Core:
    """Shared by every procedure of one incarnation.

    `active` are the slots that a procedure is working on; `ledger` is current once the state was compared with
    the chain; `dirty` while the state in memory is ahead of the disk.
    """

    def __init__(
        self,
        *,
        signer: Signer,
        view: View,
        anchors: TrustAnchors,
        settings: PlaneSettings,
        addresses: PlaneAddresses,
    ) -> None:
        self.signer = signer
        self.view = view
        self.anchors = anchors
        self.settings = settings
        self.addresses = addresses
        self.state = PlaneState()
        self.loaded = False
        self.dirty = False
        self.active: set[str] = set()
        self.known_term = 0
        self.known_epochs: dict[str, int] = {}
        self.ledger = Ledger(SOURCE, addresses.chain, settings.write_timeout_s)
        self._blocked: str | None = None
        self._calls = 0

    @property
    def node_id(self) -> str:
        return self.signer.node_id

    @property
    def blocked(self) -> str | None:
        """Why nothing may be granted, or None."""
        if self._blocked is None and not self.loaded:
            return "the state of the placement control plane is not loaded yet: its store does not answer"
        return self._blocked

    def block(self, reason: str) -> None:
        """Grant nothing more in this incarnation; the first reason stays."""
        self._blocked = self._blocked or reason

    def check_unblocked(self) -> None:
        """Raises `PlaneRefusal` (`stale_state`)."""
        if self.blocked is not None:
            raise PlaneRefusal(PlaneError.STALE_STATE, self.blocked)

    async def load(self, ctx: Context) -> None:
        """Read the state and raise the term, durably. A state that cannot be read is left as it is and blocks."""
        if self.loaded or self._blocked is not None:
            return
        timeout_s = self.settings.write_timeout_s
        try:
            document = await ctx.ask(self.addresses.store, LoadDocument(name=DOCUMENT), timeout_s)
            state = PlaneState.decode(document.data)
            known_term, known_epochs = state.term, dict(state.epochs)
            state.raise_term()
            await ctx.ask(self.addresses.store, SaveDocument(name=DOCUMENT, data=state.encode()), timeout_s)
        except StateDamaged as damage:
            self.block(f"{damage}; the file was left untouched: restore the last good one or move it away")
        except AskFailed as failure:
            if failure.code == PortRefusal.DAMAGED:
                self.block(f"the state of the placement control plane is damaged: {failure.reason}")
            ctx.log("error", "the state of the placement control plane could not be loaded", reason=str(failure))
        else:
            self.state, self.known_term, self.known_epochs = state, known_term, known_epochs
            self.loaded = True

    async def save(self, ctx: Context) -> None:
        """Make the state durable. Raises `PlaneRefusal` (`no_record`); the disk then holds an earlier state."""
        self.dirty = True
        data = self.state.encode()
        try:
            await ctx.ask(self.addresses.store, SaveDocument(name=DOCUMENT, data=data), self.settings.write_timeout_s)
        except AskFailed as failure:
            raise PlaneRefusal(
                PlaneError.NO_RECORD,
                f"the state could not be written ({failure}); nothing is sent that a restart would not know of",
            ) from None
        self.dirty = data != self.state.encode()

    async def save_quietly(self, ctx: Context) -> None:
        """Save what has happened already; a failure is logged and the save repeated with the next tick."""
        try:
            await self.save(ctx)
        except PlaneRefusal as refusal:
            ctx.log("error", "the state of the placement control plane was not written", reason=refusal.reason)

    async def call(
        self,
        ctx: Context,
        node_id: str,
        method: Method,
        result: type[T],
        *,
        body: Any = None,
        decision_id: str | None = None,
        timeout_s: float | None = None,
    ) -> CallOutcome[T]:
        """A signed call under this incarnation's term; 20 s unless told otherwise."""
        made = self._make(ctx, node_id, method, result, body=body, decision_id=decision_id, timeout_s=timeout_s)
        if not isinstance(made, Call):
            return made
        try:
            outcome = made.outcome(await made.ask)
        except AskFailed as failure:
            outcome = made.outcome(failure)
        return self._notice(node_id, outcome)

    async def call_all(
        self, ctx: Context, node_ids: Sequence[str], method: Method, result: type[T], *, body: Any = None
    ) -> dict[str, CallOutcome[T]]:
        """The same question to several nodes, side by side: a node that hangs delays nobody else's answer."""
        made = {node_id: self._make(ctx, node_id, method, result, body=body) for node_id in node_ids}
        asked = [(node_id, call) for node_id, call in made.items() if isinstance(call, Call)]
        answers = await ctx.all_of([call.ask for _, call in asked])
        outcomes = {node_id: call for node_id, call in made.items() if not isinstance(call, Call)}
        for (node_id, call), answer in zip(asked, answers, strict=True):
            outcomes[node_id] = self._notice(node_id, call.outcome(answer))
        return outcomes

    def _make(
        self,
        ctx: Context,
        node_id: str,
        method: Method,
        result: type[T],
        *,
        body: Any = None,
        decision_id: str | None = None,
        timeout_s: float | None = None,
    ) -> Call[T] | CallOutcome[T]:
        node = self.view.nodes.get(node_id)
        if node is None:
            return CallUnreachable(f"{node_id} is not in the directory")
        try:
            return Call(
                ctx,
                self.signer,
                node.identity,
                method,
                result,
                term=self.state.term,
                nonce=self._nonce(ctx),
                timeout_s=self.settings.read_timeout_s if timeout_s is None else timeout_s,
                body=body,
                decision_id=decision_id,
            )
        except ValueError as error:
            return CallRefused(Refusal(code=RefusalCode.INVALID_REQUEST, reason=str(error)))

    def _nonce(self, ctx: Context) -> str:
        """Unpredictable, and never one of an earlier incarnation even where the random stream begins anew."""
        self._calls += 1
        text = f"{self.state.term}.{self._calls}.{ctx.random.getrandbits(128)}"
        return sha256(text.encode()).hexdigest()[:32]

    def _notice(self, node_id: str, outcome: CallOutcome[T]) -> CallOutcome[T]:
        """A node that has seen a higher term knows more than this controller."""
        if isinstance(outcome, CallRefused) and outcome.refusal.code is RefusalCode.STALE_TERM:
            self.block(
                f"{self.view.label(node_id)} has seen a higher term than {self.state.term} ({outcome.refusal.reason}): "
                "this controller's state is old, or another controller works with its key; restore the newest state"
            )
        return outcome


__all__ = ["SOURCE", "Core", "PlaneAddresses", "PlaneSettings"]
