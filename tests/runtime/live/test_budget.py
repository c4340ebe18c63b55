"""A process that cannot start: its last words are shown at once, it is parked alone, and comes back once repaired."""

from __future__ import annotations

import time

from messages.supervision import ChildState
from runtime.cluster.settings import Restarts

CEILING_S = 1.0


def test_a_process_whose_budget_is_spent_is_parked_alone_and_comes_back_at_the_ceiling(make_cluster):
    live = make_cluster(restarts=Restarts(intensity=2, backoff_ceiling_s=CEILING_S)).up()
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
    live.cluster.key_file("loft").unlink()
    life = live.life("loft")
    life.kill()
    assert life.wait_end()
    live.wait_child("loft", lambda child: "exit code" in child.last_exit)  # it died of the key, not of our kill
    shown = live.child("loft").last_exit
    assert "loft.key" in shown
    assert "exit code 78" in shown


def test_how_soon_last_words_are_shown(make_cluster):
    live = make_cluster().up()
    live.cluster.key_file("gate").unlink()
    life = live.life("gate")
    life.kill()
    assert life.wait_end()
    live.wait_child("gate", lambda child: child.incarnation == 2)
    dying = None
    while dying is None:
        dying = live.pids().get("gate")
    life = live.life(dying)
    assert life.wait_end()
    ended = time.monotonic()
    live.wait_child("gate", lambda child: "gate.key" in child.last_exit)
    assert time.monotonic() - ended < 1.0
