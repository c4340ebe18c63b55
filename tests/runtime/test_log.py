"""Logs of a process: JSON lines, one writer, rotated by it."""

from __future__ import annotations

import json
from pathlib import Path
from threading import Thread

import pytest
from loguru import logger

from runtime import log as log_module
from runtime.cluster.keys import SecretSeed
from runtime.log import KEPT_FILES, open_log


@pytest.fixture(autouse=True)
def closed():
    yield
    logger.remove()


def lines(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for file in sorted(folder.iterdir()) for line in file.read_text().splitlines()]


HOSTILE = [
    "<red>peer</red> <level>{level}</level> </>", "{0} {name} {{ {extra[line]} }", "%s %d %(x)s", "two\nlines\r\nthree",
    "\x1b[31mred\x1b[0m\x07\x00\x7f", "\u2028\u2029\x85 line ends that are none", '"quoted" \\',
    "lone \udcff surrogate", "é ü 好", "",
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_the_text_of_a_peer_is_one_record_on_one_line(tmp_path, text):
    log = open_log("shed", tmp_path / "logs" / "shed.jsonl")
    log("info", "shed/agent", text, {"n": 1, "path": Path("/x"), "peer": text, text or "empty": 1})
    log("debug", "shed/agent", "not told", {})
    (line,) = lines(tmp_path / "logs")
    assert line.pop("time")
    assert line == {
        "level": "info", "process": "shed", "source": "shed/agent", "text": text,
        "n": 1, "path": "/x", "peer": text, text or "empty": 1,
    }  # fmt: skip
    assert (tmp_path / "logs" / "shed.jsonl").read_bytes().isascii(), "nothing that a terminal obeys"


@pytest.mark.parametrize("value", [object(), {1: 2}, {"x", "y"}, b"\xff", float("nan"), 2**70], ids=repr)
def test_whatever_a_field_is_the_record_is_written(tmp_path, value):
    open_log("shed", tmp_path / "shed.jsonl")("warning", "shed/agent", "odd", {"value": value, "exception": value})
    (line,) = lines(tmp_path)
    assert {"value", "exception"} <= set(line)


@pytest.mark.parametrize("field", ["time", "level", "process", "source", "text"])
def test_a_field_takes_no_place_of_the_record_itself(tmp_path, field):
    open_log("shed", tmp_path / "shed.jsonl")("info", "shed/agent", "said", {field: "forged"})
    (line,) = lines(tmp_path)
    assert line[field] != "forged"


def test_an_exception_is_told_without_the_values_of_its_variables(tmp_path):
    seed, token = SecretSeed.generate(), "-".join(("hunter", "2"))

    def fail(token: str, key: SecretSeed) -> None:
        assert token
        raise ValueError(f"no good: {key}") from KeyError("cause")

    with pytest.raises(ValueError, match="no good") as failed:
        fail(token, seed)
    open_log("shed", tmp_path / "shed.jsonl")(
        "error", "shed/agent", "crashed", {"exception": failed.value, "key": seed}
    )
    (line,) = lines(tmp_path)
    assert "ValueError: no good" in line["exception"]
    assert "KeyError" in line["exception"]
    for secret in (token, seed.reveal().hex(), repr(seed.reveal())):
        assert secret not in json.dumps(line)


def test_records_of_many_threads_are_whole_lines(tmp_path):
    log = open_log("shed", tmp_path / "shed.jsonl")
    each, writers = 100, 6
    threads = [
        Thread(target=lambda n=n: [log("info", f"shed/w{n}", "x" * 5000, {"turn": turn}) for turn in range(each)])
        for n in range(writers)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    expected = sorted((f"shed/w{n}", turn) for n in range(writers) for turn in range(each))
    assert sorted((line["source"], line["turn"]) for line in lines(tmp_path)) == expected


def test_without_a_file_it_goes_to_standard_error(capsys):
    open_log("shed", None)("info", "shed/agent", "<b>said\n", {})
    assert json.loads(capsys.readouterr().err)["text"] == "<b>said\n"


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
