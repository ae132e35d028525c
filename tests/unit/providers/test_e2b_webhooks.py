"""A delivery is believed only when it is signed, and read whichever version of E2B sent it."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest

from sandkeeper.domain.breaker import Breaker
from sandkeeper.domain.errors import InvalidRequestError, InvalidSignatureError
from sandkeeper.providers.base import EventKind, OwnershipMetadata
from sandkeeper.providers.e2b.endpoint import E2BConnection
from sandkeeper.providers.e2b.metadata import parse_metadata, render_metadata
from sandkeeper.providers.e2b.provider import E2BProvider
from sandkeeper.providers.e2b.signature import is_signature_valid, sign

SECRET = "a secret"
TAG = OwnershipMetadata(
    keeper="k", sandbox_id="s1", owner_kind="project", owner_id="shop", generation=3
)

SNAKE = {
    "id": "e1",
    "version": "v2",
    "type": "sandbox.lifecycle.killed",
    "timestamp": "2026-08-01T10:00:00.123456789Z",
    "event_data": {"kill_reason": "timeout", "sandbox_metadata": render_metadata(TAG)},
    "sandbox_id": "i1",
    "sandbox_execution_id": "r1",
}
CAMEL = {
    "id": "e1",
    "version": "v1",
    "type": "sandbox.lifecycle.killed",
    "timestamp": "2026-08-01T12:00:00.123456+02:00",
    "eventData": {"killReason": "timeout", "sandboxMetadata": render_metadata(TAG)},
    "sandboxId": "i1",
    "sandboxExecutionId": "r1",
}


@pytest.fixture
async def provider() -> AsyncIterator[E2BProvider]:
    connection = E2BConnection(api_key="e2b_00", api_url="http://127.0.0.1:1")
    provider = E2BProvider(connection, keeper="k", breaker=Breaker())
    yield provider
    await provider.close()


def signed(payload: object, secret: str = SECRET) -> tuple[bytes, dict[str, str]]:
    body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    return body, {"e2b-signature": sign(secret, body)}


@pytest.mark.parametrize("payload", [SNAKE, CAMEL], ids=["version 2", "version 1"])
async def test_both_versions_tell_the_same_event(
    provider: E2BProvider, payload: dict[str, object]
) -> None:
    event = provider.parse_webhook(*signed(payload), secret=SECRET)
    assert event is not None
    assert event.kind is EventKind.KILLED
    assert (event.event_id, event.instance_id, event.run_id) == ("e1", "i1", "r1")
    assert event.at == datetime(2026, 8, 1, 10, 0, 0, 123456, tzinfo=UTC)
    assert event.kill_reason == "timeout"
    assert event.tag == TAG


def test_both_base64_alphabets_are_accepted() -> None:
    body = next(
        body
        for body in (f"{n}".encode() for n in range(1000))
        if {"+", "/"} <= set(sign(SECRET, body))
    )
    digest = hashlib.sha256(SECRET.encode() + body).digest()
    for signature in (base64.b64encode(digest), base64.urlsafe_b64encode(digest)):
        assert is_signature_valid(SECRET, body, signature.decode())
        assert is_signature_valid(SECRET, body, signature.decode().rstrip("="))


async def test_a_tampered_body_a_wrong_secret_and_no_signature_are_refused(
    provider: E2BProvider,
) -> None:
    body, headers = signed(SNAKE)
    for attempt, given, secret in (
        (body + b" ", headers, SECRET),
        (body, headers, "another"),
        (body, {}, SECRET),
        (body, {"e2b-signature": "ä"}, SECRET),
        (*signed(SNAKE, ""), ""),
    ):
        with pytest.raises(InvalidSignatureError):
            provider.parse_webhook(attempt, given, secret=secret)


async def test_a_type_of_tomorrow_is_passed_over(provider: E2BProvider) -> None:
    body, headers = signed({**SNAKE, "type": "sandbox.lifecycle.forked"})
    assert provider.parse_webhook(body, headers, secret=SECRET) is None


@pytest.mark.parametrize(
    "payload",
    [
        b"not json",
        b"\xff\xfe",
        b"[1]",
        {**SNAKE, "timestamp": "yesterday"},
        {**SNAKE, "timestamp": "2026-08-01T10:00:00"},
        {key: value for key, value in SNAKE.items() if key != "sandbox_id"},
    ],
)
async def test_signed_nonsense_is_named_as_such(provider: E2BProvider, payload: object) -> None:
    with pytest.raises(InvalidRequestError):
        provider.parse_webhook(*signed(payload), secret=SECRET)


def test_half_a_tag_is_no_tag() -> None:
    whole = render_metadata(TAG)
    assert parse_metadata(whole) == TAG
    for key in whole:
        assert parse_metadata({k: v for k, v in whole.items() if k != key}) is None
    assert parse_metadata({**whole, "sandkeeper-generation": "-1"}) is None
