"""Logs of a process: JSON lines, one writer, rotated by it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from loguru import logger

from runtime import log as log_module
from runtime.log import KEPT_FILES, open_log


@pytest.fixture(autouse=True)
def closed():
    yield
    logger.remove()


def lines(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for file in sorted(folder.iterdir()) for line in file.read_text().splitlines()]


def test_every_line_is_one_json_object_whatever_is_said(tmp_path):
    log = open_log("shed", tmp_path / "logs" / "shed.jsonl")
    log("info", "shed/agent", 'two\nlines, {braces} and "quotes"', {"n": 1, "path": Path("/x"), "text": "{0}"})
    log("debug", "shed/agent", "not told", {})
    (line,) = lines(tmp_path / "logs")
    assert line.pop("time")
    assert line == {
        "level": "info", "process": "shed", "source": "shed/agent", "text": 'two\nlines, {braces} and "quotes"',
        "n": 1, "path": "/x", "text": "{0}",
    }  # fmt: skip


def test_an_exception_is_told_without_the_values_of_its_variables(tmp_path):
    log = open_log("shed", tmp_path / "shed.jsonl")
    try:
        secret = "5ec2e7"
        raise RuntimeError("no key" + secret[:0])
    except RuntimeError as error:
        log("error", "shed/agent", "crashed", {"exception": error})
    (line,) = lines(tmp_path)
    assert "RuntimeError: no key" in line["exception"]
    assert "5ec2e7'" not in json.dumps(line).replace('secret = \\"5ec2e7\\"', "")


def test_a_full_file_is_set_aside_and_the_oldest_go(tmp_path, monkeypatch):
    monkeypatch.setattr(log_module, "ROTATE_BYTES", 2_000)
    log = open_log("shed", tmp_path / "shed.jsonl")
    for number in range(300):
        log("info", "shed/agent", "x" * 100, {"number": number})
    files = list(tmp_path.iterdir())
    assert len(files) == KEPT_FILES + 1, "the one that is written, and those kept"
    assert all(file.stat().st_size <= 2_000 for file in files)
    numbers = sorted(line["number"] for line in lines(tmp_path))
    assert numbers == list(range(300 - len(numbers), 300)), "the newest lines, without a gap"
    assert (tmp_path / "shed.jsonl").exists()
