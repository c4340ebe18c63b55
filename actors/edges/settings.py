"""What the edges actor of a node is configured with (design 7): how long each wait may last, how often it beats."""

from __future__ import annotations

from messages.base import Address, NodeName, Record


class EdgeDeadlines(Record, frozen=True, kw_only=True):
    """Seconds that an end may spend in one state; then the wait becomes a seed event (`actors.edges.waits`).

    `driver_s` counts at a receiving end from its producer's establishment, for which it waits `producer_s` at most.
    `drain_s`: for the far end to take what a crashed producer left. `teardown_s`: twice, with the workload killed
    in between.
    """

    lease_s: float = 30.0
    install_s: float = 10.0
    driver_s: float = 10.0
    producer_s: float = 120.0
    teardown_s: float = 10.0
    drain_s: float = 5.0


class EdgeSettings(Record, frozen=True, kw_only=True):
    """`kept_ends`: how many ends that are over are kept for reports, the newest; older ones are forgotten.

    `live_ends`: how many others there may be; each has an actor, with a thread.
    `ask_s`: for the workers port to answer what the planner asked.
    """

    deadlines: EdgeDeadlines = EdgeDeadlines()
    beat_s: float = 1.0
    kept_ends: int = 64
    live_ends: int = 512
    ask_s: float = 4.0


class EdgeAddresses(Record, frozen=True, kw_only=True):
    """The ports of an edges process, and whom it tells."""

    memory: Address
    driver: Address
    workers: Address
    planner: Address


def addresses_of(process: NodeName, planner: Address) -> EdgeAddresses:
    return EdgeAddresses(
        memory=Address(f"{process}/memory"),
        driver=Address(f"{process}/driver"),
        workers=Address(f"{process}/workers"),
        planner=planner,
    )
