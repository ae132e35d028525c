"""Tells our keys and tokens from those of apps, which use the same headers."""

from __future__ import annotations

import base64
import re

import orjson

KEY_CARRIERS = frozenset({b"authorization", b"x-api-key"})
"""Apps use these headers too, so they are dropped by their value."""

_KEYS = re.compile(rb"sk_[0-9a-f]{48}|e2b_[0-9a-f]{40}")
"""A key as the keeper makes it, and a key of E2B's: ours wherever it is good."""

_AUDIENCE = "sandkeeper-"
"""Client tokens, logins and the other tokens of a keeper name an audience that begins with it."""

_TOKEN_MAX = 8192
"""Longer than any token that a keeper signs."""


def looks_like_ours(credential: bytes) -> bool:
    """Return whether this is a key of ours by its form, or a token whose audience is a keeper."""
    return bool(_KEYS.fullmatch(credential)) or _is_keeper_token(credential)


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
    return isinstance(audience, str) and audience.startswith(_AUDIENCE)
