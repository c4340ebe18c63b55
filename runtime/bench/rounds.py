"""What every peer of a messaging benchmark shares: how much is sent, and what one round measured."""

from __future__ import annotations

import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

TEXT = "x" * 100
ROUNDS = 5
ASKS = 1_000
TELLS = 5_000
WINDOW = 500
BURST = 100
TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Round:
    """What one round measured. `batch_per_s`: messages that travel as one, where the peer can say so."""

    asks_s: list[float]
    single_per_s: float
    burst_per_s: float
    batch_per_s: float | None = None


@dataclass(frozen=True)
class Figures:
    """Medians over the rounds; latencies over all asks, in microseconds."""

    name: str
    ask_p50_us: float
    ask_p99_us: float
    single_per_s: float
    burst_per_s: float
    batch_per_s: float | None


def figures(name: str, rounds: list[Round]) -> Figures:
    batches = [each.batch_per_s for each in rounds if each.batch_per_s is not None]
    asks = sorted(sample for each in rounds for sample in each.asks_s)
    return Figures(
        name=name,
        ask_p50_us=asks[len(asks) // 2] * 1e6,
        ask_p99_us=asks[int(len(asks) * 0.99)] * 1e6,
        single_per_s=statistics.median(each.single_per_s for each in rounds),
        burst_per_s=statistics.median(each.burst_per_s for each in rounds),
        batch_per_s=statistics.median(batches) if batches else None,
    )


@contextmanager
def serving(module: str, *arguments: str) -> Iterator[None]:
    """A peer process that prints one line when it is ready."""
    command = [sys.executable, "-P", "-m", module, *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        if not process.stdout.readline():
            raise RuntimeError(f"{' '.join(command)} ended before it was ready")
        yield
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
