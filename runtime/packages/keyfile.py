"""Signing keys on disk: a 32-byte Ed25519 seed as 64 lower hex, mode 0600 (G 4.2, design 11)."""

from __future__ import annotations

import os
import secrets
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from nacl.bindings import crypto_sign_seed_keypair

from actors.packages.fault import key_invalid
from actors.packages.keys import TrustKey, key_id_of
from actors.packages.text import is_hex
from runtime.packages.files import create_new


class SigningSeed:
    """A secret: it has no text form, does not pickle, and is read through `reveal` alone."""

    __slots__ = ("_seed",)

    def __init__(self, seed: bytes) -> None:
        if len(seed) != 32:
            raise key_invalid(f"a signing seed has 32 bytes, this one has {len(seed)}")
        self._seed = seed

    def reveal(self) -> bytes:
        """The 32 bytes, for the signing call only."""
        return self._seed

    @property
    def public_key(self) -> bytes:
        public_key, _ = crypto_sign_seed_keypair(self._seed)
        return public_key

    @property
    def key_id(self) -> str:
        return key_id_of(self.public_key)

    def trust_key(self) -> TrustKey:
        """What a trust file lists to admit packages of this signer."""
        return TrustKey(key_id=self.key_id, public_key=self.public_key.hex())

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a signing seed is not copied into messages or files")


@dataclass(frozen=True, slots=True)
class NewKey:
    """What may be shown of a key just made."""

    path: Path
    key_id: str
    public_key: str


def generate(path: Path) -> NewKey:
    """Make a key and write its seed to `path` (0600), which must not exist. Raises `PackageFault`."""
    seed = SigningSeed(secrets.token_bytes(32))
    try:
        create_new(path, seed.reveal().hex().encode() + b"\n", 0o600)
    except FileExistsError:
        raise key_invalid(f"{path} exists; a key is never overwritten, choose another name") from None
    except OSError as error:
        raise key_invalid(f"cannot write key file {path}: {error.strerror}") from None
    return NewKey(path, seed.key_id, seed.public_key.hex())


def read_seed(path: Path) -> SigningSeed:
    """The seed in `path`. Raises `PackageFault` for links, lax permissions, a foreign owner or a wrong length."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise key_invalid(
            f"cannot read key file {path}: {error.strerror}; make one with `sennit package keygen`"
        ) from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise key_invalid(f"key file {path} is not a regular file")
        if status.st_mode & 0o077:
            raise key_invalid(
                f"key file {path} has mode {stat.S_IMODE(status.st_mode):04o}, others can reach it; "
                f"run: chmod 600 {path}"
            )
        if status.st_uid != os.geteuid():
            raise key_invalid(f"key file {path} belongs to user {status.st_uid}, not to user {os.geteuid()}")
        data = os.read(descriptor, 128)
    finally:
        os.close(descriptor)
    text = data.removesuffix(b"\n").decode("ascii", "replace")
    if not is_hex(text, 64):
        raise key_invalid(f"key file {path} does not hold 64 lower hex digits and a newline")
    return SigningSeed(bytes.fromhex(text))
