"""The simulated probe: a machine that a test or a scenario describes, with a clock made of virtual time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from actors.actor import Actor, Context
from messages.ports import ClockReading, Probed, ProbedCapability, ProbeMachine, ProbeMessage, ReadClock
from runtime.ports.probe import Machine, describe

BOARD = Machine(
    arch="aarch64",
    kernel="6.6.0",
    cores=4,
    memory_total=8 * 2**30,
    memory_free=4 * 2**30,
    node_class="board",
    interpreter="/usr/bin/python3",
    interpreter_version="3.11.2",
)


@dataclass
class SimulatedMachine:
    """What outlives the actor. `extra`: capabilities besides those of `machine`; `boots`: how often it was started."""

    machine: Machine = BOARD
    extra: list[ProbedCapability] = field(default_factory=list)
    name: str = "machine"
    boots: int = 1
    booted_at_s: float = 0.0

    @property
    def boot_id(self) -> str:
        return f"{self.name}-{self.boots}"

    def boot(self, now_s: float) -> None:
        """A new boot id, and a clock that begins at zero."""
        self.boots += 1
        self.booted_at_s = now_s

    def clock(self, now_s: float) -> ClockReading:
        return ClockReading(boot_id=self.boot_id, boottime_ms=int((now_s - self.booted_at_s) * 1000))


class SimulatedProbe(Actor[ProbeMessage]):
    mailbox: ClassVar = ProbeMessage

    def __init__(self, machine: SimulatedMachine | None = None) -> None:
        self._machine = SimulatedMachine() if machine is None else machine

    def receive(self, message: ProbeMessage, ctx: Context) -> None:
        match message:
            case ProbeMachine():
                probed = describe(self._machine.machine)
                ctx.reply(Probed(capabilities=[*probed.capabilities, *self._machine.extra], notes=probed.notes))
            case ReadClock():
                ctx.reply(self._machine.clock(ctx.now()))
