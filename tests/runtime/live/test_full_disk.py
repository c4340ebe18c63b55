"""A cluster whose disk is full: nothing new begins, what runs goes on, and all is well again when space is."""

from __future__ import annotations

import shutil
import subprocess
import time
from contextlib import suppress

import pytest

from actors.actor import AskFailed
from actors.placement.core import SOURCE
from messages.base import Address
from messages.chain import Tail, Verify
from messages.control import CtlConfig, Interval, Method
from messages.placement import ListInstances, ListNodes, PlaceOrder
from messages.system import AskFailure
from runtime.cli.faults import failure_of
from runtime.cluster.settings import Times
from runtime.leftovers import kill_all, processes_of

PLANE, CHAIN = Address("controller/plane"), Address("chain/chain")
DISK_BYTES = 32 * 1024 * 1024
DEAD_AFTER_S = 2.0


@pytest.fixture
def on_small_disk(make_cluster):
    """Makes a cluster of which one folder is a small file system of its own, and brings it up."""
    disks = []

    def make(folder: str):
        live = make_cluster(times=Times(beat_s=0.5, dead_after_s=DEAD_AFTER_S, stop_grace_s=1.0))
        disk, aside = live.cluster.path / folder, live.folder / "aside"
        disk.mkdir(mode=0o700, parents=True, exist_ok=True)
        shutil.copytree(disk, aside)
        command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=700", "none", disk]
        if subprocess.run(command, capture_output=True, check=False).returncode != 0:
            pytest.skip("no permission to mount a small file system")
        disks.append((live, disk))
        shutil.copytree(aside, disk, dirs_exist_ok=True)
        return live.up(), disk / "ballast"

    yield make
    for live, disk in disks:
        live.hang_up()
        if live.root is not None:
            live.root.kill()
            live.wait_root()
        kill_all(live.folder)
        live.until(lambda live=live: not processes_of(live.folder), what="nothing keeps the disk")
        subprocess.run(["umount", disk], check=True)


def fill(path) -> None:
    """Write until not one byte more fits."""
    for size in (1024 * 1024, 4096, 1):
        with suppress(OSError), path.open("ab", buffering=0) as file:
            while True:
                file.write(bytes(size))


def place_new(live):
    """The report of a placement that was never tried before, or its refusal."""
    order = PlaceOrder(package_dir=str(live.package), config=CtlConfig(mode=Interval(secs=1), args=["--label", "new"]))
    try:
        return live.ask(PLANE, order, 30.0)
    except AskFailed as failed:
        return failed


def recorded_by_the_controller(live) -> int:
    """What a node tells of the placement before comes when it comes."""
    records = live.ask(CHAIN, Tail(count=1_000)).records
    return sum(record.source == SOURCE for record in records)


def alive(live) -> bool:
    (node,) = live.ask(PLANE, ListNodes()).nodes
    return node.liveness == "alive"


def refused(code: str, *words: str):
    """Before anything is dispatched, with what to do about it."""

    def check(live, outcome, recorded: int) -> None:
        assert isinstance(outcome, AskFailed)
        assert outcome.failure is AskFailure.REFUSED
        assert outcome.code == code
        for word in words:
            assert word in outcome.reason
        assert recorded == 0
        told = failure_of(outcome)
        assert told is not None
        assert "disk" in told.remedy

    return check


def refused_by_the_node(live, outcome, recorded: int) -> None:
    """The decision is on the chain, and so is what became of it."""
    assert outcome.placed is None
    (attempt,) = outcome.attempts
    assert attempt.outcome == "refused"
    assert "disk_full" in attempt.reason
    assert recorded > 0
    assert live.ask(PLANE, ListInstances()).unsettled == []


def placed(live, outcome, recorded: int) -> None:
    """What cannot be logged is done all the same."""
    assert recorded > 0
    live.unload(live.wait_instance(outcome.placed.instance_id).instance_id)


CASES = {
    "state/chain": refused("no_record", "disk_full", "free some space"),
    "state/controller": refused("package", "No space left on device"),
    "state/shed": refused_by_the_node,
    "logs": placed,
    ".": refused("package", "No space left on device"),
}


@pytest.mark.parametrize(("folder", "check"), CASES.items(), ids=CASES)
def test_a_full_disk_stops_new_acts_at_most_and_all_is_well_when_there_is_space(on_small_disk, folder, check):
    live, ballast = on_small_disk(folder)
    line = live.place()
    workload, processes = live.life(line.pid), live.pids()
    recorded = recorded_by_the_controller(live)

    fill(ballast)
    full_since = time.monotonic()
    outcome = place_new(live)
    check(live, outcome, recorded_by_the_controller(live) - recorded)
    over = full_since + DEAD_AFTER_S + 0.5  # a node that does not beat is dead by then
    live.until(lambda: time.monotonic() > over and alive(live), what="beats go on")
    assert live.order(Method.STATUS, line.instance_id)["status"]["pid"] == line.pid
    assert workload.lives()

    ballast.unlink()
    live.check_serves()
    assert live.pids() == processes, "a process ended of it"
    assert live.wait_instance(line.instance_id).pid == line.pid
    verdict = live.ask(CHAIN, Verify())
    assert verdict.valid, verdict
    live.unload(line.instance_id)
    assert live.end() == 0
    assert live.left() == []
