"""What a port refuses, fails at or ends with: one class and one code each, what happened first, then what to do."""

from __future__ import annotations

from enum import StrEnum


class PortErrorCode(StrEnum):
    """Stable words for what a workload may meet."""

    NOT_A_WORKLOAD = "not_a_workload"
    INVALID_PORT = "invalid_port"
    TIMEOUT = "timeout"
    CLOSED = "closed"
    END_OF_STREAM = "end_of_stream"
    OBJECT_TOO_LARGE = "object_too_large"
    OBJECT_MISALIGNED = "object_misaligned"
    VIEW_HELD = "view_held"
    RESERVATION_OPEN = "reservation_open"


class PortError(Exception):
    """Base of all of them; `code` says which."""

    code: PortErrorCode


class NotAWorkload(PortError):
    """This process was not given the descriptor on which a node hands edges to its workloads."""

    code = PortErrorCode.NOT_A_WORKLOAD


class InvalidPort(PortError):
    """The name is not one that a port can have, or the port exists in the other direction."""

    code = PortErrorCode.INVALID_PORT


class PortTimeout(PortError, TimeoutError):
    """`timeout_s` is over and nothing was moved; the call may be made again."""

    code = PortErrorCode.TIMEOUT


class PortClosed(PortError):
    """The port moves nothing more: it, or all the ports, were closed here."""

    code = PortErrorCode.CLOSED


class EndOfStream(PortError):
    """Every producer closed its end, and all of it was read. Told once; after it the port waits for new edges."""

    code = PortErrorCode.END_OF_STREAM


class ObjectTooLarge(PortError):
    """Nothing was sent. `max_extent`: the largest payload, in bytes, that every edge of the port takes."""

    code = PortErrorCode.OBJECT_TOO_LARGE

    def __init__(self, text: str, max_extent: int) -> None:
        super().__init__(text)
        self.max_extent = max_extent


class ObjectMisaligned(PortError):
    """Nothing was sent: the payload's length must be a multiple of `alignment` bytes."""

    code = PortErrorCode.OBJECT_MISALIGNED

    def __init__(self, text: str, alignment: int) -> None:
        super().__init__(text)
        self.alignment = alignment


class ViewHeld(PortError):
    """Views of ring memory that should be gone are kept by this program, so the ring cannot go on."""

    code = PortErrorCode.VIEW_HELD


class ReservationOpen(PortError):
    """The port is within `with port.reserve(...)`: nothing else can be sent until that is left."""

    code = PortErrorCode.RESERVATION_OPEN


__all__ = [
    "EndOfStream",
    "InvalidPort",
    "NotAWorkload",
    "ObjectMisaligned",
    "ObjectTooLarge",
    "PortClosed",
    "PortError",
    "PortErrorCode",
    "PortTimeout",
    "ReservationOpen",
    "ViewHeld",
]
