"""What an agent's procedures share: durable state, the node's own gate, the launcher, the records (G 5.4, design 9).

An act that grows something (load, start) needs a permit that is on the chain; what takes something down does not wait
for the chain, and a restart within the granted epoch is no new act and asks nobody. The state in memory is the state
on disk: a change that cannot be written did not happen, and one of which that is not known ends the agent, whose next
incarnation reads what is true.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from actors.actor import AskFailed, Context
from actors.chain.canonical import encode
from actors.node.facts import attribute
from actors.node.instances import InFlight, Instance, Run, arguments_of, environment_of
from actors.node.lifecycle import Life, step
from actors.node.records import Records, evidence_of
from actors.node.settings import AgentAddresses, AgentSettings
from actors.node.state import DOCUMENT, AgentState, encode_state
from actors.packages.keys import TrustAnchors
from actors.placement.signed import Rejected, Signer
from messages.base import NodeName
from messages.capabilities import Capability
from messages.chain import Append, ChainRefusal, Entry
from messages.control import LifeState, RefusalCode
from messages.gate import Action, Check, Decision, Network, PackageTrust, WorkloadContext
from messages.node import PayOwed
from messages.ports import (
    ClockReading,
    PortRefusal,
    RemoveInstance,
    RunEvidence,
    SaveDocument,
    StartInstance,
    StopInstance,
)
from messages.workload_spec import TrustTier

NATIVE = "native"
"""The one adapter: a process group of its own; nothing restricts its network."""

_FOR_GOOD = frozenset(
    {ChainRefusal.PAYLOAD_TOO_LARGE, ChainRefusal.PAYLOAD_INVALID, ChainRefusal.RESERVED, ChainRefusal.KEY_REUSED}
)


END_TOLD_S, END_TOLD_WITHIN = 0.05, 20
"""How often, and how many times, an end is looked for that was told and not yet heard."""


class Indeterminate(Exception):
    """A port of this node may or may not have acted. Not caught: the agent ends, and starts from what is true."""


class Unsettled(Exception):
    """A request that was neither carried out nor taken back. It gets no signed answer, so its asker finds out."""


@dataclass(frozen=True, slots=True)
class Node:
    """Who this node is: configured name, key, tier that the operator gave it, signers it accepts."""

    name: NodeName
    signer: Signer
    tier: TrustTier
    anchors: TrustAnchors


class WorkloadHost:
    """`runs` are the processes known to live; `departed` what was taken down on purpose, the newest 256."""

    DEPARTED_KEPT = 256

    def __init__(self, node: Node, settings: AgentSettings, to: AgentAddresses) -> None:
        self.node = node
        self.settings = settings
        self.to = to
        self.state = AgentState()
        self.records = Records(node.signer.node_id)
        self.in_flight = InFlight()
        self.runs: dict[str, Run] = {}
        self.departed: dict[str, str] = {}
        self.capabilities: tuple[Capability, ...] = ()
        self.clock: ClockReading | None = None
        self._clock_read_at = 0.0
        self.owed: dict[str, Entry] = {}
        self._paying = self._pay_due = False

    # the durable state

    async def save(self, ctx: Context, change: Callable[[AgentState], AgentState], *owed: Entry) -> None:
        """Apply `change` to the newest state and make it durable, with the records that are then owed.

        `change` may raise `Rejected`. Raises `Rejected` (`runtime`) when it was not written: nothing has changed.
        """
        async with ctx.exclusive("state", timeout_s=self.settings.turn_timeout_s):
            changed = msgspec.structs.replace(change(self.state), owed=(*self.owed.values(), *owed))
            order = SaveDocument(name=DOCUMENT, data=encode_state(changed))
            try:
                await ctx.ask(self.to.store, order, timeout_s=self.settings.port_timeout_s)
            except AskFailed as failure:
                if not failure.nothing_happened:
                    raise Indeterminate(f"the state may be saved or not: {failure}") from failure
                reason = f"the agent cannot write its state, so nothing was changed: {failure.code} {failure.reason}"
                raise Rejected(RefusalCode.RUNTIME, reason) from None
            self.state = changed
            self.owe(ctx, *owed)

    async def update(self, ctx: Context, instance: Instance, *owed: Entry) -> None:
        """Replace an instance whose turn the caller holds."""
        await self.save(ctx, lambda state: state.with_instance(instance), *owed)

    # records

    def owe(self, ctx: Context, *entries: Entry) -> None:
        """Records to write, in order; on disk with the next save at the latest."""
        self.owed.update((entry.idempotency_key, entry) for entry in entries)
        self.pay_soon(ctx)

    def pay_soon(self, ctx: Context) -> None:
        if self.owed and not self._pay_due:
            self._pay_due = True
            ctx.after(0, PayOwed())

    async def pay(self, ctx: Context) -> None:
        """Write what is owed, in order, until nothing is left or the chain does not take it."""
        self._pay_due = False
        if self._paying:
            return
        self._paying = True
        try:
            while self.owed:
                key, entry = next(iter(self.owed.items()))
                try:
                    await ctx.ask(self.to.chain, Append(entry=entry), timeout_s=self.settings.chain_timeout_s)
                except AskFailed as failure:
                    if failure.code not in _FOR_GOOD:
                        return
                    ctx.log("error", "the chain will never take a record", kind=entry.kind, reason=failure.reason)
                del self.owed[key]
        finally:
            self._paying = False

    def check_owed(self) -> None:
        """Raises `Rejected` when so much is owed to the chain that nothing new is begun."""
        if len(self.owed) >= self.settings.owed_limit:
            reason = f"{len(self.owed)} records wait for the chain; nothing new is begun until it takes them"
            raise Rejected(RefusalCode.OVERLOADED, reason)

    # the gate

    async def permit(self, ctx: Context, action: Action, instance: Instance) -> None:
        """Ask the node's own gate for an act that grows something. Raises `Rejected` (`governance`).

        The verdict's record is the record that has to be there before the act.
        """
        check = self._check(action, instance, teardown=False)
        try:
            verdict = (await ctx.ask(self.to.gate, check, timeout_s=self.settings.gate_timeout_s)).verdict
        except AskFailed as failure:
            raise Rejected(RefusalCode.GOVERNANCE, f"{action.value}: the gate gave no verdict: {failure}") from None
        if verdict.decision is not Decision.PERMIT:
            raise _denied(action, verdict.decision, verdict.reason)
        if not verdict.chained:
            raise Rejected(RefusalCode.GOVERNANCE, f"{action.value}: the permit is not on the chain")

    async def permit_teardown(self, ctx: Context, action: Action, instance: Instance) -> None:
        """Ask for a stop or unload. A denial stands; a gate or chain that gives no verdict hinders nothing."""
        check = self._check(action, instance, teardown=True)
        try:
            verdict = (await ctx.ask(self.to.gate, check, timeout_s=self.settings.gate_timeout_s)).verdict
        except AskFailed as failure:
            ctx.log("warning", "taken down without a verdict", instance=instance.instance_id, reason=str(failure))
            return
        if verdict.decision is not Decision.PERMIT:
            raise _denied(action, verdict.decision, verdict.reason)

    def _check(self, action: Action, instance: Instance, *, teardown: bool) -> Check:
        context = WorkloadContext(
            kind=instance.kind,
            package_trust=PackageTrust.PINNED_SIGNER,
            node_tier=self.node.tier,
            network=Network.EGRESS,
            resource_cost=min(1.0, instance.limits.cpu_pct / 400),
            package_id=instance.package_id,
            signer_keys=list(instance.signer_keys),
            artifact_hashes=list(instance.artifact_hashes),
        )
        text = encode({"workload": msgspec.to_builtins(context)})
        return Check(agent_id=instance.requester, action=action.value, context=text, teardown=teardown)

    # the launcher; the caller holds the instance's turn

    async def launch(self, ctx: Context, instance: Instance) -> Run:
        """Start the process. Raises `Rejected` (`runtime`, `admission`): then nothing runs."""
        order = StartInstance(
            instance_id=instance.instance_id,
            arguments=arguments_of(instance.config),
            environment=environment_of(instance),
            once=instance.once,
            epoch=str(instance.epoch),
            orphan_after_s=self.settings.orphan_after_s,
        )
        try:
            started = await ctx.ask(self.to.launcher, order, timeout_s=self.settings.port_timeout_s)
        except AskFailed as failure:
            if failure.code == PortRefusal.INVALID_STATE:
                raise Indeterminate(f"{instance.instance_id} runs, unknown to the agent: {failure.reason}") from failure
            raise _port_refused("start", instance.instance_id, failure) from None
        run = self.runs[instance.instance_id] = Run(started.pid)
        return run

    async def halt(self, ctx: Context, instance_id: str, grace_ms: int) -> RunEvidence | None:
        """Stop the process, if one runs; when this returns no descendant is left. Raises `Rejected` (`runtime`)."""
        timeout_s = grace_ms / 1000 + self.settings.port_timeout_s
        order = StopInstance(instance_id=instance_id, grace_ms=grace_ms)
        try:
            evidence: RunEvidence | None = await ctx.ask(self.to.launcher, order, timeout_s=timeout_s)
        except AskFailed as failure:
            if failure.code not in (PortRefusal.INVALID_STATE, PortRefusal.NOT_FOUND):
                raise _port_refused("stop", instance_id, failure) from None
            evidence = await self._told_end(ctx, instance_id)
        self.runs.pop(instance_id, None)
        return evidence

    async def _told_end(self, ctx: Context, instance_id: str) -> RunEvidence | None:
        """How a run ended that the launcher no longer has. An answer overtakes what was told before it: wait for that.

        Raises `Indeterminate` when no end is told: then the launcher is not the one that had it.
        """
        run = self.runs.get(instance_id)
        for _ in range(END_TOLD_WITHIN):
            if run is None or run.ended is not None:
                return None if run is None else run.ended
            await ctx.sleep(END_TOLD_S)
        raise Indeterminate(f"{instance_id} should run, the launcher knows nothing of it")

    async def remove(self, ctx: Context, instance_id: str) -> bool:
        """Remove the folder of an instance that does not run. A failure is told, and tried again at the next start."""
        try:
            await ctx.ask(
                self.to.launcher, RemoveInstance(instance_id=instance_id), timeout_s=self.settings.port_timeout_s
            )
        except AskFailed as failure:
            if failure.code == PortRefusal.NOT_FOUND:
                return True
            ctx.log("warning", "a folder was not removed", instance=instance_id, reason=str(failure))
            return False
        return True

    # the life of one instance; the caller holds its turn

    async def start(self, ctx: Context, instance_id: str, still: Callable[[AgentState], None] = lambda _: None) -> Run:
        """A start that was asked for: a fresh restart budget. Raises `Rejected`; then it does not run.

        `still` looks at the newest state in the write after which nothing comes between; it may raise `Rejected`.
        """
        instance = self.instance(instance_id)
        if instance_id in self.runs:
            raise Rejected(RefusalCode.RUNTIME, f"{instance_id} runs already (pid {self.runs[instance_id].pid})")
        await self.permit(ctx, Action.START, instance)
        begun = msgspec.structs.replace(instance, life=self._begun(instance.life, ctx), desired=True, last=None)

        def begin(state: AgentState) -> AgentState:
            still(state)
            return state.with_instance(begun)

        await self.save(ctx, begin)
        try:
            run = await self.launch(ctx, begun)
        except Rejected as rejected:
            failed = msgspec.structs.replace(instance, life=step(begun.life, LifeState.STOPPED, ctx.wall()))
            reason = rejected.refusal.reason
            record = self.records.failed(Action.START, instance, "backend", reason)
            await self.update(ctx, msgspec.structs.replace(failed, desired=False), record)
            raise
        self.owe(ctx, self.records.done(Action.START, begun, pid=run.pid))
        return run

    async def stop(self, ctx: Context, instance_id: str, grace_ms: int) -> RunEvidence | None:
        """A stop that was asked for, which is final: it is durable that nothing shall run before the process is ended.

        Raises `Rejected`.
        """
        instance = self.instance(instance_id)
        await self.permit_teardown(ctx, Action.STOP, instance)
        return await self.end(ctx, instance, grace_ms)

    async def end(self, ctx: Context, instance: Instance, grace_ms: int) -> RunEvidence | None:
        """As `stop`, without asking."""
        instance_id = instance.instance_id
        if instance.desired:
            instance = msgspec.structs.replace(instance, desired=False)
            await self.update(ctx, instance)
        evidence = await self.halt(ctx, instance_id, grace_ms)
        life = self.stopped(instance.life, ctx.wall())
        stopped = msgspec.structs.replace(instance, life=life, last=evidence or instance.last)
        if stopped != instance:
            await self.update(ctx, stopped, self.records.done(Action.STOP, stopped, evidence=evidence_of(evidence)))
        return stopped.last

    async def unload(self, ctx: Context, instance_id: str) -> None:
        """Stop it, forget it, remove its folder. Raises `Rejected`."""
        instance = self.instance(instance_id)
        await self.permit_teardown(ctx, Action.UNLOAD, instance)
        await self.discard(ctx, instance, "unloaded")

    async def discard(self, ctx: Context, instance: Instance, reason: str) -> None:
        """As `unload`, without asking. The row goes first: a folder that nobody knows is cleared at any start."""
        instance_id = instance.instance_id
        await self.end(ctx, instance, self.settings.stop_grace_ms)
        record = self.records.done(Action.UNLOAD, instance)
        await self.save(ctx, lambda state: state.without_instance(instance_id), record)
        self.depart(instance_id, reason)
        await self.remove(ctx, instance_id)

    def instance(self, instance_id: str) -> Instance:
        """Raises `Rejected` (`unknown_instance`)."""
        instance = self.state.instances.get(instance_id)
        if instance is None:
            raise Rejected(RefusalCode.UNKNOWN_INSTANCE, f"this node holds no instance {instance_id[:200]}")
        return instance

    def depart(self, instance_id: str, reason: str) -> None:
        self.departed.pop(instance_id, None)
        self.departed[instance_id] = reason
        if len(self.departed) > self.DEPARTED_KEPT:
            del self.departed[next(iter(self.departed))]

    def _begun(self, life: Life, ctx: Context) -> Life:
        """`running` with nothing counted against it. A state from which that is no step was left by a former agent."""
        fresh = msgspec.structs.replace(life, restarts=(), misses=0)
        if life.state is LifeState.RUNNING:
            return fresh
        return step(fresh, LifeState.RUNNING, ctx.wall())

    @staticmethod
    def stopped(life: Life, wall_ms: int) -> Life:
        """`stopped` for what was live. What never ran, has finished or has failed stays what it is."""
        match life.state:
            case LifeState.RUNNING | LifeState.STOPPING:
                return step(life, LifeState.STOPPED, wall_ms)
            case LifeState.UNHEALTHY | LifeState.RESTARTING:
                return step(step(life, LifeState.STOPPING, wall_ms), LifeState.STOPPED, wall_ms)
            case _:
                return life

    # the machine

    def read_clock(self, clock: ClockReading, now_s: float) -> None:
        self.clock, self._clock_read_at = clock, now_s

    def boottime_ms(self, now_s: float) -> int:
        """The machine's clock that the wall cannot move, reckoned on from its last reading."""
        assert self.clock is not None, "the clock is read before anything else"
        return self.clock.boottime_ms + int((now_s - self._clock_read_at) * 1000)

    def interpreter(self) -> str | None:
        """The Python that runs scripts here, as the node's fact names it."""
        path = attribute(self.capabilities, "runtime.python", "path")
        return path if isinstance(path, str) else None

    def native_architectures(self) -> Sequence[str]:
        arches = attribute(self.capabilities, "runtime.native", "arches_native")
        return [str(arch) for arch in arches] if isinstance(arches, tuple | list) else []


def _denied(action: Action, decision: Decision, reason: str) -> Rejected:
    how = "denied" if decision is Decision.DENY else "deferred to a human"
    return Rejected(RefusalCode.GOVERNANCE, f"{action.value} {how}: {reason}")


def _port_refused(what: str, instance_id: str, failure: AskFailed) -> Rejected:
    """Raises `Indeterminate` when the launcher may have acted."""
    if not failure.nothing_happened:
        raise Indeterminate(f"{what} of {instance_id}: {failure}") from failure
    code = RefusalCode.ADMISSION if failure.code == PortRefusal.ADMISSION else RefusalCode.RUNTIME
    return Rejected(code, f"{what} of {instance_id} failed: {failure.code or failure.failure.value}: {failure.reason}")


__all__ = ["NATIVE", "Indeterminate", "Node", "Unsettled", "WorkloadHost"]
