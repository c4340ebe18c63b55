"""The policy file of a gate: reading it, and the one that `sennit init` writes (G 2.5, design 9)."""

from __future__ import annotations

import re
from pathlib import Path

from actors.gate.context import read_context
from actors.gate.decide import judge
from actors.gate.policy import Policy, PolicyFault, parse_policy
from actors.toml import load_toml
from messages.gate import GateVerdictOf

LIMIT_BYTES = 1024 * 1024
REMEDY = "correct it, or restore the file from a copy"
_PERMIT = re.compile(r"^[ \t]*\[\[[ \t]*permit[ \t]*\]\]", re.MULTILINE)
_PERMIT_KEY = re.compile(r"permit\[(\d+)\]")
_SIGNER = re.compile(r"[0-9a-f]{64}", re.ASCII)


def load_policy(path: Path) -> Policy:
    """The checked policy in `path`. Raises `PolicyFault` naming file, key and, where it is known, the line.

    A gate without a readable policy must not run: there is no policy to fall back to but denying everything. A file
    without a permit says `permit = []`, or it may be one that was cut short.
    """
    try:
        with path.open("rb") as file:
            data = file.read(LIMIT_BYTES + 1)
    except OSError as error:
        raise PolicyFault(str(path), f"cannot be read: {error.strerror or error}; {REMEDY}") from None
    if len(data) > LIMIT_BYTES:
        raise PolicyFault(str(path), f"larger than {LIMIT_BYTES} bytes")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise PolicyFault(str(path), f"not UTF-8 at byte {error.start}; {REMEDY}") from None
    try:
        policy = parse_policy(text)
        if not policy.permits and "permit" not in load_toml(text):
            raise PolicyFault("permit", "there is none, which denies everything: write permit = [] if you mean it")
    except PolicyFault as fault:
        key = f"{path}: {fault.key}" if fault.key else str(path)
        raise PolicyFault(key, f"{fault.problem}{_line_of(fault.key, text)}; {REMEDY}") from None
    return policy


def judge_offline(path: Path, agent_id: str, action: str, context: bytes) -> GateVerdictOf:
    """What a gate with the policy in `path` would say to a `Check`; nothing is chained. Raises `PolicyFault`."""
    judgement = judge(load_policy(path), agent_id, action, read_context(context))
    return GateVerdictOf(decision=judgement.decision, reason=judgement.reason)


def default_policy_toml(signer_key_hex: str = "") -> str:
    """The policy of a new cluster: what its own signer signed may run on paired nodes.

    `signer_key_hex`: the signer's Ed25519 public key, 64 lower-case hexadecimal digits, named for the reader; the
    trust file is what pins it. Raises `ValueError`.
    """
    if not signer_key_hex:
        return _DEFAULT.format(signer="a pinned signer")
    if _SIGNER.fullmatch(signer_key_hex) is None:
        raise ValueError("the signer's public key is 64 lower-case hexadecimal digits")
    return _DEFAULT.format(signer=signer_key_hex)


def _line_of(key: str, text: str) -> str:
    """Where the permit that `key` names begins; empty when that cannot be told for certain."""
    found = _PERMIT_KEY.match(key)
    starts = [match.start() for match in _PERMIT.finditer(text)]
    if found is None or '"""' in text or "'''" in text or int(found[1]) >= len(starts):
        return ""
    return f" (this permit begins at line {text.count(chr(10), 0, starts[int(found[1])]) + 1})"


_DEFAULT = """\
# What this cluster's gates allow. Whatever no permit allows is denied.
# After a change: `sennit gate policy` shows what a running gate uses; it reads this file when it starts.

format = 1

# Every allowed act is still weighed: its risk, cost, privacy, novelty and security, each from 0 to 1, make a
# vector, and an act whose vector is longer than this is denied. A signed workload with network access on a paired
# node weighs 0.69 at the usual cost of 0.25, and 0.81 when it runs emulated. 0.95 lets both pass. It still stops
# the same workload on a node that is only discovered (1.05), and one that claims the whole processor (1.19).
threshold = 0.95

# true: what exceeds the threshold is deferred to a person instead of denied. Deferred is not permitted.
human_approval = false

# Permits are tried from top to bottom; the first that matches counts.
[[permit]]
id = "signed-cogs"
description = "cogs signed by {signer}"
# Limits first: what makes a permit narrower than usual stands above its actions, so that a file cut short by a full
# disk or a slip never allows more than the whole one.
# The signature must be of a key that the trust file pins; `sennit init` pins the cluster's own signer.
min_package_trust = "pinned_signer"
# discovered < paired < pinned: how far a node is trusted is said in cluster.toml, never by the node.
min_node_tier = "paired"
# none < lan < egress: native workloads are not fenced off from the network, so they count as egress.
max_network = "egress"
# Share of a node's processors that a workload may claim, 0 to 1.
max_resource_cost = 1.0
# place, load, start, stop, unload and the others. Without stop and unload, what runs could not be taken down.
actions = ["workload.*"]
kinds = ["cog"]
# Emulation also has to be asked for, placement by placement.
allow_emulated = true
# Secrets go to pinned nodes only, whatever is written here.
allow_secrets = false
# Accelerators that may be used, for example ["accel.npu.*"]; none are by default.
accelerators = []
"""
