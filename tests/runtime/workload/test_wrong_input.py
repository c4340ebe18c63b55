"""What a hostile or broken peer says: refused by name, or a fault of that edge alone."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import resource
import socket
from struct import pack

import pytest

from actors.edges.records import HEADER, pack_header
from messages.edge_end import EdgeFaultCode
from runtime.workload import PortTimeout
from runtime.workload.ports import MAX_RINGS

WAIT_S = 20


def hear_fault(edges, attempt):
    for _ in range(500):
        if not edges.silent():
            break
        attempt()
    said = edges.hear()
    assert EdgeFaultCode(said["code"])
    return said


def receive_nothing(port):
    with pytest.raises(PortTimeout):
        port.receive(0.01)


BAD_RECORDS = {
    "unsupported_magic": HEADER.pack(b"MO02", 1, 40, 1, 0, 4, 0, 0),
    "unsupported_version": HEADER.pack(b"MO01", 2, 40, 1, 0, 4, 0, 0),
    "malformed_header_length": HEADER.pack(b"MO01", 1, 48, 1, 0, 4, 0, 0),
    "malformed_header": HEADER.pack(b"MO01", 1, 40, 1, 0, 4, 4, 0),
    "extent_exceeds_max": HEADER.pack(b"MO01", 1, 40, 1, 0, 104, 0, 0),
    "extent_alignment_violation": HEADER.pack(b"MO01", 1, 40, 1, 0, 6, 0, 0),
    "sequence_violation": HEADER.pack(b"MO01", 1, 40, 1, 1, 4, 0, 0),
}


@pytest.mark.parametrize("before", [0, 100], ids=["in one piece", "wrapped"])
@pytest.mark.parametrize("code", BAD_RECORDS)
def test_a_bad_record_faults_its_edge_and_no_other(edges, ports, code, before):
    port = ports.input("in")
    bad = edges.install("in", "ingress", capacity=160, max_extent=100, alignment=4)
    good = edges.install("in", "ingress")
    header = BAD_RECORDS[code]
    if before:
        bad.push(bytes(before - 8))
        assert port.receive(WAIT_S).sequence == 0
        receive_nothing(port)
        header = header[:16] + pack("<Q", int.from_bytes(header[16:24], "little") + 1) + header[24:]
    bad.push_bytes(header)
    said = hear_fault(edges, lambda: receive_nothing(port))
    assert (said["did"], said["ring"], said["code"]) == ("fault", bad.number, code)
    assert (port.faults, port.last_fault) == (1, f"{code}: {said['text']}")
    good.push(b"goes on")
    assert port.receive(WAIT_S).payload == b"goes on"
    receive_nothing(port)
    assert edges.silent(), "a fault is told once"
    edges.uninstall(bad)
    assert edges.hear() == {"did": "quiesced", "ring": bad.number}
    edges.install("in", "ingress").push(b"next life")
    assert port.receive(WAIT_S).payload == b"next life"


def test_reserved_bytes_of_a_record_must_be_zero(edges, ports):
    ring = edges.install("in", "ingress")
    ring.push_bytes(HEADER.pack(b"MO01", 1, 40, 1, 0, 4, 0, 1))
    assert hear_fault(edges, lambda: receive_nothing(ports.input("in")))["code"] == "malformed_header"


def test_a_bad_header_is_found_before_its_payload_comes(edges, ports):
    ring = edges.install("in", "ingress", max_extent=100)
    ring.push_bytes(pack_header(1, 0, 101))
    assert hear_fault(edges, lambda: receive_nothing(ports.input("in")))["code"] == "extent_exceeds_max"


def test_records_before_a_bad_one_are_read(edges, ports):
    port = ports.input("in")
    ring = edges.install("in", "ingress")
    ring.push(b"good")
    ring.push_bytes(b"\0" * 40)
    assert port.receive(WAIT_S).payload == b"good"
    assert hear_fault(edges, lambda: receive_nothing(port))["code"] == "unsupported_magic"


@pytest.mark.parametrize("direction", ["ingress", "egress"])
def test_a_cursor_beyond_the_capacity_faults_the_edge(edges, ports, direction):
    ring = edges.install("port", direction, capacity=100)
    if direction == "ingress":
        os.eventfd_write(ring.data_fd, 101)

        def attempt():
            receive_nothing(ports.input("port"))
    else:
        os.eventfd_write(ring.space_fd, 101)

        def attempt():
            while ports.output("port").offer(bytes(20)):
                continue

    said = hear_fault(edges, attempt)
    assert (said["did"], said["ring"], said["code"]) == ("fault", ring.number, "cursor_beyond_capacity")


@pytest.mark.parametrize(("offset", "field"), [(0, "magic"), (4, "version"), (8, "capacity"), (16, "generation")])
@pytest.mark.parametrize("direction", ["ingress", "egress"])
def test_a_ring_header_that_changed_faults_the_edge(edges, ports, direction, offset, field):
    ring = edges.install("port", direction, capacity=100)
    ring.header[offset] ^= 1
    if direction == "ingress":
        ring.push(b"x")

    def attempt():
        if direction == "ingress":
            receive_nothing(ports.input("port"))
        else:
            ports.output("port").offer(bytes(60))

    said = hear_fault(edges, attempt)
    assert (said["did"], said["code"]) == ("fault", "ring_header_changed")
    assert field in said["text"]


def test_the_cursors_of_the_header_are_for_display_and_never_read(edges, ports):
    port, out = ports.input("in"), ports.output("out")
    for direction, name in (("ingress", "in"), ("egress", "out")):
        ring = edges.install(name, direction, capacity=200)
        ring.header[24:40] = b"\xff" * 16
    edges.rings[0].push(b"x", b"y")
    assert [bytes(port.receive(WAIT_S).payload) for _ in range(2)] == [b"x", b"y"]
    with pytest.raises(PortTimeout):
        port.receive(0)
    assert int.from_bytes(edges.rings[0].header[32:40], "little") == 82, "and it writes its own"
    out.send(b"z")
    assert int.from_bytes(edges.rings[1].header[24:32], "little") == 41


def test_a_fault_of_one_output_edge_leaves_the_others(edges, ports):
    port = ports.output("out")
    bad, good = (edges.install("out", "egress", capacity=200) for _ in range(2))
    os.eventfd_write(bad.space_fd, 201)
    for _ in range(4):
        good.pull()
        port.send(bytes(60), timeout_s=WAIT_S)
    assert edges.hear()["code"] == "cursor_beyond_capacity"
    assert port.faults == 1
    assert [record.header.sequence for record in good.pull()][-1] == 3


REFUSED_INSTALLS = {
    "no such direction": {"direction": "sideways"},
    "a name with a slash": {"port": "a/b"},
    "an empty name": {"port": ""},
    "a name that is too long": {"port": "a" * 64},
    "a member missing": {"capacity": None},
    "a member unknown": {"colour": "red"},
    "a number that is text": {"data": "128"},
    "a number that is true": {"edge": True},
    "a negative number": {"header": -8},
    "a fraction": {"edge": 1.5},
    "a number beyond 64 bits": {"max_extent": 2**64},
    "objects larger than the ring": {"max_extent": 4057},
    "header and data overlap": {"data": 100},
    "data beyond the end": {"end": 4000},
    "an end beyond the arena": {"end": 2**63},
    "a header out of alignment": {"header": 4},
    "a start beyond the header": {"offset": 4096},
}


@pytest.mark.parametrize("what", REFUSED_INSTALLS)
def test_an_install_that_cannot_be_is_refused_with_a_reason(edges, ports, what):
    ring = edges.lay_out("ingress")
    before = len(os.listdir("/proc/self/fd"))
    edges.order(ring, **{"port": "in", **REFUSED_INSTALLS[what]})
    said = edges.hear()
    assert (said["did"], said["ring"], said["code"]) == ("refused", ring.number, "worker_refused")
    assert said["text"]
    assert edges.mapped() == 0
    assert len(os.listdir("/proc/self/fd")) == before, "descriptors of a refused install are closed"
    edges.order(ring, "in")
    assert edges.hear() == {"did": "installed", "ring": ring.number}, "the channel goes on"


@pytest.mark.parametrize("change", [{"generation": 8}, {"capacity": 2048}], ids=["generation", "capacity"])
def test_an_install_whose_header_says_otherwise_is_refused(edges, ports, change):
    edges.order(edges.lay_out("ingress"), "in", **{"max_extent": 8, **change})
    said = edges.hear()
    assert (said["did"], said["code"]) == ("refused", "ring_header_changed")
    assert edges.mapped() == 0


def test_an_install_in_the_other_direction_is_refused(edges, ports):
    ports.output("port")
    edges.order(edges.lay_out("ingress"), "port")
    assert "port port is an output already" in edges.hear()["text"]


@pytest.mark.parametrize("what", ["none", "two", "too many", "a pipe first", "an arena that can shrink", "blocking"])
def test_descriptors_that_are_not_a_ring_s_are_refused(edges, ports, what):
    ring = edges.lay_out("ingress")
    pipe = os.pipe()
    loose = os.memfd_create("loose", os.MFD_ALLOW_SEALING)
    os.ftruncate(loose, edges.size)
    blocking = os.eventfd(0)
    fds = {
        "none": [],
        "two": ring.fds[:2],
        "too many": ring.fds * 4,
        "a pipe first": [pipe[0], *ring.fds[1:]],
        "an arena that can shrink": [loose, *ring.fds[1:]],
        "blocking": [ring.arena, blocking, ring.space_fd],
    }[what]
    before = len(os.listdir("/proc/self/fd"))
    edges.order(ring, "in", fds=fds)
    said = edges.hear()
    assert (said["did"], said["code"]) == ("refused", "worker_refused")
    assert len(os.listdir("/proc/self/fd")) == before
    for fd in (*pipe, loose, blocking):
        os.close(fd)


def test_more_rings_than_a_workload_has_descriptors_for_are_refused(edges, ports):
    for _ in range(MAX_RINGS):
        edges.install("in", "ingress", capacity=64)
    edges.order(edges.lay_out("ingress"), "in")
    assert edges.hear()["text"] == f"a workload has at most {MAX_RINGS} rings"
    edges.uninstall(edges.rings[0])
    assert edges.hear()["did"] == "quiesced"
    edges.install("in", "ingress")


@pytest.mark.parametrize("room", [0, 1, 2])
def test_a_ring_whose_descriptors_find_no_room_is_refused_by_its_number(edges, ports, room):
    """The node gives room to the next install only when this one is answered."""
    ring = edges.lay_out("ingress")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    spare = [os.dup(ring.arena) for _ in range(3)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(spare) + 1, limits[1]))
    try:
        with contextlib.suppress(OSError):
            while True:
                spare.append(os.dup(ring.arena))
        for _ in range(room):
            os.close(spare.pop())
        edges.order(ring, "in")
        said = edges.hear()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for fd in spare:
            os.close(fd)
    assert (said["did"], said["ring"], said["code"]) == ("refused", ring.number, "worker_refused")
    edges.order(ring, "in")
    assert edges.hear() == {"did": "installed", "ring": ring.number}


@pytest.mark.parametrize(
    "raw",
    [
        b"not json",
        b"\xff\xfe",
        b"[1]",
        b"3",
        b"{}",
        b'{"do":"dance","ring":3}',
        b'{"do":["install"],"ring":3}',
        b'{"do":"end","ring":3,"ring":4}',
        b'{"do":"end"}',
        b'{"do":"end","ring":"3"}',
        b'{"do":"uninstall","ring":3}',
        b"[" * 4000,
        json.dumps({"do": "end", "ring": 3, "pad": "x" * 5000}).encode(),
    ],
    ids=lambda raw: raw[:24].decode("latin-1"),
)
def test_a_packet_that_is_no_order_is_refused_and_the_channel_goes_on(edges, ports, raw):
    edges.tell(raw)
    said = edges.hear()
    assert (said["did"], said["code"]) == ("refused", "worker_refused")
    assert said["ring"] in (0, 3)
    edges.install("in", "ingress")


def test_only_the_workload_ends_its_own_stream(edges, ports):
    ring = edges.install("out", "egress")
    edges.end(ring)
    assert edges.hear()["did"] == "refused"
    assert ports.output("out").offer(b"x")


def test_a_long_reason_is_cut_to_fit_a_packet(edges, ports):
    edges.order(edges.lay_out("ingress"), "\U0001f980" * 900)
    raw = edges.channel.recv(65536)
    assert len(raw) <= 4096
    assert json.loads(raw)["did"] == "refused"


def test_what_is_not_a_channel_is_hung_up_on_and_told(edges, ports, capfd):
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            socket.send_fds(edges.shim, [b"edges 2"], [theirs.fileno()])
        ours.settimeout(WAIT_S)
        assert ours.recv(1) == b"", "who passed it reads an end of file"
    edges.install("in", "ingress")
    assert "is not 'edges 1': b'edges 2'" in capfd.readouterr().err


def test_descriptors_that_came_are_closed_on_exec(edges, ports):
    before = set(os.listdir("/proc/self/fd"))
    edges.install("in", "ingress")
    edges.install("out", "egress")
    for number in set(os.listdir("/proc/self/fd")) - before:
        try:
            flags = fcntl.fcntl(int(number), fcntl.F_GETFD)
        except OSError:
            continue  # the listing's own
        assert flags & fcntl.FD_CLOEXEC
