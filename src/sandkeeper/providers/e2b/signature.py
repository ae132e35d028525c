"""E2B's webhook signature.

It is base64 of SHA-256 over the secret followed by the raw body, unpadded; not an HMAC. E2B's
documentation has shown both base64 alphabets, so either is accepted.
"""

from __future__ import annotations

import base64
import hashlib
import hmac


def sign(secret: str, body: bytes) -> str:
    """Return the signature as E2B sends it: the standard alphabet, no padding."""
    digest = hashlib.sha256(secret.encode() + body).digest()
    return base64.b64encode(digest).rstrip(b"=").decode()


def is_signature_valid(secret: str, body: bytes, signature: str) -> bool:
    """Return whether the signature is valid, compared in constant time.

    With an empty secret no signature is valid: a keeper without a secret must not trust every
    sender.
    """
    if not secret:
        return False
    given = signature.strip().rstrip("=").replace("-", "+").replace("_", "/")
    return hmac.compare_digest(sign(secret, body).encode(), given.encode())
