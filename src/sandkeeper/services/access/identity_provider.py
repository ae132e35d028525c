"""Sign-in with an identity provider: OpenID Connect's authorization code flow with PKCE.

Authlib makes the requests' parameters and checks the claims, joserfc checks the signature. The
rest of a sign-in, who began it in which browser, is the API's part.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import structlog
from authlib.oauth2.client import OAuth2Client
from authlib.oauth2.rfc6749.parameters import prepare_token_request
from authlib.oidc.core import CodeIDToken
from joserfc import jwt
from joserfc.errors import JoseError

from sandkeeper.domain.access import Right, Scope
from sandkeeper.domain.errors import IdentityProviderUnavailableError, UnauthenticatedError
from sandkeeper.services.access.provider_documents import (
    Endpoints,
    ProviderDocuments,
    request_json,
)
from sandkeeper.settings import Settings

log = structlog.get_logger(__name__)

CALLBACK_PATH: Final = "/login/oidc/callback"
# Signatures that need the provider's private key. Neither "none" nor one with a shared secret is.
ALGORITHMS: Final = (
    *("RS256", "RS384", "RS512"),
    *("PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512"),
    *("EdDSA", "Ed25519"),
)
# How far the provider's clock may be from ours.
LEEWAY_S: Final = 60
# Codes that are exchanged at once. More makes a keeper an amplifier of a flood of sign-ins.
EXCHANGES_MAX: Final = 8
# Sign-ins that wait for that. The next one is told to try again.
WAITING_MAX: Final = 100
NAME_MAX: Final = 120
_ERROR_CODE: Final = re.compile(r"[a-z_]{1,40}")
_STRONGEST_FIRST: Final = (Right.ADMIN, Right.OPERATE, Right.READ)


@dataclass(frozen=True, slots=True)
class SignInAttempt:
    """What ties an answer of the provider to the browser that asked for it."""

    state: str
    nonce: str
    verifier: str

    @classmethod
    def make(cls) -> SignInAttempt:
        return cls(*(secrets.token_urlsafe(32) for _ in range(3)))


@dataclass(frozen=True, slots=True)
class Person:
    """Who signed in, and with which rights; None without a role that has any."""

    subject: str
    name: str
    scope: Scope | None


class IdentityProvider:
    """The provider of the settings."""

    def __init__(self, settings: Settings, documents: ProviderDocuments | None = None) -> None:
        self.issuer = settings.oidc_issuer
        self.name = settings.oidc_name or urlsplit(settings.oidc_issuer).netloc
        self.redirect_base = (settings.oidc_redirect_url or settings.public_url).rstrip("/")
        self._settings = settings
        self._documents = documents or ProviderDocuments(self.issuer)
        self._exchanges = asyncio.Semaphore(EXCHANGES_MAX)
        self._waiting = 0

    async def make_redirect(self, attempt: SignInAttempt) -> str:
        """Return the provider's address to which the browser is sent."""
        endpoints = await self._documents.read_endpoints()
        url, _ = self._make_client(endpoints).create_authorization_url(
            endpoints.authorization,
            state=attempt.state,
            code_verifier=attempt.verifier,
            nonce=attempt.nonce,
        )
        return str(url)

    async def identify(self, code: str, attempt: SignInAttempt) -> Person:
        """Exchange the code, and return the person whom the ID token is about."""
        if self._waiting >= WAITING_MAX:
            raise IdentityProviderUnavailableError("Too many people sign in at once.")
        self._waiting += 1
        try:
            async with self._exchanges:
                tokens = await self._exchange(code, attempt)
                claims = await self._check(tokens, attempt)
        finally:
            self._waiting -= 1
        return self._to_person(claims)

    async def _exchange(self, code: str, attempt: SignInAttempt) -> Mapping[str, Any]:
        endpoints = await self._documents.read_endpoints()
        client = self._make_client(endpoints)
        body = prepare_token_request(
            "authorization_code",
            redirect_uri=client.redirect_uri,
            code=code,
            code_verifier=attempt.verifier,
        )
        url, headers, body = client.client_auth(client.token_endpoint_auth_method).prepare(
            "POST",
            endpoints.token,
            {"Content-Type": "application/x-www-form-urlencoded"},
            body,
        )
        answer = await request_json("POST", url, headers=headers, content=body)
        if answer.status != 200:
            reason = describe_error(answer.body.get("error"))
            log.warning("sign_in_code_refused", status=answer.status, error=reason)
            raise UnauthenticatedError(f"{self.name} refused the sign-in ({reason}).")
        return answer.body

    async def _check(self, tokens: Mapping[str, Any], attempt: SignInAttempt) -> dict[str, Any]:
        id_token = tokens.get("id_token")
        if not isinstance(id_token, str):
            raise UnauthenticatedError(f"{self.name} sent no ID token.")
        try:
            signed = await self._verify(id_token)
            claims = CodeIDToken(
                signed.claims,
                signed.header,
                options={
                    "iss": {"essential": True, "value": self.issuer},
                    "aud": {"essential": True, "value": self._settings.oidc_client_id},
                    "sub": {"essential": True},
                    "exp": {"essential": True},
                    "iat": {"essential": True},
                    "nonce": {"essential": True, "value": attempt.nonce},
                },
                params={
                    "nonce": attempt.nonce,
                    "client_id": self._settings.oidc_client_id,
                    "access_token": tokens.get("access_token"),
                },
            )
            claims.validate(leeway=LEEWAY_S)
        except (JoseError, ValueError, TypeError) as error:
            reason = str(getattr(error, "error", "")) or type(error).__name__
            log.warning("id_token_refused", error=f"{type(error).__name__}: {error}"[:300])
            problem = f"The ID token of {self.name} is not valid ({reason})."
            raise UnauthenticatedError(problem) from error
        return dict(claims)

    async def _verify(self, id_token: str) -> jwt.Token:
        """Return the token if a key of the provider signed it; the provider may have a new one."""
        keys = await self._documents.read_keys()
        try:
            return jwt.decode(id_token, keys, algorithms=ALGORITHMS)
        except (JoseError, ValueError):
            newer = await self._documents.read_keys(again=True)
            if newer is keys:
                raise
            return jwt.decode(id_token, newer, algorithms=ALGORITHMS)

    def _to_person(self, claims: Mapping[str, Any]) -> Person:
        subject, email = str(claims["sub"]), claims.get("email")
        # Anyone may claim an address that the provider has not verified.
        is_verified = claims.get("email_verified") is True and isinstance(email, str)
        name = email if is_verified else subject
        printable = "".join(one for one in str(name) if one.isprintable())[:NAME_MAX]
        roles = _find_roles(claims, self._settings.oidc_roles_claim)
        scopes = self._settings.oidc_roles
        granted = {scopes[one] for one in roles if one in scopes}
        right = next((one for one in _STRONGEST_FIRST if one.value in granted), None)
        return Person(subject, printable, Scope(right) if right is not None else None)

    def _make_client(self, endpoints: Endpoints) -> Any:
        secret = read_client_secret(self._settings)
        methods = endpoints.token_auth_methods
        # Basic is what a provider supports that names none.
        wants_body = bool(methods) and "client_secret_basic" not in methods
        with_secret = "client_secret_post" if wants_body else "client_secret_basic"
        return OAuth2Client(
            session=None,
            client_id=self._settings.oidc_client_id,
            client_secret=secret,
            token_endpoint_auth_method=with_secret if secret else "none",
            scope=self._settings.oidc_scopes,
            redirect_uri=f"{self.redirect_base}{CALLBACK_PATH}",
            code_challenge_method="S256",
        )


def read_client_secret(settings: Settings) -> str | None:
    """Return the client secret; a file is read each time, so that it may change."""
    if settings.oidc_client_secret is not None:
        return settings.oidc_client_secret.get_secret_value()
    if settings.oidc_client_secret_file is not None:
        return settings.oidc_client_secret_file.read_text().strip()
    return None


def describe_error(code: object) -> str:
    """Return an error code of the provider's, if it is one; other text is not repeated."""
    text = str(code)
    return text if _ERROR_CODE.fullmatch(text) else "no reason given"


def _find_roles(claims: Mapping[str, Any], name: str) -> Sequence[str]:
    """Return the roles in the claim of this name, or in the one at this path with dots."""
    found: Any = claims.get(name)
    if found is None:
        found = claims
        for part in name.split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
    if isinstance(found, str):
        return [found]
    return [one for one in found if isinstance(one, str)] if isinstance(found, list) else []
