"""The live `driver` port of an edges process: orders to the driver's thread, its reports to whoever orders (design 7).

Reports are told by the driver's thread straight to the actor that sent the first order; a full mailbox there keeps them
waiting, in order. When that thread dies its rings are in nobody's hands, so the port crashes, and the process with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from actors.actor import Actor, Context
from messages.base import Address, Message, NodeName
from messages.edge_ports import (
    CloseStream,
    CutLink,
    DriverMessage,
    DriverReport,
    HaltPump,
    RevokePeer,
    StartReceive,
    StartSend,
)
from runtime.edges.driver.driver import Driver
from runtime.edges.memory import NodeMemory
from runtime.office.sockets import Keys


class DriverDied(Message, frozen=True):
    """The port's own: the driver's thread ended by an error."""

    reason: str


LiveDriverMessage = DriverMessage | RevokePeer | DriverDied


class DriverPort(Actor[LiveDriverMessage]):
    """`keys` lists the edges processes of the directory and nobody else; `listen` is this one's endpoint on the edges
    plane, `dial` the others'. Starting raises `ListenFault` when the endpoint cannot be had."""

    mailbox: ClassVar = LiveDriverMessage

    def __init__(
        self, process: NodeName, memory: NodeMemory, keys: Keys, *, listen: str, dial: Mapping[str, str]
    ) -> None:
        self._process = process
        self._memory = memory
        self._keys = keys
        self._listen = listen
        self._dial = dial
        self._driver: Driver | None = None
        self._owner: Address | None = None

    def started(self, ctx: Context) -> None:
        own = ctx.address

        def report(report: DriverReport) -> bool:
            return self._owner is not None and ctx.tell(self._owner, report)

        self._driver = Driver(
            self._process,
            self._memory,
            self._keys,
            listen=self._listen,
            dial=self._dial,
            report=report,
            log=ctx.log,
            died=lambda fault: ctx.tell(own, DriverDied(reason=repr(fault))),
        )
        self._driver.start()

    def receive(self, message: LiveDriverMessage, ctx: Context) -> None:
        match message:
            case StartSend() | StartReceive() | HaltPump() | CloseStream() | CutLink():
                self._owner = self._owner or ctx.sender
                assert self._driver is not None
                self._driver.order(message)
            case RevokePeer(peer=peer):
                assert self._driver is not None
                self._driver.revoke(peer)
            case DriverDied(reason=reason):
                raise RuntimeError(f"the driver of {self._process} died: {reason}")

    def stopped(self, ctx: Context) -> None:  # noqa: ARG002
        if self._driver is not None:
            self._driver.close()

    def state(self) -> object:
        """What was refused, dropped or ignored, by name."""
        return {} if self._driver is None else {"counted": self._driver.counted}


__all__ = ["DriverPort"]
