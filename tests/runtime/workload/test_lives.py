"""Rings come and go under a running program: what it sees, what its node is told, and when memory is let go of."""

from __future__ import annotations

import gc
import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from pickle import PickleBuffer

import pytest

from runtime.workload import PortClosed, Ports, PortTimeout
from runtime.workload.channel import Channel

WAIT_S = 20


def descriptors():
    gc.collect()  # what other tests left is not ours
    return len(os.listdir("/proc/self/fd"))


def quiesced(ring):
    return {"did": "quiesced", "ring": ring.number}


def test_an_uninstalled_ring_is_unmapped_before_its_quiescence_is_told(edges, ports):
    for direction in ("ingress", "egress"):
        before = descriptors()
        ring = edges.install(direction, direction)
        ring_cost = descriptors() - before
        assert edges.mapped() == 1
        edges.uninstall(ring)
        assert edges.hear() == quiesced(ring)
        assert edges.mapped() == 0
        assert descriptors() == before + ring_cost - 3, "the mapping's and two eventfds' copies are closed"


def test_a_blocked_receive_waits_for_the_next_life(edges, ports, background):
    port = ports.input("in")
    ring = edges.install("in", "ingress")
    waiting = background(lambda: (record := port.receive(WAIT_S), bytes(record.payload), record.sequence)[1:])
    assert waiting.blocked()
    edges.uninstall(ring)
    assert edges.hear() == quiesced(ring)
    edges.install("in", "ingress").push(b"next life")
    assert waiting.result() == (b"next life", 0)


def test_a_blocked_send_goes_to_the_next_life(edges, ports, background):
    port = ports.output("out")
    ring = edges.install("out", "egress", capacity=60)
    port.send(bytes(20))
    waiting = background(lambda: port.send(b"waits", timeout_s=WAIT_S))
    assert waiting.blocked()
    edges.uninstall(ring)
    assert edges.hear() == quiesced(ring)
    again = edges.install("out", "egress", capacity=60)
    waiting.result()
    assert [(record.header.sequence, record.payload) for record in again.pull_some(1)] == [(0, b"waits")]


def test_a_port_that_was_closed_takes_no_later_life(edges, ports):
    ports.input("in").close()
    ports.output("out").close()
    later = edges.install("out", "egress")
    assert edges.hear() == {"did": "closed", "ring": later.number}
    edges.order(edges.lay_out("ingress"), "in")
    assert edges.hear()["did"] == "refused"


def test_a_record_that_is_out_keeps_its_ring_until_the_next_call(edges, ports):
    port = ports.input("in")
    ring = edges.install("in", "ingress")
    ring.push(b"kept", b"never seen")
    record = port.receive(WAIT_S)
    edges.uninstall(ring)
    wait_until_retired(port)
    assert record.payload == b"kept"
    assert edges.mapped() == 1
    assert edges.silent()
    with pytest.raises(PortTimeout):
        port.receive(0)
    assert edges.hear() == quiesced(ring)
    assert edges.mapped() == 0
    with pytest.raises(ValueError, match="released"):
        bytes(record.payload)


def wait_until_retired(port):
    deadline = time.monotonic() + WAIT_S
    while port.connected:
        assert time.monotonic() < deadline, "the uninstall is not heard"
        os.sched_yield()


@pytest.mark.parametrize("how", ["release", "drop", "next port call"])
def test_letting_go_of_a_record_lets_go_of_its_ring(edges, ports, how):
    port = ports.input("in")
    ring = edges.install("in", "ingress")
    ring.push(b"kept")
    record = port.receive(WAIT_S)
    edges.uninstall(ring)
    wait_until_retired(port)
    assert edges.silent()
    if how == "release":
        record.release()
    elif how == "drop":
        del record
    else:
        assert not port.connected
        with pytest.raises(PortTimeout):
            port.receive(0)
    assert edges.hear() == quiesced(ring)


def test_an_array_keeps_an_uninstalled_ring_mapped_and_its_end_is_noticed(edges, ports):
    port = ports.input("in")
    ring = edges.install("in", "ingress")
    ring.push(b"kept")
    kept = PickleBuffer(port.receive(WAIT_S).payload)
    edges.uninstall(ring)
    wait_until_retired(port)
    with pytest.raises(PortTimeout):
        port.receive(0)
    assert kept.raw() == b"kept"
    assert edges.silent()
    del kept
    assert edges.hear() == quiesced(ring)


def test_a_slice_of_a_payload_keeps_an_uninstalled_ring_mapped(edges, ports):
    port = ports.input("in")
    ring = edges.install("in", "ingress")
    ring.push(b"a slice")
    part = port.receive(WAIT_S).payload[2:]
    edges.uninstall(ring)
    wait_until_retired(port)
    with pytest.raises(PortTimeout):
        port.receive(0)
    assert edges.silent()
    assert part == b"slice"
    del part
    assert edges.hear() == quiesced(ring)


def test_a_reservation_survives_its_ring_and_goes_to_the_next_life(edges, ports, background):
    port = ports.output("out")
    ring = edges.install("out", "egress")
    with port.reserve(4, timeout_s=WAIT_S) as view:
        edges.uninstall(ring)
        wait_until_retired(port)
        view[:] = b"abcd"
        assert edges.silent()
        again = edges.install("out", "egress")
    assert edges.hear() == quiesced(ring)
    assert ring.pull() == []
    assert [record.payload for record in again.pull()] == [b"abcd"]


def test_a_reservation_in_a_port_that_was_closed_meanwhile_sends_nothing(edges, ports):
    port = ports.output("out")
    ring = edges.install("out", "egress")
    with pytest.raises(PortClosed), port.reserve(4):
        port.close()
    assert edges.hear() == {"did": "closed", "ring": ring.number}
    assert ring.pull() == []


def test_what_a_batch_did_not_publish_is_gone_with_its_ring(edges, ports):
    port = ports.output("out")
    ring = edges.install("out", "egress")
    with port.batch():
        port.send(b"lost")
        edges.uninstall(ring)
        assert edges.hear() == quiesced(ring)
        again = edges.install("out", "egress")
        port.send(b"kept")
    assert ring.pull() == []
    assert [(record.header.sequence, record.payload) for record in again.pull()] == [(0, b"kept")]


def test_a_ring_installed_twice_is_answered_twice_and_mapped_once(edges, ports):
    ring = edges.install("in", "ingress")
    before = descriptors()
    edges.order(ring, "in")
    assert edges.hear() == {"did": "installed", "ring": ring.number}
    assert edges.mapped() == 1
    assert descriptors() == before


def test_a_ring_nobody_has_is_quiet_already(edges, ports):
    edges.tell({"do": "uninstall", "ring": 999, "reason": "never there"})
    assert edges.hear() == {"did": "quiesced", "ring": 999}
    edges.tell({"do": "end", "ring": 999})
    ring = edges.install("in", "ingress")
    edges.uninstall(ring)
    edges.uninstall(ring)
    assert [edges.hear(), edges.hear()] == [quiesced(ring)] * 2


def test_a_ring_that_is_still_looked_at_is_not_installed_again(edges, ports):
    port = ports.input("in")
    ring = edges.install("in", "ingress")
    ring.push(b"x")
    record = port.receive(WAIT_S)
    edges.uninstall(ring)
    edges.order(ring, "in")
    said = edges.hear()
    assert (said["did"], said["code"]) == ("refused", "worker_refused")
    assert "still looked at" in said["text"]
    edges.uninstall(ring)
    del record
    assert edges.hear() == quiesced(ring)


def test_the_end_of_the_channel_drops_every_ring_and_the_next_channel_brings_new_ones(edges, ports, background):
    port_in, port_out = ports.input("in"), ports.output("out")
    edges.install("in", "ingress")
    edges.install("out", "egress", capacity=50)
    port_out.send(b"")
    calls = [
        background(lambda: bytes(port_in.receive(WAIT_S).payload)),
        background(lambda: port_out.send(b"x", timeout_s=WAIT_S)),
    ]
    assert all(call.blocked() for call in calls)
    edges.close_channel()
    for port in (port_in, port_out):
        wait_until_retired(port)
    assert edges.mapped() == 0
    edges.open_channel()
    edges.install("in", "ingress").push(b"new arena")
    out = edges.install("out", "egress")
    assert [call.result() for call in calls] == [b"new arena", 2]
    assert [record.payload for record in out.pull()] == [b"x"]


def test_a_new_channel_takes_the_place_of_one_that_is_still_open(edges, ports):
    old = edges.install("in", "ingress")
    before, edges.channel = edges.channel, None
    with before:
        edges.open_channel()
        ring = edges.install("in", "ingress")
        assert [before.recv(100), before.recv(100)] == [b'{"did":"quiesced","ring":1}', b""]
    assert edges.mapped() == 1
    edges.uninstall(old)
    assert edges.hear() == quiesced(old)
    edges.uninstall(ring)
    assert edges.hear() == quiesced(ring)


def test_what_arrives_before_the_program_asks_for_its_port_is_not_lost(edges, ports):
    ring = edges.install("in", "ingress")
    ring.push(b"early")
    edges.end(ring)
    assert [bytes(record.payload) for record in ports.input("in")] == [b"early"]


def test_lives_come_and_go_without_threads_or_descriptors_left(edges, ports):
    port = ports.input("in")
    out = ports.output("out")
    counts = set()
    for _ in range(20):
        for ring in (edges.install("in", "ingress"), edges.install("out", "egress")):
            if ring.direction == "ingress":
                ring.push(b"x")
                assert port.receive(WAIT_S).payload == b"x"
                with pytest.raises(PortTimeout):
                    port.receive(0)
            else:
                out.send(b"x")
                ring.pull()
            edges.uninstall(ring)
            assert edges.hear() == quiesced(ring)
            edges.rings.remove(ring)
            ring.close()
        counts.add((descriptors(), threading.active_count()))
    assert len(counts) == 1


def test_closing_the_ports_ends_streams_and_leaves_nothing(edges):
    before = descriptors(), threading.active_count()
    with Ports(edges.theirs.dup()) as ports:
        edges.open_channel()
        out, port = ports.output("out"), ports.input("in")
        ring = edges.install("out", "egress")
        unread = edges.install("in", "ingress")
        unread.push(b"x")
        out.send(b"last")
        record = port.receive(WAIT_S)
    said = [edges.hear() for _ in range(3)]
    assert said == [{"did": "closed", "ring": ring.number}, quiesced(ring), quiesced(unread)]
    assert edges.channel.recv(100) == b""
    assert edges.mapped() == 0
    assert [record.payload for record in ring.pull()] == [b"last"], "the node has it still"
    with pytest.raises(ValueError, match="released"):
        bytes(record.payload)
    ports.close()
    with pytest.raises(PortClosed):
        port.receive()
    with pytest.raises(PortClosed):
        out.send(b"x")
    del record, ports, port, out
    assert edges.mapped() == 0
    edges.close_channel()
    for ring in edges.rings:
        ring.close()
    edges.rings.clear()
    assert (descriptors(), threading.active_count()) == before


def test_of_a_ring_that_is_looked_at_when_the_ports_close_nothing_is_told(edges):
    ports = Ports(edges.theirs.dup())
    edges.open_channel()
    port = ports.input("in")
    edges.install("in", "ingress").push(b"kept")
    array = memoryview(port.receive(WAIT_S).payload)
    ports.close()
    assert edges.channel.recv(100) == b""
    assert (bytes(array), edges.mapped()) == (b"kept", 1)
    array.release()
    assert edges.mapped() == 0


def test_an_order_that_meets_the_close_of_the_ports_is_answered(edges, monkeypatch):
    ports = Ports(edges.theirs.dup())
    edges.open_channel()
    first = edges.install("in", "ingress")
    second = edges.lay_out("egress")
    take_no_more = Channel.take_no_more

    def late(channel):
        edges.order(second, "out")
        edges.uninstall(first)
        take_no_more(channel)
        with pytest.raises(BrokenPipeError):
            edges.uninstall(second)

    monkeypatch.setattr(Channel, "take_no_more", late)
    ports.close()
    refused = edges.hear()
    assert (refused["did"], refused["ring"], refused["code"]) == ("refused", second.number, "worker_refused")
    assert edges.hear() == quiesced(first)
    assert edges.channel.recv(100) == b""


def test_closing_the_ports_wakes_who_waits(edges, background):
    ports = Ports(edges.theirs.dup())
    waiting = background(ports.input("in").receive)
    assert waiting.blocked()
    ports.close()
    with pytest.raises(PortClosed, match="the ports of this process are closed"):
        waiting.result()


def test_answers_wait_for_a_node_that_does_not_read(edges, ports):
    """Nothing is lost, and no call of the program waits for the node."""
    edges.channel.setblocking(False)
    asked = 0
    while asked < 2000:
        try:
            edges.tell({"do": "uninstall", "ring": 10_000 + asked, "reason": ""})
            asked += 1
        except BlockingIOError:
            break
    edges.channel.settimeout(WAIT_S)
    answers = []
    while len(answers) < asked:
        answers.append(edges.hear()["ring"])
    assert answers == [10_000 + number for number in range(asked)]


def test_a_fork_has_no_ports_and_no_ring_memory(edges, ports):
    port, out = ports.input("in"), ports.output("out")
    ring = edges.install("in", "ingress")
    edges.install("out", "egress")
    ended, faulted = edges.install("other", "ingress"), edges.install("another", "ingress")
    edges.end(ended)
    assert list(ports.input("other")) == []
    os.eventfd_write(faulted.data_fd, 2**30)
    with pytest.raises(PortTimeout):
        ports.input("another").receive(0)
    ring.push(b"x")
    record = port.receive(WAIT_S)
    inode = str(os.fstat(edges.arena).st_ino)
    ours = {line.split()[0] for line in Path("/proc/self/maps").read_text().splitlines() if line.split()[4] == inode}
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        said = []
        try:
            for call in (port.receive, lambda: out.send(b"x")):
                try:
                    call()
                except PortClosed as error:
                    said.append("fork of the workload" in str(error))
            lines = Path("/proc/self/maps").read_text().splitlines()
            left = {line.split()[0] for line in lines if line.split()[4] == inode}
            said.append(len(ours - left))
        finally:
            os.write(write_end, repr(said).encode())
            os._exit(0)
    os.close(write_end)
    assert os.read(read_end, 100) == b"[True, True, 4]"
    os.close(read_end)
    assert os.waitpid(child, 0)[1] == 0
    assert record.payload == b"x"
    ring.push(b"y")
    assert port.receive(WAIT_S).payload == b"y", "the workload itself goes on"


def test_lives_that_change_under_a_busy_program_lose_nothing_of_their_order(edges, ports, background):
    """Rings are taken away at any moment of a call; each life shows a run of objects without a gap or a doubled one."""
    out, port = ports.output("out"), ports.input("in")
    over = threading.Event()

    def send_on():
        while not over.is_set():
            with out.batch():
                for _ in range(20):
                    try:
                        out.send(bytes(50), timeout_s=0.05)
                    except PortTimeout:
                        break
            with suppress(PortTimeout), out.reserve(30, timeout_s=0.05) as view:
                view[:] = b"r" * 30

    def receive_on():
        seen = []
        while not over.is_set():
            with suppress(PortTimeout):
                record = port.receive(0.05)
                seen.append((record.edge, record.sequence, record.payload[:1] == b"p"))
        return seen

    sending, receiving = background(send_on), background(receive_on)
    sent = []
    for _ in range(40):
        outward = edges.install("out", "egress", capacity=700)
        inward = edges.install("in", "ingress", capacity=700)
        inward.push(*[b"p" * 40] * 9)
        records = outward.pull_some(30)
        assert [record.header.sequence for record in records] == list(range(len(records)))
        sent += [record.header.object_id for record in records]
        for ring in (outward, inward):
            edges.uninstall(ring)
        assert {edges.hear()["ring"] for _ in range(2)} == {outward.number, inward.number}
        for ring in (outward, inward):
            edges.rings.remove(ring)
            ring.close()
    over.set()
    sending.result()
    seen = receiving.result()
    assert sent == sorted(set(sent)), "no object is sent twice"
    for edge in {edge for edge, _, _ in seen}:
        assert [number for other, number, _ in seen if other == edge] == list(
            range(sum(other == edge for other, _, _ in seen))
        )
    assert all(whole for _, _, whole in seen)
    assert out.faults == port.faults == 0
