"""What a node's agent is configured with: times and limits (P 4.3, design 8), and whom it talks to."""

from __future__ import annotations

from actors.node.lifecycle import RestartPolicy
from messages.base import Address, NodeName, Record


class AgentSettings(Record, frozen=True):
    """Seconds unless the name says otherwise. `turn_timeout_s`: how long a verb waits for another on its instance."""

    beat_s: float = 1.0
    facts_ttl_s: int = 60
    facts_refresh_s: float = 20.0
    gate_timeout_s: float = 5.0
    chain_timeout_s: float = 5.0
    fetch_timeout_s: float = 60.0
    port_timeout_s: float = 15.0
    turn_timeout_s: float = 30.0
    stop_grace_ms: int = 2_000
    orphan_after_s: float = 600.0
    in_flight_limit: int = 8
    owed_limit: int = 256
    refusals_chained: int = 16
    refusals_window_s: float = 60.0
    restarts: RestartPolicy = RestartPolicy()


class AgentAddresses(Record, frozen=True):
    """Who is asked and told. `packages` serves what is to be fetched; the others of the node are its own ports."""

    plane: Address
    packages: Address
    chain: Address
    gate: Address
    store: Address
    blobs: Address
    launcher: Address
    probe: Address


def addresses_of(node: NodeName) -> AgentAddresses:
    """The addresses as every cluster has them."""
    return AgentAddresses(
        plane=Address("controller/plane"),
        packages=Address("controller/packages"),
        chain=Address("chain/chain"),
        gate=Address(f"{node}/gate"),
        store=Address(f"{node}/store"),
        blobs=Address(f"{node}/blobs"),
        launcher=Address(f"{node}/launcher"),
        probe=Address(f"{node}/probe"),
    )
