"""The live probe: what this machine is, and its clock that counts through sleep (design 8, G 1.2, P 9.1).

What is observed and how it is told are apart: `measure` reads the machine, `describe` turns a `Machine` into
capabilities. The simulated probe describes machines that do not exist.
"""

from __future__ import annotations

import os
import platform
import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from actors.actor import Actor, Context
from messages.ports import ClockReading, Probed, ProbedCapability, ProbeMachine, ProbeMessage, ReadClock

MACHINES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64", "armv7l": "armv7"}
"""`uname -m` to the architectures that a package may name (G 4.3)."""

_PROC = Path("/proc")
_SYS = Path("/sys")


@dataclass(frozen=True, slots=True)
class Machine:
    """Sizes in bytes. `arch` as packages name it; `node_class` is `board`, `laptop`, `server` or a configured one.

    `interpreter` is the absolute path of the Python that runs `noarch` payloads, None where there is none.
    """

    arch: str
    kernel: str
    cores: int
    memory_total: int
    memory_free: int
    node_class: str
    interpreter: str | None
    interpreter_version: str = ""
    notes: tuple[str, ...] = ()


def describe(machine: Machine) -> Probed:
    """The capabilities of `machine`, in a fixed order."""
    capabilities = [
        ProbedCapability(id=f"cpu.arch.{machine.arch}"),
        ProbedCapability(id="cpu.cores", attrs={"count": machine.cores}),
        ProbedCapability(id="os.linux", attrs={"kernel": machine.kernel}),
        ProbedCapability(id="mem.system", attrs={"total": machine.memory_total, "free": machine.memory_free}),
        ProbedCapability(id="runtime.native", attrs={"arches_native": [machine.arch]}),
        ProbedCapability(id=f"node.class.{machine.node_class}"),
    ]
    if machine.interpreter is not None:
        python = {"path": machine.interpreter, "version": machine.interpreter_version}
        capabilities.append(ProbedCapability(id="runtime.python", attrs={**python}))
    return Probed(capabilities=capabilities, notes=list(machine.notes))


def measure(node_class: str | None = None) -> Machine:
    """Observe this machine. `node_class` overrides what the hardware looks like. Raises `OSError`."""
    name = platform.machine()
    notes = [] if name in MACHINES else [f"no package can name the architecture {name}"]
    memory = _memory()
    if "MemAvailable" not in memory:
        notes.append("the kernel does not tell available memory: free memory counts instead")
    interpreter = sys.executable or None
    return Machine(
        arch=MACHINES.get(name, re.sub(r"[^a-z0-9_-]", "-", name.lower()) or "unknown"),
        kernel=platform.release(),
        cores=len(os.sched_getaffinity(0)),
        memory_total=memory.get("MemTotal", 0),
        memory_free=memory.get("MemAvailable", memory.get("MemFree", 0)),
        node_class=node_class or _node_class(),
        interpreter=interpreter,
        interpreter_version=platform.python_version() if interpreter else "",
        notes=tuple(notes),
    )


def read_clock() -> ClockReading:
    """Raises `OSError`."""
    boot_id = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    return ClockReading(boot_id=boot_id, boottime_ms=time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000)


class MachineProbe(Actor[ProbeMessage]):
    """Reads the machine at every question: free memory is part of the answer."""

    mailbox: ClassVar = ProbeMessage

    def __init__(self, node_class: str | None = None) -> None:
        self._node_class = node_class

    def receive(self, message: ProbeMessage, ctx: Context) -> None:
        match message:
            case ProbeMachine():
                ctx.reply(describe(measure(self._node_class)))
            case ReadClock():
                ctx.reply(read_clock())


def _memory() -> dict[str, int]:
    """`/proc/meminfo` in bytes."""
    sizes: dict[str, int] = {}
    for line in (_PROC / "meminfo").read_text().splitlines():
        name, _, rest = line.partition(":")
        fields = rest.split()
        if fields and fields[0].isdigit():
            sizes[name] = int(fields[0]) * (1024 if fields[1:] == ["kB"] else 1)
    return sizes


def _node_class() -> str:
    if (_PROC / "device-tree/model").exists():
        return "board"
    if any((_SYS / "class/power_supply").glob("BAT*")):
        return "laptop"
    return "server"
