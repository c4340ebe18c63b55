"""Recorded placement decisions: answered, compared, and nothing malformed passes."""

import json

import pytest

from runtime.replay_engine import check, replay

PERMIT = {"mode": "uniform", "verdict": {"verdict": "permit"}}
REQUEST = {
    "spec": {"kind": "cog", "name": "watch", "requirements": {"common": [{"id": "os.linux"}]}},
    "gate": PERMIT,
}
SHED = {
    "node_id": "shed",
    "capabilities": [{"id": "os.linux", "provenance": "probed"}],
    "liveness": "alive",
    "trust_tier": "paired",
    "load": 0.25,
}
CLUSTER = {"now_ms": 1000}


def question(**changes):
    return {"request": REQUEST, "facts": [SHED], "cluster": CLUSTER} | changes


def answer(asked):
    return json.loads(next(replay([json.dumps(asked)])))


def recorded(**changes):
    asked = question(**changes)
    return json.dumps(asked | answer(asked))


def test_a_decision_is_answered_with_its_explanation():
    got = answer(question())
    score = {"execution": 100.0, "locality": 0.0, "accel_fit": 10.0, "perf": 0.0, "load": 7.5, "stickiness": 0.0}
    assert got["decision"] == {
        "kind": "cog",
        "name": "watch",
        "allow_emulated": False,
        "placement": {
            "node_id": "shed", "variant": "default", "execution": "native", "tier": "native", "score": score,
            "flags": [],
        },
        "candidates": [
            {"node_id": "shed", "rejections": [], "variant": "default", "tier": "native", "score": score, "flags": [],
             "assigned": [["os.linux"]]},
        ],
    }  # fmt: skip
    assert got["explain"].startswith("workload watch (kind cog)\n")
    assert list(got) == ["decision", "explain"]


def test_a_rejected_node_is_written_without_the_members_it_lacks():
    got = answer(question(request=REQUEST | {"gate": {"mode": "per_node", "verdicts": {}}}))
    assert "placement" not in got["decision"]
    detail = "workload.place denied: no gate decision for this node"
    assert got["decision"]["candidates"] == [
        {"node_id": "shed", "rejections": [{"constraint": "gate", "detail": detail}], "flags": [], "assigned": []}
    ]


def test_an_error_is_answered_with_its_constraints():
    assert answer(question(request=REQUEST | {"pin": "attic"})) == {
        "error": 'pinned node "attic" is not a known node',
        "constraints": [],
    }
    dead = answer(question(request=REQUEST | {"pin": "shed"}, facts=[SHED | {"liveness": "dead"}]))
    assert dead["constraints"] == ["liveness"]


def test_recorded_answers_match_and_blank_lines_are_skipped():
    lines = [recorded(), "\n", recorded(request=REQUEST | {"pin": "attic"}), recorded(facts=[])]
    result = check(lines)
    assert (result.matched, result.steps, result.difference) == (3, 3, None)


def test_whole_and_fractional_spelling_of_a_number_is_one_number():
    assert check([recorded().replace('"execution": 100.0', '"execution": 100')]).difference is None


@pytest.mark.parametrize(
    ("old", "new", "place"),
    [
        ('"load": 7.5', '"load": 7.25', "answer.decision.placement.score.load: expected 7.25, got 7.5"),
        ('"allow_emulated": false', '"allow_emulated": 0', "answer.decision.allow_emulated: expected 0, got false"),
        ('"flags": []', '"flags": ["pinned"]', 'answer.decision.placement.flags: expected ["pinned"], got []'),
        ('"tier": "native", ', "", 'answer.decision.placement.tier: expected none, got "native"'),
        ('"kind": "cog", "name": "watch", "allow', '"kind": "cog", "name": "watch", "pin": "x", "allow',
         'answer.decision.pin: expected "x", got none'),
        ("workload watch", "workload wotch", "answer.explain: expected "),
    ],
)  # fmt: skip
def test_the_first_difference_is_named_with_its_line(old, new, place):
    changed = recorded().replace(old, new, 1)
    assert changed != recorded()
    result = check([recorded(), changed, recorded()])
    assert (result.matched, result.steps) == (1, 2)
    assert result.difference.startswith(f"line 2, {place}")


def test_a_recorded_error_is_not_a_decision():
    result = check([json.dumps(question() | {"error": "x", "constraints": []})])
    assert result.difference.startswith("line 1, answer.error: expected ")


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        "{}",
        '{"request": 1, "request": 2}',
        json.dumps(question(extra=1)),
        json.dumps(question(facts=[SHED | {"liveness": "well"}])),
        json.dumps(question(facts=[SHED | {"load": True}])),
        json.dumps(question(cluster={"now_ms": 2**64})),
        json.dumps(question(cluster={"now_ms": -1})),
        json.dumps(question(cluster={"now_ms": 1.5})),
        json.dumps(question(facts=[SHED | {"facts_expire_at_ms": 2**64}])),
        json.dumps(question(facts=[SHED | {"load": float("nan")}])),
        json.dumps(question(facts=[SHED | {"capabilities": [{"id": "BAD", "provenance": "probed"}]}])),
        json.dumps(question(request={"spec": REQUEST["spec"]})),
        json.dumps(question(request=REQUEST | {"gate": {"mode": "maybe"}})),
        "[" * 100_000,
    ],
)
def test_a_bad_line_is_refused_with_its_number(line):
    with pytest.raises(ValueError, match="line 3"):
        list(replay([json.dumps(question()), "", line]))
    with pytest.raises(ValueError, match="line 2"):
        check([recorded(), line])


def test_a_comparison_of_nothing_is_no_success():
    with pytest.raises(ValueError, match="nothing to check"):
        check(["\n"])
    with pytest.raises(ValueError, match="line 1 has no answer"):
        check([json.dumps(question())])
