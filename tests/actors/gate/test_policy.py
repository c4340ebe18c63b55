"""Which policies are accepted (G 2.5, G 7.9 G14), and what is said of the others."""

import pytest

from actors.gate.policy import Permit, Policy, PolicyFault, parse_policy
from messages.gate import Network, PackageTrust
from messages.workload_spec import TrustTier


def permit_toml(**changes):
    fields = {"id": '"cogs"', "actions": '["workload.place"]', "kinds": '["cog"]', **changes}
    return "[[permit]]\n" + "".join(f"{name} = {value}\n" for name, value in fields.items() if value is not None)


def test_an_empty_policy_is_valid_and_permits_nothing():
    assert parse_policy("") == Policy()
    assert Policy().threshold == 0.8
    assert Policy().permits == ()


def test_a_permits_defaults_are_the_narrow_ones():
    [permit] = parse_policy(permit_toml()).permits
    assert permit == Permit(id="cogs", actions=("workload.place",), kinds=("cog",))
    assert permit.min_package_trust is PackageTrust.PINNED_SIGNER
    assert permit.min_node_tier is TrustTier.PAIRED
    assert permit.max_network is Network.LAN
    assert (permit.allow_secrets, permit.allow_emulated, permit.accelerators) == (False, False, ())


@pytest.mark.parametrize("selector", ["workload.*", "workload.st*", "workload.node.bind", "workload.node.*"])
def test_an_action_selector_is_governed(selector):
    parse_policy(permit_toml(actions=f'["{selector}"]'))


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (permit_toml(id='" "'), "permit[0].id"),
        (permit_toml(id='"a\\nb"'), "permit[0].id"),
        (permit_toml(id=None), "permit[0]"),
        (permit_toml(id="7"), "permit[0].id"),
        (permit_toml(actions="[]"), "permit[0].actions"),
        (permit_toml(actions=None), "permit[0]"),
        (permit_toml(kinds="[]"), "permit[0].kinds"),
        (permit_toml(kinds='["Cog"]'), "permit[0].kinds[0]"),
        (permit_toml(kinds='[""]'), "permit[0].kinds[0]"),
        (permit_toml(actions='["*"]'), "permit[0].actions[0]"),
        (permit_toml(actions='["workload.place", "tool.*"]'), "permit[0].actions[1]"),
        (permit_toml(actions='["workload.teleport"]'), "permit[0].actions[0]"),
        (permit_toml(actions='["workload.teleport*"]'), "permit[0].actions[0]"),
        (permit_toml(projects='[""]'), "permit[0].projects[0]"),
        (permit_toml(principals='[" "]'), "permit[0].principals[0]"),
        (permit_toml(accelerators='[""]'), "permit[0].accelerators[0]"),
        (permit_toml(min_package_trust='"unsigned"'), "permit[0].principals"),
        (permit_toml(min_package_trust='"trusted"'), "permit[0].min_package_trust"),
        (permit_toml(min_node_tier='"Paired"'), "permit[0].min_node_tier"),
        (permit_toml(max_network='"wan"'), "permit[0].max_network"),
        (permit_toml(max_resource_cost="1.5"), "permit[0].max_resource_cost"),
        (permit_toml(max_resource_cost="nan"), "permit[0].max_resource_cost"),
        (permit_toml(allow_secret="true"), "permit[0]"),
        (permit_toml(allow_secrets='"yes"'), "permit[0].allow_secrets"),
        (permit_toml() + permit_toml(), "permit[1].id"),
        ("threshold = -1", "threshold"),
        ("threshold = inf", "threshold"),
        ("threshold = nan", "threshold"),
        ('threshold = "0.8"', "threshold"),
        ("format = 2", "format"),
        ("treshold = 0.8", ""),
        ("format = 0x" + "f" * 5000, ""),
        ("format = " + "9" * 5000, ""),
        ("a." * 20 + "a = 1", ""),
        ("permit = 3", "permit"),
        ("threshold = ", ""),
        ("a = 1\na = 2", ""),
    ],
)
def test_a_faulty_policy_is_refused_naming_the_key(text, key):
    with pytest.raises(PolicyFault) as fault:
        parse_policy(text)
    assert fault.value.key == key
    assert fault.value.problem


def test_a_toml_error_names_the_line():
    with pytest.raises(PolicyFault, match="line 3"):
        parse_policy("format = 1\n\nthreshold = = 2\n")


def test_a_permit_for_unsigned_packages_that_names_its_principals_is_accepted():
    permit = permit_toml(actions=None, min_package_trust='"unsigned"', principals='["catalog"]')
    parse_policy(permit + 'actions = ["workload.place"]')


@pytest.mark.parametrize(
    "narrower",
    [
        {"min_node_tier": '"pinned"'},
        {"max_network": '"none"'},
        {"max_resource_cost": "0.5"},
        {"projects": '["p"]'},
        {"principals": '["p"]'},
    ],
)
def test_what_narrows_a_permit_stands_above_its_actions(narrower):
    with pytest.raises(PolicyFault, match="above `actions`") as fault:
        parse_policy(permit_toml() + permit_toml(id='"b"', **narrower))
    [name] = narrower
    assert fault.value.key == f"permit[1].{name}"


def test_a_lower_threshold_stands_above_the_permits():
    permits = 'permit = [{ id = "a", actions = ["workload.place"], kinds = ["cog"] }]\n'
    assert parse_policy(permits + "threshold = 0.9").threshold == 0.9
    assert parse_policy("threshold = 0.5\n" + permits).threshold == 0.5
    with pytest.raises(PolicyFault, match="above the permits"):
        parse_policy(permits + "threshold = 0.5")
