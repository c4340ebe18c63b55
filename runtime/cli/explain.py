"""`sennit explain`: why a decision came out as it did (promise 1, design 8)."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runtime.cli.chain import read_records
from runtime.cli.options import ClusterOption, JsonOption, connected, node_names, open_cluster, verbs
from runtime.cli.order import PinOption, exit_code_of, order_of
from runtime.cli.output import ExitCode, Failed, print_document

if TYPE_CHECKING:
    from messages.chain import ChainRecord

app = verbs()
_DECISION_ID = re.compile(r"[0-9a-f]{8,64}", re.ASCII)


@app.command()
def explain(
    subject: Annotated[
        str, typer.Argument(metavar="DECISION|PACKAGE", help="Id of a decision (8 digits or more), or a package.")
    ],
    *,
    pin: PinOption = None,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> ExitCode:
    """Why a decision came out as it did: every node, every failed constraint, every score, and what followed.

    A decision is told from the chain alone; a package is planned now, and nothing is started.

    \b
    Examples:
      sennit explain 3f2a9c0d11be
      sennit explain hostwatch.pkg/
    """
    if _DECISION_ID.fullmatch(subject) and not Path(subject).is_dir():
        return _from_chain(subject, cluster, as_json)
    from messages.base import Address

    order = order_of(
        Path(subject), pin=pin, prefer=None, avoid=None, once=False, interval=None, listener=None, args=None,
        allow_emulated=False, dry_run=True,
    )  # fmt: skip
    with connected(cluster, "controller") as (found, client):
        report = client.ask(Address("controller/plane"), order, found.times.place_timeout_s)
    if as_json:
        print_document({"decision_id": report.decision_id, "decision": report.decision, "explain": report.explain})
    else:
        print(report.explain, end="" if report.explain.endswith("\n") else "\n")
    return exit_code_of(report, dry_run=True)


def _from_chain(decision_id: str, given: Path | None, as_json: bool) -> ExitCode:
    cluster = open_cluster(given)
    records = read_records(cluster)
    found = [record for record in records if record.hash.startswith(decision_id) and _decision_in(record) is not None]
    if not found:
        raise Failed(
            ExitCode.USAGE, "unknown_decision", f"the chain holds no decision {decision_id}", "sennit chain tail"
        )
    if len(found) > 1:
        raise Failed(ExitCode.USAGE, "ambiguous", f"{len(found)} decisions begin with {decision_id}: give more digits")
    record = found[0]
    followed = [later for later in records if _payload(later).get("decision_id") == record.hash]
    decision = _decision_in(record)
    names = node_names(cluster)
    text = _explained(decision, names)
    if as_json:
        story = [
            {"sequence": later.sequence, "source": later.source, "kind": later.kind, "payload": _payload(later)}
            for later in followed
        ]
        print_document({"decision_id": record.hash, "decision": decision, "explain": text, "followed": story})
        return ExitCode.DONE
    print(text, end="")
    print(f"decision_id: {record.hash}")
    if followed:
        print("on the chain:")
        for later in followed:
            told = _told(_payload(later), names)
            print(f"  {later.sequence}  {later.source} {later.kind}/{_payload(later).get('phase', '-')}  {told}")
    return ExitCode.DONE


def _explained(decision: Any, names: dict[str, str]) -> str:
    import msgspec

    from actors.placement.engine import explain as explain_decision
    from messages.engine import Decision

    return explain_decision(msgspec.convert(decision, Decision), names)


def _told(payload: dict[str, Any], names: dict[str, str]) -> str:
    shown = ("node", "variant", "instance_id", "outcome", "code", "reason", "next")
    told = {name: payload[name] for name in shown if payload.get(name)}
    return ", ".join(f"{name} {names.get(str(value), value)}" for name, value in told.items())


def _decision_in(record: ChainRecord) -> Any:
    if record.kind != "workload.place":
        return None
    payload = _payload(record)
    return payload.get("decision") if payload.get("phase") == "decision" else None


def _payload(record: ChainRecord) -> dict[str, Any]:
    payload = json.loads(record.payload)
    return payload if isinstance(payload, dict) else {}
