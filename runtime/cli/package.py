"""`sennit package`: keys, packing, signing, verifying (design 11, G 4)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from runtime.cli.options import ClusterOption, JsonOption, cluster_path, verbs
from runtime.cli.output import ExitCode, Failed, print_document, print_facts

app = verbs()


@app.callback()
def package() -> None:
    """Make keys; pack, sign, verify and show packages.

    \b
    Examples:
      sennit package pack hostwatch/ hostwatch.pkg/
      sennit package sign hostwatch.pkg/ --cluster reef
      sennit package verify hostwatch.pkg/ --cluster reef
    """


PackageArgument = Annotated[Path, typer.Argument(metavar="PACKAGE", help="Package directory.")]


@app.command()
def keygen(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where the secret seed is written (mode 0600).")],
    as_json: JsonOption = False,
) -> None:
    """Make a signing key and print the entry that a trust file needs.

    \b
    Example:
      sennit package keygen my.key
    """
    from runtime.packages.keyfile import generate

    made = generate(file)
    if as_json:
        print_document({"file": str(made.path), "trust": made.trust_key})
        return
    print_facts([("key file", made.path), ("key id", made.trust_key.key_id), ("public key", made.trust_key.public_key)])


@app.command()
def pack(
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="Folder with cog.toml and the payloads.")],
    out: Annotated[Path, typer.Argument(metavar="PACKAGE", help="New or empty folder for the package.")],
    as_json: JsonOption = False,
) -> None:
    """Make an unsigned package out of a folder that holds cog.toml.

    \b
    Example:
      sennit package pack hostwatch/ hostwatch.pkg/
    """
    from runtime.packages.directory import pack as pack_directory

    manifest = pack_directory(source, out)
    if as_json:
        print_document(
            {"package": str(out), "package_id": manifest.package_id, "manifest_hash": manifest.manifest_hash}
        )
        return
    print(f"packed {manifest.package_id} into {out}; it is not signed yet: sennit package sign {out}")


@app.command()
def sign(
    package: PackageArgument,
    key: Annotated[
        Path | None,
        typer.Option("--key", metavar="FILE", help="Signing key; without it, the signer of the cluster."),
    ] = None,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Sign what lies in the package; every listed file is checked first.

    \b
    Examples:
      sennit package sign hostwatch.pkg/ --cluster reef
      sennit package sign hostwatch.pkg/ --key my.key
    """
    from runtime.packages.directory import sign as sign_directory
    from runtime.packages.keyfile import read_seed

    seed = read_seed(key if key is not None else cluster_path(cluster) / "keys" / "signer.key")
    manifest = sign_directory(package, seed)
    if as_json:
        print_document(
            {
                "package": str(package),
                "package_id": manifest.package_id,
                "manifest_hash": manifest.manifest_hash,
                "signed_by": seed.public_key.hex(),
            }
        )
        return
    print(f"signed {manifest.package_id} with key {seed.public_key.hex()[:16]}")
    print(f"manifest {manifest.manifest_hash}")


@app.command()
def verify(
    package: PackageArgument,
    trust: Annotated[
        Path | None,
        typer.Option("--trust", metavar="FILE", help="Trust file; without it, that of the cluster."),
    ] = None,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check signatures against the trusted keys, then every file.

    \b
    Examples:
      sennit package verify hostwatch.pkg/ --cluster reef
      sennit package verify hostwatch.pkg/ --trust trust.json
    """
    from actors.packages.fault import PackageFault
    from runtime.packages.directory import read_trust
    from runtime.packages.directory import verify as verify_directory

    anchors = read_trust(trust if trust is not None else cluster_path(cluster) / "trust.json")
    try:
        found = verify_directory(package, anchors)
    except PackageFault as fault:
        raise Failed(
            ExitCode.REFUSED,
            fault.code.value,
            f"{package} is not accepted: {fault.text}",
            f"sennit package show {package}",
        ) from None
    workload = found.workload
    if as_json:
        print_document({"package": str(package), "verified": True, "workload": workload})
        return
    print_facts(
        [
            ("verified", workload.package_id),
            ("signed by", ", ".join(workload.signer_keys)),
            ("manifest", workload.manifest_hash),
            ("payloads", ", ".join(f"{arch.value} ({file.size} bytes)" for arch, file in workload.binaries.items())),
        ]
    )


@app.command()
def show(package: PackageArgument, as_json: JsonOption = False) -> None:
    """Print what the package says of itself. Nothing of it is verified.

    \b
    Example:
      sennit package show hostwatch.pkg/
    """
    from runtime.packages.directory import show as show_directory

    said = show_directory(package)
    if as_json:
        print_document(said)
        return
    body = said["body"]
    print_facts(
        [
            ("package", said["package_id"]),
            ("kind", said["kind"]),
            ("version", body["version"]),
            ("manifest", said["manifest_hash"]),
            *(
                (f"payload {arch}", f"{file['size']} bytes, {file['sha256']}")
                for arch, file in body["binaries"].items()
            ),
            ("source", ", ".join(f"{name} {value}" for name, value in body["source"].items() if value)),
            *(("signed by", f"{entry['key_id']} {entry['public_key']}") for entry in said["signatures"]),
        ]
    )
    if not said["signatures"]:
        print(f"not signed: sennit package sign {package}")
