"""The one exception of a cluster's files: a stable code, and a text that says what, why and what to do."""

from __future__ import annotations

from enum import StrEnum


class ClusterFaultCode(StrEnum):
    """Why a cluster directory, or one file of it, was not accepted."""

    NOT_FOUND = "not_found"
    """No cluster is there at all."""
    MISSING = "missing"
    """A file of it is gone."""
    EXISTS = "exists"
    INVALID = "invalid"
    UNSAFE = "unsafe"
    PATH_TOO_LONG = "path_too_long"
    SIGNATURE = "signature"
    OUT_OF_DATE = "out_of_date"
    LOCKED = "locked"
    FOREIGN_STATE = "foreign_state"


class ClusterFault(Exception):
    """A file of a cluster was not accepted. `code` is stable; `text` is for people."""

    def __init__(self, code: ClusterFaultCode, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


def invalid(text: str) -> ClusterFault:
    return ClusterFault(ClusterFaultCode.INVALID, text)
