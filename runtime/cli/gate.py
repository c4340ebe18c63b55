"""`sennit gate`: the policy in force, and what it says to an act (promise 4, design 9, 11)."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from runtime.cli.options import ClusterOption, JsonOption, connected, open_cluster, verbs
from runtime.cli.output import ExitCode, Failed, print_document, print_facts, print_json

app = verbs()
_TIMEOUT_S = 10.0


@app.callback()
def gate() -> None:
    """The policy in force, and what it says to an act.

    \b
    Examples:
      sennit gate policy
      sennit gate check workload.place context.json
    """


@app.command()
def policy(cluster: ClusterOption = None, as_json: JsonOption = False) -> None:
    """The policy that the running gate judges by; without a running cluster, the file.

    \b
    Example:
      sennit gate policy
    """
    from messages.base import Address
    from messages.gate import GetPolicy
    from runtime.cluster import cluster_holder

    found = open_cluster(cluster)
    if cluster_holder(found) is None:
        text = found.policy_file.read_text()
        if as_json:
            print_document({"source": str(found.policy_file), "in_force": False, "text": text})
        else:
            print(text, end="")
        return
    with connected(cluster, "gate") as (_, client):
        report = client.ask(Address("gate/gate"), GetPolicy(), _TIMEOUT_S)
    rules = json.loads(report.policy)
    if as_json:
        print_document({"source": report.source, "in_force": True, "sha256": report.sha256, "policy": rules})
        return
    print_facts([("policy", report.source), ("sha256", report.sha256)])
    print_json(rules)


@app.command()
def check(
    action: Annotated[str, typer.Argument(metavar="ACTION", help="For example workload.place.")],
    context: Annotated[str, typer.Argument(metavar="CONTEXT", help="File with the JSON context; - is standard input.")],
    *,
    agent: Annotated[str, typer.Option("--agent", metavar="NAME", help="Who would act.")] = "operator",
    offline: Annotated[
        bool, typer.Option("--offline", help="Judge by the file here; nothing is asked and nothing is chained.")
    ] = False,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> ExitCode:
    """Would the gate permit this act? Ends with 4 when not. The running gate writes its judgement on the chain.

    \b
    Examples:
      sennit gate check workload.place context.json
      echo '{"workload": {}}' | sennit gate check workload.place - --offline
    """
    from messages.base import Address
    from messages.gate import Check, Decision
    from runtime.cluster import cluster_holder

    data = _context(context)
    found = open_cluster(cluster)
    if offline or cluster_holder(found) is None:
        from runtime.policy import judge_offline

        verdict = judge_offline(found.policy_file, agent, action, data)
    else:
        with connected(cluster, "gate") as (_, client):
            request = Check(agent_id=agent, action=action, context=data)
            verdict = client.ask(Address("gate/gate"), request, _TIMEOUT_S).verdict
    if as_json:
        print_document(verdict)
    else:
        print(f"{verdict.decision.value}" + (f": {verdict.reason}" if verdict.reason else ""))
        if verdict.chained:
            print(f"chained as {verdict.chained}")
    return ExitCode.DONE if verdict.decision is Decision.PERMIT else ExitCode.REFUSED


def _context(name: str) -> bytes:
    if name == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(name).read_bytes()
    except OSError as error:
        raise Failed(ExitCode.USAGE, "unreadable", f"{name} cannot be read: {error.strerror}") from None
