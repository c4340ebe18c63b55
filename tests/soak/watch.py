"""What `/proc` says of a running cluster, all the time: never two, no orphan, nothing that grows."""

from __future__ import annotations

import os
import re
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Lock, Thread

from runtime.processes import proc

EVERY_S = 0.04
ORPHAN_S = 6.0
"""A process may outlive its parent this long: a child of the root leaves within a second of being able to run."""

AGE_S = 2.5
"""Every life is measured once, at this age: long enough to have started, short enough that most lives reach it."""

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_INSTANCE = re.compile(r"(.*)-n-[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class Seen:
    """A process of the cluster. `kind`: root, process, shim or workload; `name`: of the process or the instance."""

    pid: int
    ppid: int
    start_ticks: int
    kind: str
    name: str

    @property
    def age_s(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME) - self.start_ticks * _TICK_S

    def lives(self) -> bool:
        """Still this process, and with memory of its own: not one that is on its way out."""
        found = proc.stat(self.pid)
        if found is None or found.start_ticks != self.start_ticks or found.state in "ZX":
            return False
        try:
            return bool(proc.read_file(f"/proc/{self.pid}/cmdline"))
        except OSError:
            return False


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process holds: descriptors, threads, memory of its own in KiB (proportional set size)."""

    fds: int
    threads: int
    pss_kib: int

    def __str__(self) -> str:
        return f"{self.fds} fds, {self.threads} threads, {self.pss_kib / 1024:.1f} MiB"


def usage_of(pid: int) -> Usage | None:
    try:
        fds, threads = len(os.listdir(f"/proc/{pid}/fd")), len(os.listdir(f"/proc/{pid}/task"))
        rollup = proc.read_file(f"/proc/{pid}/smaps_rollup").decode()
    except OSError:
        return None
    found = re.search(r"^Pss: +(\d+) kB", rollup, re.MULTILINE)
    return None if found is None else Usage(fds, threads, int(found[1]))


def most(usages: list[Usage]) -> Usage:
    """The most of each that one of them held: at the same age some have not come to rest, on a busy machine."""
    return Usage(
        max(usage.fds for usage in usages),
        max(usage.threads for usage in usages),
        max(usage.pss_kib for usage in usages),
    )


def growth(first: Usage, last: Usage, *, fds: int = 4, threads: int = 2, pss_kib: int = 4096) -> str:
    """How `last` holds more than `first` by more than is allowed; empty when it does not."""
    grown = [
        f"{what} {before} -> {after}"
        for what, before, after, most in (
            ("descriptors", first.fds, last.fds, fds),
            ("threads", first.threads, last.threads, threads),
            ("memory (KiB)", first.pss_kib, last.pss_kib, pss_kib),
        )
        if after > before + most
    ]
    return ", ".join(grown)


@dataclass
class Watch:
    """Samples on a thread of its own. `pinned`: digests of configurations that are always pinned.

    `root`: the process id of the present root, None while there is none.
    """

    folder: Path
    pinned: frozenset[str]
    root: Callable[[], int | None]
    broken: list[str] = field(default_factory=list)
    samples: int = 0
    most_workloads: int = 0
    usages: dict[str, list[Usage]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        self._mark = os.fsencode(self.folder)
        self._strangers: set[tuple[int, int]] = set()
        self._ours: dict[tuple[int, int], Seen] = {}
        self._orphans: dict[tuple[int, int], float] = {}
        self._measured: set[tuple[int, int]] = set()
        self._lock = Lock()
        self._end = Event()
        self._thread = Thread(target=self._run, name="watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._end.set()
        self._thread.join(10)

    # looking

    def look(self) -> list[Seen]:
        """Every process of the cluster, now."""
        with self._lock:
            return self._look()

    def process(self, name: str) -> Seen | None:
        """A process that the root started and that runs."""
        root = self.root()
        return next((one for one in self.look() if one.name == name and one.ppid == root), None)

    def _look(self) -> list[Seen]:
        found = []
        strangers, ours = set(), {}
        for one in proc.processes():
            key = (one.pid, one.start_ticks)
            if one.state in "ZX" or one.pid == os.getpid():
                continue
            if key in self._strangers:
                strangers.add(key)
                continue
            known = self._ours.get(key)
            if known is not None:
                seen = known if known.ppid == one.ppid else Seen(one.pid, one.ppid, *key[1:], known.kind, known.name)
            else:
                kind, name = self._classify(one.pid)
                seen = Seen(one.pid, one.ppid, one.start_ticks, kind, name)
            # A fork bears its parent's command line until it executes its own
            settled = seen.age_s > 2.0 or seen.kind == "workload"
            if not seen.kind:
                if settled:
                    strangers.add(key)
                continue
            if settled:
                ours[key] = seen
            found.append(seen)
        self._strangers, self._ours = strangers, ours
        return found

    def _classify(self, pid: int) -> tuple[str, str]:
        try:
            command = proc.read_file(f"/proc/{pid}/cmdline")
            words = command.split(b"\0")
            if self._mark in command:
                if b"runtime.up" in words:
                    return "root", "root"
                if b"runtime.process" in words:
                    return "process", words[words.index(b"runtime.process") + 1].decode()
                instance = next((word for word in words if word.startswith(b"instance=")), None)
                if instance is not None:
                    return "shim", instance.removeprefix(b"instance=").decode()
            environment = proc.read_file(f"/proc/{pid}/environ")
        except OSError:
            return "", ""
        if self._mark in environment:
            for word in environment.split(b"\0"):
                if word.startswith(b"SENNIT_INSTANCE="):
                    return "workload", word.removeprefix(b"SENNIT_INSTANCE=").decode()
        return "", ""

    # watching

    def _run(self) -> None:
        while not self._end.wait(EVERY_S):
            try:
                self._sample()
            except Exception as error:
                self.broken.append(f"the watch itself failed: {error!r}")
                raise

    def _sample(self) -> None:
        seen = self.look()
        self.samples += 1
        self._never_two(seen)
        self._no_orphan(seen)
        for one in seen:
            key = (one.pid, one.start_ticks)
            if one.kind == "process" and key not in self._measured and one.age_s >= AGE_S and one.ppid == self.root():
                self._measured.add(key)
                usage = usage_of(one.pid)
                if usage is not None:
                    self.usages[one.name].append(usage)

    def slot_of(self, instance: str) -> str:
        """What must not run twice: an instance of a pinned configuration is a slot of its own."""
        parts = _INSTANCE.fullmatch(instance)
        if parts is None or parts[1].rpartition("-")[2] in self.pinned:
            return instance
        return parts[1]

    def _never_two(self, seen: list[Seen]) -> None:
        slots: dict[str, list[Seen]] = defaultdict(list)
        for one in seen:
            if one.kind == "workload":
                slots[self.slot_of(one.name)].append(one)
        self.most_workloads = max(self.most_workloads, sum(map(len, slots.values())))
        for slot, held in slots.items():
            if len(held) > 1 and sum(one.lives() for one in held) > 1:
                told = ", ".join(f"{one.pid} of {one.name}, {one.age_s:.2f} s old" for one in held)
                self.broken.append(f"never two: {slot} runs as {told}")

    def _no_orphan(self, seen: list[Seen]) -> None:
        kinds = {one.pid: one.kind for one in seen}
        root, now = self.root(), time.monotonic()
        orphans = {}
        for one in seen:
            if one.kind == "workload" and kinds.get(one.ppid) not in ("shim", "workload"):
                what = f"workload {one.name} ({one.pid}) lives without its shim"
            elif one.kind == "process" and one.ppid != root and kinds.get(one.ppid) != "process":
                what = f"process {one.name} ({one.pid}) lives without its root"
            else:
                continue
            key = (one.pid, one.start_ticks)
            since = orphans[key] = self._orphans.get(key, now)
            if now - since > ORPHAN_S and one.lives():
                self.broken.append(f"orphan: {what} for {now - since:.1f} s")
                orphans[key] = now + 3600  # said once
        self._orphans = orphans
