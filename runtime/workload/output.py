"""Ports through which objects go out."""

from __future__ import annotations

from types import TracebackType

from actors.edges.records import FLAGS, HEADER_BYTES
from runtime.workload.errors import ObjectMisaligned, ObjectTooLarge, ReservationOpen, ViewHeld
from runtime.workload.port import Port
from runtime.workload.sink import Sink

TYPE_CHECKING = False  # types that Python 3.11 does not have at run time
if TYPE_CHECKING:
    from typing_extensions import Buffer

_NO_ROOM = "there was no edge, or one had no room"


class OutputPort(Port[Sink]):
    """Every object goes to each edge that is installed when it is sent, whole or not at all; the slowest is waited for.

    An edge that is installed later begins with the next object. What is sent is in the ring and on its way; if the
    life of the edge ends by a fault, what was under way is lost, and the next life begins with sequence 0.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._next_id = 1
        self._batches = 0
        self._needed = 0
        self._reservation: Reservation | None = None

    def send(
        self, data: Buffer, *, object_id: int | None = None, flags: int = 0, timeout_s: float | None = None
    ) -> int:
        """Send the bytes of `data`, waiting for an edge and for room in it; returns the object's id.

        Ids count from 1 per port unless given; `flags` are `BEGIN_SEQUENCE` and `END_OF_SEQUENCE`. Raises
        `PortTimeout`, `PortClosed`, `ObjectTooLarge`, `ObjectMisaligned`, `ReservationOpen`; then nothing was sent.
        """
        payload = data if type(data) is bytes else flat(data)
        if flags or object_id is not None:
            _check(object_id, flags)
        with self._lock:
            sent = self._put(payload, object_id, flags)
        if sent is None:
            sent = self._put_later(payload, object_id, flags, timeout_s)
        return sent[0]

    def offer(self, data: Buffer, *, object_id: int | None = None, flags: int = 0) -> bool:
        """Send without waiting. False: nothing was sent, since there is no edge or no room. Raises as `send` does."""
        payload = data if type(data) is bytes else flat(data)
        _check(object_id, flags)
        with self._lock:
            return self._put(payload, object_id, flags) is not None

    def reserve(
        self, size: int, *, object_id: int | None = None, flags: int = 0, timeout_s: float | None = None
    ) -> Reservation:
        """`with port.reserve(size) as view:` fill `size` bytes of the ring itself; the object is sent on leaving.

        Leaving with an exception sends nothing. The view is always one piece: with several edges, or where the
        payload would wrap at the ring's end, it is memory of this process and copied on leaving. If the edge's life
        ends meanwhile, the object goes to the next one. Raises as `send` does, and `ViewHeld` on leaving when
        something made of the view is still used.
        """
        if size < 0:
            raise ValueError(f"size {size} is negative")
        _check(object_id, flags)
        return Reservation(self, size, object_id, flags, timeout_s)

    def batch(self) -> Batch:
        """`with port.batch():` objects sent within are published together, at the latest when the ring is a quarter
        full; that saves a system call, and often a wake-up, for each. Leaving publishes, with an exception too."""
        return Batch(self)

    def close(self) -> None:
        """Publish what is pending and end the stream: each consumer reads all of it, then sees its end."""
        with self._lock:
            if self._over:
                return
            self._publish()
            self._over = "the workload closed it"
            for sink in self._links:
                sink.channel.tell("closed", sink.ring_id)
            self._changed()

    def _put_later(
        self, payload: bytes | memoryview, object_id: int | None, flags: int, timeout_s: float | None
    ) -> tuple[int]:
        return self._await(lambda: self._put(payload, object_id, flags), timeout_s, _NO_ROOM)

    # Under the lock

    def _put(self, payload: bytes | memoryview, object_id: int | None, flags: int) -> tuple[int] | None:
        """Write one object to every edge. None: there is none, or one has no room. Else its id, which may be 0."""
        extent = len(payload)
        if not self._may_put(extent):
            return None
        if object_id is None:
            object_id = self._next_id
            self._next_id += 1
        for sink in self._links:
            sink.put(payload, extent, object_id, flags)
            if not self._batches or sink.written >= sink.publish_at:
                sink.commit()
        return (object_id,)

    def _may_put(self, extent: int) -> bool:
        if self._over or self._reservation is not None or self._retiring:
            self._check_open()
            self._let_go()
            if self._reservation is not None:
                raise ReservationOpen(f"port {self.name} has an open reservation: leave its `with` block first")
        needed = self._needed = HEADER_BYTES + extent
        links = self._links
        ready = bool(links)
        for sink in links:
            if extent > sink.max_extent:
                limit = min(sink.max_extent for sink in links)
                raise ObjectTooLarge(
                    f"port {self.name}: {extent} bytes are more than edge {sink.edge} takes; send at most {limit}, or "
                    "add the edge with a larger object size",
                    limit,
                )
            if sink.alignment and extent % sink.alignment:
                raise ObjectMisaligned(
                    f"port {self.name}: edge {sink.edge} takes multiples of {sink.alignment} bytes, not {extent}; "
                    "pad the object",
                    sink.alignment,
                )
            if sink.limit - sink.written < needed and not sink.make_room(needed):
                ready = False
        if not ready:
            self._publish()
            if any(not sink.usable for sink in links):
                self._prune()
                return self._may_put(extent)
        return ready

    def _publish(self) -> None:
        for sink in self._links:
            sink.commit()

    def _waits_for(self, link: Sink) -> int | None:
        return link.space_fd if link.limit - link.written < self._needed else None


class Batch:
    """See `OutputPort.batch`."""

    def __init__(self, port: OutputPort) -> None:
        self._port = port

    def __enter__(self) -> OutputPort:
        with self._port._lock:
            self._port._batches += 1
        return self._port

    def __exit__(self, *_: object) -> None:
        with self._port._lock:
            self._port._batches -= 1
            if not self._port._batches:
                self._port._publish()


class Reservation:
    """See `OutputPort.reserve`. `object_id` once it was sent."""

    def __init__(self, port: OutputPort, size: int, object_id: int | None, flags: int, timeout_s: float | None) -> None:
        self.object_id = object_id
        self._port = port
        self._size = size
        self._flags = flags
        self._timeout_s = timeout_s
        self._sink: Sink | None = None
        self._view: memoryview | None = None

    def __enter__(self) -> memoryview:
        return self._port._await(self._begin, self._timeout_s, _NO_ROOM)[0]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        port, view = self._port, self._view
        assert view is not None, "a reservation is entered before it is left"
        with port._lock:
            port._reservation = None
            in_place = self._sink is not None and self._sink.usable and not port._over and port._links == [self._sink]
            data = None if in_place or error is not None else bytes(view)
            self._view = None
            try:
                view.release()
            except BufferError:
                if error is not None:
                    return
                raise ViewHeld(
                    f"port {port.name}: something made of the reserved view is still used, so nothing was sent; "
                    "drop it before the `with` block ends"
                ) from None
            port._let_go()
            if error is not None:
                return
            if in_place:
                assert self._sink is not None
                if self.object_id is None:
                    self.object_id = port._next_id
                    port._next_id += 1
                self._sink.finish(self._size, self.object_id, self._flags)
                if not port._batches:
                    port._publish()
                return
        assert data is not None
        self.object_id = port.send(data, object_id=self.object_id, flags=self._flags, timeout_s=self._timeout_s)

    def _begin(self) -> tuple[memoryview] | None:
        port = self._port
        if not port._may_put(self._size):
            return None
        port._reservation = self
        if len(port._links) == 1:
            self._view = port._links[0].span(self._size)
        if self._view is not None:
            self._sink = port._links[0]
        else:
            self._view = memoryview(bytearray(self._size))
        return (self._view,)


def flat(data: Buffer) -> memoryview:
    """The bytes of anything with the buffer protocol, copied only when they do not lie in one piece."""
    view = memoryview(data)
    if view.format == "B" and view.ndim == 1 and view.contiguous:
        return view
    if view.c_contiguous and view.nbytes:
        return view.cast("B")
    return memoryview(view.tobytes())


def _check(object_id: int | None, flags: int) -> None:
    if flags & ~FLAGS:
        raise ValueError(f"flags {flags:#x} have bits other than BEGIN_SEQUENCE and END_OF_SEQUENCE")
    if object_id is not None and not 0 <= object_id < 2**64:
        raise ValueError(f"object id {object_id} is not a number from 0 to 2^64-1")


__all__ = ["Batch", "OutputPort", "Reservation"]
