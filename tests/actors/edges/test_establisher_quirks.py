"""Every quirk of E 2.5 judged a bug or a gap, under both semantics: what the seed does, and what `strict` does instead.

A row: the quirk, what came before, what is observed, and per semantics what each observed event brought, with the
records at the end. Notation: `tests.actors.edges.notation`.
"""

from dataclasses import dataclass, fields, replace

import msgspec
import pytest

from actors.edges import establisher as module
from actors.edges.establisher import EdgeEstablisher
from actors.edges.semantics import STRICT, Rules, Semantics
from messages.base import U64_MAX
from messages.edge import RingDirection
from tests.actors.edges.notation import (
    OBJECT_SPEC,
    RING_SPEC,
    crashed,
    driver_ready,
    installed,
    leased,
    observed,
    proven,
    pump_stopped,
    quiesced,
    ready,
    records,
    rejected,
    rx,
    stop,
    stopped,
    stream_fault,
    tx,
    worker_rejects,
)

EGRESS, INGRESS = RingDirection.EGRESS, RingDirection.INGRESS
BUGS_AND_GAPS = {1, 2, 3, 4, 5, 11, 12, 13, 14, 16, 17, 18, 21, 22, 23, 24, 26, 27, 28, 29, 30, 33}
NOISE = {8, 9}  # judged harmless, and closed all the same

WL = [tx()]
WW = [*WL, leased()]
WD = [*WW, installed()]
RD = ready()
SG = [*RD, stop()]
SD = [*SG, quiesced(), pump_stopped(), proven()]


@dataclass(frozen=True)
class Row:
    quirks: tuple[int, ...]
    name: str
    before: list
    events: list
    seed: list
    seed_records: str
    strict: list
    strict_records: str

    def outcome(self, semantics):
        establisher = EdgeEstablisher(10, semantics)
        observed(establisher, self.before)
        return observed(establisher, self.events), records(establisher)


ROWS = [
    Row(
        (1,), "a provision for another node", [], [tx(node=99), tx()],
        ["", "L1 egress"], "egress WL",
        ["!wrong_node", "L1 egress"], "egress WL",
    ),
    Row(
        (2,), "another provision of an edge that waits", WL, [tx(consumer=12)],
        ["L2 egress"], "egress WL",
        ["!edge_live"], "egress WL",
    ),
    Row(
        (2,), "another provision of an edge that is ready, then its grant", RD, [tx(run=8), leased(2, 8002), stop()],
        ["L2 egress", "I8002 egress", "C2 X8002 | stopped"], "egress SD 8002",
        ["!edge_live", "X8002", "P8001 U8001"], "egress SG 8001",
    ),
    Row(
        (2,), "another provision of an edge that stops", SG, [tx(run=8), quiesced(), pump_stopped(), proven()],
        ["L2 egress", "", "", ""], "egress WL",
        ["!edge_live", "", "", "X8001 | stopped"], "egress SD 8001",
    ),
    Row(
        (2,), "the same provision of a ready edge again", RD, [tx(), stop()],
        ["L2 egress", "C2 | stopped"], "egress SD",
        ["", "P8001 U8001"], "egress SG 8001",
    ),
    Row(
        (3,), "producer and consumer on one node", [], [tx(), rx(), leased(1, 8001), leased(2, 8002)],
        ["L1 egress", "L2 ingress", "", "I8002 ingress"], "ingress WW 8002",
        ["L1 egress", "L2 ingress", "I8001 egress", "I8002 ingress"], "egress WW 8001, ingress WW 8002",
    ),
    Row(
        (3,), "a stop for both ends on one node", [tx(), rx()], [stop()],
        ["C2 | stopped"], "ingress SD",
        ["C1 C2 | stopped, stopped"], "egress SD, ingress SD",
    ),
    Row(
        (4,), "a grant of a request that nobody made", WL, [leased(99, 8005)],
        [""], "egress WL",
        ["X8005"], "egress WL",
    ),
    Row(
        (5,), "the grant of the ring in use told twice", RD, [leased()],
        ["X8001"], "egress RD 8001",
        [""], "egress RD 8001",
    ),
    Row(
        (5,), "the grant told again when the ring has gone back", SD, [leased()],
        ["X8001"], "egress SD 8001",
        [""], "egress SD 8001",
    ),
    Row(
        (5,), "the grant of a ring that another edge uses", [*RD, tx(2)], [leased(2, 8001)],
        ["I8001 egress"], "egress RD 8001, egress WW 8001",
        [""], "egress RD 8001, egress WL",
    ),
    Row(
        (8,), "a stop after the lease was refused", [*WL, rejected()], [stop()],
        ["C1 | stopped"], "egress SD",
        [" | stopped"], "egress SD",
    ),
    Row(
        (9,), "a stop of a ready edge", RD, [stop()],
        ["C1 P8001 U8001"], "egress SG 8001",
        ["P8001 U8001"], "egress SG 8001",
    ),
    Row(
        (11, 33), "a stop while the worker installs", WW, [stop(), quiesced(), proven()],
        ["C1 X8001 | stopped", "", ""], "egress SD 8001",
        ["U8001", "", "X8001 | stopped"], "egress SD 8001",
    ),
    Row(
        (12,), "the worker has installed after the stop", WW, [stop(), installed(), quiesced(), proven()],
        ["C1 X8001 | stopped", "", "", ""], "egress SD 8001",
        ["U8001", "", "", "X8001 | stopped"], "egress SD 8001",
    ),
    Row(
        (13,), "the worker lets go while the pump runs", SG, [quiesced(), proven(), pump_stopped()],
        ["X8001 | stopped", "", ""], "egress SD 8001",
        ["", "", "X8001 | stopped"], "egress SD 8001",
    ),
    Row(
        (14,), "a proof while the worker holds the ring", SG, [pump_stopped(), proven(), quiesced()],
        ["", "X8001 | stopped", ""], "egress SD 8001",
        ["", "", "X8001 | stopped"], "egress SD 8001",
    ),
    Row(
        (14,), "the worker lets go without a proof", SG, [pump_stopped(), quiesced(), proven()],
        ["", "X8001 | stopped", ""], "egress SD 8001",
        ["", "", "X8001 | stopped"], "egress SD 8001",
    ),
    Row(
        (16,), "a worker that crashed will not let go again", RD, [crashed(), proven(), pump_stopped()],
        ["C1 P8001 U8001 | faulted RingFault", "X8001 | stopped", ""], "egress SD 8001",
        ["P8001 U8001 | faulted RingFault", "", "X8001 | stopped"], "egress SD 8001",
    ),
    Row(
        (17,), "the worker crashes while the edge stops", SG, [pump_stopped(), proven(), crashed()],
        ["", "X8001 | stopped", ""], "egress SD 8001",
        ["", "", "X8001 | stopped"], "egress SD 8001",
    ),
    Row(
        (18,), "a fault of an earlier stream before there is a lease", WL, [stream_fault()],
        ["C1 | faulted StreamFault, stopped"], "egress SD",
        [""], "egress WL",
    ),
    Row(
        (18,), "a fault of an earlier stream while the worker installs", WW, [stream_fault(), installed()],
        ["C1 X8001 | faulted StreamFault, stopped", ""], "egress SD 8001",
        ["", "S11"], "egress WD 8001",
    ),
    Row(
        (21,), "Stopped while data flows", RD, [stopped(), stop()],
        ["", ""], "egress SD 8001",
        ["", "P8001 U8001"], "egress SG 8001",
    ),
    Row(
        (21,), "Stopped while a ring is taken down", SG, [stopped(), pump_stopped(), quiesced(), proven()],
        ["", "", "", ""], "egress SD 8001",
        ["", "", "", "X8001 | stopped"], "egress SD 8001",
    ),
    Row(
        (22, 29), "the arena has the ring back", SD, [stopped()],
        [""], "egress SD 8001",
        [""], "",
    ),
    Row(
        (23,), "a late word of the producer's pump", [*WD, rx(), leased(2, 8002), installed(8002)],
        [(driver_ready(), EGRESS)],
        [" | ready 2"], "ingress RD 8002",
        [" | ready 1"], "egress RD 8001, ingress WD 8002",
    ),
    Row(
        (23,), "a stream fault that could be of either end", [*RD, *ready(request=2, ring=8002, provision=rx)],
        [stream_fault(), (stream_fault(), INGRESS)],
        ["C2 P8002 U8002 | faulted StreamFault", ""], "ingress SG 8002",
        ["!direction_needed", "P8002 U8002 | faulted StreamFault"], "egress RD 8001, ingress SG 8002",
    ),
    Row(
        (24,), "a stop of an edge that is not here", WL, [stop(2), (stop(), INGRESS)],
        ["", "C1 | stopped"], "egress SD",
        ["!unknown_edge", "!unknown_edge"], "egress WL",
    ),
    Row(
        (26,), "an older run of an edge that ended", SD, [tx(run=6)],
        ["L2 egress"], "egress WL",
        ["!stale_run"], "egress SD 8001",
    ),
    Row(
        (26,), "an older run of an edge whose other end is here", RD, [rx(run=6)],
        ["L2 ingress"], "ingress WL",
        ["!stale_run"], "egress RD 8001",
    ),
    *(
        Row(
            (27,), f"a specification that {what}", [], [tx(**spec)],
            ["L1 egress"], "egress WL",
            ["!invalid_spec"], "",
        )
        for what, spec in {
            "has no data": {"ring_spec": msgspec.structs.replace(RING_SPEC, data_bytes=0)},
            "has no header": {"ring_spec": msgspec.structs.replace(RING_SPEC, header_bytes=0)},
            "aligns to nothing": {"ring_spec": msgspec.structs.replace(RING_SPEC, alignment=0)},
            "allows no payload": {"object_spec": msgspec.structs.replace(OBJECT_SPEC, max_extent_bytes=0)},
            "overflows with its data": {"ring_spec": msgspec.structs.replace(RING_SPEC, data_bytes=U64_MAX)},
            "overflows with its alignment": {"ring_spec": msgspec.structs.replace(RING_SPEC, alignment=U64_MAX - 4000)},
            "has more than 64 bits": {"ring_spec": msgspec.structs.replace(RING_SPEC, header_bytes=U64_MAX + 1)},
        }.items()
    ),
    Row(
        (28,), "a ring id that a dead edge had", [*SD, *ready(2, 2, provision=rx), stop(2)],
        [quiesced(), pump_stopped(edge=2), proven()],
        ["", "", ""], "egress SD 8001, ingress SG 8001",
        ["", "", "X8001 | stopped"], "egress SD 8001, ingress SD 8001",
    ),
    Row(
        (30,), "the deadline of an install", WW, [worker_rejects()],
        ["C1 X8001 | faulted RingFault, stopped"], "egress SD 8001",
        ["U8001 | faulted RingFault"], "egress SG 8001",
    ),
]  # fmt: skip


def named(row):
    return f"Q{row.quirks[0]} {row.name}"


@pytest.mark.parametrize("row", ROWS, ids=named)
def test_the_seed_has_the_quirk(row):
    assert row.outcome(Semantics.SEED) == (row.seed, row.seed_records)


@pytest.mark.parametrize("row", ROWS, ids=named)
def test_strict_closes_it(row):
    assert row.outcome(Semantics.STRICT) == (row.strict, row.strict_records)


def test_every_bug_and_gap_has_a_row_that_shows_a_difference():
    assert {quirk for row in ROWS for quirk in row.quirks} == BUGS_AND_GAPS | NOISE
    assert all((row.seed, row.seed_records) != (row.strict, row.strict_records) for row in ROWS)


@pytest.mark.parametrize("rule", [field.name for field in fields(Rules)])
def test_without_any_one_rule_strict_is_not_strict(rule, monkeypatch):
    monkeypatch.setattr(module, "rules_of", lambda _: replace(STRICT, **{rule: False}))
    lost = [row for row in ROWS if row.outcome(Semantics.STRICT) != (row.strict, row.strict_records)]
    assert lost
