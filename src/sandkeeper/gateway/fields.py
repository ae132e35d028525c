"""The headers of a request on its way to the app, and of the answer on its way back.

The app sees the host under which its provider serves it, so its own checks of hosts and origins
hold. `X-Forwarded-*` has the preview's. What names the one in `Origin`, `Referer` and `Location`
is translated into the other.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection
from dataclasses import dataclass

from sandkeeper.providers.base import PortAddress
from sandkeeper.relay.asgi import Fields, Scope
from sandkeeper.relay.cookies import strip_our_cookies
from sandkeeper.relay.credentials import KEY_CARRIERS, looks_like_ours
from sandkeeper.relay.headers import restore_cases, select_request_fields

_BETWEEN = re.compile(rb"[\s,]+")


@dataclass(frozen=True, slots=True)
class Crossing:
    """The two names of one app: the preview's origin, and the provider's."""

    public: bytes
    inside: bytes

    @classmethod
    def make(cls, origin: str, address: PortAddress) -> Crossing:
        """Return the names for a preview with this origin."""
        scheme = "https" if address.is_tls else "http"
        return cls(origin.encode("latin-1"), f"{scheme}://{address.authority}".encode())

    def to_inside(self, value: bytes) -> bytes:
        """Return a URL of the preview as one of the provider's; leave any other."""
        return _swap(value, self.public, self.inside)

    def to_public(self, value: bytes) -> bytes:
        """Return a URL of the provider's as one of the preview; leave any other."""
        return _swap(value, self.inside, self.public)


class RequestFields:
    """Build the headers that an app gets: its own cookies and credentials, and none of ours."""

    def __init__(self, key_digests: Collection[str]) -> None:
        self._key_digests = frozenset(key_digests)

    def build(self, scope: Scope, crossing: Crossing, address: PortAddress, host: str) -> Fields:
        """Return the headers for the request to this address."""
        fields: Fields = []
        for name, value in select_request_fields(scope):
            if name == b"cookie":
                own = strip_our_cookies(value)
                if own:
                    fields.append((name, own))
            elif name in (b"origin", b"referer"):
                fields.append((name, crossing.to_inside(value)))
            elif name not in KEY_CARRIERS or not self._holds_ours(value):
                fields.append((name, value))
        client = scope.get("client") or ("127.0.0.1", 0)
        extra = {
            b"x-forwarded-host": host.encode("latin-1"),
            b"x-forwarded-proto": crossing.public.partition(b":")[0],
            b"x-forwarded-for": str(client[0]).encode("latin-1"),
        }
        own_host = (b"host", address.authority.encode("latin-1"))
        return [own_host, *restore_cases(scope, fields), *extra.items()]

    def _holds_ours(self, value: bytes) -> bool:
        return any(
            looks_like_ours(part) or hashlib.sha256(part).hexdigest() in self._key_digests
            for part in _BETWEEN.split(value)
            if part
        )


def _swap(value: bytes, old: bytes, new: bytes) -> bytes:
    if value == old or value.startswith((old + b"/", old + b"?", old + b"#")):
        return new + value[len(old) :]
    return value
