"""How a workload gets its end of a channel: through its shim, and nothing is said before it has taken it.

A program that is not written for edges never reads what its shim passes on. No ring may be sent towards it: the
descriptors would lie in a socket that nobody can empty, and only the program's end would prove that its memory is
free. So the shim is asked whether all that was passed on is read, before the channel is passed and after.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

from actors.actor import Context
from runtime.edges.workers.channel import Channel
from runtime.edges.workers.later import Later
from runtime.shim.attach import AttachedRun
from runtime.shim.client import REPLY_TIMEOUT_S, ShimFailed

CHANNEL = "edges 1"
"""The text beside the channel's descriptor, for the workload; the number is the protocol's version."""

LOOK_AGAIN_S, LOOK_AGAIN_MAX_S = 0.005, 0.25

Then = Callable[[dict[str, Any] | str, Context], None]
"""Called with a shim's answer, or with the reason why there is none."""


class ShimTalk:
    """Requests to shims that are under way; none of them is waited for. `take_s`: how long a workload may take to take
    its channel."""

    def __init__(self, later: Later, take_s: float) -> None:
        self._later = later
        self._take_s = take_s
        self._asking: set[socket.socket] = set()

    def ask(self, run: AttachedRun, request: str, fds: tuple[int, ...], ctx: Context, then: Then) -> None:
        """Ask, and call `then` in a later turn, at the latest when a shim's time to answer is over."""
        try:
            control = run.ask(request, fds)
        except ShimFailed as error:
            text = str(error)
            self._later.after(0, lambda ctx: then(text, ctx), ctx)
            return
        self._asking.add(control)

        def finish(ctx: Context, *, late: bool) -> None:
            if control not in self._asking:
                return  # it was over before
            self._asking.discard(control)
            self._later.drop(control.fileno(), key)
            answer: dict[str, Any] | str = f"the shim of {run.instance_id} does not answer in {REPLY_TIMEOUT_S:g} s"
            try:
                if not late:
                    answer = run.answer(control)
            except (ShimFailed, ValueError) as error:
                answer = str(error)
            finally:
                control.close()
            then(answer, ctx)

        key = self._later.on(lambda ctx: finish(ctx, late=False))
        self._later.after(REPLY_TIMEOUT_S, lambda ctx: finish(ctx, late=True), ctx)
        self._later.when_ready(control.fileno(), key)

    def introduce(self, run: AttachedRun, channel: Channel, ctx: Context, then: Callable[[str, Context], None]) -> None:
        """Have the workload take `channel`; `then` is told nothing when it has, else why it has not."""
        started_s = ctx.now()
        wait_s = LOOK_AGAIN_S
        passed = False

        def look(ctx: Context) -> None:
            self.ask(run, "status", (), ctx, looked)

        def looked(answer: dict[str, Any] | str, ctx: Context) -> None:
            nonlocal wait_s
            if isinstance(answer, str):
                then(answer, ctx)
            elif not answer.get("unread"):  # the shim of an older version does not say
                if passed:
                    then("", ctx)
                else:
                    self.ask(run, f"pass {CHANNEL}", (channel.theirs.fileno(),), ctx, handed)
            elif ctx.now() - started_s > self._take_s:
                text = f"{run.instance_id} did not take its channel within {self._take_s:g} s: has the program ports?"
                then(text, ctx)
            else:
                self._later.after(wait_s, look, ctx)
                wait_s = min(2 * wait_s, LOOK_AGAIN_MAX_S)

        def handed(answer: dict[str, Any] | str, ctx: Context) -> None:
            nonlocal passed
            if isinstance(answer, str):
                then(answer, ctx)
            else:
                passed = True
                channel.theirs.close()
                look(ctx)

        look(ctx)

    def close(self) -> None:
        for control in self._asking:
            control.close()
        self._asking.clear()


__all__ = ["CHANNEL", "ShimTalk"]
