"""The rings of one run of a workload and the channel over which they come, go and are spoken of (design 7, E 6.1).

Nothing here waits: a workload that does not read has a bounded backlog, and one that talks too much or nonsense loses
its channel. Without the channel the rings that it may hold stay as they are: only its end frees them.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress

from actors.actor import Context
from messages.base import Address
from messages.edge import RingId
from messages.edge_end import EdgeFaultCode
from messages.edge_ports import InstallRing, UninstallRing
from runtime.edges.memory import NodeMemory
from runtime.edges.workers.channel import Channel, ChannelEnded
from runtime.edges.workers.held_rings import HeldRing, HeldRings, Holding, Told
from runtime.edges.workers.introduction import ShimTalk
from runtime.edges.workers.later import Later
from runtime.edges.workers.packets import MalformedReply, end_packet, install_packet, parse_reply, uninstall_packet
from runtime.shim.attach import AttachedRun

RINGS_AT_MOST = 64
"""Of one workload. Each takes three of its 256 descriptors: two eventfds, and the copy that a Python mapping keeps."""

SURPLUS_AT_MOST = 256
"""Packets of one channel that answer nothing; more is a flood."""

EOF_GRACE_S = 0.5
"""A workload that dies closes its channel a moment before its end is seen."""

FLUSH_AGAIN_S = 0.1


class NotInstalled(Exception):
    """A ring was not handed over; the workload does not hold it."""

    def __init__(self, code: EdgeFaultCode, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class RunChannel:
    """`rings` are those of the run. Without a channel none was made, or it is lost; `lost` says how.

    `counted`, by name: packets that answered nothing (`surplus`) or were none of the protocol (`malformed`).
    """

    def __init__(
        self, run: AttachedRun, memory: NodeMemory, later: Later, shims: ShimTalk, counted: Counter[str]
    ) -> None:
        self.rings = HeldRings(run.instance_id)
        self.lost = ""
        self._run = run
        self._name = run.instance_id
        self._memory = memory
        self._later = later
        self._shims = shims
        self._counted = counted
        self._channel: Channel | None = None
        self._key = 0

    @property
    def is_open(self) -> bool:
        return self._channel is not None

    def arena(self) -> int | None:
        """A descriptor of the memory that the run has rings in, None when it has none."""
        for ring_id in self.rings.ids():
            with suppress(KeyError):
                return self._memory.ring(ring_id).arena_fd
        return None

    # orders

    def install(self, order: InstallRing, owner: Address, ctx: Context) -> None:
        """Hand a ring over that is not here yet; the first one makes the channel. Raises `NotInstalled`."""
        if len(self.rings) >= RINGS_AT_MOST:
            text = f"{self._name} has {RINGS_AT_MOST} rings, as many as a workload may have"
            raise NotInstalled(EdgeFaultCode.WORKER_REFUSED, text)
        channel = self._channel or self._open(ctx)
        if channel.deaf:
            raise NotInstalled(EdgeFaultCode.WORKER_REFUSED, f"{self._name} closes its channel")
        self.rings.add(order.ring.ring_id, owner)
        channel.put(order.ring.ring_id, install_packet(order), install=True)
        self._flush(ctx)

    def uninstall(self, order: UninstallRing, held: HeldRing, ctx: Context) -> None:
        """Have the workload let go of a ring, once."""
        if held.holding is Holding.UNINSTALLING:
            return  # the answer is on its way
        held.holding = Holding.UNINSTALLING
        if self._channel is None:
            ctx.log("warning", "a ring stays until its workload is gone", ring=order.ring_id, reason=self.lost)
        elif self._channel.recall(order.ring_id):
            _tell([self.rings.let_go(order.ring_id)], ctx)
        else:
            self._channel.put(order.ring_id, uninstall_packet(order.ring_id, order.reason))
            self._flush(ctx)

    def end_stream(self, ring_id: RingId, ctx: Context) -> None:
        """Tell the workload that nothing more comes, once, if it can be told and wants to hear it."""
        held = self.rings.get(ring_id)
        if held is None or self._channel is None or held.ending or held.holding is Holding.UNINSTALLING:
            return
        held.ending = True
        self._channel.put(ring_id, end_packet(ring_id))
        self._flush(ctx)

    def gone(self, ctx: Context) -> None:
        """No process of the run is left."""
        self._lose(f"{self._name} is gone", ctx)
        _tell(self.rings.gone(), ctx)

    def close(self) -> None:
        """The port ends; nobody is told."""
        if self._channel is not None:
            self._channel.close()

    # the channel

    def _open(self, ctx: Context) -> Channel:
        """Have the workload take a new channel; the rings' orders wait for that."""
        if len(self.rings):
            text = f"the channel to {self._name} is lost ({self.lost}) and it may hold rings of it: restart it"
            raise NotInstalled(EdgeFaultCode.WORKER_REFUSED, text)
        try:
            channel = self._channel = Channel(self._rights)
        except OSError as error:
            raise NotInstalled(EdgeFaultCode.WORKER_REFUSED, f"no channel can be made: {error.strerror}") from None
        self.lost, self.rings.surplus = "", 0
        self._key = self._later.on(lambda ctx: self._heard(channel, ctx))

        def introduced(failed: str, ctx: Context) -> None:
            if self._channel is not channel:
                return  # lost meanwhile
            if failed:
                self._lose(failed, ctx)
            else:
                channel.open()
                self._flush(ctx)

        self._shims.introduce(self._run, channel, ctx, introduced)
        return channel

    def _rights(self, ring_id: RingId) -> tuple[int, int, int]:
        ring = self._memory.ring(ring_id)
        return ring.arena_fd, ring.data_fd, ring.space_fd

    def _flush(self, ctx: Context) -> None:
        """Send what can be sent, and be woken for what comes next."""
        channel = self._channel
        if channel is None:
            return
        for ring_id in channel.flush():
            channel.recall(ring_id)
            text = f"ring {ring_id} was erased before {self._name} got it"
            _tell([self.rings.not_installed(ring_id, EdgeFaultCode.ARENA_FAILED, text)], ctx)
        if channel.scarce:
            self._later.after(FLUSH_AGAIN_S, self._flush, ctx)
        self._later.when_ready(channel.fileno(), self._key, writing=channel.stuck)

    def _heard(self, channel: Channel, ctx: Context) -> None:
        try:
            for packet in channel.receive():
                self._take(packet, channel, ctx)
        except ChannelEnded as ended:
            self._closed(str(ended), ctx)
        except MalformedReply as malformed:
            self._counted["malformed"] += 1
            text = f"{self._name} broke the protocol of its channel: {malformed}"
            self._lose(text, ctx)
            self._fault_all(EdgeFaultCode.WORKER_REFUSED, text, ctx)
        else:
            self._flush(ctx)

    def _take(self, packet: bytes, channel: Channel, ctx: Context) -> None:
        """Raises `MalformedReply`."""
        reply = parse_reply(packet)
        surplus = self.rings.surplus
        if RingId(reply.ring) in channel.unseen():
            self.rings.surplus += 1  # it guesses: the ring's install has not left, and will
            told = None
        else:
            channel.heard(reply)
            told = self.rings.take(reply)
        if told is not None:
            _tell([told], ctx)
        elif self.rings.surplus > surplus:
            self._surplus(packet, ctx)

    def _surplus(self, packet: bytes, ctx: Context) -> None:
        """Raises `MalformedReply` when it is too much."""
        self._counted["surplus"] += 1
        if self.rings.surplus > SURPLUS_AT_MOST:
            raise MalformedReply(f"more than {SURPLUS_AT_MOST} packets that answer nothing")
        if self.rings.surplus.bit_count() == 1:  # the 1st, 2nd, 4th, 8th ...: a flood fills no log
            said = packet[:200].decode(errors="replace")
            ctx.log("warning", "a workload answers what was not asked", instance=self._name, said=said)

    def _closed(self, text: str, ctx: Context) -> None:
        """Usually the workload has died; its rings are free only when all of it is gone."""
        self._lose(text, ctx)
        if len(self.rings):
            self._later.after(EOF_GRACE_S, lambda ctx: self._outlived(text, ctx), ctx)

    def _outlived(self, text: str, ctx: Context) -> None:
        if len(self.rings):  # else it is gone, and that was told
            self._fault_all(EdgeFaultCode.WORKER_CRASHED, text, ctx)

    def _fault_all(self, code: EdgeFaultCode, text: str, ctx: Context) -> None:
        ctx.log("warning", "the channel to a workload is lost", instance=self._name, reason=text)
        _tell(self.rings.fault_all(code, text), ctx)

    def _lose(self, text: str, ctx: Context) -> None:
        """Rings that the workload never saw are free at once."""
        channel, self._channel, self.lost = self._channel, None, text
        if channel is None:
            return
        self._later.drop(channel.fileno(), self._key)
        channel.close()
        for ring_id in channel.unseen():
            _tell([self.rings.not_installed(ring_id, EdgeFaultCode.WORKER_REFUSED, text)], ctx)


def _tell(reports: list[Told], ctx: Context) -> None:
    for owner, report in reports:
        ctx.tell(owner, report)


__all__ = ["RINGS_AT_MOST", "SURPLUS_AT_MOST", "NotInstalled", "RunChannel"]
