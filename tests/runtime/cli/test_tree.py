"""`sennit tree`: processes, the actors in each, and the process that a node started itself."""

from __future__ import annotations

from messages.supervision import ChildState, ChildView, Restart, Strategy, SupervisorView
from runtime.cli.tree import lines


def view(*children: str | ChildView) -> SupervisorView:
    rows = [child if isinstance(child, ChildView) else row(child) for child in children]
    return SupervisorView(strategy=Strategy.ONE_FOR_ONE, children=tuple(rows))


def row(name, state=ChildState.RUNNING, **fields):
    return ChildView(name=name, state=state, restart=Restart.PERMANENT, **fields)


def test_what_a_node_started_stands_below_it_and_an_actor_called_like_a_process_is_an_actor():
    inside = {
        "chain": view("store", "chain"),
        "gate": view("gate"),
        "shed": view("gate", "agent", "shed.edges", "loft.edges"),
        "shed.edges": view("memory", "edges"),
        "loft.edges": view("edges"),
    }
    told = [text for text, _ in lines("reef", view("chain", "gate", "shed"), inside)]
    assert told == [
        "reef (one_for_one)",
        "├─ chain  running",
        "│  ├─ store  running",
        "│  └─ chain  running",
        "├─ gate   running",
        "│  └─ gate  running",
        "└─ shed   running",
        "   ├─ gate        running",
        "   ├─ agent       running",
        "   ├─ shed.edges  running",
        "   │  ├─ memory  running",
        "   │  └─ edges   running",
        "   └─ loft.edges  running",
    ]


def test_one_that_does_not_answer_or_is_not_there_is_told_where_it_stands():
    parked = row("shed.edges", ChildState.PARKED, restarts=6, last_exit="exit code 78", next_attempt_s=2.0)
    inside = {"chain": "unreachable", "shed": view("agent", parked), "shed.edges": "unreachable"}
    told = list(lines("reef", view("chain", "shed"), inside))
    assert told[2] == ("│  └─ no answer: unreachable", "unreachable")
    assert told[5] == (
        "   └─ shed.edges  parked, 6 restarts, last exit exit code 78, next start in 2.0 s", "parked",
    )  # fmt: skip
    assert told[6] == ("      └─ no answer: unreachable", "unreachable")
