from __future__ import annotations

import pickle

import pytest
from nacl.bindings import crypto_core_ed25519_sub
from nacl.signing import VerifyKey

from runtime.cluster import ClusterFault, ClusterFaultCode, SecretSeed, read_key, transport_key, write_key
from runtime.cluster.directory import Directory, DirectoryEntry, cluster_id_of, open_directory, sign_directory
from runtime.cluster.names import Role

SMALL_ORDER = [
    "0000000000000000000000000000000000000000000000000000000000000000",
    "0100000000000000000000000000000000000000000000000000000000000000",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "0000000000000000000000000000000000000000000000000000000000000080",
    "0100000000000000000000000000000000000000000000000000000000000080",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
]


def directory_of(keys: dict[str, str], operator: SecretSeed) -> Directory:
    entries = tuple(
        DirectoryEntry(
            name=role.value, role=role, public_key=keys.get(role.value, SecretSeed.generate().public_key.hex())
        )
        for role in Role
        if role not in (Role.NODE, Role.EDGES)
    )
    identity = cluster_id_of(operator.public_key)
    return Directory(schema="sennit.directory.v1", cluster_id=identity, name="reef", version=1, processes=entries)


def test_a_seed_never_shows_itself() -> None:
    seed = SecretSeed(bytes(range(32)))
    for text in (repr(seed), str(seed), f"{seed}"):
        assert text == "SecretSeed(...)"
    with pytest.raises(TypeError):
        pickle.dumps(seed)


def test_a_signature_verifies_under_the_public_key() -> None:
    seed = SecretSeed.generate()
    VerifyKey(seed.public_key).verify(b"said", seed.sign(b"said"))


def test_a_key_file_is_read_as_written_and_never_replaced(tmp_path) -> None:
    path = tmp_path / "a.key"
    seed = SecretSeed.generate()
    write_key(path, seed)
    assert read_key(path).public_key == seed.public_key
    with pytest.raises(ClusterFault) as caught:
        write_key(path, SecretSeed.generate())
    assert caught.value.code is ClusterFaultCode.EXISTS
    assert read_key(path).public_key == seed.public_key


@pytest.mark.parametrize(
    "content", [b"", b"00" * 31, b"00" * 33, b"ZZ" * 32, b"AB" * 32, b" " + b"00" * 32, b"\xff" * 64]
)
def test_a_malformed_key_file_is_refused_without_showing_it(tmp_path, content) -> None:
    path = tmp_path / "a.key"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(ClusterFault) as caught:
        read_key(path)
    assert caught.value.code is ClusterFaultCode.INVALID
    assert not content or content.decode("latin1") not in caught.value.text


def test_a_key_file_that_others_can_read_is_refused_with_the_remedy(tmp_path) -> None:
    path = tmp_path / "a.key"
    write_key(path, SecretSeed.generate())
    path.chmod(0o640)
    with pytest.raises(ClusterFault, match="chmod 600"):
        read_key(path)


@pytest.mark.parametrize("kind", ["missing", "link", "folder"])
def test_what_is_not_a_key_file_is_refused(tmp_path, kind) -> None:
    path = tmp_path / "a.key"
    if kind == "link":
        write_key(tmp_path / "b.key", SecretSeed.generate())
        path.symlink_to(tmp_path / "b.key")
    elif kind == "folder":
        path.mkdir()
    with pytest.raises(ClusterFault):
        read_key(path)


@pytest.mark.parametrize("key", SMALL_ORDER)
def test_keys_of_small_order_are_refused(key) -> None:
    with pytest.raises(ClusterFault) as caught:
        transport_key(bytes.fromhex(key))
    assert caught.value.code is ClusterFaultCode.UNSAFE


def test_two_identities_with_one_transport_key_are_refused() -> None:
    operator = SecretSeed.generate()
    key = SecretSeed.generate().public_key
    neutral = bytes.fromhex("01" + "00" * 31)
    negative = crypto_core_ed25519_sub(neutral, key)
    assert negative != key
    for second in (key, negative):
        with pytest.raises(ClusterFault, match="same transport key") as caught:
            sign_directory(directory_of({"chain": key.hex(), "gate": second.hex()}, operator), operator)
        assert caught.value.code is ClusterFaultCode.UNSAFE


def test_any_changed_byte_of_a_directory_is_noticed() -> None:
    operator = SecretSeed.generate()
    data = sign_directory(directory_of({}, operator), operator)
    assert open_directory(data, operator.public_key, "directory.json").version == 1
    for position in range(0, len(data), 7):
        changed = bytearray(data)
        changed[position] ^= 1
        try:
            opened = open_directory(bytes(changed), operator.public_key, "directory.json")
        except ClusterFault:
            continue
        assert opened == open_directory(data, operator.public_key, "directory.json")  # white space between members
