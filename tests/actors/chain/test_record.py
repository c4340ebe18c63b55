"""How a record is hashed, and that verification names the first bad one (design 9, G 3.5, G 7.12, N99)."""

from hashlib import sha256
from struct import pack

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.chain import canonical
from actors.chain.record import (
    ZERO_HASH,
    EntryFault,
    Verifier,
    check_chain_id,
    check_entry,
    genesis,
    make_record,
    record_hash,
    verify,
)
from messages.chain import ChainRecord, Entry

replace = msgspec.structs.replace


def chain_of(count, chain_id="test"):
    records = [genesis(chain_id, 1_700_000_000_000)]
    for number in range(1, count):
        entry = Entry(source="plane", kind="workload.place", payload=canonical.encode({"n": number}))
        records.append(make_record(chain_id, number, records[-1].hash, 1_700_000_000_000 + number, entry))
    return records


def resealed(record, **changes):
    """A forger's record: changed, and hashed anew."""
    changed = replace(record, **changes)
    return replace(changed, hash=record_hash(changed))


def test_the_hash_is_sha256_over_the_tag_and_length_prefixed_fields():
    record = make_record(
        "c-1", 7, "ab" * 32, 1234, Entry(source="gate", kind="x.y", payload=b"{}", idempotency_key="k")
    )
    fields = [
        pack(">Q", 7), b"c-1", pack(">Q", 1234), bytes.fromhex("ab" * 32),
        b"gate", b"x.y", sha256(b"{}").digest(), b"k",
    ]  # fmt: skip
    body = b"sennit.chain.record.v1\0" + b"".join(pack(">I", len(field)) + field for field in fields)
    assert record.hash == sha256(body).hexdigest()


def test_the_form_of_a_record_never_changes():
    assert genesis("test", 1_700_000_000_000).hash == (
        "c90276cdc8401060d4f22b05eecee57b997c39b6d715f98f55ee5d265741d548"
    )


def test_genesis_is_record_zero_of_the_chain_itself():
    first = genesis("shed", 5)
    assert (first.sequence, first.prev_hash, first.source, first.kind) == (0, ZERO_HASH, "chain", "genesis")
    assert canonical.decode(first.payload) == {"chain_id": "shed"}
    assert first.hash != ZERO_HASH


def test_fields_cannot_run_into_each_other():
    one = make_record("c", 1, ZERO_HASH, 0, Entry(source="foo", kind="bar.baz", payload=b"{}"))
    two = make_record("c", 1, ZERO_HASH, 0, Entry(source="foo.bar", kind="baz", payload=b"{}"))
    assert one.hash != two.hash


def test_a_whole_chain_verifies():
    records = chain_of(20)
    verdict = verify(records)
    assert (verdict.valid, verdict.count, verdict.head_hash, verdict.first_bad) == (True, 20, records[-1].hash, None)


def test_an_empty_log_is_not_a_chain():
    verdict = verify([])
    assert (verdict.valid, verdict.first_bad) == (False, 0)
    assert "genesis" in verdict.problem


FLIPS = {
    "payload": lambda r: replace(r, payload=r.payload[:-1] + bytes([r.payload[-1] ^ 1])),
    "payload and its hash": lambda r: replace(r, payload=b"{}", payload_hash=sha256(b"{}").hexdigest()),
    "kind": lambda r: replace(r, kind="workload.stop"),
    "source": lambda r: replace(r, source="gate"),
    "time": lambda r: replace(r, time_ms=r.time_ms + 1),
    "idempotency key": lambda r: replace(r, idempotency_key="k"),
    "hash": lambda r: replace(r, hash="f" * 64),
    "previous hash": lambda r: resealed(r, prev_hash="e" * 64),
    "chain id": lambda r: resealed(r, chain_id="other"),
    "unhashable previous hash": lambda r: replace(r, payload_hash="xyz"),
    "unhashable time": lambda r: replace(r, time_ms=-1),
}


@pytest.mark.parametrize("what", FLIPS)
@pytest.mark.parametrize("place", [0, 1, 5, 9])
def test_a_changed_record_is_named(what, place):
    records = chain_of(10)
    records[place] = FLIPS[what](records[place])
    verdict = verify(records, "test")
    assert (verdict.valid, verdict.first_bad, verdict.count) == (False, place, place)
    assert verdict.problem


def test_a_record_changed_and_sealed_anew_is_caught_at_the_next_link():
    records = chain_of(10)
    records[4] = resealed(records[4], kind="workload.stop")
    assert verify(records).first_bad == 5


@pytest.mark.parametrize(
    ("damage", "first_bad"),
    [
        (lambda r: r[:3] + r[4:], 3),
        (lambda r: [*r[:4], r[3], *r[4:]], 3),
        (lambda r: [*r[:3], r[4], r[3], *r[5:]], 3),
        (lambda r: r[1:], 0),
    ],
)
def test_missing_repeated_and_swapped_records_are_named(damage, first_bad):
    verdict = verify(damage(chain_of(10)))
    assert (verdict.valid, verdict.first_bad) == (False, first_bad)


def test_another_clusters_chain_is_refused():
    assert verify(chain_of(3, "theirs"), "ours").first_bad == 0


def test_a_clock_that_stepped_back_is_no_fault():
    records = chain_of(2)
    entry = Entry(source="plane", kind="x", payload=b"{}")
    assert verify([*records, make_record("test", 2, records[-1].hash, 0, entry)]).valid


def test_a_log_shorter_than_it_was_known_to_be_is_not_valid():
    records = chain_of(10)
    verifier = Verifier("test", known=(9, records[9].hash))
    for record in records[:7]:
        assert verifier.add(record)
    verifier.finish()
    verdict = verifier.verdict()
    assert (verdict.valid, verdict.first_bad, verdict.count) == (False, 7, 7)


def test_a_tail_rewritten_and_sealed_anew_contradicts_the_known_head():
    records = chain_of(10)
    known = (9, records[9].hash)
    for number in range(6, 10):
        entry = Entry(source="plane", kind="forged", payload=b"{}")
        records[number] = make_record("test", number, records[number - 1].hash, 0, entry)
    assert verify(records).valid
    verifier = Verifier("test", known)
    for record in records:
        verifier.add(record)
    verifier.finish()
    assert verifier.verdict().first_bad == 9


def test_the_first_fault_counts():
    verifier = Verifier()
    verifier.fail(3, "unreadable")
    verifier.fail(1, "later")
    assert (verifier.verdict().first_bad, verifier.verdict().problem) == (3, "unreadable")
    assert not verifier.add(genesis("x", 0))


@given(st.data())
@settings(max_examples=80, deadline=None)
def test_no_single_change_of_any_field_passes(data):
    records = chain_of(4)
    place = data.draw(st.integers(0, 3))
    field = data.draw(st.sampled_from(list(ChainRecord.__struct_fields__)))
    old = getattr(records[place], field)
    strategy = {int: st.integers(-1, 2**64), str: st.text(max_size=70), bytes: st.binary(max_size=40)}[type(old)]
    new = data.draw(strategy.filter(lambda value: value != old))
    records[place] = replace(records[place], **{field: new})
    verdict = verify(records, "test")
    assert not verdict.valid
    assert verdict.first_bad is not None
    assert verdict.first_bad <= place


@pytest.mark.parametrize(
    "entry",
    [
        Entry(source="", kind="x", payload=b"{}"),
        Entry(source="Plane", kind="x", payload=b"{}"),
        Entry(source="plane", kind="workload..place", payload=b"{}"),
        Entry(source="plane", kind="x" * 65, payload=b"{}"),
        Entry(source="plane", kind="x\n", payload=b"{}"),
        Entry(source="plane", kind="x", payload=b"{}", idempotency_key="k" * 257),
        Entry(source="plane", kind="x", payload=b"{}", idempotency_key="a\0b"),
    ],
)
def test_an_entry_that_cannot_be_recorded_is_refused(entry):
    with pytest.raises(EntryFault):
        check_entry(entry)


def test_ordinary_names_are_recorded():
    check_entry(
        Entry(source="workload.runtime", kind="artifact.piece_rejected", payload=b"{}", idempotency_key="a/1 é")
    )


@pytest.mark.parametrize("chain_id", ["", "a b", "x" * 65, "-x", "a\n"])
def test_a_chain_id_is_a_short_plain_name(chain_id):
    with pytest.raises(ValueError, match="chain id"):
        check_chain_id(chain_id)
