"""Signed control objects: making them, and checking them in the one right order (P 2.3 to 2.7, design 5).

A signature covers a domain tag and the exact MessagePack bytes of the payload, which nobody encodes a second time.
Checks that cost a stranger nothing come first and the nonce is remembered last, so a refused request can be sent
again and a stranger can use up nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from nacl.bindings import crypto_sign, crypto_sign_seed_keypair

from actors.packages.keys import verifies
from messages.control import (
    ANY_TARGET,
    MAX_LIFETIME_MS,
    MAX_REQUEST_BYTES,
    MAX_RESPONSE_BYTES,
    MAX_SKEW_MS,
    NONCES_REMEMBERED,
    PROTOCOL_VERSION,
    REQUEST_DOMAIN,
    REQUEST_TTL_MS,
    RESPONSE_DOMAIN,
    Accepted,
    ControlRequest,
    ControlResponse,
    Method,
    Refusal,
    RefusalCode,
    Refused,
    SignedObject,
)
from messages.identity import node_id

SIGNATURE_BYTES = 64
SEED_BYTES = 32

_NONCE = re.compile(r"[0-9a-f]{32}")
_DECISION = re.compile(r"[0-9a-f]{64}")
_encode = msgspec.msgpack.Encoder().encode

T = TypeVar("T")

Policy = Callable[[bytes, str], bool]
"""May this key (32 bytes) call this method? Default deny is the caller's: an empty list of keys allows nobody."""


class Rejected(Exception):
    """A signed object that does not hold; `refusal` says why, in words that may travel."""

    def __init__(self, code: RefusalCode, reason: str) -> None:
        super().__init__(f"{code.value} refused: {reason}")
        self.refusal = Refusal(code=code, reason=reason)


class Signer:
    """The Ed25519 identity of one process. Shows its node id, never its secret."""

    __slots__ = ("_secret", "node_id", "public_key")

    def __init__(self, seed: bytes) -> None:
        if len(seed) != SEED_BYTES:
            raise ValueError(f"the seed of an Ed25519 key has {SEED_BYTES} bytes, not {len(seed)}")
        self.public_key, self._secret = crypto_sign_seed_keypair(seed)
        self.node_id = node_id(self.public_key)

    def __repr__(self) -> str:
        return f"Signer({self.node_id})"

    def sign(self, domain: bytes, payload: bytes) -> SignedObject:
        signature = crypto_sign(domain + payload, self._secret)[:SIGNATURE_BYTES]
        return SignedObject(payload=payload, public_key=self.public_key, signature=signature)


class NonceGuard:
    """Remembers nonces until they expire. Full of live ones it admits nobody: fail closed (P 2.6)."""

    def __init__(self, capacity: int = NONCES_REMEMBERED) -> None:
        self._capacity = capacity
        self._expiry_ms: dict[str, int] = {}

    @property
    def remembered(self) -> int:
        return len(self._expiry_ms)

    def admit(self, nonce: str, expires_at_ms: int, now_ms: int) -> bool:
        """True once per nonce. `expires_at_ms` and `now_ms` are Unix milliseconds."""
        if nonce in self._expiry_ms:
            return False
        if len(self._expiry_ms) >= self._capacity:
            self._expiry_ms = {kept: expiry for kept, expiry in self._expiry_ms.items() if expiry > now_ms}
            if len(self._expiry_ms) >= self._capacity:
                return False
        self._expiry_ms[nonce] = expires_at_ms
        return True


def new_request(
    method: Method,
    *,
    requester: str,
    target: str,
    nonce: str,
    now_ms: int,
    term: int,
    decision_id: str | None = None,
    body: Any = None,
) -> ControlRequest:
    """A request that lives 290 s from `now_ms`. `body` is a record; `nonce` is 32 lower-case hex, fresh each time."""
    return ControlRequest(
        version=PROTOCOL_VERSION,
        method=method.value,
        requester=requester,
        target=target,
        nonce=nonce,
        issued_at_ms=now_ms,
        expires_at_ms=now_ms + REQUEST_TTL_MS,
        term=term,
        decision_id=decision_id,
        body=msgspec.to_builtins(body, builtin_types=(bytes,)),
    )


def sign_request(signer: Signer, request: ControlRequest) -> SignedObject:
    """Raises `ValueError` when the request is larger than 256 KiB: nobody would open it."""
    payload = _encode(request)
    if len(payload) > MAX_REQUEST_BYTES:
        raise ValueError(f"a request of {len(payload)} bytes exceeds the limit of {MAX_REQUEST_BYTES}")
    return signer.sign(REQUEST_DOMAIN, payload)


def sign_response(signer: Signer, request: ControlRequest, outcome: Accepted | Refused) -> SignedObject:
    """The signed answer to `request`. Raises `ValueError` when it is larger than 4 MiB."""
    response = ControlResponse(
        version=PROTOCOL_VERSION,
        method=request.method,
        responder=signer.node_id,
        request_nonce=request.nonce,
        outcome=outcome,
    )
    payload = _encode(msgspec.to_builtins(response, builtin_types=(bytes,)))
    if len(payload) > MAX_RESPONSE_BYTES:
        raise ValueError(f"a response of {len(payload)} bytes exceeds the limit of {MAX_RESPONSE_BYTES}")
    return signer.sign(RESPONSE_DOMAIN, payload)


def open_signed(signed: SignedObject, domain: bytes, limit_bytes: int) -> bytes:
    """The signer's key, if size, key, signature and the point are right; the payload may then be believed his.

    Raises `Rejected` (`signature`).
    """
    if len(signed.payload) > limit_bytes:
        raise _bad_signature(f"the payload of {len(signed.payload)} bytes exceeds the limit of {limit_bytes}")
    if len(signed.public_key) != SEED_BYTES:
        raise _bad_signature(f"the public key has {len(signed.public_key)} bytes, not {SEED_BYTES}")
    if len(signed.signature) != SIGNATURE_BYTES:
        raise _bad_signature(f"the signature has {len(signed.signature)} bytes, not {SIGNATURE_BYTES}")
    if not verifies(signed.public_key, domain + signed.payload, signed.signature):
        raise _bad_signature("the signature does not verify for this key, payload and purpose")
    return signed.public_key


def parse_signed(payload: bytes, kind: type[T], what: str) -> T:
    """Strictly decode an opened payload. Raises `Rejected` (`signature`): what does not parse was never said."""
    try:
        return msgspec.msgpack.decode(payload, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _bad_signature(f"malformed {what}: {str(error)[:200]}") from None


def verify_request(
    signed: SignedObject, *, me: str, now_ms: int, allows: Policy, nonces: NonceGuard, method: str | None = None
) -> ControlRequest:
    """What the node `me` is asked, checked in the order of P 2.6; raises `Rejected` with the code of the first failure.

    `method` is the one outside the signature, which must equal the signed one (the nonce is used up by then).
    """
    signer = open_signed(signed, REQUEST_DOMAIN, MAX_REQUEST_BYTES)
    request = parse_signed(signed.payload, ControlRequest, "request")
    if request.version != PROTOCOL_VERSION:
        raise Rejected(
            RefusalCode.INVALID_REQUEST, f"version {request.version} is not spoken here, only {PROTOCOL_VERSION}"
        )
    if request.requester != node_id(signer):
        raise _bad_signature(f"requester {request.requester[:64]} is not the signing key's node {node_id(signer)}")
    if request.target != me and not (request.target == ANY_TARGET and request.method == Method.DESCRIBE):
        raise Rejected(RefusalCode.NOT_FOR_ME, f"the request is for {request.target[:64]}, this is {me}")
    if request.expires_at_ms <= now_ms:
        raise Rejected(RefusalCode.EXPIRED, f"expired at {request.expires_at_ms} ms, now {now_ms} ms")
    if request.issued_at_ms > now_ms + MAX_SKEW_MS:
        raise Rejected(
            RefusalCode.EXPIRED,
            f"issued at {request.issued_at_ms} ms, more than {MAX_SKEW_MS} ms ahead of {now_ms} ms: compare the clocks",
        )
    lifetime_ms = request.expires_at_ms - request.issued_at_ms
    if not 0 <= lifetime_ms <= MAX_LIFETIME_MS:
        raise Rejected(RefusalCode.EXPIRED, f"a lifetime of {lifetime_ms} ms is not within 0..{MAX_LIFETIME_MS}")
    if _NONCE.fullmatch(request.nonce) is None:
        raise Rejected(RefusalCode.INVALID_REQUEST, "the nonce is not 32 lower-case hexadecimal digits")
    if not allows(signer, request.method):
        raise Rejected(RefusalCode.UNAUTHORIZED, f"{node_id(signer)} may not call {request.method[:64]} here")
    if not nonces.admit(request.nonce, request.expires_at_ms, now_ms):
        raise Rejected(RefusalCode.REPLAY, f"nonce {request.nonce} was seen before, or too many are remembered")
    if method is not None and method != request.method:
        raise Rejected(
            RefusalCode.INVALID_REQUEST, f"called as {method[:64]}, but the signed method is {request.method[:64]}"
        )
    return request


def verify_response(
    signed: SignedObject, request: ControlRequest, expected_key: bytes | None = None
) -> tuple[ControlResponse, bytes]:
    """The answer to `request` and the key that signed it, checked in the order of P 2.7; raises `Rejected`.

    The codes of these failures are for the requester alone; they never travel.
    """
    signer = open_signed(signed, RESPONSE_DOMAIN, MAX_RESPONSE_BYTES)
    if expected_key is not None and signer != expected_key:
        raise _bad_signature(f"answered by {node_id(signer)}, not by the key that was asked")
    response = parse_signed(signed.payload, ControlResponse, "response")
    if response.responder != node_id(signer):
        raise _bad_signature(f"responder {response.responder[:64]} is not the signing key's node {node_id(signer)}")
    if response.request_nonce != request.nonce or response.method != request.method:
        raise Rejected(RefusalCode.REPLAY, "the answer belongs to another request")
    if request.target not in (ANY_TARGET, response.responder):
        raise Rejected(RefusalCode.NOT_FOR_ME, f"answered by {response.responder}, asked was {request.target}")
    return response, signer


def is_decision_id(text: str | None) -> bool:
    """64 lower-case hex: the form of a chain hash."""
    return text is not None and _DECISION.fullmatch(text) is not None


def _bad_signature(reason: str) -> Rejected:
    return Rejected(RefusalCode.SIGNATURE, reason)


__all__ = [
    "NonceGuard", "Policy", "Rejected", "Signer", "is_decision_id", "new_request", "open_signed", "parse_signed",
    "sign_request", "sign_response", "verify_request", "verify_response",
]  # fmt: skip
