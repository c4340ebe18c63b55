"""The chain actor on the simulated world: durable before answered, group commit, full disk, keys, verification."""

import msgspec
import pytest

from actors.actor import Actor, AskFailed
from actors.chain import canonical
from actors.chain.batch import MAX_BATCH_BYTES, MAX_BATCH_RECORDS
from actors.chain.chain import Chain
from actors.chain.record import ZERO_HASH, genesis, verify
from messages.base import Address
from messages.chain import (
    Append,
    AppendAll,
    ChainRefusal,
    ChainStoreMessage,
    Entry,
    GetHead,
    Show,
    Tail,
    Verify,
    WriteRecords,
)
from messages.system import AskFailure
from runtime.kernel.simulated import SimulatedWorld
from runtime.simulated.chain_store import SimulatedChainDisk, SimulatedChainStore

CHAIN = Address("chain/chain")
STORE = Address("chain/store")


class SlowStore(Actor[ChainStoreMessage]):
    """Holds every write back until the test lets go; everything else goes to the simulated store at once."""

    mailbox = ChainStoreMessage

    def __init__(self, disk):
        self.inner = SimulatedChainStore(disk)
        self.held = []
        self.hold = False

    def receive(self, message, ctx):
        if self.hold and isinstance(message, WriteRecords):
            self.held.append((message, ctx))
        else:
            self.inner.receive(message, ctx)

    def let_go(self):
        held, self.held = self.held, []
        for message, ctx in held:
            self.inner.receive(message, ctx)


class Rig:
    def __init__(self, disk=None, slow=False, chain_id="test"):
        self.disk = SimulatedChainDisk() if disk is None else disk
        self.world = SimulatedWorld(seed=1)
        self.world.spawn(STORE, lambda: SlowStore(self.disk) if slow else SimulatedChainStore(self.disk))
        self.world.spawn(CHAIN, lambda: Chain(chain_id))
        self.world.run_idle()

    def ask(self, request, timeout_s=5):
        return self.world.ask(CHAIN, request, timeout_s=timeout_s)

    def refused(self, request):
        with pytest.raises(AskFailed) as failed:
            self.ask(request)
        assert failed.value.failure is AskFailure.REFUSED
        return failed.value.code

    def start(self, request, timeout_s=300):
        pending = self.world.start_ask(CHAIN, request, timeout_s=timeout_s)
        self.world.run_idle()
        return pending

    def restart(self):
        self.world.stop(CHAIN)
        self.world.run_idle()
        self.world.spawn(CHAIN, lambda: Chain("test"))
        self.world.run_idle()


def entry(number=0, key="", kind="workload.place", **payload):
    return Entry(source="plane", kind=kind, payload=canonical.encode({"n": number, **payload}), idempotency_key=key)


def test_a_new_chain_begins_with_its_genesis():
    rig = Rig()
    [first] = rig.disk.records
    assert first == genesis("test", first.time_ms)
    assert first.prev_hash == ZERO_HASH
    head = rig.ask(GetHead())
    assert (head.chain_id, head.sequence, head.hash, head.count) == ("test", 0, first.hash, 1)


def test_records_link_and_are_durable_when_answered():
    rig = Rig()
    for number in range(1, 4):
        answer = rig.ask(Append(entry=entry(number)))
        assert (answer.sequence, answer.hash) == (number, rig.disk.records[number].hash)
        assert rig.disk.records[number].prev_hash == rig.disk.records[number - 1].hash
        assert not answer.repeated
    assert verify(rig.disk.records, "test").valid
    assert rig.ask(Verify()).count == 4


def test_the_stored_bytes_are_the_callers():
    rig = Rig()
    rig.ask(Append(entry=entry(1, text="é", score=0.1)))
    assert rig.disk.records[1].payload == '{"n":1,"score":0.1,"text":"é"}'.encode()


def test_what_waits_while_a_batch_is_in_flight_shares_the_next_one():
    rig = Rig(slow=True)
    store = rig.world.actor(STORE)
    store.hold = True
    asks = [rig.start(Append(entry=entry(number))) for number in range(1, 51)]
    assert len(store.held) == 1
    assert not any(pending.done for pending in asks)
    store.let_go()
    rig.world.run_idle()
    assert [pending.done for pending in asks] == [True] + [False] * 49
    assert len(store.held) == 1
    store.let_go()
    rig.world.run_idle()
    assert [pending.result().sequence for pending in asks] == list(range(1, 51))
    assert rig.disk.writes == 3  # genesis, the first, the other forty-nine


def test_reads_are_answered_while_the_disk_writes():
    rig = Rig(slow=True)
    rig.world.actor(STORE).hold = True
    pending = rig.start(Append(entry=entry(1)))
    assert rig.ask(GetHead()).sequence == 0
    assert len(rig.ask(Tail()).records) == 1
    assert not pending.done


def test_appends_of_many_askers_are_in_order_of_arrival_and_all_there():
    rig = Rig()
    asks = [rig.world.start_ask(CHAIN, Append(entry=entry(number))) for number in range(300)]
    rig.world.run_idle()
    assert [pending.result().sequence for pending in asks] == list(range(1, 301))
    assert [canonical.decode(record.payload)["n"] for record in rig.disk.records[1:]] == list(range(300))
    assert rig.disk.writes < 10


def test_a_batch_is_bounded():
    rig = Rig(slow=True)
    store = rig.world.actor(STORE)
    store.hold = True
    half = MAX_BATCH_RECORDS // 2 + 1
    asks = [rig.start(Append(entry=entry()))]
    asks += [rig.start(AppendAll(entries=[entry(number) for number in range(half)])) for _ in range(2)]
    sizes = []
    while store.held:
        sizes.append(len(store.held[0][0].records))
        store.let_go()
        rig.world.run_idle()
    assert sizes == [1, half, half]
    assert all(pending.done for pending in asks)


def test_all_of_a_message_are_next_to_each_other_in_one_transaction():
    rig = Rig()
    rig.ask(Append(entry=entry()))
    writes = rig.disk.writes
    answer = rig.ask(AppendAll(entries=[entry(number) for number in range(5)]))
    assert [result.sequence for result in answer.results] == [2, 3, 4, 5, 6]
    assert rig.disk.writes == writes + 1
    assert rig.ask(AppendAll(entries=[])).results == []


def test_a_full_disk_refuses_the_whole_batch_and_heals_by_itself():
    rig = Rig(slow=True)
    store = rig.world.actor(STORE)
    head = rig.ask(GetHead())
    store.hold = True
    asks = [rig.start(Append(entry=entry(number, key=f"k{number}"))) for number in range(5)]
    rig.disk.full, store.hold = True, False
    store.let_go()
    rig.world.run_idle()
    for pending in asks:
        with pytest.raises(AskFailed) as failed:
            pending.result()
        assert failed.value.code == ChainRefusal.DISK_FULL
        assert failed.value.nothing_happened
    assert rig.ask(GetHead()) == head
    rig.disk.full = False
    assert rig.ask(Append(entry=entry(0, key="k0"))).sequence == 1
    assert rig.ask(Verify()).valid


@pytest.mark.parametrize("disk", [{"full": True}, {"full": True, "chain_id": "test"}], ids=["no log", "empty log"])
def test_a_chain_born_on_a_full_disk_gets_its_genesis_later(disk):
    rig = Rig(SimulatedChainDisk(**disk))
    assert rig.refused(Append(entry=entry())) == ChainRefusal.DISK_FULL
    assert rig.refused(GetHead()) == ChainRefusal.DISK_FULL
    assert not rig.ask(Verify()).valid
    rig.disk.full = False
    assert rig.ask(Append(entry=entry())).sequence == 1
    assert rig.ask(Verify()).valid


@pytest.mark.parametrize("when", ["before the write", "after the write"])
def test_when_the_store_dies_the_chain_dies_and_nothing_is_guessed(when):
    rig = Rig(slow=True)
    store = rig.world.actor(STORE)
    store.hold = True
    asks = [rig.start(Append(entry=entry(number, key=f"k{number}"))) for number in range(3)]
    if when == "after the write":
        message, _ = store.held[0]
        rig.disk.records.extend(message.records)
    rig.world.crash(STORE)
    rig.world.run_until(lambda: all(pending.done for pending in asks), limit_s=100)
    for pending in asks:
        with pytest.raises(AskFailed) as failed:
            pending.result()
        assert failed.value.failure is AskFailure.DIED  # indeterminate, and said so
    again = Rig(rig.disk)
    answers = [again.ask(Append(entry=entry(number, key=f"k{number}"))) for number in range(3)]
    assert [answer.sequence for answer in answers] == [1, 2, 3]
    assert answers[0].repeated == (when == "after the write")
    assert again.ask(Verify()).valid


def test_a_lost_answer_of_the_store_ends_the_chain_after_a_deadline():
    rig = Rig()
    rig.world.lose(lambda envelope: envelope.sender == STORE and envelope.to == CHAIN)
    pending = rig.start(Append(entry=entry(1)))
    rig.world.run_until(lambda: pending.done, limit_s=60)
    with pytest.raises(AskFailed) as failed:
        pending.result()
    assert failed.value.failure is AskFailure.DIED


def test_an_io_error_is_not_survived():
    rig = Rig()
    rig.disk.broken = True
    with pytest.raises(AskFailed) as failed:
        rig.ask(Append(entry=entry()), timeout_s=100)
    assert failed.value.failure is AskFailure.DIED


def test_the_same_key_and_payload_is_answered_with_the_first_record():
    rig = Rig()
    first = rig.ask(Append(entry=entry(1, key="a")))
    again = rig.ask(Append(entry=entry(1, key="a")))
    assert (again.sequence, again.hash, again.time_ms, again.repeated) == (
        first.sequence,
        first.hash,
        first.time_ms,
        True,
    )
    assert rig.ask(GetHead()).count == 2
    rig.ask(Append(entry=entry(1, key="b")))
    rig.ask(Append(entry=entry(1)))
    rig.ask(Append(entry=entry(1)))
    assert rig.ask(GetHead()).count == 5


def test_a_key_is_remembered_across_restarts():
    rig = Rig()
    first = rig.ask(Append(entry=entry(1, key="a")))
    rig.restart()
    assert rig.ask(Append(entry=entry(1, key="a"))).sequence == first.sequence
    assert rig.refused(Append(entry=entry(2, key="a"))) == ChainRefusal.KEY_REUSED


@pytest.mark.parametrize("other", [entry(2, key="a"), entry(1, key="a", kind="workload.stop")])
def test_a_key_with_another_content_is_refused(other):
    rig = Rig()
    rig.ask(Append(entry=entry(1, key="a")))
    assert rig.refused(Append(entry=other)) == ChainRefusal.KEY_REUSED
    assert rig.refused(AppendAll(entries=[entry(5), other])) == ChainRefusal.KEY_REUSED
    assert rig.ask(GetHead()).count == 2


def test_another_source_has_keys_of_its_own():
    rig = Rig()
    rig.ask(Append(entry=entry(1, key="a")))
    other = msgspec.structs.replace(entry(2, key="a"), source="workload.host")
    assert not rig.ask(Append(entry=other)).repeated


def test_keys_are_compared_within_a_batch_too():
    rig = Rig(slow=True)
    store = rig.world.actor(STORE)
    store.hold = True
    asks = [
        rig.start(Append(entry=item))
        for item in (entry(0), entry(1, key="a"), entry(1, key="a"), entry(2, key="a"), entry(3))
    ]
    while store.held:
        store.let_go()
        rig.world.run_idle()
    assert [asks[place].result().sequence for place in (1, 2, 4)] == [2, 2, 3]
    assert asks[2].result().repeated
    with pytest.raises(AskFailed, match="key_reused"):
        asks[3].result()
    store.hold = False
    answer = rig.ask(AppendAll(entries=[entry(9, key="z"), entry(9, key="z"), entry(1, key="a")]))
    assert [(result.sequence, result.repeated) for result in answer.results] == [(4, False), (4, True), (2, True)]
    assert rig.ask(Verify()).valid


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (Entry(source="chain", kind="genesis", payload=b"{}"), ChainRefusal.RESERVED),
        (Entry(source="Plane", kind="x", payload=b"{}"), ChainRefusal.INVALID),
        (Entry(source="plane", kind="", payload=b"{}"), ChainRefusal.INVALID),
        (Entry(source="plane", kind="x", payload=b""), ChainRefusal.PAYLOAD_INVALID),
        (Entry(source="plane", kind="x", payload=b'{"a": 1}'), ChainRefusal.PAYLOAD_INVALID),
        (Entry(source="plane", kind="x", payload=b'{"a":NaN}'), ChainRefusal.PAYLOAD_INVALID),
        (Entry(source="plane", kind="x", payload=b'"' + b"a" * canonical.PAYLOAD_LIMIT_BYTES + b'"'),
         ChainRefusal.PAYLOAD_TOO_LARGE),
    ],
)  # fmt: skip
def test_what_cannot_be_a_record_is_refused_and_nothing_with_it(bad, code):
    rig = Rig()
    assert rig.refused(Append(entry=bad)) == code
    assert rig.refused(AppendAll(entries=[entry(1), bad])) == code
    assert rig.ask(GetHead()).count == 1


def test_too_many_or_too_large_at_once_is_refused():
    rig = Rig()
    assert rig.refused(AppendAll(entries=[entry()] * (MAX_BATCH_RECORDS + 1))) == ChainRefusal.INVALID
    large = entry(text="a" * (MAX_BATCH_BYTES // 3))
    assert rig.refused(AppendAll(entries=[large] * 4)) == ChainRefusal.PAYLOAD_TOO_LARGE


def test_a_queue_that_is_full_refuses_and_says_so():
    rig = Rig(slow=True)
    store = rig.world.actor(STORE)
    store.hold = True
    many = AppendAll(entries=[entry()] * MAX_BATCH_RECORDS)
    asks = [rig.start(many) for _ in range(12)]
    codes = [pending.result for pending in asks if pending.done]
    assert codes
    for result in codes:
        with pytest.raises(AskFailed, match="overloaded"):
            result()
    store.hold = False
    store.let_go()
    rig.world.run_idle()
    assert rig.ask(Append(entry=entry())).sequence == (12 - len(codes)) * MAX_BATCH_RECORDS + 1


def test_a_disk_that_hangs_does_not_leave_anybody_waiting_for_ever():
    rig = Rig(slow=True)
    rig.world.actor(STORE).hold = True
    asks = [rig.start(Append(entry=entry(number))) for number in range(3)]
    rig.world.run_until(lambda: all(pending.done for pending in asks), limit_s=200)
    for pending in asks:
        with pytest.raises(AskFailed) as failed:
            pending.result()
        assert failed.value.failure is AskFailure.DIED


def test_tail_gives_the_newest_oldest_first_and_what_is_strictly_after():
    rig = Rig()
    for number in range(1, 30):
        rig.ask(Append(entry=entry(number)))
    assert [record.sequence for record in rig.ask(Tail(count=3)).records] == [27, 28, 29]
    assert [record.sequence for record in rig.ask(Tail(count=2, after=5)).records] == [6, 7]
    assert [record.sequence for record in rig.ask(Tail(count=1000)).records] == list(range(30))
    assert rig.ask(Tail(after=29)).records == []
    for count in (0, -1, 1001):
        assert rig.refused(Tail(count=count)) == ChainRefusal.INVALID


def test_tail_keeps_the_newest_when_not_all_fit_an_answer():
    rig = Rig()
    for number in range(1, 8):
        rig.ask(Append(entry=entry(number, text="a" * 2_000_000)))
    answer = rig.ask(Tail(count=7))
    assert answer.records[-1].sequence == 7
    assert 1 < len(answer.records) < 7


def test_a_record_is_shown_by_sequence_or_hash():
    rig = Rig()
    answer = rig.ask(Append(entry=entry(1)))
    for question in (Show(sequence=1), Show(hash=answer.hash), Show(hash=answer.hash[:8])):
        [record] = rig.ask(question).records
        assert record.hash == answer.hash
    assert rig.ask(Show(sequence=99)).records == []
    for question in (
        Show(),
        Show(sequence=1, hash=answer.hash),
        Show(hash="abc"),
        Show(hash="x" * 8),
        Show(hash="%" * 9),
    ):
        assert rig.refused(question) == ChainRefusal.INVALID


@pytest.mark.parametrize("place", [0, 3, 9])
def test_verification_names_the_record_that_was_changed_and_closes_the_chain(place):
    rig = Rig()
    for number in range(1, 10):
        rig.ask(Append(entry=entry(number)))
    old = rig.disk.records[place]
    rig.disk.records[place] = msgspec.structs.replace(old, payload=old.payload.replace(b":", b";"))
    verdict = rig.ask(Verify())
    assert (verdict.valid, verdict.first_bad) == (False, place)
    assert rig.refused(Append(entry=entry())) == ChainRefusal.CLOSED
    assert rig.refused(GetHead()) == ChainRefusal.CLOSED


def test_verification_sees_a_tail_that_was_cut_off_below_the_running_chain():
    rig = Rig()
    for number in range(1, 10):
        rig.ask(Append(entry=entry(number)))
    del rig.disk.records[7:]
    verdict = rig.ask(Verify())
    assert (verdict.valid, verdict.first_bad) == (False, 7)


def test_a_log_whose_last_record_was_changed_opens_closed():
    rig = Rig()
    rig.ask(Append(entry=entry(1)))
    rig.disk.records[-1] = msgspec.structs.replace(rig.disk.records[-1], time_ms=1)
    again = Rig(rig.disk)
    assert again.refused(Append(entry=entry(2))) == ChainRefusal.CLOSED
    assert again.ask(Verify()).first_bad == 1


def test_another_chains_log_is_not_continued():
    rig = Rig()
    other = Rig(rig.disk, chain_id="other")
    assert other.refused(Append(entry=entry())) == ChainRefusal.CLOSED
    assert len(rig.disk.records) == 1


def test_a_damaged_log_is_closed_and_says_why():
    rig = Rig(SimulatedChainDisk(damaged="the header is gone; restore a copy"))
    with pytest.raises(AskFailed, match="restore a copy"):
        rig.ask(Append(entry=entry()))
    verdict = rig.ask(Verify())
    assert (verdict.valid, verdict.first_bad) == (False, 0)
    assert "restore a copy" in verdict.problem


def test_a_torn_tail_is_reported_and_is_not_tampering():
    rig = Rig()
    rig.ask(Append(entry=entry(1)))
    rig.disk.torn_tail = 4096
    again = Rig(rig.disk)
    verdict = again.ask(Verify())
    assert (verdict.valid, verdict.torn_tail) == (True, 4096)


def test_the_state_is_plain_data():
    rig = Rig()
    rig.ask(Append(entry=entry(1)))
    state = rig.world.actor(CHAIN).state()
    msgspec.msgpack.encode(state)
    assert state["sequence"] == 1
    assert state["waiting"] == 0
