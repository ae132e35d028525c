"""Keeps the keeper's login and keys out of sandboxes: an app gets only its own credentials."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Collection

from sandkeeper.engine.sandboxes.routing import SandboxLookup
from sandkeeper.relay.asgi import Fields
from sandkeeper.relay.cookies import strip_our_cookies
from sandkeeper.relay.credentials import KEY_CARRIERS, looks_like_ours

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
            elif name not in KEY_CARRIERS or not self._is_ours(value):
                kept.append((name, value))
        return kept

    def _is_ours(self, value: bytes) -> bool:
        return any(self._is_our_credential(part) for part in _BETWEEN.split(value) if part)

    def _is_our_credential(self, credential: bytes) -> bool:
        if looks_like_ours(credential):
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
