"""The instances a node holds, and the decisions it is carrying out (P 7.1 and 7.2).

A decision that is being carried out is always visible: it is in the in-flight set before anything is done for it and
leaves that set only after its instance is in the table, and a listing reads the set first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from actors.node.health import describe_end
from actors.node.lifecycle import Life
from messages.base import Record
from messages.control import (
    AdapterState,
    CtlConfig,
    Epoch,
    HeldRow,
    InFlightRow,
    Interval,
    LifeState,
    Listener,
    Once,
    RunStatus,
)
from messages.packages import CogLimits
from messages.ports import RunEvidence


class Instance(Record, frozen=True):
    """One placed workload, as the disk knows it. `desired`: it is meant to run. `last`: how its last run ended."""

    instance_id: str
    slot: str
    epoch: Epoch
    decision_id: str
    requester: str
    kind: str
    workload: str
    version: str
    package_id: str
    manifest_hash: str
    signer_keys: tuple[str, ...]
    artifact_hashes: tuple[str, ...]
    variant: str
    runtime: str
    config: CtlConfig
    limits: CogLimits
    life: Life
    desired: bool = False
    last: RunEvidence | None = None

    @property
    def once(self) -> bool:
        return isinstance(self.config.mode, Once)


@dataclass(eq=False, slots=True)
class Run:
    """A process known to this incarnation of the agent, each run an object of its own. `ended`: what was told of it."""

    pid: int
    ended: RunEvidence | None = None


def arguments_of(config: CtlConfig) -> list[str]:
    """The command line: the mode's flag, then the order's arguments (G 5.1)."""
    match config.mode:
        case Once():
            return ["--once", *config.args]
        case Interval(secs=seconds):
            return ["--interval", str(seconds), *config.args]
        case Listener():
            return list(config.args)


def environment_of(instance: Instance) -> dict[str, str]:
    """What a workload is told. `SENNIT_EPOCH` is its fencing token.

    The feed comes from sensors elsewhere, so it is received on every interface (G 5.1). The launcher adds
    `SENNIT_DATA_DIR`, since only it knows where the folder is.
    """
    return {
        "SENNIT_INSTANCE": instance.instance_id,
        "SENNIT_EPOCH": str(instance.epoch),
        "SENNIT_CSI_BIND": f"0.0.0.0:{instance.config.csi_port}",
    }


def status_of(instance: Instance, run: Run | None) -> RunStatus:
    if run is not None:
        return RunStatus(state=AdapterState.RUNNING, pid=run.pid)
    if instance.last is not None:
        evidence = instance.last
        return RunStatus(state=AdapterState.EXITED, exit_code=evidence.exit_code, detail=describe_end(evidence))
    if instance.life.state is LifeState.LOADED:
        return RunStatus(state=AdapterState.LOADED)
    return RunStatus(state=AdapterState.EXITED, detail=describe_end(None))


def row_of(instance: Instance, run: Run | None) -> HeldRow:
    return HeldRow(
        instance_id=instance.instance_id,
        workload=instance.workload,
        variant=instance.variant,
        decision_id=instance.decision_id,
        slot=instance.slot,
        epoch=instance.epoch,
        status=status_of(instance, run),
        lifecycle=instance.life.state,
        restarts=len(instance.life.restarts),
    )


class InFlight:
    """Decisions that are being carried out, by id, with their slots."""

    def __init__(self) -> None:
        self._slots: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, decision_id: str) -> bool:
        return decision_id in self._slots

    def slots(self) -> Iterable[str]:
        return self._slots.values()

    @contextmanager
    def mark(self, decision_id: str, slot: str) -> Iterator[None]:
        """However the procedure inside ends, the mark ends with it."""
        assert decision_id not in self._slots, "a decision is carried out once"
        self._slots[decision_id] = slot
        try:
            yield
        finally:
            del self._slots[decision_id]

    def rows(self) -> list[InFlightRow]:
        return [InFlightRow(decision_id=decision_id, slot=slot) for decision_id, slot in self._slots.items()]


__all__ = ["InFlight", "Instance", "Run", "arguments_of", "environment_of", "row_of", "status_of"]
