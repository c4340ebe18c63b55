"""Making a cluster directory, and signing its directory anew after a change (design 11, `sennit init`)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from runtime.cluster import directory as directory_file
from runtime.cluster import settings as settings_file
from runtime.cluster.cluster import Cluster, differences, entry_for, load_cluster, wanted_processes
from runtime.cluster.directory import Directory, cluster_id_of, open_directory, sign_directory
from runtime.cluster.fault import ClusterFault, ClusterFaultCode
from runtime.cluster.keys import SecretSeed, read_key, write_key
from runtime.cluster.names import SIGNER, Role, check_name, check_node_name
from runtime.cluster.settings import (
    ClusterSettings,
    NodeSettings,
    Restarts,
    Times,
    parse_settings,
    render_settings,
)
from runtime.cluster.toml import read_text

DEFAULT_NODES = ("attic", "shed", "loft")


def init_cluster(
    path: Path | str,
    nodes: Sequence[str | NodeSettings] = DEFAULT_NODES,
    *,
    name: str | None = None,
    run_dir: str | None = None,
    times: Times | None = None,
    restarts: Restarts | None = None,
    policy: str | None = None,
) -> Cluster:
    """Write a new cluster: settings, keys, directory, trust file, policy. The last file written is `cluster.toml`.

    `policy`: text of policy.toml; by default one that permits what the new signer signed. Raises `ClusterFault`
    (`exists` if there is a cluster already; nothing is overwritten).
    """
    folder = Path(os.path.abspath(path))
    file = folder / settings_file.FILE_NAME
    if file.exists():
        raise ClusterFault(
            ClusterFaultCode.EXISTS,
            f"{folder} holds a cluster already: start it with sennit up --cluster {folder}, or choose another folder",
        )
    chosen = tuple(_as_root(NodeSettings(name=node) if isinstance(node, str) else node) for node in nodes)
    for node in chosen:
        check_node_name(node.name)
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    keys = folder / "keys"
    keys.mkdir(mode=0o700, exist_ok=True)
    operator = _key(keys / f"{Role.OPERATOR.value}.key")
    settings = ClusterSettings(
        format=settings_file.FORMAT,
        name=check_name(name, "cluster name") if name is not None else _name_from(folder),
        operator_key=operator.public_key.hex(),
        node=chosen,
        run_dir=run_dir,
        times=times or Times(),
        restarts=restarts or Restarts(),
    )
    text = render_settings(settings)
    parse_settings(text, str(file))
    signer = _key(keys / f"{SIGNER}.key")
    _replace(folder / "trust.json", _trust(signer.public_key))
    _replace(folder / "policy.toml", (policy if policy is not None else _policy(signer.public_key)).encode())
    _replace(folder / directory_file.FILE_NAME, _signed(settings, keys, operator, version=1))
    _replace(file, text.encode())
    cluster = load_cluster(folder)
    cluster.prepare()
    return cluster


def _as_root(node: NodeSettings) -> NodeSettings:
    """Whoever sets a cluster up as root runs its workloads as root until `run_as` names another account."""
    if os.geteuid() != 0 or node.run_as is not None:
        return node
    return msgspec.structs.replace(node, run_as="root")


def update_cluster(path: Path | str) -> Cluster:
    """Sign `directory.json` anew after a change of `cluster.toml`: keys for new nodes, the next version."""
    folder = Path(os.path.abspath(path))
    file = folder / settings_file.FILE_NAME
    settings = parse_settings(read_text(file), str(file))
    keys = folder / "keys"
    operator = read_key(keys / f"{Role.OPERATOR.value}.key")
    if operator.public_key.hex() != settings.operator_key:
        raise ClusterFault(
            ClusterFaultCode.SIGNATURE, f"{keys / 'operator.key'} is not the operator_key of {file}: nothing was signed"
        )
    signed = folder / directory_file.FILE_NAME
    present = open_directory(read_text(signed).encode(), operator.public_key, str(signed))
    known = {entry.name: entry.public_key for entry in present.processes}
    data = _signed(settings, keys, operator, version=present.version + 1, known=known)
    if differences(settings, present) or _keys_of(data) != known:
        _replace(signed, data)
    cluster = load_cluster(folder)
    cluster.prepare()
    return cluster


def _signed(
    settings: ClusterSettings,
    keys: Path,
    operator: SecretSeed,
    *,
    version: int,
    known: Mapping[str, str] | None = None,
) -> bytes:
    """The directory the settings ask for. A process on another host has no key here: its listed one stays."""
    entries = []
    for wanted in wanted_processes(settings):
        path = keys / f"{wanted.name}.key"
        listed = (known or {}).get(wanted.name)
        public_key = listed if listed is not None and not path.exists() else _key(path).public_key.hex()
        entries.append(entry_for(wanted, public_key))
    directory = Directory(
        schema=directory_file.SCHEMA,
        cluster_id=cluster_id_of(operator.public_key),
        name=settings.name,
        version=version,
        processes=tuple(entries),
    )
    return sign_directory(directory, operator)


def _keys_of(data: bytes) -> dict[str, str]:
    signed = msgspec.json.decode(data, type=directory_file.SignedDirectory)
    directory = msgspec.json.decode(signed.payload, type=Directory)
    return {entry.name: entry.public_key for entry in directory.processes}


def _key(path: Path) -> SecretSeed:
    """The key in the file, made if there is none."""
    if not path.exists():
        write_key(path, SecretSeed.generate())
    return read_key(path)


def _name_from(folder: Path) -> str:
    try:
        return check_name(folder.name, "cluster name")
    except ClusterFault:
        return "cluster"


def _trust(signer: bytes) -> bytes:
    from actors.packages.keys import TrustKey, key_id_of, render_trust

    return render_trust([TrustKey(key_id=key_id_of(signer), public_key=signer.hex())])


def _policy(signer: bytes) -> str:
    from runtime.policy import default_policy_toml

    return default_policy_toml(signer.hex())


def _replace(path: Path, data: bytes) -> None:
    """Write the whole file, then put it in place: a reader sees the old content or the new."""
    staged = path.with_name(f"{path.name}.new")
    with staged.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    staged.rename(path)
