"""trend: mean, spread and outliers of what `hostwatch` measures, one JSON line a report on standard output.

    trend --interval N [--window N]     every N seconds, when something came, until SIGTERM
    trend --once [--window N]           when its input ends

Each object on port `in` is a sample: eight little-endian half floats, in the order of `FIELDS`, as hostwatch says.
A report is of the newest N samples (60), which are forgotten when the edge begins a new life with another number: then
another hostwatch may be at its end. Fields: report (from 1), samples (in the window), total, odd (objects that were no
sample), newest (the sample's number), and for each field of a sample mean, spread (standard deviation) and outliers:
samples since the last report that are further from the mean of those before them than three times their spread.
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import statistics
import struct
import time
from collections import deque

from runtime.workload import EndOfStream, InputPort, Ports, PortTimeout

SAMPLE = struct.Struct("<8e")
FIELDS = (
    "load_1m", "cpu_busy", "memory_total_gib", "memory_available_gib", "processors", "context_switches_thousands",
    "processes_started",
)  # fmt: skip
PATIENCE_S = 0.25
ENOUGH = 8
"""So many samples must be known before another can be called an outlier."""

FAR = 3.0
RESOLUTION = 2.0**-10
"""Of a half float, relative to its value: what differs by less does not differ."""

STOP_SIGNALS = {signal.SIGTERM, signal.SIGINT}


class Trend:
    """The newest samples and what is remarkable among them."""

    def __init__(self, window: int) -> None:
        self._samples: deque[tuple[float, ...]] = deque(maxlen=window)
        self._outliers: dict[str, list[dict[str, float]]] = {name: [] for name in FIELDS}
        self._edge: int | None = None
        self._newest: int | None = None
        self._reports = 0
        self._told = 0
        self.total = 0
        self.odd = 0

    @property
    def is_news(self) -> bool:
        return self.total + self.odd > self._told

    def take(self, payload: memoryview, number: int, edge: int) -> None:
        """`number`: of the sample; `edge`: which life of which edge brought it."""
        if len(payload) != SAMPLE.size:
            self.odd += 1
            return
        values = SAMPLE.unpack(payload)[: len(FIELDS)]
        if not all(map(math.isfinite, values)):
            self.odd += 1
            return
        if edge != self._edge and self._newest is not None and number <= self._newest:
            self._samples.clear()
        self._edge, self._newest = edge, number
        self.total += 1
        if len(self._samples) >= ENOUGH:
            for name, value, known in zip(FIELDS, values, zip(*self._samples, strict=True), strict=False):
                mean = statistics.fmean(known)
                least = max(abs(mean), abs(value)) * RESOLUTION
                if abs(value - mean) > max(FAR * statistics.pstdev(known, mean), least):
                    self._outliers[name].append({"sample": number, "value": shown(value)})
        self._samples.append(values)

    def report(self, **more: object) -> None:
        self._reports += 1
        self._told = self.total + self.odd
        line: dict[str, object] = {
            "report": self._reports, "samples": len(self._samples), "total": self.total, "odd": self.odd,
            "newest": self._newest,
        }  # fmt: skip
        for name, known in zip(FIELDS, zip(*self._samples, strict=True), strict=False):
            mean = statistics.fmean(known)
            line[name] = {
                "mean": shown(mean), "spread": shown(statistics.pstdev(known, mean)), "outliers": self._outliers[name],
            }  # fmt: skip
        print(json.dumps({**line, **more}), flush=True)
        self._outliers = {name: [] for name in FIELDS}


def shown(value: float) -> float:
    """Four digits: a half float has three to four."""
    return float(f"{value:.4g}")


def run(port: InputPort, trend: Trend, period_s: float | None) -> None:
    """Until a stop signal, or without a period until the input ends."""
    due = time.monotonic() + (period_s or math.inf)
    while not signal.sigpending() & STOP_SIGNALS:
        try:
            record = port.receive(timeout_s=max(0.0, min(PATIENCE_S, due - time.monotonic())))
            trend.take(record.payload, record.object_id, record.edge)
        except PortTimeout:
            pass
        except EndOfStream:
            if period_s is None:
                break
        if time.monotonic() >= due:
            due = time.monotonic() + (period_s or math.inf)
            if trend.is_news:
                trend.report()
    trend.report(ended=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="trend", description="Mean, spread and outliers of samples.")
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--once", action="store_true", help="one report, when the input ends")
    mode.add_argument("--interval", type=int, metavar="N", help="a report every N seconds, 1 to 3600")
    parser.add_argument("--window", type=int, default=60, metavar="N", help="samples that are looked at, 2 to 100000")
    options = parser.parse_args()
    if options.interval is not None and not 1 <= options.interval <= 3600:
        parser.error("--interval must be 1 to 3600 seconds")
    if not 2 <= options.window <= 100_000:
        parser.error("--window must be 2 to 100000 samples")
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)  # they are looked for, so no line is ever cut in two
    run(Ports.from_environment().input("in"), Trend(options.window), options.interval)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
