"""Where an E2B endpoint is, and how long its calls may take."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from sandkeeper.providers.base import PortAddress


@dataclass(frozen=True, slots=True)
class E2BConnection:
    """The provider's address and timeouts. A field that is None comes from E2B's variables.

    `preview_url` is how a browser reaches a port, with `{port}` and `{instance}` in it; without it
    E2B's own `https://{port}-{instance}.{domain}`. `boot_timeout_s` bounds creating and resuming,
    which take longer than all other requests.
    """

    api_key: str | None = None
    api_url: str | None = None
    sandbox_url: str | None = None
    domain: str | None = None
    preview_url: str | None = None
    request_timeout_s: float = 30.0
    boot_timeout_s: float = 90.0


def locate(url: str, traffic_url: str | None) -> PortAddress:
    """Return how requests reach a port with this address.

    A given `traffic_url` serves all sandboxes, under names that this machine may not resolve.
    """
    named = urlsplit(url)
    place = urlsplit(traffic_url) if traffic_url else named
    is_tls = place.scheme == "https"
    return PortAddress(
        host=place.hostname or "",
        port=place.port or (443 if is_tls else 80),
        is_tls=is_tls,
        authority=named.netloc,
    )
