"""Asking from outside the actors: the command line, and the main thread of a process."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Condition
from typing import Any, TypeVar

import msgspec

from actors.actor import AskFailed
from messages.base import Address, Request, answer_type
from messages.system import AskFailure, KernelRefusal
from runtime.kernel.envelope import Envelope, Kind, answer_decoder, tag_of

A = TypeVar("A")


class Caller:
    """Blocks the calling thread until the answer comes; `receive` is called by the thread that has it."""

    def __init__(self, address: Address, post: Callable[[Envelope], object]) -> None:
        self.address = address
        self._post = post
        self._changed = Condition()
        self._waiting: dict[int, Address] = {}
        self._answers: dict[int, Envelope | AskFailed] = {}
        self._count = 0

    def ask(self, to: Address, request: Request[A], timeout_s: float) -> A:
        """Raises `AskFailed`."""
        until = time.monotonic() + timeout_s
        with self._changed:
            self._count += 1
            number = self._count
            self._waiting[number] = to
        tag = tag_of(type(request))
        self._post(Envelope(Kind.ASK, to, self.address, request, tag=tag, correlation=number, deadline=until))
        self.wait(lambda: number in self._answers, until - time.monotonic())
        with self._changed:
            self._waiting.pop(number, None)
            answer = self._answers.pop(number, None)
        if answer is None:
            raise AskFailed(AskFailure.TIMEOUT, to, "", f"no answer within {timeout_s:g} s")
        if isinstance(answer, AskFailed):
            raise answer
        decoded: Any = answer.message
        if decoded is None:
            try:
                decoded = answer_decoder(answer_type(type(request))).decode(answer.body)
            except (msgspec.MsgspecError, RecursionError, ValueError) as error:
                code = KernelRefusal.MALFORMED.value
                raise AskFailed(AskFailure.DIED, to, code, f"its answer: {error}") from None
        result: A = decoded
        return result

    def receive(self, envelope: Envelope) -> None:
        """An answer, or a failure that the other side sent."""
        if envelope.kind is Kind.ANSWER:
            self._settle(envelope.correlation, envelope.sender, envelope)
        elif envelope.failure is not None:
            failure = envelope.failure
            failed = AskFailed(failure.failure, envelope.sender, failure.code, failure.reason)
            self._settle(envelope.correlation, envelope.sender, failed)

    def failed(self, envelope: Envelope, failure: AskFailure, code: str, reason: str) -> None:
        """An ask of ours that did not leave, or whose link ended."""
        self._settle(envelope.correlation, envelope.to, AskFailed(failure, envelope.to, code, reason))

    def wait(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        with self._changed:
            return self._changed.wait_for(condition, max(0.0, timeout_s))

    def notify(self, *_: object) -> None:
        """Something that a `wait` may look at has changed."""
        with self._changed:
            self._changed.notify_all()

    def _settle(self, number: int, by: Address, answer: Envelope | AskFailed) -> None:
        with self._changed:
            if self._waiting.get(number) == by:  # nobody answers for another
                self._answers[number] = answer
            self._changed.notify_all()
