"""A controller whose state was deleted beside a chain that tells of its dispatches (N69)."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("unloaded", [False, True], ids=["something runs", "nothing runs any more"])
def test_a_deleted_state_is_not_taken_for_a_new_cluster(two, unloaded):
    placed = two.place(pin="attic").placed
    if unloaded:
        two.verb("unload", placed.instance_id)
    held = two.held()
    del two.disk.documents["plane"]
    two.restart_plane()
    two.world.advance(3)
    code, reason = two.place_code(pin="shed")
    assert code == "stale_state"
    assert "restore the newest state" in reason
    assert two.held() == held
