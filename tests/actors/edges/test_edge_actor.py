"""The actor of one edge end against the table of E 7.1."""

import pytest

from actors.edges.edge_actor import EdgeActor, edge_actor_address
from messages.base import Address
from messages.edge import (
    EdgeFaulted,
    EdgeReady,
    EdgeRingFaultReason,
    EdgeRingLeaseRejectedReason,
    EdgeStopped,
    EdgeStreamFaultReason,
    RingDirection,
    RingFaultReason,
    RingLeaseRejection,
    StreamFaultReason,
)
from messages.edge import EdgeProvisionState as State
from messages.edge_end import EdgeFaultCode as Code
from messages.edge_end import EndBound, EndReport, FaultNoted, ObjectsMoved, Progress, StreamFinished
from messages.system import GetState
from runtime.kernel.simulated import SimulatedWorld

OWNER = Address("shed.edges/edges")
PLANNER = Address("test/planner")
ACTOR = edge_actor_address("shed.edges", 3)

READY = EdgeReady(edge_id=7001, local_edge_actor=3)
FAULTED = EdgeFaulted(edge_id=7001, reason=EdgeStreamFaultReason(reason=StreamFaultReason.READ_ERROR))
STOPPED = EdgeStopped(edge_id=7001)
NOTED = FaultNoted(code=Code.SEQUENCE_VIOLATION, text="7 follows 5")
MOVED = ObjectsMoved(progress=Progress(objects=4, last_object_id=9000, last_sequence=3))
PATHS = {"provisioning": [], "ready": [READY], "faulted": [READY, NOTED, FAULTED]}


class Watched:
    def __init__(self, path=(), again=False, state=State.WAITING_FOR_LEASE):
        self.report = EndReport(
            name="a->b", edge_id=7001, run_id=1, direction=RingDirection.EGRESS, state=state,
            instance_id="hostwatch@shed", port="out", local_edge_actor=3, peer="loft.edges",
        )  # fmt: skip
        self.world = SimulatedWorld()
        self.world.spawn(
            ACTOR,
            lambda: EdgeActor(
                self.report, process="shed.edges", incarnation=5, planner=PLANNER, owner=OWNER, again=again
            ),
        )
        self.world.run_idle()
        self.tell(*path)

    def tell(self, *messages, sender=OWNER):
        for message in messages:
            self.world.tell(ACTOR, message, sender=sender)
            self.world.run_idle()

    @property
    def state(self):
        return self.world.ask(ACTOR, GetState()).state

    @property
    def told(self):
        return [(told.report.state, told.report.fault, told.report.ended) for told in self.world.inbox(PLANNER)]


@pytest.mark.parametrize(
    ("before", "message", "after"),
    [
        ("provisioning", READY, "ready"),
        ("provisioning", MOVED, "provisioning"),
        ("provisioning", FAULTED, "faulted"),
        ("ready", READY, "ready"),
        ("ready", MOVED, "ready"),
        ("ready", FAULTED, "faulted"),
        ("faulted", READY, "faulted"),
        ("faulted", MOVED, "faulted"),
        ("faulted", FAULTED, "faulted"),
        ("faulted", StreamFinished(), "faulted"),
    ],
)
def test_each_state_takes_what_the_table_says(before, message, after):
    watched = Watched(PATHS[before])
    watched.tell(message)
    assert watched.state["state"] == after


@pytest.mark.parametrize("before", PATHS)
def test_a_stopped_end_is_told_and_its_actor_ends_itself(before):
    watched = Watched(PATHS[before])
    watched.tell(STOPPED, READY, FAULTED)
    assert watched.told[-1][0] is State.STOPPED
    assert ACTOR not in watched.world.cells


def test_the_first_fault_is_told_with_its_code_and_stays():
    watched = Watched(PATHS["faulted"])
    watched.tell(FaultNoted(code=Code.LINK_LOST, text="later"), FAULTED, STOPPED)
    assert watched.told == [
        (State.READY, None, False),
        (State.STOPPING, Code.SEQUENCE_VIOLATION, False),
        (State.STOPPED, Code.SEQUENCE_VIOLATION, False),
    ]


@pytest.mark.parametrize(
    ("reason", "code", "state"),
    [
        (EdgeRingLeaseRejectedReason(reason=RingLeaseRejection.CANNOT_FIT), Code.CANNOT_FIT, State.FAILED),
        (EdgeRingFaultReason(reason=RingFaultReason.WORKER_CRASHED), Code.WORKER_CRASHED, State.STOPPING),
        (EdgeStreamFaultReason(reason=StreamFaultReason.WRITE_ERROR), Code.LINK_LOST, State.STOPPING),
    ],
)
def test_a_fault_whose_detail_was_lost_is_told_by_its_reason(reason, code, state):
    watched = Watched()
    watched.tell(EdgeFaulted(edge_id=7001, reason=reason))
    assert watched.told == [(state, code, False)]


def test_a_fault_that_only_stops_the_end_is_told_with_the_stop():
    watched = Watched()
    watched.tell(FaultNoted(code=Code.LEASE_TIMEOUT, text="no memory"), STOPPED)
    assert watched.told == [(State.STOPPED, Code.LEASE_TIMEOUT, False)]


@pytest.mark.parametrize("before", PATHS)
@pytest.mark.parametrize(
    "message",
    [
        EdgeReady(edge_id=9999, local_edge_actor=3),
        EdgeStopped(edge_id=9999),
        EdgeFaulted(edge_id=9999, reason=FAULTED.reason),
    ],
    ids=lambda message: type(message).__name__,
)
def test_what_speaks_of_another_edge_is_refused_named_and_counted(before, message):
    watched = Watched(PATHS[before])
    told = watched.told
    watched.tell(message)
    assert watched.state["state"] == before
    assert watched.state["refused"]["mismatched_edge_id"] == 1
    assert watched.told == told
    assert watched.world.logs[-1][3]["why"] == "mismatched_edge_id"


def test_what_another_than_its_owner_says_is_refused():
    watched = Watched()
    watched.tell(READY, sender=Address("loft.edges/edges"))
    assert watched.state["state"] == "provisioning"
    assert watched.state["refused"] == {"not_the_owner": 1}


def test_only_a_change_is_told():
    watched = Watched()
    watched.tell(
        EndBound(state=State.WAITING_FOR_WORKER_RING, ring_id=4),
        EndBound(state=State.WAITING_FOR_WORKER_RING, ring_id=4),
        READY,
        MOVED,
        StreamFinished(),
        StreamFinished(),
    )
    assert watched.told == [
        (State.WAITING_FOR_WORKER_RING, None, False),
        (State.READY, None, False),
        (State.READY, None, True),
    ]
    assert watched.world.inbox(PLANNER)[-1].report.progress == MOVED.progress
    assert watched.state["report"]["ring_id"] == 4


def test_objects_moved_before_ready_or_after_a_fault_are_not_taken():
    for path in ([], PATHS["faulted"]):
        watched = Watched(path)
        watched.tell(MOVED)
        assert "last_object_id" not in watched.state["report"].get("progress", {})


def test_a_later_life_tells_at_once_how_its_end_stands():
    watched = Watched(again=True)
    assert watched.told == [(State.WAITING_FOR_LEASE, None, False)]
    assert ACTOR in watched.world.cells


def test_a_later_life_of_an_end_that_is_stopped_meanwhile_tells_that_and_ends_itself():
    watched = Watched(again=True, state=State.STOPPED)
    assert watched.told == [(State.STOPPED, None, False)]
    assert ACTOR not in watched.world.cells


def test_what_cannot_be_told_is_counted():
    watched = Watched()
    watched.world.cut("shed.edges", "test")
    watched.tell(READY)
    watched.world.heal("shed.edges", "test")
    assert watched.state["untold"] == 1
