"""One signed call to a node, and the four ways it can end (P 3.4).

What matters is whether the node can have acted: `unreachable` and `refused` say it did not, `indeterminate` says
nobody knows, and then nothing may be tried elsewhere before it is reconciled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from actors.actor import AskFailed, Context
from actors.placement.signed import Rejected, Signer, new_request, sign_request, verify_response
from messages.base import Address
from messages.control import Accepted, ControlAnswer, ControlCall, ControlRequest, Method, Refusal, SignedObject
from messages.identity import Identity
from messages.system import AskFailure, KernelRefusal

T = TypeVar("T")

MAX_REASON = 2_000
"""Characters of a node's reason that are kept: it goes to the chain and to people."""

NEVER_ARRIVED = frozenset(
    {
        KernelRefusal.OVERLOADED,
        KernelRefusal.NO_SUCH_ACTOR,
        KernelRefusal.NOT_IN_MAILBOX,
        KernelRefusal.MALFORMED,
        KernelRefusal.TOO_LARGE,
    }
)
"""Refusals by the kernel in the agent's place: the agent never saw the request. Other unsigned ones prove nothing."""


@dataclass(frozen=True, slots=True)
class CallAccepted(Generic[T]):
    result: T


@dataclass(frozen=True, slots=True)
class CallRefused:
    """A valid signed refusal, or a request that could not be signed: nothing was done."""

    refusal: Refusal

    def __str__(self) -> str:
        return str(self.refusal)


@dataclass(frozen=True, slots=True)
class CallUnreachable:
    """It never arrived; or it was a question and no valid answer came."""

    reason: str

    def __str__(self) -> str:
        return f"unreachable: {self.reason}"


@dataclass(frozen=True, slots=True)
class CallIndeterminate:
    """A mutation was sent and no valid answer came: it may or may not have happened."""

    reason: str

    def __str__(self) -> str:
        return f"indeterminate: {self.reason}"


CallOutcome = CallAccepted[T] | CallRefused | CallUnreachable | CallIndeterminate


class Call(Generic[T]):
    """A signed request to the agent of `node`: the ask to await, and what its answer means.

    `result` is the type of an accepted result; one that does not fit it is no valid answer.
    """

    __slots__ = ("_method", "_node", "_request", "_result", "ask")

    def __init__(
        self,
        ctx: Context,
        signer: Signer,
        node: Identity,
        method: Method,
        result: type[T],
        *,
        term: int,
        nonce: str,
        timeout_s: float,
        body: Any = None,
        decision_id: str | None = None,
    ) -> None:
        """Raises `ValueError` when the request is too large to be sent."""
        self._request = new_request(
            method,
            requester=signer.node_id,
            target=node.node_id,
            nonce=nonce,
            now_ms=ctx.wall(),
            term=term,
            decision_id=decision_id,
            body=body,
        )
        self._node, self._method, self._result = node, method, result
        message = ControlCall(method=method.value, request=sign_request(signer, self._request))
        self.ask = ctx.ask(Address(f"{node.name}/agent"), message, timeout_s)

    def outcome(self, answer: ControlAnswer | AskFailed) -> CallOutcome[T]:
        """How the call ended. Never raises for what a node says."""
        if isinstance(answer, AskFailed):
            return _without_answer(self._method, answer)
        try:
            return _answered(answer.response, self._request, self._node, self._result)
        except Rejected as rejected:
            return _lost(self._method, f"the answer is not valid: {rejected.refusal.reason}")
        except (msgspec.ValidationError, ValueError) as error:
            return _lost(self._method, f"the result makes no sense: {str(error)[:200]}")


def _answered(signed: SignedObject, request: ControlRequest, node: Identity, result: type[T]) -> CallOutcome[T]:
    response, _ = verify_response(signed, request, node.public_key)
    if isinstance(response.outcome, Accepted):
        return CallAccepted(msgspec.convert(response.outcome.result, result))
    refusal = response.outcome.refusal
    return CallRefused(msgspec.structs.replace(refusal, reason=refusal.reason[:MAX_REASON]))


def _without_answer(method: Method, failure: AskFailed) -> CallUnreachable | CallIndeterminate:
    reason = f"{failure.failure.value}: {failure.reason}"
    never_arrived = failure.nothing_happened and (
        failure.failure is not AskFailure.REFUSED or failure.code in NEVER_ARRIVED
    )
    return CallUnreachable(reason) if never_arrived else _lost(method, reason)


def _lost(method: Method, reason: str) -> CallUnreachable | CallIndeterminate:
    return CallIndeterminate(reason) if method.mutates else CallUnreachable(reason)


__all__ = ["Call", "CallAccepted", "CallIndeterminate", "CallOutcome", "CallRefused", "CallUnreachable"]
