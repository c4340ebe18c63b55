"""The gate actor on the simulated world: what it chains, and that without a record there is no verdict."""

import msgspec
import pytest

from actors.actor import AskFailed
from actors.chain import canonical
from actors.chain.chain import Chain
from actors.gate.gate import Gate
from actors.gate.policy import Permit, Policy, PolicyFault
from messages.base import Address
from messages.gate import (
    Action,
    Check,
    CheckAll,
    Decision,
    GateRefusal,
    GetPolicy,
    Network,
    NodeContext,
    PackageTrust,
    WorkloadContext,
)
from messages.workload_spec import TrustTier
from runtime.kernel.simulated import SimulatedWorld
from runtime.simulated.chain_store import SimulatedChainDisk, SimulatedChainStore

GATE = Address("gate/gate")
CHAIN = Address("chain/chain")
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
COGS = Permit(id="cogs", actions=("workload.place",), kinds=("cog",))


def context(**changes):
    return msgspec.structs.replace(BASE, **changes)


class Rig:
    def __init__(self, policy=None, address=GATE):
        self.address = address
        self.disk = SimulatedChainDisk()
        self.world = SimulatedWorld(seed=1)
        self.world.spawn(Address("chain/store"), lambda: SimulatedChainStore(self.disk))
        self.world.spawn(CHAIN, lambda: Chain("test"))
        self.world.spawn(address, lambda: Gate(Policy(permits=(COGS,)) if policy is None else policy, CHAIN))
        self.world.run_idle()

    def check(self, action="workload.place", given=None, raw=None, teardown=False):
        if raw is None:
            raw = canonical.encode({"workload": msgspec.to_builtins(context() if given is None else given)})
        request = Check(agent_id=AGENT, action=action, context=raw, teardown=teardown)
        return self.world.ask(self.address, request, timeout_s=30).verdict

    def check_all(self, contexts, action="workload.place"):
        entries = [NodeContext(node_id=node, context=given) for node, given in contexts]
        request = CheckAll(agent_id=AGENT, action=action, contexts=entries)
        return self.world.ask(self.address, request, timeout_s=30).verdicts

    @property
    def judged(self):
        """Source, kind and payload of what was chained after the genesis."""
        return [(record.source, record.kind, canonical.decode(record.payload)) for record in self.disk.records[1:]]


def test_a_permit_is_answered_with_its_record():
    rig = Rig()
    verdict = rig.check()
    assert (verdict.decision, verdict.reason) == (Decision.PERMIT, "")
    [(source, kind, payload)] = rig.judged
    assert verdict.chained == rig.disk.records[1].hash
    assert (source, kind) == ("workload", "workload.place")
    policy = rig.world.ask(GATE, GetPolicy())
    assert payload == {
        "decision": "permit",
        "reason": None,
        "agent_id": AGENT,
        "action": "workload.place",
        "workload": {**msgspec.to_builtins(context()), "secrets": False, "emulated": False, "accelerator": None},
        "effect": {"risk": 0.1, "fairness": 0.2, "privacy": 0.0, "novelty": 0.0, "security": 0.4},
        "permit_rule": "cogs",
        "evaluated_rules": ["WORKLOAD-EFFECT-CEILING"],
        "threshold_exceeded": False,
        "revoked": None,
        "gate": "gate/gate",
        "policy": policy.sha256,
    }


@pytest.mark.parametrize("action", [action.value for action in Action])
def test_every_denial_is_chained_under_its_action(action):
    rig = Rig(Policy())
    verdict = rig.check(action)
    assert verdict.decision is Decision.DENY
    [(_, kind, payload)] = rig.judged
    assert (kind, payload["decision"], payload["evaluated_rules"]) == (action, "deny", ["WORKLOAD-DEFAULT-DENY"])
    assert payload["reason"] == verdict.reason
    assert payload["workload"]["kind"] == "cog"


def test_an_unknown_workload_action_is_denied_and_chained_as_a_refusal():
    rig = Rig(Policy(permits=(Permit(id="all", actions=("workload.*",), kinds=("*",)),)))
    verdict = rig.check("workload.teleport")
    assert verdict.decision is Decision.DENY
    [(_, kind, payload)] = rig.judged
    assert (kind, payload["action"], payload["decision"]) == ("workload.refuse", "workload.teleport", "deny")


def test_an_action_of_another_family_is_denied_and_not_chained():
    rig = Rig()
    verdict = rig.check("tool.exec")
    assert (verdict.decision, verdict.chained) == (Decision.DENY, "")
    assert rig.judged == []


@pytest.mark.parametrize(
    "raw", [b"", b"{}", b'{"workload":"cog"}', b'{"workload":{"kind":"Cog!"}}', b"\xff", b"[" * 9999]
)
def test_a_context_that_does_not_read_is_denied_and_chained(raw):
    rig = Rig()
    verdict = rig.check(raw=raw)
    assert verdict.decision is Decision.DENY
    assert "invalid workload context" in verdict.reason
    [(_, kind, payload)] = rig.judged
    assert (kind, payload["workload"], payload["effect"]) == ("workload.place", None, None)


def test_an_effect_written_by_hand_changes_nothing():
    rig = Rig(Policy(threshold=0.1, permits=(COGS,)))
    workload = msgspec.to_builtins(context())
    verdict = rig.check(raw=canonical.encode({"workload": workload, "effect": {"risk": 0.0}, "project_id": "p"}))
    assert verdict.decision is Decision.DENY
    [(_, _, payload)] = rig.judged
    assert payload["threshold_exceeded"]
    assert payload["permit_rule"] == "cogs"


def test_a_deferral_is_said_and_chained():
    rig = Rig(Policy(threshold=0.1, human_approval=True, permits=(COGS,)))
    assert rig.check().decision is Decision.DEFER
    assert rig.judged[0][2]["decision"] == "defer"


def test_equal_contexts_of_a_placement_are_judged_and_chained_once_naming_their_nodes():
    rig = Rig()
    nodes = [f"n-{number:016x}" for number in range(20)]
    far = context(node_tier=TrustTier.DISCOVERED)
    writes = rig.disk.writes
    verdicts = rig.check_all([(node, far if place % 2 else context()) for place, node in enumerate(nodes)])
    assert list(verdicts) == nodes[::2] + nodes[1::2]
    assert {verdicts[node].decision for node in nodes[::2]} == {Decision.PERMIT}
    assert {verdicts[node].decision for node in nodes[1::2]} == {Decision.DENY}
    assert [payload["nodes"] for _, _, payload in rig.judged] == [nodes[::2], nodes[1::2]]
    assert rig.disk.writes == writes + 1
    assert verdicts[nodes[0]].chained == rig.disk.records[1].hash
    assert verdicts[nodes[1]].chained == rig.disk.records[2].hash


def test_a_fleet_of_equal_nodes_costs_one_record():
    rig = Rig()
    verdicts = rig.check_all([(f"n-{number}", context()) for number in range(500)])
    assert len(verdicts) == 500
    assert len(rig.judged) == 1


def test_one_context_that_cannot_be_judged_denies_its_nodes_only():
    rig = Rig()
    verdicts = rig.check_all([("a", context()), ("b", context(kind="Cog!")), ("c", context(signer_keys=["zz"]))])
    assert [verdicts[node].decision for node in "abc"] == [Decision.PERMIT, Decision.DENY, Decision.DENY]
    assert len(rig.judged) == 3


@pytest.mark.parametrize(("action", "chained"), [("workload.teleport", 2), ("tool.exec", 0)])
def test_an_action_that_is_not_governed_is_denied_for_every_node(action, chained):
    rig = Rig()
    verdicts = rig.check_all([("a", context()), ("b", context()), ("c", context(resource_cost=0.3))], action)
    assert {verdict.decision for verdict in verdicts.values()} == {Decision.DENY}
    assert len(rig.judged) == chained


def test_no_nodes_no_verdicts_no_records():
    rig = Rig()
    assert rig.check_all([]) == {}
    assert rig.judged == []


@pytest.mark.parametrize("contexts", [[("a", context()), ("a", context(resource_cost=0.1))]])
def test_a_node_named_twice_is_refused(contexts):
    rig = Rig()
    with pytest.raises(AskFailed) as failed:
        rig.check_all(contexts)
    assert failed.value.code == GateRefusal.INVALID
    assert rig.judged == []


@pytest.mark.parametrize("allowed", [True, False])
def test_a_chain_that_cannot_write_means_no_verdict(allowed):
    rig = Rig(None if allowed else Policy())
    rig.disk.full = True
    with pytest.raises(AskFailed) as failed:
        rig.check()
    assert failed.value.code == GateRefusal.NO_RECORD
    assert "disk_full" in failed.value.reason
    with pytest.raises(AskFailed):
        rig.check_all([("a", context())])
    rig.disk.full = False
    assert rig.check().decision is (Decision.PERMIT if allowed else Decision.DENY)


def test_a_chain_out_of_reach_means_no_verdict():
    rig = Rig()
    rig.world.cut("gate", "chain")
    with pytest.raises(AskFailed) as failed:
        rig.check()
    assert failed.value.code == GateRefusal.NO_RECORD
    rig.world.heal("gate", "chain")
    assert rig.check().decision is Decision.PERMIT


def test_an_answer_of_the_chain_that_is_lost_means_no_verdict():
    rig = Rig()
    rig.world.lose(lambda envelope: envelope.sender == CHAIN and envelope.to == GATE)
    with pytest.raises(AskFailed) as failed:
        rig.check()
    assert failed.value.code == GateRefusal.NO_RECORD


def test_a_nodes_gate_writes_on_the_clusters_chain_under_its_own_address():
    rig = Rig(address=Address("shed/gate"))
    rig.check("workload.start")
    [(source, kind, payload)] = rig.judged
    assert (source, kind, payload["gate"]) == ("workload", "workload.start", "shed/gate")


def test_teardown_is_a_plain_check_until_the_waiver_exists():
    rig = Rig()
    assert rig.check("workload.stop", teardown=True).decision is Decision.DENY
    assert len(rig.judged) == 1


def test_what_a_caller_calls_itself_is_bounded_in_the_record():
    rig = Rig()
    request = Check(agent_id="a" * 100_000, action="workload." + "x" * 100_000, context=b"{}")
    assert rig.world.ask(GATE, request).verdict.decision is Decision.DENY
    assert len(rig.disk.records[1].payload) < 4_000


def test_the_policy_in_force_is_shown_with_its_digest():
    rig = Rig()
    report = rig.world.ask(GATE, GetPolicy())
    assert canonical.decode(report.policy)["permit"][0]["id"] == "cogs"
    assert len(report.sha256) == 64
    assert Rig(Policy()).world.ask(GATE, GetPolicy()).sha256 != report.sha256


def test_a_gate_with_a_faulty_policy_is_not_made():
    with pytest.raises(PolicyFault):
        Gate(Policy(permits=(COGS, COGS)), CHAIN)


def test_the_state_counts_what_was_judged():
    rig = Rig()
    rig.check()
    rig.check("workload.start")
    rig.disk.full = True
    with pytest.raises(AskFailed):
        rig.check()
    state = rig.world.actor(GATE).state()
    assert state["judged"] == {"permit": 1, "defer": 0, "deny": 1}
    assert state["unrecorded"] == 1
