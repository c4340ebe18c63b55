"""The mailbox of `node-*/agent`, and what agents tell the controller."""

from __future__ import annotations

from messages.base import Address, Message, NodeName, Request
from messages.control import ControlCall, SignedObject
from messages.ports import ClockReading, InstanceEnded
from messages.system import Down, PeerDown, PeerUp

FACTS_DOMAIN = b"sennit.node_facts.v1\0"


class NodeBeat(Message, frozen=True):
    """Told to `controller/plane` each beat and whenever the link comes up: I am here, this is what I am.

    `facts` are the signed facts (P 9.1), sent whole when the link comes up and when they changed. `adopting` while
    the inventory is not complete yet: no decision counts on this node until it is false (N4).
    """

    node_id: str
    name: NodeName
    agent: Address
    incarnation: int
    clock: ClockReading
    instances: int
    adopting: bool = False
    facts: SignedObject | None = None
    routes: list[str] = []


class SuperviseTick(Message, frozen=True):
    """The agent's own timer: restarts that are due (G 5.10)."""


class Beat(Message, frozen=True):
    """The agent's own timer: `NodeBeat`, facts, and whatever else is due."""


class PayOwed(Message, frozen=True):
    """The agent's own timer: write the chain records that it owes."""


class InstanceView(Message, frozen=True):
    """State of one instance as plain data, for `sennit actor state` and tests."""

    rows: list[dict[str, object]]


class GetInstances(Request[InstanceView], frozen=True):
    pass


AgentMessage = ControlCall | InstanceEnded | SuperviseTick | Beat | PayOwed | PeerUp | PeerDown | Down | GetInstances
