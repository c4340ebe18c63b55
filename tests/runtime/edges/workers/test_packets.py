"""Packets between an edges process and a workload: what is said is exact, what is heard is bounded."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from messages.base import U64_MAX
from messages.control import Epoch
from messages.edge import DType, ObjectKind, ObjectSpec, RingDirection, RingLayout
from messages.edge_end import EdgeFaultCode
from messages.edge_ports import InstallRing, RingRef
from runtime.edges.workers import packets
from runtime.edges.workers.packets import (
    Closed,
    Fault,
    Installed,
    MalformedReply,
    Quiesced,
    Refused,
    fault_of,
    install_packet,
    parse_reply,
    uninstall_packet,
)
from runtime.workload.channel import Packet


@pytest.mark.parametrize(
    ("packet", "reply"),
    [
        (b'{"did":"installed","ring":7}', Installed(ring=7)),
        (b' {"ring": 18446744073709551615, "did": "quiesced"} ', Quiesced(ring=U64_MAX)),
        (b'{"did":"closed","ring":0}', Closed(ring=0)),
        (b'{"did":"refused","ring":7,"code":"c","text":"t"}', Refused(ring=7, code="c", text="t")),
        (b'{"did":"fault","ring":7}', Fault(ring=7)),
    ],
)
def test_replies_are_understood(packet, reply):
    assert parse_reply(packet) == reply


@pytest.mark.parametrize(
    "packet",
    [
        b"",
        b"null",
        b"[]",
        b"{",
        b'{"ring":1}',
        b'{"did":"install","ring":1}',
        b'{"did":7,"ring":1}',
        b'{"did":"installed"}',
        b'{"did":"installed","ring":null}',
        b'{"did":"installed","ring":"1"}',
        b'{"did":"installed","ring":true}',
        b'{"did":"installed","ring":1.5}',
        b'{"did":"installed","ring":NaN}',
        b'{"did":"installed","ring":-1}',
        b'{"did":"installed","ring":18446744073709551616}',
        b'{"did":"installed","ring":' + b"9" * 4000 + b"}",
        b'{"did":"installed","ring":1,"port":"in"}',
        b'{"did":"fault","ring":1,"code":7}',
        b'{"did":"fault","ring":1,"text":"\xff"}',
        b'{"did":"installed","ring":1}{"did":"installed","ring":2}',
        b'{"did":"installed","ring":' + b"[" * 2000,
        b'{"did":"installed","ring":1}' + b" " * 4096,
    ],
)
def test_what_is_no_reply_is_malformed_and_said_in_few_words(packet):
    with pytest.raises(MalformedReply) as caught:
        parse_reply(packet)
    assert len(str(caught.value)) < 1000
    assert str(caught.value).isprintable()


@given(st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
@settings(max_examples=100)
def test_no_bytes_do_more_than_be_malformed(packet):
    with pytest.raises(MalformedReply):
        parse_reply(packet)


@given(st.text(max_size=2000), st.text(max_size=2000))
@settings(max_examples=100)
def test_a_complaint_is_fit_for_a_screen(code, text):
    found, said = fault_of(Fault(ring=1, code=code, text=text))
    assert found in packets.TOLD_BY_WORKLOADS
    assert said.isprintable()
    assert 0 < len(said) < 500


def test_a_workload_cannot_claim_what_only_the_node_knows():
    for code in EdgeFaultCode:
        found, said = fault_of(Refused(ring=1, code=code.value, text="why"))
        if code in packets.TOLD_BY_WORKLOADS:
            assert (found, said) == (code, "why")
        else:
            assert (found, said) == (EdgeFaultCode.WORKER_REFUSED, f"{code.value}: why")


@given(
    st.lists(st.integers(0, U64_MAX), min_size=9, max_size=9),
    st.sampled_from(RingDirection),
    st.text("abcdefghijklmnopqrstuvwxyz0123456789-", min_size=1, max_size=63),
)
@settings(max_examples=50)
def test_an_install_is_what_the_workloads_side_reads(numbers, direction, port):
    ring, edge, start, header, data, end, capacity, generation, extent = numbers
    layout = RingLayout(
        start_offset=start, header_offset=header, data_offset=data, end_offset=end, data_bytes=capacity, alignment=1
    )
    order = InstallRing(
        instance_id="cam",
        epoch=Epoch(term=1, number=1),
        edge_id=edge,
        ring=RingRef(arena="cam", ring_id=ring, generation=generation, layout=layout),
        port=port,
        direction=direction,
        object_spec=ObjectSpec(kind=ObjectKind.ACTIVATION, dtype=DType.F16, max_extent_bytes=extent),
    )
    packet = Packet(json.loads(install_packet(order)), [])
    assert (packet.do, packet.ring, packet.port, packet.direction) == ("install", ring, port, direction.value)
    del packet.numbers["ring"]
    assert packet.numbers == {
        "edge": edge,
        "offset": start,
        "header": header,
        "data": data,
        "end": end,
        "capacity": capacity,
        "generation": generation,
        "max_extent": extent,
        "alignment": 2,
    }


@given(st.text(st.characters(), max_size=3000))
@settings(max_examples=100)
def test_every_reason_fits_a_packet(reason):
    packet = uninstall_packet(U64_MAX, reason)
    assert len(packet) <= packets.PACKET_BYTES
    assert Packet(json.loads(packet), []).do == "uninstall"
