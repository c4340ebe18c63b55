"""What the edge planner shows: every edge and every edges process, out of memory."""

from __future__ import annotations

from actors.edges.planning.core import PlanCore
from actors.edges.planning.situation import node_of
from actors.edges.planning.state import DesiredEdge
from actors.edges.planning.view import PlanView, ProcessView
from messages.base import NodeName
from messages.edge import RingDirection
from messages.edge_plan import EdgeLine, EdgeLines, EdgeNode


def lines_of(core: PlanCore, view: PlanView) -> EdgeLines:
    """Every edge by name, and every edges process that was heard or is needed."""
    needed = {
        party.process
        for edge in core.state.edges.values()
        if (pair := edge.permitted) is not None
        for party in (pair.producer, pair.consumer)
    }
    return EdgeLines(
        edges=[line_of(core, view, edge) for _, edge in sorted(core.state.edges.items())],
        nodes=[
            _node(process)
            for name, process in sorted(view.processes.items())
            if process.incarnation or process.link is not None or name in needed
        ],
    )


def line_of(core: PlanCore, view: PlanView, edge: DesiredEdge) -> EdgeLine:
    work, life = view.works[edge.name], edge.life
    pair = edge.permitted if life is None else life.pair
    ends = {} if work.life is None else work.life.ends
    return EdgeLine(
        name=edge.name,
        source=edge.source,
        target=edge.target,
        phase=work.phase,
        reason=core.distrust or work.reason,
        run_id=edge.run_id,
        edge_id=None if life is None else life.edge_id,
        lives=edge.lives,
        faults=edge.faults,
        fault=edge.fault,
        fault_text=edge.fault_text,
        producer_node=None if pair is None else NodeName(node_of(pair.producer)),
        consumer_node=None if pair is None else NodeName(node_of(pair.consumer)),
        producer=ends[RingDirection.EGRESS].report if ends else None,
        consumer=ends[RingDirection.INGRESS].report if ends else None,
        max_extent_bytes=edge.sizes.max_extent_bytes,
        ring_bytes=edge.sizes.ring_bytes,
        since_ms=work.since_ms,
    )


def _node(process: ProcessView) -> EdgeNode:
    return EdgeNode(
        process=process.name,
        reachable=process.is_linked,
        incarnation=process.incarnation,
        ends=process.ends,
        arena=process.arena,
    )


__all__ = ["line_of", "lines_of"]
