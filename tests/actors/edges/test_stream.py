"""The decisions of both ends of a stream: once, in order, never beyond the credit, over links that do their worst."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.edges.frames import Credit, Data, Fin, Open
from actors.edges.stream import OpenRefused, ReceiveWindow, SendWindow, StreamViolation
from messages.edge_end import EdgeFaultCode

EDGE, RUN, TX, RX = 7001, 3, 11, 22
MAX_CHUNK = 9


def byte_at(position: int) -> int:
    return (position * 7 + position // 251) % 256


class World:
    """Two ends, their rings as plain bytes, and the messages in flight."""

    def __init__(self, tx_capacity: int, rx_capacity: int) -> None:
        self.tx = SendWindow(EDGE, RUN, TX, tx_capacity)
        self.rx = ReceiveWindow(EDGE, RUN, RX, rx_capacity, "a.edges")
        self.egress = bytearray()  # what the sending ring holds, from `acknowledged` on
        self.arrived = bytearray()  # everything that ever entered the receiving ring
        self.forth: list[Open | Data | Fin] = []
        self.back: list[Credit] = []
        self.ends = 0

    def produce(self, length: int) -> None:
        length = min(length, self.tx.capacity - len(self.egress))
        if not self.tx.closing:
            self.egress += bytes(byte_at(self.tx.committed + at) for at in range(length))
            self.tx.commit(self.tx.committed + length)

    def consume(self, length: int) -> None:
        self.rx.consume(min(self.rx.committed, self.rx.consumed + length))

    def send(self, chunk: int) -> None:
        length = min(self.tx.sendable(), chunk)
        if length > 0:
            assert self.tx.sent + length <= self.tx.limit
            at = self.tx.sent - self.tx.acknowledged
            self.forth.append(Data(EDGE, RUN, self.tx.sent, memoryview(bytes(self.egress[at : at + length]))))
            self.tx.went(length)
        elif (fin := self.tx.fin()) is not None:
            self.forth.append(fin)
            self.tx.fin_went()

    def tell(self, quiet: bool) -> None:
        if self.rx.due or (quiet and (self.rx.owing or self.rx.withheld)):
            credit = self.rx.credit()
            self.back.append(credit)
            self.rx.told(credit)

    def hear(self, frame: Open | Data | Fin) -> None:
        match frame:
            case Open():
                self.rx.open(frame, "a.edges")
            case Data(_, run, offset, payload):
                self.rx.check("a.edges", run)
                skip, take = self.rx.data(offset, len(payload))
                assert take == 0 or skip + take <= len(payload)
                self.arrived += payload[skip : skip + take]
                self.rx.commit(take)
                assert self.rx.committed - self.rx.consumed <= self.rx.capacity
            case Fin(_, _, total):
                self.ends += self.rx.fin(total)

    def acknowledge(self, credit: Credit) -> None:
        more = self.tx.credit(credit)
        del self.egress[:more]
        assert len(self.egress) <= self.tx.capacity

    def reconnect(self) -> None:
        self.forth = [self.tx.open()]

    def step(self, what: int, number: int) -> None:
        match what % 12:
            case 0 | 1:
                self.produce(number)
            case 2 | 3:
                self.send(number % MAX_CHUNK + 1)
            case 4 | 5 if self.forth:
                self.hear(self.forth.pop(0))
            case 6 if self.back:
                self.acknowledge(self.back.pop(0))
            case 7:
                self.consume(number)
            case 8:
                self.tell(quiet=number % 2 == 0)
            case 9:
                self.misfortune(number)
            case 10 if number % 5 == 0:
                self.tx.close(clean=True)
            case 11 if number % 3 == 0:
                self.reconnect()
        assert self.arrived == bytes(map(byte_at, range(len(self.arrived))))
        assert self.tx.acknowledged <= self.tx.sent <= self.tx.highest <= min(self.tx.committed, self.tx.limit)
        assert len(self.forth) + len(self.back) < 2000

    def misfortune(self, number: int) -> None:
        """Lose, double or overtake one message of either direction."""
        lane = self.forth if number & 1 else self.back
        if lane:
            at = (number >> 1) % len(lane)
            match (number >> 3) % 3:
                case 0:
                    del lane[at]
                case 1:
                    lane.append(lane[at])
                case 2:
                    lane.insert(0, lane.pop(at))

    def calm(self) -> None:
        """From now on nothing is lost; everything in flight arrives late."""
        self.forth.append(self.tx.open())
        for _ in range(3000):
            while self.forth:
                self.hear(self.forth.pop(0))
            self.tell(quiet=True)
            while self.back:
                self.acknowledge(self.back.pop(0))
            self.consume(5)
            self.produce(0)
            self.send(MAX_CHUNK)
            if self.tx.ended and self.rx.finished and self.rx.consumed == self.rx.committed:
                return
        raise AssertionError("the stream stands still")

    def calm_link(self) -> None:
        for _ in range(200):
            self.send(MAX_CHUNK)
            while self.forth:
                self.hear(self.forth.pop(0))
            self.tell(quiet=True)
            while self.back:
                self.acknowledge(self.back.pop(0))
            if self.tx.awaiting:
                self.reconnect()


steps = st.lists(st.tuples(st.integers(0, 11), st.integers(0, 100)), max_size=150)


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 40), st.integers(1, 40), steps)
def test_over_a_link_that_loses_doubles_and_reorders_bytes_arrive_once_and_in_order(tx_capacity, rx_capacity, steps):
    world = World(tx_capacity, rx_capacity)
    for what, number in steps:
        world.step(what, number)
    world.tx.close(clean=True)
    world.calm()
    assert len(world.arrived) == world.tx.committed
    assert world.arrived == bytes(map(byte_at, range(world.tx.committed)))
    assert world.ends == 1
    assert not world.egress


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), steps)
def test_a_consumer_that_takes_nothing_stalls_the_sender_within_the_two_rings(rx_capacity, steps):
    world = World(30, rx_capacity)
    world.reconnect()
    for what, number in steps:
        if what not in (7, 10):
            world.step(what, number)
    world.reconnect()  # a connection loses nothing but by ending
    for _ in range(20):
        world.step(0, 100)
        world.calm_link()
    assert len(world.arrived) == min(rx_capacity, world.tx.committed)
    assert world.tx.committed == rx_capacity + 30
    assert world.tx.stalled
    world.consume(1)
    world.calm_link()
    assert len(world.arrived) == rx_capacity + 1


def opened(tx_capacity: int = 100, rx_capacity: int = 100) -> World:
    world = World(tx_capacity, rx_capacity)
    world.reconnect()
    world.calm_link()
    assert world.tx.established
    return world


def test_nothing_is_sent_before_the_first_credit():
    world = World(10, 10)
    world.produce(5)
    world.forth.append(world.tx.open())
    assert world.tx.sendable() == 0
    assert not world.tx.stalled
    world.hear(world.forth.pop())
    world.tell(quiet=False)
    world.acknowledge(world.back.pop())
    assert world.tx.sendable() == 5


def test_a_resumed_stream_goes_on_where_the_receiver_is():
    world = opened()
    world.produce(60)
    for _ in range(6):
        world.send(9)
    world.hear(world.forth[0])
    world.reconnect()
    world.hear(world.forth.pop())
    world.tell(quiet=False)
    world.acknowledge(world.back.pop())
    assert (world.tx.sent, world.tx.acknowledged, world.tx.highest) == (9, 9, 54)
    assert (world.tx.resumed, world.rx.resumed) == (1, 1)


def test_a_gap_is_told_once_and_rewinds_the_sender():
    world = opened()
    world.produce(27)
    for _ in range(3):
        world.send(9)
    del world.forth[0]
    while world.forth:
        world.hear(world.forth.pop(0))
    world.tell(quiet=False)
    world.tell(quiet=False)
    assert [credit.rewind for credit in world.back] == [True]
    world.acknowledge(world.back.pop())
    assert world.tx.sent == 0
    world.send(9)
    assert world.forth[0].offset == 0


def test_a_late_request_to_rewind_goes_back_no_further_than_what_is_still_here():
    world = opened()
    world.produce(30)
    for _ in range(4):
        world.send(9)
    world.tx.credit(Credit(EDGE, RUN, TX, RX, 18, 100))
    world.tx.credit(Credit(EDGE, RUN, TX, RX, 9, 100, True))
    assert (world.tx.acknowledged, world.tx.sent) == (18, 18)


def test_an_overlap_is_cut_to_what_is_new():
    world = opened()
    assert world.rx.data(0, 10) == (0, 10)
    world.rx.commit(10)
    assert world.rx.data(4, 10) == (6, 4)
    world.rx.commit(4)
    assert world.rx.data(0, 14)[1] == 0
    assert world.rx.duplicates == 2


def test_credit_is_told_at_once_for_a_quarter_and_else_in_a_quiet_moment():
    world = opened()
    world.rx.data(0, 24)
    world.rx.commit(24)
    assert (world.rx.due, world.rx.owing) == (False, True)
    world.rx.data(24, 1)
    world.rx.commit(1)
    assert world.rx.due
    world.rx.told(world.rx.credit())
    assert (world.rx.due, world.rx.owing) == (False, False)
    world.rx.consume(25)
    assert (world.rx.due, world.rx.owing) == (False, False)  # the sender has plenty of room


def test_a_sender_that_runs_short_is_told_of_a_quarter_more_at_once():
    world = opened()
    world.rx.data(0, 51)
    world.rx.commit(51)
    world.rx.told(world.rx.credit())
    world.rx.consume(24)
    assert (world.rx.due, world.rx.owing) == (False, False)
    world.rx.consume(25)
    assert world.rx.due


def test_acknowledgements_are_as_fine_as_the_smaller_ring():
    world = opened(tx_capacity=8)
    world.rx.data(0, 2)
    world.rx.commit(2)
    assert world.rx.due


def test_a_stalled_sender_hears_of_little_room_too_or_a_record_as_large_as_the_ring_would_wait_for_ever():
    world = opened(200, 100)
    world.produce(150)
    world.calm_link()
    assert world.tx.stalled
    world.rx.consume(3)
    assert (world.rx.due, world.rx.owing, world.rx.withheld) == (False, False, True)
    world.calm_link()
    assert world.rx.committed == 103


def test_an_unclean_end_is_not_told_and_ends_when_all_is_acknowledged():
    world = opened()
    world.produce(9)
    world.tx.close(clean=False)
    assert not world.tx.ended
    world.calm_link()
    assert world.tx.ended
    assert not world.rx.finished
    assert world.ends == 0


def test_a_clean_end_is_over_only_when_the_far_end_has_heard_of_it():
    world = opened()
    world.produce(9)
    world.send(9)
    world.tx.close(clean=True)
    world.hear(world.forth.pop())
    world.tell(quiet=True)
    world.acknowledge(world.back.pop())
    assert world.tx.acknowledged == world.tx.committed
    assert not world.tx.ended
    world.calm_link()
    assert world.tx.ended
    assert world.ends == 1


def test_an_end_that_was_lost_is_told_again():
    world = opened()
    world.produce(9)
    world.tx.close(clean=True)
    for _ in range(2):
        world.send(9)
    assert isinstance(world.forth.pop(), Fin)
    world.reconnect()
    world.calm_link()
    assert world.tx.ended
    assert world.ends == 1


def test_late_credits_take_nothing_back_and_what_arrived_meanwhile_is_not_sent_again():
    world = opened()
    world.produce(30)
    world.send(9)
    world.send(9)
    world.tx.lost()
    world.tx.credit(Credit(EDGE, RUN, TX, RX, 9, 109))
    assert world.tx.sent == 9
    world.tx.credit(Credit(EDGE, RUN, TX, RX, 18, 118))
    assert (world.tx.sent, world.tx.acknowledged) == (18, 18)
    world.tx.credit(Credit(EDGE, RUN, TX, RX, 0, 100))
    assert (world.tx.sent, world.tx.acknowledged, world.tx.limit) == (18, 18, 118)


def test_an_empty_stream_ends():
    world = opened()
    world.tx.close(clean=True)
    world.calm_link()
    assert world.tx.ended
    assert world.rx.finished


def test_a_credit_for_another_incarnation_or_epoch_says_nothing():
    world = opened()
    world.produce(9)
    for other in (Credit(EDGE, RUN, TX + 1, RX, 9, 999), Credit(EDGE, RUN + 1, TX, RX, 9, 999)):
        assert world.tx.credit(other) == 0
    assert world.tx.limit == 100


@pytest.mark.parametrize(
    ("credit", "code"),
    [
        (Credit(EDGE, RUN, TX, RX + 1, 0, 100), "peer_restarted"),
        (Credit(EDGE, RUN, TX, RX, 10, 100), "malformed_frame"),
        (Credit(EDGE, RUN, TX, RX, 0, 100, False, True), "malformed_frame"),
    ],
)
def test_a_credit_that_cannot_be_ends_the_edge(credit, code):
    world = opened()
    world.produce(9)
    world.send(9)
    with pytest.raises(StreamViolation) as caught:
        world.tx.credit(credit)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("process", "run", "code"),
    [
        ("b.edges", RUN, "not_the_producer"),
        ("a.edges", RUN - 1, "stale_epoch"),
        ("a.edges", RUN + 1, "malformed_frame"),
    ],
)
def test_who_may_not_open_is_refused_and_the_edge_is_unharmed(process, run, code):
    world = opened()
    with pytest.raises(OpenRefused) as caught:
        world.rx.open(Open(EDGE, run, TX, 100), process)
    assert caught.value.code == code
    assert world.rx.far == TX
    assert not world.rx.due


@pytest.mark.parametrize(
    ("known", "frame"),
    [
        (True, Open(EDGE, RUN, TX + 1, 100)),
        (True, Open(EDGE, RUN, TX + 1, 100, True)),
        (False, Open(EDGE, RUN, TX, 100, True)),
    ],
)
def test_another_pump_at_either_end_is_a_restart(known, frame):
    world = opened() if known else World(100, 100)
    with pytest.raises(StreamViolation) as caught:
        world.rx.open(frame, "a.edges")
    assert caught.value.code == "peer_restarted"
    assert not isinstance(caught.value, OpenRefused)


@pytest.mark.parametrize(
    ("hostile", "code"),
    [
        (lambda rx: rx.data(0, 101), "credit_exceeded"),
        (lambda rx: rx.data(1000, 1), "credit_exceeded"),
        (lambda rx: rx.fin(101), "credit_exceeded"),
        (lambda rx: rx.fin(4), "malformed_frame"),
        (lambda rx: (rx.fin(5), rx.data(5, 1)), "malformed_frame"),
        (lambda rx: (rx.fin(5), rx.fin(6)), "malformed_frame"),
    ],
)
def test_what_an_honest_sender_never_says_ends_the_edge(hostile, code):
    world = opened()
    world.rx.data(0, 5)
    world.rx.commit(5)
    with pytest.raises(StreamViolation) as caught:
        hostile(world.rx)
    assert caught.value.code == code


def test_data_and_end_before_the_stream_was_opened_are_refused():
    rx = ReceiveWindow(EDGE, RUN, RX, 100, "a.edges")
    for early in (lambda: rx.data(0, 1), lambda: rx.fin(0)):
        with pytest.raises(StreamViolation, match="malformed_frame"):
            early()
    assert (rx.due, rx.owing, rx.withheld) == (False, False, False)


def test_every_code_is_one_that_reaches_the_operator():
    codes = {"peer_restarted", "malformed_frame", "credit_exceeded", "not_the_producer", "stale_epoch"}
    assert codes <= set(EdgeFaultCode)
