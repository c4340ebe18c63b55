"""Slots and instance ids: what is the same, what differs, what is attached hardware (P 7.3, P 8.3)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.placement.order import configuration_digest, instance_id, is_node_id, needs_attached_hardware, slot_of
from messages.capabilities import Requirement
from messages.control import CtlConfig, Interval, Listener, Once
from messages.workload_spec import Variant, WorkloadRequirements, WorkloadSpec

NODE = "n-0123456789abcdef"
SAME = {"kind": "cog", "workload": "hostwatch", "version": "1.0.0", "package_id": "p", "config": CtlConfig(mode=Once())}


def test_slot_and_instance_id_have_their_form():
    digest = configuration_digest(**SAME)
    assert len(digest) == 16
    slot, pinned = slot_of(**SAME), slot_of(**SAME, pinned_to=NODE)
    assert (slot, pinned) == (f"cog:hostwatch-{digest}", f"cog:hostwatch-{digest}@{NODE}")
    assert instance_id(slot, NODE) == instance_id(pinned, NODE) == f"hostwatch-{digest}-{NODE}"


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": "other"},
        {"workload": "hostwatcher"},
        {"version": "1.0.1"},
        {"package_id": "q"},
        {"config": CtlConfig(mode=Listener())},
        {"config": CtlConfig(mode=Interval(secs=1))},
        {"config": CtlConfig(mode=Once(), csi_port=5007)},
        {"config": CtlConfig(mode=Once(), args=["--a"])},
    ],
)
def test_every_part_counts(changes):
    assert slot_of(**{**SAME, **changes}) != slot_of(**SAME)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text(max_size=4), max_size=3), st.lists(st.text(max_size=4), max_size=3))
def test_arguments_cannot_be_shifted_into_each_other(one, other):
    digests = [configuration_digest(**{**SAME, "config": CtlConfig(mode=Once(), args=args)}) for args in (one, other)]
    assert (digests[0] == digests[1]) == (one == other)


@pytest.mark.parametrize(
    ("text", "is_id"),
    [(NODE, True), ("n-0123", False), ("attic", False), ("n-0123456789ABCDEF", False), (NODE + "\n", False)],
)
def test_a_node_id_has_one_form(text, is_id):
    assert is_node_id(text) is is_id


@pytest.mark.parametrize(
    ("requirement", "bound"),
    [
        (Requirement(id="feed.csi"), True),
        (Requirement(id="sensor.camera"), True),
        (Requirement(id_prefix="device.usb"), True),
        (Requirement(id_prefix="device"), True),
        (Requirement(id_prefix="accel.npu"), False),
        (Requirement(id="cpu.arch.aarch64"), False),
        (Requirement(id="x.feed"), False),
    ],
)
@pytest.mark.parametrize("common", [True, False])
def test_what_is_attached_to_one_machine_binds_a_workload_to_it(requirement, bound, common):
    requirements = (
        WorkloadRequirements(common=(requirement,))
        if common
        else WorkloadRequirements(variants=(Variant(name="a-native", requirements=(requirement,)),))
    )
    assert needs_attached_hardware(WorkloadSpec(kind="cog", name="w", requirements=requirements)) is bound
