"""hostwatch: what the node it runs on is doing, one JSON line a sample on standard output.

    hostwatch --once            two readings a quarter of a second apart, one line
    hostwatch --interval N      a line every N seconds until SIGTERM

Fields: sample (from 1), wall_ms (Unix), load_1m, memory_total_bytes, memory_available_bytes, processors, cpu_busy (0..1
over the time since the last reading), context_switches and processes_started (both per second over that time).

Each sample is offered on port `out` too, as an F16 activation: eight little-endian half floats, in the order of
`VECTOR`, scaled to what a half float holds; its object id is the number of the sample. Where no edge has room for it,
or none is there, it is only printed; nothing waits for an edge.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import struct
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

try:
    from runtime.workload import NotAWorkload, PortError, Ports
except ImportError:  # an interpreter without sennit, and so without a node: it only prints
    Ports = None

PROC = Path("/proc")
SETTLE_S = 0.25
STOP_SIGNALS = {signal.SIGTERM, signal.SIGINT}
GIB = 2.0**30
VECTOR = (
    ("load_1m", "load_1m", 1.0),
    ("cpu_busy", "cpu_busy", 1.0),
    ("memory_total_gib", "memory_total_bytes", 1 / GIB),
    ("memory_available_gib", "memory_available_bytes", 1 / GIB),
    ("processors", "processors", 1.0),
    ("context_switches_thousands", "context_switches", 1e-3),
    ("processes_started", "processes_started", 1.0),
    ("sample_modulo_2048", "sample", 1.0),
)
"""What each half float is: its name, the field of the line, by what that is multiplied."""

HALF_MAX = 65_504.0
HALF_EXACT = 2048
"""Up to here a half float holds every whole number."""


@dataclass(frozen=True)
class Reading:
    """Counters since boot, and when they were read (monotonic seconds)."""

    at: float
    busy_ticks: int
    all_ticks: int
    context_switches: int
    processes: int


def read_counters() -> Reading:
    at = time.monotonic()
    numbers: dict[str, list[int]] = {}
    for line in (PROC / "stat").read_text().splitlines():
        name, *values = line.split()
        if name in ("cpu", "ctxt", "processes"):
            numbers[name] = [int(value) for value in values]
    ticks = numbers["cpu"][:8]  # guest time is part of user time already
    idle = ticks[3] + ticks[4]
    return Reading(at, sum(ticks) - idle, sum(ticks), numbers["ctxt"][0], numbers["processes"][0])


def read_memory() -> tuple[int, int]:
    """Total and available memory in bytes."""
    found: dict[str, int] = {}
    for line in (PROC / "meminfo").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name in ("MemTotal", "MemAvailable"):
            found[name] = int(rest.split()[0]) * 1024
    return found["MemTotal"], found["MemAvailable"]


def measure(before: Reading, now: Reading) -> dict[str, object]:
    elapsed = max(now.at - before.at, 1e-9)
    ticks = now.all_ticks - before.all_ticks
    total, available = read_memory()
    return {
        "wall_ms": time.time_ns() // 1_000_000,
        "load_1m": float((PROC / "loadavg").read_text().split()[0]),
        "memory_total_bytes": total,
        "memory_available_bytes": available,
        "processors": os.cpu_count(),
        "cpu_busy": round((now.busy_ticks - before.busy_ticks) / ticks, 4) if ticks else 0.0,
        "context_switches": round((now.context_switches - before.context_switches) / elapsed, 1),
        "processes_started": round((now.processes - before.processes) / elapsed, 1),
    }


def vector(line: Mapping[str, Any]) -> bytes:
    """A sample as half floats; what is larger than one can be is the largest."""
    scaled = [float(line[field]) * factor for _, field, factor in VECTOR[:-1]]
    return struct.pack("<8e", *(min(value, HALF_MAX) for value in scaled), line["sample"] % HALF_EXACT)


def open_port() -> Any:
    """The port `out`; None where no node runs this program."""
    try:
        return None if Ports is None else Ports.from_environment().output("out")
    except NotAWorkload:
        return None


def offer(port: Any, line: Mapping[str, Any]) -> None:
    """Offer a sample to the edges that are there."""
    try:
        port.offer(vector(line), object_id=line["sample"])
    except PortError as error:  # for example an edge that takes smaller objects only
        print(f"hostwatch: sample {line['sample']} was not offered: {error}", file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="hostwatch", description="Measure the node this runs on.")
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--once", action="store_true", help="one sample, then end")
    mode.add_argument("--interval", type=int, metavar="N", help="a sample every N seconds, 1 to 3600")
    parser.add_argument("--label", help="repeated in every line")
    options = parser.parse_args()
    if options.interval is not None and not 1 <= options.interval <= 3600:
        parser.error("--interval must be 1 to 3600 seconds")
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)  # they are waited for, so no line is ever cut in two
    port = open_port()
    before, sample = read_counters(), 0
    due = before.at + SETTLE_S
    while signal.sigtimedwait(STOP_SIGNALS, max(0.0, due - time.monotonic())) is None:
        now = read_counters()
        sample += 1
        line = {"sample": sample, **({"label": options.label} if options.label else {}), **measure(before, now)}
        print(json.dumps(line), flush=True)
        if port is not None:
            offer(port, line)
        if options.once:
            return 0
        before = now
        due = max(due + options.interval, now.at)  # a late sample is not made up for by a burst
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
