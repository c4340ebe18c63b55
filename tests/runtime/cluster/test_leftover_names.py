"""What a killed process or a careless edit leaves behind: numbers that mean another process, names that mean two."""

from __future__ import annotations

import os

import msgspec
import pytest

from runtime.cluster import ClusterFault, ClusterFaultCode, cluster_holder, lock_cluster, lock_state
from runtime.cluster.directory import Directory, DirectoryEntry, cluster_id_of, sign_directory
from runtime.cluster.keys import SecretSeed
from runtime.cluster.names import Role


@pytest.mark.parametrize("pid", [os.getpid(), 1, 2**22 + 1], ids=["our own by now", "a stranger's by now", "nobody's"])
def test_a_lock_file_left_by_a_killed_process_holds_nobody_up_and_is_taken_for_nobody(make, pid) -> None:
    """As in a container that starts again: its numbers are low, and soon given anew."""
    cluster = make()
    cluster.prepare()
    lock = cluster.path / "state" / "up.lock"
    lock.write_text(str(pid))
    state = cluster.state_dir("chain") / "lock"
    state.parent.mkdir(parents=True, exist_ok=True)
    state.write_text(str(pid))
    assert cluster_holder(cluster) is None
    with lock_cluster(cluster), lock_state(cluster, "chain"):
        assert lock.read_text() == state.read_text() == str(os.getpid())


def test_every_process_writes_a_log_and_a_state_of_its_own(make) -> None:
    """Two writers of one file would each rotate it under the other."""
    cluster = make(nodes=("attic", "shed"))
    for place in (cluster.log_file, cluster.state_dir):
        assert len({place(name) for name in cluster.processes}) == len(cluster.processes)


@pytest.mark.parametrize("role", [Role.NODE, Role.GATE], ids=["a node", "a server"])
def test_one_name_with_two_keys_is_no_directory(role) -> None:
    operator = SecretSeed.generate()

    def entry(name: str, role: Role) -> DirectoryEntry:
        tier = "paired" if role is Role.NODE else None
        fields = {"name": name, "role": role.value, "public_key": SecretSeed.generate().public_key.hex(), "tier": tier}
        return msgspec.convert({key: value for key, value in fields.items() if value is not None}, DirectoryEntry)

    name = "attic" if role is Role.NODE else role.value
    servers = [entry(one.value, one) for one in Role if one not in (Role.NODE, Role.EDGES)]
    others = [one for one in servers if one.name != name]
    directory = Directory(
        schema="sennit.directory.v1", cluster_id=cluster_id_of(operator.public_key), name="reef", version=1,
        processes=(*others, entry(name, role), entry(name, role)),
    )  # fmt: skip
    with pytest.raises(ClusterFault, match=f"'{name}' twice") as caught:
        sign_directory(directory, operator)
    assert caught.value.code is ClusterFaultCode.INVALID
