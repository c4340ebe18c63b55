"""What a supervision tree can cost before it runs: restarts, time to give up, time to shut down (design 6).

The numbers are bounds, for children that fail at once every time: real ones take longer to give up. `sennit tree
--lint` prints them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from actors.supervision.policy import KILL_PATIENCE_S, Backoff, ChildSpec, Intensity
from messages.supervision import Restart, Spent, Strategy


@dataclass(frozen=True, kw_only=True)
class Tree:
    """A supervisor as it would be started. `spec` is its own place under the supervisor above, None for the root.

    `actors`: the children that are threads of its process. Such a one cannot be killed: when it does not stop in
    time, the process ends with it, at once.
    """

    name: str
    children: tuple[ChildSpec | Tree, ...]
    actors: frozenset[str] = frozenset()
    spec: ChildSpec | None = None
    strategy: Strategy = Strategy.ONE_FOR_ONE
    intensity: Intensity = field(default_factory=Intensity)
    backoff: Backoff = field(default_factory=Backoff)
    spent: Spent = Spent.ESCALATE


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Of one supervisor, with those below it. `spent` says whether it fails or parks a child when it gives up.

    `lives`: the most a leaf below can live before this supervisor fails or parks, its first included; `gives_up_s`:
    the least time until then, None when the back-off is so slow that the budget is never spent; `shutdown_s`: the
    most an ordered stop takes, kills included. `findings`: what is probably not meant.
    """

    name: str
    depth: int
    spent: Spent
    lives: int
    gives_up_s: float | None
    shutdown_s: float
    findings: tuple[str, ...]


def lint(tree: Tree, depth: int = 0) -> Iterator[Bounds]:
    """Bounds of `tree` and of every supervisor below, outermost first."""
    below = [bounds for child in tree.children if isinstance(child, Tree) for bounds in lint(child, depth + 1)]
    direct = {bounds.name: bounds for bounds in below if bounds.depth == depth + 1}
    lives = (tree.intensity.restarts + 1) * max([1, *(bounds.lives for bounds in direct.values())])
    gives_up_s = time_to_give_up(tree.intensity, tree.backoff)
    findings = []
    shutdown_s = 0.0
    for child in tree.children:
        spec = child.spec if isinstance(child, Tree) else child
        if spec is None:
            raise ValueError(f"supervisor {child.name!r} is below {tree.name!r} and has no child specification")
        shutdown_s += spec.shutdown_timeout_s + (0 if child.name in tree.actors else KILL_PATIENCE_S)
        inner = direct.get(child.name)
        if inner is not None and spec.shutdown_timeout_s < inner.shutdown_s:
            findings.append(
                f"{child.name!r} is killed {spec.shutdown_timeout_s:g} s into a stop that may take it "
                f"{inner.shutdown_s:g} s: raise its shutdown_timeout_s"
            )
        own = time_to_give_up(tree.intensity, spec.backoff or tree.backoff)
        escalates = (spec.spent or tree.spent) is Spent.ESCALATE
        if own is None and escalates and spec.restart is not Restart.TEMPORARY:
            findings.append(
                f"{child.name!r} can fail for ever: its back-off never lets {tree.intensity.restarts + 1} failures "
                f"into {tree.intensity.period_s:g} s"
            )
    if gives_up_s is None and tree.spent is Spent.PARK:
        findings.append(
            f"its budget can never be spent, so no child is ever parked: the back-off never lets "
            f"{tree.intensity.restarts + 1} failures into {tree.intensity.period_s:g} s"
        )
    if tree.spec is None and tree.intensity.restarts == 0 and tree.spent is Spent.ESCALATE:
        findings.append("no restart is allowed: the first failure ends everything")
    yield Bounds(
        name=tree.name,
        depth=depth,
        spent=tree.spent,
        lives=lives,
        gives_up_s=gives_up_s,
        shutdown_s=shutdown_s,
        findings=tuple(findings),
    )
    yield from below


def time_to_give_up(intensity: Intensity, backoff: Backoff) -> float | None:
    """Seconds from the first failure to the one that spends the budget, jitter at its shortest. None: never."""
    now_s = 0.0
    window: deque[float] = deque()
    failures = 0
    while True:
        failures += 1
        window.append(now_s)
        while now_s - window[0] > intensity.period_s:
            window.popleft()
        if len(window) > intensity.restarts:
            return now_s
        delay_s = backoff.delay_s(failures, 1.0)
        steady = backoff.delay_s(failures + 1, 1.0) == delay_s and failures > intensity.restarts
        if steady and now_s - window[0] + delay_s > intensity.period_s:
            return None  # from here on each failure pushes an older one out
        now_s += delay_s


__all__ = ["Bounds", "Tree", "lint", "time_to_give_up"]
