"""An instance that goes while somebody else asks for it, at every moment of its going: all are answered (N75)."""

import pytest

from messages.control import InstanceBody, Method, Refusal

MOMENTS_AT_MOST = 200


@pytest.mark.parametrize("method", [Method.STATUS, Method.LOGS, Method.STOP, Method.START, Method.UNLOAD])
def test_whoever_asks_for_an_instance_that_is_being_unloaded_is_answered_and_the_agent_goes_on(
    make_rig, make_sample, method
):
    rig = make_rig()
    package = rig.offer(make_sample())
    agent = rig.world.actor("shed/agent")
    for moment in range(MOMENTS_AT_MOST):
        name = rig.place(package, number=moment + 1)["instance_id"]
        unload = rig.request(Method.UNLOAD, InstanceBody(instance_id=name), decision_id=rig.decision())
        decision = rig.decision() if method.mutates else None
        other = rig.request(method, InstanceBody(instance_id=name), decision_id=decision)
        going = rig.send(unload)
        for _ in range(moment):
            rig.world._step()
        late = going.done
        asking = rig.send(other)
        rig.world.run_until(lambda going=going, asking=asking: going.done and asking.done)
        assert rig.outcome(unload, going) == {"unloaded": name}
        told = rig.outcome(other, asking)
        assert isinstance(told, Refusal | dict), told
        rig.world.run_idle()
        rig.agree()
        assert rig.host.instances == {}
        assert rig.world.actor("shed/agent") is agent, "it did not crash"
        if late:
            break
    assert 5 < moment < MOMENTS_AT_MOST - 1
