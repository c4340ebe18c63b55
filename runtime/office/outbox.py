"""What waits to leave an office, and how it leaves: many envelopes as one ZeroMQ message (design 5: bursts)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from messages.system import AskFailure, KernelRefusal
from runtime.kernel.envelope import MAX_MESSAGE_BYTES, UNSAYABLE, Envelope, Failure, Kind, pack, process_of
from runtime.office.link import Link
from runtime.office.links import Links

BURST_BYTES = 64 * 1024
BURST_ENVELOPES = 256

Failed = Callable[[Envelope, AskFailure, str, str], object]
Send = Callable[[str, bytes, bytes], bool]


@dataclass(slots=True)
class _Bundle:
    """Envelopes that leave as one ZeroMQ message."""

    link: Link
    parts: list[bytes] = field(default_factory=list)
    envelopes: list[Envelope] = field(default_factory=list)
    size: int = 0


class Outbox:
    """`waiting` may be appended to by any thread. `send(peer, identity, frame)` is False when nothing left."""

    def __init__(self, incarnation: int, links: Links, send: Send, failed: Failed) -> None:
        self.waiting: deque[Envelope] = deque()
        self._incarnation = incarnation
        self._links = links
        self._send = send
        self._failed = failed

    def send_burst(self, now: float) -> None:
        """A burst of what waits, as few messages as the order to each peer allows; then it is others' turn."""
        bundles: dict[tuple[str, bytes], _Bundle] = {}
        for _ in range(min(len(self.waiting), BURST_ENVELOPES)):
            envelope = self.waiting.popleft()
            where = self._links.way_to(envelope)
            if where is None:
                self._failed(envelope, AskFailure.UNREACHABLE, "", f"no link to {process_of(envelope.to)}")
                continue
            peer, identity, link = where
            key = (peer, identity)
            bundle = bundles.get(key)
            try:
                size = len(envelope.encoded())
                if size > MAX_MESSAGE_BYTES:
                    reason = f"{envelope.tag} has {size} bytes, at most {MAX_MESSAGE_BYTES} travel"
                    self._not_sayable(envelope, KernelRefusal.TOO_LARGE, reason)
                    continue
                if bundle is None or bundle.size + size > BURST_BYTES:
                    if bundle is not None:
                        self._send_bundle(key, bundle)
                    bundle = bundles[key] = _Bundle(link)
                packed = pack(envelope, link.sent + len(bundle.parts) + 1, self._incarnation, now)
            except UNSAYABLE as error:
                self._not_sayable(envelope, KernelRefusal.MALFORMED, f"{envelope.tag}: {error}")
                continue
            bundle.parts.append(packed)
            bundle.envelopes.append(envelope)
            bundle.size += len(packed)
        for key, bundle in bundles.items():
            self._send_bundle(key, bundle)

    def refuse_all(self, reason: str) -> None:
        """Nothing leaves any more."""
        while self.waiting:
            self._failed(self.waiting.popleft(), AskFailure.UNREACHABLE, "", reason)

    def _not_sayable(self, envelope: Envelope, code: KernelRefusal, reason: str) -> None:
        """An ask or a tell never left. Of an answer its asker is told, who would wait for nothing."""
        self._failed(envelope, AskFailure.REFUSED, code.value, reason)
        if envelope.kind is Kind.ANSWER or (envelope.failure is not None and envelope.failure.code != code):
            failure = Failure(AskFailure.DIED, code.value, f"what it answered cannot be said: {reason}")
            self.waiting.append(
                Envelope(
                    Kind.FAILURE,
                    envelope.to,
                    envelope.sender,
                    correlation=envelope.correlation,
                    failure=failure,
                    route=envelope.route,
                )
            )

    def _send_bundle(self, key: tuple[str, bytes], bundle: _Bundle) -> None:
        peer, identity = key
        if bundle.parts and self._send(peer, identity, b"".join(bundle.parts)):
            bundle.link.left(len(bundle.parts))
            for envelope in bundle.envelopes:
                if envelope.kind is Kind.ASK:
                    bundle.link.asks[(envelope.sender, envelope.correlation)] = envelope
            return
        for envelope in bundle.envelopes:
            self._failed(envelope, AskFailure.UNREACHABLE, "", f"the link to {peer} takes nothing")
