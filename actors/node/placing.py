"""Carrying out `workload.place` and `workload.load` on a node, in the strict order of P 7.2 (G 5.2, design 8).

    body -> epoch and slot -> route -> fetch and verify -> is it what was ordered -> admission -> gate -> stage
    -> table (durable, with the epoch) -> start, or roll back -> answer

What was read before a wait is checked again where it counts: epoch, floor and holder inside the write that puts the
instance into the table. So an order that a fence has overtaken never gets there, however late it is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import msgspec

from actors.actor import AskFailed, Context
from actors.node.host import NATIVE, Unsettled, WorkloadHost
from actors.node.instances import Instance, status_of
from actors.node.lifecycle import Life
from actors.node.state import AgentState, SlotMark
from actors.packages.cog import check_arguments
from actors.packages.fault import PackageFault
from actors.packages.fetch import FetchFault, fetch_package
from actors.packages.spec import variant_arch, variant_route
from actors.packages.text import is_hex, is_token
from actors.placement.order import MAX_INTERVAL_S, MIN_INTERVAL_S, instance_id, slot_of
from actors.placement.signed import Rejected
from messages.control import ControlRequest, Interval, LifeState, PlaceBody, PlaceResult, RefusalCode
from messages.gate import Action
from messages.packages import Arch, FileRef, VerifiedWorkload
from messages.ports import PortRefusal, RunLimits, StageInstance

NAME_BYTES = 64
SLOT_BYTES = 256
_PROJECT = re.compile(r"[0-9A-Z]{26}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Order:
    """A place or load whose body is well formed."""

    body: PlaceBody
    decision_id: str
    requester: str
    start: bool


@dataclass(frozen=True, slots=True)
class Program:
    """What the adapter would run: the payload of one architecture, and the interpreter of a script."""

    arch: Arch
    file: FileRef
    interpreter: str | None


def read_order(request: ControlRequest, *, may_start: bool) -> Order:
    """The order in a request whose decision id is well formed. Raises `Rejected` (`invalid_request`)."""
    try:
        body = msgspec.convert(request.body, PlaceBody)
    except (msgspec.ValidationError, ValueError) as error:
        raise _invalid(f"body: {error}") from None
    if not is_token(body.name, NAME_BYTES):
        raise _invalid(f"name {body.name[:NAME_BYTES]!r} is not a token of at most {NAME_BYTES} characters")
    if not is_hex(body.manifest_hash, 64):
        raise _invalid("manifest_hash is not 64 lower-case hexadecimal digits")
    mode = body.config.mode
    if isinstance(mode, Interval) and not MIN_INTERVAL_S <= mode.secs <= MAX_INTERVAL_S:
        raise _invalid(f"interval must be {MIN_INTERVAL_S}..={MAX_INTERVAL_S} seconds, not {mode.secs}")
    if body.config.csi_port == 0:
        raise _invalid("csi_port must be non-zero")
    if not 1 <= len(body.slot.encode()) <= SLOT_BYTES:
        raise _invalid(f"slot must be 1..={SLOT_BYTES} bytes")
    if body.project_id is not None and _PROJECT.fullmatch(body.project_id) is None:
        raise _invalid("project_id is not a 26-character project id")
    if body.epoch.term != request.term:
        raise Rejected(
            RefusalCode.STALE_EPOCH, f"epoch {body.epoch} is not of term {request.term}, in which it was ordered"
        )
    assert request.decision_id is not None, "the form of the decision id is checked before"
    return Order(body, request.decision_id, request.requester, start=may_start and body.start)


def check_free(host: WorkloadHost, order: Order) -> None:
    """Raises `Rejected` when this node must not begin: a stale or fenced epoch, a held slot, too much at once."""
    host.check_owed()
    if len(host.in_flight) >= host.settings.in_flight_limit:
        raise Rejected(RefusalCode.OVERLOADED, f"{len(host.in_flight)} orders are under way; try again later")
    if order.decision_id in host.in_flight or order.body.slot in host.in_flight.slots():
        raise Rejected(RefusalCode.SLOT_HELD, f"an order for {order.body.slot} is under way")
    _check_slot(host.state, order, instance_id(order.body.slot, host.node.signer.node_id))


def _check_slot(state: AgentState, order: Order, name: str) -> None:
    """The rules that keep a slot from being run twice, by what this node durably knows. Raises `Rejected`."""
    slot, epoch = order.body.slot, order.body.epoch
    mark = state.marks.get(slot, SlotMark())
    if mark.floor is not None and epoch < mark.floor:
        raise Rejected(RefusalCode.FENCED, f"{slot} is fenced below {mark.floor}, the order has epoch {epoch}")
    if mark.taken is not None and epoch <= mark.taken:
        raise Rejected(
            RefusalCode.STALE_EPOCH, f"epoch {mark.taken} of {slot} was accepted here, the order has {epoch}"
        )
    holder = state.holder(slot, name)
    if holder is not None:
        raise Rejected(
            RefusalCode.SLOT_HELD,
            f"{holder.instance_id} holds it here ({holder.life.state.value}, slot {holder.slot}, epoch {holder.epoch}):"
            " unload it first",
        )


async def carry_out(host: WorkloadHost, ctx: Context, order: Order) -> PlaceResult:
    """Place or load. The decision is marked in flight by the caller.

    Raises `Rejected`: then nothing was left; or `Unsettled`.
    """
    route = variant_route(order.body.variant)
    if route != NATIVE:
        raise Rejected(RefusalCode.ADMISSION, f"no {route[:32]!r} adapter on this node for {order.body.variant[:64]}")
    workload = await _fetch(host, ctx, order)
    _check_ordered(host, order, workload)
    instance = _instance(host, order, workload, route, ctx.wall())
    async with ctx.exclusive(("instance", instance.instance_id), timeout_s=host.settings.turn_timeout_s):
        await _load(host, ctx, order, instance, workload)
        if order.start:
            await _start_or_roll_back(host, ctx, instance)
        held = host.instance(instance.instance_id)
        host.owe(ctx, host.records.placed(held, started=order.start))
    return PlaceResult(
        instance_id=instance.instance_id,
        runtime=route,
        variant=order.body.variant,
        package_id=workload.package_id,
        status=status_of(held, host.runs.get(held.instance_id)),
        node=host.node.signer.node_id,
        epoch=order.body.epoch,
    )


async def _fetch(host: WorkloadHost, ctx: Context, order: Order) -> VerifiedWorkload:
    try:
        return await fetch_package(
            ctx,
            server=host.to.packages,
            blobs=host.to.blobs,
            manifest_hash=order.body.manifest_hash,
            anchors=host.node.anchors,
            timeout_s=host.settings.fetch_timeout_s,
        )
    except FetchFault as fault:
        raise Rejected(fault.code, fault.reason) from None


def _check_ordered(host: WorkloadHost, order: Order, workload: VerifiedWorkload) -> None:
    """Is the package what the order names, under the slot that follows from it? Raises `Rejected`."""
    body = order.body
    if workload.id != body.name:
        raise Rejected(RefusalCode.VERIFY, f"the package is {workload.id}, ordered was {body.name}")
    slots = [
        slot_of(
            kind=workload.kind,
            workload=workload.id,
            version=workload.version,
            package_id=workload.package_id,
            config=body.config,
            pinned_to=pinned_to,
        )
        for pinned_to in (None, host.node.signer.node_id)
    ]
    if body.slot not in slots:
        raise _invalid(f"slot {body.slot} does not follow from package and configuration, which give {slots[0]}")
    try:
        check_arguments(workload.limits, body.config.args)
    except PackageFault as fault:
        raise _invalid(fault.text) from None


def _instance(host: WorkloadHost, order: Order, workload: VerifiedWorkload, route: str, wall_ms: int) -> Instance:
    body = order.body
    return Instance(
        instance_id=instance_id(body.slot, host.node.signer.node_id),
        slot=body.slot,
        epoch=body.epoch,
        decision_id=order.decision_id,
        requester=order.requester,
        kind=workload.kind,
        workload=workload.id,
        version=workload.version,
        package_id=workload.package_id,
        manifest_hash=workload.manifest_hash,
        signer_keys=workload.signer_keys,
        artifact_hashes=workload.artifact_hashes,
        variant=body.variant,
        runtime=route,
        config=body.config,
        limits=workload.limits,
        life=Life(state=LifeState.LOADED, since_ms=wall_ms),
    )


def admit(host: WorkloadHost, variant: str, workload: VerifiedWorkload) -> Program:
    """The adapter's own check of what it is to run; it never emulates. Raises `Rejected` (`admission`)."""
    arch = variant_arch(variant)
    if arch is None or arch not in workload.binaries:
        has = ", ".join(sorted(workload.binaries))
        raise Rejected(RefusalCode.ADMISSION, f"the package has no payload for {variant[:64]}; it has {has}")
    if arch is not Arch.NOARCH:
        if arch not in (native := host.native_architectures()):
            runs = ", ".join(native) or "none"
            raise Rejected(RefusalCode.ADMISSION, f"this node does not run {arch.value} (it runs {runs}): no emulation")
        return Program(arch, workload.binaries[arch], None)
    interpreter = host.interpreter()
    if interpreter is None:
        raise Rejected(RefusalCode.ADMISSION, "a noarch payload needs the fact runtime.python, this node has none")
    return Program(arch, workload.binaries[arch], interpreter)


async def _load(host: WorkloadHost, ctx: Context, order: Order, instance: Instance, workload: VerifiedWorkload) -> None:
    """Admission, gate, files, table. Raises `Rejected`: then neither files nor row are left."""
    name = instance.instance_id
    try:
        program = admit(host, order.body.variant, workload)
        _check_slot(host.state, order, name)
        await host.permit(ctx, Action.LOAD, instance)
        await _stage(host, ctx, instance, program)
    except Rejected as rejected:
        code, reason = _adapter_code(rejected), rejected.refusal.reason
        if code is not None:
            host.owe(ctx, host.records.failed(Action.LOAD, instance, code, reason))
        raise
    loaded = host.records.done(Action.LOAD, instance, admission={"runtime": NATIVE, "arch": program.arch.value})

    def insert(state: AgentState) -> AgentState:
        _check_slot(state, order, name)
        return state.with_instance(instance).with_taken(instance.slot, instance.epoch)

    try:
        await host.save(ctx, insert, loaded)
    except Rejected:
        await host.remove(ctx, name)
        raise
    host.departed.pop(name, None)


async def _stage(host: WorkloadHost, ctx: Context, instance: Instance, program: Program) -> None:
    limits = instance.limits
    order = StageInstance(
        instance_id=instance.instance_id,
        sha256=program.file.sha256,
        arch=program.arch.value,
        interpreter=program.interpreter,
        program_name=program.file.path.rpartition("/")[2],
        limits=RunLimits(
            ram_mb=limits.ram_mb,
            max_runtime_s=limits.max_runtime_secs,
            output_limit_bytes=limits.output_limit_bytes,
        ),
    )
    try:
        await ctx.ask(host.to.launcher, order, timeout_s=host.settings.port_timeout_s)
    except AskFailed as failure:
        if failure.code == PortRefusal.EXISTS and await host.remove(ctx, instance.instance_id):
            await _stage(host, ctx, instance, program)  # a folder that an unload could not remove
            return
        if not failure.nothing_happened:
            await host.remove(ctx, instance.instance_id)
        code = RefusalCode.ADMISSION if failure.code == PortRefusal.ADMISSION else RefusalCode.RUNTIME
        said = failure.code or failure.failure.value
        raise Rejected(code, f"{instance.instance_id} cannot be laid out: {said}: {failure.reason}") from None


async def _start_or_roll_back(host: WorkloadHost, ctx: Context, instance: Instance) -> None:
    """Start what was loaded; a start that fails takes the instance with it (P 7.4).

    Raises `Rejected`; and `Unsettled` when the instance could not be taken back, since a refusal would free its slot.
    """
    name = instance.instance_id

    def not_fenced(state: AgentState) -> None:
        floor = state.marks[instance.slot].floor
        if floor is not None and instance.epoch < floor:
            raise Rejected(RefusalCode.FENCED, f"{instance.slot} was fenced below {floor} meanwhile")

    try:
        await host.start(ctx, name, not_fenced)
    except Rejected as start:
        code, reason = start.refusal.code, start.refusal.reason
        try:
            await host.permit_teardown(ctx, Action.UNLOAD, instance)
            await host.discard(ctx, host.instance(name), "unloaded")
        except Rejected as unload:
            raise Unsettled(
                f"start failed ({reason}), and {name} stays listed: it could not be unloaded: {unload.refusal}"
            ) from None
        raise Rejected(code, f"start failed: {reason}; {name} was unloaded") from None


def _adapter_code(rejected: Rejected) -> str | None:
    """The adapter's own code (P 3.3); None for what the gate has recorded already or is not the adapter's."""
    codes = {RefusalCode.ADMISSION: "admission-refused", RefusalCode.RUNTIME: "backend"}
    return codes.get(rejected.refusal.code)


def _invalid(reason: str) -> Rejected:
    return Rejected(RefusalCode.INVALID_REQUEST, reason)


__all__ = ["Order", "Program", "admit", "carry_out", "check_free", "read_order"]
