"""Signing keys on disk, in the terms of packages (design 11). The file is that of every key: `runtime.cluster.keys`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from actors.packages.fault import key_invalid
from actors.packages.keys import TrustKey, key_id_of
from runtime.cluster.fault import ClusterFault
from runtime.cluster.keys import SecretSeed, read_key, write_key


@dataclass(frozen=True, slots=True)
class NewKey:
    """What may be shown of a key just made."""

    path: Path
    trust_key: TrustKey


def generate(path: Path) -> NewKey:
    """Make a key and write its seed to `path` (0600), which must not exist. Raises `PackageFault` (`key-invalid`)."""
    seed = SecretSeed.generate()
    try:
        write_key(path, seed)
    except ClusterFault as fault:
        raise key_invalid(str(fault)) from None
    except OSError as error:
        raise key_invalid(f"cannot write key file {path}: {error.strerror}") from None
    return NewKey(path, trust_key_of(seed))


def read_seed(path: Path) -> SecretSeed:
    """The seed in `path`. Raises `PackageFault` (`key-invalid`) for links, lax permissions or a wrong length."""
    try:
        return read_key(path)
    except ClusterFault as fault:
        raise key_invalid(f"{fault}; make a key with `sennit package keygen`") from None


def trust_key_of(seed: SecretSeed) -> TrustKey:
    """What a trust file lists to admit packages of this signer."""
    return TrustKey(key_id=key_id_of(seed.public_key), public_key=seed.public_key.hex())
