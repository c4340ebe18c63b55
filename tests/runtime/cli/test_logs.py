"""Logs are JSON in files and lines on a terminal; what a peer wrote into one steers nothing."""

from __future__ import annotations

import json

import pytest

from runtime.cli.logs import _File, line_of
from runtime.cluster import load_cluster


def write(path, *entries, end="\n"):
    path.parent.mkdir(exist_ok=True)
    with path.open("a") as file:
        file.write("\n".join(json.dumps(entry) for entry in entries) + end)


def entry(second, process="root", level="info", text="hello", **fields):
    time = f"2026-01-02T03:04:{second:02}.500+00:00"
    return {"time": time, "level": level, "process": process, "source": f"{process}/supervisor", "text": text, **fields}


@pytest.fixture
def logged(reef):
    cluster = load_cluster(reef)
    write(cluster.log_file("root"), entry(1), entry(3, level="warning", text="child ended", child="shed", life=1))
    write(cluster.log_file("shed"), entry(2, "shed", text="ready"))
    return cluster


def test_lines_of_several_processes_come_in_order_of_time(sennit, logged):
    ended = sennit("logs", "--cluster", logged.path)
    assert ended.code == 0
    assert ended.out.splitlines() == [
        "03:04:01.500  info     root/supervisor           hello",
        "03:04:02.500  info     shed/supervisor           ready",
        "03:04:03.500  warning  root/supervisor           child ended  child=shed life=1",
    ]


@pytest.mark.parametrize(
    ("arguments", "texts"),
    [(["shed"], ["ready"]), (["--level", "warning"], ["child ended"]), (["-n", "2"], ["ready", "child ended"])],
)
def test_a_selection_as_one_document(sennit, logged, arguments, texts):
    ended = sennit("logs", *arguments, "--cluster", logged.path, "--json")
    assert [one["text"] for one in ended.document] == texts


@pytest.mark.parametrize("arguments", [["--level", "loud"], ["--follow", "--json"], ["nobody"]])
def test_a_mistake_is_named(sennit, logged, arguments):
    ended = sennit("logs", *arguments, "--cluster", logged.path)
    assert ended.code in (6, 64)
    assert ended.err or ended.document["error"]


def test_what_a_log_holds_cannot_steer_the_terminal_or_pretend_to_be_another_line():
    line = line_of(entry(1, text="a\nb\x1b[2J", who="c\rd", exception="Traceback\n  ValueError: x\x1b[0m"))
    assert line.splitlines() == [
        "03:04:01.500  info     root/supervisor           a\\x0ab\\x1b[2J  who=c\\x0dd",
        "    Traceback",
        "      ValueError: x\\x1b[0m",
    ]


def test_reading_goes_on_where_it_ended_across_half_lines_and_rotation(tmp_path):
    path = tmp_path / "a.jsonl"
    file = _File(path)
    assert list(file.new()) == []
    write(path, {"text": "one"})
    write(path, {"text": "two"}, end="")
    assert [one["text"] for one in file.new()] == ["one"]
    write(path, end="\n")
    assert [one["text"] for one in file.new()] == ["two"]
    path.rename(tmp_path / "a.1.jsonl")
    write(path, {"text": "three"})
    path.write_text(path.read_text() + "no json\n")
    assert [one["text"] for one in file.new()] == ["three", "no json"]
