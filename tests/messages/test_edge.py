"""The wire form of the edge messages: the seed's names, order and tags."""

import typing

import msgspec
import pytest

from messages.edge import (
    EdgeCommand,
    EdgeEvent,
    EdgeFaulted,
    EdgeFaultReason,
    EdgeLifecycleEvent,
    EdgeProvisionState,
    EdgeRingFaultReason,
    EdgeRingLeaseRejectedReason,
    EdgeStreamFaultReason,
    LocalEdgeRecord,
    RingDirection,
    RingFaultReason,
    RingLeaseRejection,
    StopEdge,
    StreamFaultReason,
)

EVENTS = (
    "ProvisionTx ProvisionRx RingLeased RingLeaseRejected RingInstalled DriverEdgeReady StreamFault RingFault StopEdge "
    "PumpStopped RingQuiesced QuiescenceProven Stopped"
)
COMMANDS = (
    "LeaseRing CancelQueuedLease InstallWorkerRing UninstallWorkerRing EstablishSend EstablishRecv StopPump "
    "ReleaseArenaLease"
)


@pytest.mark.parametrize(
    ("union", "tags"),
    [
        (EdgeEvent, EVENTS),
        (EdgeCommand, COMMANDS),
        (EdgeLifecycleEvent, "EdgeReady EdgeFaulted EdgeStopped"),
        (EdgeFaultReason, "RingLeaseRejected RingFault StreamFault"),
    ],
)
def test_the_tags_of_a_mailbox_are_the_seeds_names_in_its_order(union, tags):
    assert [member.__struct_config__.tag for member in typing.get_args(union)] == tags.split()


def test_no_message_about_edges_carries_bytes():
    for union in (EdgeEvent, EdgeCommand, EdgeLifecycleEvent):
        for member in typing.get_args(union):
            assert bytes not in typing.get_type_hints(member).values()


@pytest.mark.parametrize(
    ("reason", "written"),
    [
        (
            EdgeRingLeaseRejectedReason(reason=RingLeaseRejection.CANNOT_FIT),
            '"RingLeaseRejected","reason":"cannot_fit"',
        ),
        (EdgeRingFaultReason(reason=RingFaultReason.WORKER_CRASHED), '"RingFault","reason":"worker_crashed"'),
        (EdgeStreamFaultReason(reason=StreamFaultReason.WRITE_ERROR), '"StreamFault","reason":"write_error"'),
    ],
)
def test_a_fault_reason_is_an_object_of_its_own(reason, written):
    event = EdgeFaulted(edge_id=2**64 - 1, reason=reason)
    text = msgspec.json.encode(event).decode()
    assert text == f'{{"type":"EdgeFaulted","edge_id":18446744073709551615,"reason":{{"type":{written}}}}}'
    assert msgspec.json.decode(text, type=EdgeLifecycleEvent) == event
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(event), type=EdgeLifecycleEvent) == event


def test_what_a_record_lacks_is_written_as_null():
    record = LocalEdgeRecord(
        edge_id=1,
        direction=RingDirection.INGRESS,
        state=EdgeProvisionState.WAITING_FOR_LEASE,
        lease_request_id=1,
        ring_id=None,
        peer_node_id=None,
        local_edge_actor=1,
        remote_actor_address=None,
    )
    assert msgspec.json.encode(record).decode() == (
        '{"edge_id":1,"direction":"ingress","state":"waiting_for_lease","lease_request_id":1,"ring_id":null,'
        '"peer_node_id":null,"local_edge_actor":1,"remote_actor_address":null}'
    )


@pytest.mark.parametrize(
    "text",
    [
        '{"type":"StopEdge"}',
        '{"type":"StopEdge","edge_id":-1}',
        '{"type":"StopEdge","edge_id":"1"}',
        '{"type":"StopEdge","edge_id":1.0}',
        '{"type":"StopEdge","edge_id":true}',
        '{"type":"StopEdge","edge_id":1,"ring_id":1}',
        '{"type":"LeaseRing","request_id":1,"edge_id":1}',
        '{"type":"StreamFault","edge_id":1,"reason":"ReadError"}',
        '{"edge_id":1}',
    ],
)
def test_what_is_not_an_event_is_refused(text):
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(text, type=EdgeEvent)


def test_a_message_cannot_be_changed():
    with pytest.raises(AttributeError):
        StopEdge(edge_id=1).edge_id = 2
