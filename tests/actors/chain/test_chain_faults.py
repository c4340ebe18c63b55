"""Many append while the disk fills up, the store dies and the chain starts again: what was answered stays."""

from random import Random

import pytest

from actors.actor import AskFailed
from actors.chain import canonical
from actors.chain.chain import Chain, ChainLost
from actors.chain.record import verify
from messages.base import Address
from messages.chain import Append, AppendAll, Entry
from messages.system import AskFailure
from runtime.kernel.simulated import SimulatedWorld
from runtime.simulated.chain_store import SimulatedChainDisk, SimulatedChainStore

CHAIN = Address("chain/chain")
STORE = Address("chain/store")


class Story:
    """One run: acts and faults in random order, every ask remembered with the keys of its entries."""

    def __init__(self, seed):
        self.random = Random(seed)
        self.disk = SimulatedChainDisk()
        self.world = SimulatedWorld(seed=seed)
        self.asks = []
        self.keys = 0
        self.start()

    def start(self):
        for address, factory in ((STORE, lambda: SimulatedChainStore(self.disk)), (CHAIN, lambda: Chain("test"))):
            if address not in self.world.cells:
                self.world.spawn(address, factory)

    def entry(self, key):
        payload = canonical.encode({"key": key})
        return Entry(source="plane", kind="workload.place", payload=payload, idempotency_key=key)

    def append(self):
        count = self.random.choice([1, 1, 1, 3])
        keys = []
        for _ in range(count):
            if self.keys and self.random.random() < 0.3:
                keys.append(f"k{self.random.randrange(self.keys)}")
            else:
                keys.append(f"k{self.keys}")
                self.keys += 1
        entries = [self.entry(key) for key in keys]
        request = Append(entry=entries[0]) if count == 1 else AppendAll(entries=entries)
        self.asks.append((keys, self.world.start_ask(CHAIN, request, timeout_s=1_000)))

    def step(self):
        act = self.random.random()
        if act < 0.70:
            self.append()
        elif act < 0.78:
            self.disk.full = not self.disk.full
        elif act < 0.82:
            self.world.crash(self.random.choice([CHAIN, STORE]))
        elif act < 0.84:
            self.disk.broken = True
        elif act < 0.86:
            self.world.lose(lambda envelope: envelope.sender == STORE)
        elif act < 0.95:
            self.world.run_idle()
        else:
            self.world.advance(50)
        if CHAIN not in self.world.cells or STORE not in self.world.cells:
            self.disk.broken = False
            self.start()

    def finish(self):
        self.disk.full = self.disk.broken = False
        for _ in range(4):
            self.world.advance(400)
            self.start()


@pytest.mark.parametrize("seed", range(25))
def test_every_answered_append_is_there_once_and_no_refused_one_is(seed):
    story = Story(seed)
    for _ in range(150):
        story.step()
    story.finish()
    assert verify(story.disk.records, "test").valid
    crashes = {type(fields["exception"]) for _, _, _, fields in story.world.logs if "exception" in fields}
    assert crashes <= {OSError, ChainLost}  # never a link that does not fit: the store would refuse it
    held = [record.idempotency_key for record in story.disk.records if record.idempotency_key]
    assert len(held) == len(set(held))
    by_sequence = {record.sequence: record for record in story.disk.records}
    answered, refused, unknown = set(), set(), set()
    for keys, pending in story.asks:
        assert pending.done
        try:
            answer = pending.result()
        except AskFailed as failed:
            (refused if failed.failure is AskFailure.REFUSED else unknown).update(keys)
            continue
        results = answer.results if hasattr(answer, "results") else [answer]
        for key, result in zip(keys, results, strict=True):
            record = by_sequence[result.sequence]
            assert (record.idempotency_key, record.hash) == (key, result.hash)
            answered.add(key)
    assert answered
    assert answered <= set(held)
    assert set(held).isdisjoint(refused - answered - unknown)


def test_the_stories_meet_every_kind_of_outcome():
    kinds = set()
    for seed in range(25):
        story = Story(seed)
        for _ in range(150):
            story.step()
        story.finish()
        for _, pending in story.asks:
            try:
                pending.result()
                kinds.add("answered")
            except AskFailed as failed:
                kinds.add(failed.code or failed.failure.value)
    assert {"answered", "disk_full", "died"} <= kinds
