"""Files of a cluster directory, cut short at every byte and with every kind of flipped bit.

Either the file is refused, naming it and what to do, or what was read is what the whole file says. Nothing is read as
empty, nothing falls back to a default in silence, and nothing is ever allowed that the whole file does not allow.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.gate.decide import decide
from actors.gate.policy import Permit, Policy, PolicyFault, parse_policy
from actors.packages.fault import PackageFault
from messages.gate import Action, Decision, Network, PackageTrust, WorkloadContext
from messages.workload_spec import TrustTier
from runtime.cluster import Cluster, ClusterFault, NodeSettings, init_cluster, load_cluster
from runtime.cluster.settings import Times
from runtime.packages.directory import read_trust
from runtime.policy import default_policy_toml, load_policy
from runtime.scenario.toml_text import policy_toml

FAULTS = (ClusterFault, PackageFault, PolicyFault)
REMEDIES = ("restore", "correct it", "write ", "is missing", "a public key is 64", "sennit init")
"""What to do, where the text does not name line and key of what is wrong."""
POLICY = """\
format = 1
threshold = 0.7
[[permit]]  # the operator's own
id = "a"
min_node_tier = "pinned"
max_network = "none"
max_resource_cost = 0.5
principals = ["operator"]
actions = ["workload.*"]
kinds = ["*"]
allow_secrets = true
accelerators = ["accel.npu"]
[[permit]]
id = "b"
actions = ["workload.place"]
kinds = ["cog"]
max_network = "egress"
"""
SHED = NodeSettings(name="shed", facts=("feed.csi",), run_as="root")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with TemporaryDirectory(prefix="snt-") as folder:
        path = Path(folder) / "reef"
        yield init_cluster(path, nodes=("attic", SHED), times=Times(beat_s=0.5), policy=POLICY)


Loader = Callable[[Cluster], object]
FILES: dict[str, tuple[str, Loader, int]] = {
    "cluster.toml": ("cluster.toml", lambda cluster: load_cluster(cluster.path), 1),
    "directory.json": ("directory.json", lambda cluster: load_cluster(cluster.path), 7),
    "policy.toml": ("policy.toml", lambda cluster: load_policy(cluster.policy_file), 1),
    "trust.json": ("trust.json", lambda cluster: read_trust(cluster.trust_file), 1),
    "a key": ("keys/shed.key", lambda cluster: cluster.key("shed").public_key, 1),
    "the signer's key": ("keys/signer.key", lambda cluster: cluster.signer_key().public_key, 1),
}
each_file = pytest.mark.parametrize(("name", "load", "stride"), FILES.values(), ids=FILES)


def loaded(cluster: Cluster, path: Path, content: bytes, load: Loader) -> object:
    """What the file with this content is read as; None when it is refused, in words that help."""
    path.write_bytes(content)
    try:
        return load(cluster)
    except FAULTS as fault:
        text = str(fault)
    assert path.name in text
    assert re.search(r":\d+: [\w.\[\]]+: ", text) or any(remedy in text for remedy in REMEDIES), text
    return None


@each_file
def test_a_file_cut_short_is_refused_or_says_what_the_whole_one_says(
    cluster: Cluster, name: str, load: Loader, stride: int
) -> None:
    path = cluster.path / name
    whole = path.read_bytes()
    expected = load(cluster)
    refused = 0
    try:
        for length in range(0, len(whole), stride):
            found = loaded(cluster, path, whole[:length], load)
            refused += found is None
            if isinstance(found, Cluster):
                found = with_last_node(found, expected)
            if isinstance(found, Policy):
                assert allowed(found) <= allowed(expected)
            else:
                assert found is None or found == expected
    finally:
        path.write_bytes(whole)
    assert refused > len(whole) // stride // 3


def with_last_node(found: Cluster, expected: object) -> Cluster:
    """A cut may lose what the last node claims and as whom it runs workloads. Then it is given fewer, or none."""
    assert isinstance(expected, Cluster)
    last = found.nodes["shed"]
    assert last.facts in ((), SHED.facts)
    assert last.run_as in (None, SHED.run_as)
    return replace(found, nodes=expected.nodes)


@each_file
def test_a_flipped_bit_is_refused_or_harmless_and_never_a_crash(
    cluster: Cluster, name: str, load: Loader, stride: int
) -> None:
    path = cluster.path / name
    whole = path.read_bytes()
    try:
        for at in range(0, len(whole), stride if len(whole) < 300 else 3 * stride):
            flipped = bytearray(whole)
            flipped[at] ^= 1 << (at % 8)
            found = loaded(cluster, path, bytes(flipped), load)
            if isinstance(found, Cluster):
                assert found.processes == cluster.processes
            if isinstance(found, Policy):
                assert found.permits
    finally:
        path.write_bytes(whole)


# A policy may lose what it allows, never what it forbids.

NAMES = st.sampled_from(["operator", "n-1", "n-2"])
PERMITS = st.builds(
    Permit,
    id=st.just("a"),
    min_package_trust=st.sampled_from([PackageTrust.OPERATOR_ATTESTED, PackageTrust.PINNED_SIGNER]),
    min_node_tier=st.sampled_from(TrustTier),
    max_network=st.sampled_from(Network),
    max_resource_cost=st.sampled_from([0.25, 0.5, 1.0]),
    projects=st.sampled_from([(), ("p",)]),
    principals=st.lists(NAMES, max_size=2, unique=True).map(tuple),
    actions=st.sampled_from([("workload.*",), ("workload.place", "workload.st*")]),
    kinds=st.sampled_from([("cog",), ("*",), ("cog", "project")]),
    allow_secrets=st.booleans(),
    allow_emulated=st.booleans(),
    accelerators=st.sampled_from([(), ("accel.*",), ("accel.npu",)]),
)
POLICIES = st.builds(
    Policy,
    threshold=st.sampled_from([0.0, 0.3, 0.8, 0.95, 2.0]),
    human_approval=st.booleans(),
    permits=st.lists(PERMITS, max_size=2).map(
        lambda permits: tuple(msgspec.structs.replace(permit, id=f"p{at}") for at, permit in enumerate(permits))
    ),
)
CONTEXTS = [
    WorkloadContext(
        kind=kind, package_trust=trust, node_tier=tier, network=network, resource_cost=cost, secrets=secrets,
        emulated=emulated, accelerator=accelerator,
    )
    for kind, accelerator in (("cog", None), ("project", "accel.npu"))
    for trust in (PackageTrust.OPERATOR_ATTESTED, PackageTrust.PINNED_SIGNER)
    for tier in TrustTier
    for network in (Network.NONE, Network.EGRESS)
    for cost, secrets, emulated in ((0.25, False, False), (1.0, True, True))
]  # fmt: skip


@cache
def allowed(policy: object) -> set[tuple[str, Action, int]]:
    """Who may do what to which workload: every context, asked by two principals."""
    assert isinstance(policy, Policy)
    return {
        (principal, action, number)
        for principal in ("operator", "stranger")
        for action in (Action.PLACE, Action.UNLOAD)
        for number, context in enumerate(CONTEXTS)
        if decide(policy, principal, action, context).decision is Decision.PERMIT
    }


@settings(max_examples=25, deadline=None)
@given(policy=POLICIES, cut=st.floats(0, 1))
def test_a_policy_cut_short_never_allows_more(policy: Policy, cut: float) -> None:
    text = policy_toml(policy)
    assert parse_policy(text) == policy
    most = allowed(policy)
    ends = {round(cut * len(text)), *(at for at, sign in enumerate(text) if sign == "\n")}
    for end in sorted(ends):  # between two lines is where a cut still is TOML
        try:
            less = parse_policy(text[:end])
        except PolicyFault:
            continue
        assert allowed(less) <= most


@pytest.mark.parametrize("text", ["", "format = 1\n", "threshold = 0.95\n", "# nothing but a comment\n"])
def test_a_policy_without_permits_has_to_say_so(tmp_path: Path, text: str) -> None:
    file = tmp_path / "policy.toml"
    file.write_text(text)
    with pytest.raises(PolicyFault, match=r"policy.toml: permit: .*write permit = \[\]"):
        load_policy(file)
    file.write_text(text + "permit = []\n")
    assert load_policy(file).permits == ()


def test_the_policy_of_a_new_cluster_may_be_narrowed_where_each_limit_stands(tmp_path: Path) -> None:
    text = default_policy_toml("0f" * 32)
    for old, new in [("paired", "pinned"), ("egress", "none"), ("= 1.0", "= 0.5"), ("= 0.95", "= 0.5")]:
        assert f'"{old}"' in text or old in text
        text = (
            text.replace(f'"{old}"', f'"{new}"').replace(old, new)
            if old.startswith("=")
            else text.replace(f'"{old}"', f'"{new}"')
        )
    permit = parse_policy(text).permits[0]
    assert (permit.min_node_tier, permit.max_network, permit.max_resource_cost) == ("pinned", "none", 0.5)


@pytest.mark.parametrize("late", ["run_dir = 'r'", "times = { beat_s = 0.5 }", "restarts = { intensity = 2 }"])
def test_what_a_cut_would_lose_stands_above_the_nodes(cluster: Cluster, late: str) -> None:
    path = cluster.path / "cluster.toml"
    whole = path.read_text()
    key = cluster.operator_key.hex()
    head = f'format = 1\nname = "reef"\noperator_key = "{key}"\n'
    nodes = 'node = [{ name = "attic" }, { name = "shed" }]\n'
    try:
        path.write_text(f"{head}{late}\n{nodes}")
        assert load_cluster(cluster.path).processes.keys() == cluster.processes.keys()
        path.write_text(f"{head}{nodes}{late}\n")
        with pytest.raises(ClusterFault, match=rf"cluster.toml:5: {late.split(maxsplit=1)[0]}: write it above"):
            load_cluster(cluster.path)
    finally:
        path.write_text(whole)
