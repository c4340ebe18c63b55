"""Whether the instances run that an edge would join: no life is begun for one that is stopped or backs off.

What runs is asked of the edges process of its node, which costs neither a record nor an epoch. An instance that does
not run is asked about again by one procedure, at growing intervals, however many edges wait for it. So is the producer
of a stream that has ended: what runs after it has a stream of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import msgspec

from actors.actor import Ask, AskFailed, Context, Procedure
from actors.edges.planning.core import PlanCore
from actors.edges.planning.state import Pair
from actors.edges.planning.view import EdgeWork, Hold, PlanView, RunKey, RunningPair
from messages.base import Address
from messages.edge_end import EdgeParty, FindRun, RunFound

AGAIN_FIRST_S, AGAIN_MOST_S = 0.2, 2.0

Drive = Callable[[Context, EdgeWork], Procedure]
"""Goes on with an edge."""


class RunWatch:
    """Of one incarnation of the planner. `_watched`: what was last told of the runs that are asked about again."""

    def __init__(self, core: PlanCore, view: PlanView, drive: Drive) -> None:
        self._core = core
        self._view = view
        self._drive = drive
        self._watched: dict[RunKey, RunFound] = {}

    async def look(self, ctx: Context, work: EdgeWork, pair: Pair) -> None:
        """Note that both instances run, or have the edge wait for one that does not."""
        edge = self._core.state.edges[work.name]
        over = edge.finished_run if edge.finished == pair else None
        wanted = {run_key(pair.consumer): (pair.consumer, None), run_key(pair.producer): (pair.producer, over)}
        for key, (owner, unless) in wanted.items():
            last = self._watched.get(key)
            if last is not None and not self._is_enough(owner, last, unless):
                self._wait(work, pair, owner, last, unless)
                return
        told = await ctx.all_of([self._question(ctx, owner) for owner, _ in wanted.values()])
        for (key, (owner, unless)), found in zip(wanted.items(), told, strict=True):
            if isinstance(found, AskFailed):
                work.hold = self._untold(ctx, owner, found)
                return
            if not self._is_enough(owner, found, unless):
                if key not in self._watched:
                    self._watched[key] = found
                    ctx.run(self._watch(ctx, key, owner))
                self._wait(work, pair, owner, found, unless)
                return
            run = found.run  # of the producer, which is asked last
        self._noted(ctx, work, pair, run)

    def _noted(self, ctx: Context, work: EdgeWork, pair: Pair, run: str) -> None:
        edge = self._core.state.edges.get(work.name)
        if edge is not None and edge.finished == pair:
            self._core.state.edges[work.name] = msgspec.structs.replace(edge, finished=None, finished_run="")
            self._core.dirty = True
        work.running = RunningPair(pair, run, ctx.now())

    async def _watch(self, ctx: Context, key: RunKey, owner: EdgeParty) -> None:
        """Ask again until the instance cannot be asked about, or no edge waits for it any more."""
        wait_s = AGAIN_FIRST_S
        while True:
            await ctx.sleep(wait_s)
            wait_s = min(2.0 * wait_s, AGAIN_MOST_S)
            if not self._waiting(key):
                del self._watched[key]
                return
            try:
                found = await self._question(ctx, owner)
            except AskFailed as failed:
                del self._watched[key]
                for work, _ in self._waiting(key):
                    work.hold = self._untold(ctx, owner, failed)
                    ctx.run(self._drive(ctx, work))
                return
            self._watched[key] = found
            for work, hold in self._waiting(key):
                if self._is_enough(owner, found, hold.unless):
                    work.hold = None
                    ctx.run(self._drive(ctx, work))
                elif hold.reason != (reason := self._reason(owner, found)):
                    hold.reason = reason
                    ctx.run(self._drive(ctx, work))

    def _waiting(self, key: RunKey) -> list[tuple[EdgeWork, Hold]]:
        works = self._view.works.values()
        return [(work, work.hold) for work in works if work.hold is not None and work.hold.absent == key]

    def _wait(self, work: EdgeWork, pair: Pair, owner: EdgeParty, found: RunFound, unless: str | None) -> None:
        work.hold = Hold(inf, self._reason(owner, found), pair=pair, absent=run_key(owner), unless=unless)

    def _question(self, ctx: Context, owner: EdgeParty) -> Ask[RunFound]:
        request = FindRun(instance_id=owner.instance_id, epoch=owner.epoch)
        return ctx.ask(Address(f"{owner.process}/edges"), request, self._core.settings.ask_timeout_s)

    def _reason(self, owner: EdgeParty, found: RunFound) -> str:
        detail = "stopped by order" if self._is_stopped(owner) else found.detail
        return f"{self._view.label(owner)} does not run" + (f": {detail}" if detail else "")

    def _is_enough(self, owner: EdgeParty, found: RunFound, unless: str | None) -> bool:
        """It runs and goes on to, and is another run than that."""
        return found.runs and found.run != unless and not self._is_stopped(owner)

    def _is_stopped(self, owner: EdgeParty) -> bool:
        row = self._view.rows.get(owner.instance_id)
        return row is not None and row.stopped

    def _untold(self, ctx: Context, owner: EdgeParty, failed: AskFailed) -> Hold:
        reason = f"{owner.process} does not tell whether {self._view.label(owner)} runs: {failed}"
        return Hold(ctx.now() + self._core.settings.retry_s, reason)


def run_key(owner: EdgeParty) -> RunKey:
    return owner.instance_id, owner.epoch


__all__ = ["RunWatch", "run_key"]
