"""A node whose state was deleted while workloads of its past still run (N69)."""


def told(rig):
    return [fields for _, _, text, fields in rig.world.logs if "the state of this node is gone" in text]


def test_a_node_that_lost_its_state_says_so_and_runs_nothing_that_it_cannot_account_for(rig, package):
    name = rig.place(package)["instance_id"]
    rig.world.advance(1)
    rig.world.crash_process("shed")
    del rig.disk.documents["agent"]
    rig.start_node()
    rig.world.advance(5)
    assert told(rig) == [{"instances": 1}]
    assert rig.host.instances == {}
    rig.agree()
    assert rig.place(package, number=2)["instance_id"] == name, "it serves on"


def test_a_new_node_has_lost_nothing(rig):
    assert told(rig) == []


def test_records_of_a_node_that_lost_its_state_are_not_taken_for_earlier_ones(rig, package):
    """It counts its starts anew, and the chain remembers keys for ever."""
    placed = [rig.place(package)["instance_id"]]
    rig.world.advance(1)
    rig.world.crash_process("shed")
    rig.disk.documents.clear()
    rig.start_node()
    rig.world.advance(1)
    placed.append(rig.place(package, number=2)["instance_id"])
    recorded = [
        payload["instance_id"] for _, payload in rig.book.of("workload.place") if payload.get("phase") == "placed"
    ]
    assert recorded == placed
