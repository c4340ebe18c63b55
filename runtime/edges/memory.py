"""Ring memory of one edges process: a sealed memfd for each workload, two eventfds for each ring (design 7, E 3).

An arena is sparse and as large as the node's budget; only the rings in it take memory. Its size is sealed before
anybody else sees it, so a workload that truncates it is refused and the node does not die of it. Arenas of different
workloads never share a memfd, so a workload sees its own rings and nobody else's. It can write where no ring lies, and
take memory by that which no lease counts: `reclaim` takes it away again.

The memory of a ring is there before anybody writes to it: too little is an error here, and no SIGBUS later. Each ring
is mapped alone, and its mapping must close before its pages go back: a view that somebody kept is told, and nothing is
released under it (promise 5).
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from threading import Lock

from messages.edge import RingId, RingLayout, RunId
from messages.edge_ports import RingRef
from messages.ports import PortRefusal
from runtime.edges.ring import HEADER_BYTES, format_ring

SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL

_PAGE = mmap.ALLOCATIONGRANULARITY
_NAME_BYTES = 200
"""The kernel takes 249 bytes as the name of a memfd."""

_CODES = {
    errno.ENOMEM: PortRefusal.NO_MEMORY,
    errno.ENOSPC: PortRefusal.NO_MEMORY,
    errno.EFBIG: PortRefusal.NO_MEMORY,
    errno.EMFILE: PortRefusal.NO_DESCRIPTORS,
    errno.ENFILE: PortRefusal.NO_DESCRIPTORS,
}


class MemoryFault(Exception):
    """What was asked was not done, and nothing of it is left. `code` is stable; `reason` is for people."""

    def __init__(self, code: PortRefusal, reason: str) -> None:
        super().__init__(f"{code.value}: {reason}")
        self.code = code
        self.reason = reason


@dataclass(slots=True, eq=False)
class RingMemory:
    """A ring that is laid out. `header` has 128 bytes and `data` has `capacity`; both are views of one shared mapping.

    The descriptors belong to the `NodeMemory`: whoever hands them on makes copies, and nobody else closes them.
    """

    ring_id: RingId
    arena: str
    generation: RunId
    layout: RingLayout
    arena_fd: int
    data_fd: int
    space_fd: int
    header: memoryview
    data: memoryview
    mapping: mmap.mmap = field(repr=False)

    @property
    def capacity(self) -> int:
        return self.layout.data_bytes


@dataclass(slots=True, eq=False)
class _Arena:
    """`whole` maps all of it, to give pages back; it takes addresses and no memory."""

    fd: int
    size_bytes: int
    whole: mmap.mmap
    rings: set[RingId] = field(default_factory=set)
    reclaimed_bytes: int = 0


class NodeMemory:
    """Every arena and ring of this process. Methods may be called by any thread and raise `MemoryFault`."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._arenas: dict[str, _Arena] = {}
        self._rings: dict[RingId, RingMemory] = {}

    def ring(self, ring_id: RingId) -> RingMemory:
        """Raises `KeyError` for a ring that was never laid out, or is erased."""
        return self._rings[ring_id]

    def format_ring(self, ref: RingRef, size_bytes: int) -> RingMemory:
        """Lay out a ring in the arena of its workload, which is made with `size_bytes` if it is not there.

        Codes: `exists` (the id is in use, or the range is), `invalid` (a layout or generation that no ring can have),
        `mismatch` (the arena has another size), `no_memory`, `no_descriptors`, `io_error`.
        """
        with self._lock, ExitStack() as undo:
            self._check(ref, size_bytes)
            arena = self._arenas.get(ref.arena) or _make_arena(ref.arena, size_bytes, undo)
            ring = _make_ring(ref, arena, undo)
            undo.pop_all()
            self._arenas[ref.arena] = arena
            arena.rings.add(ref.ring_id)
            self._rings[ref.ring_id] = ring
            return ring

    def erase_ring(self, ring_id: RingId) -> None:
        """Give the memory of a ring back; what comes to lie there finds zeros. Unknown rings: nothing.

        Code: `invalid_state` when somebody still holds a view of it; then it stays as it is.
        """
        with self._lock:
            ring = self._rings.get(ring_id)
            if ring is None:
                return
            _close_mapping(ring)
            arena = self._arenas[ring.arena]
            for descriptor in (ring.data_fd, ring.space_fd):
                os.close(descriptor)
            del self._rings[ring_id]
            arena.rings.discard(ring_id)
            _wipe(arena.whole, ring.layout.start_offset, ring.layout.end_offset)

    def reclaim(self) -> dict[str, int]:
        """Take away what workloads have put where no ring lies; returns how many bytes, by arena."""
        found = {}
        with self._lock:
            for name, arena in self._arenas.items():
                before = _resident(arena.fd)
                for first, end in self._gaps(arena):
                    arena.whole.madvise(mmap.MADV_REMOVE, first, end - first)
                taken = before - _resident(arena.fd)
                if taken > 0:
                    arena.reclaimed_bytes += taken
                    found[name] = taken
        return found

    def _gaps(self, arena: _Arena) -> Iterator[tuple[int, int]]:
        """Whole pages that no ring has a byte of."""
        at = 0
        for layout in sorted((self._rings[ring].layout for ring in arena.rings), key=lambda one: one.start_offset):
            end = layout.start_offset // _PAGE * _PAGE
            if at < end:
                yield at, end
            at = -(-layout.end_offset // _PAGE) * _PAGE
        if at < arena.size_bytes:
            yield at, arena.size_bytes

    def drop_arena(self, arena: str) -> None:
        """Unmap and close it. Unknown arenas: nothing. Code: `invalid_state` while a ring is in it."""
        with self._lock:
            found = self._arenas.get(arena)
            if found is None:
                return
            if found.rings:
                rings = ", ".join(map(str, sorted(found.rings)))
                raise MemoryFault(PortRefusal.INVALID_STATE, f"arena {arena} holds rings {rings}: erase them first")
            _close_arena(self._arenas.pop(arena))

    def close(self) -> None:
        """Close everything. What somebody still has mapped goes when that is dropped, or with the process."""
        with self._lock:
            for ring in self._rings.values():
                with suppress(MemoryFault):
                    _close_mapping(ring)
                os.close(ring.data_fd)
                os.close(ring.space_fd)
            for arena in self._arenas.values():
                _close_arena(arena)
            self._rings.clear()
            self._arenas.clear()

    def rows(self) -> list[dict[str, object]]:
        """Every arena as plain data: its rings, and the bytes that it takes now."""
        with self._lock:
            return [
                {
                    "arena": name,
                    "size_bytes": arena.size_bytes,
                    "resident_bytes": _resident(arena.fd),
                    "reclaimed_bytes": arena.reclaimed_bytes,
                    "rings": sorted(arena.rings),
                }
                for name, arena in self._arenas.items()
            ]

    def _check(self, ref: RingRef, size_bytes: int) -> None:
        ring_id, layout, present = ref.ring_id, ref.layout, self._arenas.get(ref.arena)
        if ring_id in self._rings:
            there = self._rings[ring_id].arena
            raise MemoryFault(PortRefusal.EXISTS, f"ring {ring_id} is laid out already, in {there}")
        if present is not None and present.size_bytes != size_bytes:
            raise MemoryFault(
                PortRefusal.MISMATCH, f"arena {ref.arena} has {present.size_bytes} bytes, not {size_bytes}"
            )
        if not (
            0 <= layout.start_offset <= layout.header_offset
            and layout.header_offset + HEADER_BYTES <= layout.data_offset
            and 0 < layout.data_bytes == layout.end_offset - layout.data_offset
            and layout.end_offset <= size_bytes <= sys.maxsize
            and layout.header_offset % 8 == 0
        ):
            raise MemoryFault(PortRefusal.INVALID, f"ring {ring_id} cannot lie so in {size_bytes} bytes: {layout}")
        for other in present.rings if present is not None else ():
            lies = self._rings[other].layout
            if layout.start_offset < lies.end_offset and lies.start_offset < layout.end_offset:
                raise MemoryFault(
                    PortRefusal.EXISTS,
                    f"ring {ring_id} would lie in bytes {layout.start_offset} to {layout.end_offset} of {ref.arena}, "
                    f"where ring {other} has {lies.start_offset} to {lies.end_offset}",
                )


def _make_arena(name: str, size_bytes: int, undo: ExitStack) -> _Arena:
    with _system(f"an arena of {size_bytes} bytes for {name}"):
        label = f"sennit-{name}".encode()[:_NAME_BYTES].decode(errors="ignore").replace("\0", "")
        fd = os.memfd_create(label, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        undo.callback(os.close, fd)
        os.ftruncate(fd, size_bytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
        whole = mmap.mmap(fd, size_bytes)
        undo.callback(whole.close)
        return _Arena(fd=fd, size_bytes=size_bytes, whole=whole)


def _make_ring(ref: RingRef, arena: _Arena, undo: ExitStack) -> RingMemory:
    layout = ref.layout
    first = layout.start_offset // _PAGE * _PAGE
    with _system(f"ring {ref.ring_id} of {layout.data_bytes} bytes in {ref.arena}"):
        undo.callback(_wipe, arena.whole, layout.start_offset, layout.end_offset)
        os.posix_fallocate(arena.fd, layout.start_offset, layout.end_offset - layout.start_offset)
        descriptors = []
        for _ in range(2):
            descriptors.append(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))
            undo.callback(os.close, descriptors[-1])
        mapping = mmap.mmap(arena.fd, layout.end_offset - first, offset=first)
        undo.callback(mapping.close)
    header, data = _views(mapping, layout)
    undo.callback(_release, header, data)
    try:
        format_ring(header, layout.data_bytes, ref.generation)
    except ValueError as error:
        raise MemoryFault(PortRefusal.INVALID, f"ring {ref.ring_id}: {error}") from None
    return RingMemory(
        ring_id=ref.ring_id,
        arena=ref.arena,
        generation=ref.generation,
        layout=layout,
        arena_fd=arena.fd,
        data_fd=descriptors[0],
        space_fd=descriptors[1],
        header=header,
        data=data,
        mapping=mapping,
    )


def _views(mapping: mmap.mmap, layout: RingLayout) -> tuple[memoryview, memoryview]:
    first = layout.start_offset // _PAGE * _PAGE
    header, data = layout.header_offset - first, layout.data_offset - first
    with memoryview(mapping) as whole:
        return whole[header : header + HEADER_BYTES], whole[data : data + layout.data_bytes]


def _release(*views: memoryview) -> None:
    for view in views:
        view.release()


def _close_mapping(ring: RingMemory) -> None:
    """Python closes a mapping only when no view of it is left: that is the check."""
    try:
        _release(ring.header, ring.data)
        ring.mapping.close()
    except BufferError:
        ring.header, ring.data = _views(ring.mapping, ring.layout)
        raise MemoryFault(
            PortRefusal.INVALID_STATE, f"ring {ring.ring_id} of {ring.arena} is looked at still: nothing was erased"
        ) from None


def _wipe(whole: mmap.mmap, start: int, end: int) -> None:
    """Whole pages go back to the system; in those shared with a neighbour the range becomes zeros."""
    first, last = -(-start // _PAGE) * _PAGE, end // _PAGE * _PAGE
    if first < last:
        whole.madvise(mmap.MADV_REMOVE, first, last - first)
    for low, high in ((start, min(first, end)), (max(last, start, first), end)):
        if low < high:
            whole[low:high] = bytes(high - low)


def _resident(fd: int) -> int:
    """Bytes of memory that an arena takes."""
    return os.fstat(fd).st_blocks * 512


def _close_arena(arena: _Arena) -> None:
    """A workload that has a descriptor of it still keeps nothing in it."""
    arena.whole.madvise(mmap.MADV_REMOVE)
    arena.whole.close()
    os.close(arena.fd)


@contextmanager
def _system(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise MemoryFault(_CODES.get(error.errno or 0, PortRefusal.IO_ERROR), f"{what}: {error.strerror}") from None


__all__ = ["SEALS", "MemoryFault", "NodeMemory", "RingMemory"]
