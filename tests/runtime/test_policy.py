"""The policy file: what is said when it is wrong, and what the one of a new cluster allows."""

import msgspec
import pytest

from actors.gate.decide import decide
from actors.gate.policy import PolicyFault, parse_policy
from messages.gate import Action, Decision, Network, PackageTrust, WorkloadContext
from messages.workload_spec import TrustTier
from runtime.policy import LIMIT_BYTES, default_policy_toml, judge_offline, load_policy

SIGNER = "0f" * 32
BASE = WorkloadContext(
    kind="cog",
    package_trust=PackageTrust.PINNED_SIGNER,
    node_tier=TrustTier.PAIRED,
    network=Network.EGRESS,
    resource_cost=0.25,
    package_id="cog.fall-detect",
    signer_keys=["ab" * 32],
    artifact_hashes=["cd" * 32],
)
PERMIT = '[[permit]]\nid = "%s"\nactions = ["workload.place"]\nkinds = ["cog"]\n'


def cog(**changes):
    return msgspec.structs.replace(BASE, **changes)


@pytest.mark.parametrize("action", Action)
@pytest.mark.parametrize("emulated", [False, True])
def test_a_new_cluster_lets_its_signers_cogs_run_and_takes_them_down(action, emulated):
    policy = parse_policy(default_policy_toml(SIGNER))
    assert decide(policy, "n-1", action, cog(emulated=emulated)).decision is Decision.PERMIT


@pytest.mark.parametrize(
    "changes",
    [
        {"package_trust": PackageTrust.OPERATOR_ATTESTED},
        {"node_tier": TrustTier.DISCOVERED},
        {"kind": "project"},
        {"secrets": True},
        {"secrets": True, "node_tier": TrustTier.PINNED},
        {"accelerator": "accel.npu"},
        {"resource_cost": 1.0},
    ],
)
def test_a_new_cluster_denies_the_rest(changes):
    policy = parse_policy(default_policy_toml(SIGNER))
    assert decide(policy, "n-1", Action.PLACE, cog(**changes)).decision is Decision.DENY


def test_the_weights_that_the_comments_name_are_true():
    policy = parse_policy(default_policy_toml(SIGNER).replace("threshold = 0.95", "threshold = 0.0"))
    for changes, weight in [({}, "0.69"), ({"emulated": True}, "0.81"), ({"resource_cost": 1.0}, "1.19")]:
        assert f"magnitude {weight}" in decide(policy, "n-1", Action.PLACE, cog(**changes)).reason


@pytest.mark.parametrize("signer", ["0F" * 32, "0f" * 31, 'x"\n' * 21 + "x"])
def test_only_a_key_is_written_into_a_policy(signer):
    with pytest.raises(ValueError, match="64 lower-case"):
        default_policy_toml(signer)


def test_a_policy_is_read_from_its_file(tmp_path):
    path = tmp_path / "policy.toml"
    path.write_text(default_policy_toml(SIGNER))
    assert load_policy(path).permits[0].id == "signed-cogs"


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        ("threshold = = 1", ["line 1"]),
        ("threshold = -1", ["threshold"]),
        ("nonsense = 1", ["nonsense"]),
        (PERMIT % "a" + "\n" + PERMIT % "b" + 'max_network = "wan"\n', ["permit[1].max_network", "line 6", "wan"]),
        (PERMIT % "a" + "\n# again\n" + PERMIT % "a", ["permit[1].id", "line 7"]),
        (b"\xff", ["UTF-8"]),
        (b"#" * (LIMIT_BYTES + 1), ["larger"]),
        (None, ["cannot be read"]),
    ],
)
def test_a_faulty_file_is_named_with_its_key_and_line(tmp_path, content, wanted):
    path = tmp_path / "policy.toml"
    if content is not None:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(PolicyFault) as fault:
        load_policy(path)
    for text in ["policy.toml", *wanted]:
        assert text in str(fault.value)


def test_a_line_is_not_guessed_where_text_could_hide_another_permit(tmp_path):
    path = tmp_path / "policy.toml"
    path.write_text(PERMIT % "a" + 'description = """\n[[permit]]\n"""\n' + PERMIT % "a")
    with pytest.raises(PolicyFault) as fault:
        load_policy(path)
    assert "begins at line" not in str(fault.value)


def test_an_act_is_judged_by_the_file_alone(tmp_path):
    path = tmp_path / "policy.toml"
    path.write_text(default_policy_toml(SIGNER))
    context = msgspec.json.encode({"workload": BASE})
    assert judge_offline(path, "operator", "workload.place", context).decision is Decision.PERMIT
    assert judge_offline(path, "operator", "workload.teleport", context).decision is Decision.DENY
    assert "invalid workload context" in judge_offline(path, "operator", "workload.place", b"").reason
    path.write_text("threshold = -1")
    with pytest.raises(PolicyFault):
        judge_offline(path, "operator", "workload.place", context)
