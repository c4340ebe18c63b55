"""Recorded edge traces: all of them match, any change is found, and nothing malformed passes."""

import json
from pathlib import Path

import pytest

from actors.edges.semantics import Semantics
from runtime.replay_edge import check, replay

GOLDEN = (Path(__file__).parents[1] / "golden" / "edge-traces.jsonl").read_text().splitlines()
STOP = {"type": "StopEdge", "edge_id": 1}
STEP = {"event": STOP, "commands": [], "lifecycle": [], "records": {"1": None}}


def trace(**changes):
    return json.dumps({"local_node_id": 2, "steps": [STEP | changes]})


def events_only(line):
    given = json.loads(line)
    return json.dumps(given | {"steps": [{"event": step["event"]} for step in given["steps"]]})


def without_unnamed_edges(line):
    """The recorder lists edges 1 to 3 always, a replay those that the trace names."""
    given = json.loads(line)
    named = {str(step["event"]["edge_id"]) for step in given["steps"] if "edge_id" in step["event"]}
    for step in given["steps"]:
        assert all(step["records"][edge] is None for edge in step["records"].keys() - named)
        step["records"] = {edge: record for edge, record in step["records"].items() if edge in named}
    return given


def test_every_recorded_trace_matches():
    result = check(GOLDEN)
    assert (result.matched, result.steps, result.difference) == (2400, 2400, None)


def test_events_alone_are_completed_to_the_recorded_traces():
    completed = list(replay(map(events_only, GOLDEN)))
    assert [json.loads(line) for line in completed] == [without_unnamed_edges(line) for line in GOLDEN]
    assert sum(ours == recorded for ours, recorded in zip(completed, GOLDEN, strict=True)) == 79  # to the byte


def test_a_recorded_trace_is_completed_to_itself():
    assert list(replay(GOLDEN)) == GOLDEN


def test_a_completed_trace_passes_the_check():
    assert check(replay(map(events_only, GOLDEN))).difference is None


def test_a_completed_trace_lists_every_edge_it_names_in_ascending_order():
    steps = [{"event": {"type": "StopEdge", "edge_id": edge}} for edge in (2**64 - 1, 10, 9)]
    (line,) = replay([json.dumps({"local_node_id": 2, "steps": steps})])
    for step in json.loads(line)["steps"]:
        assert list(step["records"].items()) == [("9", None), ("10", None), ("18446744073709551615", None)]


def first(predicate):
    """The first recorded step that fits: its trace and position, both from 0."""
    for number, line in enumerate(GOLDEN):
        for position, step in enumerate(json.loads(line)["steps"]):
            if predicate(step):
                return number, position
    raise AssertionError("no such step is recorded")


@pytest.mark.parametrize(
    ("predicate", "change", "told"),
    [
        (lambda step: step["commands"], lambda step: step["commands"].pop(), "commands"),
        (lambda step: len(step["commands"]) > 2, lambda step: step["commands"].reverse(), "commands"),
        (lambda step: step["lifecycle"], lambda step: step["lifecycle"].clear(), "lifecycle"),
        (
            lambda step: not step["lifecycle"],
            lambda step: step["lifecycle"].append({"type": "EdgeStopped", "edge_id": 3}),
            "lifecycle",
        ),
        (
            lambda step: step["records"]["2"],
            lambda step: step["records"]["2"].update(state="failed"),
            "record of edge 2",
        ),
        (lambda step: step["records"]["3"], lambda step: step["records"].update({"3": None}), "record of edge 3"),
        (
            lambda step: step["records"]["1"] is None,
            lambda step: step["records"].update({"1": step["records"]["2"]}),
            "record of edge 1",
        ),
    ],
)
def test_a_changed_step_is_told_as_the_first_difference(predicate, change, told):
    number, position = first(predicate)
    mutated = json.loads(GOLDEN[number])
    change(mutated["steps"][position])
    change_later = json.loads(GOLDEN[-1])
    change_later["steps"][0]["lifecycle"].append({"type": "EdgeStopped", "edge_id": 3})
    result = check([*GOLDEN[:number], json.dumps(mutated), *GOLDEN[number + 1 : -1], json.dumps(change_later)])
    matched = sum(len(json.loads(line)["steps"]) for line in GOLDEN[:number]) + position
    assert (result.matched, result.steps) == (matched, matched + 1)
    assert result.difference.startswith(f"line {number + 1}, step {position + 1}, after {{")
    assert f": {told}: expected " in result.difference
    assert ", got " in result.difference


def test_a_difference_shows_what_was_expected_and_what_came():
    result = check([trace(commands=[{"type": "StopPump", "edge_id": 1, "ring_id": 2}])])
    assert result.difference == (
        'line 1, step 1, after {"type":"StopEdge","edge_id":1}: '
        'commands: expected [{"type":"StopPump","edge_id":1,"ring_id":2}], got []'
    )


MALFORMED = [
    ("not JSON", "{", "line 2"),
    ("an array", "[]", "Expected `object`"),
    ("a number is text", trace(event=STOP | {"edge_id": "1"}), "$.steps[0].event.edge_id"),
    ("a number is a fraction", trace(event=STOP | {"edge_id": 1.0}), "$.steps[0].event.edge_id"),
    ("a number is a truth value", trace(event=STOP | {"edge_id": True}), "$.steps[0].event.edge_id"),
    ("a number is negative", trace(event=STOP | {"edge_id": -1}), "$.steps[0].event.edge_id"),
    ("a number has 65 bits", trace(event=STOP | {"edge_id": 2**64}), "$.steps[0].event.edge_id"),
    ("a key has 65 bits", trace(records={str(2**64): None}), "$.steps[0].records"),
    ("a key is no number", trace(records={"one": None}), "$.steps[0].records"),
    ("a key has a leading zero", trace(records={"01": None}), "$.steps[0].records"),
    ("a key has digits of another script", trace(records={"\u0661": None}), "$.steps[0].records"),
    ("a key has an unknown direction", trace(records={"1/sideways": None}), "$.steps[0].records"),
    ("a key has no edge", trace(records={"/egress": None}), "$.steps[0].records"),
    ("a key has a line end", trace(records={"1/egress\n": None}), "$.steps[0].records"),
    ("an unknown direction", trace(direction="sideways"), "$.steps[0].direction"),
    ("an unknown rejection", trace(rejected="bored"), "$.steps[0].rejected"),
    ("an unknown event", trace(event={"type": "Paint", "edge_id": 1}), "Paint"),
    ("a command as event", trace(event={"type": "StopPump", "edge_id": 1, "ring_id": 1}), "StopPump"),
    ("an unknown member of the event", trace(event=STOP | {"colour": 1}), "colour"),
    ("an unknown member of the step", trace(colour=1), "colour"),
    ("a doubled member", '{"local_node_id":1,"local_node_id":2,"steps":[]}', "local_node_id"),
    ("an enum in camel case", trace(event={"type": "StreamFault", "edge_id": 1, "reason": "ReadError"}), "ReadError"),
    ("not a number", trace(event=STOP | {"edge_id": float("nan")}), "$.steps[0].event.edge_id"),
    ("no node", '{"steps":[]}', "local_node_id"),
    ("an endless nesting", "[" * 100_000, "nested"),
    ("an endless number", '{"local_node_id":' + "9" * 5000 + ',"steps":[]}', "line 2"),
]


@pytest.mark.parametrize("read", [check, lambda lines: list(replay(lines))], ids=["check", "replay"])
@pytest.mark.parametrize(("line", "told"), [case[1:] for case in MALFORMED], ids=[case[0] for case in MALFORMED])
def test_a_malformed_line_is_refused_with_its_number(read, line, told):
    with pytest.raises(ValueError, match=r"line 2\b") as refusal:
        read([trace(), line])
    assert told in str(refusal.value)


@pytest.mark.parametrize("part", ["commands", "lifecycle", "records"])
def test_a_check_needs_every_part_of_a_step(part):
    given = json.loads(trace())
    del given["steps"][0][part]
    with pytest.raises(ValueError, match=part):
        check([json.dumps(given)])


@pytest.mark.parametrize("lines", [[], ["", " \n"], ['{"local_node_id":1,"steps":[]}']])
def test_a_check_of_nothing_is_refused(lines):
    with pytest.raises(ValueError, match="nothing to check"):
        check(lines)


def test_blank_lines_count_but_are_skipped():
    assert check(["\n", trace() + "\n", "\n"]).matched == 1
    assert len(list(replay(["\n", trace(), ""]))) == 1
    with pytest.raises(ValueError, match="line 3"):
        check(["", trace(), "{"])


# --- strict ---

SPECS = {
    "object_spec": {"kind": "activation", "dtype": "f16", "max_extent_bytes": 4096},
    "ring_spec": {"header_bytes": 128, "data_bytes": 4096, "alignment": 64},
}
TX = {"type": "ProvisionTx", "run_id": 7, "edge_id": 1, "local_node_id": 10, "consumer_node_id": 10, **SPECS}
RX = {"type": "ProvisionRx", "run_id": 7, "edge_id": 1, "local_node_id": 10, **SPECS}
READY = {"type": "DriverEdgeReady", "edge_id": 1}
OFFSETS = {"start_offset": 0, "header_offset": 0, "data_offset": 128, "end_offset": 4224}


def leased(request):
    layout = OFFSETS | {"data_bytes": 4096, "alignment": 64}
    return {"type": "RingLeased", "request_id": request, "ring_id": request, "layout": layout}


def installed(ring):
    return {"type": "RingInstalled", "edge_id": 1, "ring_id": ring}


def strictly(*steps):
    """The completed steps; a step is an event or an event with its direction."""
    given = [{"event": step} if isinstance(step, dict) else {"event": step[0], "direction": step[1]} for step in steps]
    (line,) = replay([json.dumps({"local_node_id": 10, "steps": given})], Semantics.STRICT)
    return json.loads(line)["steps"]


def test_under_strict_both_ends_of_an_edge_have_a_record_of_their_own():
    steps = strictly(TX, RX, leased(1), leased(2), installed(1), installed(2), READY, (READY, "ingress"), STOP)
    assert [list(step["records"]) for step in steps] == [["1/egress", "1/ingress"]] * 9
    assert steps[0]["records"]["1/ingress"] is None
    states = [[record and record["state"] for record in step["records"].values()] for step in steps[5:]]
    assert states == [
        ["waiting_for_driver", "waiting_for_driver"],
        ["waiting_for_driver", "waiting_for_driver"],
        ["waiting_for_driver", "ready"],
        ["stopping", "stopping"],
    ]
    assert [step["rejected"] for step in steps[5:]] == [None, "direction_needed", None, None]
    assert [step.get("direction") for step in steps[6:]] == [None, "ingress", None]
    assert steps[7]["lifecycle"] == [{"type": "EdgeReady", "edge_id": 1, "local_edge_actor": 2}]


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ([TX | {"local_node_id": 11}], "wrong_node"),
        ([TX, TX | {"consumer_node_id": 12}], "edge_live"),
        ([TX, RX | {"run_id": 6}], "stale_run"),
        ([TX | {"ring_spec": SPECS["ring_spec"] | {"alignment": 0}}], "invalid_spec"),
        ([STOP], "unknown_edge"),
        ([TX, TX], None),
    ],
)
def test_under_strict_a_step_says_why_its_event_was_turned_away(events, reason):
    assert strictly(*events)[-1]["rejected"] == reason


def test_under_seed_a_direction_is_kept_but_not_looked_at():
    given = json.dumps({"local_node_id": 10, "steps": [{"event": TX, "direction": "ingress"}, {"event": STOP}]})
    (line,) = replay([given])
    first, second = json.loads(line)["steps"]
    assert (first["direction"], "rejected" in first, list(first["records"])) == ("ingress", False, ["1"])
    assert second["records"]["1"]["state"] == "stopped"


def test_recorded_traces_of_the_seed_are_completed_anew_under_strict_and_pass_its_check():
    completed = list(replay(GOLDEN, Semantics.STRICT))
    result = check(completed, Semantics.STRICT)
    assert (result.traces, result.matched, result.difference) == (len(GOLDEN), 2400, None)
    assert all(key.count("/") == 1 for line in completed for key in json.loads(line)["steps"][-1]["records"])
    assert list(replay(replay(GOLDEN, Semantics.STRICT))) == list(replay(GOLDEN))  # and back


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"commands": []}, "commands: expected []"),
        ({"rejected": "edge_live"}, 'rejected: expected "edge_live", got null'),
        ({"records": {"1/egress": None}}, "record of edge 1/egress: expected null"),
        ({"lifecycle": [{"type": "EdgeStopped", "edge_id": 1}]}, "lifecycle"),
    ],
)
def test_under_strict_a_changed_step_is_told(change, told):
    (line,) = replay([json.dumps({"local_node_id": 10, "steps": [{"event": TX}]})], Semantics.STRICT)
    recorded = json.loads(line)
    assert check([line], Semantics.STRICT).difference is None
    recorded["steps"][0] |= change
    assert told in check([json.dumps(recorded)], Semantics.STRICT).difference


def test_a_recorded_step_need_not_name_every_end_or_its_rejection():
    (line,) = replay([json.dumps({"local_node_id": 10, "steps": [{"event": TX}]})], Semantics.STRICT)
    recorded = json.loads(line)
    del recorded["steps"][0]["rejected"], recorded["steps"][0]["records"]["1/ingress"]
    assert check([json.dumps(recorded)], Semantics.STRICT).difference is None


@pytest.mark.parametrize(("semantics", "key"), [(Semantics.STRICT, "1"), (Semantics.SEED, "1/egress")])
def test_a_check_refuses_keys_of_the_other_semantics(semantics, key):
    with pytest.raises(ValueError, match=f"line 2, step 1: '{key}' is no key under {semantics}"):
        check(["", trace(records={key: None})], semantics)
