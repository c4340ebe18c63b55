"""Does the chain tell what happened? Every dispatch has its end, every placement its unload, every mark its record."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from messages.chain import Appended, ChainRecord
from tests.soak.load import SOURCE, payload_of

PLACEMENT, HOST, RUNTIME = "workload.placement", "workload.host", "workload.runtime"


def problems_of(records: Sequence[ChainRecord], marks: Mapping[str, Appended], running: set[str]) -> list[str]:
    """What the chain of a cluster leaves untold or tells twice. `running`: instance ids that are placed still."""
    return [
        *_keys_written_once(records),
        *_marks_kept(records, marks),
        *_dispatches_ended(records),
        *_placements_ended(records, running),
        *_epochs_rise(records),
        *_nodes_did_what_was_dispatched(records),
    ]


def _keys_written_once(records: Sequence[ChainRecord]) -> list[str]:
    counted = Counter((record.source, record.idempotency_key) for record in records if record.idempotency_key)
    return [f"key {key} of {source} is written {count} times" for (source, key), count in counted.items() if count > 1]


def _marks_kept(records: Sequence[ChainRecord], marks: Mapping[str, Appended]) -> list[str]:
    """What was answered is there, under the sequence and hash that were answered."""
    kept = {record.idempotency_key: record for record in records if record.source == SOURCE}
    problems = []
    for key, answer in marks.items():
        record = kept.get(key)
        if record is None or (record.sequence, record.hash) != (answer.sequence, answer.hash):
            problems.append(f"mark {key} was answered as record {answer.sequence} {answer.hash[:12]}; there: {record}")
    return problems


def _dispatches_ended(records: Sequence[ChainRecord]) -> list[str]:
    """Each attempt (decision and epoch) is followed by placed, adopted, settled, or a refusal that ends it."""
    open_: dict[tuple[str, str], int] = {}
    for record in records:
        if record.source != PLACEMENT:
            continue
        told = payload_of(record.payload)
        decision, epoch, phase = str(told.get("decision_id")), str(told.get("epoch")), told.get("phase")
        if phase == "dispatching":
            open_[decision, epoch] = record.sequence
        elif phase in ("placed", "adopted"):
            open_.pop((decision, epoch), None)
        elif phase == "settled":  # tells of the decision; only its last attempt can be unsettled
            for key in [key for key in open_ if key[0] == decision]:
                del open_[key]
        elif phase == "dispatch" and not str(told.get("next")).startswith("stopped: the target may hold"):
            open_.pop((decision, epoch), None)
    return [f"dispatch {key[0][:12]} at epoch {key[1]} (record {number}) has no end" for key, number in open_.items()]


def _placements_ended(records: Sequence[ChainRecord], running: set[str]) -> list[str]:
    begun: Counter[str] = Counter()
    ended: Counter[str] = Counter()
    for record in records:
        if record.source != PLACEMENT:
            continue
        told = payload_of(record.payload)
        if record.kind == "workload.place" and told.get("phase") in ("placed", "adopted"):
            begun[str(told["instance_id"])] += 1
        elif record.kind == "workload.lifecycle" and told.get("to") == "unloaded":
            ended[str(told["instance_id"])] += 1
    problems = []
    for instance in sorted({*begun, *ended}):
        open_ = begun[instance] - ended[instance]
        if open_ != (1 if instance in running else 0):
            state = "runs still" if instance in running else "does not run"
            problems.append(f"{instance}: {begun[instance]} placed, {ended[instance]} unloaded, and it {state}")
    return problems


def _epochs_rise(records: Sequence[ChainRecord]) -> list[str]:
    last: dict[str, tuple[int, ...]] = {}
    problems = []
    for record in records:
        told = payload_of(record.payload)
        if record.source == PLACEMENT and told.get("phase") == "dispatching":
            slot, epoch = str(told["slot"]), _epoch(told["epoch"])
            if epoch <= last.get(slot, (0, 0)):
                problems.append(f"record {record.sequence}: epoch {told['epoch']} of {slot} follows {last[slot]}")
            last[slot] = epoch
    return problems


def _nodes_did_what_was_dispatched(records: Sequence[ChainRecord]) -> list[str]:
    """No record, no act: what a node placed or started was dispatched before, at that epoch."""
    dispatched: dict[str, set[str]] = defaultdict(set)
    problems = []
    for record in records:
        told = payload_of(record.payload)
        epoch = str(told.get("epoch"))
        if record.source == PLACEMENT and told.get("phase") == "dispatching":
            dispatched[str(told["decision_id"])].add(epoch)
        elif record.source == HOST and told.get("phase") == "placed":
            if epoch in dispatched[str(told["decision_id"])]:
                continue
            problems.append(f"record {record.sequence}: {told['instance_id']} was placed at {epoch}, undispatched")
    return problems


def _epoch(text: object) -> tuple[int, ...]:
    return tuple(int(part) for part in str(text).split("."))
