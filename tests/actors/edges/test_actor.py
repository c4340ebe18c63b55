"""The establisher on the simulated world: what the machine emits arrives at the configured addresses, in order."""

from pathlib import Path

import msgspec
import pytest

from actors.edges.actor import EstablisherActor
from messages.base import Address, answer_type
from messages.edge import (
    CancelQueuedLease,
    EdgeEvent,
    EdgeStopped,
    GetLocalRecord,
    LeaseRing,
    StopEdge,
)
from messages.system import GetState
from runtime.kernel.simulated import SimulatedWorld
from runtime.replay_edge import RecordedTrace

ESTABLISHER = Address("node-a.edges/establisher")
COMMANDS = Address("test/commands")
LIFECYCLE = Address("test/lifecycle")
GOLDEN = (Path(__file__).parents[2] / "golden" / "edge-traces.jsonl").read_text().splitlines()
TRACES = [msgspec.json.decode(line, type=RecordedTrace) for line in GOLDEN[::16]]


def world_with_establisher(node, commands_to=COMMANDS, lifecycle_to=LIFECYCLE):
    world = SimulatedWorld()
    world.spawn(ESTABLISHER, lambda: EstablisherActor(node, commands_to=commands_to, lifecycle_to=lifecycle_to))
    world.run_idle()
    return world


def provision(edge, node):
    return msgspec.convert(
        {
            "type": "ProvisionTx",
            "run_id": 1,
            "edge_id": edge,
            "local_node_id": node,
            "consumer_node_id": 2**64 - 1,
            "object_spec": {"kind": "activation", "dtype": "f16", "max_extent_bytes": 4096},
            "ring_spec": {"header_bytes": 128, "data_bytes": 4096, "alignment": 64},
        },
        EdgeEvent,
    )


@pytest.mark.parametrize("trace", TRACES, ids=range(1, 81, 16))
def test_a_recorded_trace_told_to_the_actor_brings_the_recorded_outcome(trace):
    world = world_with_establisher(trace.local_node_id)
    for step in trace.steps:
        world.inbox(COMMANDS).clear()
        world.inbox(LIFECYCLE).clear()
        world.tell(ESTABLISHER, step.event)
        world.run_idle()
        assert world.inbox(COMMANDS) == step.commands
        assert world.inbox(LIFECYCLE) == step.lifecycle
        for edge_id, record in step.records.items():
            assert world.ask(ESTABLISHER, GetLocalRecord(edge_id=edge_id)).record == record


def test_commands_arrive_before_the_life_cycle_events_of_the_same_step():
    both = Address("test/both")
    world = world_with_establisher(10, commands_to=both, lifecycle_to=both)
    world.tell(ESTABLISHER, provision(1, 10))
    world.tell(ESTABLISHER, StopEdge(edge_id=1))
    world.run_idle()
    assert list(map(type, world.inbox(both))) == [LeaseRing, CancelQueuedLease, EdgeStopped]


def test_an_unknown_edge_has_no_record():
    world = world_with_establisher(10)
    answer = world.ask(ESTABLISHER, GetLocalRecord(edge_id=7))
    assert isinstance(answer, answer_type(GetLocalRecord))
    assert answer.record is None


def test_its_state_lists_every_record_as_plain_data():
    world = world_with_establisher(2**64 - 1)
    for edge in (2**64 - 1, 4):
        world.tell(ESTABLISHER, provision(edge, 2**64 - 1))
    world.run_idle()  # a question about the state overtakes ordinary messages
    state = world.ask(ESTABLISHER, GetState()).state
    assert state["local_node_id"] == 2**64 - 1
    assert [(record["edge_id"], record["state"]) for record in state["records"]] == [
        (4, "waiting_for_lease"),
        (2**64 - 1, "waiting_for_lease"),
    ]


def test_a_command_that_reaches_nobody_is_named_in_the_log():
    world = world_with_establisher(10, commands_to=Address("node-a.edges/nobody"))
    world.tell(ESTABLISHER, provision(1, 10))
    world.run_idle()
    errors = [fields for level, address, _, fields in world.logs if (level, address) == ("error", ESTABLISHER)]
    assert [(fields["to"], fields["message"]["type"]) for fields in errors] == [("node-a.edges/nobody", "LeaseRing")]
    assert sum(world.dead_letters.values()) == 1
