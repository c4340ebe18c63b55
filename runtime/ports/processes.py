"""The live `processes` port: starts the processes of a cluster for their supervisor and sees them end (design 6).

Children hold the parent-alive pipe of this port, so they leave when the process that holds the port is gone, however
it went. What is still alive when the port ends is killed.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from actors.actor import Actor, Context
from messages.ports import PortRefusal, ProcessesMessage, ProcessExited, ProcessStarted, SignalProcess, StartProcess
from messages.system import Done
from runtime.processes.alive_pipe import AlivePipe
from runtime.processes.exits import Exit, ExitWatch
from runtime.processes.spawn import ProcessHandle, SpawnFailed, spawn


class Processes(Actor[ProcessesMessage]):
    """`command` gives the argument vector of a process; `environment` is what every one of them gets, by default ours
    made fit for them.
    """

    mailbox: ClassVar = ProcessesMessage

    def __init__(
        self,
        command: Callable[[StartProcess], Sequence[str]],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._command = command
        self._environment = dict(_fit(os.environ) if environment is None else environment)
        self._running: dict[str, tuple[ProcessHandle, int]] = {}

    def started(self, ctx: Context) -> None:
        self._alive = AlivePipe()
        self._exits = ExitWatch(lambda error: ctx.log("error", "an exit could not be handled", exception=error))

    def receive(self, message: ProcessesMessage, ctx: Context) -> None:
        match message:
            case StartProcess():
                self._start(message, ctx)
            case SignalProcess(name=name, signal=number, group=group):
                running = self._running.get(name)
                if running is None:
                    ctx.refuse(PortRefusal.NOT_FOUND, f"{name} does not run")
                    return
                handle = running[0]
                sent = handle.signal_group(number) if group else handle.send_signal(number)
                if sent:
                    ctx.reply(Done())
                else:
                    ctx.refuse(PortRefusal.NOT_FOUND, f"{name} has just ended")

    def _start(self, order: StartProcess, ctx: Context) -> None:
        name = order.name
        if name in self._running:
            ctx.refuse(PortRefusal.EXISTS, f"{name} runs already, as process {self._running[name][0].pid}")
            return
        try:
            handle = spawn(self._command(order), self._environment, alive=self._alive)
        except SpawnFailed as failed:
            ctx.refuse(PortRefusal.IO_ERROR, str(failed))
            return
        self._running[name] = (handle, order.incarnation)
        asker = ctx.sender
        assert asker is not None

        def ended(exit_: Exit) -> None:
            if self._running.get(name, (None, 0))[0] is handle:
                del self._running[name]
            code = -1 if exit_.code is None else exit_.code
            told = ProcessExited(
                name=name,
                incarnation=order.incarnation,
                pid=exit_.pid,
                code=code,
                stderr_tail=exit_.stderr_tail[-2000:],
            )
            ctx.tell(asker, told)

        self._exits.watch(handle, ended)
        ctx.reply(ProcessStarted(pid=handle.pid))

    def stopped(self, ctx: Context) -> None:  # noqa: ARG002
        for handle, _ in list(self._running.values()):
            handle.signal_group(signal.SIGKILL)
        self._alive.close()

    def state(self) -> object:
        return {name: {"pid": handle.pid, "life": life} for name, (handle, life) in list(self._running.items())}


def _fit(environment: Mapping[str, str]) -> dict[str, str]:
    """Without bytecode a process would compile every module at each restart, a second of work; and a heap for each of
    its threads would cost it megabytes.
    """
    kept = {name: value for name, value in environment.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {"MALLOC_ARENA_MAX": "2"} | kept
