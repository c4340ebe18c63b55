"""`<node>/agent`: does on one node what the controller, and nobody else, orders by signed objects (P 1.2, design 8).

A request is verified in the order of P 2.6, its term compared with the highest ever seen, and then handled by one
module each: `placing` for place and load, `verbs` for the rest. `supervising` keeps what is held as it should be. The
agent itself holds what belongs to the conversation: nonces, the refusal budget, beats and facts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec

from actors.actor import Actor, AskFailed, Context, Procedure
from actors.chain.canonical import encode
from actors.node import placing, supervising, verbs
from actors.node.budget import RefusalBudget
from actors.node.facts import capabilities_of, issue
from actors.node.host import NATIVE, Indeterminate, Node, Unsettled, WorkloadHost
from actors.node.instances import row_of
from actors.node.settings import AgentAddresses, AgentSettings, addresses_of
from actors.node.state import DOCUMENT, decode_state
from actors.packages.keys import TrustAnchors
from actors.placement.signed import NonceGuard, Rejected, Signer, is_decision_id, sign_response, verify_request
from messages.base import NodeName
from messages.control import (
    MAX_REQUEST_BYTES,
    Accepted,
    ControlAnswer,
    ControlCall,
    ControlRequest,
    Method,
    Refusal,
    RefusalCode,
    Refused,
    SignedObject,
)
from messages.gate import Check
from messages.node import AgentMessage, Beat, GetInstances, InstanceView, NodeBeat, PayOwed, SuperviseTick
from messages.ports import AdoptInstances, InstanceEnded, LoadDocument, ProbeMachine, ReadClock
from messages.system import Down, PeerDown, PeerUp
from messages.workload_spec import TrustTier

CONTROLLER = NodeName("controller")
CHAIN = NodeName("chain")
SEQUENCES_PER_START = 2**32
"""Facts of a later incarnation have higher numbers than any of an earlier one."""


class NodeAgent(Actor[AgentMessage]):
    """`seed`: the node's 32-byte Ed25519 secret; `controller_key`: the one key that may order, from the directory.

    `anchors`: the package signers this node accepts; `tier`: what the operator trusts it with; `claimed`: capability
    ids that the operator states for it. Starting fails, by crash, when the state is damaged or a port of the node does
    not answer: an agent that knows nothing must not answer that there is nothing.
    """

    mailbox: ClassVar[Any] = AgentMessage

    def __init__(
        self,
        *,
        name: NodeName,
        seed: bytes,
        controller_key: bytes,
        anchors: TrustAnchors,
        tier: TrustTier,
        claimed: Sequence[str] = (),
        settings: AgentSettings | None = None,
        addresses: AgentAddresses | None = None,
    ) -> None:
        settings = settings or AgentSettings()
        node = Node(name=name, signer=Signer(seed), tier=tier, anchors=anchors)
        self._host = WorkloadHost(node, settings, addresses or addresses_of(name))
        self._controller_key = controller_key
        self._claimed = tuple(claimed)
        self._nonces = NonceGuard()
        self._budget = RefusalBudget(settings.refusals_chained, settings.refusals_window_s)
        self._facts: SignedObject | None = None
        self._facts_at: float | None = None
        self._facts_count = 0
        self._facts_told = False
        self._beating = False

    # starting

    async def started(self, ctx: Context) -> None:
        """Own ports only: what was, what is, and the two made to agree."""
        host, patience_s = self._host, self._host.settings.port_timeout_s
        document = await ctx.ask(host.to.store, LoadDocument(name=DOCUMENT), timeout_s=patience_s)
        state = decode_state(document.data)
        host.records.begin(f"{state.starts + 1}.{ctx.wall()}")  # starts are counted anew when the state was lost
        host.owed = {entry.idempotency_key: entry for entry in state.owed}
        await self._read_clock(ctx)
        await self._probe(ctx, state.starts + 1)
        ctx.watch(host.to.launcher)
        found = await ctx.ask(host.to.launcher, AdoptInstances(), timeout_s=patience_s)
        if document.data is None and found.rows:
            what = (
                "the state of this node is gone: it ends what it ran, and floors and terms that it kept are forgotten"
            )
            ctx.log("error", what, instances=len(found.rows))
        settled = supervising.reconcile(host, state, found.rows, ctx)
        await host.save(ctx, lambda _: msgspec.structs.replace(settled, starts=state.starts + 1))
        await supervising.clear(host, ctx, found.rows)
        ctx.watch_peer(CONTROLLER)
        ctx.watch_peer(CHAIN)
        ctx.after(0, Beat())
        ctx.log("info", "node agent ready", node=host.node.signer.node_id, instances=len(settled.instances))

    def receive(self, message: AgentMessage, ctx: Context) -> Procedure | None:
        host = self._host
        match message:
            case ControlCall():
                return self._answer(message, ctx)
            case InstanceEnded(evidence=evidence):
                run = host.runs.get(evidence.instance_id)
                if run is not None:
                    run.ended = evidence
                return supervising.ended(host, ctx, evidence, run)
            case Beat():
                ctx.after(host.settings.beat_s, Beat())
                return self._beat(ctx)
            case SuperviseTick():
                return supervising.supervise(host, ctx)
            case PayOwed():
                return host.pay(ctx)
            case PeerUp(process=process):
                if process == CONTROLLER:
                    self._facts_told = False
                    return self._beat(ctx)
                host.pay_soon(ctx)
            case PeerDown():
                pass
            case Down(address=address, reason=reason):
                raise Indeterminate(f"{address} ended ({reason}): what runs has to be found anew")
            case GetInstances():
                ctx.reply(InstanceView(rows=self._rows()))
        return None

    def state(self) -> object:
        host = self._host
        return {
            "node_id": host.node.signer.node_id,
            "starts": host.state.starts,
            "term": host.state.term,
            "instances": self._rows(),
            "in_flight": [row.decision_id for row in host.in_flight.rows()],
            "marks": msgspec.to_builtins(host.state.marks),
            "owed": len(host.owed),
        }

    def _rows(self) -> list[dict[str, object]]:
        held = self._host.state.instances.values()
        return [msgspec.to_builtins(row_of(instance, self._host.runs.get(instance.instance_id))) for instance in held]

    # requests

    async def _answer(self, call: ControlCall, ctx: Context) -> None:
        """Verify, handle, sign. Only what is certain is signed: a signed refusal says that nothing was done."""
        host = self._host
        try:
            request = verify_request(
                call.request,
                me=host.node.signer.node_id,
                now_ms=ctx.wall(),
                allows=lambda key, _: key == self._controller_key,
                nonces=self._nonces,
                method=call.method,
            )
        except Rejected as rejected:
            self._refuse_stranger(call, rejected.refusal, ctx)
            return
        try:
            outcome: Accepted | Refused = Accepted(result=await self._handle(request, ctx))
        except Rejected as rejected:
            outcome = self._refused(request, rejected.refusal, ctx)
        except AskFailed as failure:
            reason = f"{failure.to}: {failure.failure.value}: {failure.reason}"
            if request.method in (method.value for method in Method if method.mutates):
                ctx.refuse("indeterminate", reason)
                return
            outcome = self._refused(request, Refusal(code=RefusalCode.RUNTIME, reason=reason), ctx)
        except Unsettled as unsettled:
            ctx.log("error", "an order is unsettled", decision=request.decision_id, reason=str(unsettled))
            ctx.refuse("indeterminate", str(unsettled))
            return
        ctx.reply(ControlAnswer(response=sign_response(host.node.signer, request, outcome)))

    async def _handle(self, request: ControlRequest, ctx: Context) -> Any:
        """The result of a verified request. Raises `Rejected`."""
        host = self._host
        if request.term < host.state.term:
            raise Rejected(
                RefusalCode.STALE_TERM,
                f"term {request.term} is over, this node has seen {host.state.term}: another controller has begun",
            )
        method = next((known for known in Method if known.value == request.method), None)
        if method is None:
            raise await self._unknown(request, ctx)
        if method.mutates and not is_decision_id(request.decision_id):
            raise Rejected(RefusalCode.INVALID_REQUEST, f"{method.value} needs a decision id of 64 lower-case hex")
        match method:
            case Method.PLACE | Method.LOAD:
                order = placing.read_order(request, may_start=method is Method.PLACE)
                placing.check_free(host, order)
                with host.in_flight.mark(order.decision_id, order.body.slot):
                    await self._raise_term(request.term, ctx)
                    return await placing.carry_out(host, ctx, order)
            case Method.START | Method.STOP | Method.UNLOAD:
                body = verbs.read_body(request)
                await self._raise_term(request.term, ctx)
                return await verbs.act(host, ctx, method, body)
            case Method.FENCE:
                fence = verbs.read_fence(request)
                await self._raise_term(request.term, ctx)
                return await verbs.fence(host, ctx, fence)
            case Method.STATUS:
                return verbs.status(host, verbs.read_body(request))
            case Method.LOGS:
                return await verbs.logs(host, ctx, verbs.read_body(request))
            case Method.DESCRIBE:
                return verbs.describe(host, self._facts, ctx.wall() // 1000)

    async def _raise_term(self, term: int, ctx: Context) -> None:
        """Remember the highest term before acting in it. Raises `Rejected` when that cannot be written."""
        if term > self._host.state.term:
            await self._host.save(ctx, lambda state: state.with_term(term) if term > state.term else state)

    async def _unknown(self, request: ControlRequest, ctx: Context) -> Rejected:
        """Methods that do not exist: `workload.*` goes to the gate, so that the attempt is on its trail."""
        if not request.method.startswith("workload."):
            return Rejected(RefusalCode.INVALID_REQUEST, f"{request.method[:64]} is no method of a node")
        host = self._host
        text = encode({"requester": request.requester, "method": request.method[:64]})
        check = Check(agent_id=request.requester, action=request.method[:64], context=text)
        reason = f"this node has no method {request.method[:64]}"
        try:
            verdict = (await ctx.ask(host.to.gate, check, timeout_s=host.settings.gate_timeout_s)).verdict
            reason = verdict.reason or reason
        except AskFailed as failure:
            ctx.log("warning", "the gate was not told of an unknown method", reason=str(failure))
        return Rejected(RefusalCode.UNKNOWN_METHOD, reason)

    def _refused(self, request: ControlRequest, refusal: Refusal, ctx: Context) -> Refused:
        """The refusal of the controller's own request, which is always recorded."""
        host = self._host
        entry = host.records.refused(
            "handle",
            refusal,
            method=request.method[:64],
            requester=request.requester,
            decision_id=request.decision_id if is_decision_id(request.decision_id) else None,
        )
        host.owe(ctx, entry)
        return Refused(refusal=refusal)

    def _refuse_stranger(self, call: ControlCall, refusal: Refusal, ctx: Context) -> None:
        """Answered like any other; recorded as far as the budget goes, so strangers cannot make the chain grow."""
        host = self._host
        suppressed = self._budget.take(ctx.now())
        if suppressed is not None:
            host.owe(ctx, host.records.refused("verify", refusal, suppressed=suppressed))
        elif self._budget.suppressed == 1:
            ctx.log("warning", "refusals of strangers are no longer recorded one by one", sender=ctx.sender)
        request = _as_far_as_read(call)
        ctx.reply(ControlAnswer(response=sign_response(host.node.signer, request, Refused(refusal=refusal))))

    # beats and facts

    async def _beat(self, ctx: Context) -> None:
        """Tell the controller that this node lives; a beat in which a port is slow leaves with what was read last."""
        host = self._host
        host.pay_soon(ctx)
        if any(supervising.needs_attention(host, name) for name in host.state.instances):
            ctx.after(0, SuperviseTick())
        if not self._beating:
            self._beating = True
            try:
                await self._read_clock(ctx)
                if self._facts_at is None or ctx.now() - self._facts_at >= host.settings.facts_refresh_s:
                    await self._probe(ctx, host.state.starts)
            except AskFailed as failure:
                ctx.log("warning", "the probe does not answer", reason=str(failure))
            finally:
                self._beating = False
        assert host.clock is not None, "the clock is read before the first beat"
        beat = NodeBeat(
            node_id=host.node.signer.node_id,
            name=host.node.name,
            agent=ctx.address,
            incarnation=host.state.starts,
            clock=host.clock,
            instances=len(host.state.instances),
            facts=None if self._facts_told else self._facts,
            routes=[NATIVE],
        )
        if ctx.tell(host.to.plane, beat):
            self._facts_told = True

    async def _read_clock(self, ctx: Context) -> None:
        host = self._host
        host.read_clock(await ctx.ask(host.to.probe, ReadClock(), timeout_s=host.settings.beat_s), ctx.now())

    async def _probe(self, ctx: Context, starts: int) -> None:
        """Look at the machine and sign what is found, to be told with the next beat."""
        host = self._host
        self._facts_at = ctx.now()
        probed = await ctx.ask(host.to.probe, ProbeMachine(), timeout_s=host.settings.port_timeout_s)
        host.capabilities, notes = capabilities_of(probed, self._claimed)
        self._facts_count += 1
        self._facts = issue(
            host.node.signer,
            host.capabilities,
            notes,
            issued_at_s=ctx.wall() // 1000,
            ttl_s=host.settings.facts_ttl_s,
            seq=starts * SEQUENCES_PER_START + self._facts_count,
        )
        self._facts_told = False


def _as_far_as_read(call: ControlCall) -> ControlRequest:
    """What to answer to: method and nonce of the payload, if it reads as a request at all."""
    try:
        if len(call.request.payload) > MAX_REQUEST_BYTES:
            raise ValueError("too large to be read")
        return msgspec.msgpack.decode(call.request.payload, type=ControlRequest)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return ControlRequest(
            version=1,
            method=call.method[:64],
            requester="",
            target="",
            nonce="",
            issued_at_ms=0,
            expires_at_ms=0,
            term=0,
        )


__all__ = ["NodeAgent"]
