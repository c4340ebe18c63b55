"""Streams between this process and others: which frame goes to which pump, and what is answered (design 7, E 5).

What may be sent and what is taken is decided by the windows of `actors.edges.stream`; here frames find their pumps, by
the process that said them and the edge that they name. A stream that comes before its end is here waits unread.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from actors.edges.frames import Credit, Data, Fin, Frame, Open, Refused, pack
from actors.edges.stream import OpenRefused
from messages.edge import EdgeId
from messages.edge_end import EdgeFaultCode
from runtime.edges.driver.links import Guest, Link, Links
from runtime.edges.driver.local import LocalSink
from runtime.edges.driver.pumps import FAULTS, ReceivePump, SendPump

SILENCE_S = 5.0
"""A peer that says nothing for so long is gone, and the streams with it end."""

MOMENT_S = 0.001
QUIET_S = 0.005
"""Acknowledgements of little wait for more of it: so much is never what a producer waits for."""

REOPEN_S = 1.0
PARKED_S = 10.0
MAX_PARKED = 256
"""Streams of one peer that wait for their end here: it says again every `REOPEN_S` that they wait."""

IDLE_LINK_S = 30.0


class Ends(Protocol):
    """Who has the pumps, tells what becomes of them and gives them turns."""

    @property
    def sinks(self) -> Mapping[EdgeId, ReceivePump | LocalSink]: ...

    def was_halted(self, edge: int) -> bool: ...

    def ready(self, pump: SendPump | ReceivePump) -> None: ...

    def ended(self, pump: SendPump | ReceivePump) -> None: ...

    def faulted(self, pump: SendPump | ReceivePump, code: str, text: str) -> None: ...

    def wake(self, pump: SendPump) -> None: ...

    def later(self, sink: ReceivePump, delay_s: float) -> None:
        """Have its credit told by then."""

    def attend(self, sink: ReceivePump) -> None: ...

    def count(self, what: str, detail: str) -> None: ...


class Streams:
    """The owner of the links. `now` is the loop's time, monotonic seconds."""

    def __init__(self, ends: Ends) -> None:
        self.links: Links
        self.now = 0.0
        self._ends = ends
        self._parked: dict[str, dict[EdgeId, tuple[Open, float]]] = {}

    def count(self, what: str, detail: str) -> None:
        self._ends.count(what, detail)

    # towards consumers

    def link_up(self, link: Link) -> None:
        for pump in link.pumps.values():
            self.open(pump)

    def link_down(self, link: Link) -> None:
        link.waiting.clear()
        for pump in link.pumps.values():
            pump.window.lost()

    def room_again(self, link: Link) -> None:
        waiting = list(link.waiting.values())
        link.waiting.clear()
        for pump in waiting:
            self._ends.wake(pump)

    def open(self, pump: SendPump) -> None:
        """Begin or resume its stream, if there is a connection; each new one begins with this anyway."""
        link = pump.link
        if link.up and not pump.window.ended:
            link.control.append(pump.open(self.now))
            link.flush()
            self.links.touch(link)

    def turn(self, pump: SendPump) -> bool:
        """One chunk of it; true when more can go at once. Raises what the pump raises."""
        link, more = pump.link, False
        if not link.full:
            more = pump.turn()
            self.links.touch(link)
        if link.full:
            link.waiting[pump.edge] = pump
            return False
        if pump.window.ended:
            self._ends.ended(pump)
        return more

    def from_consumer(self, link: Link, frame: Frame) -> None:
        match frame:
            case Credit(edge):
                pump = link.pumps.get(EdgeId(edge))
                if pump is None:
                    self.count("late_credit", f"{link.peer}: no stream of edge {edge} leaves here")
                    return
                self._credit(pump, frame)
            case Refused(edge, run, code, text):
                pump = link.pumps.get(EdgeId(edge))
                if pump is None or pump.run != run:
                    self.count("late_refusal", f"{link.peer}: edge {edge}: {code}: {text}")
                    return
                self._ends.faulted(pump, code, f"at {link.peer}: {text}")
            case _:
                self.count("malformed_frame", f"{link.peer}: a consumer says {type(frame).__name__.upper()}")

    def _credit(self, pump: SendPump, credit: Credit) -> None:
        try:
            pump.credit(credit)
        except FAULTS as fault:
            self._ends.faulted(pump, fault.code, fault.text)
            return
        if not pump.ready and pump.window.established:
            self._ends.ready(pump)
        if pump.window.ended:
            self._ends.ended(pump)
        self._ends.wake(pump)

    # towards producers

    def from_producer(self, guest: Guest, frame: Frame) -> None:
        match frame:
            case Open() | Data() | Fin():
                sink = self._ends.sinks.get(EdgeId(frame.edge))
                if isinstance(sink, ReceivePump):
                    self._stream(guest, sink, frame)
                elif sink is not None:
                    self._refuse(guest, frame, "not_the_producer", f"the producer of edge {frame.edge} is here")
                elif self._ends.was_halted(frame.edge):
                    self.count("after_halt", f"{guest.peer}: edge {frame.edge} was halted here")
                elif isinstance(frame, Open):
                    self._park(guest, frame)
                else:
                    self._refuse(guest, frame, "malformed_frame", f"no stream of edge {frame.edge} is open here")
            case _:
                self.rubbish(guest, f"a producer says {type(frame).__name__.upper()}")

    def rubbish(self, guest: Guest, text: str) -> None:
        self._refuse(guest, Fin(0, 0, 0), "malformed_frame", text)

    def _stream(self, guest: Guest, pump: ReceivePump, frame: Open | Data | Fin) -> None:
        try:
            if pump.fault is not None:
                pump.window.check(guest.peer, frame.run)
                self._repeat_refusal(guest, pump, frame)
                return
            match frame:
                case Data():
                    pump.data(frame, guest.peer)
                case Open():
                    pump.open(frame, guest.peer)
                case Fin():
                    if pump.fin(frame, guest.peer):
                        self._ends.ended(pump)
        except OpenRefused as refused:
            self._refuse(guest, frame, refused.code, refused.text)
            return
        except FAULTS as fault:
            self._ends.faulted(pump, fault.code, fault.text)
            self._repeat_refusal(guest, pump, frame)
            return
        if not pump.ready:
            self._ends.ready(pump)
        self.credit_if_due(pump)
        self._ends.attend(pump)

    def tell_fault(self, pump: ReceivePump) -> None:
        """To its producer, if it has opened the stream."""
        guest = self.links.guests.get(pump.producer)
        if guest is not None and pump.window.far is not None:
            self._repeat_refusal(guest, pump, Fin(pump.edge, pump.run, 0))

    def credit_if_due(self, pump: ReceivePump) -> None:
        """Tell its producer how far it may go, now or soon, if there is news for it."""
        window = pump.window
        if (window.due and not self.tell_credit(pump)) or window.withheld:
            self._ends.later(pump, MOMENT_S)
        elif window.owing:
            self._ends.later(pump, QUIET_S)

    def tell_credit(self, pump: ReceivePump) -> bool:
        """False when the producer cannot be told now."""
        guest = self.links.guests.get(pump.producer)
        if guest is None or pump.fault is not None or pump.window.far is None:
            return True  # whoever opens the stream again is told then
        credit = pump.window.credit()
        if not self.links.answer(guest, pack(credit)):
            return guest.route is None
        pump.window.told(credit)
        return True

    def _repeat_refusal(self, guest: Guest, pump: ReceivePump, frame: Open | Data | Fin) -> None:
        """Once, and again whenever the producer opens the stream again."""
        assert pump.fault is not None
        if isinstance(frame, Open) or not pump.refusal_told:
            pump.refusal_told = True
            self._refuse(guest, frame, *pump.fault)

    def _refuse(self, guest: Guest, frame: Open | Data | Fin, code: str, text: str) -> None:
        self.count(code, f"{guest.peer}: edge {frame.edge}: {text}")
        if not self.links.answer(guest, pack(Refused(frame.edge, frame.run, code, text))):
            self.count("refusal_unsaid", f"{guest.peer} does not read: edge {frame.edge}: {text}")

    def _park(self, guest: Guest, frame: Open) -> None:
        parked = self._parked.setdefault(guest.peer, {})
        if len(parked) >= MAX_PARKED and frame.edge not in parked:
            self.count("not_parked", f"{guest.peer}: {MAX_PARKED} streams wait for their end here already")
            return
        parked[EdgeId(frame.edge)] = (frame, self.now)

    def unpark(self, pump: ReceivePump) -> None:
        """Its end is here: hear whoever waits to send."""
        for peer, parked in self._parked.items():
            waiting = parked.pop(pump.edge, None)
            guest = self.links.guests.get(peer)
            if waiting is not None and guest is not None:
                self._stream(guest, pump, waiting[0])

    # time

    def tick(self, late_s: float) -> None:
        """Whoever has been silent too long is gone. `late_s`: this process stood still for so long itself."""
        for link in list(self.links.links.values()):
            link.heard_at += late_s
            self._tick_link(link)
        for guest in self.links.guests.values():
            guest.heard_at += late_s
        for sink in list(self._ends.sinks.values()):
            if isinstance(sink, ReceivePump) and self._is_silent(sink):
                text = "" if sink.tracker.at_boundary else ", and the stream ends within a record"
                self._silent(sink, sink.producer, text)
        for parked in self._parked.values():
            for edge in [edge for edge, (_, at) in parked.items() if self.now - at > PARKED_S]:
                del parked[edge]
                self.count("parked_too_long", f"edge {edge}: its producer does not wait any more")

    def _tick_link(self, link: Link) -> None:
        for pump in list(link.pumps.values()):
            window = pump.window
            if window.established and not window.ended and self.now - link.heard_at > SILENCE_S:
                self._silent(pump, link.peer, "")
            elif window.awaiting and self.now - pump.opened_at >= REOPEN_S:
                self.open(pump)
        if not link.pumps and self.now - link.idle_since > IDLE_LINK_S:
            self.links.hang_up(link)

    def _is_silent(self, pump: ReceivePump) -> bool:
        live = pump.ready and not pump.ended and pump.fault is None
        return live and self.now - self.links.guests[pump.producer].heard_at > SILENCE_S

    def _silent(self, pump: SendPump | ReceivePump, peer: str, more: str) -> None:
        self._ends.faulted(pump, EdgeFaultCode.LINK_LOST, f"{peer} has said nothing for {SILENCE_S:g} s{more}")

    def revoke(self, peer: str) -> None:
        """From now on nothing that `peer` says is heard, and nothing is said to it."""
        text = f"the key of {peer} was revoked"
        link = self.links.links.get(peer)
        for pump in [] if link is None else list(link.pumps.values()):
            self._ends.faulted(pump, EdgeFaultCode.LINK_LOST, text)
        for sink in list(self._ends.sinks.values()):
            if isinstance(sink, ReceivePump) and sink.producer == peer and sink.fault is None:
                self._ends.faulted(sink, EdgeFaultCode.LINK_LOST, text)
        self._parked.pop(peer, None)
        self.links.revoke(peer)
