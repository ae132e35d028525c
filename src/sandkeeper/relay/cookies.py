"""Keeps cookies apart: ours stay out of apps, and an app sets none for another host.

Cookies ignore ports: a browser sends the keeper's login to every port of the host name on which it
was set. An app is untrusted; it gets only its own cookies.
"""

from __future__ import annotations

OUR_COOKIES = frozenset(
    prefix + name
    for name in (b"sandkeeper_login", b"sandkeeper_sign_in", b"sandkeeper_preview")
    for prefix in (b"", b"__Host-")
)
"""Logins to the dashboard, sign-ins and passes to previews, without and with TLS. A test compares
them with the keeper's."""

_LOWERED = frozenset(name.lower() for name in OUR_COOKIES)


def may_set(cookie: bytes, host: str) -> bool:
    """Return whether an app at this host may set the cookie: not ours, for no other host."""
    pair, *attributes = cookie.split(b";")
    # A cookie without a name is sent as its bare value, which may look like a name and a value.
    name = pair.strip().lstrip(b"=").partition(b"=")[0].strip().lower()
    if name in _LOWERED:
        return False
    own = host.lower().encode("latin-1")
    for attribute in attributes:
        key, _, value = attribute.partition(b"=")
        domain = value.strip().lower().removeprefix(b".")
        if key.strip().lower() == b"domain" and domain not in (b"", own):
            return False
    return True


def strip_our_cookies(value: bytes) -> bytes:
    """Return the Cookie header without our own; it may be empty then."""
    pairs = (pair.strip() for pair in value.split(b";"))
    return b"; ".join(
        pair for pair in pairs if pair and pair.partition(b"=")[0].strip().lower() not in _LOWERED
    )
