"""The chain actor on its real file: restarts, a full disk, damage."""

import sqlite3

import pytest

from actors.actor import AskFailed
from actors.chain import canonical
from actors.chain.chain import Chain
from messages.base import Address
from messages.chain import Append, AppendAll, ChainRefusal, Entry, GetHead, Show, Tail, Verify
from messages.system import AskFailure
from runtime.kernel.simulated import SimulatedWorld
from runtime.ports import chain_log
from runtime.ports.chain_log import DATABASE, ChainLogFault
from runtime.ports.chain_store import SqliteChainStore, read_chain, verify_file

CHAIN = Address("chain/chain")
STORE = Address("chain/store")


class Rig:
    def __init__(self, directory):
        self.world = SimulatedWorld(seed=1)
        self.directory = directory
        self.start()

    def start(self):
        self.world.spawn(STORE, lambda: SqliteChainStore(self.directory))
        self.world.spawn(CHAIN, lambda: Chain("test"))
        self.world.run_idle()

    def stop(self):
        self.world.stop(CHAIN)
        self.world.stop(STORE)
        self.world.run_idle()

    def ask(self, request):
        return self.world.ask(CHAIN, request, timeout_s=100)


@pytest.fixture
def rig(tmp_path):
    rig = Rig(tmp_path / "chain")
    yield rig
    for log in list(chain_log._HELD.values()):
        log.close()


def entry(number=0, key="", size=10):
    payload = canonical.encode({"n": number, "text": "x" * size})
    return Entry(source="plane", kind="workload.place", payload=payload, idempotency_key=key)


def test_a_chain_goes_on_where_it_ended(rig):
    first = rig.ask(Append(entry=entry(1, key="a")))
    rig.ask(AppendAll(entries=[entry(number) for number in range(50)]))
    head = rig.ask(GetHead())
    rig.stop()
    assert len(read_chain(rig.directory)) == head.count == 52
    assert verify_file(rig.directory).head_hash == head.hash
    rig.start()
    assert rig.ask(GetHead()) == head
    again = rig.ask(Append(entry=entry(1, key="a")))
    assert (again.sequence, again.repeated) == (first.sequence, True)
    with pytest.raises(AskFailed, match="key_reused"):
        rig.ask(Append(entry=entry(2, key="a")))
    assert rig.ask(Append(entry=entry(3))).sequence == 52
    assert rig.ask(Verify()).count == 53
    assert rig.ask(Show(hash=first.hash[:12])).records == rig.ask(Tail(count=1, after=0)).records


def test_a_crashed_pair_starts_again_in_the_same_process(rig):
    rig.ask(Append(entry=entry(1)))
    rig.world.crash(STORE)
    rig.world.crash(CHAIN)
    rig.world.run_idle()
    rig.start()
    assert rig.ask(Append(entry=entry(2))).sequence == 2
    assert rig.ask(Verify()).valid


def test_a_chain_whose_store_stays_opens_it_again(rig):
    rig.ask(Append(entry=entry(1)))
    rig.world.crash(CHAIN)
    rig.world.run_idle()
    rig.world.spawn(CHAIN, lambda: Chain("test"))
    assert rig.ask(Append(entry=entry(2))).sequence == 2


def test_a_full_disk_is_answered_and_survived(rig):
    log = rig.world.actor(STORE)._log
    log._connection.execute("PRAGMA max_page_count = 40")
    written, refusal = 0, None
    for number in range(2_000):
        try:
            rig.ask(Append(entry=entry(number, size=3_000 + number * 7)))
        except AskFailed as failed:
            refusal = failed
            break
        written += 1
    assert refusal.code == ChainRefusal.DISK_FULL
    assert refusal.nothing_happened
    assert rig.ask(GetHead()).count == written + 1
    log._connection.execute("PRAGMA max_page_count = 100000")
    assert rig.ask(Append(entry=entry(1, size=9_000))).sequence == written + 1
    assert rig.ask(Verify()).valid


def test_another_error_of_the_disk_ends_the_pair(rig):
    rig.world.actor(STORE)._log._connection.close()
    with pytest.raises(AskFailed) as failed:
        rig.ask(Append(entry=entry(1)))
    assert failed.value.failure is AskFailure.DIED
    assert CHAIN not in rig.world.cells
    assert STORE not in rig.world.cells


def test_damage_closes_the_chain_and_is_named(rig):
    rig.ask(AppendAll(entries=[entry(number) for number in range(9)]))
    rig.stop()
    with sqlite3.connect(rig.directory / DATABASE) as connection:
        connection.execute("UPDATE records SET kind = 'workload.stop' WHERE sequence = 4")
    connection.close()
    rig.start()
    assert rig.ask(Append(entry=entry(1))).sequence == 10  # nobody looked yet
    verdict = rig.ask(Verify())
    assert (verdict.valid, verdict.first_bad) == (False, 4)
    with pytest.raises(AskFailed, match="closed"):
        rig.ask(Append(entry=entry(1)))


def test_a_cut_log_opens_closed_and_says_so(rig):
    rig.ask(AppendAll(entries=[entry(number) for number in range(9)]))
    rig.stop()
    with sqlite3.connect(rig.directory / DATABASE) as connection:
        connection.execute("DELETE FROM records WHERE sequence > 5")
    connection.close()
    rig.start()
    with pytest.raises(AskFailed, match="the end was cut off"):
        rig.ask(Append(entry=entry(1)))
    assert "the end was cut off" in rig.ask(Verify()).problem
    verdict = verify_file(rig.directory)
    assert (verdict.valid, verdict.first_bad) == (False, 6)


def test_another_processes_log_is_not_opened(rig, tmp_path, monkeypatch):
    with pytest.raises(ChainLogFault, match="in use"):
        read_chain(rig.directory)
    assert verify_missing(tmp_path / "nothing") == "not_found"


def verify_missing(directory):
    with pytest.raises(ChainLogFault) as fault:
        verify_file(directory)
    return fault.value.code


def test_the_state_names_the_folder(rig):
    rig.ask(Append(entry=entry(1)))
    assert rig.world.actor(STORE).state() == {"directory": str(rig.directory), "open": True, "records": 2}
    rig.stop()
    assert SqliteChainStore(rig.directory).state()["open"] is False
