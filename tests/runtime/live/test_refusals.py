"""What `up` and its processes refuse to start on: said in one clear line, with a code, and nothing is left running."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from runtime.cluster import update_cluster
from runtime.cluster.settings import EndpointSettings, parse_settings, render_settings

CONFIG_EXIT = 78


def change_settings(live, **changes):
    """Write other settings, as an operator would, and sign the directory anew."""
    file = live.cluster.path / "cluster.toml"
    settings = msgspec.structs.replace(parse_settings(file.read_text(), str(file)), **changes)
    file.write_text(render_settings(settings))
    live.cluster = update_cluster(live.cluster.path)


def refused(live):
    """The last words of a root that does not come up."""
    root = live.launch()
    assert root.wait(20) == CONFIG_EXIT, live.words()
    assert live.left() == []
    assert live.sockets() == []
    words = live.words()
    assert "Traceback" not in words
    return words


def test_a_second_up_names_the_holder_and_leaves_the_first_alone(make_cluster):
    live = make_cluster().up()
    before = live.pids()
    second = live.launch()
    assert second.wait(20) == CONFIG_EXIT
    words = live.words()
    assert f"process {live.root.pid}" in words
    assert "sennit down" in words
    assert live.pids() == before
    live.check_serves()


def test_a_port_of_the_root_in_use_is_named_with_what_to_do(make_cluster):
    live = make_cluster()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        endpoint = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        change_settings(live, endpoints={"root": EndpointSettings(control=endpoint)})
        words = refused(live)
    assert endpoint in words
    assert "[endpoints]" in words


def test_a_port_of_a_child_in_use_is_shown_as_why_it_is_not_up_and_it_comes_up_once_the_port_is_free(make_cluster):
    live = make_cluster()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        endpoint = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        change_settings(live, endpoints={"chain": EndpointSettings(control=endpoint)})
        live.root = live.launch()
        shown = live.wait_child("chain", lambda child: child.last_exit != "").last_exit
    assert endpoint in shown
    assert "[endpoints]" in shown
    live.check_serves()


def test_a_run_directory_too_long_for_a_socket_is_refused_with_the_setting_to_change(make_cluster):
    live = make_cluster()
    text = (live.cluster.path / "cluster.toml").read_text()
    long = live.folder / ("r" * 100)
    lines = [line for line in text.splitlines() if not line.startswith("run_dir")]
    at = next(number for number, line in enumerate(lines) if line.startswith("operator_key")) + 1
    (live.cluster.path / "cluster.toml").write_text("\n".join([*lines[:at], f'run_dir = "{long}"', *lines[at:], ""]))
    words = refused(live)
    assert "107" in words
    assert "run_dir" in words


def test_a_missing_key_of_the_root_is_refused_by_name(make_cluster):
    live = make_cluster()
    live.cluster.key_file("root").unlink()
    assert "root.key does not exist" in refused(live)


def test_a_missing_key_of_a_child_is_shown_and_its_siblings_run(make_cluster):
    live = make_cluster()
    live.cluster.key_file("shed").unlink()
    live.root = live.launch()
    assert "shed.key does not exist" in live.wait_child("shed", lambda child: child.last_exit != "").last_exit
    for name in ("chain", "gate", "controller"):
        live.wait_child(name, lambda child: child.state == "running")


def test_the_state_of_another_cluster_is_refused_and_not_touched(make_cluster):
    live, other = make_cluster(), make_cluster(name="other")
    foreign = live.cluster.state_dir("root")
    shutil.rmtree(foreign, ignore_errors=True)
    mark = {"cluster_id": other.cluster.cluster_id, "cluster": "other", "process": "root", "public_key": "00" * 32}
    foreign.mkdir(parents=True)
    (foreign / "owner.json").write_text(json.dumps(mark))
    words = refused(live)
    assert "'other'" in words
    assert "move it away" in words
    assert json.loads((foreign / "owner.json").read_text()) == mark


def test_a_child_on_the_state_of_another_cluster_shows_why_it_does_not_run(make_cluster):
    live, other = make_cluster(), make_cluster(name="other")
    other.up()
    assert other.end() == 0
    foreign = live.cluster.state_dir("chain")
    shutil.rmtree(foreign, ignore_errors=True)
    shutil.copytree(other.cluster.state_dir("chain"), foreign)
    live.root = live.launch()
    assert "of cluster 'other'" in live.wait_child("chain", lambda child: child.last_exit != "").last_exit


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["shed"], 64, "usage:"),
        (["shed", "--cluster", "{cluster}", "--life", "x"], 64, "usage:"),
        (["ghost", "--cluster", "{cluster}", "--life", "1"], 78, "has no 'ghost'"),
        (["shed", "--cluster", "{folder}", "--life", "1"], 78, "there is no cluster in"),
    ],
)
def test_a_process_started_wrongly_says_so(shared, arguments, code, words):
    places = {"cluster": str(shared.cluster.path), "folder": str(shared.folder)}
    command = [sys.executable, "-m", "runtime.process", *(one.format(**places) for one in arguments)]
    cwd = Path(__file__).parents[3]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=20, cwd=cwd, check=False)
    assert ended.returncode == code
    assert words in ended.stderr
    assert "Traceback" not in ended.stderr
