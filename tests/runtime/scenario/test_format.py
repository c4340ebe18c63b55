from __future__ import annotations

from pathlib import Path

import pytest

from actors.gate.policy import parse_policy
from messages.control import Interval, Listener, Once
from runtime.cluster import ClusterFault, ClusterFaultCode
from runtime.scenario.format import VERBS, Ending, ModePart
from runtime.scenario.reading import load_scenario, parse_scenario
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
        ("expect = { process = 'shed', running = true, reachable = true }", "is expected of which node?"),
        ("check = {}", "what is checked?"),
        ("check = { arenas = 'broken' }", "step[0].check.arenas"),
        ("crash = {}", "step[0].crash: of what? Either process or instance"),
        ("crash = { process = 'shed', instance = 'hostwatch@shed' }", "Either process or instance"),
        ("crash = { instance = 'hostwatch@loft' }", "'loft' is not known here"),
        ("crash = { process = 'loft.edges' }", "'loft.edges' is not known here; there are: attic, attic.edges, chain"),
        ("edge = {}", "step[0].edge: give from and to, or stop"),
        ("edge = { from = 'a.out' }", "step[0].edge: give from and to"),
        ("edge = { source = 'a.out', to = 'b.in' }", "step[0].edge.source: this key is not known here"),
        ("edge = { from = 'a', to = 'b.in' }", "step[0].edge.from: 'a' is neither WORKLOAD.PORT nor"),
        ("edge = { from = 'a.out', to = 'b@loft.in' }", "step[0].edge.to: 'loft' is not known here"),
        ("edge = { from = 'a.out', to = 'b.in', max_object = 0 }", "step[0].edge.max_object"),
        ("edge = { from = 'a.out', to = 'b.in', ring = '1MiB' }", "step[0].edge.ring"),
        ("edge = { from = 'a.out', to = 'b.in', code = 'exists' }", "goes with ends"),
        ("edge = { stop = 'a.out' }", "step[0].edge.stop: 'a.out' is not SOURCE->TARGET"),
        ("edge = { stop = 'a.out->b.in', to = 'b.in' }", "takes no from, to"),
        ("bounce = { link = ['attic.edges'] }", "step[0].bounce.link"),
        ("bounce = { link = ['attic.edges', 'attic.edges'] }", "within one process"),
        ("bounce = { link = ['attic', 'shed.edges'] }", "'attic' is not known here; there are: attic.edges"),
        ("expect = { edge = 'a.out->b.in' }", "One of phase, same_epoch, lives, faults, fault, objects, resumed"),
        ("expect = { edge = 'a.out', phase = 'ready' }", "step[0].expect.edge: 'a.out' is not SOURCE->TARGET"),
        ("expect = { edge = 'a@loft.out -> b.in', phase = 'ready' }", "step[0].expect.edge: 'loft'"),
        ("expect = { edge = 'a.out->b.in', phase = 'fine' }", "step[0].expect.phase"),
        ("expect = { edge = 'a.out->b.in', fault = 'bad' }", "step[0].expect.fault"),
        ("expect = { edge = 'a.out->b.in', lives = -1 }", "step[0].expect.lives"),
        ("expect = { node = 'shed', reachable = true, lives = 2 }", "is expected of which edge?"),
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
        "edge": "{ from = 'hostwatch@shed.out', to = 'trend.in', max_object = 65536, ring = 1048576 }",
        "bounce": "{ link = ['attic.edges', 'shed.edges'] }",
        "expect": "{ node = 'shed', reachable = true }",
        "check": "{ chain = 'verifies' }",
        "barrier": "{}",
    }
    assert set(tables) == set(VERBS)
    for verb, table in tables.items():
        scenario = parse_scenario(HEAD + STEP.replace("barrier = {}", f"{verb} = {table}"), "s.toml")
        assert scenario.step[0].verb[0] == verb


@pytest.mark.parametrize(
    "step",
    [
        "edge = { stop = 'a.out -> b@shed.in' }",
        "edge = { from = 'a.out', to = 'b.in', ends = 'refused', code = 'exists', says = 'sizes' }",
        "crash = { process = 'shed.edges' }",
        "hang = { instance = 'hostwatch@shed' }",
        "check = { arenas = 'whole' }",
        "expect = { edge = 'a.out->b@shed.in', same_epoch = true, faults = 1, objects = 0, resumed = 1 }",
        "expect = { edge = 'a.out->b.in', fault = 'worker_crashed' }",
        "expect = { process = 'shed.edges', running = false }",
        "expect = { node = 'shed', reachable = false }",
    ],
)
def test_what_may_be_said_of_edges_reads(step: str) -> None:
    verb, _ = parse_scenario(HEAD + STEP.replace("barrier = {}", step), "s.toml").step[0].verb
    assert step.startswith(f"{verb} = ")


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
