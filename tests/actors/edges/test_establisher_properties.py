"""What holds after any events at all, and agreement with a plain reading of the seed: flags and linear scans."""

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from actors.edges.establisher import EdgeEstablisher
from messages.edge import (
    CancelQueuedLease,
    DriverEdgeReady,
    DType,
    EdgeFaulted,
    EdgeReady,
    EdgeRingFaultReason,
    EdgeRingLeaseRejectedReason,
    EdgeStopped,
    EdgeStreamFaultReason,
    EstablishRecv,
    EstablishSend,
    InstallWorkerRing,
    LeaseRing,
    ObjectKind,
    ObjectSpec,
    ProvisionRx,
    ProvisionTx,
    PumpStopped,
    QuiescenceProof,
    QuiescenceProven,
    ReleaseArenaLease,
    RingFault,
    RingFaultReason,
    RingInstalled,
    RingLayout,
    RingLeased,
    RingLeaseRejected,
    RingLeaseRejection,
    RingQuiesced,
    RingSpec,
    StopEdge,
    Stopped,
    StopPump,
    StreamFault,
    StreamFaultReason,
    UninstallWorkerRing,
)

HERE, ELSEWHERE = 2**64 - 1, 5
EDGES = st.sampled_from([1, 2, 2**64 - 1])
RINGS = st.sampled_from([100, 101, 2**64 - 1])
REQUESTS = st.integers(1, 6)
OBJECT_SPECS = st.builds(
    ObjectSpec, kind=st.just(ObjectKind.ACTIVATION), dtype=st.just(DType.F16), max_extent_bytes=st.integers(0, 9)
)
RING_SPECS = st.builds(RingSpec, header_bytes=st.just(128), data_bytes=st.integers(0, 9), alignment=st.just(64))
LAYOUTS = st.builds(
    RingLayout,
    start_offset=st.integers(0, 9),
    header_offset=st.integers(0, 9),
    data_offset=st.integers(0, 9),
    end_offset=st.integers(0, 9),
    data_bytes=st.integers(0, 9),
    alignment=st.just(64),
)
PROVISIONED = {"run_id": st.integers(0, 9), "edge_id": EDGES, "object_spec": OBJECT_SPECS, "ring_spec": RING_SPECS}


def events(nodes=(HERE, HERE, HERE, ELSEWHERE)):
    node = st.sampled_from(nodes)
    return st.one_of(
        st.builds(ProvisionTx, local_node_id=node, consumer_node_id=st.sampled_from([HERE, 11]), **PROVISIONED),
        st.builds(ProvisionRx, local_node_id=node, **PROVISIONED),
        st.builds(RingLeased, request_id=REQUESTS, ring_id=RINGS, layout=LAYOUTS),
        st.builds(RingLeased, request_id=REQUESTS, ring_id=RINGS, layout=LAYOUTS),
        st.builds(RingLeaseRejected, request_id=REQUESTS, reason=st.sampled_from(RingLeaseRejection)),
        st.builds(RingInstalled, edge_id=EDGES, ring_id=RINGS),
        st.builds(RingInstalled, edge_id=EDGES, ring_id=RINGS),
        st.builds(DriverEdgeReady, edge_id=EDGES),
        st.builds(StreamFault, edge_id=EDGES, reason=st.sampled_from(StreamFaultReason)),
        st.builds(RingFault, edge_id=EDGES, ring_id=RINGS, reason=st.sampled_from(RingFaultReason)),
        st.builds(StopEdge, edge_id=EDGES),
        st.builds(PumpStopped, edge_id=EDGES, ring_id=RINGS),
        st.builds(RingQuiesced, ring_id=RINGS),
        st.builds(QuiescenceProven, ring_id=RINGS),
        st.builds(Stopped, edge_id=EDGES),
    )


@dataclass
class Row:
    provision: ProvisionTx | ProvisionRx
    number: int
    state: str = "waiting_for_lease"
    ring: int | None = None
    layout: RingLayout | None = None
    established: bool = False


class PlainSeed:
    """The seed read line by line: one dictionary, every lookup a scan in ascending edge id."""

    def __init__(self):
        self.rows = {}
        self.count = 0
        self.commands = []
        self.events = []

    def scan(self, matches):
        return next((row for _, row in sorted(self.rows.items()) if matches(row)), None)

    def observe(self, event):
        row = self.rows.get(getattr(event, "edge_id", None))
        match event:
            case ProvisionTx() | ProvisionRx():
                if event.local_node_id == HERE:
                    self.count += 1
                    self.rows[event.edge_id] = Row(event, self.count)
                    way = "egress" if isinstance(event, ProvisionTx) else "ingress"
                    self.commands.append(
                        LeaseRing(
                            request_id=self.count, edge_id=event.edge_id, direction=way, ring_spec=event.ring_spec
                        )
                    )
            case RingLeased():
                row = self.scan(lambda row: row.number == event.request_id)
                if row and row.state == "waiting_for_lease":
                    row.ring, row.layout, row.state = event.ring_id, event.layout, "waiting_for_worker_ring"
                    self.commands.append(
                        InstallWorkerRing(
                            edge_id=row.provision.edge_id,
                            ring_id=event.ring_id,
                            direction="egress" if isinstance(row.provision, ProvisionTx) else "ingress",
                            layout=event.layout,
                            object_spec=row.provision.object_spec,
                            ring_spec=row.provision.ring_spec,
                        )
                    )
                elif row:
                    self.release(event.ring_id)
            case RingLeaseRejected():
                row = self.scan(lambda row: row.state == "waiting_for_lease" and row.number == event.request_id)
                if row:
                    row.state = "failed"
                    self.fault(row, EdgeRingLeaseRejectedReason(reason=event.reason))
            case RingInstalled():
                if row and row.state == "waiting_for_worker_ring" and row.ring == event.ring_id:
                    row.established, row.state = True, "waiting_for_driver"
                    to = {"edge_id": event.edge_id, "layout": row.layout}
                    self.commands.append(
                        EstablishSend(consumer_node_id=row.provision.consumer_node_id, **to)
                        if isinstance(row.provision, ProvisionTx)
                        else EstablishRecv(**to)
                    )
            case DriverEdgeReady():
                if row and row.state == "waiting_for_driver":
                    row.state = "ready"
                    self.events.append(EdgeReady(edge_id=event.edge_id, local_edge_actor=row.number))
            case StreamFault():
                self.fault_and_stop(row, EdgeStreamFaultReason(reason=event.reason))
            case RingFault():
                if row and row.ring == event.ring_id:
                    self.fault_and_stop(row, EdgeRingFaultReason(reason=event.reason))
            case StopEdge():
                self.stop(row)
            case RingQuiesced() | QuiescenceProven():
                row = self.scan(lambda row: row.ring == event.ring_id)
                if row and row.state == "stopping":
                    self.release(event.ring_id)
                    self.end(row)
            case Stopped():
                if row:
                    row.state = "stopped"

    def release(self, ring):
        self.commands.append(ReleaseArenaLease(ring_id=ring, proof=QuiescenceProof(verified=True)))

    def fault(self, row, reason):
        self.events.append(EdgeFaulted(edge_id=row.provision.edge_id, reason=reason))

    def end(self, row):
        row.state = "stopped"
        self.events.append(EdgeStopped(edge_id=row.provision.edge_id))

    def fault_and_stop(self, row, reason):
        if row and row.state not in ("stopping", "stopped", "failed"):
            self.fault(row, reason)
            self.stop(row)

    def stop(self, row):
        if row is None or row.state in ("stopping", "stopped"):
            return
        edge = row.provision.edge_id
        row.state = "stopping"
        self.commands.append(CancelQueuedLease(request_id=row.number, edge_id=edge))
        if row.ring is None:
            self.end(row)
        elif row.established:
            self.commands.append(StopPump(edge_id=edge, ring_id=row.ring))
            self.commands.append(UninstallWorkerRing(edge_id=edge, ring_id=row.ring))
        else:
            self.release(row.ring)
            self.end(row)


@settings(max_examples=200, deadline=None)
@given(st.lists(events(), max_size=40))
def test_any_events_lead_where_a_plain_reading_of_the_seed_leads(observed):
    establisher, plain = EdgeEstablisher(HERE), PlainSeed()
    for event in observed:
        establisher.observe(event)
        plain.observe(event)
        assert establisher.drain_commands() == plain.commands
        assert establisher.drain_events() == plain.events
        plain.commands, plain.events = [], []
        for edge in (1, 2, 2**64 - 1):
            record, row = establisher.local_record(edge), plain.rows.get(edge)
            assert (record is None) == (row is None)
            if record is not None:
                assert (record.state, record.ring_id) == (row.state, row.ring)
                assert record.lease_request_id == record.local_edge_actor == row.number
                assert record.peer_node_id == getattr(row.provision, "consumer_node_id", None)
    assert [record.edge_id for record in establisher.local_records()] == sorted(plain.rows)


@settings(max_examples=50, deadline=None)
@given(st.lists(events(nodes=(ELSEWHERE,)), max_size=30))
def test_nothing_comes_of_edges_of_other_nodes(observed):
    establisher = EdgeEstablisher(HERE)
    for event in observed:
        establisher.observe(event)
    assert (establisher.drain_commands(), establisher.drain_events()) == ([], [])
    assert all(establisher.local_record(edge) is None for edge in (1, 2, 2**64 - 1))


@settings(max_examples=50, deadline=None)
@given(st.lists(events(), max_size=30))
def test_drained_at_the_end_or_after_each_step_the_logs_are_the_same(observed):
    late, prompt = EdgeEstablisher(HERE), EdgeEstablisher(HERE)
    commands, told = [], []
    for event in observed:
        late.observe(event)
        prompt.observe(event)
        commands += prompt.drain_commands()
        told += prompt.drain_events()
    assert (late.drain_commands(), late.drain_events()) == (commands, told)
    assert (late.drain_commands(), late.drain_events()) == ([], [])
