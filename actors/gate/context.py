"""What the gate is told about a workload, read strictly (G 2.3). What does not read is denied, never guessed."""

from __future__ import annotations

import re
from math import isfinite

import msgspec

from actors.chain import canonical
from messages.gate import WorkloadContext

CONTEXT_LIMIT_BYTES = 65_536
MAX_REFERENCES = 64

KIND = re.compile(r"[a-z0-9_-]{1,64}", re.ASCII)
_ACCELERATOR = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*", re.ASCII)
_PACKAGE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@/:+-]{0,127}", re.ASCII)
_DIGEST = re.compile(r"[0-9A-Fa-f]{64}", re.ASCII)


class ContextFault(ValueError):
    """The context cannot be judged; the text says which field and why."""


def parse_context(text: bytes) -> WorkloadContext:
    """The `workload` member of a request's JSON text, checked.

    Members beside it, such as a node id, an effect written by hand or a project id, are ignored on purpose: the gate
    takes none of them from a caller. Raises `ContextFault`.
    """
    try:
        request = canonical.decode(text, CONTEXT_LIMIT_BYTES)
    except canonical.CanonicalFault as error:
        raise ContextFault(str(error)) from None
    if not isinstance(request, dict) or "workload" not in request:
        raise ContextFault("there is no `workload` member")
    try:
        context = msgspec.convert(request["workload"], WorkloadContext)
    except msgspec.ValidationError as error:
        raise ContextFault(f"workload: {str(error)[:200]}") from None
    return check_context(context)


def read_context(text: bytes) -> WorkloadContext | ContextFault:
    """What `parse_context` gives, or the fault it raises: a gate denies and records either way."""
    try:
        return parse_context(text)
    except ContextFault as fault:
        return fault


def check_context(context: WorkloadContext) -> WorkloadContext:
    """Refuse fields that the types alone do not bound. Raises `ContextFault`."""
    if KIND.fullmatch(context.kind) is None:
        raise ContextFault(f"kind {context.kind[:64]!r} must be 1..=64 of [a-z0-9_-]")
    if not isfinite(context.resource_cost) or not 0.0 <= context.resource_cost <= 1.0:
        raise ContextFault(f"resource_cost {context.resource_cost} must be within 0..1")
    accelerator = context.accelerator
    if accelerator is not None and (len(accelerator) > 128 or _ACCELERATOR.fullmatch(accelerator) is None):
        raise ContextFault(f"accelerator {accelerator[:128]!r} must be a dotted lower-case id, at most 128 chars")
    if context.package_id is not None and _PACKAGE_ID.fullmatch(context.package_id) is None:
        raise ContextFault("package id must be 1..=128 chars of [A-Za-z0-9._-@/:+] starting alphanumeric")
    for what, digests in (("signer_keys", context.signer_keys), ("artifact_hashes", context.artifact_hashes)):
        if len(digests) > MAX_REFERENCES:
            raise ContextFault(f"{what}: {len(digests)} entries, at most {MAX_REFERENCES} are allowed")
        if not all(_DIGEST.fullmatch(digest) for digest in digests):
            raise ContextFault(f"{what}: each must be exactly 64 hex characters")
    return context
