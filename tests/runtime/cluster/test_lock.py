from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from runtime.cluster import ClusterFault, ClusterFaultCode, cluster_holder, lock_cluster, lock_state


def test_a_second_up_is_refused_naming_the_holder(make) -> None:
    cluster = make()
    assert cluster_holder(cluster) is None
    with lock_cluster(cluster):
        assert cluster_holder(cluster) == os.getpid()
        with pytest.raises(ClusterFault, match=f"process {os.getpid()}") as caught, lock_cluster(cluster):
            pass
        assert caught.value.code is ClusterFaultCode.LOCKED
    assert cluster_holder(cluster) is None
    with lock_cluster(cluster):
        pass


def test_a_lock_ends_with_its_process(make) -> None:
    cluster = make()
    code = (
        "import os, sys; from runtime.cluster import load_cluster, lock_cluster\n"
        "with lock_cluster(load_cluster(sys.argv[1])): print(os.getpid(), flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(cluster.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        pid = int(holder.stdout.readline())
        assert cluster_holder(cluster) == pid
        holder.kill()
        holder.wait(10)
        assert cluster_holder(cluster) is None


def test_the_state_of_a_process_is_its_own(make) -> None:
    cluster = make()
    with lock_state(cluster, "chain") as folder:
        assert folder == cluster.state_dir("chain")
        with pytest.raises(ClusterFault) as caught, lock_state(cluster, "chain"):
            pass
        assert caught.value.code is ClusterFaultCode.LOCKED
        with lock_state(cluster, "gate"):
            pass
    with lock_state(cluster, "chain"):
        pass


@pytest.mark.parametrize("process", ["attic", "shed"])
def test_state_of_another_cluster_or_process_is_refused_naming_it(make, process) -> None:
    ours, theirs = make("ours"), make("theirs")
    with lock_state(theirs, "attic"):
        pass
    ours.state_dir(process).parent.mkdir(parents=True, exist_ok=True)
    theirs.state_dir("attic").rename(ours.state_dir(process))
    with pytest.raises(ClusterFault, match="'attic' of cluster 'theirs'") as caught, lock_state(ours, process):
        pass
    assert caught.value.code is ClusterFaultCode.FOREIGN_STATE


@pytest.mark.parametrize("content", ["", "[]", '{"cluster_id"', "7", "[" * 100_000], ids=range(5))
def test_a_damaged_mark_is_refused_not_replaced(make, content) -> None:
    cluster = make()
    with lock_state(cluster, "chain") as folder:
        pass
    (folder / "owner.json").write_text(content)
    with pytest.raises(ClusterFault, match="damaged"), lock_state(cluster, "chain"):
        pass
    assert (folder / "owner.json").read_text() == content


def test_the_mark_names_cluster_process_and_key(make) -> None:
    cluster = make()
    with lock_state(cluster, "chain") as folder:
        mark = json.loads((folder / "owner.json").read_text())
    assert mark == {
        "cluster_id": cluster.cluster_id,
        "cluster": "reef",
        "process": "chain",
        "public_key": cluster.processes["chain"].public_key.hex(),
    }
