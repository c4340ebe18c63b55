"""Mailboxes of the port actors: how pure actors touch the world (design 3).

Each port has a live and a simulated implementation in `runtime`. A port refuses with a `PortRefusal` code; a
refused write did not happen.
"""

from __future__ import annotations

from enum import StrEnum

from messages.base import Message, Record, Request
from messages.system import Done


class PortRefusal(StrEnum):
    """Why a port did not do what was asked."""

    DISK_FULL = "disk_full"
    IO_ERROR = "io_error"
    DAMAGED = "damaged"
    NOT_FOUND = "not_found"
    MISMATCH = "mismatch"
    INVALID = "invalid"
    EXISTS = "exists"
    ADMISSION = "admission"
    INVALID_STATE = "invalid_state"
    NO_MEMORY = "no_memory"
    NO_DESCRIPTORS = "no_descriptors"


# store: small documents of one process, replaced whole and durably


class Document(Message, frozen=True):
    """`data` is None when the document was never saved."""

    data: bytes | None


class LoadDocument(Request[Document], frozen=True):
    """Refused `damaged` rather than ever answering an old or a mixed state."""

    name: str


class SaveDocument(Request[Done], frozen=True):
    """Answered when the new content survives a power cut; before that the old one does."""

    name: str
    data: bytes


StoreMessage = LoadDocument | SaveDocument


# blobs: the content store of one process, addressed by SHA-256 (lower-case hex)


class BlobInfo(Message, frozen=True):
    """`size` in bytes; None when the blob is not held."""

    size: int | None


class StatBlob(Request[BlobInfo], frozen=True):
    sha256: str


class BlobData(Message, frozen=True):
    data: bytes
    size: int


class ReadBlob(Request[BlobData], frozen=True):
    """At most `length` bytes from `offset`; `size` of the whole comes along. Refused `not_found`."""

    sha256: str
    offset: int
    length: int


class WriteBlob(Request[Done], frozen=True):
    """Append to the staged content of `sha256`; `offset` must be what was staged so far (0 starts anew)."""

    sha256: str
    offset: int
    data: bytes


class SealBlob(Request[Done], frozen=True):
    """Make the staged content the blob, durably, if hash and size agree; else refused `mismatch`, stage dropped."""

    sha256: str
    size: int


class PackageFile(Message, frozen=True):
    data: bytes


class ReadPackageFile(Request[PackageFile], frozen=True):
    """One regular file of a package directory on this host, at most `limit` bytes, no links followed."""

    directory: str
    path: str
    limit: int


class ImportPackageFile(Request[Done], frozen=True):
    """Copy one file of a package directory into the content store; refused `mismatch` unless hash and size agree."""

    directory: str
    path: str
    sha256: str
    size: int


BlobsMessage = StatBlob | ReadBlob | WriteBlob | SealBlob | ReadPackageFile | ImportPackageFile


# launcher: workloads under their shims


class RunLimits(Record, frozen=True):
    """cog.toml's subset (G 5.5): memory in MiB, wall seconds for `once`, bytes kept per output stream."""

    ram_mb: int
    max_runtime_s: int
    output_limit_bytes: int


class StageInstance(Request[Done], frozen=True):
    """Lay out an instance: the program (blob `sha256`), its data folder, nothing running.

    `arch` is `noarch` (a script, run by `interpreter`) or a real architecture, for which the ELF header is checked.
    Refused `admission` or `exists`.
    """

    instance_id: str
    sha256: str
    arch: str
    interpreter: str | None
    program_name: str
    limits: RunLimits


class InstanceStarted(Message, frozen=True):
    """Process ids of the shim and of the workload's leader, with the leader's start time in clock ticks."""

    shim_pid: int
    pid: int
    start_ticks: int


class StartInstance(Request[InstanceStarted], frozen=True):
    """Run a staged instance under a new shim. `deadline_boottime_ms` None: no lease."""

    instance_id: str
    arguments: list[str]
    environment: dict[str, str]
    once: bool
    epoch: str
    deadline_boottime_ms: int | None = None
    orphan_after_s: float | None = None


class RunEvidence(Message, frozen=True):
    """How a run ended. `exit_code` or `signal`; totals in bytes; `killed` when the grace ran out."""

    instance_id: str
    exit_code: int | None
    signal: int | None
    elapsed_ms: int
    stdout_bytes: int
    stderr_bytes: int
    truncated: bool
    killed: bool


class StopInstance(Request[RunEvidence], frozen=True):
    """Answered when no descendant is left. Refused `invalid_state` when nothing runs, `not_found`."""

    instance_id: str
    grace_ms: int


class RemoveInstance(Request[Done], frozen=True):
    """Remove a stopped instance's folder. Refused `invalid_state` while it runs."""

    instance_id: str


class InstanceRow(Record, frozen=True):
    """What is on disk and alive: `running` with pids, or `last` evidence, or neither (staged)."""

    instance_id: str
    running: InstanceStarted | None = None
    last: RunEvidence | None = None


class InstanceRows(Message, frozen=True):
    rows: list[InstanceRow]


class AdoptInstances(Request[InstanceRows], frozen=True):
    """After a restart: find every staged instance, adopt the living shims, clear what died unseen.

    From here on `InstanceEnded` about them is told to the asker.
    """


class InstanceEnded(Message, frozen=True):
    """Told by the launcher to whoever started or adopted the instance, when no descendant is left."""

    evidence: RunEvidence


class OutputChunk(Message, frozen=True):
    """Bytes of the two streams from the asked offsets on, and the next offsets; `*_from` skips what was dropped."""

    stdout: bytes
    stderr: bytes
    stdout_next: int
    stderr_next: int
    exit_code: int | None
    running: bool
    truncated: bool


class ReadOutput(Request[OutputChunk], frozen=True):
    """At most `limit` bytes a stream from the absolute offsets; -1 means the last `limit` bytes."""

    instance_id: str
    stdout_offset: int
    stderr_offset: int
    limit: int


LauncherMessage = StageInstance | StartInstance | StopInstance | RemoveInstance | AdoptInstances | ReadOutput


# processes: what the root supervises


class ProcessStarted(Message, frozen=True):
    pid: int


class StartProcess(Request[ProcessStarted], frozen=True):
    """Start a process of the cluster. Its exit is told to the asker as `ProcessExited`."""

    name: str
    role: str
    incarnation: int


class ProcessExited(Message, frozen=True):
    """`code` is the exit code, negative for a signal; `stderr_tail` the last lines it wrote there."""

    name: str
    incarnation: int
    pid: int
    code: int
    stderr_tail: str


class SignalProcess(Request[Done], frozen=True):
    """Send a signal to the process (or its whole group). Refused `not_found` when it is gone."""

    name: str
    signal: int
    group: bool = False


ProcessesMessage = StartProcess | SignalProcess


# probe: what this machine is


class ProbedCapability(Record, frozen=True):
    """One capability as probed; turned into `messages.facts.Capability` by the agent."""

    id: str
    attrs: dict[str, bool | int | float | str | list[str]] = {}
    state: str = "available"


class Probed(Message, frozen=True):
    capabilities: list[ProbedCapability]
    notes: list[str]


class ProbeMachine(Request[Probed], frozen=True):
    """Architecture, memory, cores, interpreter, adapters: what can be observed now."""


class ClockReading(Message, frozen=True):
    """`CLOCK_BOOTTIME` milliseconds of the boot named by `boot_id`."""

    boot_id: str
    boottime_ms: int


class ReadClock(Request[ClockReading], frozen=True):
    pass


ProbeMessage = ProbeMachine | ReadClock
