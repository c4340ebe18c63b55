"""What the documents say is what the program does."""

from __future__ import annotations

import re
import tomllib
from hashlib import sha256
from pathlib import Path

import pytest

from actors.gate.policy import parse_policy
from actors.packages.cog import parse_cog
from runtime.cli.main import VERBS
from runtime.cluster.settings import Restarts, Times, parse_settings
from runtime.scenario.format import VERBS as STEP_VERBS
from runtime.scenario.reading import parse_scenario

ROOT = Path(__file__).parents[3]
FORMATS = (ROOT / "docs/formats.md").read_text()
TEXTS = {name: (ROOT / name).read_text() for name in ("README.md", "docs/formats.md", "docs/operations.md")}


def block_after(heading: str) -> str:
    """The first TOML block below a heading of formats.md."""
    found = re.search(rf"^## {re.escape(heading)}\n.*?```toml\n(.*?)```", FORMATS, re.MULTILINE | re.DOTALL)
    assert found is not None, heading
    return found[1]


def test_the_documented_settings_are_read_and_are_the_defaults() -> None:
    text = block_after("cluster.toml").replace("<64 hex>", "ab" * 32)
    settings = parse_settings(text, "docs/formats.md")
    assert settings.times == Times()
    assert settings.restarts == Restarts()
    assert set(tomllib.loads(text)["times"]) == set(Times.__struct_fields__)
    assert set(tomllib.loads(text)["restarts"]) == set(Restarts.__struct_fields__)


def test_the_documented_policy_cog_and_scenario_are_read() -> None:
    assert parse_policy(block_after("policy.toml")).permits[0].id == "signed-cogs"
    assert parse_cog(block_after("Packages").encode()).id == "hostwatch"
    assert parse_scenario(block_after("Scenarios"), "docs/formats.md").step


def test_every_verb_of_a_step_is_documented() -> None:
    table = FORMATS.partition("| verb | table |")[2].partition("How it ends")[0]
    for verb in STEP_VERBS:
        assert f"`{verb}`" in table


def test_the_documented_genesis_hash_is_computed_as_documented() -> None:
    def field(data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + data

    payload = b'{"chain_id":"c-example"}'
    fields = [
        (0).to_bytes(8, "big"), b"c-example", (1_700_000_000_000).to_bytes(8, "big"), bytes(32), b"chain", b"genesis",
        sha256(payload).digest(), b"",
    ]  # fmt: skip
    expected = sha256(b"sennit.chain.record.v1\0" + b"".join(map(field, fields))).hexdigest()
    assert f"its hash `{expected}`" in FORMATS


@pytest.mark.parametrize("name", TEXTS)
def test_every_command_that_is_mentioned_exists(name: str) -> None:
    verbs = {verb for group in VERBS.values() for verb in group}
    mentioned = re.findall(r"(?:^\$? ?|`)sennit ([a-z]+)", TEXTS[name], re.MULTILINE)
    assert mentioned
    assert set(mentioned) <= verbs


def test_every_link_of_the_readme_leads_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", TEXTS["README.md"])
    assert targets
    for target in targets:
        assert (ROOT / target).exists(), target
