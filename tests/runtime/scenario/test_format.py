from __future__ import annotations

from pathlib import Path

import pytest

from actors.gate.policy import parse_policy
from messages.control import Interval, Listener, Once
from runtime.cluster import ClusterFault, ClusterFaultCode
from runtime.scenario.format import VERBS, Ending, ModePart, load_scenario, parse_scenario
from runtime.scenario.toml_text import policy_toml

ROOT = Path(__file__).parents[3]

HEAD = """\
title = "t"
format = 1

[cluster]
nodes = [{ name = "attic" }, { name = "shed" }]

[[package]]
name = "hostwatch"
dir = "packages/hostwatch"
"""
STEP = "[[step]]\nbarrier = {}\n"


def fault_of(text: str) -> str:
    with pytest.raises(ClusterFault) as caught:
        parse_scenario(text, "s.toml")
    assert caught.value.code is ClusterFaultCode.INVALID
    return caught.value.text


def test_the_smallest_scenario_reads() -> None:
    scenario = parse_scenario(HEAD + STEP, "s.toml")
    assert [step.verb[0] for step in scenario.step] == ["barrier"]
    assert scenario.worlds == ("live",)


@pytest.mark.parametrize("file", sorted((ROOT / "scenarios").glob("*.toml")), ids=lambda path: path.name)
def test_every_scenario_of_the_project_is_well_formed(file: Path) -> None:
    assert load_scenario(file).step


@pytest.mark.parametrize(
    ("step", "says"),
    [
        ("", "a step has exactly one verb"),
        ("barrier = {}\ncheck = { processes = 0 }", "this one has check and barrier"),
        ("barier = {}", "step[0].barier: this key is not known here"),
        ("at = 1\nafter = 'workload.place/placed'\nbarrier = {}", "exclude each other"),
        ("after = 'controller/plane:PlaceReport'\nbarrier = {}", "world sim only"),
        ("within = 0\nbarrier = {}", "step[0].within"),
        ("at = -1\nbarrier = {}", "step[0].at"),
        ("at = nan\nbarrier = {}", "finite"),
        ("place = { package = 'other' }", "'other' is not known here; there are: hostwatch"),
        ("place = { package = 'hostwatch', pin = 'loft' }", "step[0].place.pin: 'loft'"),
        ("place = { package = 'hostwatch', prefer = ['loft'] }", "step[0].place.prefer"),
        ("place = { package = 'hostwatch', mode = {} }", "step[0].place.mode: give one of"),
        ("place = { package = 'hostwatch', mode = { once = true, interval = 1 } }", "give one of"),
        ("place = { package = 'hostwatch', mode = { interval = 0 } }", "step[0].place.mode.interval"),
        ("place = { package = 'hostwatch', code = 'package' }", "goes with ends"),
        ("place = { package = 'hostwatch', ends = 'maybe' }", "step[0].place.ends"),
        ("stop = { instance = 'hostwatch' }", "is not WORKLOAD@NODE"),
        ("stop = { instance = 'hostwatch@loft' }", "'loft' is not known here"),
        ("crash = { process = 'root' }", "'root' is not known here"),
        ("expect = {}", "of what?"),
        ("expect = { state = 'running' }", "of which instance"),
        ("expect = { instance = 'hostwatch@shed' }", "what is expected of it?"),
        ("expect = { instance = 'hostwatch@shed', state = 'fine' }", "step[0].expect.state"),
        ("expect = { process = 'shed', restarts = -1 }", "step[0].expect.restarts"),
        ("check = {}", "what is checked?"),
    ],
)
def test_a_wrong_step_is_refused_with_its_place(step: str, says: str) -> None:
    fault = fault_of(f"{HEAD}{STEP}".replace("barrier = {}", step))
    assert says in fault
    assert fault.startswith(("s.toml:10: ", "s.toml:11: ", "s.toml:12: "))


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("format = 1", "format = 2", "s.toml:2: format: this sennit plays format 1, not 2"),
        ('title = "t"', 'title = " "', "s.toml:1: title"),
        ('title = "t"', "", "title: this key is missing"),
        ("format = 1", "format = 1\nworlds = []", "s.toml:3: worlds"),
        ("format = 1", 'format = 1\nworlds = ["moon"]', "s.toml:3: worlds[0]"),
        ('{ name = "shed" }', '{ name = "attic" }', "s.toml:5: cluster.nodes: two nodes"),
        ('{ name = "shed" }', '{ name = "Shed" }', "s.toml:5: cluster.nodes[1].name"),
        ('{ name = "shed" }', '{ name = "chain" }', "taken by the cluster itself"),
        ('{ name = "attic" }, { name = "shed" }', "", "needs at least one node"),
        ("[[package]]", '[[package]]\nname = "hostwatch"\ndir = "x"\n[[package]]', "two packages"),
        ("[[step]]", '[expect]\nsays = "x"\n[[step]]', "has no failure to say anything"),
        ("[[step]]", "[[step]", "not TOML"),
        ("[[step]]", "[cluster.policy]\nthreshold = -1\n[[step]]", "cluster.policy"),
        ("[[step]]", '[[always]]\ninvariant = "peace"\n[[step]]', "always[0].invariant"),
        ("[[step]]", "[[finally]]\ncheck = {}\n[[step]]", "finally[0].check: what is checked"),
    ],
)
def test_a_wrong_header_is_refused_with_its_place(old: str, new: str, says: str) -> None:
    text = HEAD + STEP
    assert old in text
    assert says in fault_of(text.replace(old, new))


def test_a_package_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    file = tmp_path / "s.toml"
    file.write_text(HEAD + STEP)
    with pytest.raises(ClusterFault, match=r"s\.toml:9: package\[0\]\.dir: .*holds no cog\.toml"):
        load_scenario(file)


def test_a_mode_is_one_of_three() -> None:
    assert ModePart(once=True).run_mode() == Once()
    assert ModePart(interval=3).run_mode() == Interval(secs=3)
    assert ModePart(listener=5006).run_mode() == Listener()


def test_every_verb_is_a_member_of_a_step() -> None:
    tables = {
        "place": "{ package = 'hostwatch' }",
        "plan": "{ package = 'hostwatch' }",
        **dict.fromkeys(("start", "stop", "unload"), "{ instance = 'hostwatch@shed' }"),
        **dict.fromkeys(("crash", "hang", "resume"), "{ process = 'shed' }"),
        "expect": "{ node = 'shed', reachable = true }",
        "check": "{ chain = 'verifies' }",
        "barrier": "{}",
    }
    assert set(tables) == set(VERBS)
    for verb, table in tables.items():
        scenario = parse_scenario(HEAD + STEP.replace("barrier = {}", f"{verb} = {table}"), "s.toml")
        assert scenario.step[0].verb[0] == verb


def test_endings_other_than_done_take_a_code() -> None:
    step = "unload = { instance = 'hostwatch@shed', ends = 'refused', code = 'governance' }"
    unload = parse_scenario(HEAD + STEP.replace("barrier = {}", step), "s.toml").step[0].unload
    assert unload is not None
    assert (unload.ends, unload.code) == (Ending.REFUSED, "governance")


def test_a_policy_is_written_as_it_was_read() -> None:
    text = """
    threshold = 0.5
    [[permit]]
    id = "a \\"quoted\\" id"
    actions = ["workload.*"]
    kinds = ["cog"]
    allow_secrets = true
    """
    policy = parse_policy(text)
    assert parse_policy(policy_toml(policy)) == policy
