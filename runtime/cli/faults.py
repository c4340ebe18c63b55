"""How the failures of every part end a verb: exit code, stable code, text, and the command that helps (design 11)."""

from __future__ import annotations

import errno
import re
import sys

from runtime.cli.output import ExitCode, Failed


def failure_of(error: Exception) -> Failed | None:
    """The failure that `error` stands for; None when it is a defect and should show its trace.

    Modules are looked up among those already imported: an exception of a module that was never imported cannot be
    here, so that `sennit --help` stays light.
    """
    if isinstance(error, Failed):
        return error
    for module, convert in _CONVERTERS.items():
        if module in sys.modules and (failure := convert(error)) is not None:
            return failure
    return _file(error) if isinstance(error, OSError) else None


def _file(error: OSError) -> Failed | None:
    """A file or folder that the system would not let us read or write. Without a name only a full disk is understood:
    it was what we print to.
    """
    where = "standard output" if error.filename is None else error.filename
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Failed(ExitCode.REFUSED, "disk_full", f"{where}: {error.strerror}", "df -h, and free some space")
    return None if error.filename is None else Failed(ExitCode.USAGE, "file", f"{where}: {error.strerror}")


def _cluster(error: Exception) -> Failed | None:
    from runtime.cluster.fault import ClusterFault, ClusterFaultCode

    if not isinstance(error, ClusterFault):
        return None
    match error.code:
        case ClusterFaultCode.NOT_FOUND:
            exit_code = ExitCode.NO_CLUSTER
        case ClusterFaultCode.INVALID | ClusterFaultCode.PATH_TOO_LONG:
            exit_code = ExitCode.USAGE
        case ClusterFaultCode.OUT_OF_DATE | ClusterFaultCode.FOREIGN_STATE | ClusterFaultCode.MISSING:
            exit_code = ExitCode.DAMAGED
        case _:
            exit_code = ExitCode.REFUSED
    return Failed(exit_code, error.code.value, error.text)


def _package(error: Exception) -> Failed | None:
    from actors.packages.fault import PackageFault
    from messages.packages import PackageErrorCode

    if not isinstance(error, PackageFault):
        return None
    match error.code:
        case PackageErrorCode.INPUT_INVALID | PackageErrorCode.IO_ERROR:
            exit_code = ExitCode.USAGE
        case _:
            exit_code = ExitCode.REFUSED
    return Failed(exit_code, error.code.value, error.text)


def _policy(error: Exception) -> Failed | None:
    from actors.gate.policy import PolicyFault

    if not isinstance(error, PolicyFault):
        return None
    return Failed(ExitCode.USAGE, "policy_invalid", str(error), "docs/formats.md, policy")


def _chain_log(error: Exception) -> Failed | None:
    from messages.ports import PortRefusal
    from runtime.ports.chain_log import ChainLogFault

    if not isinstance(error, ChainLogFault):
        return None
    match error.code:
        case PortRefusal.NOT_FOUND:
            return Failed(ExitCode.NO_CLUSTER, "no_chain", f"there is no chain yet: {error.reason}", "sennit up")
        case PortRefusal.INVALID_STATE:
            return Failed(ExitCode.REFUSED, "in_use", error.reason, "sennit chain verify, without --offline")
        case PortRefusal.DISK_FULL:
            return Failed(ExitCode.REFUSED, "disk_full", error.reason)
        case _:
            return Failed(ExitCode.DAMAGED, error.code.value, error.reason, "sennit chain verify")


def _listen(error: Exception) -> Failed | None:
    from runtime.office.listen import ListenFault

    return Failed(ExitCode.REFUSED, "listen", str(error), "sennit status") if isinstance(error, ListenFault) else None


def _ask(error: Exception) -> Failed | None:
    from actors.actor import AskFailed
    from messages.system import AskFailure

    if not isinstance(error, AskFailed):
        return None
    match error.failure:
        case AskFailure.UNREACHABLE:
            return Failed(
                ExitCode.NO_CLUSTER, "unreachable", f"{error.to} cannot be reached: {error.reason}", "sennit status"
            )
        case AskFailure.REFUSED | AskFailure.WOULD_DEADLOCK:
            code = error.code or error.failure.value
            exit_code = _REFUSALS.get(code, ExitCode.REFUSED)
            return Failed(exit_code, code, f"{error.to} refused ({code}): {error.reason}", _remedy(code, error.reason))
        case AskFailure.TIMEOUT | AskFailure.DIED:
            return Failed(
                ExitCode.INDETERMINATE,
                error.failure.value,
                f"{error.to} gave no answer ({error.failure.value}: {error.reason}): what was asked may have been done "
                "or not",
                "sennit status, then sennit instance ls and sennit chain tail",
            )


def _remedy(code: str, reason: str) -> str:
    """The command that helps. A refused package names the code of its fault in brackets at the end."""
    inner = _BRACKETED.search(reason) if code == "package" else None
    return _REMEDIES.get(inner[1] if inner else code, "")


_REFUSALS = {
    "placement": ExitCode.UNPLACEABLE,
    "call_indeterminate": ExitCode.INDETERMINATE,
    "unsettled": ExitCode.INDETERMINATE,
    "call_unreachable": ExitCode.NO_CLUSTER,
    "stale_state": ExitCode.DAMAGED,
    "stale_term": ExitCode.DAMAGED,
    "damaged": ExitCode.DAMAGED,
    "closed": ExitCode.DAMAGED,
    "not_in_mailbox": ExitCode.USAGE,
    "invalid": ExitCode.USAGE,
    "no_such_actor": ExitCode.NO_CLUSTER,  # its process is there and starts it, now or again
}
_REMEDIES = {
    "placement": "sennit explain PACKAGE",
    "governance": "sennit gate policy, and sennit chain tail for the judgement",
    "slot_held": "sennit instance ls",
    "unsettled": "sennit instance ls settles what can be settled",
    "call_unreachable": "sennit node ls",
    "call_indeterminate": "sennit instance ls settles what can be settled",
    "closed": "sennit chain verify",
    "no_record": "sennit chain tail, and look at the disk of the chain",
    "no_such_actor": "sennit tree, then once more",
    "untrusted-signer": "sennit package sign PACKAGE with a key of trust.json, or add the signer to trust.json",
    "missing-signature": "sennit package sign PACKAGE",
    "bad-signature": "sennit package sign PACKAGE, if what it holds is what was packed",
    "file-missing": "sennit package pack SOURCE PACKAGE",
    "file-tampered": "sennit package pack SOURCE PACKAGE",
    "io-error": "sennit doctor, and look at the disks",
}
_BRACKETED = re.compile(r"\[([a-z-]+)\]$", re.ASCII)
_CONVERTERS = {
    "runtime.cluster.fault": _cluster,
    "actors.packages.fault": _package,
    "actors.gate.policy": _policy,
    "runtime.ports.chain_log": _chain_log,
    "runtime.office.listen": _listen,
    "actors.actor": _ask,
}
