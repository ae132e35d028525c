"""Keeps the keeper's login and keys out of sandboxes: an app gets only its own credentials."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Collection

import orjson

from sandkeeper.engine.sandboxes.routing import SandboxLookup
from sandkeeper.relay.asgi import Fields
from sandkeeper.relay.cookies import strip_our_cookies

_KEY_CARRIERS = frozenset({b"authorization", b"x-api-key"})
"""Apps use these headers too, so they are dropped by their value."""

_OUR_KEYS = re.compile(rb"sk_[0-9a-f]{48}|e2b_[0-9a-f]{40}")
"""A key as the keeper makes it, and a key of E2B's: ours wherever it is good."""

_OUR_AUDIENCE = "sandkeeper-"
"""Client tokens, logins and the other tokens of a keeper name an audience that begins with it."""

_TOKEN_MAX = 8192
"""Longer than any token that a keeper signs."""

_BETWEEN = re.compile(rb"[\s,]+")


class Credentials:
    """Tells the credentials of this engine and its keeper from those of apps.

    `key_digests` are the SHA-256, in hex, of the keys that the keeper's user has chosen.
    """

    def __init__(
        self, key: str, sandboxes: SandboxLookup, key_digests: Collection[str] = ()
    ) -> None:
        self._key = key.encode()
        self._sandboxes = sandboxes
        self._key_digests = frozenset(key_digests)

    def strip(self, fields: Fields) -> Fields:
        """Return the request's fields without our cookies and keys."""
        kept: Fields = []
        for name, value in fields:
            if name == b"cookie":
                own = strip_our_cookies(value)
                if own:
                    kept.append((name, own))
            elif name not in _KEY_CARRIERS or not self._is_ours(value):
                kept.append((name, value))
        return kept

    def _is_ours(self, value: bytes) -> bool:
        return any(self._is_our_credential(part) for part in _BETWEEN.split(value) if part)

    def _is_our_credential(self, credential: bytes) -> bool:
        if _OUR_KEYS.fullmatch(credential) or _is_keeper_token(credential):
            return True
        if hashlib.sha256(credential).hexdigest() in self._key_digests:
            return True
        if self._key and hmac.compare_digest(credential, self._key):
            return True
        return any(
            token and hmac.compare_digest(credential, token.encode())
            for one in self._sandboxes.running()
            for token in (one.token, one.traffic_token)
        )


def _is_keeper_token(credential: bytes) -> bool:
    """Return whether this is a signed token whose audience is a keeper, of whichever key."""
    parts = credential.split(b".")
    if len(parts) != 3 or len(credential) > _TOKEN_MAX:
        return False
    try:
        claims = orjson.loads(base64.urlsafe_b64decode(parts[1] + b"=="))
    except ValueError:
        return False
    audience = claims.get("aud") if isinstance(claims, dict) else None
    return isinstance(audience, str) and audience.startswith(_OUR_AUDIENCE)
