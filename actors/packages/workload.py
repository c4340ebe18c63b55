"""From a verified manifest and its `cog.toml` to the workload that is placed and run (G 4.8)."""

from __future__ import annotations

from collections.abc import Sequence

from actors.packages.cog import parse_cog
from actors.packages.fault import cog_invalid
from actors.packages.manifest import Manifest, Signer
from actors.packages.stream import FileVerifier
from messages.packages import VerifiedWorkload


def verified_workload(manifest: Manifest, signers: Sequence[Signer], cog_toml: bytes) -> VerifiedWorkload:
    """The workload of a package whose signatures gave `signers`; `cog_toml` is checked against the manifest again.

    The other files are the caller's to verify. Raises `PackageFault`.
    """
    assert signers, "a workload without an accepted signer must not exist"
    verifier = FileVerifier(manifest.body.cog_toml)
    verifier.feed(cog_toml)
    verifier.finish()
    cog = parse_cog(cog_toml)
    if (cog.id, cog.version) != (manifest.body.id, manifest.body.version):
        raise cog_invalid(
            f"it is {cog.id} {cog.version}, its manifest is {manifest.body.id} {manifest.body.version}; pack it again"
        )
    return VerifiedWorkload(
        kind=manifest.kind,
        id=cog.id,
        version=cog.version,
        package_id=manifest.package_id,
        manifest_hash=manifest.manifest_hash,
        signer_keys=tuple(signer.public_key for signer in signers),
        limits=cog.limits,
        binaries=manifest.body.binaries,
        artifact_hashes=tuple(sorted({file.sha256 for file in manifest.body.files()})),
    )
