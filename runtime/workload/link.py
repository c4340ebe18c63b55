"""One ring as this process has it: mapped alone, checked before use, and let go of as a whole (docs/edges.md).

The mapping is not inherited by a fork, so "no view is left in this process" is "none is left in this workload".
"""

from __future__ import annotations

import fcntl
import mmap
import os

from actors.edges.records import HEADER_BYTES as RECORD_HEADER_BYTES
from actors.edges.records import RecordFault, quantum_of
from runtime.edges.ring import HEADER_BYTES, RingFault, check_header
from runtime.workload.channel import Channel, Packet, Refusal, close_all

_PAGE = mmap.ALLOCATIONGRANULARITY


class Link:
    """A mapped ring. Base of what reads one and what writes one; every method is called under the port's lock.

    `usable` until a fault or an uninstall: the ring may be touched. `retired` after an uninstall.
    """

    __slots__ = (
        "_mapping",
        "alignment",
        "capacity",
        "channel",
        "closed",
        "data",
        "data_fd",
        "edge",
        "faulted",
        "header",
        "max_extent",
        "quantum",
        "retired",
        "ring_id",
        "space_fd",
        "usable",
    )

    def __init__(self, packet: Packet, channel: Channel) -> None:
        """Map what an install names; its descriptors are taken over, or closed. Raises `Refusal`."""
        try:
            self._mapping, self.header, self.data = _mapped(packet)
        except BaseException:
            close_all(packet.fds)
            raise
        arena_fd, self.data_fd, self.space_fd = packet.fds
        packet.fds.clear()
        os.close(arena_fd)
        numbers = packet.numbers
        self.channel = channel
        self.ring_id = packet.ring
        self.edge = numbers["edge"]
        self.capacity = numbers["capacity"]
        self.max_extent = numbers["max_extent"]
        self.alignment = numbers["alignment"]
        self.quantum = quantum_of(self.capacity)
        """So many bytes are committed, or given back, without waiting for a better occasion."""
        self.usable = True
        self.retired = False
        self.faulted = ""
        self.closed = False

    def retire(self) -> None:
        """It is uninstalled: nothing is read, written, committed or given back any more."""
        self.usable = False
        self.retired = True

    def fault(self, error: RingFault | RecordFault) -> None:
        """The other side broke the rules: the node is told, and the ring is left alone until it is uninstalled."""
        if self.usable:
            self.usable = False
            self.faulted = f"{error.code}: {error.text}"
            self.channel.tell("fault", self.ring_id, code=error.code, text=error.text)

    def let_go(self) -> bool:
        """Unmap, if no view of the ring is left; then its quiescence is told. False: it has to be tried again."""
        if self.closed:
            return True
        try:
            self._release()
            self._mapping.close()
        except BufferError:
            return False
        self.closed = True
        os.close(self.data_fd)
        os.close(self.space_fd)
        self.channel.tell("quiesced", self.ring_id)
        return True

    def abandon(self) -> mmap.mmap | None:
        """Unmap without a word, or leave that to whoever drops the last view: the mapping is returned then.

        In a fork, which did not inherit the memory, it must never be dropped: its addresses may be somebody else's.
        """
        if self.closed:
            return None
        self.closed = True
        os.close(self.data_fd)
        os.close(self.space_fd)
        try:
            self._release()
            self._mapping.close()
        except BufferError:
            return self._mapping
        return None

    def _release(self) -> None:
        self.header.release()
        self.data.release()


def _mapped(packet: Packet) -> tuple[mmap.mmap, memoryview, memoryview]:
    if len(packet.fds) != 3:
        raise Refusal(f"an install brings the arena and two eventfds, not {len(packet.fds)} descriptors")
    numbers = packet.numbers
    start, header, data, end = (numbers[name] for name in ("offset", "header", "data", "end"))
    capacity, generation, max_extent = numbers["capacity"], numbers["generation"], numbers["max_extent"]
    if not (start <= header and header + HEADER_BYTES <= data and data + capacity <= end and header % 8 == 0):
        raise Refusal(f"a ring cannot lie like this: {numbers}")
    if capacity < RECORD_HEADER_BYTES + max_extent:
        raise Refusal(f"a ring of {capacity} bytes has no room for objects of {max_extent}")
    arena_fd, *eventfds = packet.fds
    try:
        size = os.fstat(arena_fd).st_size
        sealed = fcntl.fcntl(arena_fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
    except OSError as error:
        raise Refusal(f"the first descriptor is no arena: {error.strerror}") from error
    if not sealed or end > size:
        raise Refusal(f"the arena has {size} bytes, sealed {bool(sealed)}: it must have {end} and never shrink")
    if any(os.get_blocking(fd) for fd in eventfds):
        raise Refusal("the eventfds must not block")
    first = start // _PAGE * _PAGE
    try:
        mapping = mmap.mmap(arena_fd, end - first, offset=first)
    except OSError as error:
        raise Refusal(
            f"{end - first} bytes cannot be mapped: {error.strerror}; rings count in the workload's memory and "
            "descriptor limits"
        ) from error
    mapping.madvise(mmap.MADV_DONTFORK)
    with memoryview(mapping) as whole:
        head = whole[header - first : header - first + HEADER_BYTES]
        body = whole[data - first : data - first + capacity]
    try:
        check_header(head, capacity, generation)
    except RingFault as fault:
        head.release()
        body.release()
        mapping.close()
        raise Refusal(fault.text, fault.code) from fault
    return mapping, head, body


__all__ = ["Link"]
