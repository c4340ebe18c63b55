"""What else may be asked of a node: start, stop, unload, status, logs, describe, fence (P 7.5, design 8)."""

from __future__ import annotations

import codecs

import msgspec

from actors.actor import AskFailed, Context
from actors.node.host import NATIVE, WorkloadHost
from actors.node.instances import row_of
from actors.placement.signed import Rejected
from messages.base import Record
from messages.control import (
    Advertisement,
    ControlRequest,
    DepartedRow,
    DescribeResult,
    FenceBody,
    FenceResult,
    InstanceBody,
    LogsResult,
    Method,
    RefusalCode,
    SignedObject,
    StartedResult,
    StatusListing,
    StatusRow,
    StoppedResult,
    UnloadedResult,
)
from messages.ports import OutputChunk, ReadOutput

LOG_BYTES = 65_536
SLOT_BYTES = 256


def read_body(request: ControlRequest) -> InstanceBody:
    """Raises `Rejected` (`invalid_request`)."""
    try:
        return msgspec.convert({} if request.body is None else request.body, InstanceBody)
    except (msgspec.ValidationError, ValueError) as error:
        raise Rejected(RefusalCode.INVALID_REQUEST, f"body: {error}") from None


def read_fence(request: ControlRequest) -> FenceBody:
    """Raises `Rejected` (`invalid_request`)."""
    try:
        body = msgspec.convert(request.body, FenceBody)
    except (msgspec.ValidationError, ValueError) as error:
        raise Rejected(RefusalCode.INVALID_REQUEST, f"body: {error}") from None
    if not 1 <= len(body.slot.encode()) <= SLOT_BYTES or body.floor.term > request.term:
        raise Rejected(RefusalCode.INVALID_REQUEST, "a fence names a slot, and a floor of the present term or below")
    return body


async def act(host: WorkloadHost, ctx: Context, method: Method, body: InstanceBody) -> Record:
    """Start, stop or unload one instance, one verb after the other. Raises `Rejected`."""
    name = _instance_id(body)
    host.instance(name)
    async with ctx.exclusive(("instance", name), timeout_s=host.settings.turn_timeout_s):
        held = host.instance(name)
        if body.epoch is not None and body.epoch != held.epoch:  # late: it meant an earlier life of this instance
            raise Rejected(RefusalCode.STALE_EPOCH, f"{name} has epoch {held.epoch}, the order is for {body.epoch}")
        match method:
            case Method.START:
                host.check_owed()
                run = await host.start(ctx, name)
                return StartedResult(started=name, pid=run.pid)
            case Method.STOP:
                grace_ms = host.settings.stop_grace_ms if body.grace_ms is None else body.grace_ms
                evidence = await host.stop(ctx, name, grace_ms)
                if evidence is None:
                    return StoppedResult(stopped=name)
                return StoppedResult(
                    stopped=name, exit_code=evidence.exit_code, signal=evidence.signal, killed=evidence.killed
                )
            case Method.UNLOAD:
                await host.unload(ctx, name)
                return UnloadedResult(unloaded=name)
            case _:
                raise ValueError(f"{method} is no verb of an instance")


def status(host: WorkloadHost, body: InstanceBody) -> StatusListing:
    """All rows, or the one that is asked for. Raises `Rejected` (`unknown_instance`)."""
    if body.instance_id is not None:
        instance = host.instance(body.instance_id)
        return StatusListing(rows=[row_of(instance, host.runs.get(instance.instance_id))])
    rows = _rows(host)
    if body.include_departed:
        rows += [DepartedRow(departed_instance=name, reason=reason) for name, reason in host.departed.items()]
    return StatusListing(rows=rows)


async def fence(host: WorkloadHost, ctx: Context, body: FenceBody) -> FenceResult:
    """Raise the slot's floor, durably, and only then tell what is here of the decision. Raises `Rejected`."""
    record = host.records.fenced(body.slot, str(body.floor), body.decision_id)
    await host.save(ctx, lambda state: state.with_floor(body.slot, body.floor), record)
    floor = host.state.marks[body.slot].floor
    assert floor is not None, "it was just set"
    rows = [row for row in _rows(host) if _decision_of(row) == body.decision_id]
    return FenceResult(floor=floor, rows=rows)


async def logs(host: WorkloadHost, ctx: Context, body: InstanceBody) -> LogsResult:
    """Output of the present or last run; following it is asking again from `*_next`. Raises `Rejected`."""
    name = _instance_id(body)
    host.instance(name)
    order = ReadOutput(
        instance_id=name,
        stdout_offset=-1 if body.stdout_offset is None else max(0, body.stdout_offset),
        stderr_offset=-1 if body.stderr_offset is None else max(0, body.stderr_offset),
        limit=LOG_BYTES,
    )
    try:
        chunk = await ctx.ask(host.to.launcher, order, timeout_s=host.settings.port_timeout_s)
    except AskFailed as failure:
        raise Rejected(RefusalCode.RUNTIME, f"the output of {name} cannot be read: {failure}") from None
    return _logs(name, chunk)


def describe(host: WorkloadHost, facts: SignedObject | None, now_s: int) -> DescribeResult:
    advertisement = Advertisement(
        node_id=host.node.signer.node_id,
        methods=[method.value for method in Method],
        routes=[NATIVE],
        last_updated=now_s,
    )
    return DescribeResult(facts=facts, advertisement=advertisement, term_seen=host.state.term)


def _rows(host: WorkloadHost) -> list[StatusRow]:
    """Decisions under way first, then the table: what moves from the one to the other is seen in at least one."""
    held = [row_of(instance, host.runs.get(name)) for name, instance in sorted(host.state.instances.items())]
    return [*host.in_flight.rows(), *held]


def _decision_of(row: StatusRow) -> str | None:
    return None if isinstance(row, DepartedRow) else row.decision_id


def _instance_id(body: InstanceBody) -> str:
    if body.instance_id is None:
        raise Rejected(RefusalCode.INVALID_REQUEST, "instance_id is missing: only status is answered without one")
    return body.instance_id


def _logs(name: str, chunk: OutputChunk) -> LogsResult:
    stdout, stdout_kept = _text(chunk.stdout, more=chunk.running)
    stderr, stderr_kept = _text(chunk.stderr, more=chunk.running)
    return LogsResult(
        instance_id=name,
        stdout=stdout,
        stderr=stderr,
        stdout_next=chunk.stdout_next - stdout_kept,
        stderr_next=chunk.stderr_next - stderr_kept,
        exit_code=chunk.exit_code,
        running=chunk.running,
        truncated=chunk.truncated,
    )


def _text(data: bytes, *, more: bool) -> tuple[str, int]:
    """Text, and how many bytes at the end are the beginning of a character whose rest is read next time."""
    full = len(data) == LOG_BYTES
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data, final=not (more or full))
    return text, len(decoder.getstate()[0])


__all__ = ["act", "describe", "fence", "logs", "read_body", "read_fence", "status"]
