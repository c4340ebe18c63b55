"""What an order must be, and the names that follow from it: slot, instance id (`plane_place.rs`, design 8, P 7.3).

A slot is what must never run twice: kind, workload and a digest of package and configuration. An instance id is the
slot on one node. The slot of a pinned order includes its node, so the same watcher may be pinned to each node.
"""

from __future__ import annotations

import re
from hashlib import sha256

from messages.capabilities import family
from messages.control import CtlConfig, Interval, Listener, Once, RunMode
from messages.placement import PlaceOrder, PlaneError
from messages.workload_spec import WorkloadSpec

MIN_INTERVAL_S, MAX_INTERVAL_S = 1, 3_600
DIGEST_HEX = 16
ATTACHED_HARDWARE = frozenset({"sensor", "device", "feed"})

_SLOT_DOMAIN = b"sennit.slot.v1\0"
_NODE_ID = re.compile(r"n-[0-9a-f]{16}")


class PlaneRefusal(Exception):
    """An operation that fails with a `PlaneError` code; the asker is refused with code and reason."""

    def __init__(self, code: PlaneError, reason: str) -> None:
        super().__init__(f"{code.value}: {reason}")
        self.code = code
        self.reason = reason


def check_order(order: PlaceOrder) -> None:
    """The boundary check of an order. Raises `PlaneRefusal` (`invalid`)."""
    mode = order.config.mode
    if isinstance(mode, Interval) and not MIN_INTERVAL_S <= mode.secs <= MAX_INTERVAL_S:
        raise PlaneRefusal(PlaneError.INVALID, f"interval must be {MIN_INTERVAL_S}..={MAX_INTERVAL_S} seconds")
    if order.config.csi_port == 0:
        raise PlaneRefusal(PlaneError.INVALID, "csi_port must be non-zero")
    if not order.package_dir:
        raise PlaneRefusal(PlaneError.INVALID, "package_dir must name the directory of an unpacked package")


def configuration_digest(*, kind: str, workload: str, version: str, package_id: str, config: CtlConfig) -> str:
    """16 hex of SHA-256 over the length-prefixed parts of package and configuration: two ports are two slots."""
    parts = [kind, workload, version, package_id, _mode_text(config.mode), str(config.csi_port), *config.args]
    digest = sha256(_SLOT_DOMAIN)
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()[:DIGEST_HEX]


def slot_of(
    *, kind: str, workload: str, version: str, package_id: str, config: CtlConfig, pinned_to: str | None = None
) -> str:
    """`kind:workload-digest`, with `@node_id` for an order pinned to that node."""
    digest = configuration_digest(kind=kind, workload=workload, version=version, package_id=package_id, config=config)
    pin = "" if pinned_to is None else f"@{pinned_to}"
    return f"{kind}:{workload}-{digest}{pin}"


def instance_id(slot: str, node_id: str) -> str:
    """`workload-digest-node_id`: what the slot is called on that node, pinned or not."""
    return f"{slot.partition(':')[2].partition('@')[0]}-{node_id}"


def is_node_id(text: str) -> bool:
    return _NODE_ID.fullmatch(text) is not None


def needs_attached_hardware(spec: WorkloadSpec) -> bool:
    """True when something attached to one machine is asked for; such a workload is never moved (P 8.3).

    Accelerators do not count: another machine with an equal one can take over.
    """
    requirements = [*spec.requirements.common, *(r for v in spec.requirements.variants for r in v.requirements)]
    return any(family(requirement.selector) in ATTACHED_HARDWARE for requirement in requirements)


def _mode_text(mode: RunMode) -> str:
    match mode:
        case Once():
            return "once"
        case Interval(secs=secs):
            return f"interval {secs}"
        case Listener():
            return "listener"


__all__ = [
    "PlaneRefusal", "check_order", "configuration_digest", "instance_id", "is_node_id", "needs_attached_hardware",
    "slot_of",
]  # fmt: skip
