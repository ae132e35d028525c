"""Where an E2B endpoint is, and how long its calls may take."""

from __future__ import annotations

from dataclasses import dataclass


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
