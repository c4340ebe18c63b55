"""What goes wrong with one edge ends that edge, typed, and nothing else; what strangers say is refused and counted."""

from __future__ import annotations

import os
from struct import pack as raw

import pytest

from actors.edges.frames import BEAT_FRAME, MAX_FRAME_BYTES, Beat, Credit, Fin, Open, Refused, pack, pack_data
from actors.edges.records import pack_header
from messages.edge import RingDirection
from messages.edge_end import EdgeFaultCode
from messages.edge_ports import PumpFaulted, PumpReady
from runtime.edges.driver import driver, streams

EGRESS, INGRESS = RingDirection.EGRESS, RingDirection.INGRESS
EDGE, OTHER = 7001, 7002
Code = EdgeFaultCode


class Pair:
    """An edge that is ready, and a second one between the same two to show that nothing else is harmed."""

    def __init__(self, net, *, local=False, **how):
        self.a = net.process("a")
        self.b = self.a if local else net.process("b")
        self.tx = self.a.send(EDGE, self.b.name, **how)
        self.rx = self.b.receive(EDGE, self.a.name, **how)
        self.tx_ring, self.rx_ring = self.a.memory.ring(1), self.b.memory.ring(self.b.rings)
        self.other = self.a.send(OTHER, self.b.name), self.b.receive(OTHER, self.a.name)
        for edge in (EDGE, OTHER):
            self.a.wait_ready(edge, EGRESS)
            self.b.wait_ready(edge, INGRESS)

    def put(self, data: bytes) -> None:
        self.tx.write(0, data)
        self.tx.commit(len(data))

    def faults(self) -> list[tuple[int, str, RingDirection]]:
        told = self.a.told(PumpFaulted) + ([] if self.a is self.b else self.b.told(PumpFaulted))
        return [(one.edge_id, one.code, one.direction) for one in told]

    def check_other(self, transfer, make_records) -> None:
        flow = transfer.add(*self.other, make_records(5, [100, 70_000, 3]))
        transfer.run()
        flow.check()
        assert all(edge == EDGE for edge, _, _ in self.faults())


@pytest.fixture(params=["local", "remote"])
def pair(request, net):
    return Pair(net, local=request.param == "local", extent=1000)


GOOD = pack_header(1, 0, 10) + bytes(10)


@pytest.mark.parametrize(
    ("stream", "code"),
    [
        (b"XX01" + bytes(36), Code.UNSUPPORTED_MAGIC),
        (GOOD + b"MO01" + raw("<HH", 2, 40) + bytes(32), Code.UNSUPPORTED_VERSION),
        (b"MO01" + raw("<HH", 1, 48) + bytes(32), Code.MALFORMED_HEADER_LENGTH),
        (b"MO01" + raw("<HHQQQII", 1, 40, 1, 0, 0, 4, 0), Code.MALFORMED_HEADER),
        (GOOD + pack_header(2, 1, 1001), Code.EXTENT_EXCEEDS_MAX),
        (GOOD + GOOD, Code.SEQUENCE_VIOLATION),
    ],
)
def test_a_bad_record_ends_its_edge_before_the_consumer_sees_it(pair, transfer, make_records, stream, code):
    pair.put(stream)
    told = pair.a.wait_fault(EDGE, EGRESS)
    assert told.code is code
    assert told.text
    pair.check_other(transfer, make_records)
    assert pair.rx.readable() in (0, len(GOOD))


@pytest.mark.parametrize("at", [0, 4, 6, 8, 16])
def test_a_producer_that_changes_the_header_of_its_ring_ends_its_edge(pair, transfer, make_records, at):
    pair.tx_ring.header[at] ^= 1
    pair.put(GOOD)
    assert pair.a.wait_fault(EDGE, EGRESS).code is Code.RING_HEADER_CHANGED
    pair.check_other(transfer, make_records)
    assert pair.rx.readable() == 0


def test_a_consumer_that_changes_the_header_of_its_ring_ends_its_edge_at_both_ends(pair, transfer, make_records):
    pair.rx_ring.header[16] ^= 1
    pair.put(GOOD)
    assert pair.b.wait_fault(EDGE, INGRESS).code is Code.RING_HEADER_CHANGED
    told = pair.a.wait_fault(EDGE, EGRESS)
    assert told.code is Code.RING_HEADER_CHANGED
    assert told.text.startswith("at ")
    pair.check_other(transfer, make_records)


def test_cursors_in_the_header_are_for_display_and_believed_by_nobody(pair, transfer, make_records):
    pair.tx_ring.header[24:40] = pair.rx_ring.header[24:40] = b"\xff" * 16
    flow = transfer.add(pair.tx, pair.rx, make_records(1, [1000] * 300))
    transfer.run()
    flow.check()


def test_a_producer_that_commits_more_than_its_ring_holds_ends_its_edge(pair, transfer, make_records):
    os.eventfd_write(pair.tx_ring.data_fd, pair.tx_ring.capacity + 1)
    assert pair.a.wait_fault(EDGE, EGRESS).code is Code.CURSOR_BEYOND_CAPACITY
    pair.check_other(transfer, make_records)


def test_a_consumer_that_gives_back_more_than_it_got_ends_its_edge_at_both_ends(pair, transfer, make_records):
    os.eventfd_write(pair.rx_ring.space_fd, 1)
    assert pair.b.wait_fault(EDGE, INGRESS).code is Code.CURSOR_BEYOND_CAPACITY
    pair.put(GOOD)
    assert pair.a.wait_fault(EDGE, EGRESS).code is Code.CURSOR_BEYOND_CAPACITY
    pair.check_other(transfer, make_records)


def test_a_clean_close_within_a_record_is_none(pair, transfer, make_records):
    pair.put(GOOD[:-1])
    pair.a.close_stream(EDGE)
    assert pair.a.wait_fault(EDGE, EGRESS).code is Code.EOF_BEFORE_FULL_PAYLOAD
    pair.check_other(transfer, make_records)


def test_a_fault_is_told_once(pair):
    pair.put(b"x" * 40)
    pair.a.wait_fault(EDGE, EGRESS)
    pair.put(b"x" * 40)
    pair.tx_ring.header[0] ^= 1
    pair.a.halt(EDGE, EGRESS, 1)
    pair.a.wait_halted(EDGE, EGRESS)
    assert len([one for one in pair.a.told(PumpFaulted, EDGE) if one.direction is EGRESS]) == 1


# ends that do not fit


def test_a_local_consumer_of_another_epoch_or_producer_is_refused(net):
    a = net.process("a")
    a.send(1, "a", run=2)
    a.receive(1, "a", run=3)
    assert a.wait_fault(1, EGRESS).code is Code.STALE_EPOCH
    a.send(2, "a", run=3)
    a.receive(2, "a", run=2)
    assert a.wait_fault(2, INGRESS).code is Code.STALE_EPOCH
    a.receive(3, "b")
    a.send(3, "a")
    assert a.wait_fault(3, EGRESS).code is Code.NOT_THE_PRODUCER
    assert not a.told(PumpReady)


@pytest.mark.parametrize("parked", [True, False])
def test_a_stale_epoch_is_refused_and_the_consumer_waits_for_the_right_one(net, transfer, make_records, parked):
    a, b = net.process("a"), net.process("b")
    if parked:
        a.send(EDGE, "b", run=1)
        a.send(OTHER, "b")
        b.receive(OTHER, "a")
        a.wait_ready(OTHER)  # so the first is parked
    rx = b.receive(EDGE, "a", run=2)
    if not parked:
        a.send(EDGE, "b", run=1)
    assert a.wait_fault(EDGE).code is Code.STALE_EPOCH
    a.halt(EDGE, EGRESS, 1)
    a.wait_halted(EDGE)
    tx = a.send(EDGE, "b", run=2)
    b.wait_ready(EDGE)
    flow = transfer.add(tx, rx, make_records(1, [10]))
    transfer.run()
    flow.check()
    assert not b.told(PumpFaulted)


@pytest.mark.parametrize("parked", [True, False])
def test_a_process_that_is_not_the_producer_is_refused_and_the_edge_unharmed(net, transfer, make_records, parked):
    b = net.process("b")
    rx = None if parked else b.receive(EDGE, "a")
    c = net.process("c")
    c.send(EDGE, "b")
    if parked:
        c.send(EDGE + 1, "b")
        b.receive(EDGE + 1, "c")
        c.wait_ready(EDGE + 1)  # the first was parked before
        rx = b.receive(EDGE, "a")
    assert c.wait_fault(EDGE).code is Code.NOT_THE_PRODUCER
    tx = net.process("a").send(EDGE, "b")
    flow = transfer.add(tx, rx, make_records(1, [10]))
    transfer.run()
    flow.check()
    assert not b.told(PumpFaulted)
    assert b.driver.counted["not_the_producer"] >= 1


# processes that restart, links that die


@pytest.fixture
def quick(monkeypatch):
    """Beats often, and little patience."""
    monkeypatch.setattr(driver, "TICK_S", 0.05)
    monkeypatch.setattr(driver, "BEAT_S", 0.05)
    monkeypatch.setattr(streams, "SILENCE_S", 1.0)


@pytest.mark.parametrize("who", ["producer", "consumer"])
def test_a_restart_of_either_end_ends_the_edge(net, who):
    pair = Pair(net)
    if who == "producer":
        net.stop(pair.a)
        again = net.process("a")
        again.send(EDGE, "b")
        assert pair.b.wait_fault(EDGE).code is Code.PEER_RESTARTED
    else:
        net.stop(pair.b)
        again = net.process("b")
        again.receive(EDGE, "a")
        assert pair.a.wait_fault(EDGE).code is Code.PEER_RESTARTED
    assert again.wait_fault(EDGE).code is Code.PEER_RESTARTED


def test_a_link_that_dies_for_good_ends_its_edges_at_the_producer(net, quick):
    pair = Pair(net)
    net.stop(pair.b)
    assert pair.a.wait_fault(EDGE).code is Code.LINK_LOST
    assert pair.a.wait_fault(OTHER).code is Code.LINK_LOST


def test_a_stream_that_is_cut_short_for_good_ends_its_edge_at_the_consumer(net, quick):
    pair = Pair(net)
    pair.put(GOOD[:-1])
    pair.b.wait(lambda: pair.rx.readable() == 49)
    net.stop(pair.a)
    told = pair.b.wait_fault(EDGE)
    assert told.code is Code.LINK_LOST
    assert "within a record" in told.text
    assert "within a record" not in pair.b.wait_fault(OTHER).text


def test_a_quiet_link_lives(net, quick, transfer, make_records):
    pair = Pair(net)
    clock = net.outlaw("c", "b")
    clock.say(BEAT_FRAME)
    for _ in range(30):
        clock.hear(Beat)
    pair.check_other(transfer, make_records)
    assert pair.faults() == []


# hostile peers: `a` is played by a socket that says what the test wants


class Victim:
    """Edge `EDGE` is open with the outlaw, `OTHER` with an honest process."""

    def __init__(self, net, capacity=4096):
        self.b = net.process("b")
        self.rx = self.b.receive(EDGE, "a", capacity, extent=1000)
        self.outlaw = net.outlaw("a", "b")
        self.c = net.process("c")
        self.other = self.c.send(OTHER, "b"), self.b.receive(OTHER, "c")
        self.c.wait_ready(OTHER)

    def opened(self) -> Credit:
        self.outlaw.open(EDGE)
        credit = self.outlaw.hear(Credit)
        self.b.wait_ready(EDGE)
        return credit

    def check_other(self, transfer, make_records):
        flow = transfer.add(*self.other, make_records(5, [100, 70_000, 3]))
        transfer.run()
        flow.check()
        assert not self.b.told(PumpFaulted, OTHER)


@pytest.fixture
def victim(net):
    return Victim(net)


@pytest.mark.parametrize(
    "parts",
    [
        (b"",),
        (b"garbage",),
        (b"\x02" + BEAT_FRAME[1:],),
        (os.urandom(5000),),
        (BEAT_FRAME, b"more"),
        (b"a",) * 9,
        (pack_data(EDGE, 1, 0),),
        (pack_data(EDGE, 1, 0), GOOD),
        (pack_data(EDGE, 1, 2**64 - 1) + b"x",),
        (pack(Credit(EDGE, 1, 5, 6, 0, 10)),),
        (pack(Refused(EDGE, 1, "link_lost", "go away")),),
    ],
)
def test_rubbish_is_refused_counted_and_ends_nothing(victim, transfer, make_records, parts):
    victim.opened()
    victim.outlaw.say_parts(*parts)
    assert victim.outlaw.hear(Refused).code == "malformed_frame"
    assert victim.b.driver.counted["malformed_frame"] == 1
    victim.outlaw.say(pack_data(EDGE, 1, 0), GOOD)
    victim.b.wait(lambda: victim.rx.readable() == len(GOOD))
    victim.check_other(transfer, make_records)
    assert not victim.b.told(PumpFaulted)


@pytest.mark.parametrize("frame", [pack_data(99, 1, 0) + b"x", pack(Fin(99, 1, 0))])
def test_data_of_an_edge_that_is_not_here_is_refused(victim, transfer, make_records, frame):
    victim.outlaw.say(frame)
    told = victim.outlaw.hear(Refused)
    assert (told.edge, told.code) == (99, "malformed_frame")
    victim.check_other(transfer, make_records)


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        ([(pack_data(EDGE, 1, 0), bytes(4097))], Code.CREDIT_EXCEEDED),
        ([(pack_data(EDGE, 1, 4096) + b"x",)], Code.CREDIT_EXCEEDED),
        ([(pack(Fin(EDGE, 1, 5000)),)], Code.CREDIT_EXCEEDED),
        ([(pack(Open(EDGE, 1, 6, 4096)),)], Code.PEER_RESTARTED),
        ([(pack_data(EDGE, 1, 0), b"x" * 40)], Code.UNSUPPORTED_MAGIC),
        ([(pack_data(EDGE, 1, 0), pack_header(1, 0, 1001))], Code.EXTENT_EXCEEDS_MAX),
        ([(pack_data(EDGE, 1, 0), GOOD[:20], GOOD[20:49]), (pack(Fin(EDGE, 1, 49)),)], Code.EOF_BEFORE_FULL_PAYLOAD),
        ([(pack_data(EDGE, 1, 0), GOOD), (pack(Fin(EDGE, 1, 49)),)], Code.MALFORMED_FRAME),
        ([(pack_data(EDGE, 1, 0), GOOD), (pack(Fin(EDGE, 1, 50)),), (pack_data(EDGE, 1, 50), GOOD)],
         Code.MALFORMED_FRAME),
    ],
)  # fmt: skip
def test_a_producer_that_breaks_the_rules_loses_its_edge(victim, transfer, make_records, frames, code):
    victim.opened()
    for parts in frames:
        victim.outlaw.say(*parts)
    assert victim.b.wait_fault(EDGE).code is code
    refused = victim.outlaw.hear(Refused)
    assert (refused.edge, refused.run, refused.code) == (EDGE, 1, code)
    victim.check_other(transfer, make_records)


def test_data_before_the_stream_is_opened_ends_the_edge(victim, transfer, make_records):
    victim.outlaw.say(pack_data(EDGE, 1, 0) + GOOD)
    assert victim.b.wait_fault(EDGE).code is Code.MALFORMED_FRAME
    victim.check_other(transfer, make_records)


def test_another_process_with_a_listed_key_cannot_harm_the_edge(victim, net, transfer, make_records):
    victim.opened()
    thief = net.outlaw("c", "b")
    for frame in (pack_data(EDGE, 1, 0) + b"x" * 40, pack(Fin(EDGE, 1, 0)), pack(Open(EDGE, 1, 9, 10))):
        thief.say(frame)
        assert thief.hear(Refused).code == "not_the_producer"
    victim.outlaw.say(pack_data(EDGE, 1, 0), GOOD)
    victim.b.wait(lambda: victim.rx.readable() == len(GOOD))
    assert not victim.b.told(PumpFaulted)


def test_an_edge_within_the_process_cannot_be_opened_from_outside(net, transfer, make_records):
    pair = Pair(net, local=True)
    thief = net.outlaw("c", "a")
    thief.open(EDGE)
    assert thief.hear(Refused).code == "not_the_producer"
    pair.check_other(transfer, make_records)


def test_a_frame_beyond_any_size_costs_its_sender_the_connection(victim, transfer, make_records):
    victim.opened()
    while victim.outlaw.monitor.poll(0):
        victim.outlaw.monitor.recv_multipart()
    victim.outlaw.say(pack_data(EDGE, 1, 0), bytes(MAX_FRAME_BYTES + 2000))
    victim.outlaw.wait_cut_off()
    victim.check_other(transfer, make_records)


def test_a_stranger_is_not_let_in(victim, net, transfer, make_records):
    net.outlaw("stranger", "b")
    victim.b.wait_counted("refused_connection")
    victim.check_other(transfer, make_records)


def test_a_gap_is_told_once_and_duplicates_are_dropped_and_counted(victim):
    credit = victim.opened()
    assert (credit.committed, credit.limit, credit.to, credit.rewind) == (0, 4096, 5, False)
    for _ in range(3):
        victim.outlaw.say(pack_data(EDGE, 1, 50), GOOD)
    assert victim.outlaw.hear(Credit).rewind
    victim.outlaw.say(pack_data(EDGE, 1, 0), GOOD[:30])
    victim.outlaw.say(pack_data(EDGE, 1, 20), GOOD[20:])
    victim.outlaw.say(pack_data(EDGE, 1, 0), GOOD)
    victim.outlaw.say(pack(Fin(EDGE, 1, 50)))
    victim.b.wait_ended(EDGE)
    assert bytes(victim.rx.spans(0, victim.rx.readable())[0]) == GOOD
    assert victim.b.progress(EDGE, INGRESS).duplicates_dropped == 2
    while not (credit := victim.outlaw.hear(Credit)).finished:
        assert not credit.rewind


def test_streams_that_wait_for_their_end_are_bounded(victim, monkeypatch, transfer, make_records):
    monkeypatch.setattr(streams, "MAX_PARKED", 3)
    for edge in range(100, 105):
        victim.outlaw.open(edge)
    victim.b.wait_counted("not_parked", 2)
    victim.outlaw.open(102)
    victim.check_other(transfer, make_records)
    assert victim.b.driver.counted["not_parked"] == 2


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (Credit(EDGE, 1, 0, 8, 10, 10), Code.MALFORMED_FRAME),
        (Credit(EDGE, 1, 0, 9, 0, 10), Code.PEER_RESTARTED),
        (Refused(EDGE, 1, "stale_epoch", "over"), Code.STALE_EPOCH),
        (Refused(EDGE, 1, "nonsense", "over"), Code.MALFORMED_FRAME),
    ],
)
def test_a_consumer_that_breaks_the_rules_loses_its_edge(net, answer, code):
    b = net.outlaw_server("b")
    a = net.process("a")
    a.send(EDGE, "b")
    opened = b.hear(Open)
    b.say(pack(Credit(EDGE, 1, opened.incarnation, 8, 0, 10)))
    a.wait_ready(EDGE)
    for rubbish in (b"rubbish", pack(Fin(EDGE, 1, 0)), pack(Credit(99, 1, 1, 1, 0, 10)), pack(Refused(99, 1, "x", ""))):
        b.say(rubbish)
    b.say(pack(answer._replace(to=opened.incarnation) if isinstance(answer, Credit) else answer))
    assert a.wait_fault(EDGE).code is code
    assert a.driver.counted == {"malformed_frame": 2, "late_credit": 1, "late_refusal": 1}


def test_a_revoked_peer_is_heard_no_more_and_its_streams_end(net, transfer, make_records):
    a, b, c = net.process("a"), net.process("b"), net.process("c")
    a.receive(1, "b"), b.send(1, "a")
    a.send(2, "b"), b.receive(2, "a")
    kept = transfer.add(a.send(3, "c"), c.receive(3, "a"), make_records(3, [50_000] * 3))
    for edge in (1, 2, 3):
        a.wait_ready(edge)
    a.driver.revoke("b")
    for edge in (1, 2):
        told = a.wait_fault(edge)
        assert told.code is Code.LINK_LOST
        assert "revoked" in told.text
    a.wait_counted("refused_connection")  # it tries again and is not let in
    transfer.run()
    kept.check()
    a.send(4, "b")
    assert a.wait_fault(4).code is Code.LINK_LOST


def test_a_consumer_process_that_stops_reading_costs_its_edges_and_bounded_memory(net, quick, transfer, make_records):
    b = net.outlaw_server("b")
    a = net.process("a")
    tx = a.send(EDGE, "b", 1 << 25)
    opened = b.hear(Open)
    b.say(pack(Credit(EDGE, 1, opened.incarnation, 8, 0, 1 << 40)))
    a.wait_ready(EDGE)
    stream = make_records(1, [1 << 20] * 31)
    tx.write(0, stream)
    tx.commit(len(stream))
    flow = transfer.add(a.send(OTHER, "a"), a.receive(OTHER, "a"), make_records(2, [50_000] * 20))
    transfer.run()
    flow.check()
    assert a.wait_fault(EDGE).code is Code.LINK_LOST
    assert a.progress(EDGE, EGRESS).in_flight_bytes == len(stream)


def test_a_link_that_nobody_needs_is_hung_up_and_dialled_again_when_needed(net, monkeypatch, transfer, make_records):
    monkeypatch.setattr(streams, "IDLE_LINK_S", 0.0)
    b = net.outlaw_server("b")
    a = net.process("a")
    connections = []
    for edge in (1, 2):
        a.send(edge, "b")
        b.hear(Open)
        connections.append(b.peer)
        a.halt(edge, EGRESS, edge)
        a.wait_halted(edge)
        assert b.monitor.poll(10_000), "the connection did not end"
        b.monitor.recv_multipart()
    assert connections[0] != connections[1]
