"""The live `launcher` port: workloads of this node under their shims (design 6, G 5.6, `messages.ports`).

An end is told when no descendant of the workload is left. Whoever started or adopted last is told every end; a stop
is answered with the same evidence. A shim that does not answer is killed, which ends its workload, and the rest is
swept; a workload that survives even that counts as running and is tried again.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from actors.actor import Actor, Context
from messages.base import Address, Message
from messages.launching import RenewInstance
from messages.ports import (
    AdoptInstances,
    InstanceEnded,
    InstanceRow,
    InstanceRows,
    InstanceStarted,
    LauncherMessage,
    OutputChunk,
    PortRefusal,
    ReadOutput,
    RemoveInstance,
    RunEvidence,
    StageInstance,
    StartInstance,
    StopInstance,
)
from messages.system import Done
from runtime.ports.staging import LauncherFault, Materialise, Staging, faults
from runtime.processes.exits import ExitWatch
from runtime.shim import client
from runtime.shim.client import ExitRecord, LaunchSpec, ShimFailed, ShimHandle, ShimLives, ShimRefused

PATH = "/usr/local/bin:/usr/bin:/bin"
CONTACT_S = 10.0
"""Shims hear from the agent this often, or four times within the shortest silence that one of them allows."""

SWEEP_AGAIN_S = 1.0


class ShimGone(Message, frozen=True):
    """The launcher's own: a shim was seen to end."""

    instance_id: str
    shim_pid: int


class ContactDue(Message, frozen=True):
    """The launcher's own timer."""


LiveLauncherMessage = LauncherMessage | RenewInstance | ShimGone | ContactDue


@dataclass(eq=False)
class _Run:
    handle: ShimHandle
    stopping: list[Context] = field(default_factory=list)


class Launcher(Actor[LiveLauncherMessage]):
    """Instances under `root`. `exits` is this process's one watch.

    `user`: uid and gid that workloads run as. None: the agent's own; where that is root every instance is refused
    `admission`, unless `root_allowed`.
    """

    mailbox: ClassVar = LiveLauncherMessage

    def __init__(
        self,
        root: Path,
        materialise: Materialise,
        exits: ExitWatch,
        *,
        user: tuple[int, int] | None = None,
        root_allowed: bool = False,
    ) -> None:
        self._staging = Staging(root, materialise, user)
        self._exits = exits
        self._user = user
        self._refuse_root = not root_allowed and (os.geteuid() if user is None else user[0]) == 0
        self._owner: Address | None = None
        self._runs: dict[str, _Run] = {}
        self._own: Context | None = None
        self._timer = 0

    def started(self, ctx: Context) -> None:
        self._own = ctx
        self._staging.open()
        self._schedule_contact(ctx)

    def receive(self, message: LiveLauncherMessage, ctx: Context) -> None:
        try:
            self._handle(message, ctx)
        except LauncherFault as fault:
            ctx.log("warning", "the launcher refused", code=fault.code.value, reason=fault.reason)
            ctx.refuse(fault.code, fault.reason)

    def state(self) -> object:
        runs = {name: {"shim_pid": run.handle.shim_pid, "pid": run.handle.pid} for name, run in self._runs.items()}
        return {"directory": str(self._staging.root), "running": runs}

    def _handle(self, message: LiveLauncherMessage, ctx: Context) -> None:
        match message:
            case StageInstance():
                self._check_user()
                self._staging.stage(message)
                ctx.reply(Done())
            case StartInstance():
                self._check_user()
                ctx.reply(self._start(message, ctx))
            case StopInstance():
                self._stop(message, ctx)
            case RenewInstance():
                self._renew(message)
                ctx.reply(Done())
            case RemoveInstance():
                self._remove(message.instance_id)
                ctx.reply(Done())
            case AdoptInstances():
                ctx.reply(self._adopt(ctx))
            case ReadOutput():
                ctx.reply(self._output(message))
            case ShimGone():
                self._gone(message, ctx)
            case ContactDue():
                self._contact(ctx)

    def _check_user(self) -> None:
        if self._refuse_root:
            raise LauncherFault(
                PortRefusal.ADMISSION,
                "the workload would run as root: run the node as another user, give workloads a user of their own, "
                "or allow root workloads on this node",
            )

    def _start(self, order: StartInstance, ctx: Context) -> InstanceStarted:
        name = order.instance_id
        if name in self._runs:
            raise LauncherFault(PortRefusal.INVALID_STATE, f"{name} runs already")
        staged = self._staging.order(name)
        directory = self._staging.path(name)
        limits = staged.limits
        own = {"PATH": PATH, "SENNIT_DATA_DIR": str(directory / "data")}
        spec = LaunchSpec(
            instance_id=name,
            epoch=order.epoch,
            argv=self._staging.command(staged, order.arguments),
            environment=order.environment | own,
            ram_mb=limits.ram_mb,
            output_limit=limits.output_limit_bytes,
            cpu_s=limits.max_runtime_s + 1 if order.once else None,
            run_for_ms=limits.max_runtime_s * 1000 if order.once else None,
            deadline_ms=order.deadline_boottime_ms,
            orphan_after_ms=None if order.orphan_after_s is None else round(order.orphan_after_s * 1000),
            user=self._user,
        )
        try:
            with faults(directory):
                handle = client.start(directory, spec)
        except ShimLives as lives:
            raise LauncherFault(PortRefusal.INVALID_STATE, str(lives)) from None
        except ShimFailed as failed:
            code = PortRefusal.DISK_FULL if failed.errno in (errno.ENOSPC, errno.EDQUOT) else PortRefusal.IO_ERROR
            raise LauncherFault(code, str(failed)) from None
        self._owner = ctx.sender
        return self._running(name, handle, ctx)

    def _running(self, name: str, handle: ShimHandle, ctx: Context) -> InstanceStarted:
        self._runs[name] = _Run(handle)
        gone = ShimGone(instance_id=name, shim_pid=handle.shim_pid)
        own = self._own
        assert own is not None
        handle.watch(self._exits, lambda _: own.tell(own.address, gone))  # if the mailbox is full, `_contact` sees it
        self._schedule_contact(ctx)
        return self._pids(handle)

    def _pids(self, handle: ShimHandle) -> InstanceStarted:
        return InstanceStarted(shim_pid=handle.shim_pid, pid=handle.pid, start_ticks=handle.start_ticks)

    def _run_of(self, name: str) -> _Run:
        run = self._runs.get(name)
        if run is None:
            self._staging.order(name)  # refuses what is not even staged
            raise LauncherFault(PortRefusal.INVALID_STATE, f"{name} does not run")
        return run

    def _stop(self, order: StopInstance, ctx: Context) -> None:
        run = self._run_of(order.instance_id)
        run.stopping.append(ctx)
        try:
            run.handle.stop(max(0, order.grace_ms))
        except ShimFailed as failed:
            if not run.handle.gone():
                ctx.log("error", "a shim does not answer, killed", instance=order.instance_id, reason=str(failed))
                run.handle.kill()

    def _renew(self, order: RenewInstance) -> None:
        run = self._run_of(order.instance_id)
        try:
            run.handle.renew(order.deadline_boottime_ms)
        except ShimRefused as refused:
            raise LauncherFault(PortRefusal.INVALID_STATE, str(refused)) from None
        except ShimFailed as failed:
            raise LauncherFault(PortRefusal.IO_ERROR, str(failed)) from None

    def _remove(self, name: str) -> None:
        if name in self._runs:
            raise LauncherFault(PortRefusal.INVALID_STATE, f"{name} runs: stop it first")
        if not self._staging.path(name).exists():
            raise LauncherFault(PortRefusal.NOT_FOUND, f"no instance {name} is staged")
        found = self._find(name)
        if isinstance(found, ShimHandle):
            found.close()
            raise LauncherFault(PortRefusal.INVALID_STATE, f"{name} runs unadopted: adopt the instances first")
        self._staging.remove(name)

    def _find(self, name: str) -> ShimHandle | ExitRecord | None:
        directory = self._staging.path(name)
        try:
            with faults(directory):
                return client.adopt(directory)
        except ShimFailed as failed:
            raise LauncherFault(PortRefusal.INVALID_STATE, str(failed)) from None

    def _adopt(self, ctx: Context) -> InstanceRows:
        rows = []
        for name in self._staging.names():
            known = self._runs.get(name)
            if known is not None and not known.handle.gone():
                rows.append(InstanceRow(instance_id=name, running=self._pids(known.handle)))
                continue
            found = self._find(name)
            self._forget(name, found)
            if isinstance(found, ShimHandle):
                rows.append(InstanceRow(instance_id=name, running=self._running(name, found, ctx)))
                ctx.log("info", "adopted a workload", instance=name, pid=found.pid)
            else:
                rows.append(InstanceRow(instance_id=name, last=None if found is None else _evidence(found)))
        self._owner = ctx.sender
        self._contact(ctx)  # a former agent may have been silent for long
        return InstanceRows(rows=rows)

    def _forget(self, name: str, found: ShimHandle | ExitRecord | None) -> None:
        """A run that ended a moment ago is told in the row; who waits for its stop is answered."""
        run = self._runs.pop(name, None)
        if run is not None and isinstance(found, ExitRecord):
            for asker in run.stopping:
                asker.reply(_evidence(found))

    def _gone(self, message: ShimGone, ctx: Context) -> None:
        name = message.instance_id
        run = self._runs.get(name)
        if run is None or run.handle.shim_pid != message.shim_pid:
            return  # told before
        try:
            with faults(self._staging.path(name)):
                evidence = _evidence(client.collect(self._staging.path(name)))
        except (ShimFailed, LauncherFault, ValueError) as failed:
            ctx.log("error", "a workload outlives its shim and counts as running", instance=name, reason=str(failed))
            ctx.after(SWEEP_AGAIN_S, message)
            return
        del self._runs[name]
        if self._owner is not None:
            ctx.tell(self._owner, InstanceEnded(evidence=evidence))
        for asker in run.stopping:
            asker.reply(evidence)

    def _contact(self, ctx: Context) -> None:
        """Let the shims hear of us, and see those whose end was not told."""
        for name, run in list(self._runs.items()):
            if run.handle.gone():
                self._gone(ShimGone(instance_id=name, shim_pid=run.handle.shim_pid), ctx)
                continue
            try:
                run.handle.status()
            except ShimFailed as failed:
                ctx.log("warning", "a shim does not answer", instance=name, reason=str(failed))
        self._schedule_contact(ctx)

    def _schedule_contact(self, ctx: Context) -> None:
        silences = [run.handle.orphan_after_ms for run in self._runs.values()]
        ctx.cancel(self._timer)
        wait_s = min([CONTACT_S, *(one / 4000 for one in silences if one is not None)])
        self._timer = ctx.after(max(0.05, wait_s), ContactDue())

    def _output(self, order: ReadOutput) -> OutputChunk:
        name = order.instance_id
        directory = self._staging.path(name)
        self._staging.order(name)
        limit = max(0, min(order.limit, 1024 * 1024))
        running = name in self._runs
        with faults(directory):
            stdout, stdout_next = client.read_output(directory, "stdout", order.stdout_offset, limit)
            stderr, stderr_next = client.read_output(directory, "stderr", order.stderr_offset, limit)
            ended = None if running else client.ended(directory)
        dropped = [
            end - len(data) > max(0, offset)
            for data, end, offset in (
                (stdout, stdout_next, order.stdout_offset),
                (stderr, stderr_next, order.stderr_offset),
            )
        ]
        return OutputChunk(
            stdout=stdout,
            stderr=stderr,
            stdout_next=stdout_next,
            stderr_next=stderr_next,
            exit_code=None if ended is None else ended.exit_code,
            running=running,
            truncated=any(dropped),
        )


def _evidence(record: ExitRecord) -> RunEvidence:
    return RunEvidence(
        instance_id=record.instance_id,
        exit_code=record.exit_code,
        signal=record.signal,
        elapsed_ms=record.elapsed_ms,
        stdout_bytes=record.stdout_bytes,
        stderr_bytes=record.stderr_bytes,
        truncated=record.truncated,
        killed=record.killed,
    )


__all__ = ["CONTACT_S", "PATH", "ContactDue", "Launcher", "LiveLauncherMessage", "ShimGone"]
