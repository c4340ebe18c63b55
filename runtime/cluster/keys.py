"""Key files: one Ed25519 seed of 64 hexadecimal digits, mode 0600 (design 5, 11).

Sign with `SecretSeed`; it never shows itself. The transport key of a process is the Curve25519 form of its identity.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from nacl.bindings import (
    crypto_core_ed25519_is_valid_point,
    crypto_sign_ed25519_pk_to_curve25519,
    crypto_sign_ed25519_sk_to_curve25519,
)
from nacl.signing import SigningKey

from runtime.cluster.fault import ClusterFault, ClusterFaultCode, invalid

SEED_BYTES = 32
_HEX = re.compile(r"[0-9a-f]{64}", re.ASCII)


class SecretSeed:
    """An Ed25519 seed. It has no readable form: `repr`, `str` and pickling do not show it."""

    __slots__ = ("_signing",)

    def __init__(self, seed: bytes) -> None:
        self._signing = SigningKey(seed)

    @classmethod
    def generate(cls) -> SecretSeed:
        return cls(os.urandom(SEED_BYTES))

    @property
    def public_key(self) -> bytes:
        """32 bytes: the identity."""
        return bytes(self._signing.verify_key)

    def sign(self, data: bytes) -> bytes:
        """64 bytes, Ed25519 over `data`; the caller puts a domain tag in front."""
        return self._signing.sign(data).signature

    def reveal(self) -> bytes:
        """The seed itself, 32 bytes: for a key file and for libraries that sign by themselves."""
        return bytes(self._signing)

    def transport_secret(self) -> bytes:
        """32 bytes: the Curve25519 secret of the identity's transport key."""
        return crypto_sign_ed25519_sk_to_curve25519(bytes(self._signing) + self.public_key)

    def __repr__(self) -> str:
        return "SecretSeed(...)"

    def __reduce__(self) -> str:
        raise TypeError("a secret is not pickled")


def transport_key(public_key: bytes) -> bytes:
    """The Curve25519 form of an identity, 32 bytes. Raises `ClusterFault` for a key that must not be trusted.

    K and -K have the same transport key: who lists identities refuses a second one with a listed transport key.
    """
    if len(public_key) != SEED_BYTES or not crypto_core_ed25519_is_valid_point(public_key):
        raise ClusterFault(
            ClusterFaultCode.UNSAFE,
            f"public key {public_key.hex()} is no point of the prime-order group (wrong length, small order or not "
            "canonical): anyone could speak in its name",
        )
    return crypto_sign_ed25519_pk_to_curve25519(public_key)


def parse_key(text: str, what: str) -> bytes:
    """A public key of 64 lower-case hexadecimal digits, safe to trust. Raises `ClusterFault` naming `what`."""
    if _HEX.fullmatch(text) is None:
        raise invalid(f"{what}: a public key is 64 lower-case hexadecimal digits, not {text[:80]!r}")
    public_key = bytes.fromhex(text)
    try:
        transport_key(public_key)
    except ClusterFault as fault:
        raise ClusterFault(fault.code, f"{what}: {fault.text}; restore the key that was there") from None
    return public_key


def write_key(path: Path, seed: SecretSeed) -> None:
    """Create the key file, mode 0600. Raises `ClusterFault` (`exists`): a key is never replaced."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise ClusterFault(ClusterFaultCode.EXISTS, f"{path} exists: a key file is never replaced") from None
    with os.fdopen(descriptor, "wb") as file:
        file.write(seed.reveal().hex().encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def read_key(path: Path) -> SecretSeed:
    """The seed of a key file. Raises `ClusterFault`: missing, readable by others, or malformed."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise ClusterFault(
            ClusterFaultCode.MISSING, f"key file {path} does not exist: put it back from where it was copied to"
        ) from None
    except OSError as error:
        raise ClusterFault(ClusterFaultCode.UNSAFE, f"key file {path} cannot be read: {error.strerror}") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ClusterFault(ClusterFaultCode.UNSAFE, f"key file {path} is not a regular file")
        if status.st_mode & 0o077:
            raise ClusterFault(
                ClusterFaultCode.UNSAFE, f"key file {path} can be read or written by others: chmod 600 {path}"
            )
        text = os.read(descriptor, 2 * SEED_BYTES + 2).decode("ascii", "replace")
    finally:
        os.close(descriptor)
    text = text.removesuffix("\n")
    if _HEX.fullmatch(text) is None:
        raise invalid(
            f"key file {path} does not hold a seed of 64 lower-case hexadecimal digits: restore it from a copy, a new "
            "key would be another identity"
        )
    return SecretSeed(bytes.fromhex(text))
