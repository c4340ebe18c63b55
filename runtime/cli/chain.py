"""`sennit chain`: read the audit chain and verify it (promise 2, design 9, 11).

While the cluster is up its chain process answers; otherwise the file itself is read.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runtime.cli.options import ClusterOption, JsonOption, connected, node_names, open_cluster, verbs
from runtime.cli.output import ExitCode, Failed, print_document, print_facts, print_json, print_table

if TYPE_CHECKING:
    from messages.chain import ChainRecord, Verdict
    from runtime.client import Client
    from runtime.cluster import Cluster

app = verbs()

_PAGE = 1000
_TIMEOUT_S = 10.0
_VERIFY_TIMEOUT_S = 600.0
_POLL_S = 0.25


@app.callback()
def chain() -> None:
    """The audit chain: read it, verify it.

    \b
    Examples:
      sennit chain tail --follow
      sennit chain verify
    """


@app.command()
def tail(
    count: Annotated[int, typer.Option("-n", "--count", metavar="N", min=1, max=1000, help="Newest records.")] = 20,
    follow: Annotated[bool, typer.Option("--follow", help="Go on printing new records until Ctrl-C.")] = False,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the newest records.

    \b
    Examples:
      sennit chain tail
      sennit chain tail -n 5 --follow
    """
    if follow and as_json:
        raise Failed(ExitCode.USAGE, "usage", "--follow has no end, and --json is one document: use one of them")
    found = open_cluster(cluster)
    if not follow:
        records = read_records(found, count=count)
        if as_json:
            print_document([as_document(record) for record in records])
        else:
            names = node_names(found)
            columns = ("seq", "time", "source", "kind", "hash", "payload")
            print_table(columns, [_row(record, names) for record in records], shorten=True)
        return
    from messages.base import Address
    from messages.chain import Tail

    with connected(cluster, "chain") as (_, client):
        records = client.ask(Address("chain/chain"), Tail(count=count), _TIMEOUT_S).records
        last, names = -1, node_names(found)
        while True:
            for record in records:
                print("  ".join(str(cell) for cell in _row(record, names)), flush=True)
            last = records[-1].sequence if records else last
            time.sleep(_POLL_S)
            records = client.ask(Address("chain/chain"), Tail(count=_PAGE, after=last), _TIMEOUT_S).records


@app.command()
def show(
    record: Annotated[str, typer.Argument(metavar="SEQUENCE|HASH", help="Sequence, or 8 or more digits of the hash.")],
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print one record whole.

    \b
    Examples:
      sennit chain show 12
      sennit chain show 3f2a9c0d11be
    """
    matches = [
        candidate
        for candidate in read_records(open_cluster(cluster))
        if (record.isdecimal() and candidate.sequence == int(record))
        or (len(record) >= 8 and candidate.hash.startswith(record.lower()))
    ]
    if len(matches) != 1:
        what = "no record" if not matches else f"{len(matches)} records"
        raise Failed(ExitCode.USAGE, "unknown_record", f"the chain has {what} {record!r}", "sennit chain tail")
    if as_json:
        print_document(as_document(matches[0]))
        return
    shown = as_document(matches[0])
    payload = shown.pop("payload")
    print_facts(list(shown.items()))
    print_json(payload)


@app.command()
def verify(
    offline: Annotated[bool, typer.Option("--offline", help="Read the file even while the cluster is up.")] = False,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> ExitCode:
    """Recompute every hash. Ends with 5 when a record was changed, naming the first.

    \b
    Examples:
      sennit chain verify
      sennit chain verify --offline --json
    """
    verdict = verify_chain(open_cluster(cluster), offline=offline)
    if as_json:
        print_document(verdict)
    elif verdict.valid:
        print(f"valid: {verdict.count} records, head {verdict.head_hash}")
        if verdict.torn_tail:
            print(f"the end was never completed (a power cut, not tampering): {verdict.torn_tail} left out")
    else:
        print(f"NOT valid: record {verdict.first_bad}: {verdict.problem}")
        print("what stands before it holds; compare with a copy of the chain, and see sennit chain show")
    return ExitCode.DONE if verdict.valid else ExitCode.DAMAGED


def read_records(cluster: Cluster, count: int | None = None) -> list[ChainRecord]:
    """All records, or the newest `count`, oldest first: from the chain process, or from its file when it is down."""
    from messages.base import Address
    from messages.chain import GetHead, Tail
    from runtime.cluster import cluster_holder

    if cluster_holder(cluster) is None:
        from runtime.ports.chain_store import read_chain

        records = read_chain(cluster.state_dir("chain"))
        return records if count is None else records[-count:]
    with connected(cluster.path, "chain") as (_, client):
        if count is not None:
            found = client.ask(Address("chain/chain"), Tail(count=count), _TIMEOUT_S).records
        else:
            found = _all_records(client)
        if not found:  # even a new chain has one record: it is closed, and says why
            client.ask(Address("chain/chain"), GetHead(), _TIMEOUT_S)
        return found


def _all_records(client: Client) -> list[ChainRecord]:
    from messages.base import Address
    from messages.chain import Tail

    records: list[ChainRecord] = []
    while True:
        after = records[-1].sequence if records else -1
        page = client.ask(Address("chain/chain"), Tail(count=_PAGE, after=after), _TIMEOUT_S).records
        if not page:
            return records
        records.extend(page)


def verify_chain(cluster: Cluster, *, offline: bool) -> Verdict:
    """The verdict of the chain process, or of the file."""
    from messages.base import Address
    from messages.chain import Verify
    from runtime.cluster import cluster_holder

    if offline or cluster_holder(cluster) is None:
        from runtime.ports.chain_store import verify_file

        return verify_file(cluster.state_dir("chain"))
    with connected(cluster.path, "chain") as (_, client):
        return client.ask(Address("chain/chain"), Verify(), _VERIFY_TIMEOUT_S)


def as_document(record: ChainRecord) -> dict[str, Any]:
    """A record with its payload as data."""
    document = {name: getattr(record, name) for name in record.__struct_fields__}
    document["payload"] = json.loads(record.payload)
    return document


def _row(record: ChainRecord, names: Mapping[str, str]) -> tuple[object, ...]:
    at = datetime.fromtimestamp(record.time_ms / 1000).astimezone()
    payload = json.loads(record.payload)
    phase = payload.get("phase") if isinstance(payload, dict) else None
    kind = f"{record.kind}/{phase}" if phase else record.kind
    time_of_day = f"{at:%H:%M:%S}.{at.microsecond // 1000:03d}"
    return record.sequence, time_of_day, record.source, kind, record.hash[:12], _brief(payload, names)


def _brief(payload: Any, names: Mapping[str, str]) -> str:
    """The members of a payload that tell most, on one line; nodes by their names."""
    if not isinstance(payload, dict):
        return str(payload)
    payload = {**payload, **_nested(payload)}
    told = [(name, payload[name]) for name in _TELLING if payload.get(name) not in (None, "", False)]
    rest = [(name, value) for name, value in payload.items() if name not in (*_TELLING, *_DULL)]
    plain = [(name, value) for name, value in (*told, *rest) if isinstance(value, (str, int, float))]
    return " ".join(f"{name}={_short(names.get(str(value), value))}" for name, value in plain)


def _nested(payload: dict[str, Any]) -> dict[str, Any]:
    """What a decision or a judgement keeps one level deeper, in a word each."""
    match payload:
        case {"decision": {"placement": {"node_id": node, "variant": variant}, "name": workload}}:
            done = "planned" if payload.get("dry_run") else "placed"
            return {"decision": done, "workload": workload, "node": node, "variant": variant}
        case {"decision": {"name": workload}}:
            return {"decision": "unplaceable", "workload": workload}
        case {"decision": str(), "workload": {"package_id": package}}:
            return {"package": package}
        case _:
            return {}


def _short(value: object) -> object:
    """A hash by its first digits; `chain show` prints it whole."""
    return f"{value[:12]}..." if isinstance(value, str) and _HASH.fullmatch(value) else value


_HASH = re.compile(r"[0-9a-f]{64}", re.ASCII)


_TELLING = (
    "decision",
    "outcome",
    "code",
    "reason",
    "node",
    "workload",
    "instance_id",
    "epoch",
    "dry_run",
    "permit_rule",
)
_DULL = (
    "phase",
    "policy",
    "agent_id",
    "action",
    "controller",
    "gate",
    "manifest_hash",
    "threshold_exceeded",
    "requester",
)
