"""The sample workloads that send and take objects: what they put on an edge, what they notice, how they end."""

from __future__ import annotations

import importlib.util
import json
import math
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.packages.cog import check_arguments, parse_cog
from tests.runtime.workload.conftest import EdgesEnd

PACKAGES = Path(__file__).resolve().parents[2] / "scenarios" / "packages"
DEADLINE_S = 20
HEADER = struct.Struct("<QIIII")


def program(name: str) -> ModuleType:
    """The script of a package as a module."""
    spec = importlib.util.spec_from_file_location(f"sample_{name}", PACKAGES / name / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


SOURCE, TRANSFORM, SINK, TREND, HOSTWATCH = map(program, ("source", "transform", "sink", "trend", "hostwatch"))


class Workload:
    """A sample in a process of its own, and the edges process that it speaks to."""

    def __init__(self, stack: ExitStack, name: str, *arguments: str, data: Path | None = None) -> None:
        self.edges = EdgesEnd()
        stack.callback(self.edges.close)
        folder = PACKAGES / name
        limit_kib = parse_cog((folder / "cog.toml").read_bytes()).limits.ram_mb * 1024
        shim = self.edges.theirs.fileno()
        environment = {"SENNIT_SHIM_FD": str(shim)} | ({} if data is None else {"SENNIT_DATA_DIR": str(data)})
        script = f'ulimit -v {limit_kib}; exec "$0" "$@"'
        self.process = subprocess.Popen(
            ["/bin/sh", "-c", script, sys.executable, str(folder / f"{name}.py"), *arguments],
            env=environment, pass_fds=[shim], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        stack.callback(self._end)
        self.edges.open_channel()

    def input(self, **options: Any) -> Any:
        return self.edges.install("in", "ingress", **{"capacity": 65_536, **options})

    def output(self, **options: Any) -> Any:
        return self.edges.install("out", "egress", **{"capacity": 65_536, **options})

    def end_input(self, ring: Any) -> None:
        self.edges.end(ring)

    def line(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.endswith("\n"), self.process.communicate(timeout=DEADLINE_S)
        value: dict[str, Any] = json.loads(line)
        return value

    def last_line(self, code: int) -> dict[str, Any]:
        """What it printed last, once it has ended with `code`."""
        out, err = self.process.communicate(timeout=DEADLINE_S)
        assert self.process.returncode == code, (out, err)
        value: dict[str, Any] = json.loads(out.splitlines()[-1])
        return value

    def _end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate(timeout=DEADLINE_S)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def made(sequence: int, size: int = 64, steps: tuple[str, ...] = (), breaks: int = 0) -> bytes:
    """An object as a source makes it and transforms change it."""
    payload = bytearray(size)
    SOURCE.Objects(size).fill(memoryview(payload), sequence)
    number, origin, checksum, taken, _ = HEADER.unpack_from(payload)
    body = bytes(payload[HEADER.size :])
    for step in steps:
        code, table = TRANSFORM.STEPS[step]
        body, taken = body.translate(table), taken << 8 | code
        checksum = SINK.zlib.crc32(body, sequence)
    return HEADER.pack(number, origin, checksum, taken, breaks) + body


# source


def test_a_source_sends_numbered_objects_then_closes_its_port_and_ends(stack) -> None:
    source = Workload(stack, "source", "--once", "--count", "40", "--size", "64")
    ring = source.output(capacity=1024, max_extent=64, alignment=2)
    records = ring.pull_some(40)
    assert [record.header.object_id for record in records] == list(range(40))
    assert [record.payload for record in records] == [made(sequence) for sequence in range(40)]
    assert source.edges.hear() == {"did": "closed", "ring": ring.number}
    assert source.last_line(0) == {"sent": 40, "next": 40, "bytes": 2560, "done": True}


def test_a_source_that_is_killed_goes_on_behind_what_it_may_have_sent(stack, tmp_path) -> None:
    first = Workload(stack, "source", "--once", "--count", "500", "--size", "64", data=tmp_path)
    sent = first.output(capacity=1024).pull_some(70)
    first.process.kill()
    first.process.wait(DEADLINE_S)
    again = Workload(stack, "source", "--once", "--count", "500", "--size", "64", data=tmp_path)
    rest = again.output().pull_some(300)
    last = max(record.header.object_id for record in sent)
    assert last < rest[0].header.object_id <= last + 2 * SOURCE.RESERVED
    assert again.last_line(0)["next"] == 500


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("connected", [True, False])
def test_a_source_ends_when_asked_though_nobody_takes_anything(stack, number, connected) -> None:
    source = Workload(stack, "source", "--once", "--count", "1000000", "--size", "4096")
    ring = source.output() if connected else None
    if ring is not None:
        deadline = time.monotonic() + DEADLINE_S
        while ring.side.readable() < 60_000:
            assert time.monotonic() < deadline
    source.process.send_signal(number)
    assert source.process.wait(DEADLINE_S) == 0 if connected else source.process.wait(DEADLINE_S) in (0, -number)


def test_a_source_keeps_to_its_rate(stack) -> None:
    source = Workload(stack, "source", "--once", "--count", "11", "--size", "64", "--rate", "50")
    began = time.monotonic()
    source.output().pull_some(11)
    assert time.monotonic() - began > 0.15
    assert source.last_line(0)["sent"] == 11


@pytest.mark.parametrize(
    "arguments",
    [(), ("--once", "--count", "0"), ("--once", "--size", "24"), ("--once", "--size", "65"), ("--once", "--rate", "0")],
)
def test_a_source_refuses_what_it_cannot_send(stack, arguments) -> None:
    assert Workload(stack, "source", *arguments).process.wait(DEADLINE_S) == 2


# transform


@pytest.mark.parametrize("step", ["invert", "scale"])
def test_a_transform_changes_and_marks_every_object_and_ends_with_its_input(stack, step) -> None:
    transform = Workload(stack, "transform", "--once", "--step", step)
    taken, sent = transform.input(), transform.output()
    taken.push(*(made(sequence) for sequence in range(20)))
    records = sent.pull_some(20)
    assert [record.payload for record in records] == [made(sequence, steps=(step,)) for sequence in range(20)]
    transform.end_input(taken)
    told = [transform.edges.hear() for _ in range(2)]
    assert {"did": "closed", "ring": sent.number} in told
    assert transform.last_line(0) == {"objects": 20, "breaks": 0, "done": True}


def test_a_transform_tells_those_behind_it_that_an_edge_had_a_new_life(stack) -> None:
    transform = Workload(stack, "transform", "--once", "--step", "invert")
    first, sent = transform.input(), transform.output()
    first.push(made(0), made(1))
    assert len(sent.pull_some(2)) == 2
    transform.edges.uninstall(first)
    assert transform.edges.hear() == {"did": "quiesced", "ring": first.number}
    second = transform.input(generation=8)
    second.push(made(5, breaks=3))
    (record,) = sent.pull_some(1)
    assert HEADER.unpack_from(record.payload)[-1] == 4


@pytest.mark.parametrize(
    "payload", [b"short", made(0)[:-1] + b"\0", HEADER.pack(0, 0, 0, 1 << 24, 0)], ids=["short", "changed", "full"]
)
def test_a_transform_ends_with_1_at_a_damaged_object_and_leaves_its_output_open(stack, payload) -> None:
    transform = Workload(stack, "transform", "--once", "--step", "invert")
    taken, sent = transform.input(), transform.output()
    taken.push(payload)
    _, err = transform.process.communicate(timeout=DEADLINE_S)
    assert transform.process.returncode == 1
    assert "Damaged: object 0" in err or "Damaged: object 1" in err
    assert sent.pull() == []
    assert transform.edges.channel.recv(4096) == b"", "it told that its stream is complete"


@pytest.mark.parametrize("arguments", [(), ("--once",), ("--once", "--step", "melt"), ("--step", "invert")])
def test_a_transform_refuses_other_steps(stack, arguments) -> None:
    assert Workload(stack, "transform", *arguments).process.wait(DEADLINE_S) == 2


# sink


def test_four_stages_deliver_every_object_once_and_in_order(stack) -> None:
    count = 200
    source = Workload(stack, "source", "--once", "--count", str(count), "--size", "1024")
    invert = Workload(stack, "transform", "--once", "--step", "invert")
    scale = Workload(stack, "transform", "--once", "--step", "scale")
    sink = Workload(stack, "sink", "--once", "--count", str(count), "--steps", "invert+scale")
    whole = {"capacity": 2 * count * 1024}  # holds all objects, so that what is pushed never waits
    last = sink.input(**whole)
    hops = [(source.output(), invert.input(**whole)), (invert.output(), scale.input(**whole)), (scale.output(), last)]
    moved = [0, 0, 0]
    deadline = time.monotonic() + DEADLINE_S
    while moved[-1] < count:
        assert time.monotonic() < deadline, moved
        for number, (out, into) in enumerate(hops):
            records = out.pull()
            into.push(*(record.payload for record in records))
            moved[number] += len(records)
    sink.end_input(last)
    told = sink.last_line(0)
    assert told == {
        "objects": count, "bytes": count * 1024, "next": count, "lost": 0, "breaks": 0, "wrong": [], "ended": True,
        "verdict": "good",
    }  # fmt: skip


def test_a_sink_that_is_started_again_notices_what_comes_twice(stack, tmp_path) -> None:
    first = Workload(stack, "sink", "--once", data=tmp_path)
    first.input().push(*map(made, range(5)))
    while first.line()["next"] < 5:
        pass
    first.process.kill()
    again = Workload(stack, "sink", "--once", "--count", "9", data=tmp_path)
    ring = again.input()
    ring.push(made(7), made(4))
    again.end_input(ring)
    told = again.last_line(1)
    assert (told["objects"], told["lost"], told["breaks"]) == (6, 3, 1)
    assert told["wrong"] == ["object 4 came twice or late: 8 was to come"]


def test_a_sink_gives_its_verdict_when_asked_to_end(stack) -> None:
    sink = Workload(stack, "sink", "--once", "--count", "100")
    sink.input().push(*map(made, range(3)))
    while sink.line()["objects"] < 3:
        pass
    sink.process.terminate()
    told = sink.last_line(0)
    assert (told["ended"], told["verdict"], told["lost"]) == (False, "good", 0)


@pytest.mark.parametrize("arguments", [(), ("--once", "--steps", "melt"), ("--once", "--count", "x")])
def test_a_sink_refuses_what_it_cannot_check(stack, arguments) -> None:
    assert Workload(stack, "sink", *arguments).process.wait(DEADLINE_S) == 2


def ledger_of(*arrivals: tuple[bytes, bool], count: int | None = None, steps: int | None = None) -> Any:
    ledger = SINK.Ledger()
    for payload, new_life in arrivals:
        ledger.take(memoryview(payload), new_life=new_life, steps=steps)
    ledger.end(count)
    return ledger


@pytest.mark.parametrize(
    ("arrivals", "count", "told"),
    [
        ([(made(0), True), (made(0), False)], None, "object 0 came twice or late: 1 was to come"),
        ([(made(0), True), (made(2), False), (made(1), False)], None, "objects 1 to 1 are missing"),
        ([(made(1), True)], None, "objects 0 to 0 are missing"),
        ([(made(0), True), (made(1), False)], 3, "objects 2 to 2 are missing"),
        ([(made(0), True), (made(1), False)], 1, "1 objects more than the 1"),
        ([(made(0)[:-1] + b"\0", True)], None, "object 0 is damaged"),
        ([(made(0, steps=("invert",)), True)], None, "went through the steps 0x1, not 0x0"),
        ([(made(0)[:24] + made(1)[24:], True)], None, "object 0 is damaged"),
        ([(b"short", True)], None, "5 bytes after 0 others has no header"),
        ([(made(0), True), (made(1), True), (made(1), False)], None, "object 1 came twice"),
    ],
)
def test_a_sink_names_what_is_wrong(arrivals, count, told) -> None:
    assert told in ledger_of(*arrivals, count=count, steps=0).wrong[0]


def test_a_sink_tells_an_object_that_a_transform_spoiled_from_a_damaged_one() -> None:
    number, origin, _, steps, _ = HEADER.unpack_from(made(3))
    body = bytes(40)
    spoiled = HEADER.pack(number, origin, SINK.zlib.crc32(body, 3), steps, 0) + body
    assert "is not what its source sent" in SINK.damage(memoryview(spoiled), None)
    unknown = HEADER.pack(number, origin, SINK.zlib.crc32(body, 3), 9, 0) + body
    assert "unknown step 9" in SINK.damage(memoryview(unknown), None)


deliveries = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(["same life", "own new life", "earlier new life"])),
    min_size=1, max_size=12,
)  # fmt: skip


@settings(max_examples=60)
@given(deliveries, st.integers(0, 3))
def test_objects_may_be_missing_only_where_an_edge_had_a_new_life(steps, tail) -> None:
    arrivals, sequence, breaks, lives = [], 0, 0, 0
    allowed, lost = True, 0
    for position, (missing, kind) in enumerate(steps):
        own = kind == "own new life" or position == 0
        breaks += kind == "earlier new life"
        lives += (own and position > 0) or kind == "earlier new life"
        fresh = (own and position > 0) or kind == "earlier new life"
        allowed &= not missing or fresh
        lost += missing
        sequence += missing
        arrivals.append((made(sequence, breaks=breaks), own))
        sequence += 1
    ledger = ledger_of(*arrivals, count=sequence + tail)
    assert bool(ledger.wrong) == (not allowed or bool(tail and not lives))
    assert (ledger.objects, ledger.lost) == (len(steps), lost + tail)
    again = ledger_of(*arrivals, arrivals[-1])
    assert any("came twice" in what for what in again.wrong) or len(again.wrong) == SINK.WORDS


# hostwatch and trend


def decoded(payload: bytes) -> dict[str, float]:
    values = struct.unpack("<8e", payload)
    return {name: value for (name, _, _), value in zip(HOSTWATCH.VECTOR, values, strict=True)}


def test_hostwatch_offers_what_it_prints_as_half_floats(stack) -> None:
    hostwatch = Workload(stack, "hostwatch", "--interval", "1")
    ring = hostwatch.output(alignment=2)
    (record,) = ring.pull_some(1)
    lines = [hostwatch.line()]
    while lines[-1]["sample"] < record.header.object_id:
        lines.append(hostwatch.line())
    line, values = lines[-1], decoded(record.payload)
    for name, field, factor in HOSTWATCH.VECTOR:
        assert math.isclose(values[name], line[field] * factor, rel_tol=1e-3, abs_tol=1e-3), name
    assert values["memory_total_gib"] >= values["memory_available_gib"] > 0
    hostwatch.process.terminate()
    assert hostwatch.edges.hear() == {"did": "closed", "ring": ring.number}
    assert hostwatch.process.wait(DEADLINE_S) == 0


def test_hostwatch_prints_on_while_nobody_takes_its_samples(stack) -> None:
    hostwatch = Workload(stack, "hostwatch", "--interval", "1")
    ring = hostwatch.output(capacity=64)  # one object fills it
    assert [hostwatch.line()["sample"] for _ in range(3)] == [1, 2, 3]
    assert len(ring.pull()) == 1


def test_hostwatch_says_that_an_edge_is_too_narrow_and_prints_on(stack) -> None:
    hostwatch = Workload(stack, "hostwatch", "--interval", "1")
    hostwatch.output(max_extent=8)
    assert [hostwatch.line()["sample"] for _ in range(2)] == [1, 2]
    hostwatch.process.terminate()
    _, err = hostwatch.process.communicate(timeout=DEADLINE_S)
    assert "was not offered" in err
    assert hostwatch.process.returncode == 0


@given(st.floats(0, 1e12), st.integers(0, 10**9))
def test_any_sample_fits_half_floats(value, sample) -> None:
    line = {field: value for _, field, _ in HOSTWATCH.VECTOR} | {"sample": sample}
    assert all(map(math.isfinite, decoded(HOSTWATCH.vector(line)).values()))


def sample(**fields: float) -> bytes:
    values = [fields.get(name, 1.0) for name in TREND.FIELDS]
    return struct.pack("<8e", *values, 0.0)


def reported(capsys: pytest.CaptureFixture[str], trend: Any) -> dict[str, Any]:
    capsys.readouterr()
    trend.report()
    value: dict[str, Any] = json.loads(capsys.readouterr().out)
    return value


def test_trend_and_hostwatch_mean_the_same_fields() -> None:
    assert [name for name, _, _ in HOSTWATCH.VECTOR][: len(TREND.FIELDS)] == list(TREND.FIELDS)


def test_trend_tells_mean_and_spread_of_its_window(capsys) -> None:
    trend = TREND.Trend(4)
    for number, load in enumerate((9.0, 1.0, 2.0, 3.0, 4.0), start=1):
        trend.take(memoryview(sample(load_1m=load)), number, 7)
    told = reported(capsys, trend)
    assert (told["samples"], told["total"], told["newest"]) == (4, 5, 5)
    assert told["load_1m"] == {"mean": 2.5, "spread": 1.118, "outliers": []}


def test_trend_names_outliers_once_and_never_what_a_half_float_cannot_tell_apart(capsys) -> None:
    trend = TREND.Trend(60)
    for number in range(20):
        trend.take(memoryview(sample(cpu_busy=0.5 + 0.01 * (number % 2), processors=2.0)), number, 7)
    trend.take(memoryview(sample(cpu_busy=0.9, processors=2.001)), 20, 7)
    told = reported(capsys, trend)
    assert told["cpu_busy"]["outliers"] == [{"sample": 20, "value": 0.8999}]
    assert told["processors"]["outliers"] == []
    assert reported(capsys, trend)["cpu_busy"]["outliers"] == []


def test_trend_counts_what_is_no_sample_and_forgets_when_another_hostwatch_speaks(capsys) -> None:
    trend = TREND.Trend(60)
    trend.take(memoryview(b"x" * 17), 1, 7)
    trend.take(memoryview(sample(load_1m=math.nan)), 2, 7)
    for number in (10, 11):
        trend.take(memoryview(sample()), number, 7)
    trend.take(memoryview(sample()), 12, 8)  # a new life of the same
    assert reported(capsys, trend)["samples"] == 3
    trend.take(memoryview(sample()), 1, 9)
    told = reported(capsys, trend)
    assert (told["samples"], told["total"], told["odd"]) == (1, 4, 2)


def test_trend_reports_when_its_input_ends(stack) -> None:
    trend = Workload(stack, "trend", "--once", "--window", "10")
    ring = trend.input(capacity=1024)
    ring.push(*(sample(load_1m=float(number)) for number in range(30)))
    trend.end_input(ring)
    told = trend.last_line(0)
    assert (told["samples"], told["total"], told["newest"], told["ended"]) == (10, 30, 30, True)
    assert told["load_1m"]["mean"] == 24.5


def test_trend_reports_at_intervals_and_ends_when_asked(stack) -> None:
    trend = Workload(stack, "trend", "--interval", "1")
    trend.input().push(sample(), sample())
    assert trend.line()["total"] == 2
    trend.process.terminate()
    assert trend.last_line(0)["ended"] is True


@pytest.mark.parametrize(
    "arguments", [(), ("--interval", "0"), ("--once", "--window", "1"), ("--once", "--interval", "1")]
)
def test_trend_refuses_other_modes(stack, arguments) -> None:
    assert Workload(stack, "trend", *arguments).process.wait(DEADLINE_S) == 2


# all of them


@pytest.mark.parametrize("name", ["source", "transform", "sink", "trend"])
def test_without_a_node_it_says_so(name) -> None:
    arguments = ["--once", *(["--step", "invert"] if name == "transform" else [])]
    ended = subprocess.run(
        [sys.executable, str(PACKAGES / name / f"{name}.py"), *arguments],
        env={}, capture_output=True, text=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    assert ended.returncode == 1
    assert "SENNIT_SHIM_FD" in ended.stderr


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("source", ["--count", "10", "--size", "4096", "--rate", "5"]),
        ("transform", ["--step", "invert"]),
        ("sink", ["--count", "10", "--steps", "invert+scale"]),
        ("trend", ["--window", "10"]),
    ],
)
def test_its_arguments_may_be_given_when_it_is_placed(name, arguments) -> None:
    check_arguments(parse_cog((PACKAGES / name / "cog.toml").read_bytes()).limits, arguments)
