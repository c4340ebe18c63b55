"""What is said to the launcher beside `messages.ports`: leases move while a workload runs (design 8)."""

from __future__ import annotations

from messages.base import Request
from messages.system import Done


class RenewInstance(Request[Done], frozen=True):
    """Move the end of a running instance's lease to `deadline_boottime_ms`; it never moves back.

    Refused `invalid_state` when it does not run, or when the new end leaves no time to stop before it.
    """

    instance_id: str
    deadline_boottime_ms: int


__all__ = ["RenewInstance"]
