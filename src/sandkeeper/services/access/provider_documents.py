"""What an identity provider publishes: its description and its keys, read when they are needed.

Both are kept for an hour. A key that is not among the known ones makes the keys be read again, at
most every ten seconds; a provider that did not answer is asked again after the same time. So no
stream of sign-ins, whatever it sends, becomes a stream of requests to the provider.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import httpx
import orjson
from joserfc.errors import JoseError
from joserfc.jwk import JWKRegistry, Key, KeySet

from sandkeeper.common.dashboard_host import is_protected
from sandkeeper.domain.errors import IdentityProviderUnavailableError

TIMEOUT_S: Final = 5.0
# Descriptions and key sets have a few kilobytes. Above this the answer is refused unread.
BODY_BYTES_MAX: Final = 256 * 1024
KEYS_MAX: Final = 100
KEEP_S: Final = 3600.0
RETRY_S: Final = 10.0
# Key types with a public half: a shared secret among the published keys would sign for anyone.
PUBLIC_KEY_TYPES: Final = frozenset({"RSA", "EC", "OKP"})


@dataclass(frozen=True, slots=True)
class Answer:
    """A provider's answer: its status and the JSON object in it."""

    status: int
    body: dict[str, Any]


async def request_json(
    method: str, url: str, *, headers: Mapping[str, str] | None = None, content: str | None = None
) -> Answer:
    """Return the answer, or raise IdentityProviderUnavailableError; redirects are not followed."""
    # A compressed body could be far larger than what is counted here.
    sent = {**(headers or {}), "Accept": "application/json", "Accept-Encoding": "identity"}
    body = bytearray()
    try:
        async with (
            asyncio.timeout(TIMEOUT_S),
            httpx.AsyncClient(timeout=TIMEOUT_S) as client,
            client.stream(method, url, headers=sent, content=content) as answer,
        ):
            async for part in answer.aiter_raw():
                body += part
                if len(body) > BODY_BYTES_MAX:
                    raise IdentityProviderUnavailableError("The answer is too large.", url=url)
    except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as error:
        cause = str(error) or type(error).__name__
        raise IdentityProviderUnavailableError(url=url, cause=cause) from error
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError:
        found = None
    if answer.status_code >= 500 or not isinstance(found, dict):
        raise IdentityProviderUnavailableError(url=url, status=answer.status_code)
    return Answer(answer.status_code, found)


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Where the provider is asked for what."""

    authorization: str
    token: str
    keys: str
    token_auth_methods: tuple[str, ...]


class ProviderDocuments:
    """The description and the keys of one provider, as this process knows them."""

    def __init__(self, issuer: str, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._issuer = issuer
        self._monotonic = monotonic
        self._endpoints: tuple[Endpoints, float] | None = None
        self._keys: tuple[KeySet, float] | None = None
        self._failed: tuple[IdentityProviderUnavailableError, float] | None = None
        self._reading = asyncio.Lock()

    async def read_endpoints(self) -> Endpoints:
        """Return the endpoints that the provider's description names."""
        async with self._reading:
            if self._endpoints is None or self._age(self._endpoints[1]) >= KEEP_S:
                url = f"{self._issuer.rstrip('/')}/.well-known/openid-configuration"
                self._endpoints = (self._parse_endpoints(await self._get(url)), self._monotonic())
            return self._endpoints[0]

    async def read_keys(self, *, again: bool = False) -> KeySet:
        """Return the provider's public keys; `again` if the known ones did not do."""
        endpoints = await self.read_endpoints()
        async with self._reading:
            keep_s = RETRY_S if again else KEEP_S
            if self._keys is None or self._age(self._keys[1]) >= keep_s:
                found = _parse_keys(await self._get(endpoints.keys))
                self._keys = (found, self._monotonic())
            return self._keys[0]

    async def _get(self, url: str) -> dict[str, Any]:
        if self._failed is not None and self._age(self._failed[1]) < RETRY_S:
            raise self._failed[0]
        try:
            answer = await request_json("GET", url)
        except IdentityProviderUnavailableError as error:
            self._failed = (error, self._monotonic())
            raise
        if answer.status != 200:
            raise IdentityProviderUnavailableError(url=url, status=answer.status)
        return answer.body

    def _age(self, since: float) -> float:
        return self._monotonic() - since

    def _parse_endpoints(self, found: Mapping[str, Any]) -> Endpoints:
        if found.get("issuer") != self._issuer:
            raise IdentityProviderUnavailableError(
                f"The provider calls itself {str(found.get('issuer'))[:200]!r}, and not "
                f"{self._issuer!r}: set oidc_issuer to exactly that."
            )
        names = ("authorization_endpoint", "token_endpoint", "jwks_uri")
        urls = [found.get(name) for name in names]
        for name, url in zip(names, urls, strict=True):
            if not isinstance(url, str) or not is_protected(url):
                raise IdentityProviderUnavailableError(f"The provider's {name} is no https URL.")
        methods = found.get("token_endpoint_auth_methods_supported")
        known = tuple(str(one) for one in methods) if isinstance(methods, list) else ()
        authorization, token, keys = (str(url) for url in urls)
        return Endpoints(authorization, token, keys, known)


def _parse_keys(found: Mapping[str, Any]) -> KeySet:
    """Return the public signing keys; those of a kind that is not known are passed over."""
    listed = found.get("keys")
    keys: list[Key] = []
    for one in listed[:KEYS_MAX] if isinstance(listed, list) else ():
        if not isinstance(one, dict) or one.get("kty") not in PUBLIC_KEY_TYPES:
            continue
        if one.get("use", "sig") == "sig":
            with contextlib.suppress(JoseError, ValueError, KeyError, TypeError):
                keys.append(JWKRegistry.import_key(one))
    if not keys:
        raise IdentityProviderUnavailableError("The provider publishes no key that we can use.")
    return KeySet(keys)
