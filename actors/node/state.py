"""What a node must find again after a restart: its instances, the floors of slots, the highest term (design 8).

One document, replaced whole, so table and floors never disagree. `AgentState` is a value: a change makes a new one,
which takes the old one's place only when it is on disk.

Epochs of a slot have two marks. `taken` is the highest that was ever accepted here: an order is good once. `floor` is
what a fence set: nothing below it is accepted, for ever. Marks of terms before the highest one seen are forgotten,
since every request of such a term is refused.
"""

from __future__ import annotations

import msgspec

from actors.document import StateDamaged
from actors.node.instances import Instance
from messages.base import U64, Record
from messages.chain import Entry
from messages.control import Epoch

DOCUMENT = "agent"
STATE_VERSION = 1


class SlotMark(Record, frozen=True):
    """`taken`: the highest epoch accepted for the slot; `floor`: the lowest that may still be."""

    taken: Epoch | None = None
    floor: Epoch | None = None

    @property
    def last_term(self) -> int:
        return max(epoch.term if epoch else 0 for epoch in (self.taken, self.floor))


class AgentState(Record, frozen=True):
    """`starts` counts incarnations; `boot_id` names the boot whose clock counted the restarts of instances.

    `owed` are chain records of what has happened, still to be written; each has an idempotency key, so that paying
    twice writes once.
    """

    version: int = STATE_VERSION
    term: U64 = 0
    starts: U64 = 0
    boot_id: str = ""
    instances: dict[str, Instance] = msgspec.field(default_factory=dict)
    marks: dict[str, SlotMark] = msgspec.field(default_factory=dict)
    owed: tuple[Entry, ...] = ()

    def holder(self, slot: str, instance_id: str) -> Instance | None:
        """Who holds `slot`, or runs under the instance id that the slot has on this node."""
        for held in self.instances.values():
            if held.slot == slot or held.instance_id == instance_id:
                return held
        return None

    def with_instance(self, instance: Instance) -> AgentState:
        return _replaced(self, instances={**self.instances, instance.instance_id: instance})

    def without_instance(self, instance_id: str) -> AgentState:
        return _replaced(self, instances={name: row for name, row in self.instances.items() if name != instance_id})

    def with_term(self, term: int) -> AgentState:
        """A term that is higher than the present one."""
        assert term > self.term, "terms only rise"
        marks = {slot: mark for slot, mark in self.marks.items() if mark.last_term >= term}
        return _replaced(self, term=term, marks=marks)

    def with_floor(self, slot: str, floor: Epoch) -> AgentState:
        """The slot fenced below `floor`; a higher floor stays."""
        mark = self.marks.get(slot, SlotMark())
        raised = floor if mark.floor is None else max(floor, mark.floor)
        return _replaced(self, marks={**self.marks, slot: _replaced(mark, floor=raised)})

    def with_taken(self, slot: str, epoch: Epoch) -> AgentState:
        mark = self.marks.get(slot, SlotMark())
        assert mark.taken is None or epoch > mark.taken, "an epoch is good once"
        return _replaced(self, marks={**self.marks, slot: _replaced(mark, taken=epoch)})


_replaced = msgspec.structs.replace
_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(AgentState)


def encode_state(state: AgentState) -> bytes:
    return _encode(state)


def decode_state(data: bytes | None) -> AgentState:
    """The state in a document; a new one when there is none. Raises `StateDamaged`."""
    if data is None:
        return AgentState()
    try:
        state = _decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise StateDamaged(f"the state of the agent cannot be read: {str(error)[:200]}") from None
    if state.version != STATE_VERSION:
        raise StateDamaged(f"the state of the agent has version {state.version}, this release reads {STATE_VERSION}")
    if any(name != instance.instance_id for name, instance in state.instances.items()):
        raise StateDamaged("the state of the agent names an instance by another id than its own")
    return state


__all__ = ["DOCUMENT", "STATE_VERSION", "AgentState", "SlotMark", "decode_state", "encode_state"]
