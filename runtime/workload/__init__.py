"""What a workload needs to use its edges: ports through which objects come and go (design 7).

    from runtime.workload import Ports

    ports = Ports.from_environment()
    samples, results = ports.input("samples"), ports.output("results")
    for record in samples:
        results.send(work(record.payload))

`record.payload` is a view of the shared memory itself; `send` takes anything with the buffer protocol. Ports follow
their edges: an edge may be added, removed, moved to another node or restarted at any time, and calls wait for it. When
every producer of an input has closed its port, the loop ends; a program that ends closes its outputs.

Another language speaks to its node as docs/edges.md says. Standard library only, and quick to import.
"""

from actors.edges.records import BEGIN_SEQUENCE, END_OF_SEQUENCE
from runtime.workload.errors import (
    EndOfStream,
    InvalidPort,
    NotAWorkload,
    ObjectMisaligned,
    ObjectTooLarge,
    PortClosed,
    PortError,
    PortErrorCode,
    PortTimeout,
    ReservationOpen,
    ViewHeld,
)
from runtime.workload.input import InputPort
from runtime.workload.output import OutputPort
from runtime.workload.ports import Ports
from runtime.workload.source import Record

__all__ = [
    "BEGIN_SEQUENCE",
    "END_OF_SEQUENCE",
    "EndOfStream",
    "InputPort",
    "InvalidPort",
    "NotAWorkload",
    "ObjectMisaligned",
    "ObjectTooLarge",
    "OutputPort",
    "PortClosed",
    "PortError",
    "PortErrorCode",
    "PortTimeout",
    "Ports",
    "Record",
    "ReservationOpen",
    "ViewHeld",
]
