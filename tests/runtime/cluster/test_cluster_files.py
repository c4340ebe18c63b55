from __future__ import annotations

import json
import stat
from pathlib import Path

import msgspec
import pytest

from messages.engine import TrustTier
from runtime.cluster import (
    ClusterFault,
    ClusterFaultCode,
    NodeSettings,
    Role,
    init_cluster,
    load_cluster,
    update_cluster,
)
from runtime.cluster.directory import open_directory, sign_directory
from runtime.cluster.settings import parse_settings, render_settings


def fault_of(call, *arguments, **options) -> ClusterFault:
    with pytest.raises(ClusterFault) as caught:
        call(*arguments, **options)
    return caught.value


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_a_new_cluster_loads_as_it_was_made(make) -> None:
    made = make(nodes=("attic", NodeSettings(name="shed", tier=TrustTier.PINNED, facts=("feed.csi",))))
    loaded = load_cluster(made.path)
    assert loaded == made
    assert loaded.processes["shed"].tier is TrustTier.PINNED
    assert loaded.nodes["shed"].facts == ("feed.csi",)
    assert [entry.name for entry in loaded.supervised] == ["chain", "gate", "controller", "attic", "shed"]


def test_every_process_has_its_own_key_and_only_its_owner_can_read_it(make) -> None:
    cluster = make()
    keys = {cluster.key(name).public_key for name in cluster.processes}
    assert len(keys) == len(cluster.processes)
    assert cluster.signer_key().public_key not in keys
    for file in cluster.keys_dir.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    for folder in (cluster.keys_dir, cluster.run_dir):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_who_dials_whom(make) -> None:
    cluster = make(nodes=("attic", "shed"))
    dials = {name: [peer.name for peer in cluster.dials(name)] for name in cluster.processes}
    assert dials == {
        "root": [],
        "chain": ["root"],
        "gate": ["root", "chain"],
        "controller": ["root", "chain", "gate"],
        "attic": ["root", "chain", "controller"],
        "shed": ["root", "chain", "controller"],
        "attic.edges": ["attic", "controller"],
        "shed.edges": ["shed", "controller"],
        "operator": ["root", "chain", "gate", "controller", "attic", "shed", "attic.edges", "shed.edges"],
    }
    assert {entry.name for entry in cluster.dialled_by("controller")} == {
        "attic", "shed", "attic.edges", "shed.edges", "operator",
    }  # fmt: skip
    assert {entry.name for entry in cluster.dialled_by("attic")} == {"operator", "attic.edges"}


def test_a_cluster_is_never_made_over_another(make) -> None:
    cluster = make()
    before = {file: file.read_bytes() for file in cluster.path.rglob("*") if file.is_file()}
    assert fault_of(init_cluster, cluster.path, policy="").code is ClusterFaultCode.EXISTS
    assert before == {file: file.read_bytes() for file in cluster.path.rglob("*") if file.is_file()}


def test_a_folder_without_a_cluster_names_the_command_that_makes_one(folder) -> None:
    fault = fault_of(load_cluster, folder)
    assert fault.code is ClusterFaultCode.NOT_FOUND
    assert f"sennit init {folder}" in fault.text


@pytest.mark.parametrize(
    "name", ["a/b", "A", "é", "е", "🙂", ".", "..", "", "a ", "a\n", "-a", "a-", "x" * 64, "chain", "signer"]
)
def test_names_that_could_mean_two_things_are_refused_not_rewritten(folder, name) -> None:
    assert fault_of(init_cluster, folder / "reef", nodes=(name,), policy="").code is ClusterFaultCode.INVALID
    assert not (folder / "reef").exists()


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('name = "shed"', 'name = "Shed"', ":{line}: node[1].name"),
        ('name = "shed"', 'name = "attic"', ":{line}: node[1].name: two nodes"),
        ("# beat_s = 1.0", "beat_s = 0", ":{line}: times.beat_s"),
        ("# beat_s = 1.0", "beat_s = inf", ":{line}: times.beat_s: inf is not a finite"),
        ("# beat_s = 1.0", "beat_s = nan", ":{line}: times.beat_s: nan is not a finite"),
        ("# beat_s = 1.0", "baet_s = 1", ":{line}: times.baet_s: this key is not known here"),
        ("# dead_after_s = 5.0", "dead_after_s = 1", ":{line}: times.dead_after_s: must be at least two beats"),
        ("format = 1", "format = 2", ":{line}: format"),
        ("format = 1", "format = ", "line {line}"),
        ("format = 1", "", "format: this key is missing"),
        ("[times]", "[endpoints.barn]\n[times]", ":{line}: endpoints.barn"),
        ("[times]", '[endpoints.gate]\ncontrol = "tcp://h:0"\n[times]', "endpoints.gate.control"),
        ('name = "attic"\ntier = "paired"', 'name = "attic"\ntier = "friend"', "node[0].tier"),
        ('name = "attic"', 'name = "attic"\narena_mb = 0', "node[0].arena_mb"),
        ('name = "attic"', 'name = "attic"\narena_mb = 65537', "node[0].arena_mb"),
        ('name = "attic"', 'name = "attic"\narena_mb = 1.5', "node[0].arena_mb"),
        ("[times]", '[endpoints.attic]\nedges = "tcp://h"\n[times]', "endpoints.attic.edges"),
        ("[times]", '[endpoints.gate]\nedges = "tcp://h:1"\n[times]', "endpoints.gate.edges: only nodes have edges"),
        ("[times]", '[endpoints."attic.edges"]\nedges = "tcp://h:1"\n[times]', "stands in [endpoints.attic]"),
        ("[times]", '[endpoints.attic.edges]\ncontrol = "tcp://h:1"\n[times]', "edges: expected `str`"),
        (
            "[times]",
            '[endpoints.attic]\nedges = "tcp://h:1"\ncontrol = "tcp://h:1"\n[times]',
            "is taken by attic.control",
        ),
    ],
)
def test_a_mistake_in_the_settings_is_named_with_file_line_and_key(make, old, new, says) -> None:
    cluster = make(nodes=("attic", "shed"))
    file = cluster.path / "cluster.toml"
    edit(file, old, new)
    lines = [
        number
        for number, line in enumerate(file.read_text().splitlines(), start=1)
        if new and new.startswith(line) and line
    ]
    fault = fault_of(load_cluster, cluster.path)
    assert fault.code is ClusterFaultCode.INVALID
    assert str(file) in fault.text
    assert says.format(line=lines[-1] if lines else "") in fault.text


def test_settings_survive_being_written_and_read(make) -> None:
    odd = 'up "there" \\ \u0001'
    cluster = make(nodes=(NodeSettings(name="attic", facts=("feed.csi", odd), arena_mb=1),))
    with (cluster.path / "cluster.toml").open("a") as file:
        file.write('[endpoints.attic]\nedges = "tcp://[fe80::1]:7104"\n')
    settings = parse_settings((cluster.path / "cluster.toml").read_text(), "cluster.toml")
    assert parse_settings(render_settings(settings), "again") == settings
    assert settings.node[0].facts == ("feed.csi", odd)


def test_an_edited_directory_is_refused(make) -> None:
    cluster = make()
    file = cluster.path / "directory.json"
    signed = json.loads(file.read_text())
    signed["payload"] = signed["payload"].replace("paired", "pinned")
    file.write_text(json.dumps(signed))
    assert fault_of(load_cluster, cluster.path).code is ClusterFaultCode.SIGNATURE


def test_the_directory_of_another_cluster_is_refused(make) -> None:
    ours, theirs = make("ours"), make("theirs")
    (ours.path / "directory.json").write_bytes((theirs.path / "directory.json").read_bytes())
    assert fault_of(load_cluster, ours.path).code is ClusterFaultCode.SIGNATURE


def test_a_change_of_nodes_counts_only_when_signed(make) -> None:
    cluster = make(nodes=("attic",))
    file = cluster.path / "cluster.toml"
    file.write_text(file.read_text().replace('name = "attic"', 'name = "attic"\n[[node]]\nname = "shed"'))
    fault = fault_of(load_cluster, cluster.path)
    assert fault.code is ClusterFaultCode.OUT_OF_DATE
    assert "does not list 'shed'" in fault.text
    updated = update_cluster(cluster.path)
    assert (updated.version, "shed" in updated.processes) == (2, True)
    assert updated.processes["attic"].public_key == cluster.processes["attic"].public_key
    assert update_cluster(cluster.path).version == 2


def test_a_listed_key_stays_when_its_file_lives_on_another_host(make) -> None:
    cluster = make(nodes=("attic",))
    cluster.key_file("attic").unlink()
    assert update_cluster(cluster.path).processes["attic"].public_key == cluster.processes["attic"].public_key


def test_endpoints_between_hosts_are_taken_as_they_are(make) -> None:
    cluster = make(nodes=("attic",))
    with (cluster.path / "cluster.toml").open("a") as file:
        file.write('\n[endpoints.controller]\ncontrol = "tcp://10.0.0.5:7101"\npackages = "tcp://[fe80::1]:7102"\n')
    controller = update_cluster(cluster.path).processes["controller"]
    assert (controller.control, controller.packages) == ("tcp://10.0.0.5:7101", "tcp://[fe80::1]:7102")


def test_edges_listen_beside_the_other_sockets_or_where_their_node_says(make) -> None:
    cluster = make(nodes=("attic", "shed"))
    data = cluster.run_dir / "shed.edges.data.sock"
    assert cluster.processes["shed.edges"].edges == f"ipc://{data}"
    assert data in cluster.socket_files()
    assert [name for name, entry in cluster.processes.items() if entry.edges] == ["attic.edges", "shed.edges"]
    with (cluster.path / "cluster.toml").open("a") as file:
        file.write('\n[endpoints.shed]\nedges = "tcp://10.0.0.6:7104"\n')
    assert fault_of(load_cluster, cluster.path).code is ClusterFaultCode.OUT_OF_DATE
    updated = update_cluster(cluster.path)
    assert updated.processes["shed.edges"].edges == "tcp://10.0.0.6:7104"
    assert updated.processes["shed.edges"].control == cluster.processes["shed.edges"].control
    assert updated.processes["shed"] == cluster.processes["shed"]
    assert updated.processes["attic.edges"] == cluster.processes["attic.edges"]
    assert data not in updated.socket_files()


def test_a_directory_from_before_there_were_edges_says_so_and_is_brought_up_to_date(make) -> None:
    cluster = make(nodes=("shed",))
    operator, file = cluster.key("operator"), cluster.path / "directory.json"
    directory = open_directory(file.read_bytes(), operator.public_key, str(file))
    older = [msgspec.structs.replace(entry, edges=None) for entry in directory.processes]
    file.write_bytes(sign_directory(msgspec.structs.replace(directory, processes=tuple(older)), operator))
    fault = fault_of(load_cluster, cluster.path)
    assert fault.code is ClusterFaultCode.OUT_OF_DATE
    assert "does not say where 'shed.edges' listens for edges" in fault.text
    assert f"sennit init {cluster.path} --update" in fault.text
    updated = update_cluster(cluster.path)
    assert updated.version == 2
    assert updated.processes == cluster.processes


def test_a_directory_that_has_others_than_edges_processes_listen_for_edges_is_refused(make) -> None:
    cluster = make(nodes=("shed",))
    operator, file = cluster.key("operator"), cluster.path / "directory.json"
    directory = open_directory(file.read_bytes(), operator.public_key, str(file))
    odd = [msgspec.structs.replace(entry, edges="ipc") for entry in directory.processes]
    with pytest.raises(ClusterFault, match="only processes of role edges"):
        sign_directory(msgspec.structs.replace(directory, processes=tuple(odd)), operator)


def test_the_budget_of_a_node_for_ring_memory_needs_no_signature(make) -> None:
    cluster = make(nodes=(NodeSettings(name="attic", arena_mb=64), "shed"))
    assert [node.arena_mb for node in cluster.nodes.values()] == [64, 256]
    edit(cluster.path / "cluster.toml", "arena_mb = 64", "arena_mb = 65_536")
    assert load_cluster(cluster.path).nodes["attic"].arena_mb == 65_536


def test_a_socket_path_the_kernel_would_cut_is_refused_when_read(make, folder) -> None:
    fault = fault_of(make, "x" * 100)
    assert fault.code is ClusterFaultCode.PATH_TOO_LONG
    assert "run_dir" in fault.text
    cluster = make("y" * 100, run_dir=str(folder / "run"))
    assert cluster.run_dir == folder / "run"
    assert all(len(str(path)) <= 107 for path in cluster.socket_files())


def test_the_longest_path_counts_that_of_the_edges(make, folder) -> None:
    node = "greenhouse-north"
    fits = "r" * (107 - len(str(folder / f"{node}.edges.data.sock")) - 1)
    assert make("one", nodes=(node,), run_dir=str(folder / fits)).run_dir == folder / fits
    fault = fault_of(make, "two", nodes=(node,), run_dir=str(folder / f"{fits}r"))
    assert fault.code is ClusterFaultCode.PATH_TOO_LONG
    assert f"{node}.edges.data.sock has 108 bytes" in fault.text


def test_a_run_directory_others_can_enter_is_refused(make) -> None:
    cluster = make()
    cluster.run_dir.chmod(0o755)
    fault = fault_of(cluster.prepare)
    assert fault.code is ClusterFaultCode.UNSAFE
    assert "chmod 700" in fault.text


def test_roles_without_a_process_do_not_listen(make) -> None:
    cluster = make()
    assert cluster.processes["operator"].role is Role.OPERATOR
    assert cluster.processes["operator"].control is None
    assert [entry.name for entry in cluster.processes.values() if entry.packages] == ["controller"]
