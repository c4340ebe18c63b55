"""docs/edges.md is enough to write a workload in another language: a C program reads edges."""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path

import pytest

from actors.edges.records import HEADER, pack_header
from messages.edge_end import EdgeFaultCode

WAIT_S = 20
SOURCE = Path(__file__).with_name("reader.c")
COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")

pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no C compiler here")


@pytest.fixture(scope="session")
def program(tmp_path_factory):
    program = tmp_path_factory.mktemp("reader") / "reader"
    subprocess.run(
        [COMPILER, "-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-o", program, SOURCE], check=True, timeout=60
    )
    return program


@pytest.fixture
def reader(program, edges):
    process = subprocess.Popen(
        [program],
        pass_fds=[edges.theirs.fileno()],
        env={"SENNIT_SHIM_FD": str(edges.theirs.fileno())},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    edges.open_channel()
    yield process
    process.kill()
    process.communicate()


def fnv1a(data):
    value = 14695981039346656037
    for byte in data:
        value = (value ^ byte) * 1099511628211 % 2**64
    return value


def line(payloads):
    whole = b"".join(payloads)
    return f"objects={len(payloads)} bytes={len(whole)} checksum={fnv1a(whole):016x} last={len(payloads)}\n"


def test_it_reads_every_object_of_an_edge_and_of_its_next_life(edges, reader):
    chance = random.Random(5)
    for capacity, data in ((97, 128), (4099, 4096)):
        payloads = [chance.randbytes(chance.randrange(capacity - 39)) for _ in range(200)]
        ring = edges.install("in", "ingress", capacity=capacity, data=data)
        ring.push(*payloads)
        edges.end(ring)
        assert edges.hear() == {"did": "closed", "ring": ring.number}
        edges.uninstall(ring)
        assert edges.hear() == {"did": "quiesced", "ring": ring.number}
        assert reader.stdout.readline() == line(payloads)
        assert ring.side.free() == capacity
    edges.close_channel()
    assert reader.communicate(timeout=WAIT_S) == ("", "")
    assert reader.returncode == 0


def test_a_ring_installed_twice_is_answered_twice_and_one_of_another_kind_refused(edges, reader):
    ring = edges.install("in", "ingress")
    edges.order(ring, "in")
    assert edges.hear() == {"did": "installed", "ring": ring.number}
    edges.order(edges.lay_out("ingress"), "more")
    assert edges.hear()["did"] == "refused"
    edges.tell({"do": "uninstall", "ring": 99, "reason": ""})
    assert edges.hear() == {"did": "quiesced", "ring": 99}


BAD = {
    "unsupported_magic": HEADER.pack(b"MO02", 1, 40, 1, 0, 4, 0, 0),
    "malformed_header": HEADER.pack(b"MO01", 1, 40, 1, 0, 4, 4, 0),
    "extent_exceeds_max": HEADER.pack(b"MO01", 1, 40, 1, 0, 5000, 0, 0),
    "sequence_violation": HEADER.pack(b"MO01", 1, 40, 1, 1, 4, 0, 0),
}


@pytest.mark.parametrize("code", BAD)
def test_it_faults_a_bad_record_and_lets_go_when_told(edges, reader, code):
    ring = edges.install("in", "ingress")
    ring.push_bytes(BAD[code])
    said = edges.hear()
    assert (said["did"], EdgeFaultCode(said["code"])) == ("fault", code)
    edges.uninstall(ring)
    assert edges.hear() == {"did": "quiesced", "ring": ring.number}


def test_it_refuses_a_header_of_another_ring_and_faults_a_stream_cut_short(edges, reader):
    edges.order(edges.lay_out("ingress"), "in", generation=8)
    assert edges.hear()["code"] == "ring_header_changed"
    ring = edges.install("in", "ingress")
    ring.push_bytes(pack_header(1, 0, 10) + bytes(9))
    edges.end(ring)
    assert edges.hear()["code"] == "eof_before_full_payload"


def test_without_a_channel_it_says_so(program):
    done = subprocess.run([program], env={}, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert (done.returncode, done.stderr) == (1, "no channel came through SENNIT_SHIM_FD\n")
