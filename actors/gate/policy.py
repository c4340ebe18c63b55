"""The policy of a gate: permits and the ceiling of effects (G 2.5). With no permit every action is denied.

In TOML:

    format = 1
    threshold = 0.8         # magnitude above which a permitted act is still denied
    human_approval = false  # true: above the threshold the act is deferred to a person instead

    [[permit]]
    id = "cogs"
    min_node_tier = "pinned"
    actions = ["workload.*"]
    kinds = ["cog"]

What makes a permit narrower than its defaults stands above its `actions`, and what makes the policy so above the
permits. A permit needs its actions, so a file that was cut short, wherever, allows less than the whole one or is
refused, and never more.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any

import msgspec

from actors.gate.context import KIND
from actors.toml import TomlFault, load_toml
from messages.base import Record
from messages.gate import Action, Network, PackageTrust, WorkloadContext
from messages.workload_spec import TrustTier

POLICY_FORMAT = 1
DEFAULT_THRESHOLD = 0.8
FAMILY = "workload."
ANY = "*"

MAX_PERMITS = 256
MAX_SELECTORS = 64
MAX_TEXT = 256


class PolicyFault(ValueError):
    """A policy was not accepted. `key` is the path of what is wrong (`permit[2].actions`), `problem` why."""

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(f"{key}: {problem}" if key else problem)
        self.key = key
        self.problem = problem


class Permit(Record, frozen=True, kw_only=True):
    """One rule that allows. It matches when every condition holds. The order is that of a policy file.

    Selectors are exact, or a prefix ending in `*`. Empty `accelerators` allows none; empty `projects` and
    `principals` allow any.
    """

    id: str
    description: str = ""
    min_package_trust: PackageTrust = PackageTrust.PINNED_SIGNER
    min_node_tier: TrustTier = TrustTier.PAIRED
    max_network: Network = Network.LAN
    max_resource_cost: float = 1.0
    projects: tuple[str, ...] = ()
    principals: tuple[str, ...] = ()
    actions: tuple[str, ...]
    kinds: tuple[str, ...]
    allow_secrets: bool = False
    allow_emulated: bool = False
    accelerators: tuple[str, ...] = ()

    def covers(self, action: Action, context: WorkloadContext) -> bool:
        """Whether action and kind are this permit's business at all."""
        return _selected(action.value, self.actions) and (ANY in self.kinds or context.kind in self.kinds)

    def objection(self, principal: str, context: WorkloadContext, project: str | None) -> str:
        """The first condition that does not hold, in words; empty when the permit matches.

        `project` is a verified project id or None; it never comes from the request.
        """
        if self.principals and principal not in self.principals:
            return f"principal {principal!r} is not listed"
        if self.projects and project not in self.projects:
            return f"project {project!r} is not listed" if project is not None else "it needs a verified project"
        if context.accelerator is not None and not _selected(context.accelerator, self.accelerators):
            return f"accelerator {context.accelerator} is not allowed"
        if context.package_trust.rank < self.min_package_trust.rank:
            return f"package trust {context.package_trust.value} is below {self.min_package_trust.value}"
        if context.node_tier.rank < self.min_node_tier.rank:
            return f"node tier {context.node_tier.value} is below {self.min_node_tier.value}"
        if context.network.rank > self.max_network.rank:
            return f"network {context.network.value} is above {self.max_network.value}"
        if context.secrets and not self.allow_secrets:
            return "secrets are not allowed"
        if context.emulated and not self.allow_emulated:
            return "emulation is not allowed"
        if context.resource_cost > self.max_resource_cost:
            return f"resource cost {context.resource_cost} is above {self.max_resource_cost}"
        return ""

    def narrower(self) -> frozenset[str]:
        """The members without which this permit would allow more."""
        return frozenset(
            name
            for name, narrows in (
                ("min_node_tier", self.min_node_tier.rank > TrustTier.PAIRED.rank),
                ("max_network", self.max_network.rank < Network.LAN.rank),
                ("max_resource_cost", self.max_resource_cost < 1.0),
                ("projects", bool(self.projects)),
                ("principals", bool(self.principals)),
            )
            if narrows
        )


class Policy(Record, frozen=True):
    """Permits are tried in order; the first that matches counts."""

    format: int = POLICY_FORMAT
    threshold: float = DEFAULT_THRESHOLD
    human_approval: bool = False
    permits: tuple[Permit, ...] = msgspec.field(default=(), name="permit")

    def check(self) -> Policy:
        """The policy itself. Raises `PolicyFault` for the first thing that is wrong (G 2.5, G 7.9 G14)."""
        if self.format != POLICY_FORMAT:
            raise PolicyFault("format", f"{self.format} is unknown; this version reads format {POLICY_FORMAT}")
        if not isfinite(self.threshold) or self.threshold < 0:
            raise PolicyFault("threshold", f"{self.threshold} must be a finite number of at least 0")
        if len(self.permits) > MAX_PERMITS:
            raise PolicyFault("permit", f"{len(self.permits)} permits, at most {MAX_PERMITS} are allowed")
        seen: dict[str, int] = {}
        for place, permit in enumerate(self.permits):
            _check_permit(permit, f"permit[{place}]")
            if permit.id in seen:
                raise PolicyFault(f"permit[{place}].id", f"{permit.id!r} is also the id of permit[{seen[permit.id]}]")
            seen[permit.id] = place
        return self


def parse_policy(text: str) -> Policy:
    """The checked policy of a TOML text. Raises `PolicyFault` naming the key, or the line where TOML itself breaks."""
    try:
        document = load_toml(text)
    except TomlFault as fault:
        raise PolicyFault("", str(fault)) from None
    try:
        policy = msgspec.convert(document, Policy)
    except msgspec.ValidationError as error:
        problem, _, path = str(error).rpartition(" - at `$") if " - at `$" in str(error) else (str(error), "", "")
        raise PolicyFault(path.rstrip("`").lstrip(".")[:MAX_TEXT], problem[:MAX_TEXT]) from None
    policy.check()
    _check_order(document, policy)
    return policy


def _check_order(document: dict[str, Any], policy: Policy) -> None:
    """Refuse what a cut would lose without losing the actions it narrows. Raises `PolicyFault`."""
    if policy.threshold < DEFAULT_THRESHOLD and "threshold" in _behind(document, "permit"):
        raise PolicyFault("threshold", "write it above the permits: a file cut short before it would allow more")
    for place, (table, permit) in enumerate(zip(document.get("permit", ()), policy.permits, strict=True)):
        for name in _behind(table, "actions"):
            if name in permit.narrower():
                raise PolicyFault(
                    f"permit[{place}].{name}",
                    "narrows this permit, so write it above `actions`: a file cut short before it would allow more",
                )


def _behind(table: dict[str, Any], member: str) -> list[str]:
    names = list(table)
    return names[names.index(member) :] if member in table else []


def _check_permit(permit: Permit, path: str) -> None:
    if not permit.id.strip() or len(permit.id) > MAX_TEXT or not permit.id.isprintable():
        raise PolicyFault(f"{path}.id", f"must be 1..={MAX_TEXT} printable characters, not blank")
    if not permit.actions:
        raise PolicyFault(f"{path}.actions", 'name at least one action, for example "workload.place"')
    if not permit.kinds:
        raise PolicyFault(f"{path}.kinds", 'name at least one kind, or "*" for any')
    for name in ("actions", "kinds", "accelerators", "projects", "principals"):
        entries: tuple[str, ...] = getattr(permit, name)
        if len(entries) > MAX_SELECTORS:
            raise PolicyFault(f"{path}.{name}", f"{len(entries)} entries, at most {MAX_SELECTORS} are allowed")
        for place, entry in enumerate(entries):
            if not entry.strip() or len(entry) > MAX_TEXT:
                raise PolicyFault(f"{path}.{name}[{place}]", f"must be 1..={MAX_TEXT} characters, not blank")
    for place, selector in enumerate(permit.actions):
        _check_action(selector, f"{path}.actions[{place}]")
    for place, kind in enumerate(permit.kinds):
        if kind != ANY and KIND.fullmatch(kind) is None:
            raise PolicyFault(f"{path}.kinds[{place}]", f'{kind!r} must be "*" or 1..=64 of [a-z0-9_-]')
    if not isfinite(permit.max_resource_cost) or not 0.0 <= permit.max_resource_cost <= 1.0:
        raise PolicyFault(f"{path}.max_resource_cost", f"{permit.max_resource_cost} must be within 0..1")
    if permit.min_package_trust is PackageTrust.UNSIGNED and not permit.principals:
        raise PolicyFault(f"{path}.principals", "a permit that accepts unsigned packages must name its principals")


def _check_action(selector: str, path: str) -> None:
    if not selector.startswith(FAMILY):
        raise PolicyFault(path, f"{selector!r} must begin with {FAMILY!r}: this gate governs nothing else")
    if not any(_selected(action.value, [selector]) for action in Action):
        governed = ", ".join(action.value for action in Action)
        raise PolicyFault(path, f"{selector!r} matches no governed action ({governed})")


def _selected(name: str, selectors: Sequence[str]) -> bool:
    return any(name.startswith(selector[:-1]) if selector.endswith(ANY) else name == selector for selector in selectors)
