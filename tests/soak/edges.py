"""`make soak-edges`: 24 busy edges on one node, for a minute, and nothing that grows.

    python -m tests.soak.edges [--seconds 60] [--sources 4] [--sinks 6]

A cluster of processes, its workloads placed and joined as anybody's are. Once a second every process is looked at:
descriptors, threads, memory of its own. The last third of the time is compared with the first: descriptors and threads
must be equal, memory within `SLACK_KIB`. Every edge must move all the time, and none may fault.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from statistics import median

from runtime.bench.edges import Stage, cluster_for
from tests.soak.watch import Usage, usage_of

SLACK_KIB = 1_024


def watch(stage: Stage, seconds: float, tell: Callable[[str], object]) -> list[str]:
    """Problems, empty when nothing grew and everything moved."""
    problems: list[str] = []
    seen: defaultdict[str, list[Usage]] = defaultdict(list)
    before = {edge.name: edge for edge in stage.edges()}
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        time.sleep(1.0)
        for found in stage.processes():
            if (usage := usage_of(found.pid)) is not None:
                seen[f"{found.kind.value} {found.name}, pid {found.pid}"].append(usage)
    after = {edge.name: edge for edge in stage.edges()}
    elapsed = time.monotonic() - began
    total = 0
    for name, edge in after.items():
        if edge.faults or edge.lives != before[name].lives:
            problems.append(f"{name} faulted: {edge.fault} {edge.fault_text}")
        gained = edge.consumer.progress.objects - before[name].consumer.progress.objects
        total += edge.consumer.progress.bytes - before[name].consumer.progress.bytes
        if not gained:
            problems.append(f"{name} moved nothing")
    tell(f"{len(after)} edges moved {total / elapsed / 1e6:,.0f} MB/s for {elapsed:.0f} s")
    for process, usages in sorted(seen.items()):
        third = len(usages) // 3
        early, late = usages[:third], usages[-third:]
        for what, slack in (("fds", 0), ("threads", 0), ("pss_kib", SLACK_KIB)):
            first, last = (median(getattr(usage, what) for usage in part) for part in (early, late))
            if last > first + slack:
                problems.append(f"{process}: {what} grew from {first} to {last}")
        tell(f"{late[-1]}  {process}")
    return problems


def soak(seconds: float, sources: int, sinks: int, tell: Callable[[str], object]) -> list[str]:
    with cluster_for("one node") as stage:
        stage.place_fan(sources, sinks)
        stage.join_fan(sources, sinks)
        return watch(stage, seconds, tell)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--sources", type=int, default=4)
    parser.add_argument("--sinks", type=int, default=6)
    options = parser.parse_args()
    problems = soak(options.seconds, options.sources, options.sinks, lambda text: print(text, flush=True))
    for problem in problems:
        print(f"PROBLEM: {problem}")
    print("failed" if problems else "passed")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
