"""Signed packages: the records of a manifest and the mailbox of `controller/packages` (design 9, G 4).

A package is a directory with `manifest.json` (a signed envelope), `cog.toml` and one payload per architecture. The
records here are plain values: what they may hold is checked by `actors.packages.manifest`, which is the only place
that makes a `CogBody` out of bytes. Files travel in blocks of at most 64 KiB; the receiver knows size and digest of
each from the signed manifest before it asks for the first one.
"""

from __future__ import annotations

from enum import StrEnum

from messages.base import U64, Message, Record, Request

BLOCK_BYTES = 64 * 1024
"""Most bytes in one `Block`."""

MANIFEST_LIMIT_BYTES = 1024 * 1024
"""Most bytes of a manifest, on disk and on the wire (G 4.2)."""

FILE_LIMIT_BYTES = 512 * 1024 * 1024
"""Most bytes of one file of a package (G 4.4)."""

COG_TOML_LIMIT_BYTES = 256 * 1024
"""Most bytes of `cog.toml` (G 4.4)."""


class PackageErrorCode(StrEnum):
    """Why a package was not accepted. The first seven are those of G 4.6; the wire and the chain carry them."""

    MANIFEST_INVALID = "manifest-invalid"
    MISSING_SIGNATURE = "missing-signature"
    UNTRUSTED_SIGNER = "untrusted-signer"
    BAD_SIGNATURE = "bad-signature"
    FILE_MISSING = "file-missing"
    FILE_TAMPERED = "file-tampered"
    IO_ERROR = "io-error"
    COG_INVALID = "cog-invalid"
    """`cog.toml` does not follow G 5.5, or names another workload than its manifest."""
    KEY_INVALID = "key-invalid"
    """A key, key file or trust file is malformed, badly protected, duplicate or of small order."""
    INPUT_INVALID = "input-invalid"
    """What was asked of `package pack` or `package sign` cannot be done as asked."""


class Arch(StrEnum):
    """What a payload is built for. `noarch` is a script, run by the interpreter that a node's fact names."""

    AARCH64 = "aarch64"
    ARMV7 = "armv7"
    X86_64 = "x86_64"
    WASM = "wasm"
    NOARCH = "noarch"


class FileRef(Record, frozen=True):
    """One file of a package: path relative to its directory, size in bytes, SHA-256 in 64 lower hex."""

    path: str
    size: int
    sha256: str


class PackageOrigin(Record, frozen=True):
    """Where the payloads came from; `commit` or `release_url` is present."""

    repo: str | None = None
    commit: str | None = None
    release_url: str | None = None


class Attestation(Record, frozen=True):
    """A statement about the package, carried as a file under `attestations/`."""

    kind: str
    file: FileRef


class CogBody(Record, frozen=True):
    """The body of a manifest of kind `cog` (G 4.3). `binaries` is keyed by architecture."""

    id: str
    version: str
    cog_toml: FileRef
    binaries: dict[Arch, FileRef]
    source: PackageOrigin
    attestations: tuple[Attestation, ...] = ()

    def files(self) -> tuple[FileRef, ...]:
        """Every file the manifest lists: `cog.toml`, payloads by architecture, attestations."""
        payloads = (self.binaries[arch] for arch in sorted(self.binaries))
        return (self.cog_toml, *payloads, *(attestation.file for attestation in self.attestations))


class SignatureEntry(Record, frozen=True):
    """One signature of a manifest: key of 64 lower hex, signature of 128. `key_id` is a hint for people."""

    algorithm: str
    key_id: str
    public_key: str
    signature: str


class CogArgument(Record, frozen=True):
    """One `[config.*]` of `cog.toml`: a flag, or an option that takes a value."""

    name: str
    takes_value: bool = False


class CogLimits(Record, frozen=True):
    """What a cog may use and be told (G 5.5). `behaviour` names what stands for it in the simulator."""

    max_runtime_secs: int = 15
    output_limit_bytes: int = 64 * 1024
    ram_mb: int = 256
    cpu_pct: int = 100
    allowed_commands: tuple[str, ...] = ()
    arguments: tuple[CogArgument, ...] = ()
    hardware: tuple[str, ...] = ()
    """Capability ids that a node must have, for example `feed.csi`."""
    behaviour: str | None = None


class VerifiedWorkload(Record, frozen=True):
    """A workload whose package was verified against the holder's own trust anchors (G 4.8)."""

    kind: str
    id: str
    version: str
    package_id: str
    manifest_hash: str
    signer_keys: tuple[str, ...]
    limits: CogLimits
    binaries: dict[Arch, FileRef]
    artifact_hashes: tuple[str, ...]

    def revocable_refs(self) -> tuple[str, ...]:
        """All that a revocation may name: package id, signer keys, artifact hashes. Never empty."""
        return (self.package_id, *self.signer_keys, *self.artifact_hashes)


class PackageRefusal(StrEnum):
    """Codes with which the package server refuses a question."""

    NOT_OFFERED = "not_offered"
    BAD_OFFSET = "bad_offset"
    STORE = "store"


class ManifestBytes(Message, frozen=True):
    """The exact bytes of a manifest, at most 1 MiB."""

    data: bytes


class GetManifest(Request[ManifestBytes], frozen=True):
    """Asked for by hash: SHA-256 of the manifest's exact bytes, 64 lower hex."""

    manifest_hash: str


class Block(Message, frozen=True):
    """Bytes of a file from the offset that was asked for; `last` when the file ends with them."""

    data: bytes
    last: bool


class GetBlock(Request[Block], frozen=True):
    """At most 64 KiB of the file with this SHA-256, from `offset` (a multiple of 64 KiB)."""

    sha256: str
    offset: U64


class Offered(Message, frozen=True):
    """The package may be fetched now."""

    package_id: str
    files: tuple[FileRef, ...]


class Offer(Request[Offered], frozen=True):
    """Serve the stored package with this manifest hash; the server verifies it before it does."""

    manifest_hash: str


class Withdrawn(Message, frozen=True):
    """`known` is false when nothing of that hash was offered."""

    known: bool


class Withdraw(Request[Withdrawn], frozen=True):
    """Stop serving a package; files that another offered package lists stay."""

    manifest_hash: str


PackagesMailbox = GetManifest | GetBlock | Offer | Withdraw

__all__ = [
    "BLOCK_BYTES",
    "COG_TOML_LIMIT_BYTES",
    "FILE_LIMIT_BYTES",
    "MANIFEST_LIMIT_BYTES",
    "Arch",
    "Attestation",
    "Block",
    "CogArgument",
    "CogBody",
    "CogLimits",
    "FileRef",
    "GetBlock",
    "GetManifest",
    "ManifestBytes",
    "Offer",
    "Offered",
    "PackageErrorCode",
    "PackageOrigin",
    "PackageRefusal",
    "PackagesMailbox",
    "SignatureEntry",
    "VerifiedWorkload",
    "Withdraw",
    "Withdrawn",
]
