"""The workload that `sennit bench edges` places: a source or a sink of objects, by `--role`.

source   for each size sends objects through the port `s<SIZE>` for a while, then some slowly through `latency`, then
         as many as a slow sink lets it through `stall`; or, as role `fan`, through `fan` until SIGTERM
sink     reads them and prints one JSON line a port
"""

from __future__ import annotations

import argparse
import json
import signal
import time
from struct import Struct

from actors.edges.records import HEADER_BYTES
from runtime.workload import BEGIN_SEQUENCE, END_OF_SEQUENCE, InputPort, OutputPort, Ports, PortTimeout

STAMP = Struct("<Q")
LATENCY_PERIOD_S = 0.004
STALL_S, STALL_PERIOD_S = 2.5, 0.02
"""Ends tell once a second what waits in their rings."""

BATCH = 64
BATCHED_BELOW = 256 * 1024
FAN_OBJECT = 65_536


def pour(port: OutputPort, size: int, seconds: float) -> None:
    """Objects as fast as they go; small ones in batches, as a program that has many at once would send them."""
    data = bytes(size)
    count = BATCH if size < BATCHED_BELOW else 1
    port.send(data, flags=BEGIN_SEQUENCE)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with port.batch():
            for _ in range(count):
                port.send(data)
    port.send(data, flags=END_OF_SEQUENCE)


def fill(port: OutputPort, size: int, seconds: float) -> None:
    """Objects that are made in the ring itself, so that nothing is copied here: each is stamped, and no more.

    With their headers they are as large as `size`, which divides the ring: none wraps at its end.
    """
    count = BATCH if size < BATCHED_BELOW else 1
    size -= HEADER_BYTES
    port.send(bytes(size), flags=BEGIN_SEQUENCE)
    until = time.monotonic() + seconds
    while (now := time.monotonic()) < until:
        with port.batch():
            for _ in range(count):
                with port.reserve(size) as view:
                    STAMP.pack_into(view, 0, int(now))
    port.send(bytes(size), flags=END_OF_SEQUENCE)


def drip(port: OutputPort, seconds: float) -> None:
    """Objects at a low rate, each with the time it was sent at."""
    port.wait_connected()
    until = time.monotonic() + seconds
    flags = BEGIN_SEQUENCE
    while time.monotonic() < until:
        time.sleep(LATENCY_PERIOD_S)
        port.send(STAMP.pack(time.monotonic_ns()), flags=flags)
        flags = 0
    port.send(STAMP.pack(time.monotonic_ns()), flags=END_OF_SEQUENCE)


def press(port: OutputPort, size: int, seconds: float) -> None:
    """As much as the slow reader lets through."""
    data = bytes(size)
    until = time.monotonic() + seconds
    while (left_s := until - time.monotonic()) > 0:
        try:
            port.send(data, timeout_s=left_s)
        except PortTimeout:
            break
    port.send(data, flags=END_OF_SEQUENCE)


def drain(port: InputPort, period_s: float = 0.0) -> dict[str, float]:
    """Objects up to the last, and how long they took from the first; slowly with `period_s` until its patience ends."""
    objects = size = 0
    began = 0.0
    for record in port:
        now = time.monotonic()
        began = began or now
        objects += 1
        size += len(record.payload)
        if record.flags & END_OF_SEQUENCE:
            break
        if period_s and now - began < STALL_S:
            time.sleep(period_s)
    return {"objects": objects, "bytes": size, "seconds": time.monotonic() - began}


def latencies(port: InputPort) -> dict[str, float]:
    taken = []
    for record in port:
        taken.append(time.monotonic_ns() - STAMP.unpack(record.payload)[0])
        if record.flags & END_OF_SEQUENCE:
            break
    taken = sorted(taken[len(taken) // 10 :])  # the first ones find cold caches
    return {"p50_us": taken[len(taken) // 2] / 1000, "p99_us": taken[int(len(taken) * 0.99)] / 1000}


def say(port: str, what: dict[str, float]) -> None:
    print(json.dumps({"port": port, **what}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--interval", type=int)
    parser.add_argument("--role", choices=("source", "sink", "fan"), required=True)
    parser.add_argument("--sizes", default="")
    parser.add_argument("--seconds", type=float, default=1.0)
    options = parser.parse_args()
    sizes = [int(size) for size in options.sizes.split("+") if size.isdigit()]
    ports = Ports.from_environment()
    if options.role == "source":
        drip(ports.output("latency"), options.seconds)  # first, while nothing else is under way
        for size in sizes:
            pour(ports.output(f"s{size}"), size, options.seconds)
            fill(ports.output(f"r{size}"), size, options.seconds)
        press(ports.output("stall"), FAN_OBJECT, STALL_S)
    elif sizes:
        say("latency", latencies(ports.input("latency")))
        for size in sizes:
            for how in "sr":
                say(f"{how}{size}", drain(ports.input(f"{how}{size}")))
        say("stall", drain(ports.input("stall"), STALL_PERIOD_S))
    elif options.role == "fan":
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        port, data = ports.output("fan"), bytes(FAN_OBJECT)
        while True:
            port.send(data)
    else:
        for _ in ports.input("fan"):
            pass
    signal.sigwait({signal.SIGTERM})


if __name__ == "__main__":
    main()
