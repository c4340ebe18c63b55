"""A process that cannot start: its last words are shown at once, it is parked alone, and comes back once repaired."""

from __future__ import annotations

import time
from contextlib import suppress

from messages.supervision import ChildState
from runtime.cluster.settings import Restarts

CEILING_S = 1.0


def test_a_process_whose_budget_is_spent_is_parked_alone_and_comes_back_at_the_ceiling(make_cluster):
    live = make_cluster(restarts=Restarts(intensity=1, backoff_ceiling_s=CEILING_S)).up()
    before = live.pids()
    policy = live.cluster.policy_file
    good = policy.read_text()
    policy.write_text("this is no policy\n")

    life = live.life("gate")
    life.kill()
    assert life.wait_end()
    parked = live.wait_child("gate", lambda child: child.state is ChildState.PARKED)
    assert "policy.toml" in parked.last_exit
    assert parked.next_attempt_s is not None
    assert parked.next_attempt_s <= CEILING_S
    siblings = {name: pid for name, pid in before.items() if name != "gate"}
    assert {name: pid for name, pid in live.pids().items() if name != "gate"} == siblings

    policy.write_text(good)
    live.wait_child("gate", lambda child: child.state is ChildState.RUNNING)
    live.check_serves()
    assert {name: pid for name, pid in live.pids().items() if name != "gate"} == siblings


def test_the_last_words_of_a_process_that_dies_at_its_start_are_shown_within_a_second(make_cluster):
    live = make_cluster().up()
    live.cluster.key_file("gate").unlink()
    life = live.life("gate")
    life.kill()
    assert life.wait_end()
    live.wait_child("gate", lambda child: child.incarnation == 2)
    with suppress(KeyError, ProcessLookupError):  # it is over already
        assert live.life("gate").wait_end()
    ended = time.monotonic()
    shown = live.wait_child("gate", lambda child: "gate.key does not exist" in child.last_exit)
    assert time.monotonic() - ended < 1.0
    assert "exit code 78" in shown.last_exit
