"""A few rounds of the soak, so that it works when it is needed; `make soak` plays hundreds."""

from __future__ import annotations

import pytest

from messages.chain import ChainRecord
from tests.soak.soak import soak
from tests.soak.story import problems_of
from tests.soak.watch import Usage, growth


@pytest.mark.timeout(120)
def test_a_short_soak_finds_nothing():
    told: list[str] = []
    assert soak(seed=6, rounds=6, tell=told.append, park=False) == [], "\n".join(told)


def record(number: int, payload: str, *, source: str = "workload.placement", kind: str = "workload.place"):
    return ChainRecord(
        sequence=number,
        chain_id="c",
        time_ms=0,
        prev_hash="",
        hash=f"{number:064x}",
        payload_hash="",
        source=source,
        kind=kind,
        payload=payload.encode(),
        idempotency_key=f"k{number}",
    )


DISPATCHING = '{"phase":"dispatching","decision_id":"d","slot":"s","epoch":"1.1"}'
PLACED = '{"phase":"placed","decision_id":"d","slot":"s","epoch":"1.1","instance_id":"i"}'
UNLOADED = '{"phase":"lifecycle","instance_id":"i","to":"unloaded"}'


def test_a_story_that_is_told_to_its_end_has_no_problem():
    story = [record(1, DISPATCHING), record(2, PLACED), record(3, UNLOADED, kind="workload.lifecycle")]
    assert problems_of(story, {}, set()) == []
    assert problems_of(story[:2], {}, {"i"}) == []


@pytest.mark.parametrize(
    ("story", "said"),
    [
        ([record(1, DISPATCHING)], "has no end"),
        ([record(1, DISPATCHING), record(2, PLACED)], "does not run"),
        ([record(1, DISPATCHING), record(2, DISPATCHING), record(3, PLACED)], "follows"),
        ([record(1, PLACED, source="workload.host")], "undispatched"),
        ([record(1, "{}"), record(1, "{}")], "written 2 times"),
    ],
)
def test_a_story_that_lacks_something_or_tells_it_twice_is_found(story, said):
    assert any(said in problem for problem in problems_of(story, {}, set()))


def test_growth_is_what_exceeds_the_allowance():
    small = Usage(fds=40, threads=8, pss_kib=20_000)
    assert growth(small, Usage(44, 10, 24_096)) == ""
    assert growth(small, Usage(45, 11, 24_097)) == "descriptors 40 -> 45, threads 8 -> 11, memory (KiB) 20000 -> 24097"
