"""`sennit doctor`: what each check says of good and of bad, and that a remedy is named."""

from __future__ import annotations

import configparser
import os
import resource
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from runtime.cli.main import run
from runtime.cluster import init_cluster, load_cluster, lock_cluster
from runtime.doctor import access, checks, clocks, disk, kernel, limits, remains, versions
from runtime.doctor.finding import Finding, Level, Subject, attention, note, ok
from runtime.doctor.unit import quoted, unit_of
from runtime.process import main as process_main

MANY = 10**6
SLEEPER = "import sys; print('ready', flush=True); sys.stdin.read()"


@pytest.fixture
def cluster():
    with TemporaryDirectory(prefix="snt-") as folder:
        yield init_cluster(Path(folder) / "reef")


@pytest.fixture
def subject(cluster):
    return Subject(folder=cluster.path, cluster=cluster)


def levels(findings):
    return {finding.check: finding.level for finding in findings}


JUDGED = {
    "descriptors": (limits.judge_open_files(1024, 4096), Level.OK),
    "descriptors without a limit": (limits.judge_open_files(None, None), Level.OK),
    "few descriptors": (limits.judge_open_files(256, 4096), Level.ATTENTION),
    "few descriptors for good": (limits.judge_open_files(256, 512), Level.ATTENTION),
    "tasks": (limits.judge_tasks("tasks", 5000, 100, "it"), Level.OK),
    "tasks without a limit": (limits.judge_tasks("tasks", None, 100, "it"), Level.OK),
    "few tasks": (limits.judge_tasks("tasks", 399, 100, "it"), Level.ATTENTION),
    "a clock": (clocks.judge_wall(1_767_225_600), Level.OK),
    "a clock never set": (clocks.judge_wall(30), Level.ATTENTION),
    "rates": (clocks.judge_rates((0.1001, 0.1)), Level.OK),
    "a clock that jumps ahead": (clocks.judge_rates((3.0, 0.1)), Level.ATTENTION),
    "a clock that jumps back": (clocks.judge_rates((-1.0, 0.1)), Level.ATTENTION),
    "synchronised": (clocks.judge_synchronised(0x2001), Level.OK),
    "not synchronised": (clocks.judge_synchronised(0x41), Level.NOTE),
    "unreadable": (clocks.judge_synchronised(None), Level.NOTE),
    "ext4": (disk.judge_filesystem("ext4", Path("/c")), Level.OK),
    "tmpfs": (disk.judge_filesystem("tmpfs", Path("/c")), Level.ATTENTION),
    "nfs": (disk.judge_filesystem("nfs4", Path("/c")), Level.ATTENTION),
    "sshfs": (disk.judge_filesystem("fuse.sshfs", Path("/c")), Level.ATTENTION),
    "9p": (disk.judge_filesystem("9p", Path("/c")), Level.ATTENTION),
    "a local fuse": (disk.judge_filesystem("fuseblk", Path("/c")), Level.OK),
    "a container's own": (disk.judge_filesystem("overlay", Path("/c")), Level.NOTE),
    "room": (disk.judge_room(Path("/c"), 2**30), Level.OK),
    "no room": (disk.judge_room(Path("/c"), 2**20), Level.ATTENTION),
    "inodes": (disk.judge_inodes(Path("/c"), MANY), Level.OK),
    "inodes not counted": (disk.judge_inodes(Path("/c"), None), Level.OK),
    "no inodes": (disk.judge_inodes(Path("/c"), 3), Level.ATTENTION),
    "fast": (disk.judge_writes(Path("/c"), 0.004), Level.OK),
    "slow": (disk.judge_writes(Path("/c"), 0.4), Level.ATTENTION),
    "zmq": (versions.judge_zmq((4, 3), {"curve": True, "ipc": True}), Level.OK),
    "old zmq": (versions.judge_zmq((4, 2), {"curve": True, "ipc": True}), Level.ATTENTION),
    "zmq without curve": (versions.judge_zmq((4, 3), {"curve": False, "ipc": True}), Level.ATTENTION),
    "sqlite": (versions.judge_sqlite((3, 40)), Level.OK),
    "old sqlite": (versions.judge_sqlite((3, 31)), Level.ATTENTION),
    "own account": (access.judge_account("shed", None, 1000, None), Level.OK),
    "root without run_as": (access.judge_account("shed", None, 0, None), Level.ATTENTION),
    "root by choice": (access.judge_account("shed", "root", 0, 0), Level.NOTE),
    "an account that root can take": (access.judge_account("shed", "work", 0, 1001), Level.OK),
    "an account that others cannot": (access.judge_account("shed", "work", 1000, 1001), Level.ATTENTION),
    "no such account": (access.judge_account("shed", "work", 0, None), Level.ATTENTION),
}


@pytest.mark.parametrize(("finding", "level"), JUDGED.values(), ids=JUDGED)
def test_what_is_good_enough_and_what_is_not(finding: Finding, level):
    assert finding.level is level
    assert bool(finding.remedy) or level is not Level.ATTENTION


def test_the_kernel_that_runs_the_tests_can_all_of_it():
    for check in checks.CHECKS["kernel"][:-1]:
        assert [finding.level for finding in check(Subject())] == [Level.OK], check.__name__


def test_what_the_kernel_refuses_is_told_with_what_would_not_work():
    def attempt():
        raise PermissionError(1, "Operation not permitted")

    finding = kernel.tried("pidfd", attempt, "exits of processes could not be seen")
    assert finding.level is Level.ATTENTION
    assert "Operation not permitted" in finding.text
    assert "exits of processes could not be seen" in finding.text


def test_no_descriptor_is_left_open():
    def opened():
        return len(os.listdir("/proc/self/fd"))

    before = opened()
    for check in checks.CHECKS["kernel"]:
        list(check(Subject()))
    assert opened() == before


def test_a_soft_limit_of_this_process_is_seen():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (500, hard))
    try:
        (finding,) = limits.open_files(Subject())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert finding.level is Level.ATTENTION
    assert finding.text.startswith("500 a process")


def test_bounds_of_every_control_group_above_count(tmp_path):
    (tmp_path / "cg" / "a" / "b").mkdir(parents=True)
    for place, most, current in (("", "max", "9"), ("a", "50", "40"), ("a/b", "max", "3")):
        (tmp_path / "cg" / place / "pids.max").write_text(f"{most}\n")
        (tmp_path / "cg" / place / "pids.current").write_text(f"{current}\n")
    (tmp_path / "own").write_text("1:name=x:/z\n0::/a/b\n")
    assert list(limits._cgroup_tasks(tmp_path / "own", tmp_path / "cg")) == [(40, 50)]
    assert list(limits._cgroup_tasks(tmp_path / "missing", tmp_path / "cg")) == []


MOUNTS = """\
21 1 8:1 / / rw - ext4 /dev/sda1 rw
22 21 0:5 / /srv/data rw,nosuid shared:3 - nfs4 host:/x rw
23 22 0:6 / /srv/data/my\\040disk rw - xfs /dev/sdb rw
24 21 0:7 / /mnt rw - xfs /dev/sdc rw
25 21 0:8 / /mnt rw - tmpfs none rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/srv", "ext4"), ("/srv/data/c", "nfs4"), ("/srv/data2", "ext4"), ("/srv/data/my disk/c", "xfs"),
        ("/mnt/c", "tmpfs"),
    ],
)  # fmt: skip
def test_the_filesystem_is_that_of_the_nearest_and_latest_mount(path, kind):
    assert disk.filesystem_of(Path(path), MOUNTS) == kind


def test_the_disk_is_looked_at_where_the_state_is_and_left_as_it_was(subject):
    before = sorted(subject.folder.rglob("*"))
    found = levels([*disk.filesystem(subject), *disk.room(subject), *disk.durable_writes(subject)])
    assert set(found) == {"filesystem", "disk space", "inodes", "durable writes"}
    assert sorted(subject.folder.rglob("*")) == before
    assert list(disk.durable_writes(Subject())) == []


def test_least_versions_are_those_of_the_distribution():
    wanted = versions.required(["pykka>=4.4", "pyzmq>=26.2", 'xoscar>=0.7; extra == "bench"'])
    assert wanted == {"pykka": (4, 4), "pyzmq": (26, 2)}
    found = levels(
        versions.judge_packages({"a": (1, 10), "b": (2,), "c": (1,)}, {"a": "1.9.9", "b": "2.0rc1", "c": None})
    )
    assert found == {"a": Level.ATTENTION, "b": Level.OK, "c": Level.ATTENTION}
    assert {"msgspec", "pyzmq"} <= set(levels(versions.packages(Subject())))


def test_keys_that_others_can_read_are_named_with_what_to_do(subject):
    assert levels(access.keys(subject)) == {"keys": Level.OK}
    key = subject.cluster.key_file("chain")
    key.chmod(0o640)
    subject.cluster.keys_dir.chmod(0o755)
    found = list(access.keys(subject))
    assert [finding.remedy for finding in found] == [f"chmod 700 {key.parent}", f"chmod 600 {key}"]
    assert "has mode 0640, not 0600" in found[1].text


def test_a_directory_or_file_that_others_can_write_is_named(subject):
    assert levels(access.cluster_directory(subject)) == {"cluster directory": Level.OK}
    subject.cluster.policy_file.chmod(0o666)
    (finding,) = access.cluster_directory(subject)
    assert finding.remedy == f"chmod go-w {subject.cluster.policy_file}"


def test_a_run_directory_that_others_can_enter_is_named(subject):
    subject.cluster.prepare()
    assert levels(access.run_directory(subject)) == {"run directory": Level.OK}
    subject.cluster.run_dir.chmod(0o755)
    (finding,) = access.run_directory(subject)
    assert finding.remedy == f"chmod 700 {subject.cluster.run_dir}"


def test_socket_paths_that_barely_fit_are_a_note():
    with TemporaryDirectory(prefix="snt-") as folder:
        place = Path(folder) / "x"
        longest = len(str(place / "run" / "shed.edges.packages.sock"))
        near = init_cluster(Path(f"{place}{'y' * (106 - longest)}"))
        found = list(access.socket_paths(Subject(folder=near.path, cluster=near)))
        assert [finding.level for finding in found] == [Level.NOTE]
        short = init_cluster(place)
        assert levels(access.socket_paths(Subject(folder=place, cluster=short))) == {"socket paths": Level.OK}


def test_an_ignored_child_signal_is_found():
    former = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        (finding,) = access.child_signal(Subject())
    finally:
        signal.signal(signal.SIGCHLD, former)
    assert finding.level is Level.ATTENTION
    assert finding.remedy.startswith("trap - CHLD")
    assert levels(access.child_signal(Subject())) == {"SIGCHLD": Level.OK}


def left_process(cluster):
    argv = [sys.executable, "-c", SLEEPER, "-m", "runtime.process", "gate", "--cluster", str(cluster.path)]
    child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout.readline() == b"ready\n"
    return child


def test_what_a_killed_cluster_left_is_found(subject):
    assert levels(remains.remains(subject)) == {"processes": Level.OK, "sockets": Level.OK}
    subject.cluster.prepare()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(subject.cluster.run_dir / "chain.sock"))
    assert levels(remains.remains(subject)) == {"processes": Level.OK, "sockets": Level.ATTENTION}
    with left_process(subject.cluster) as child:
        try:
            found = {finding.check: finding for finding in remains.remains(subject)}
            assert found["processes"].level is Level.ATTENTION
            assert f"gate ({child.pid})" in found["processes"].text
            assert found["processes"].remedy == f"sennit down --cluster {subject.cluster.path}"
        finally:
            child.kill()


def test_beside_a_cluster_that_is_up_only_those_its_root_did_not_start_are_left_over(subject):
    with lock_cluster(subject.cluster), left_process(subject.cluster) as child:
        try:
            assert levels(remains.remains(subject)) == {"processes": Level.OK}, "the lock's holder started it"
        finally:
            child.kill()


# The verb


def sennit(capsys, *arguments):
    capsys.readouterr()
    code = run([str(argument) for argument in arguments])
    return code, capsys.readouterr().out


def table(*findings):
    return {"some": (lambda _: findings,)}


def test_it_ends_with_1_only_when_something_needs_attention(capsys, monkeypatch, cluster):
    monkeypatch.setattr(checks, "CHECKS", table(ok("a", "fine"), note("b", "so so")))
    code, out = sennit(capsys, "doctor", "--cluster", cluster.path)
    assert code == 0
    assert out.rstrip().endswith("nothing needs attention")
    monkeypatch.setattr(checks, "CHECKS", table(ok("a", "fine"), attention("b", "bad", "repair it")))
    code, out = sennit(capsys, "doctor", "--cluster", cluster.path)
    assert code == 1
    assert "try: repair it" in out
    assert out.rstrip().endswith("1 of 3 need attention")


def test_all_checks_run_and_are_told_in_one_document(capsys, cluster):
    import json

    _, out = sennit(capsys, "doctor", "--json", "--cluster", cluster.path)
    rows = json.loads(out)["findings"]
    assert list(dict.fromkeys(row["group"] for row in rows)) == ["cluster", *checks.CHECKS]
    assert all(row["remedy"] for row in rows if row["level"] == "attention")


def test_a_check_that_cannot_look_does_not_stop_the_others(monkeypatch):
    def unreadable(_):
        raise PermissionError(13, "Permission denied", "/proc/x")

    monkeypatch.setattr(checks, "CHECKS", {"some": (unreadable, lambda _: [ok("b", "fine")])})
    found = [finding for _, finding in checks.examine(Subject())]
    assert [finding.level for finding in found] == [Level.NOTE, Level.OK]
    assert "Permission denied" in found[0].text


def test_a_directory_that_is_no_cluster_is_a_finding_and_the_rest_is_checked(capsys, monkeypatch, cluster):
    import json

    (cluster.path / "directory.json").write_text("{}")
    code, out = sennit(capsys, "doctor", "--json", "--cluster", cluster.path)
    told = json.loads(out)
    assert code == 1
    assert told["findings"][0]["check"] == "cluster"
    assert told["findings"][0]["level"] == "attention"
    assert {"keys", "filesystem"} <= {row["check"] for row in told["findings"]}


def test_without_a_cluster_the_machine_alone_is_looked_at(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SENNIT_CLUSTER", raising=False)
    _, out = sennit(capsys, "doctor")
    assert "no cluster directory was looked at" in out
    assert "keys" not in out


# The unit


def test_the_unit_leaves_workloads_alone_and_gives_the_stop_its_time(cluster):
    node = next(iter(cluster.nodes))
    text = unit_of(cluster, node)
    unit = configparser.ConfigParser(interpolation=None, comment_prefixes=("#",))
    unit.optionxform = str
    unit.read_string(text)
    service = unit["Service"]
    assert service["KillMode"] == "process"
    assert service["OOMPolicy"] == "continue"
    assert int(service["TimeoutStopSec"]) > 29
    assert unit["Unit"]["StartLimitIntervalSec"] == "0"


def test_the_command_of_the_unit_is_one_that_a_process_takes(cluster, monkeypatch):
    node = next(iter(cluster.nodes))
    line = next(line for line in unit_of(cluster, node).splitlines() if line.startswith("ExecStart="))
    words = shlex.split(line.removeprefix("ExecStart="))
    assert words[:4] == [sys.executable, "-P", "-m", "runtime.process"]
    seen = []

    def refuse(folder):
        from runtime.cluster import ClusterFault, ClusterFaultCode

        seen.append(str(folder))
        raise ClusterFault(ClusterFaultCode.NOT_FOUND, "enough seen")

    monkeypatch.setattr("runtime.process.load_cluster", refuse)
    monkeypatch.setattr("runtime.process.handle_signals", lambda *_: None)
    monkeypatch.delenv("SENNIT_PARENT_FD", raising=False)
    assert process_main(words[4:]) == 78
    assert seen == [str(cluster.path)]


def test_a_unit_is_for_nodes_only(capsys, cluster):
    assert sennit(capsys, "doctor", "--unit", "chain", "--cluster", cluster.path)[0] == 6
    assert sennit(capsys, "doctor", "--unit", "nobody", "--cluster", cluster.path)[0] == 6
    code, out = sennit(capsys, "doctor", "--unit", next(iter(cluster.nodes)), "--cluster", cluster.path)
    assert code == 0
    assert out == unit_of(load_cluster(cluster.path), next(iter(cluster.nodes)))


@pytest.mark.parametrize(
    ("word", "told"),
    [("plain", "plain"), ("a b", '"a b"'), ("50%", '"50%%"'), ("$HOME", '"$$HOME"'), ('a"b', '"a\\"b"'), ("", '""')],
)
def test_words_of_a_unit_are_taken_literally(word, told):
    assert quoted([word]) == told
