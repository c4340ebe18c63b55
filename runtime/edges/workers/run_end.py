"""The end of one run of a workload: waited for, proved, and brought about by order (design 7).

Nothing of a run can touch its rings when its shim has ended, and either it left its exit record, which it writes when
no descendant is left, or nobody of the run is found any more and nobody has its memory mapped. A clock never proves
it: without a proof it is looked again.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from actors.actor import Context
from runtime.edges.workers.holders import holders, kill
from runtime.edges.workers.introduction import ShimTalk
from runtime.edges.workers.later import Action, Later
from runtime.processes.exits import ExitWatch
from runtime.processes.proc import Stat
from runtime.shim.attach import AttachedRun

LOOK_AGAIN_S, LOOK_AGAIN_MAX_S = 0.05, 2.0


class RunEnd:
    """`then` is called once, in a turn of the actor, when no process of `run` is left; the caller closes `run` then.

    `arena` gives a descriptor of the ring memory that the run has, None when it has none.
    """

    def __init__(
        self, run: AttachedRun, arena: Callable[[], int | None], then: Action, later: Later, shims: ShimTalk
    ) -> None:
        self._run = run
        self._arena = arena
        self._then = then
        self._later = later
        self._shims = shims
        self._over = False
        self._outlived = False
        self._killing = False
        self._looking = False
        self._look_again_s = LOOK_AGAIN_S

    def watch(self, exits: ExitWatch) -> None:
        """Look as soon as the shim has ended. Raises `OSError`."""
        pidfd = self._run.pidfd()
        key = self._key = self._later.on(self.look)
        exits.watch_stranger(self._run.shim_pid, pidfd, lambda _: self._later.ring(key))

    def look(self, ctx: Context) -> None:
        """If the shim has ended: the run is over when it is proved, else it is looked again later."""
        if self._over or self._run.shim_lives():
            return
        holding: list[Stat] = []
        try:
            holding = self._holders()
            gone = not holding and self._run.gone()
        except OSError as error:  # it was not possible to look, which proves nothing
            ctx.log("error", "cannot see what is left of a run", instance=self._run.instance_id, reason=str(error))
            gone = False
        if gone:
            self._over = True
            self._later.forget(self._key)
            self._then(ctx)
            return
        if self._killing:
            kill(holding)
        if not self._outlived:
            self._outlived = True
            pids = [one.pid for one in holding]
            ctx.log(
                "warning",
                "a shim has ended and processes of it are left",
                instance=self._run.instance_id,
                holders=pids,
            )
        if not self._looking:
            self._looking = True
            self._later.after(self._look_again_s, self._look_again, ctx)
            self._look_again_s = min(2 * self._look_again_s, LOOK_AGAIN_MAX_S)

    def kill(self, ctx: Context) -> None:
        """End every process of the run that can be found, through its shim as long as that answers."""
        self._killing = True
        if self._outlived:  # the agent ends what it can find
            with suppress(OSError):  # it is looked again, and told why it cannot be
                kill(self._holders())
        else:
            self._shims.ask(self._run, "stop 0", (), ctx, self._asked_to_stop)

    def _asked_to_stop(self, answer: object, ctx: Context) -> None:
        if isinstance(answer, str) and not self._over and self._run.shim_lives():
            ctx.log("error", "a shim does not stop its workload, killed", instance=self._run.instance_id, reason=answer)
            self._run.kill()

    def _holders(self) -> list[Stat]:
        """Who has ring memory of a run whose shim was killed."""
        arena = None if self._run.recorded() else self._arena()
        return [] if arena is None else holders(arena)

    def _look_again(self, ctx: Context) -> None:
        self._looking = False
        self.look(ctx)


__all__ = ["RunEnd"]
