"""Scenarios 1 to 8 of P 10.1, the order of the checks, and what a signature must not be taken for."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.placement.signed import (
    NonceGuard,
    Rejected,
    Signer,
    new_request,
    sign_request,
    sign_response,
    verify_request,
    verify_response,
)
from messages.control import (
    MAX_LIFETIME_MS,
    MAX_REQUEST_BYTES,
    MAX_RESPONSE_BYTES,
    MAX_SKEW_MS,
    NONCES_REMEMBERED,
    REQUEST_DOMAIN,
    REQUEST_TTL_MS,
    RESPONSE_DOMAIN,
    Accepted,
    ControlRequest,
    Epoch,
    FenceBody,
    Method,
    Refusal,
    RefusalCode,
    Refused,
    SignedObject,
)

NOW = 1_700_000_000_000
CONTROLLER = Signer(b"c" * 32)
NODE = Signer(b"n" * 32)
STRANGER = Signer(b"s" * 32)


def request(method: Method = Method.STATUS, **changes: object) -> ControlRequest:
    made = new_request(method, requester=CONTROLLER.node_id, target=NODE.node_id, nonce="ab" * 16, now_ms=NOW, term=1)
    return msgspec.structs.replace(made, **changes)


def allows(key: bytes, method: str) -> bool:
    return key == CONTROLLER.public_key


def verify(signed: SignedObject, nonces: NonceGuard | None = None, now_ms: int = NOW, **more: object) -> ControlRequest:
    options: dict[str, object] = {"me": NODE.node_id, "allows": allows, **more}
    return verify_request(signed, now_ms=now_ms, nonces=nonces or NonceGuard(), **options)


def code_of(signed: SignedObject, **more: object) -> RefusalCode:
    with pytest.raises(Rejected) as caught:
        verify(signed, **more)
    return caught.value.refusal.code


def test_a_request_is_valid_once_and_then_a_replay():
    nonces = NonceGuard()
    signed = sign_request(CONTROLLER, request())
    assert verify(signed, nonces) == request()
    assert code_of(signed, nonces=nonces) is RefusalCode.REPLAY


def test_a_body_survives_as_plain_data():
    body = FenceBody(slot="s", floor=Epoch(term=2, number=3), decision_id="d" * 64)
    made = new_request(
        Method.FENCE, requester=CONTROLLER.node_id, target=NODE.node_id, nonce="0" * 32, now_ms=NOW, term=2,
        decision_id="d" * 64, body=body,
    )  # fmt: skip
    opened = verify(sign_request(CONTROLLER, made))
    assert msgspec.convert(opened.body, FenceBody) == body


def test_a_changed_payload_does_not_verify():
    signed = sign_request(CONTROLLER, request(Method.STOP))
    altered = signed.payload.replace(b"workload.stop", b"workload.stap")
    assert altered != signed.payload
    assert code_of(msgspec.structs.replace(signed, payload=altered)) is RefusalCode.SIGNATURE


def test_the_requester_must_be_the_signing_key():
    assert code_of(sign_request(CONTROLLER, request(requester=STRANGER.node_id))) is RefusalCode.SIGNATURE


@pytest.mark.parametrize(
    ("method", "target", "accepted"),
    [
        (Method.STATUS, "n-0000000000000000", False),
        (Method.STATUS, "*", False),
        (Method.DESCRIBE, "*", True),
        (Method.DESCRIBE, NODE.node_id, True),
        (Method.DESCRIBE, "n-0000000000000000", False),
    ],
)
def test_only_describe_may_be_addressed_to_anyone(method: Method, target: str, accepted: bool):
    signed = sign_request(CONTROLLER, request(method, target=target))
    if accepted:
        assert verify(signed).target == target
    else:
        assert code_of(signed) is RefusalCode.NOT_FOR_ME


@pytest.mark.parametrize(
    ("changes", "now_ms", "accepted"),
    [
        ({}, NOW + REQUEST_TTL_MS, False),
        ({}, NOW + REQUEST_TTL_MS - 1, True),
        ({"issued_at_ms": NOW + MAX_SKEW_MS + 1, "expires_at_ms": NOW + MAX_SKEW_MS + 2}, NOW, False),
        ({"issued_at_ms": NOW + MAX_SKEW_MS, "expires_at_ms": NOW + MAX_SKEW_MS + 1}, NOW, True),
        ({"expires_at_ms": NOW + MAX_LIFETIME_MS + 1}, NOW, False),
        ({"expires_at_ms": NOW + MAX_LIFETIME_MS}, NOW, True),
        ({"issued_at_ms": NOW + 20, "expires_at_ms": NOW + 10}, NOW, False),
    ],
)
def test_the_time_window_is_exact(changes: dict[str, int], now_ms: int, accepted: bool):
    signed = sign_request(CONTROLLER, request(**changes))
    if accepted:
        verify(signed, now_ms=now_ms)
    else:
        assert code_of(signed, now_ms=now_ms) is RefusalCode.EXPIRED


def test_an_unknown_controller_does_not_use_up_a_nonce():
    nonces = NonceGuard()
    signed = sign_request(CONTROLLER, request())
    assert code_of(signed, nonces=nonces, allows=lambda *_: False) is RefusalCode.UNAUTHORIZED
    assert verify(signed, nonces).nonce == "ab" * 16


@pytest.mark.parametrize("nonce", ["", "AB" * 16, "ab" * 15, "ab" * 17, "zz" * 16, "ab" * 16 + "\n"])
def test_a_nonce_has_one_form(nonce: str):
    assert code_of(sign_request(CONTROLLER, request(nonce=nonce))) is RefusalCode.INVALID_REQUEST


def test_the_method_outside_must_be_the_signed_one_and_the_nonce_is_spent():
    nonces = NonceGuard()
    signed = sign_request(CONTROLLER, request(Method.STOP))
    assert code_of(signed, nonces=nonces, method="workload.unload") is RefusalCode.INVALID_REQUEST
    assert code_of(signed, nonces=nonces, method="workload.stop") is RefusalCode.REPLAY


# Each row breaks one more check than the row before: the answer is always that of the first broken one (P 2.6).
BREAKS: list[tuple[dict[str, object], RefusalCode]] = [
    ({"nonce": "short"}, RefusalCode.INVALID_REQUEST),
    ({"expires_at_ms": NOW + MAX_LIFETIME_MS + 1}, RefusalCode.EXPIRED),
    ({"target": "n-0000000000000000"}, RefusalCode.NOT_FOR_ME),
    ({"requester": STRANGER.node_id}, RefusalCode.SIGNATURE),
    ({"version": 2}, RefusalCode.INVALID_REQUEST),
]


@pytest.mark.parametrize("depth", range(1, len(BREAKS) + 1))
def test_the_first_failing_check_names_the_refusal(depth: int):
    changes = {key: value for broken, _ in BREAKS[:depth] for key, value in broken.items()}
    assert code_of(sign_request(CONTROLLER, request(**changes)), allows=lambda *_: False) is BREAKS[depth - 1][1]


def test_a_full_nonce_guard_refuses_until_some_expired():
    nonces = NonceGuard()
    for number in range(NONCES_REMEMBERED):
        assert nonces.admit(f"{number:032x}", NOW + 100, NOW)
    assert not nonces.admit("f" * 32, NOW + 100, NOW + 99)
    assert nonces.admit("f" * 32, NOW + 200, NOW + 100)
    assert nonces.remembered == 1
    assert not nonces.admit("f" * 32, NOW + 200, NOW + 300), "remembered means refused, expired or not"


def test_a_response_is_bound_to_request_and_key():
    asked = request()
    signed = sign_response(NODE, asked, Accepted(result={"rows": []}))
    response, key = verify_response(signed, asked, NODE.public_key)
    assert (response.outcome, key) == (Accepted(result={"rows": []}), NODE.public_key)

    def rejected(signed: SignedObject, asked: ControlRequest, expected: bytes | None) -> RefusalCode:
        with pytest.raises(Rejected) as caught:
            verify_response(signed, asked, expected)
        return caught.value.refusal.code

    assert rejected(signed, request(nonce="cd" * 16), NODE.public_key) is RefusalCode.REPLAY
    assert rejected(signed, request(Method.LOGS), NODE.public_key) is RefusalCode.REPLAY
    assert rejected(signed, asked, STRANGER.public_key) is RefusalCode.SIGNATURE
    by_another = sign_response(STRANGER, asked, Accepted())
    assert rejected(by_another, asked, NODE.public_key) is RefusalCode.SIGNATURE
    assert rejected(by_another, asked, None) is RefusalCode.NOT_FOR_ME
    anyone = request(Method.DESCRIBE, target="*")
    assert verify_response(sign_response(STRANGER, anyone, Accepted()), anyone)[1] == STRANGER.public_key


def test_a_refusal_travels_signed():
    refused = Refused(refusal=Refusal(code=RefusalCode.ADMISSION, reason="no adapter"))
    response, _ = verify_response(sign_response(NODE, request(), refused), request(), NODE.public_key)
    assert response.outcome == refused


def test_a_signature_for_one_purpose_is_none_for_another():
    signed = sign_request(CONTROLLER, request())
    as_response = CONTROLLER.sign(RESPONSE_DOMAIN, signed.payload)
    assert code_of(as_response) is RefusalCode.SIGNATURE
    assert as_response.signature != CONTROLLER.sign(REQUEST_DOMAIN, signed.payload).signature


@pytest.mark.parametrize(
    "broken",
    [
        {"public_key": CONTROLLER.public_key[:31]},
        {"public_key": bytes(32)},
        {"public_key": b"\x01" + bytes(31)},
        {"signature": b""},
        {"signature": bytes(64)},
        {"payload": b""},
    ],
)
def test_broken_objects_are_refused_not_crashed_on(broken: dict[str, bytes]):
    signed = sign_request(CONTROLLER, request())
    assert code_of(msgspec.structs.replace(signed, **broken)) is RefusalCode.SIGNATURE


@pytest.mark.parametrize(
    "payload",
    [b"", b"\xc1", b"\x80", msgspec.msgpack.encode({"version": 1}), b"\x91" * 5000, bytes(MAX_REQUEST_BYTES + 1)],
)
def test_what_is_signed_but_makes_no_sense_is_refused(payload: bytes):
    assert code_of(CONTROLLER.sign(REQUEST_DOMAIN, payload)) is RefusalCode.SIGNATURE


def test_an_unknown_field_is_refused():
    fields = {**msgspec.to_builtins(request()), "extra": 1}
    assert code_of(CONTROLLER.sign(REQUEST_DOMAIN, msgspec.msgpack.encode(fields))) is RefusalCode.SIGNATURE


def test_what_nobody_would_open_is_not_sent():
    with pytest.raises(ValueError, match="exceeds"):
        sign_request(CONTROLLER, request(body="x" * MAX_REQUEST_BYTES))
    with pytest.raises(ValueError, match="exceeds"):
        sign_response(NODE, request(), Accepted(result="x" * MAX_RESPONSE_BYTES))


def test_a_signer_never_shows_its_secret():
    assert repr(CONTROLLER) == f"Signer({CONTROLLER.node_id})"
    assert CONTROLLER.node_id in repr(CONTROLLER)
    assert "c" * 8 not in repr(CONTROLLER)


@settings(max_examples=60, deadline=None)
@given(st.integers(min_value=0), st.integers(min_value=0, max_value=7))
def test_any_flipped_bit_of_the_payload_is_noticed(position: int, bit: int):
    signed = sign_request(CONTROLLER, request())
    payload = bytearray(signed.payload)
    payload[position % len(payload)] ^= 1 << bit
    assert code_of(msgspec.structs.replace(signed, payload=bytes(payload))) is RefusalCode.SIGNATURE
