"""A node is taken off the signed directory while the cluster is up: one signal to the root, and it is cut off."""

from __future__ import annotations

import signal

import msgspec

from messages.base import Address
from messages.placement import ListNodes
from messages.system import GetProcess
from runtime.cluster import update_cluster
from runtime.cluster.settings import parse_settings, render_settings

PLANE = Address("controller/plane")


def links(live, process):
    report = live.ask(Address(f"{process}/supervisor"), GetProcess())
    return {link.process: link.up for link in report.links if link.plane == "control"}


def test_a_node_taken_off_the_directory_is_cut_off_by_all_and_the_others_serve(make_cluster):
    live = make_cluster(("attic", "shed")).up()
    line = live.place("shed")
    logs = {name: live.cluster.log_file(name) for name in ("root", "chain", "gate", "controller", "shed")}
    file, signed = live.cluster.path / "cluster.toml", live.cluster.path / "directory.json"

    good = signed.read_text()
    signed.write_text(good.replace("attic", "attik"))
    live.root.send_signal(signal.SIGHUP)
    for log in logs.values():
        live.until(lambda log=log: "nobody revoked" in log.read_text(), what=f"{log.name} tells of a bad directory")
    signed.write_text(good)
    assert links(live, "controller")["attic"]

    settings = parse_settings(file.read_text(), str(file))
    kept = tuple(node for node in settings.node if node.name != "attic")
    file.write_text(render_settings(msgspec.structs.replace(settings, node=kept)))
    update_cluster(live.cluster.path)
    live.root.send_signal(signal.SIGHUP)
    for name, log in logs.items():
        live.until(lambda log=log: "attic is cut off" in log.read_text(), what=f"{name} cuts attic off")
    for name in ("root", "chain", "controller"):
        live.until(lambda name=name: not links(live, name).get("attic"), what=f"no link from {name} to attic")
    assert links(live, "controller")["shed"]

    def attic_is_dead():
        return next(node.liveness for node in live.ask(PLANE, ListNodes()).nodes if node.name == "attic") != "alive"

    live.until(attic_is_dead, what="attic is missed")
    assert live.wait_instance(line.instance_id).pid == line.pid
    live.unload(live.place("shed").instance_id)
    live.unload(line.instance_id)
    assert live.end() == 0
    assert live.left() == []
