"""Keeping instances as they should be: after a restart of the agent, and when one ends by itself (P 8.5, G 5.10).

What is durable says what should be, the launcher says what is. A process that should run and is gone is started again
within its granted epoch and its budget; one that should not run is ended; a folder that nobody knows is removed. The
operator's stop is final: it made durable that nothing should run before it ended anything.
"""

from __future__ import annotations

import msgspec

from actors.actor import AskFailed, Context
from actors.node.health import Judgement, NextAct, Verdict, describe_end, judge, plan
from actors.node.host import WorkloadHost
from actors.node.instances import Instance, Run, status_of
from actors.node.lifecycle import LIVE, record_restart, step
from actors.node.state import AgentState
from actors.placement.signed import Rejected
from messages.chain import Entry
from messages.control import AdapterState, LifeState, RunStatus
from messages.gate import Action
from messages.node import SuperviseTick
from messages.ports import InstanceRow, RunEvidence

LOST_ON_RESTART = "it was not running when the agent started"


def reconcile(host: WorkloadHost, state: AgentState, rows: list[InstanceRow], ctx: Context) -> AgentState:
    """The state after a start of the agent, given what the launcher found; fills `host.runs` with what lives.

    `state.boot_id` is still that of the former incarnation: restarts counted on another boot's clock are forgotten.
    """
    found = {row.instance_id: row for row in rows}
    assert host.clock is not None, "the clock is read before anything else"
    same_boot = state.boot_id == host.clock.boot_id
    instances: dict[str, Instance] = {}
    for name, instance in state.instances.items():
        row = found.get(name)
        life = instance.life if same_boot else msgspec.structs.replace(instance.life, restarts=())
        kept = msgspec.structs.replace(instance, life=life)
        if row is not None and row.running is not None:
            host.runs[name] = Run(row.running.pid)
            instances[name] = _now_running(kept, ctx.wall()) if kept.desired else kept
        elif row is None:
            instances[name] = _files_gone(host, kept, ctx)
        else:
            instances[name] = _now_ended(host, kept, row.last, ctx)
    return msgspec.structs.replace(state, instances=instances, boot_id=host.clock.boot_id)


def _now_running(instance: Instance, wall_ms: int) -> Instance:
    """The agent died between start and write, or it lives through the restart: either way it runs as it should."""
    if instance.life.state is LifeState.RUNNING:
        return instance
    return msgspec.structs.replace(instance, life=step(instance.life, LifeState.RUNNING, wall_ms))


def _files_gone(host: WorkloadHost, instance: Instance, ctx: Context) -> Instance:
    if not instance.desired and instance.life.state is not LifeState.LOADED:
        return instance
    return _step(host, instance, LifeState.FAILED, "its files are gone from this node", ctx, desired=False)


def _now_ended(host: WorkloadHost, instance: Instance, last: RunEvidence | None, ctx: Context) -> Instance:
    """It does not run. When it should, it has ended unseen; when it should not, that is as it should be."""
    if not instance.desired:
        stopped = host.stopped(instance.life, ctx.wall())
        return msgspec.structs.replace(instance, life=stopped, last=last or instance.last)
    ended = msgspec.structs.replace(instance, last=last)
    if last is not None and instance.once and last.exit_code == 0:
        if ended.life.state is not LifeState.RUNNING:
            ended = _step(host, ended, LifeState.RUNNING, "its run came to an end", ctx)
        return _step(host, ended, LifeState.FINISHED, describe_end(last), ctx, desired=False)
    if ended.life.state is LifeState.UNHEALTHY:
        return ended
    return _step(host, ended, LifeState.UNHEALTHY, f"{LOST_ON_RESTART}: {describe_end(last)}", ctx)


def _step(
    host: WorkloadHost, instance: Instance, to: LifeState, reason: str, ctx: Context, *, desired: bool | None = None
) -> Instance:
    """One step of a life, with the record that is owed for it."""
    host.owe(ctx, host.records.lifecycle(instance, instance.life.state, to, reason))
    life = step(instance.life, to, ctx.wall())
    return msgspec.structs.replace(instance, life=life, desired=instance.desired if desired is None else desired)


async def clear(host: WorkloadHost, ctx: Context, rows: list[InstanceRow]) -> None:
    """Remove what the launcher has and the table does not know: an unload or a place that was cut short."""
    for row in rows:
        if row.instance_id in host.state.instances:
            continue
        ctx.log("warning", "removing what no table knows", instance=row.instance_id)
        try:
            if row.running is not None:
                await host.halt(ctx, row.instance_id, host.settings.stop_grace_ms)
            await host.remove(ctx, row.instance_id)
        except Rejected as rejected:
            ctx.log("error", "cannot end what no table knows", instance=row.instance_id, reason=str(rejected))


async def ended(host: WorkloadHost, ctx: Context, evidence: RunEvidence, run: Run | None) -> None:
    """A process has ended. `run`: the one that was known when that was told; if another runs by now, it is old news."""
    name = evidence.instance_id
    async with ctx.exclusive(("instance", name), timeout_s=_patience(host)):
        if run is None or host.runs.get(name) is not run:
            return
        del host.runs[name]
        instance = host.state.instances.get(name)
        if instance is None:
            return
        told = msgspec.structs.replace(instance, last=evidence)
        if not instance.desired or instance.life.state not in LIVE:
            await _quietly(host, ctx, told)
            return
        await _follow(host, ctx, told, judge(status_of(told, None), once=told.once))


async def supervise(host: WorkloadHost, ctx: Context) -> None:
    """Everything that is due: end what should not run, start again what should."""
    for name in sorted(host.state.instances):
        if not needs_attention(host, name):
            continue
        async with ctx.exclusive(("instance", name), timeout_s=_patience(host)):
            if not needs_attention(host, name):
                continue
            instance = host.state.instances[name]
            if name in host.runs:
                await _finish_stop(host, ctx, instance)
            else:
                why = describe_end(instance.last)
                detail = RunStatus(state=AdapterState.UNKNOWN, detail=why)
                await _follow(host, ctx, instance, judge(detail, once=instance.once))


def needs_attention(host: WorkloadHost, name: str) -> bool:
    instance = host.state.instances.get(name)
    if instance is None:
        return False
    runs = name in host.runs
    if runs or not instance.desired:
        return runs and not instance.desired
    return instance.life.state in LIVE


async def _finish_stop(host: WorkloadHost, ctx: Context, instance: Instance) -> None:
    """An operator's stop that a restart of the agent or a failure cut short."""
    try:
        await host.end(ctx, instance, host.settings.stop_grace_ms)
    except Rejected as rejected:
        ctx.log("error", "a stop could not be completed", instance=instance.instance_id, reason=str(rejected))


async def _follow(host: WorkloadHost, ctx: Context, instance: Instance, judgement: Judgement) -> None:
    """Take the steps that follow from a judgement, and restart if that is one. The caller holds the turn."""
    now_ms = host.boottime_ms(ctx.now())
    policy = host.settings.restarts
    planned = plan(instance.life, judgement, policy, now_ms)
    records: list[Entry] = []
    after = instance
    for to, reason in planned.steps:
        records.append(host.records.lifecycle(after, after.life.state, to, reason))
        after = msgspec.structs.replace(after, life=step(after.life, to, ctx.wall()))
    if planned.act is NextAct.RESTART:
        after = msgspec.structs.replace(after, life=record_restart(after.life, policy, now_ms))
    elif planned.act is NextAct.GIVE_UP or judgement.verdict is Verdict.FINISHED:
        after = msgspec.structs.replace(after, desired=False)
    if after != host.state.instances[instance.instance_id] and not await _quietly(host, ctx, after, *records):
        return
    match planned.act:
        case NextAct.WAIT:
            ctx.after((planned.at_ms - now_ms) / 1000, SuperviseTick())
        case NextAct.RESTART:
            await _restart(host, ctx, after, planned.attempt)
        case NextAct.NOTHING | NextAct.GIVE_UP:
            pass


async def _restart(host: WorkloadHost, ctx: Context, instance: Instance, attempt: int) -> None:
    """Within the granted epoch, so no new act: neither gate nor chain is asked before."""
    try:
        run = await host.launch(ctx, instance)
    except Rejected as rejected:
        to, reason = LifeState.UNHEALTHY, f"restart failed: {rejected.refusal.reason}"
        record = host.records.failed(Action.START, instance, "backend", rejected.refusal.reason)
    else:
        to, reason = LifeState.RUNNING, f"restarted (attempt {attempt})"
        record = host.records.done(Action.START, instance, pid=run.pid, attempt=attempt)
    step_record = host.records.lifecycle(instance, instance.life.state, to, reason)
    after = msgspec.structs.replace(instance, life=step(instance.life, to, ctx.wall()))
    await _quietly(host, ctx, after, record, step_record)
    if to is LifeState.UNHEALTHY:
        ctx.after(host.settings.restarts.first_ms / 1000, SuperviseTick())


async def _quietly(host: WorkloadHost, ctx: Context, instance: Instance, *records: Entry) -> bool:
    """Write what nobody waits for. False when it could not be written: it is tried again with the next beat."""
    try:
        await host.update(ctx, instance, *records)
    except (Rejected, AskFailed) as failure:
        ctx.log("error", "a step of supervision was not written", instance=instance.instance_id, reason=str(failure))
        return False
    return True


def _patience(host: WorkloadHost) -> float:
    """Longer than any verb: supervision waits for its turn and gives up only with the agent."""
    return 100 * host.settings.turn_timeout_s


__all__ = ["LOST_ON_RESTART", "clear", "ended", "needs_attention", "reconcile", "supervise"]
