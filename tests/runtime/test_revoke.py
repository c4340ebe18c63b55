"""A directory that was signed anew: only a newer one of the same cluster counts; who is gone or has a new key goes."""

from __future__ import annotations

import signal

import msgspec
import pytest

from actors.actor import AskFailed
from messages.base import Address
from messages.ports import SignalProcess
from messages.system import AskFailure, Done, GetState, StateReport
from runtime.cluster import ClusterFault, SecretSeed, init_cluster, load_cluster, update_cluster, write_key
from runtime.cluster.settings import NodeSettings, parse_settings, render_settings
from runtime.revoke import newer, pass_on, revoked


@pytest.fixture
def before(tmp_path):
    return init_cluster(tmp_path / "c", ["attic", "shed"])


def with_nodes(cluster, *names):
    """The cluster with these nodes, signed anew."""
    file = cluster.path / "cluster.toml"
    settings = parse_settings(file.read_text(), str(file))
    nodes = tuple(NodeSettings(name=name, run_as="nobody") for name in names)
    file.write_text(render_settings(msgspec.structs.replace(settings, node=nodes)))
    return update_cluster(cluster.path)


def renew_key(cluster, name):
    cluster.key_file(name).unlink()
    write_key(cluster.key_file(name), SecretSeed.generate())


def test_the_same_directory_is_not_news(before):
    assert newer(before) is None


def test_a_node_that_is_gone_is_revoked_with_its_edges(before):
    with_nodes(before, "shed")
    after = newer(before)
    assert after is not None
    assert revoked(before, after) == ["attic", "attic.edges"]
    assert newer(after) is None


def test_a_node_of_another_key_is_revoked(before):
    renew_key(before, "shed")
    after = update_cluster(before.path)
    assert revoked(before, after) == ["shed"]


def test_a_newcomer_revokes_nobody(before):
    after = with_nodes(before, "attic", "shed", "loft")
    assert newer(before) == after
    assert revoked(before, after) == []


def test_an_older_directory_is_not_news(before):
    old = (before.path / "directory.json").read_bytes()
    renew_key(before, "shed")
    after = update_cluster(before.path)
    (before.path / "directory.json").write_bytes(old)
    assert newer(after) is None


def test_a_directory_that_was_edited_is_refused(before):
    file = before.path / "directory.json"
    file.write_text(file.read_text().replace("attic", "attik"))
    with pytest.raises(ClusterFault, match="signature"):
        newer(before)


def test_another_cluster_in_the_same_folder_is_refused(before, tmp_path):
    other = init_cluster(tmp_path / "other", ["shed"])
    for name in ("cluster.toml", "directory.json"):
        (before.path / name).write_bytes((other.path / name).read_bytes())
    assert load_cluster(before.path).cluster_id == other.cluster_id
    with pytest.raises(ClusterFault, match="nothing was revoked"):
        newer(before)


def test_children_are_told_and_one_that_ended_keeps_no_other_from_hearing():
    port, told = Address("root/processes"), []

    def ask(to, request, timeout_s):
        assert to == port
        assert timeout_s > 0
        if isinstance(request, GetState):
            return StateReport(address=port, state={"chain": {}, "gate": {}, "shed": {}})
        assert isinstance(request, SignalProcess)
        assert request.signal == signal.SIGHUP
        if request.name == "gate":
            raise AskFailed(AskFailure.REFUSED, port, "not_found", "gate has just ended")
        told.append(request.name)
        return Done()

    pass_on(ask, port)
    assert told == ["chain", "shed"]


def test_a_port_that_does_not_answer_is_no_fault():
    def ask(to, *_):
        raise AskFailed(AskFailure.TIMEOUT, to, "", "no answer")

    pass_on(ask, Address("root/processes"))
