"""How instances are named, and how their output is followed."""

from __future__ import annotations

import pytest

from actors.actor import AskFailed
from messages.base import Address
from messages.control import LifeState
from messages.placement import InstanceLine, InstanceLines
from messages.system import AskFailure
from runtime.cli import instance
from runtime.cli.output import ExitCode, Failed

PLANE = Address("controller/plane")


def line(digits: str, node: str) -> InstanceLine:
    return InstanceLine(
        instance_id=f"feed-{digits}-{node}", workload="feed", node_id="n-0123456789abcdef", node=node,
        variant="noarch-native", state=LifeState.RUNNING, slot="cog:feed", epoch="1.1", decision_id="d" * 64,
    )  # fmt: skip


def test_an_instance_has_three_names() -> None:
    lines = InstanceLines(instances=[line("aaaa", "shed"), line("bbbb", "loft")], unsettled=[])
    for name in ("feed@loft", "feed-bbbb-loft", "feed-b"):
        assert instance.find(lines, name).node == "loft"


@pytest.mark.parametrize(
    ("name", "code", "told"),
    [
        ("feed@shed", "ambiguous_instance", "feed-aaaa-shed, feed-cccc-shed"),
        ("feed@attic", "unknown_instance", "feed@shed, feed@shed"),
    ],
)
def test_a_name_that_is_not_one_instance_tells_which_there_are(name, code, told) -> None:
    with pytest.raises(Failed) as failed:
        instance.find(InstanceLines(instances=[line("aaaa", "shed"), line("cccc", "shed")], unsettled=[]), name)
    assert (failed.value.exit_code, failed.value.code) == (ExitCode.USAGE, code)
    assert told in failed.value.text


class Answers:
    """A client whose asks end as listed."""

    def __init__(self, *ends) -> None:
        self.ends = list(ends)

    def ask(self, to, request, timeout_s):
        end = self.ends.pop(0)
        if isinstance(end, Exception):
            raise end
        return end


@pytest.fixture
def at_once(monkeypatch):
    monkeypatch.setattr(instance, "_FOLLOW_S", 0)
    monkeypatch.setattr(instance, "require_up", lambda _: None)


def test_following_a_log_outlives_a_restart_of_controller_and_node(at_once) -> None:
    passing = [
        AskFailed(AskFailure.UNREACHABLE, PLANE, "", "no link"),
        AskFailed(AskFailure.DIED, PLANE, "", "gone"),
        AskFailed(AskFailure.REFUSED, PLANE, "no_such_actor", "starting"),
        AskFailed(AskFailure.REFUSED, PLANE, "call_unreachable", "the node is away"),
    ]
    assert instance._again(None, Answers(*passing, "more"), "feed-aaaa", {}) == "more"


def test_following_a_log_ends_quietly_when_the_instance_is_unloaded(at_once) -> None:
    unknown = AskFailed(AskFailure.REFUSED, PLANE, "unknown", "no placed instance")
    assert instance._again(None, Answers(unknown), "feed-aaaa", {"stdout_offset": 7}) is None
    with pytest.raises(AskFailed, match="no placed instance"):
        instance._again(None, Answers(unknown), "feed-aaaa", {})


def test_following_a_log_ends_with_a_refusal_or_the_cluster(at_once, monkeypatch) -> None:
    refused = AskFailed(AskFailure.REFUSED, PLANE, "no_instance", "unloaded")
    with pytest.raises(AskFailed, match="unloaded"):
        instance._again(None, Answers(refused), "feed-aaaa", {})

    def down(_):
        raise Failed(ExitCode.NO_CLUSTER, "not_up", "it is down")

    monkeypatch.setattr(instance, "require_up", down)
    with pytest.raises(Failed, match="it is down"):
        instance._again(None, Answers(AskFailed(AskFailure.UNREACHABLE, PLANE, "", "no link")), "feed-aaaa", {})
