"""What a shim decides, without doing it: the live loop and the simulator run the same class (design 3 and 6).

Standard library only, and little of it. Times are milliseconds of `CLOCK_BOOTTIME`, the clock that counts through a
machine's sleep: a lease that ended while it slept is over when it wakes.

Inputs return actions, to be carried out in order:

* `terminate`: SIGTERM to every process of the workload;
* `kill`: SIGKILL to every process of the workload, again and again until none is left;
* `record`: no process is left; write the exit record and leave.
"""

from __future__ import annotations

GRACE_MS = 2_000
GRACE_MAX_MS = 60_000
KILL_MARGIN_MS = 500
"""The kill comes this long before the deadline of a lease: at the deadline everything is dead (design 8)."""

KILL_AGAIN_MS = 20

RUNNING, STOPPING, KILLING, ENDED = "running", "stopping", "killing", "ended"

TERMINATE, KILL, RECORD = "terminate", "kill", "record"


class Decisions:
    """One run of a workload, from its leader's start to the moment no process of it is left.

    `deadline_ms`: its lease, absolute; `orphan_after_ms`: without a lease, the longest silence of the agent;
    `run_for_ms`: the longest run (`once`). None: no such limit. `grace_ms`: between SIGTERM and SIGKILL when not
    told otherwise.
    """

    def __init__(
        self,
        now_ms: int,
        *,
        deadline_ms: int | None = None,
        orphan_after_ms: int | None = None,
        run_for_ms: int | None = None,
        grace_ms: int = GRACE_MS,
    ) -> None:
        self.phase = RUNNING
        self.reason = ""
        self.killed = False
        self.started_ms = now_ms
        self.deadline_ms = deadline_ms
        self.orphan_after_ms = orphan_after_ms
        self.run_for_ms = run_for_ms
        self.grace_ms = grace_ms
        self.contact_ms = now_ms
        self.exit_code: int | None = None
        self.signal: int | None = None
        self._leader_gone = False
        self._kill_at_ms: int | None = None

    def leader_exited(self, now_ms: int, exit_code: int | None, signal: int | None) -> list[str]:
        """The leader ended by itself or was ended. Whoever it left behind has the grace to follow."""
        self._leader_gone = True
        self.exit_code, self.signal = exit_code, signal
        return self._stop(now_ms, self.grace_ms, "exited")

    def emptied(self) -> list[str]:
        """No process of the workload is left, the leader included."""
        if self.phase == ENDED or not self._leader_gone:
            return []
        self.phase = ENDED
        return [RECORD]

    def told_to_stop(self, now_ms: int, grace_ms: int, reason: str = "stopped") -> list[str]:
        """A stop with its grace, 0..60000 ms. A second one can only shorten the first."""
        self.contact_ms = now_ms
        return self._stop(now_ms, max(0, min(grace_ms, GRACE_MAX_MS)), reason)

    def renewed(self, now_ms: int, deadline_ms: int) -> bool:
        """The lease reaches to `deadline_ms`. False when it is too late for that; it never moves back."""
        self.contact_ms = now_ms
        if self.phase != RUNNING or self._lease_stop_ms(deadline_ms) <= now_ms:
            return False
        if self.deadline_ms is None or deadline_ms > self.deadline_ms:
            self.deadline_ms = deadline_ms
        return True

    def contacted(self, now_ms: int) -> None:
        """The agent is there."""
        self.contact_ms = now_ms

    def tick(self, now_ms: int) -> list[str]:
        """Time passed; early and repeated ticks do no harm."""
        if self.phase == RUNNING:
            due = self._stop_due()
            if due is None or now_ms < due[0]:
                return []
            return self._stop(now_ms, self.grace_ms, due[1])
        if self.phase != ENDED and self._kill_at_ms is not None and now_ms >= self._kill_at_ms:
            return self._kill(now_ms)
        return []

    def due_ms(self) -> int | None:
        """When to call `tick`, None when nothing is timed."""
        if self.phase == RUNNING:
            due = self._stop_due()
            return None if due is None else due[0]
        return None if self.phase == ENDED else self._kill_at_ms

    def _stop_due(self) -> tuple[int, str] | None:
        dues = []
        if self.deadline_ms is not None:
            dues.append((self._lease_stop_ms(self.deadline_ms), "lease_over"))
        elif self.orphan_after_ms is not None:
            dues.append((self.contact_ms + self.orphan_after_ms, "orphaned"))
        if self.run_for_ms is not None:
            dues.append((self.started_ms + self.run_for_ms, "runtime_over"))
        return min(dues) if dues else None

    def _lease_stop_ms(self, deadline_ms: int) -> int:
        return deadline_ms - KILL_MARGIN_MS - self.grace_ms

    def _stop(self, now_ms: int, grace_ms: int, reason: str) -> list[str]:
        kill_at_ms = now_ms + grace_ms
        if self.deadline_ms is not None:
            kill_at_ms = min(kill_at_ms, self.deadline_ms - KILL_MARGIN_MS)
        if self.phase == RUNNING:
            self.phase, self.reason, self._kill_at_ms = STOPPING, reason, kill_at_ms
            return [TERMINATE] if kill_at_ms > now_ms else self._kill(now_ms)
        if self.phase == STOPPING and self._kill_at_ms is not None and kill_at_ms < self._kill_at_ms:
            self._kill_at_ms = kill_at_ms
            return [] if kill_at_ms > now_ms else self._kill(now_ms)
        return []

    def _kill(self, now_ms: int) -> list[str]:
        if self.phase == STOPPING and not self._leader_gone:
            self.killed = True
        self.phase, self._kill_at_ms = KILLING, now_ms + KILL_AGAIN_MS
        return [KILL]
