"""What docs/edges.md shows is what the code does."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import runtime
from actors.edges.records import CODES, pack_header
from messages.edge_end import EdgeFaultCode
from runtime.edges.ring import CURSOR_BEYOND_CAPACITY, RING_HEADER_CHANGED
from runtime.workload import BEGIN_SEQUENCE, END_OF_SEQUENCE
from runtime.workload.channel import HELLO, PACKET_BYTES, WORKER_REFUSED, Packet
from runtime.workload.ports import MAX_RINGS, SHIM_FD

TEXT = (Path(runtime.__file__).parent.parent / "docs/edges.md").read_text()
DUMPS = [
    bytes.fromhex(re.sub(r"  .*", "", block, flags=re.MULTILINE).replace("\n", " "))
    for block in re.findall(r"```\n((?:[0-9a-f]{2} )[^`]*)```", TEXT)
]


def test_the_example_s_bytes_are_what_a_ring_gets(edges, ports):
    port = ports.output("out")
    ring = edges.install("out", "egress", capacity=96, generation=5, max_extent=8)
    assert bytes(ring.header) == DUMPS[0] + bytes(88)
    port.send(b"hello", flags=BEGIN_SEQUENCE)
    assert bytes(ring.data[:45]) == DUMPS[1] == pack_header(1, 0, 5, BEGIN_SEQUENCE) + b"hello"
    assert ring.side.readable() == 45
    port.send(b"world!")
    assert not port.offer(b"sennit", flags=END_OF_SEQUENCE)
    ring.side.consume(45)
    assert port.offer(b"sennit", flags=END_OF_SEQUENCE)
    assert bytes(ring.data) == DUMPS[2]
    assert os.eventfd_read(ring.data_fd) == 46 + 46


def test_the_packets_shown_are_taken():
    orders = [json.loads(line) for line in TEXT.splitlines() if line.startswith('{"do"')]
    assert [Packet(order, []).do for order in orders] == ["install", "uninstall", "end"]


def test_every_code_a_workload_may_tell_is_in_it_and_known_to_the_node():
    for code in (*CODES, RING_HEADER_CHANGED, CURSOR_BEYOND_CAPACITY, WORKER_REFUSED):
        assert EdgeFaultCode(code)
        assert f"`{code}`" in TEXT or f'"{code}"' in TEXT


def test_limits_and_names_are_those_of_the_code():
    assert f"`{SHIM_FD}`" in TEXT
    assert f"`{HELLO.decode()}`" in TEXT
    assert f"at most {PACKET_BYTES} bytes" in TEXT
    assert f"at most {MAX_RINGS}" in TEXT
