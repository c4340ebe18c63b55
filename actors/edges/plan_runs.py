"""Whether the instances run that an edge would join: no life is begun for one that is stopped or backs off.

What runs is asked of the edges process of its node, which costs neither a record nor an epoch. An instance that does
not run is asked about again by one procedure, at growing intervals, however many edges wait for it.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from actors.actor import Ask, AskFailed, Context, Procedure
from actors.edges.plan_core import PlanCore
from actors.edges.plan_state import Pair
from actors.edges.plan_view import EdgeWork, Hold, PlanView, RunKey
from messages.base import Address
from messages.edge_end import EdgeParty, FindRun, RunFound

AGAIN_FIRST_S, AGAIN_MOST_S = 0.2, 2.0

Drive = Callable[[Context, EdgeWork], Procedure]
"""Goes on with an edge."""


class RunWatch:
    """Of one incarnation of the planner."""

    def __init__(self, core: PlanCore, view: PlanView, drive: Drive) -> None:
        self._core = core
        self._view = view
        self._drive = drive
        self._watched: dict[RunKey, str] = {}

    async def look(self, ctx: Context, work: EdgeWork, pair: Pair) -> None:
        """Note that both instances run, or have the edge wait for one that does not."""
        runs = {run_key(owner): owner for owner in (pair.producer, pair.consumer)}
        for key in runs:
            if key in self._watched:
                self._wait(work, pair, key)
                return
        told = await ctx.all_of([self._question(ctx, owner) for owner in runs.values()])
        for (key, owner), found in zip(runs.items(), told, strict=True):
            if isinstance(found, AskFailed):
                work.hold = self._untold(ctx, owner, found)
                return
            if not found.runs:
                if key not in self._watched:
                    self._watched[key] = self._reason(owner, found)
                    ctx.run(self._watch(ctx, key, owner))
                self._wait(work, pair, key)
                return
        work.running = (pair, ctx.now())

    async def _watch(self, ctx: Context, key: RunKey, owner: EdgeParty) -> None:
        """Ask again until the instance runs, cannot be asked about, or no edge waits for it any more."""
        wait_s = AGAIN_FIRST_S
        while True:
            await ctx.sleep(wait_s)
            if not self._waiting(key):
                del self._watched[key]
                return
            wait_s = min(2.0 * wait_s, AGAIN_MOST_S)
            hold = None
            try:
                found = await self._question(ctx, owner)
            except AskFailed as failed:
                hold = self._untold(ctx, owner, failed)
            else:
                if not found.runs:
                    self._watched[key] = self._reason(owner, found)
                    for work in self._waiting(key):
                        assert work.hold is not None
                        work.hold.reason = self._watched[key]
                    continue
            del self._watched[key]
            for work in self._waiting(key):
                work.hold = hold
                ctx.run(self._drive(ctx, work))
            return

    def _waiting(self, key: RunKey) -> list[EdgeWork]:
        return [work for work in self._view.works.values() if work.hold is not None and work.hold.absent == key]

    def _wait(self, work: EdgeWork, pair: Pair, key: RunKey) -> None:
        work.hold = Hold(inf, self._watched[key], pair=pair, absent=key)

    def _question(self, ctx: Context, owner: EdgeParty) -> Ask[RunFound]:
        request = FindRun(instance_id=owner.instance_id, epoch=owner.epoch)
        return ctx.ask(Address(f"{owner.process}/edges"), request, self._core.settings.ask_timeout_s)

    def _reason(self, owner: EdgeParty, found: RunFound) -> str:
        return f"{self._view.label(owner)} does not run" + (f": {found.detail}" if found.detail else "")

    def _untold(self, ctx: Context, owner: EdgeParty, failed: AskFailed) -> Hold:
        reason = f"{owner.process} does not tell whether {self._view.label(owner)} runs: {failed}"
        return Hold(ctx.now() + self._core.settings.retry_s, reason)


def run_key(owner: EdgeParty) -> RunKey:
    return owner.instance_id, owner.epoch


__all__ = ["RunWatch", "run_key"]
