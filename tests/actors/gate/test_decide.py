"""What a gate decides: G 7.9 without revocations, which are not built yet."""

import math

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.gate.context import ContextFault, check_context, parse_context
from actors.gate.decide import DEFAULT_DENY, EFFECT_CEILING, decide, ungoverned
from actors.gate.effect import effect_of
from actors.gate.policy import Permit, Policy
from messages.gate import Action, Decision, Network, PackageTrust, WorkloadContext
from messages.workload_spec import TrustTier

AGENT = "n-0123456789abcdef"
BASE = WorkloadContext(
    kind="cog",
    package_trust=PackageTrust.PINNED_SIGNER,
    node_tier=TrustTier.PAIRED,
    network=Network.LAN,
    resource_cost=0.2,
    package_id="cog.fall-detect",
    signer_keys=["ab" * 32],
    artifact_hashes=["cd" * 32],
)


def context(**changes):
    return msgspec.structs.replace(BASE, **changes)


def permit(**changes):
    return Permit(**{"id": "cogs", "actions": ("workload.place",), "kinds": ("cog",), **changes})


EVERYTHING = Permit(
    id="all",
    actions=("workload.*",),
    kinds=("*",),
    min_package_trust=PackageTrust.UNSIGNED,
    min_node_tier=TrustTier.DISCOVERED,
    max_network=Network.EGRESS,
    allow_secrets=True,
    allow_emulated=True,
    accelerators=("*",),
    principals=(AGENT,),
)


def judge(policy, given=None, action=Action.PLACE, agent=AGENT, project=None):
    return decide(policy, agent, action, context() if given is None else given, project)


@pytest.mark.parametrize("action", Action)
def test_without_a_permit_every_action_is_denied(action):
    judged = judge(Policy(), action=action)
    assert judged.decision is Decision.DENY
    assert "default deny" in judged.reason
    assert action.value in judged.reason
    assert judged.evaluated_rules == (DEFAULT_DENY,)
    assert judged.workload.kind == "cog"
    assert judged.permit_rule is None


@pytest.mark.parametrize(
    ("action", "why"),
    [("workload.teleport", "unknown workload action"), ("tool.exec", "only governs"), ("", "only governs")],
)
def test_an_action_outside_the_nine_is_not_governed(action, why):
    assert why in ungoverned(action)


def test_the_nine_and_edges_are_governed():
    assert [action.value for action in Action if ungoverned(action.value)] == []
    assert len(Action) == 10


def test_a_permit_permits_its_action_and_kind_only():
    policy = Policy(permits=(permit(),))
    judged = judge(policy)
    assert (judged.decision, judged.reason, judged.permit_rule) == (Decision.PERMIT, "", "cogs")
    assert judged.effect.risk > 0
    assert not judged.threshold_exceeded
    assert DEFAULT_DENY not in judged.evaluated_rules
    assert judge(policy, action=Action.START).decision is Decision.DENY
    assert judge(policy, context(kind="inference")).decision is Decision.DENY


CONDITIONS = [
    ({"package_trust": PackageTrust.SIGNED_UNPINNED}, {"min_package_trust": PackageTrust.SIGNED_UNPINNED}),
    ({"node_tier": TrustTier.DISCOVERED}, {"min_node_tier": TrustTier.DISCOVERED}),
    ({"network": Network.EGRESS}, {"max_network": Network.EGRESS}),
    ({"emulated": True}, {"allow_emulated": True}),
    ({"accelerator": "accel.gpu.metal"}, {"accelerators": ("accel.gpu.*",)}),
    ({"secrets": True, "node_tier": TrustTier.PINNED}, {"allow_secrets": True}),
]


@pytest.mark.parametrize(("change", "opt_in"), CONDITIONS)
def test_each_condition_refuses_alone_and_its_opt_in_lifts_only_it(change, opt_in):
    denied = judge(Policy(threshold=5, permits=(permit(),)), context(**change))
    assert denied.decision is Decision.DENY
    assert "permit 'cogs':" in denied.reason
    opened = Policy(threshold=5, permits=(permit(**opt_in),))
    assert judge(opened, context(**change)).decision is Decision.PERMIT
    for other, _ in CONDITIONS:
        if other != change:
            assert judge(opened, context(**other)).decision is Decision.DENY


def test_a_cost_above_the_cap_is_refused():
    policy = Policy(permits=(permit(max_resource_cost=0.1),))
    assert "resource cost 0.2" in judge(policy).reason
    assert judge(policy, context(resource_cost=0.1)).decision is Decision.PERMIT


def test_an_accelerator_selector_is_exact_or_a_prefix():
    policy = Policy(permits=(permit(accelerators=("accel.gpu.*", "accel.npu")),))
    for accelerator, decision in [
        ("accel.gpu.metal", Decision.PERMIT),
        ("accel.npu", Decision.PERMIT),
        ("accel.npu.ane", Decision.DENY),
        ("accel.gpux", Decision.DENY),
    ]:
        assert judge(policy, context(accelerator=accelerator)).decision is decision


def test_the_ceiling_stops_what_a_wide_permit_lets_through():
    policy = Policy(permits=(EVERYTHING,))
    assert judge(policy).decision is Decision.PERMIT
    heavy = context(package_trust=PackageTrust.UNSIGNED, node_tier=TrustTier.DISCOVERED, network=Network.EGRESS)
    judged = judge(policy, heavy)
    assert (judged.decision, judged.threshold_exceeded, judged.permit_rule) == (Decision.DENY, True, "all")
    assert EFFECT_CEILING in judged.evaluated_rules
    assert judged.reason == "rule 'WORKLOAD-EFFECT-CEILING': effect magnitude 1.37 > threshold 0.80"


def test_with_human_approval_the_ceiling_defers():
    policy = Policy(human_approval=True, permits=(EVERYTHING,))
    judged = judge(policy, context(package_trust=PackageTrust.UNSIGNED, node_tier=TrustTier.DISCOVERED))
    assert judged.decision is Decision.DEFER
    assert judge(Policy(human_approval=True)).decision is Decision.DENY


def test_secrets_need_a_pinned_node_whatever_the_permit_says():
    policy = Policy(permits=(EVERYTHING,))
    for tier in (TrustTier.DISCOVERED, TrustTier.PAIRED):
        judged = judge(policy, context(secrets=True, node_tier=tier))
        assert judged.decision is Decision.DENY
        assert "pinned node" in judged.reason
    assert judge(policy, context(secrets=True, node_tier=TrustTier.PINNED)).decision is Decision.PERMIT


def test_the_first_matching_permit_counts():
    policy = Policy(permits=(permit(id="narrow", max_resource_cost=0.1), permit(id="wide"), permit(id="wider")))
    assert judge(policy).permit_rule == "wide"
    assert judge(policy, context(resource_cost=0.05)).permit_rule == "narrow"


def test_a_permit_that_names_principals_is_for_them_only():
    policy = Policy(permits=(permit(principals=("catalog",)),))
    assert judge(policy, agent="catalog").decision is Decision.PERMIT
    assert judge(policy).decision is Decision.DENY


def test_a_permit_for_projects_needs_a_verified_one():
    policy = Policy(permits=(permit(projects=("p1",)),))
    assert judge(policy, project="p1").decision is Decision.PERMIT
    assert judge(policy, project="p2").decision is Decision.DENY
    assert judge(policy).decision is Decision.DENY


def test_a_denial_names_what_each_permit_objected_to_but_not_without_end():
    policy = Policy(permits=tuple(permit(id=f"p{number}", max_resource_cost=0.1) for number in range(9)))
    reason = judge(policy).reason
    assert "permit 'p0': resource cost" in reason
    assert reason.endswith("and 5 more")


@pytest.mark.parametrize(
    ("changes", "vector", "magnitude"),
    [
        ({}, (0.1, 0.2, 0, 0, 0.4), 0.4583),
        (
            {"package_trust": PackageTrust.UNSIGNED, "node_tier": TrustTier.DISCOVERED, "network": Network.EGRESS},
            (0.9, 0.2, 0.2, 0, 1.0), 1.3748,
        ),
        ({"network": Network.EGRESS, "resource_cost": 0.25}, (0.1, 0.25, 0.2, 0, 0.6), 0.6874),
        ({"network": Network.EGRESS, "resource_cost": 0.25, "node_tier": TrustTier.DISCOVERED},
         (0.1, 0.25, 0.2, 0, 1.0), 1.0548),
        ({"network": Network.EGRESS, "resource_cost": 0.25, "emulated": True}, (0.2, 0.25, 0.2, 0.4, 0.6), 0.8139),
        ({"accelerator": "accel.gpu", "secrets": True, "network": Network.NONE}, (0.1, 0.2, 0.5, 0.2, 0.3), 0.6557),
    ],
)  # fmt: skip
def test_the_effect_is_computed(changes, vector, magnitude):
    effect = effect_of(context(**changes))
    got = (effect.risk, effect.fairness, effect.privacy, effect.novelty, effect.security)
    assert got == pytest.approx(vector)
    assert effect.magnitude == pytest.approx(magnitude, abs=1e-4)


contexts = st.builds(
    WorkloadContext,
    kind=st.just("cog"),
    package_trust=st.sampled_from(PackageTrust),
    node_tier=st.sampled_from(TrustTier),
    network=st.sampled_from(Network),
    secrets=st.booleans(),
    emulated=st.booleans(),
    accelerator=st.none() | st.just("accel.npu"),
    resource_cost=st.floats(0, 1),
)


@given(contexts)
@settings(max_examples=100, deadline=None)
def test_an_effect_is_bounded_and_nothing_above_the_ceiling_is_permitted(given_context):
    effect = effect_of(given_context)
    for component in (effect.risk, effect.fairness, effect.privacy, effect.novelty, effect.security):
        assert 0 <= component <= 1
    judged = judge(Policy(permits=(EVERYTHING,)), given_context)
    if judged.decision is Decision.PERMIT:
        assert effect.magnitude <= 0.8
        assert not given_context.secrets or given_context.node_tier is TrustTier.PINNED
    assert (judged.reason == "") == (judged.decision is Decision.PERMIT)


@given(contexts, contexts)
@settings(max_examples=100, deadline=None)
def test_more_trust_and_less_reach_are_never_denied_where_less_was_permitted(one, other):
    policy = Policy(permits=(EVERYTHING,))
    better = WorkloadContext(
        kind="cog",
        package_trust=max(one.package_trust, other.package_trust, key=lambda trust: trust.rank),
        node_tier=max(one.node_tier, other.node_tier, key=lambda tier: tier.rank),
        network=min(one.network, other.network, key=lambda network: network.rank),
        secrets=one.secrets and other.secrets,
        emulated=one.emulated and other.emulated,
        accelerator=one.accelerator and other.accelerator,
        resource_cost=min(one.resource_cost, other.resource_cost),
    )
    # project_cert ranks below signed_unpinned although its risk is smaller, so only what is no riskier compares
    if effect_of(better).risk <= effect_of(one).risk and judge(policy, one).decision is Decision.PERMIT:
        assert judge(policy, better).decision is Decision.PERMIT


WORKLOAD = '{"kind":"cog","package_trust":"pinned_signer","node_tier":"paired","network":"lan"%s}'


def request(members):
    return ('{"workload":' + members + "}").encode()


def test_a_context_is_read_and_what_stands_beside_it_is_ignored():
    text = '{"node_id":"n","effect":{"risk":0},"project_id":"p1","workload":' + WORKLOAD % ',"resource_cost":0.5' + "}"
    read = parse_context(text.encode())
    assert (read.kind, read.network, read.resource_cost) == ("cog", Network.LAN, 0.5)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        request('"cog"'),
        request("{}"),
        request(WORKLOAD.replace('"cog"', '"Cog!"') % ""),
        request(WORKLOAD.replace('"cog"', '""') % ""),
        request(WORKLOAD.replace("pinned_signer", "trusted") % ""),
        request(WORKLOAD.replace("paired", "admin") % ""),
        request(WORKLOAD.replace("lan", "wan") % ""),
        request(WORKLOAD % ',"resource_cost":2.0'),
        request(WORKLOAD % ',"resource_cost":-0.1'),
        request(WORKLOAD % ',"resource_cost":NaN'),
        request(WORKLOAD % ',"resource_cost":"0"'),
        request(WORKLOAD % ',"accelerator":"GPU"'),
        request(WORKLOAD % ',"accelerator":"a..b"'),
        request(WORKLOAD % ',"accelerator":".a"'),
        request(WORKLOAD % ',"signer_keys":["xyz"]'),
        request(WORKLOAD % f',"artifact_hashes":["{"a" * 63}"]'),
        request(WORKLOAD % (',"signer_keys":[' + ",".join([f'"{"a" * 64}"'] * 65) + "]")),
        request(WORKLOAD % ',"package_id":"-x"'),
        request(WORKLOAD % f',"package_id":"{"a" * 129}"'),
        request(WORKLOAD % ',"secrets":1'),
        request(WORKLOAD % ',"effect":{"risk":0}'),
        request(WORKLOAD % ',"kind":"other"'),
        request(WORKLOAD % "") + b"x",
    ],
)
def test_a_context_that_does_not_read_is_denied(text):
    with pytest.raises(ContextFault) as fault:
        parse_context(text)
    judged = judge(Policy(permits=(EVERYTHING,)), fault.value)
    assert judged.decision is Decision.DENY
    assert judged.reason.startswith("invalid workload context: ")
    assert judged.effect is None


@pytest.mark.parametrize("cost", [math.nan, math.inf, -0.5, 1.5])
def test_a_cost_that_is_no_share_is_not_judged(cost):
    with pytest.raises(ContextFault, match="resource_cost"):
        check_context(context(resource_cost=cost))
